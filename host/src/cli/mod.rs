//! The command line: one file per command. Owns the arguments, the exit codes and how errors are shown.
//!
//! Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 it failed or a fault was found, 2 wrong usage.

mod ask;
mod check;
mod dead;
mod docs;
mod init;
mod inspect;
mod jobs;
mod plugin;
mod salt;
mod send;
mod serve;
mod spool;
mod status;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, ConfigError, DEFAULT_PATH};
use crate::observe::chain;

/// Keeps Salt returns safe and hands them to sandboxed returner plugins.
#[derive(Debug, Parser)]
#[command(name = "returnerd", version, propagate_version = true)]
pub struct Cli {
    /// The configuration file.
    #[arg(long, short, global = true, env = "RETURNERD_CONFIG", value_name = "FILE", default_value = DEFAULT_PATH)]
    config: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon in the foreground.
    Serve,
    /// Write a commented configuration and make the directories.
    Init(init::Arguments),
    /// Look for faults in the configuration, the plugins, their grants and Salt's own files.
    Check(check::Arguments),
    /// Show the daemon's lanes and plugins; fails if something is stuck.
    Status(status::Arguments),
    /// Look at plugins.
    #[command(subcommand)]
    Plugin(plugin::Command),
    /// Hand a return over, as JSON.
    Send(send::Arguments),
    /// Look at stored jobs through a job-cache plugin.
    #[command(subcommand)]
    Jobs(jobs::Command),
    /// Look after dead letters: records that were rejected or became too old.
    #[command(subcommand)]
    Dead(dead::Command),
    /// Look at the durable queue.
    #[command(subcommand)]
    Spool(spool::Command),
    /// Set up Salt's side.
    #[command(subcommand)]
    Salt(salt::Command),
    /// Print completions for a shell.
    Completions(docs::CompletionsArguments),
    /// Write the manual pages.
    Man(docs::ManArguments),
}

/// How a result is printed.
#[derive(Debug, Clone, Copy, Args)]
pub struct Output {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The daemon.
    #[error(transparent)]
    Ask(#[from] ask::AskError),
    /// The daemon could not start or failed.
    #[error(transparent)]
    Daemon(#[from] crate::daemon::DaemonError),
    /// A file.
    #[error("cannot {doing} `{}`", path.display())]
    File {
        /// Read, write, …
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A plugin file.
    #[error(transparent)]
    Plugin(#[from] crate::plugin::file::FileError),
    /// The spool.
    #[error(transparent)]
    Spool(#[from] crate::spool::SpoolError),
    /// Anything that needs no cause.
    #[error("{0}")]
    Text(String),
    /// It was reported already; only the exit code is left to give.
    #[error("")]
    Reported,
}

impl CliError {
    fn file(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { doing, path, source }
    }
}

/// Runs the program with the process's arguments.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    match dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(CliError::Reported) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(cli: Cli) -> Result<(), CliError> {
    // These work without a configuration.
    match cli.command {
        Command::Init(arguments) => return init::run(&arguments, &cli.config),
        Command::Completions(arguments) => return docs::completions(&arguments),
        Command::Man(arguments) => return docs::man(&arguments),
        Command::Plugin(plugin::Command::Inspect(arguments)) => {
            return inspect::run(&arguments, &cli.config);
        }
        Command::Plugin(plugin::Command::Precompile { cache }) => return plugin::precompile(&cache),
        Command::Check(arguments) => return check::run(&arguments, &cli.config),
        _ => {}
    }
    let config = Config::load(&cli.config)?;
    match cli.command {
        Command::Serve => serve::run(config),
        Command::Status(arguments) => status::run(&arguments, &config),
        Command::Plugin(command) => plugin::run(&command, &config),
        Command::Send(arguments) => send::run(&arguments, &config),
        Command::Jobs(command) => jobs::run(&command, &config),
        Command::Dead(command) => dead::run(&command, &config),
        Command::Spool(command) => spool::run(&command, &config),
        Command::Salt(command) => salt::run(&command, &config),
        Command::Init(_) | Command::Check(_) | Command::Completions(_) | Command::Man(_) => Ok(()),
    }
}

/// A value as pretty JSON on stdout. A closed pipe is not an error worth a message.
fn print_json(value: &serde_json::Value) {
    use std::io::Write;
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// A line on stdout; see [`print_json`].
fn print_line(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{text}");
}
