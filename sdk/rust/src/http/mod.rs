//! HTTP requests.
//!
//! In the sandbox the host sends them: it keeps connections open between calls and instances, does TLS with the roots and the
//! certificate that the operator set, and refuses what the plugin was not granted. A request holds the instance until its
//! response is there, and a timer of tokio does not fire meanwhile: set limits with [`Request::connect_within`] and
//! [`Request::answer_within`]. Redirects are not followed.
//!
//! ```no_run
//! # async fn f() -> returner_sdk::Result<()> {
//! use returner_sdk::http::Request;
//!
//! let answer = Request::post("https://api.example.com/returns")
//!     .header("authorization", "Bearer …")
//!     .json(&serde_json::json!({"jid": "20261201033139637056"}))?
//!     .send()
//!     .await?
//!     .retry_on_failure()?;
//! # Ok(()) }
//! ```

#[cfg(not(target_arch = "wasm32"))]
mod native;
mod url;
#[cfg(target_arch = "wasm32")]
mod wasi;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result};
use url::Url;

/// A request that is being put together.
#[derive(Clone)]
#[must_use = "a request does nothing before `send`"]
pub struct Request {
    method: String,
    url: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    connect: Option<Duration>,
    answer: Option<Duration>,
}

/// Without what may be secret: the path and the query, the values of headers, the body.
impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("to", &Url::parse(&self.url).map(|url| url.origin()))
            .field("headers", &names)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl Request {
    /// A request with any method. The URL may hold a user and password, which go out as basic authentication.
    pub fn new(method: &str, url: impl Into<String>) -> Self {
        Self {
            method: method.to_owned(),
            url: url.into(),
            headers: Vec::new(),
            body: Vec::new(),
            connect: None,
            answer: None,
        }
    }

    /// `GET`.
    pub fn get(url: impl Into<String>) -> Self {
        Self::new("GET", url)
    }

    /// `POST`.
    pub fn post(url: impl Into<String>) -> Self {
        Self::new("POST", url)
    }

    /// `PUT`.
    pub fn put(url: impl Into<String>) -> Self {
        Self::new("PUT", url)
    }

    /// `DELETE`.
    pub fn delete(url: impl Into<String>) -> Self {
        Self::new("DELETE", url)
    }

    /// Adds a header. `Content-Length` and `Host` are set by themselves; the host refuses a `Host` of another server.
    pub fn header(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Adds basic authentication.
    pub fn basic_auth(self, user: &str, password: &str) -> Self {
        let value = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
        self.header("authorization", value)
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets the body to a value as JSON, with its content type.
    pub fn json(self, value: &impl Serialize) -> Result<Self> {
        let body = serde_json::to_vec(value)?;
        Ok(self.header("content-type", "application/json").body(body))
    }

    /// Sets the body to fields as a form of a web page sends them (`application/x-www-form-urlencoded`), with its content type.
    pub fn form<'a>(self, fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        self.header("content-type", "application/x-www-form-urlencoded").body(body)
    }

    /// How long to wait for a connection. The host has a limit of its own.
    pub fn connect_within(mut self, time: Duration) -> Self {
        self.connect = Some(time);
        self
    }

    /// How long to wait for the beginning of the response, and then for each part of it. The host has a limit of its own.
    pub fn answer_within(mut self, time: Duration) -> Self {
        self.answer = Some(time);
        self
    }

    /// Sends it and reads the whole response, whatever its status is.
    ///
    /// # Errors
    /// [`Error::Retry`] if there was no response; [`Error::Fatal`] if the host does not allow the request or the URL is none;
    /// [`Error::Reject`] if the body is larger than the host sends.
    pub async fn send(mut self) -> Result<Response> {
        let url = Url::parse(&self.url).map_err(Error::fatal)?;
        if let Some((user, password)) = &url.login
            && !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"))
        {
            self = self.basic_auth(user, password);
        }
        self.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("content-length"));
        if !self.body.is_empty() || matches!(self.method.as_str(), "POST" | "PUT" | "PATCH") {
            self.headers.push(("content-length".to_owned(), self.body.len().to_string().into()));
        }
        // The path and the query may hold a token, so an error names the server only.
        let doing = format!("{} {}", self.method, url.origin());
        #[cfg(target_arch = "wasm32")]
        let result = wasi::send(&self, &url);
        #[cfg(not(target_arch = "wasm32"))]
        let result = native::send(&self, &url).await;
        result.map_err(|error| error.context(&doing))
    }
}

/// A response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The headers, their names in lower case.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body.
    pub body: Vec<u8>,
}

/// Text of a response in an error, in bytes.
const EXCERPT: usize = 300;

