//! What is known of a lane's condition: for `status`, for failing fast, and for telling the operator once.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// The state of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Nothing waits, or it is being delivered.
    Ready,
    /// The outside system is away; the next try is at this time.
    Down {
        /// The next try.
        until: Instant,
    },
    /// The plugin cannot work as it is configured, or it is not loaded.
    Faulty,
    /// The plugin crashed too often; it is tried again when it is replaced or restarted.
    Quarantined,
}

impl State {
    /// Its name in `status`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Down { .. } => "down",
            Self::Faulty => "faulty",
            Self::Quarantined => "quarantined",
        }
    }
}

/// Counts of a lane since the daemon's start.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct Counts {
    /// Records that are stored.
    pub stored: u64,
    /// Tries that failed and are made again.
    pub retried: u64,
    /// Records that became dead letters because the plugin rejected them.
    pub rejected: u64,
    /// Records that became dead letters because they were too old.
    pub expired: u64,
    /// Records that a rule kept from the sink.
    pub filtered: u64,
    /// Crashes and time-outs of the plugin.
    pub crashes: u64,
    /// Calls that delivered something.
    pub batches: u64,
}

#[derive(Debug)]
struct Inner {
    state: State,
    counts: Counts,
    strikes: u32,
    last_error: Option<(String, SystemTime)>,
    last_failure: Option<Instant>,
    last_stored: Option<SystemTime>,
    logged: Option<(String, Instant)>,
    unlogged: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Health {
    label: String,
    inner: Mutex<Inner>,
}

/// The same trouble of a lane is logged at most this often.
const LOG_EVERY: Duration = Duration::from_secs(60);

impl Health {
    /// A lane that is ready.
    pub fn new(label: &str) -> Self {
        Self {
            label: label.to_owned(),
            inner: Mutex::new(Inner {
                state: State::Ready,
                counts: Counts::default(),
                strikes: 0,
                last_error: None,
                last_failure: None,
                last_stored: None,
                logged: None,
                unlogged: 0,
            }),
        }
    }

    fn with<R>(&self, run: impl FnOnce(&mut Inner) -> R) -> R {
        run(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The state now.
    pub fn state(&self) -> State {
        self.with(|inner| inner.state.clone())
    }

    /// The counts.
    pub fn counts(&self) -> Counts {
        self.with(|inner| inner.counts)
    }

    /// Changes the counts.
    pub fn count(&self, change: impl FnOnce(&mut Counts)) {
        self.with(|inner| change(&mut inner.counts));
    }

    /// Strikes that count against the plugin now.
    pub fn strikes(&self) -> u32 {
        self.with(|inner| inner.strikes)
    }

    /// Notes the strikes.
    pub fn set_strikes(&self, strikes: u32) {
        self.with(|inner| inner.strikes = strikes);
    }

    /// The last error and when it was.
    pub fn last_error(&self) -> Option<(String, SystemTime)> {
        self.with(|inner| inner.last_error.clone())
    }

    /// When something was stored last.
    pub fn last_stored(&self) -> Option<SystemTime> {
        self.with(|inner| inner.last_stored)
    }

    /// The lane works.
    pub fn up(&self) {
        let was = self.with(|inner| {
            inner.last_stored = Some(SystemTime::now());
            inner.logged = None;
            std::mem::replace(&mut inner.state, State::Ready)
        });
        if was != State::Ready {
            tracing::info!(sink = %self.label, was = was.name(), "the lane works again");
        }
    }

    /// The lane does not work. Logs the trouble, but not the same again and again.
    pub fn trouble(&self, state: State, operation: &str, jid: &str, cause: &str) {
        let log = self.with(|inner| {
            let now = Instant::now();
            inner.state = state.clone();
            inner.last_error = Some((cause.to_owned(), SystemTime::now()));
            inner.last_failure = Some(now);
            let known =
                inner.logged.as_ref().is_some_and(|(text, at)| text == cause && now - *at < LOG_EVERY);
            if known {
                inner.unlogged += 1;
                None
            } else {
                inner.logged = Some((cause.to_owned(), now));
                Some(std::mem::take(&mut inner.unlogged))
            }
        });
        if let Some(repeated) = log {
            tracing::warn!(sink = %self.label, state = state.name(), operation, jid, repeated, "{cause}");
        }
    }

    /// The error of a failure less than `age` ago, if the lane is still down since: a question need not wait to learn it again.
    pub fn fresh_failure(&self, age: Duration) -> Option<String> {
        self.with(|inner| {
            let fresh = inner.last_failure.is_some_and(|at| at.elapsed() < age);
            if fresh && inner.state != State::Ready {
                inner.last_error.as_ref().map(|(text, _)| text.clone())
            } else {
                None
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_fresh_until_the_lane_works_again() {
        let health = Health::new("t");
        health.trouble(State::Down { until: Instant::now() }, "deliver", "1", "connection refused");
        assert_eq!(health.fresh_failure(Duration::from_secs(5)).as_deref(), Some("connection refused"));
        assert_eq!(health.fresh_failure(Duration::ZERO), None);
        health.up();
        assert_eq!(health.fresh_failure(Duration::from_secs(5)), None);
        assert_eq!(health.last_error().unwrap().0, "connection refused");
    }
}
