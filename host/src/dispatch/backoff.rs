//! How long a lane waits after a failure.

use std::time::Duration;

/// Exponential back-off with jitter.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Starts at `first` and doubles up to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// Notes a failure and gives the pause after it: between half and the whole of the doubled time, so that many daemons do not
    /// come back to a restarted server in the same moment.
    pub fn next(&mut self) -> Duration {
        let pause = Self::pause(self.first, self.longest, self.failures);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    /// Forgets the failures.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// The pause after a number of earlier failures.
    pub fn pause(first: Duration, longest: Duration, failures: u32) -> Duration {
        let whole =
            first.saturating_mul(1_u32.checked_shl(failures.min(31)).unwrap_or(u32::MAX)).min(longest);
        whole.mul_f64(0.5 + 0.5 * fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_start_over() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        let pauses: Vec<f64> = (0..40).map(|_| backoff.next().as_secs_f64()).collect();
        assert!((0.5..=1.0).contains(&pauses[0]), "{}", pauses[0]);
        assert!((4.0..=8.0).contains(&pauses[3]), "{}", pauses[3]);
        assert!(pauses[10..].iter().all(|p| (30.0..=60.0).contains(p)));
        backoff.reset();
        assert!(backoff.next() <= Duration::from_secs(1));
    }
}
