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

use super::limits::{LOG_BURST, LOG_PER_SECOND, MAX_LOG_LINE};

/// One guest's output.
#[derive(Clone)]
pub struct GuestLog {
    state: Arc<Mutex<State>>,
}

struct State {
    sink: String,
    line: Vec<u8>,
    cut: bool,
    allowance: f64,
    checked: Instant,
    dropped: u64,
}

impl GuestLog {
    /// Output that is logged under the sink's name.
    pub fn new(sink: &str) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                sink: sink.to_owned(),
                line: Vec::new(),
                cut: false,
                allowance: f64::from(LOG_BURST),
                checked: Instant::now(),
                dropped: 0,
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
            state.cut |= text.len() > room;
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
        let now = Instant::now();
        let earned = now.duration_since(self.checked).as_secs_f64() * f64::from(LOG_PER_SECOND);
        self.checked = now;
        self.allowance = (self.allowance + earned).min(f64::from(LOG_BURST));
        if self.allowance < 1.0 {
            self.dropped += 1;
            return;
        }
        self.allowance -= 1.0;
        let text = String::from_utf8_lossy(&line);
        let text: String =
            text.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect();
        if self.dropped > 0 {
            let dropped = std::mem::take(&mut self.dropped);
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
        let log = GuestLog::new("t");
        for _ in 0..10 * LOG_BURST {
            log.write(b"noise\n");
        }
        let state = log.state.lock().unwrap();
        assert!(state.dropped > u64::from(8 * LOG_BURST), "{}", state.dropped);
    }

    #[test]
    fn an_endless_line_takes_bounded_memory() {
        let log = GuestLog::new("t");
        for _ in 0..100 {
            log.write(&[b'x'; 1024]);
        }
        assert_eq!(log.state.lock().unwrap().line.len(), MAX_LOG_LINE);
    }
}
