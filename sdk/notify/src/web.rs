//! Requests to a service that takes messages over HTTP, and the failures that all such services share.
//!
//! Invariants: a request ends within the time that the call has left; what a person must mend is not asked for again every moment.

use std::time::Duration;

use returner_sdk::http::{Request, Response};
use returner_sdk::{Error, Result};

use crate::deliver::Deadline;

/// Limits of one request; less if the call has not so much time left.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(15);

/// How long to leave what somebody must mend first.
pub const MENDABLE_MS: u32 = 60_000;

/// How long to wait if the service wants that but does not say how long.
const PAUSE_MS: u32 = 30_000;

/// Why there is no answer to work with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unsent {
    /// The service wants a pause, which the error names: [`crate::deliver::Memory::heed`] is to know of it.
    Busy(Error),
    /// Anything else.
    Other(Error),
}

impl From<Error> for Unsent {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Sends a request and gives the answer, unless its status says that a later try may do better. `service` is its name for people.
///
/// # Errors
/// [`Unsent::Busy`] for status 429.
pub async fn send(request: Request, deadline: Deadline, service: &str) -> Result<Response, Unsent> {
    let request = request.connect_within(deadline.allow(CONNECT)?).answer_within(deadline.allow(ANSWER)?);
    let response = request.send().await?;
    if response.status == 429 {
        return Err(Unsent::Busy(busy(&response, service, "status 429")));
    }
    Ok(response.retry_on_failure()?)
}

/// That the service takes no more messages for now, for as long as its answer says. `how` is what it said.
pub fn busy(response: &Response, service: &str, how: &str) -> Error {
    let seconds = response.header("retry-after").and_then(|value| value.trim().parse::<u32>().ok());
    let after_ms = seconds.map_or(PAUSE_MS, |seconds| seconds.saturating_mul(1_000));
    Error::Retry {
        why: format!("{service} takes no more messages for now ({how})"),
        after_ms: Some(after_ms),
    }
}

/// An error that a person must mend.
pub fn mendable(why: impl Into<String>) -> Error {
    Error::Retry { why: why.into(), after_ms: Some(MENDABLE_MS) }
}

/// An answer that the service never gives: its status is not 2xx, so that another server answers or a proxy is in the way. `option`
/// names the server.
///
/// # Errors
/// [`Error::Retry`] if it is one, since no record could help.
pub fn must_be_proper(response: Response, option: &str) -> Result<Response> {
    response.must_succeed().map_err(|error| match error {
        Error::Retry { .. } => error,
        other => mendable(format!("{other}; hint: is the option `{option}` right?")),
    })
}

/// The address of a server that an option holds, without the slash at its end.
///
/// # Errors
/// [`Error::Fatal`] if it is none.
pub fn server(option: &str, url: &str) -> Result<String> {
    let lower = url.to_ascii_lowercase();
    if lower.starts_with("https://") || lower.starts_with("http://") {
        return Ok(url.trim_end_matches('/').to_owned());
    }
    Err(Error::fatal(format!("the option `{option}` does not begin with `https://` or `http://`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_service_is_left_alone_for_as_long_as_it_says() {
        let with = |value: &str| Response {
            headers: vec![("retry-after".into(), value.as_bytes().to_vec())],
            ..Response::default()
        };
        let after = |value| match busy(&with(value), "X", "429") {
            Error::Retry { after_ms, .. } => after_ms,
            _ => None,
        };
        assert_eq!(
            [after("7"), after("soon"), after("99999999")],
            [Some(7_000), Some(PAUSE_MS), Some(u32::MAX)]
        );
    }

    #[test]
    fn an_answer_of_some_other_server_waits_and_names_the_option() {
        let page = Response { status: 404, body: b"no such page".to_vec(), ..Response::default() };
        let Err(Error::Retry { why, after_ms }) = must_be_proper(page, "api_url") else { panic!() };
        assert!(why.contains("404") && why.contains("`api_url`"), "{why}");
        assert_eq!(after_ms, Some(MENDABLE_MS));
    }

    #[test]
    fn a_server_is_an_address_of_the_web() {
        assert_eq!(server("api_url", "https://x/y/").unwrap(), "https://x/y");
        assert!(matches!(server("api_url", "x"), Err(Error::Fatal(why)) if why.contains("`api_url`")));
    }
}
