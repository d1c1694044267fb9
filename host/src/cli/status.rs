//! `status`: what the daemon says of itself.

use clap::Args;
use serde_json::{Value, json};

use super::{CliError, Output, ask, print_json, print_line};
use crate::config::Config;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments, config: &Config) -> Result<(), CliError> {
    let status = ask::admin(config, "status", json!({}))?;
    if arguments.output.json {
        print_json(&status);
    } else {
        show(&status);
    }
    let stuck = status["stuck"].as_array().map_or(0, Vec::len);
    if stuck > 0 { Err(CliError::Reported) } else { Ok(()) }
}

fn show(status: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    print_line(&format!(
        "returnerd {}, pid {}, up {}, {} MiB resident",
        text(&status["version"]),
        status["pid"],
        seconds(status["uptime_s"].as_u64()),
        status["resident_kib"].as_u64().unwrap_or(0) / 1024
    ));
    let spool = &status["spool"];
    print_line(&format!(
        "spool: {}, {} items, {} of {} bytes; {} dead letters",
        text(&spool["state"]),
        spool["items"],
        spool["bytes"],
        spool["max_bytes"],
        spool["dead"]
    ));
    print_line("");
    print_line(&format!(
        "{:<20} {:<12} {:>8} {:>10} {:>10} {:>8} {:>8}",
        "SINK", "STATE", "WAITING", "OLDEST", "STORED", "RETRIED", "DEAD"
    ));
    for sink in status["sinks"].as_array().into_iter().flatten() {
        let counts = &sink["counts"];
        print_line(&format!(
            "{:<20} {:<12} {:>8} {:>10} {:>10} {:>8} {:>8}",
            text(&sink["sink"]),
            text(&sink["state"]),
            sink["waiting"],
            seconds(sink["oldest_s"].as_u64()),
            counts["stored"],
            counts["retried"],
            counts["rejected"].as_u64().unwrap_or(0) + counts["expired"].as_u64().unwrap_or(0),
        ));
        if let Some(error) = sink["last_error"].as_str() {
            print_line(&format!("  last error ({} ago): {error}", seconds(sink["last_error_s"].as_u64())));
        }
        if let Some(error) = sink["close_error"].as_str() {
            print_line(&format!("  did not close: {error}"));
        }
        if let Some(lines) = sink["log_dropped"]["lines"].as_u64().filter(|lines| *lines > 0) {
            print_line(&format!("  {lines} lines of its log were left out"));
        }
        if let Some(refused) = sink["refused"].as_str() {
            print_line(&format!("  {refused}"));
        }
    }
    print_line("");
    for plugin in status["plugins"].as_array().into_iter().flatten() {
        print_line(&format!(
            "plugin {} {} ({})",
            text(&plugin["name"]),
            text(&plugin["version"]),
            text(&plugin["interfaces"])
        ));
    }
    for broken in status["broken"].as_array().into_iter().flatten() {
        print_line(&format!("plugin not loaded: {}", text(&broken["error"])));
    }
    for line in status["stuck"].as_array().into_iter().flatten() {
        print_line(&format!("stuck: {}", text(line)));
    }
}

/// A time in its largest fitting unit.
fn seconds(value: Option<u64>) -> String {
    match value {
        None => "-".into(),
        Some(s) if s < 120 => format!("{s}s"),
        Some(s) if s < 7_200 => format!("{}m", s / 60),
        Some(s) if s < 172_800 => format!("{}h", s / 3_600),
        Some(s) => format!("{}d", s / 86_400),
    }
}
