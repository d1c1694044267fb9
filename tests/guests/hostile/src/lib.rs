//! A plugin for tests: does the harm that its option `mode` says, and tells as a fatal error how far it came.
//!
//! A mode is the function it acts in and the harm: `open-loop`, `deliver-trap`, `close-sleep`. A mode that is not refused by
//! the host says so in a text with the word `ESCAPED`. `poison` dies of one record among others, `slowlist` is only slow.

mod harm;

use std::time::Duration;

use returner_sdk::prelude::*;

/// The options of the manifest.
#[derive(Debug, Clone, Deserialize)]
pub struct Options {
    mode: String,
    host: Option<String>,
    port: u16,
    directory: Option<String>,
    socket: Option<String>,
    target: Option<String>,
    token: Option<String>,
}

/// Does harm.
pub struct Hostile {
    options: Options,
}

impl Hostile {
    /// The harm to be done in this function, if it is the one.
    fn harm(&self, function: &str) -> Option<&str> {
        self.options.mode.split_once('-').filter(|(wanted, _)| *wanted == function).map(|(_, harm)| harm)
    }

    fn verdicts(&self, function: &str, count: usize) -> Result<Vec<Verdict>> {
        match self.harm(function) {
            Some(harm) => harm::verdicts(harm, &self.options, count),
            None => Ok(vec![Verdict::Stored; count]),
        }
    }
}

impl Returner for Hostile {
    type Options = Options;

    async fn open(options: Options, _: &Context) -> Result<Self> {
        let hostile = Self { options };
        if let Some(harm) = hostile.harm("open") {
            harm::verdicts(harm, &hostile.options, 0)?;
        }
        Ok(hostile)
    }

    async fn deliver(&mut self, returns: Vec<JobReturn>) -> Result<Vec<Verdict>> {
        // One record that the plugin dies of, among good ones.
        if self.options.mode == "poison" {
            if returns.iter().any(|ret| ret.fun == "test.poison") {
                harm::trap();
            }
            return Ok(vec![Verdict::Stored; returns.len()]);
        }
        self.verdicts("deliver", returns.len())
    }

    async fn close(self) {
        let _ = self.verdicts("close", 0);
    }
}

impl JobCache for Hostile {
    async fn save_loads(&mut self, loads: Vec<JobLoad>) -> Result<Vec<Verdict>> {
        self.verdicts("loads", loads.len())
    }

    async fn get_load(&mut self, _: String) -> Result<Option<StoredLoad>> {
        self.verdicts("query", 0).map(|_| None)
    }

    async fn get_returns(&mut self, _: String) -> Result<Vec<StoredReturn>> {
        self.verdicts("query", 0).map(|_| Vec::new())
    }

    async fn get_jids(&mut self, filter: JidsFilter) -> Result<Vec<StoredLoad>> {
        // A store with as many jobs as are asked for, each of which takes it a millisecond.
        if self.options.mode == "slowlist" {
            std::thread::sleep(Duration::from_millis(filter.limit.into()));
            let next = filter.before.map_or(u64::MAX, |before| before.parse().unwrap_or(0));
            let job = |number| StoredLoad { jid: format!("{number:020}"), document: "{}".to_owned() };
            return Ok((0..next).rev().take(filter.limit as usize).map(job).collect());
        }
        self.verdicts("query", 0).map(|_| Vec::new())
    }

    async fn get_fun(&mut self, _: String) -> Result<Vec<StoredReturn>> {
        self.verdicts("query", 0).map(|_| Vec::new())
    }

    async fn get_minions(&mut self) -> Result<Vec<String>> {
        self.verdicts("query", 0).map(|_| Vec::new())
    }

    async fn purge(&mut self, _: PurgeRequest) -> Result<Purged> {
        self.verdicts("query", 0).map(|_| Purged { removed: 0, more: false })
    }
}

impl EventReturner for Hostile {
    async fn deliver_events(&mut self, events: Vec<Event>) -> Result<Vec<Verdict>> {
        self.verdicts("events", events.len())
    }
}

returner_sdk::export!(Hostile: returns, jobs, events, "manifest.toml");
