//! A guest's stdout and stderr: cut into lines, limited in rate and length, and passed on to the log.
//!
//! Invariant: writing never fails and never waits, so a plugin cannot be stopped, or stop the daemon, by its own output.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};

use super::limits::{LOG_BURST, LOG_LINE_COST, LOG_PER_SECOND, MAX_LOG_LINE};
use super::reason::Secrets;

/// What the instances of one sink may log together: one that crashes and comes back gets no new allowance.
#[derive(Clone)]
pub struct LogBudget {
    inner: Arc<Mutex<Budget>>,
}

struct Budget {
    allowance: f64,
    checked: Instant,
    dropped_lines: u64,
    dropped_bytes: u64,
    /// Lines dropped since one passed.
    unsaid: u64,
}

impl Default for LogBudget {
    fn default() -> Self {
        let budget = Budget {
            allowance: f64::from(LOG_BURST),
            checked: Instant::now(),
            dropped_lines: 0,
            dropped_bytes: 0,
            unsaid: 0,
        };
        Self { inner: Arc::new(Mutex::new(budget)) }
    }
}

impl LogBudget {
    /// Lines and bytes that were left out.
    pub fn dropped(&self) -> (u64, u64) {
        let budget = self.lock();
        (budget.dropped_lines, budget.dropped_bytes)
    }

    /// Bytes of a line beyond its limit.
    fn cut(&self, bytes: usize) {
        self.lock().dropped_bytes += bytes as u64;
    }

    /// Whether a line of this length may pass; then how many were left out before it.
    fn pass(&self, length: usize) -> Option<u64> {
        let mut budget = self.lock();
        let now = Instant::now();
        let earned = now.duration_since(budget.checked).as_secs_f64() * f64::from(LOG_PER_SECOND);
        budget.checked = now;
        budget.allowance = (budget.allowance + earned).min(f64::from(LOG_BURST));
        let cost = (1 + length / LOG_LINE_COST) as f64;
        if budget.allowance < cost {
            budget.dropped_lines += 1;
            budget.dropped_bytes += length as u64;
            budget.unsaid += 1;
            return None;
        }
        budget.allowance -= cost;
        Some(std::mem::take(&mut budget.unsaid))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Budget> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One guest's output.
#[derive(Clone)]
pub struct GuestLog {
    state: Arc<Mutex<State>>,
}

struct State {
    sink: String,
    line: Vec<u8>,
    cut: bool,
    budget: LogBudget,
    secrets: Secrets,
}

impl GuestLog {
    /// Output that is logged under the sink's name.
    pub fn new(sink: &str, budget: &LogBudget, secrets: &Secrets) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                sink: sink.to_owned(),
                line: Vec::new(),
                cut: false,
                budget: budget.clone(),
                secrets: secrets.clone(),
            })),
        }
    }

    fn write(&self, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (piece, false),
            };
            let room = MAX_LOG_LINE - state.line.len();
            if text.len() > room {
                state.cut = true;
                state.budget.cut(text.len() - room);
            }
            state.line.extend_from_slice(&text[..text.len().min(room)]);
            if ends {
                state.emit();
            }
        }
    }
}

impl State {
    fn emit(&mut self) {
        let line = std::mem::take(&mut self.line);
        let cut = std::mem::take(&mut self.cut);
        if line.is_empty() {
            return;
        }
        let Some(dropped) = self.budget.pass(line.len()) else { return };
        let text = self.secrets.hide(String::from_utf8_lossy(&line).into_owned());
        let text: String =
            text.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect();
        if dropped > 0 {
            tracing::warn!(target: "returnerd::guest", sink = %self.sink, dropped, "the plugin logs too much; lines were left out");
        }
        tracing::info!(target: "returnerd::guest", sink = %self.sink, cut, "{text}");
    }
}

impl IsTerminal for GuestLog {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for GuestLog {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }
}

impl AsyncWrite for GuestLog {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_off_and_counted() {
        let budget = LogBudget::default();
        let log = GuestLog::new("t", &budget, &Secrets::default());
        for _ in 0..10 * LOG_BURST {
            log.write(b"noise\n");
        }
        let (lines, bytes) = budget.dropped();
        assert!(lines > u64::from(8 * LOG_BURST) && bytes >= 5 * lines, "{lines}, {bytes}");
        assert!(budget.pass(1).is_none(), "another instance of the sink gets no new allowance");
    }

    #[test]
    fn an_endless_line_takes_bounded_memory() {
        let budget = LogBudget::default();
        let log = GuestLog::new("t", &budget, &Secrets::default());
        for _ in 0..100 {
            log.write(&[b'x'; 1024]);
        }
        assert_eq!(log.state.lock().unwrap().line.len(), MAX_LOG_LINE);
        assert_eq!(budget.dropped().1, 100 * 1024 - MAX_LOG_LINE as u64);
    }
}
