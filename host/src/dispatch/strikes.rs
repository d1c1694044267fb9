//! How a lane answers to crashes of its plugin: smaller batches that find the record at fault, and strikes that end in quarantine.
//!
//! Invariants: a crash with nothing stored since the one before is always a strike; strikes are forgotten only by a healthy time or
//! by the operator; while the crashed range of the lane is gone through, batches do not grow.

use std::time::{Duration, Instant};

/// Something stored, and no strike for this long, clears the strikes.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// A crashed batch is cut into so many parts: four crashes find one record in a thousand.
const PARTS: usize = 8;

/// See the module.
#[derive(Debug)]
pub struct Strikes {
    count: u32,
    last: Option<Instant>,
    stored_since: bool,
    cap: usize,
    /// Records left of the crashed range.
    suspects: usize,
}

impl Strikes {
    /// None yet.
    pub fn new() -> Self {
        Self { count: 0, last: None, stored_since: false, cap: usize::MAX, suspects: 0 }
    }

    /// The most records of the next batch.
    pub fn cap(&self) -> usize {
        self.cap
    }

    /// Strikes that count now.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The plugin crashed with a batch of so many records. `alone` tells that the record at fault is found and put aside. Gives
    /// the strikes that count now.
    pub fn crash(&mut self, records: usize, alone: bool, now: Instant) -> u32 {
        // Where others pass, a record that crashes the plugin by itself is the record's fault.
        if !(alone && self.stored_since) {
            self.count += 1;
            self.last = Some(now);
            self.stored_since = false;
        }
        let tried = records.min(self.cap);
        if alone {
            self.suspects = self.suspects.saturating_sub(1);
        } else {
            self.suspects = tried;
            self.cap = (tried / PARTS).max(1);
        }
        self.count
    }

    /// A batch of so many records went through, and something of it was stored.
    pub fn passed(&mut self, records: usize, stored: bool, now: Instant) {
        self.suspects = self.suspects.saturating_sub(records);
        if self.suspects == 0 {
            self.cap = self.cap.saturating_mul(2);
        }
        if stored {
            self.stored_since = true;
            if self.last.is_some_and(|last| now.duration_since(last) >= HEALTHY_AFTER) {
                self.count = 0;
                self.last = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_record_of_a_thousand_is_found_within_four_strikes() {
        let mut strikes = Strikes::new();
        let now = Instant::now();
        // The record at fault, behind others that pass.
        let (mut at, poison, end) = (0, 700, 1_000);
        let mut crashes = 0;
        while at < end {
            let batch = strikes.cap().min(end - at);
            if !(at..at + batch).contains(&poison) {
                strikes.passed(batch, true, now);
                at += batch;
            } else if batch == 1 {
                crashes += 1;
                strikes.crash(1, true, now);
                at += 1;
            } else {
                crashes += 1;
                strikes.crash(batch, false, now);
            }
        }
        assert_eq!(crashes, 4);
        assert!(strikes.count() <= 4, "{}", strikes.count());
        assert!(strikes.cap() > 100, "batches grow again: {}", strikes.cap());
    }

    #[test]
    fn a_plugin_that_always_crashes_gets_a_strike_each_time() {
        let mut strikes = Strikes::new();
        let counts: Vec<u32> = (0..10).map(|_| strikes.crash(1, true, Instant::now())).collect();
        assert_eq!(counts, (1..=10).collect::<Vec<_>>());
    }

    #[test]
    fn healthy_time_clears_strikes_and_a_single_success_does_not() {
        let mut strikes = Strikes::new();
        let start = Instant::now();
        strikes.crash(5, false, start);
        strikes.passed(1, true, start);
        assert_eq!(strikes.count(), 1);
        strikes.passed(1, false, start + HEALTHY_AFTER);
        assert_eq!(strikes.count(), 1);
        strikes.passed(1, true, start + HEALTHY_AFTER);
        assert_eq!(strikes.count(), 0);
    }
}
