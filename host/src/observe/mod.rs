//! What the operator sees: log set-up and how errors are written out.

mod throttle;

use std::error::Error;
use std::fmt::Write;

use tracing::{Level, Metadata};
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

pub use throttle::Throttle;

/// Sets up logging to stderr. `RETURNERD_LOG` overrides the configured level.
pub fn init_logging(level: &str) {
    let filter = std::env::var("RETURNERD_LOG").unwrap_or_else(|_| level.to_owned());
    let filter = EnvFilter::try_new(&filter).unwrap_or_else(|_| EnvFilter::new("info"));
    // A second set-up in one process (a test) is not an error worth stopping for.
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(
            std::env::var_os("NO_COLOR").is_none() && std::io::IsTerminal::is_terminal(&std::io::stderr()),
        )
        .with_filter(filter.and(filter_fn(shows_no_payload)));
    let _ = tracing_subscriber::registry().with(lines).try_init();
}

/// Below `info` the engine logs what guests write and send, before our rules for secrets have seen it.
fn shows_no_payload(metadata: &Metadata<'_>) -> bool {
    !(metadata.target().starts_with("wasmtime") && *metadata.level() > Level::INFO)
}

/// An error with all its causes on one line. A `hint:` stays last, wherever in the chain it stood.
pub fn chain(error: &dyn Error) -> String {
    let mut text = String::new();
    let mut hints = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let full = error.to_string();
        let (message, hint) = full.split_once("; hint: ").unwrap_or((full.as_str(), ""));
        if !hint.is_empty() {
            hints.push(hint.trim_end().to_owned());
        }
        // A transparent error repeats its source.
        if !text.ends_with(message.trim_end()) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(message.trim_end());
        }
        next = error.source();
    }
    hints.dedup();
    for hint in hints {
        let _ = write!(text, "; hint: {hint}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot do it; hint: try harder")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn a_chain_is_written_whole_with_the_hint_last() {
        let error = Outer(std::io::Error::other("the disk is full"));
        assert_eq!(chain(&error), "cannot do it: the disk is full; hint: try harder");
    }
}
