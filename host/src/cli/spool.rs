//! `spool stat` and `spool verify`: the durable queue, with or without the daemon.

use clap::Subcommand;
use serde_json::json;

use super::{CliError, Output, print_json, print_line};
use crate::config::Config;
use crate::daemon::spool_dir;
use crate::spool::SpoolReader;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show what waits, by lane.
    Stat(Output),
    /// Check the database and every record in it; fails if something is wrong.
    Verify(Output),
}

pub(super) fn run(command: &Command, config: &Config) -> Result<(), CliError> {
    let reader = SpoolReader::open(spool_dir(config))?;
    match command {
        Command::Stat(output) => {
            let stats = reader.stats()?;
            if output.json {
                print_json(&json!(stats));
                return Ok(());
            }
            print_line(&format!(
                "{} items, {} bytes; {} dead letters, {} bytes",
                stats.totals.items, stats.totals.bytes, stats.totals.dead, stats.totals.dead_bytes
            ));
            for lane in &stats.lanes {
                print_line(&format!(
                    "{:<4} {:<16} {:>8} items {:>12} bytes",
                    lane.sink.0, lane.plugin, lane.depth, lane.bytes
                ));
            }
            Ok(())
        }
        Command::Verify(output) => {
            let verified = reader.verify()?;
            if output.json {
                print_json(&json!(verified));
            } else {
                print_line(&format!("{} records checked", verified.checked));
                for problem in &verified.problems {
                    print_line(&format!("damaged: {problem}"));
                }
                for seq in &verified.unreadable {
                    print_line(&format!("record {seq} is not what was written"));
                }
            }
            if verified.is_sound() { Ok(()) } else { Err(CliError::Reported) }
        }
    }
}
