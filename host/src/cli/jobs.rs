//! `jobs list` and `jobs show`: stored jobs, through a job-cache plugin.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{CliError, Output, ask, print_json, print_line};
use crate::config::Config;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the newest jobs, newest first.
    List(ListArguments),
    /// Show one job with its returns.
    Show(ShowArguments),
}

#[derive(Debug, Args)]
pub(super) struct Store {
    /// The plugin, or one sink of it such as `mysql#2`. May be left out if only one sink stores jobs.
    #[arg(long, short)]
    returner: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct ListArguments {
    #[command(flatten)]
    store: Store,
    /// At most this many.
    #[arg(long, short = 'n', default_value_t = 20)]
    count: usize,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct ShowArguments {
    /// The job id.
    jid: String,
    #[command(flatten)]
    store: Store,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(command: &Command, config: &Config) -> Result<(), CliError> {
    match command {
        Command::List(arguments) => list(arguments, config),
        Command::Show(arguments) => show(arguments, config),
    }
}

fn list(arguments: &ListArguments, config: &Config) -> Result<(), CliError> {
    let args = json!({ "returner": arguments.store.returner, "count": arguments.count });
    let jobs = ask::admin(config, "jobs_list", args)?;
    if arguments.output.json {
        print_json(&jobs);
        return Ok(());
    }
    print_line(&format!("{:<21} {:<28} {:<24} {}", "JID", "FUNCTION", "TARGET", "USER"));
    for job in jobs.as_array().into_iter().flatten() {
        let load = &job["load"];
        print_line(&format!(
            "{:<21} {:<28} {:<24} {}",
            plain(&job["jid"]),
            plain(&load["fun"]),
            plain(&load["tgt"]),
            plain(&load["user"])
        ));
    }
    Ok(())
}

fn show(arguments: &ShowArguments, config: &Config) -> Result<(), CliError> {
    let args = json!({ "returner": arguments.store.returner, "jid": arguments.jid });
    let job = ask::admin(config, "jobs_show", args)?;
    if arguments.output.json {
        print_json(&job);
    } else if job["load"].is_null() && job["returns"].as_object().is_none_or(serde_json::Map::is_empty) {
        return Err(CliError::Text(format!("no job `{}` is stored", arguments.jid)));
    } else {
        let load = &job["load"];
        print_line(&format!("job {} of {}", arguments.jid, plain(&load["user"])));
        print_line(&format!(
            "{} on {} ({})",
            plain(&load["fun"]),
            plain(&load["tgt"]),
            plain(&load["tgt_type"])
        ));
        for (minion, document) in job["returns"].as_object().into_iter().flatten() {
            print_line(&format!(
                "{minion}: success {}, retcode {}",
                document["success"], document["retcode"]
            ));
            print_line(&serde_json::to_string_pretty(&document["return"]).unwrap_or_default());
        }
    }
    Ok(())
}

/// A value as one plain word or line.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}
