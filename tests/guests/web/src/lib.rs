//! A plugin for tests: sends each return's document as one HTTP request and takes 2xx for stored.

use std::time::Duration;

use returner_sdk::http::Request;
use returner_sdk::prelude::*;

/// The options of the manifest.
#[derive(Debug, Clone, Deserialize)]
pub struct Options {
    url: String,
    instead: Option<String>,
    host: Option<String>,
    follow: bool,
    answer_ms: Option<u64>,
}

/// Sends.
pub struct Web {
    options: Options,
}

impl Returner for Web {
    type Options = Options;

    async fn open(options: Options, _: &Context) -> Result<Self> {
        Ok(Self { options })
    }

    async fn store(&mut self, ret: JobReturn) -> Result<()> {
        let mut url = self.options.instead.clone().unwrap_or_else(|| self.options.url.clone());
        loop {
            let mut request = Request::post(&url).header("x-jid", ret.jid.clone()).body(ret.document.clone());
            if let Some(host) = &self.options.host {
                request = request.header("host", host.clone());
            }
            if let Some(time) = self.options.answer_ms {
                request = request.answer_within(Duration::from_millis(time));
            }
            let response = request.send().await?;
            match response.header("location") {
                Some(to) if self.options.follow && (300..400).contains(&response.status) => {
                    url = to.to_owned()
                }
                _ => return response.must_succeed().map(drop),
            }
        }
    }
}

returner_sdk::export!(Web: returns, "manifest.toml");
