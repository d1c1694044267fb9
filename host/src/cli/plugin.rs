//! `plugin list`, `plugin restart`.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Value, json};

use super::{CliError, Output, ask, inspect, print_json, print_line};
use crate::config::Config;
use crate::observe::chain;
use crate::plugin::file::PluginFile;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the plugins directory.
    List(Output),
    /// Show what a plugin says of itself, what it exports and what it wishes to reach, without running it.
    Inspect(inspect::Arguments),
    /// Compile what comes on stdin into a cache; the daemon's own tool.
    #[command(hide = true)]
    Precompile {
        /// The cache's directory.
        cache: PathBuf,
    },
    /// End a plugin's instances and lift its quarantine.
    Restart {
        /// The plugin.
        name: String,
    },
}

pub(super) fn run(command: &Command, config: &Config) -> Result<(), CliError> {
    match command {
        Command::List(output) => list(*output, config),
        Command::Restart { name } => {
            let answer = ask::admin(config, "plugin_restart", json!({ "name": name }))?;
            print_line(&format!("restarted the instances of {} sinks", answer["sinks"]));
            Ok(())
        }
        Command::Inspect(arguments) => inspect::run(arguments, &config.path),
        Command::Precompile { cache } => precompile(cache),
    }
}

pub(super) fn precompile(cache: &Path) -> Result<(), CliError> {
    crate::plugin::precompile::child(cache).map_err(|error| CliError::Text(chain(&error)))
}

/// Reads the directory itself, so that it works without the daemon too.
fn list(output: Output, config: &Config) -> Result<(), CliError> {
    let directory = &config.plugins_dir;
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory)
        .map_err(CliError::file("read", directory))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "wasm"))
        .collect();
    paths.sort();
    let mut rows = Vec::new();
    for path in &paths {
        let read = PluginFile::read(path).map_err(|error| chain(&error)).and_then(|file| {
            crate::plugin::registry::check_identity(config, &file).map_err(|error| chain(&error))?;
            Ok(file)
        });
        match read {
            Ok(file) => {
                rows.push(json!({
                    "file": path, "name": file.manifest.name, "version": file.manifest.version,
                    "summary": file.manifest.summary, "aliases": file.manifest.aliases,
                    "interfaces": file.interfaces.names(), "sha256": file.sha256,
                }));
            }
            Err(error) => rows.push(json!({ "file": path, "error": error })),
        }
    }
    let broken = rows.iter().any(|row| row.get("error").is_some());
    let result = if broken { Err(CliError::Reported) } else { Ok(()) };
    if output.json {
        print_json(&Value::from(rows));
        return result;
    }
    for row in &rows {
        match row["error"].as_str() {
            Some(error) => print_line(&format!("{:<16} not usable: {error}", stem(&row["file"]))),
            None => print_line(&format!(
                "{:<16} {:<8} {:<24} {}",
                row["name"].as_str().unwrap_or("-"),
                row["version"].as_str().unwrap_or("-"),
                row["interfaces"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect::<Vec<_>>()
                    .join(","),
                row["summary"].as_str().unwrap_or("")
            )),
        }
    }
    if rows.is_empty() {
        print_line(&format!("no plugins in `{}`", directory.display()));
    }
    result
}

fn stem(path: &Value) -> String {
    Path::new(path.as_str().unwrap_or("-"))
        .file_stem()
        .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}
