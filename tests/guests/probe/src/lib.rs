//! A plugin for tests and measurements: takes every record and does as its option `mode` says.

use std::time::Duration;

use returner_sdk::prelude::*;
use returner_sdk::tokio::net::TcpStream;

/// The options of the manifest.
#[derive(Debug, Clone, Deserialize)]
pub struct Options {
    mode: String,
    host: Option<String>,
    port: u16,
}

/// Takes everything.
pub struct Probe {
    /// How long a batch takes.
    pause: Duration,
    /// Kept open while the instance lives.
    _connection: Option<TcpStream>,
}

impl Returner for Probe {
    type Options = Options;

    async fn open(options: Options, _: &Context) -> Result<Self> {
        let connection = match (options.mode.as_str(), &options.host) {
            ("connect", Some(host)) => {
                Some(TcpStream::connect(&returner_sdk::resolve(host, options.port)?[..]).await?)
            }
            _ => None,
        };
        let pause = Duration::from_secs(if options.mode == "slow" { 2 } else { 0 });
        Ok(Self { pause, _connection: connection })
    }

    async fn deliver(&mut self, returns: Vec<JobReturn>) -> Result<Vec<Verdict>> {
        if !self.pause.is_zero() {
            returner_sdk::tokio::time::sleep(self.pause).await;
        }
        Ok(returner_sdk::all_stored(&returns))
    }
}

impl EventReturner for Probe {
    async fn deliver_events(&mut self, events: Vec<Event>) -> Result<Vec<Verdict>> {
        Ok(returner_sdk::all_stored(&events))
    }
}

returner_sdk::export!(Probe: returns, events, "manifest.toml");
