//! `dead`: the letters that could not be delivered.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{CliError, Output, ask, print_json, print_line};
use crate::config::Config;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List dead letters, oldest first.
    List {
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        output: Output,
    },
    /// Show one with its record.
    Show {
        /// Its number.
        id: i64,
    },
    /// Put them back into their lanes.
    Retry(Filter),
    /// Remove them for good.
    Drop {
        #[command(flatten)]
        filter: Filter,
        /// Really remove all, where no filter is given.
        #[arg(long)]
        all: bool,
    },
    /// Write them to a file, one JSON object a line; they stay.
    Export {
        /// The file; it must not exist.
        file: PathBuf,
        #[command(flatten)]
        filter: Filter,
    },
}

#[derive(Debug, Args)]
pub(super) struct Filter {
    /// Only this one.
    #[arg(long)]
    id: Option<i64>,
    /// Only of this sink or plugin.
    #[arg(long)]
    sink: Option<String>,
    /// Only with this text in the reason.
    #[arg(long)]
    reason: Option<String>,
    /// Only those that died longer than this many seconds ago.
    #[arg(long, value_name = "SECONDS")]
    older_than: Option<u64>,
    /// At most this many.
    #[arg(long)]
    limit: Option<usize>,
}

impl Filter {
    fn to_json(&self) -> Value {
        json!({
            "id": self.id, "sink": self.sink, "reason": self.reason,
            "older_than": self.older_than, "limit": self.limit,
        })
    }

    fn is_empty(&self) -> bool {
        self.id.is_none()
            && self.sink.is_none()
            && self.reason.is_none()
            && self.older_than.is_none()
            && self.limit.is_none()
    }
}

pub(super) fn run(command: &Command, config: &Config) -> Result<(), CliError> {
    match command {
        Command::List { filter, output } => {
            let letters = ask::admin(config, "dead_list", filter.to_json())?;
            if output.json {
                print_json(&letters);
                return Ok(());
            }
            print_line(&format!(
                "{:>8} {:<16} {:<7} {:<21} {:<16} {:<8} {}",
                "ID", "SINK", "KIND", "JID", "MINION", "WHY", "REASON"
            ));
            for letter in letters.as_array().into_iter().flatten() {
                let text = |key: &str| letter[key].as_str().unwrap_or("-").to_owned();
                print_line(&format!(
                    "{:>8} {:<16} {:<7} {:<21} {:<16} {:<8} {}",
                    letter["id"],
                    text("sink"),
                    text("kind"),
                    text("jid"),
                    text("minion"),
                    text("class"),
                    text("reason")
                ));
            }
            Ok(())
        }
        Command::Show { id } => {
            print_json(&ask::admin(config, "dead_show", json!({ "id": id }))?);
            Ok(())
        }
        Command::Retry(filter) => {
            let answer = ask::admin(config, "dead_retry", filter.to_json())?;
            print_line(&format!("{} put back", answer["count"]));
            Ok(())
        }
        Command::Drop { filter, all } => {
            if filter.is_empty() && !all {
                return Err(CliError::Text(
                    "this would remove every dead letter; hint: give a filter, or `--all`".into(),
                ));
            }
            let answer = ask::admin(config, "dead_drop", filter.to_json())?;
            print_line(&format!("{} removed", answer["count"]));
            Ok(())
        }
        Command::Export { file, filter } => {
            let path = std::path::absolute(file).map_err(CliError::file("find", file))?;
            let mut out = std::fs::File::create_new(&path).map_err(CliError::file("create", &path))?;
            let letters = ask::admin(config, "dead_export", filter.to_json())?;
            let mut count = 0;
            for letter in letters.as_array().into_iter().flatten() {
                use std::io::Write;
                writeln!(out, "{letter}").map_err(CliError::file("write", &path))?;
                count += 1;
            }
            out.sync_all().map_err(CliError::file("write", &path))?;
            print_line(&format!("{count} written to {}", path.display()));
            Ok(())
        }
    }
}
