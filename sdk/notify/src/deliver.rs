//! One message after another, and what an instance remembers of them.
//!
//! Invariants: a record whose message went out in a call gets its verdict from that call, whatever becomes of the others, since to
//! forget it would send it again; after a failure that is the system's the others are not tried; while the system asked for
//! a pause it is not asked. What is remembered lasts as long as the instance: a message can come twice after a restart
//! of the daemon, or where the answer to it was lost.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use returner_sdk::{Error, Result, RetryInfo, Verdict};

/// Messages that are remembered.
const REMEMBERED: usize = 10_000;

/// What became of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// Its message went out.
    Sent,
    /// There was nothing to send: it was sent before, or the options keep it back.
    Nothing,
}

/// When a call must have ended.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// So long from now. A call of the host has a limit beyond which the instance is killed, and what it sent is forgotten.
    pub fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    /// How long a request may take that would like `most`.
    ///
    /// # Errors
    /// [`Error::Retry`] if there is no time left.
    pub fn allow(self, most: Duration) -> Result<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left < Duration::from_millis(100) {
            return Err(Error::retry("there was no time left in this call"));
        }
        Ok(left.min(most))
    }
}

/// What an instance remembers.
#[derive(Debug, Default)]
pub struct Memory {
    sent: HashSet<String>,
    order: VecDeque<String>,
    pause: Option<(Instant, String)>,
}

impl Memory {
    /// Whether the message with this key was sent.
    pub fn knows(&self, key: &str) -> bool {
        self.sent.contains(key)
    }

    /// Notes that a message was sent.
    pub fn note(&mut self, key: String) {
        if self.sent.insert(key.clone()) {
            self.order.push_back(key);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.sent.remove(&oldest);
        }
    }

    /// Fails while a pause that the system asked for lasts.
    ///
    /// # Errors
    /// [`Error::Retry`] with what is left of it.
    pub fn must_not_pause(&self) -> Result<()> {
        let Some((until, why)) = &self.pause else { return Ok(()) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        // Rounded up: a try in the last moment of the pause would be refused again.
        let after_ms = u32::try_from(left.as_millis() + 1).unwrap_or(u32::MAX);
        Err(Error::Retry { why: why.clone(), after_ms: Some(after_ms) })
    }

    /// Notes the pause that an error asks for.
    pub fn heed(&mut self, error: &Error) {
        if let Error::Retry { why, after_ms: Some(ms) } = error {
            self.pause = Some((Instant::now() + Duration::from_millis((*ms).into()), why.clone()));
        }
    }
}

/// Sends the messages of a batch one after another.
///
/// # Errors
/// What the first message failed with, if none was sent in this call: then the host sees the system as away. Otherwise
/// that and the ones after it are to be tried again by their verdicts.
pub async fn one_after_another<T>(
    records: &[T],
    mut send: impl AsyncFnMut(&T) -> Result<Done>,
) -> Result<Vec<Verdict>> {
    let mut verdicts = Vec::with_capacity(records.len());
    let mut sent = false;
    for record in records {
        let error = match send(record).await {
            Ok(done) => {
                sent |= done == Done::Sent;
                verdicts.push(Verdict::Stored);
                continue;
            }
            Err(Error::Reject(why)) => {
                verdicts.push(Verdict::Reject(why));
                continue;
            }
            Err(error) if !sent => return Err(error),
            Err(error) => error,
        };
        let info = match error {
            Error::Retry { why, after_ms } => RetryInfo { why, after_ms },
            other => RetryInfo { why: other.to_string(), after_ms: None },
        };
        verdicts.resize(records.len(), Verdict::Retry(info));
        break;
    }
    Ok(verdicts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> Error {
        Error::Retry { why: "busy".into(), after_ms: Some(5_000) }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        returner_sdk::tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// The verdicts on a batch whose records come to these ends, and how many were tried.
    fn deliver(ends: &[Result<Done>]) -> (Result<Vec<Verdict>>, usize) {
        let mut tried = 0;
        let result = block_on(one_after_another(ends, async |end| {
            tried += 1;
            end.clone()
        }));
        (result, tried)
    }

    #[test]
    fn a_failure_with_nothing_sent_is_the_whole_calls() {
        let ends = [Ok(Done::Nothing), Err(Error::reject("bad")), Err(busy()), Ok(Done::Sent)];
        assert_eq!(deliver(&ends), (Err(busy()), 3));
    }

    #[test]
    fn a_failure_in_the_middle_keeps_what_was_sent_and_lets_the_rest_wait() {
        let ends = [Ok(Done::Sent), Err(Error::reject("bad")), Err(busy()), Ok(Done::Sent)];
        let (verdicts, tried) = deliver(&ends);
        let wait = Verdict::Retry(RetryInfo { why: "busy".into(), after_ms: Some(5_000) });
        let expected = vec![Verdict::Stored, Verdict::Reject("bad".into()), wait.clone(), wait];
        assert_eq!((verdicts.unwrap(), tried), (expected, 3));
    }

    #[test]
    fn the_memory_is_bounded_and_forgets_the_oldest() {
        let mut memory = Memory::default();
        for number in 0..REMEMBERED + 5 {
            memory.note(number.to_string());
        }
        memory.note("7".into());
        assert!(!memory.knows("4") && memory.knows("5") && memory.knows("7"));
        assert_eq!((memory.order.len(), memory.sent.len()), (REMEMBERED, REMEMBERED));
    }

    #[test]
    fn a_pause_is_kept_until_it_is_over() {
        let mut memory = Memory::default();
        memory.heed(&Error::retry("no time was given"));
        assert!(memory.must_not_pause().is_ok());
        memory.heed(&busy());
        let Err(Error::Retry { after_ms: Some(left), .. }) = memory.must_not_pause() else { panic!() };
        assert!((4_000..=5_001).contains(&left), "{left}");
        memory.heed(&Error::Retry { why: "over".into(), after_ms: Some(0) });
        assert!(memory.must_not_pause().is_ok());
    }
}