impl Response {
    /// Whether the status is 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The first header of this name, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.and_then(|(_, value)| std::str::from_utf8(value).ok())
    }

    /// The body as text; what is not UTF-8 is replaced.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// [`Error::Retry`] if it is none, since it is the server that is at fault.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Error::retry(format!("the server answered with no proper JSON: {error}")))
    }

    /// The response, or [`Error::Retry`] if its status says that a later try may do better: 408, 425, 429 and 5xx. The time in
    /// `Retry-After`, where it is given in seconds, is kept to.
    pub fn retry_on_failure(self) -> Result<Self> {
        if !matches!(self.status, 408 | 425 | 429 | 500..) {
            return Ok(self);
        }
        let seconds = self.header("retry-after").and_then(|value| value.trim().parse::<u64>().ok());
        let after_ms = seconds.map(|s| u32::try_from(s.saturating_mul(1_000)).unwrap_or(u32::MAX));
        Err(Error::Retry { why: self.describe(), after_ms })
    }

    /// The response if its status is 2xx, else the error that usually fits: what [`Self::retry_on_failure`] says; `Fatal` for a
    /// status that speaks of the configuration (3xx, 401, 403, 404, 405, 407); `Reject` for any other.
    pub fn must_succeed(self) -> Result<Self> {
        let this = self.retry_on_failure()?;
        match this.status {
            200..=299 => Ok(this),
            100..=399 | 401 | 403 | 404 | 405 | 407 => Err(Error::fatal(this.describe())),
            _ => Err(Error::reject(this.describe())),
        }
    }

    /// The status, and where it is a failure the beginning of the body.
    fn describe(&self) -> String {
        let mut text = format!("the server answered with status {}", self.status);
        if let (300..400, Some(to)) = (self.status, self.header("location")) {
            // Like the request's, its path may hold a token.
            let to = Url::parse(to).map_or_else(|_| "another path".to_owned(), |url| url.origin());
            text.push_str(&format!(" (to {to}); hint: redirects are not followed"));
        } else if !self.body.is_empty() {
            let body = self.text();
            let end = (0..=EXCERPT.min(body.len())).rev().find(|at| body.is_char_boundary(*at));
            text.push_str(": ");
            text.extend(body[..end.unwrap_or(0)].chars().map(|c| if c.is_control() { ' ' } else { c }));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, headers: &[(&str, &str)], body: &str) -> Response {
        let headers = headers.iter().map(|(n, v)| ((*n).to_owned(), v.as_bytes().to_vec())).collect();
        Response { status, headers, body: body.into() }
    }

    #[test]
    fn a_busy_server_is_tried_again_when_it_says() {
        let busy = response(429, &[("retry-after", "7")], "slow\ndown").retry_on_failure();
        let why = "the server answered with status 429: slow down".to_owned();
        assert_eq!(busy, Err(Error::Retry { why, after_ms: Some(7_000) }));
        for status in [408, 500, 503] {
            assert!(matches!(
                response(status, &[("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")], "").retry_on_failure(),
                Err(Error::Retry { after_ms: None, .. })
            ));
        }
        assert!(response(400, &[], "").retry_on_failure().is_ok());
    }

    #[test]
    fn a_failure_is_sorted_by_whose_fault_it_is() {
        assert!(response(204, &[], "").must_succeed().is_ok());
        assert!(matches!(response(503, &[], "").must_succeed(), Err(Error::Retry { .. })));
        assert!(matches!(response(401, &[], "").must_succeed(), Err(Error::Fatal(_))));
        assert!(matches!(response(422, &[], "bad").must_succeed(), Err(Error::Reject(_))));
        let moved = response(302, &[("location", "https://b.example/secret")], "").must_succeed();
        let text = moved.unwrap_err().to_string();
        assert!(text.contains("https://b.example:443") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn a_form_is_encoded_so_that_every_server_reads_it() {
        let request = Request::post("http://h").form([("text", "a b&c=d+e%\r\nü"), ("empty", "")]);
        assert_eq!(request.body, b"text=a+b%26c%3Dd%2Be%25%0D%0A%C3%BC&empty=");
    }

    #[tokio::test]
    async fn an_error_shows_the_server_and_not_the_path() {
        let error = Request::get("http://127.0.0.1:1/secret?token=secret").send().await.unwrap_err();
        assert!(matches!(error, Error::Retry { .. }));
        let text = error.to_string();
        assert!(text.starts_with("GET http://127.0.0.1:1: ") && !text.contains("secret"), "{text}");
        assert!(matches!(Request::get("example.com").send().await, Err(Error::Fatal(_))));
    }
}
