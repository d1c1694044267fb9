//! Keeps a flood of like log lines down to what somebody can read.
//!
//! Invariants: the first lines of a kind always pass; what is held back is counted and told with the next line that passes; memory is
//! bounded, whatever the kinds are made of.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines of one kind that pass in one [`PERIOD`].
const BURST: u32 = 10;

/// After this long a kind may speak again.
const PERIOD: Duration = Duration::from_secs(30);

/// Kinds that are kept apart.
const MAX_KINDS: usize = 1_000;

#[derive(Debug)]
struct Kind {
    since: Instant,
    passed: u32,
    held: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Throttle {
    kinds: Mutex<HashMap<String, Kind>>,
}

impl Throttle {
    /// Whether a line of this kind may pass now; then how many were held back before it.
    pub fn pass(&self, kind: &str) -> Option<u64> {
        self.pass_at(kind, Instant::now())
    }

    fn pass_at(&self, name: &str, now: Instant) -> Option<u64> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        if kinds.len() >= MAX_KINDS && !kinds.contains_key(name) {
            kinds.retain(|_, kind| now.duration_since(kind.since) < PERIOD);
            if kinds.len() >= MAX_KINDS {
                return None;
            }
        }
        let kind = kinds.entry(name.to_owned()).or_insert(Kind { since: now, passed: 0, held: 0 });
        if now.duration_since(kind.since) >= PERIOD {
            (kind.since, kind.passed) = (now, 0);
        }
        if kind.passed >= BURST {
            kind.held += 1;
            return None;
        }
        kind.passed += 1;
        Some(std::mem::take(&mut kind.held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_kind_is_held_back_and_counted() {
        let throttle = Throttle::default();
        let start = Instant::now();
        let passed = (0..1_000).filter(|_| throttle.pass_at("a", start).is_some()).count();
        assert_eq!(passed, BURST as usize);
        assert_eq!(throttle.pass_at("b", start), Some(0), "another kind is not held back");
        assert_eq!(throttle.pass_at("a", start + PERIOD), Some(1_000 - u64::from(BURST)));
    }

    #[test]
    fn memory_is_bounded_by_the_number_of_kinds() {
        let throttle = Throttle::default();
        let start = Instant::now();
        for kind in 0..10 * MAX_KINDS {
            throttle.pass_at(&kind.to_string(), start);
        }
        assert!(throttle.kinds.lock().unwrap().len() <= MAX_KINDS);
        assert!(throttle.pass_at("later", start + PERIOD).is_some());
    }
}
