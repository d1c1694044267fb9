//! `init`: a commented configuration and the directories with the right modes.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use clap::Args;

use super::{CliError, print_line};
use crate::config::Config;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The directory for the spool and the cache, written into a new configuration.
    #[arg(long, default_value = "/var/lib/returnerd")]
    state_dir: std::path::PathBuf,
    /// The socket, written into a new configuration.
    #[arg(long, default_value = "/run/returnerd/returnerd.sock")]
    socket: std::path::PathBuf,
}

pub(super) fn run(arguments: &Arguments, path: &Path) -> Result<(), CliError> {
    if path.exists() {
        print_line(&format!("{} is there already and stays as it is", path.display()));
    } else {
        let text = template(&arguments.state_dir, &arguments.socket);
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(CliError::file("make", directory))?;
        }
        std::fs::write(path, text).map_err(CliError::file("write", path))?;
        // Options with passwords may be put here.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o640))
            .map_err(CliError::file("write", path))?;
        print_line(&format!("wrote {}", path.display()));
    }
    let config = Config::load(path)?;
    let socket_dir = config.socket.parent().unwrap_or(Path::new("/")).to_owned();
    for (directory, mode, what) in [
        (&config.state_dir, 0o711, "state"),
        (&crate::daemon::spool_dir(&config), 0o700, "the durable queue"),
        (&crate::daemon::cache_dir(&config), 0o700, "compiled plugins"),
        (&config.plugins_dir, 0o755, "plugins"),
        (&config.inbox, 0o700, "frames left while the daemon is away"),
        (&socket_dir, 0o755, "the socket"),
    ] {
        if directory.is_dir() {
            continue;
        }
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(directory)
            .map_err(CliError::file("make", directory))?;
        // The process's umask may have taken bits away.
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(mode))
            .map_err(CliError::file("make", directory))?;
        print_line(&format!("made {} ({what}, mode {mode:o})", directory.display()));
    }
    if !config.intake.group.is_empty() {
        crate::intake::give_to_group(&config.inbox, &config.intake.group)
            .map_err(|error| CliError::Text(crate::observe::chain(&error)))?;
        std::fs::set_permissions(&config.inbox, std::fs::Permissions::from_mode(0o2770))
            .map_err(CliError::file("change", &config.inbox))?;
    }
    print_line("next: copy plugins into the plugins directory, then `returnerd check`");
    Ok(())
}

fn template(state_dir: &Path, socket: &Path) -> String {
    let state = state_dir.display();
    format!(
        r#"# Configuration of returnerd. Every line that is commented out shows the default.

# The durable queue and the compiled plugins.
state_dir = "{state}"

# One `.wasm` file here is one plugin; it is served at once, the first time after compiling.
plugins_dir = "{state}/plugins"

# What the shim in Salt talks to, and where it leaves returns while the daemon is away.
socket = "{socket}"
inbox = "{state}/inbox"

# Refuse plugins that have no `sha256` below.
# require_pin = false

[intake]
# Mode and group of the socket: whoever may write to it may hand returns over and read jobs.
# mode = "0660"
# group = ""
# Where there is no place left, the client that has been silent for longest makes room.
# max_connections = 1024
# max_frame = "64 MiB"
# Frames of one connection per second; 0 sets no limit.
# frames_per_second = 0

[spool]
# Past this nothing more is accepted; the shim then falls back to the inbox.
# max_size = "4 GiB"
# Dead letters past this are written to a file below the state directory ("export"), or the item stays in its lane ("refuse").
# max_dead_size = "1 GiB"
# dead_overflow = "export"

[delivery]
# How long a record is tried before it becomes a dead letter.
# max_age = "7d"
# first_retry = "500ms"
# longest_retry = "60s"
# stop_within = "10s"
# `returnerd status` calls a sink stuck whose oldest record waits for longer than this.
# stuck_after = "5m"

[salt]
# Salt's own configuration, for `check` and `send`.
# config_dir = "/etc/salt"
# Where `salt install` puts the shims; Salt finds them there by `returner_dirs`.
# returner_dir = "/var/lib/returnerd/salt/returners"

[log]
# error, warn, info, debug, trace, or a filter such as "info,returnerd::policy=debug".
# level = "info"

# What plugins may reach beside what Salt's configuration names for them. The lines below grant the default server or
# directory of the plugins that come with returnerd; remove those that you do not want.
[plugin.local_cache]
allow = ["dir:///var/cache/salt/master/jobs"]

[plugin.mysql]
allow = ["tcp://salt:3306"]

[plugin.pgjsonb]
allow = ["tcp://localhost:5432"]

[plugin.postgres]
allow = ["tcp://localhost:5432"]

[plugin.redis]
allow = ["tcp://salt:6379"]

[plugin.slack]
allow = ["https://slack.com"]

[plugin.slack_webhook]
allow = ["https://hooks.slack.com"]

[plugin.syslog]
allow = ["unix:///dev/log"]

# All that can be said of a plugin:
# [plugin.NAME]
# allow = ["tcp://host:port", "dir:///srv/data", "unix:///dev/log"]
# mode = "enforce"             # "observe" only logs what would be refused
# sha256 = "…"                 # load only this file
# keep = "30d"                 # remove older jobs every hour; without it Salt's keep_jobs_seconds decides (master only)
# memory = "256 MiB"
# cpu_per_call = "10s"
# call_within = "60s"
# renew_after = "4h"
# renew_after_calls = 100000
# sockets = 32                 # of one instance, at once
# quarantine_after = 8         # crashes and time-outs without a healthy minute between them
# [plugin.NAME.http]           # for plugins that send HTTP requests
# ca_file = "/etc/returnerd/ca.pem"      # authorities that are trusted as well
# web_roots = true             # false trusts only those of ca_file
# client_cert = "/etc/returnerd/client.pem"
# client_key = "/etc/returnerd/client.key"   # without it client_cert holds the key as well
# proxy = "http://proxy.example.com:3128"    # "environment" takes the daemon's; the proxy then looks names up
# max_request = "64 MiB"
# max_response = "16 MiB"
# [plugin.NAME.options]        # used where Salt's configuration has none
# host = "db.example.com"
"#,
        socket = socket.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_written_configuration_is_valid_and_gives_the_defaults() {
        let text = template(Path::new("/var/lib/returnerd"), Path::new("/run/returnerd/returnerd.sock"));
        let config = Config::parse(&text, Path::new("/etc/returnerd/returnerd.toml")).unwrap();
        assert_eq!(config.inbox, Path::new("/var/lib/returnerd/inbox"));
        // Every commented setting must be one that exists: uncommented, the file still parses.
        let uncommented: String = text
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(rest)
                    if rest.starts_with('[')
                        || rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')) =>
                {
                    rest
                }
                _ => line,
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        Config::parse(&uncommented, Path::new("/x")).map_err(|e| crate::observe::chain(&e)).unwrap();
    }
}
