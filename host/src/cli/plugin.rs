//! `plugin list`, `plugin inspect`, `plugin restart`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{CliError, Output, ask, print_json, print_line};
use crate::config::Config;
use crate::observe::chain;
use crate::plugin::file::PluginFile;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the plugins directory.
    List(Output),
    /// Show what a plugin says of itself, what it exports and what it wishes to reach, without running it.
    Inspect(InspectArguments),
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

#[derive(Debug, Args)]
pub(super) struct InspectArguments {
    /// The `.wasm` file.
    file: PathBuf,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(command: &Command, config: &Config) -> Result<(), CliError> {
    match command {
        Command::List(output) => list(*output, config),
        Command::Restart { name } => {
            let answer = ask::admin(config, "plugin_restart", json!({ "name": name }))?;
            print_line(&format!("restarted the instances of {} sinks", answer["sinks"]));
            Ok(())
        }
        Command::Inspect(arguments) => inspect(arguments, &config.path),
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

pub(super) fn inspect(arguments: &InspectArguments, config: &Path) -> Result<(), CliError> {
    let file = PluginFile::read(&arguments.file)?;
    let manifest = &file.manifest;
    // Grants are shown as far as there is a configuration.
    let config = Config::load(config).ok();
    let allow = config.as_ref().map(|config| config.plugin(&manifest.name).allow).unwrap_or_default();
    if arguments.output.json {
        print_json(&json!({
            "name": manifest.name, "version": manifest.version, "summary": manifest.summary,
            "aliases": manifest.aliases, "interfaces": file.interfaces.names(), "sha256": file.sha256,
            "size": file.bytes.len(), "imports": file.imports, "options": manifest.options,
            "reach": manifest.reach_texts(), "allow": allow,
        }));
        return Ok(());
    }
    print_line(&format!("{} {}: {}", manifest.name, manifest.version, manifest.summary));
    if !manifest.aliases.is_empty() {
        print_line(&format!("also called {}", manifest.aliases.join(", ")));
    }
    print_line(&format!("interfaces: {}", file.interfaces.names().join(", ")));
    print_line(&format!("sha256: {}", file.sha256));
    print_line(&format!("size: {} bytes", file.bytes.len()));
    print_line("options:");
    for option in &manifest.options {
        print_line(&format!("  {}", option.line(&manifest.prefix)));
    }
    print_line("wishes to reach:");
    for wish in manifest.reach_texts() {
        print_line(&format!("  {wish}"));
    }
    print_line("granted by returnerd.toml, beside what the administrator's own options name:");
    for line in &allow {
        print_line(&format!("  {line}"));
    }
    if allow.is_empty() {
        print_line("  nothing");
    }
    print_line("imports:");
    for import in &file.imports {
        print_line(&format!("  {import}"));
    }
    Ok(())
}
