//! Calls of Slack's Web API, and what its refusals mean.
//!
//! Invariants: the token goes out in a header only and stands in no error; `ok: false` is a failure whatever the status says; only what
//! is wrong with the text itself rejects a record, everything else can be mended at Slack or in the options.

use returner_sdk::http::{Request, Response};
use returner_sdk::{Error, Result};
use returner_sdk_notify::deliver::Deadline;
use returner_sdk_notify::web::{self, Unsent, mendable};
use serde::Deserialize;

use crate::options::Settings;

/// Why a call came to nothing.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fault {
    /// Slack wants a pause.
    Busy(Error),
    /// Slack said no.
    Refused(Refusal),
    /// No proper answer.
    Other(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl From<Unsent> for Fault {
    fn from(unsent: Unsent) -> Self {
        match unsent {
            Unsent::Busy(error) => Self::Busy(error),
            Unsent::Other(error) => Self::Other(error),
        }
    }
}

/// `ok: false`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Slack's code, such as `channel_not_found`.
    pub(crate) code: String,
    /// The scopes that the token lacks.
    needed: Option<String>,
}

/// What Slack answers. Fields that a method does not have are empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Answer {
    ok: bool,
    error: Option<String>,
    needed: Option<String>,
    /// The id of the channel that a message is in.
    pub(crate) channel: String,
    /// The message's time, which is its id.
    pub(crate) ts: String,
    /// Where a file is to be sent.
    pub(crate) upload_url: String,
    /// The id of a file.
    pub(crate) file_id: String,
}

/// Calls a method, with its arguments as a form.
pub(crate) async fn call(
    settings: &Settings,
    deadline: Deadline,
    method: &str,
    arguments: &[(&str, &str)],
) -> Result<Answer, Fault> {
    let request = Request::post(format!("{}/api/{method}", settings.api_url))
        .header("authorization", settings.authorization.clone())
        .form(arguments.iter().copied());
    let response = send(request, deadline, "api_url").await?;
    let answer: Answer = response.json().map_err(|error| {
        error.context(method).context("the server of `api_url` does not answer as Slack does")
    })?;
    if answer.ok {
        return Ok(answer);
    }
    let code = answer.error.unwrap_or_else(|| "no reason given".to_owned());
    if matches!(code.as_str(), "ratelimited" | "rate_limited" | "message_limit_exceeded") {
        return Err(Fault::Busy(web::busy(&response, "Slack", &code)));
    }
    Err(Fault::Refused(Refusal { code, needed: answer.needed }))
}

/// Sends the bytes of a file to where Slack wants them.
pub(crate) async fn upload(url: &str, deadline: Deadline, text: String) -> Result<(), Fault> {
    let request = Request::post(url).header("content-type", "application/octet-stream").body(text);
    send(request, deadline, "files_url").await.map(drop)
}

async fn send(request: Request, deadline: Deadline, option: &str) -> Result<Response, Fault> {
    let response = web::send(request, deadline, "Slack").await?;
    Ok(web::must_be_proper(response, option)?)
}

impl Refusal {
    /// Whether the app or the workspace takes no files, so that a message must do.
    pub(crate) fn is_of_files(&self) -> bool {
        matches!(
            self.code.as_str(),
            "missing_scope"
                | "not_allowed_token_type"
                | "file_uploads_disabled"
                | "file_uploads_except_images_disabled"
                | "file_upload_size_restricted"
                | "file_type_not_allowed"
                | "storage_limit_reached"
        )
    }

    /// Whether the record is at fault.
    fn is_of_the_text(&self) -> bool {
        matches!(
            self.code.as_str(),
            "msg_too_long"
                | "msg_blocks_too_long"
                | "no_text"
                | "too_many_attachments"
                | "invalid_blocks"
                | "invalid_blocks_format"
        )
    }

    /// What the host is to do, and what the operator.
    pub(crate) fn error(&self, settings: &Settings) -> Error {
        let code = &self.code;
        if self.is_of_the_text() {
            return Error::Reject(format!("Slack refuses the text of the message: `{code}`"));
        }
        let channel = &settings.channel;
        let (about, hint) = match code.as_str() {
            // Trouble of Slack's own.
            "internal_error"
            | "fatal_error"
            | "service_unavailable"
            | "request_timeout"
            | "team_added_to_org" => {
                return Error::retry(format!("Slack failed: `{code}`"));
            }
            "not_authed" | "invalid_auth" | "account_inactive" | "token_revoked" | "token_expired" => (
                "does not take the token of the option `api_key`".to_owned(),
                "put the bot token (`xoxb-…`) of an app that is installed there".to_owned(),
            ),
            "not_allowed_token_type" => (
                "does not take this kind of token from the option `api_key`".to_owned(),
                "put a bot token (`xoxb-…`) there".to_owned(),
            ),
            "missing_scope" | "no_permission" => (
                "says that the token of the option `api_key` may not do this".to_owned(),
                format!(
                    "give the app the scope `{}` and install it again",
                    self.needed.as_deref().unwrap_or("chat:write")
                ),
            ),
            "channel_not_found" | "not_in_channel" | "is_archived" => (
                format!("cannot post to `{channel}`, the option `channel`"),
                match code.as_str() {
                    "is_archived" => "the channel is archived; name another".to_owned(),
                    _ => "invite the app to the channel (`/invite @app`); a private channel goes by its id"
                        .to_owned(),
                },
            ),
            _ => (
                format!("takes no message for `{channel}`, the option `channel`"),
                "Slack's documentation of `chat.postMessage` explains the code".to_owned(),
            ),
        };
        mendable(format!("Slack {about}: `{code}`; hint: {hint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    fn error(code: &str, needed: Option<&str>) -> Error {
        let options = Options {
            api_key: Some("xoxb-secret".into()),
            channel: Some("#ops".into()),
            ..Options::default()
        };
        Refusal { code: code.into(), needed: needed.map(str::to_owned) }.error(&options.settings().unwrap())
    }

    #[test]
    fn a_refusal_names_the_option_and_the_fix_and_waits() {
        for (code, words) in [
            ("invalid_auth", ["`api_key`", "xoxb-…"]),
            ("token_revoked", ["`api_key`", "installed"]),
            ("channel_not_found", ["`#ops`", "/invite"]),
            ("is_archived", ["`channel`", "archived"]),
            ("missing_scope", ["`api_key`", "`chat:write`"]),
            ("restricted_action", ["`restricted_action`", "documentation"]),
        ] {
            let Error::Retry { why, after_ms: Some(web::MENDABLE_MS) } = error(code, None) else {
                panic!("{code}")
            };
            assert!(words.iter().all(|word| why.contains(word)) && why.contains("hint: "), "{why}");
            assert!(!why.contains("secret"), "{why}");
        }
        assert!(error("missing_scope", Some("files:write")).to_string().contains("`files:write`"));
    }

    #[test]
    fn only_a_bad_text_is_rejected() {
        for code in ["msg_too_long", "no_text", "invalid_blocks"] {
            assert!(matches!(error(code, None), Error::Reject(_)), "{code}");
        }
        assert!(matches!(error("internal_error", None), Error::Retry { after_ms: None, .. }));
        assert!(matches!(error("a_code_of_tomorrow", None), Error::Retry { after_ms: Some(_), .. }));
    }
}
