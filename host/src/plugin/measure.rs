//! The price of the boundary between host and guest, for the bench.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bindings::types::Verdict;
use super::engine::{EngineError, Host, Tuning};
use super::file::{FileError, PluginFile};
use super::instance::{CallError, Exports, Instance, Opening};
use super::limits::Limits;
use super::reason::Secrets;
use super::stdio::LogBudget;
use crate::config::Mode;
use crate::item::JobReturn;
use crate::policy::egress::Egress;
use crate::policy::http::client::Client;
use crate::policy::http::connect::system_resolver;
use crate::policy::http::rules::Rules;
use crate::policy::http::settings::{Settings, SettingsError};
use crate::policy::own::OwnPlaces;
use crate::policy::{AllowError, Policy};

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A call.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The HTTP client.
    #[error(transparent)]
    Http(#[from] SettingsError),
    /// What it may reach.
    #[error(transparent)]
    Allow(#[from] AllowError),
}

/// A plugin of which instances are made and called.
pub struct Measured {
    host: Host,
    exports: Arc<Exports>,
    options: String,
    http: Arc<Client>,
    policy: Policy,
}

impl Measured {
    /// Compiles a plugin for an engine of this kind; `options` is the JSON object that instances are opened with.
    ///
    /// # Errors
    /// If it is no plugin or does not compile.
    pub fn new(path: &Path, tuning: Tuning, options: &str) -> Result<Self, MeasureError> {
        let file = PluginFile::read(path)?;
        let host = Host::tuned(None, tuning)?;
        let pre = host.compile(&file)?;
        let exports = Exports::new(pre, file.interfaces).map_err(EngineError::Link)?;
        let settings = Settings::load("measured", &crate::config::Http::default())?;
        let egress = Egress::new("measured", Vec::new(), false);
        let http = Arc::new(Client::new(settings, Rules::default(), &egress, system_resolver())?);
        let policy = Policy::default();
        Ok(Self { host, exports: Arc::new(exports), options: options.to_owned(), http, policy })
    }

    /// Lets the instances reach what these lines of `allow` say.
    ///
    /// # Errors
    /// If a line is not understood.
    pub fn allow(mut self, lines: &[String]) -> Result<Self, MeasureError> {
        self.policy = Policy::new("measured", Vec::new(), lines, Mode::Enforce)?;
        Ok(self)
    }

    /// Makes and opens an instance.
    ///
    /// # Errors
    /// If the guest does not open.
    pub async fn open(&self) -> Result<Open, MeasureError> {
        let opening = Opening {
            sink: "measured",
            options: self.options.clone(),
            id: "id",
            role: "master",
            limits: Limits::default(),
            policy: &self.policy,
            egress: &Egress::new("measured", self.policy.endpoints(), false),
            http: &self.http,
            own: &OwnPlaces::default(),
            log: &LogBudget::default(),
            secrets: &Secrets::default(),
        };
        Ok(Open { instance: Instance::open(&self.host, self.exports.clone(), opening).await? })
    }
}

/// An open instance.
pub struct Open {
    instance: Instance,
}

impl Open {
    /// The time of one call with a batch of returns of about 1 KiB, over `calls` calls.
    ///
    /// # Errors
    /// If a call fails.
    pub async fn deliver(&mut self, batch: usize, calls: u32) -> Result<Duration, MeasureError> {
        let ret = JobReturn {
            jid: "20261201033139637001".into(),
            minion: "minion-1.example.com".into(),
            resource_id: None,
            fun: "test.echo".into(),
            fun_args: "[]".into(),
            value: format!("\"{}\"", "x".repeat(400)),
            document: format!("{{\"return\": \"{}\"}}", "x".repeat(400)),
            success: Some(true),
            retcode: Some(0),
            trimmed: false,
            arrived_ms: 0,
        };
        let mut total = Duration::ZERO;
        for _ in 0..calls {
            let records = vec![ret.clone(); batch];
            let began = Instant::now();
            let records: Vec<_> = records.into_iter().map(Into::into).collect();
            self.instance.deliver(&records).await?;
            total += began.elapsed();
        }
        Ok(total / calls.max(1))
    }

    /// Delivers these returns; gives how many the plugin says are stored.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn hand_over(&mut self, returns: Vec<JobReturn>) -> Result<usize, MeasureError> {
        let returns: Vec<_> = returns.into_iter().map(Into::into).collect();
        let verdicts = self.instance.deliver(&returns).await?;
        Ok(verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Stored)).count())
    }
}
