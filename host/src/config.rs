//! `returnerd.toml`: what the operator decides. Owns the defaults of every setting and the checks that need no other part.
//!
//! Invariants: an unknown key is an error that names it; every path is absolute after loading; a file that is not there
//! is an error, so that a mistyped `--config` never starts a daemon with defaults.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// Where the configuration is looked for when `--config` names no file.
pub const DEFAULT_PATH: &str = "/etc/returnerd/returnerd.toml";

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error(
        "cannot read the configuration `{path}`; hint: write one with `returnerd init`, or name it with `--config`"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The file is not valid.
    #[error("the configuration `{path}` is not valid")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The reason, with the place in the file.
        source: Box<toml::de::Error>,
    },
    /// A setting has a value that does not work.
    #[error("`{key}` in `{path}`: {why}")]
    Value {
        /// The file.
        path: PathBuf,
        /// The setting.
        key: String,
        /// What is wrong and what would be right.
        why: String,
    },
}

/// The whole of `returnerd.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the spool and the compile cache live.
    #[serde(default = "defaults::state_dir")]
    pub state_dir: PathBuf,
    /// Where plugins are dropped.
    #[serde(default = "defaults::plugins_dir")]
    pub plugins_dir: PathBuf,
    /// The socket that the shim talks to.
    #[serde(default = "defaults::socket")]
    pub socket: PathBuf,
    /// Where the shim leaves frames while the daemon is away.
    #[serde(default = "defaults::inbox")]
    pub inbox: PathBuf,
    /// Who may connect, and how much.
    #[serde(default)]
    pub intake: Intake,
    /// The spool's bounds.
    #[serde(default)]
    pub spool: Spool,
    /// How deliveries are tried again.
    #[serde(default)]
    pub delivery: Delivery,
    /// Salt beside this daemon.
    #[serde(default)]
    pub salt: Salt,
    /// Logging.
    #[serde(default)]
    pub log: Log,
    /// Settings of single plugins, by their names.
    #[serde(default)]
    pub plugin: BTreeMap<String, Plugin>,
    /// Refuse every plugin that has no `sha256` here.
    #[serde(default)]
    pub require_pin: bool,
    /// The file this was read from.
    #[serde(skip)]
    pub path: PathBuf,
}

/// `[intake]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Intake {
    /// Mode of the socket, as octal text.
    pub mode: String,
    /// Group of the socket and the inbox, by name; empty leaves the daemon's own.
    pub group: String,
    /// Connections at once; more wait.
    pub max_connections: usize,
    /// The largest request, in bytes.
    #[serde(deserialize_with = "size")]
    pub max_frame: u64,
    /// Frames of one client that may be worked on in a second, on average; 0 sets no limit.
    pub frames_per_second: u32,
}

/// `[spool]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spool {
    /// Bytes of items past which nothing more is accepted.
    #[serde(deserialize_with = "size")]
    pub max_size: u64,
    /// Bytes of dead letters.
    #[serde(deserialize_with = "size")]
    pub max_dead_size: u64,
    /// What happens when there are more: `export` writes the oldest to a file below the state directory, `refuse` leaves the
    /// item in its lane.
    pub dead_overflow: DeadOverflow,
}

/// What becomes of dead letters past their limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeadOverflow {
    /// Write the oldest to a dated file, then remove them.
    Export,
    /// Keep the item in its lane.
    Refuse,
}

/// `[delivery]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Delivery {
    /// How long an item is tried before it becomes a dead letter.
    #[serde(deserialize_with = "duration")]
    pub max_age: Duration,
    /// The first pause after a failure.
    #[serde(deserialize_with = "duration")]
    pub first_retry: Duration,
    /// The longest pause.
    #[serde(deserialize_with = "duration")]
    pub longest_retry: Duration,
    /// How long a stop waits for what is in flight.
    #[serde(deserialize_with = "duration")]
    pub stop_within: Duration,
    /// A lane whose oldest item is older than this counts as stuck in `returnerd status`.
    #[serde(deserialize_with = "duration")]
    pub stuck_after: Duration,
}

/// `[salt]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Salt {
    /// Salt's configuration directory, for `check`, `send` and `jobs`.
    pub config_dir: PathBuf,
    /// Where `salt install` writes the shims.
    pub returner_dir: PathBuf,
}

/// `[log]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// A level, or a filter as tracing understands it (`info,returnerd::plugin=debug`).
    pub level: String,
}

/// `[plugin.NAME]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plugin {
    /// What it may reach beside what the administrator's own options name: `tcp://host:port`, `dir:///path`, …
    pub allow: Vec<String>,
    /// Whether a refusal is enforced or only logged.
    pub mode: Mode,
    /// The file's SHA-256 in hex; another file is not loaded.
    pub sha256: Option<String>,
    /// Options used where Salt's configuration has none.
    pub options: toml::Table,
    /// Remove stored jobs older than this, every hour; `0s` keeps them for ever. Where it is not set, Salt's `keep_jobs_seconds`
    /// decides for a master's job cache, and nothing is removed for a minion, which never asks for it.
    #[serde(deserialize_with = "optional_duration")]
    pub keep: Option<Duration>,
    /// Most memory of one instance, over all its memories, in bytes.
    #[serde(deserialize_with = "optional_size")]
    pub memory: Option<u64>,
    /// Most time on the processor per call.
    #[serde(deserialize_with = "optional_duration")]
    pub cpu_per_call: Option<Duration>,
    /// Longest call.
    #[serde(deserialize_with = "optional_duration")]
    pub call_within: Option<Duration>,
    /// Renew an instance after about this long.
    #[serde(deserialize_with = "optional_duration")]
    pub renew_after: Option<Duration>,
    /// Renew an instance after about this many calls.
    pub renew_after_calls: Option<u64>,
    /// Most sockets of one instance at once.
    pub sockets: Option<usize>,
    /// Crashes, time-outs and broken limits, without a healthy minute between them, after which the plugin is left alone.
    pub quarantine_after: Option<u32>,
    /// How its HTTP requests go out.
    pub http: Http,
}

/// `[plugin.NAME.http]`.
#[derive(Clone, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// PEM file with certificates of authorities that are trusted as well.
    pub ca_file: Option<PathBuf>,
    /// Whether the authorities that browsers trust are trusted.
    pub web_roots: bool,
    /// PEM file with the certificate that servers are shown, and those between it and its authority.
    pub client_cert: Option<PathBuf>,
    /// PEM file with its key; none means that `client_cert` holds it.
    pub client_key: Option<PathBuf>,
    /// The proxy's URL, or `environment` for what the daemon's environment says; none connects directly. May hold a password.
    pub proxy: Option<String>,
    /// The largest request body, in bytes.
    #[serde(deserialize_with = "size")]
    pub max_request: u64,
    /// The largest response body, in bytes.
    #[serde(deserialize_with = "size")]
    pub max_response: u64,
}

/// Without the proxy, whose URL may hold a password.
impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http")
            .field("ca_file", &self.ca_file)
            .field("web_roots", &self.web_roots)
            .field("client_cert", &self.client_cert)
            .field("client_key", &self.client_key)
            .field("max_request", &self.max_request)
            .field("max_response", &self.max_response)
            .finish_non_exhaustive()
    }
}

/// `mode` of a plugin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Refuse what is not granted.
    #[default]
    Enforce,
    /// Let it pass and log what would be refused.
    Observe,
}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Checks a text; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let mut config: Self = toml::from_str(text)
            .map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) })?;
        config.path = path.to_owned();
        for (key, value) in [
            ("state_dir", &config.state_dir),
            ("plugins_dir", &config.plugins_dir),
            ("socket", &config.socket),
            ("inbox", &config.inbox),
        ] {
            if !value.is_absolute() {
                return Err(config.fault(key, format!("`{}` is not an absolute path", value.display())));
            }
        }
        if config.socket.as_os_str().len() > 107 {
            return Err(
                config.fault("socket", "the path is longer than the 107 bytes a unix socket can have")
            );
        }
        config.socket_mode()?;
        for (name, plugin) in &config.plugin {
            let http = &plugin.http;
            for (key, file) in [
                ("ca_file", &http.ca_file),
                ("client_cert", &http.client_cert),
                ("client_key", &http.client_key),
            ] {
                if let Some(file) = file.as_ref().filter(|file| !file.is_absolute()) {
                    return Err(config.fault(
                        &format!("plugin.{name}.http.{key}"),
                        format!("`{}` is not an absolute path", file.display()),
                    ));
                }
            }
        }
        Ok(config)
    }

    /// The socket's mode as a number.
    pub fn socket_mode(&self) -> Result<u32, ConfigError> {
        match u32::from_str_radix(&self.intake.mode, 8) {
            Ok(mode) if mode <= 0o777 => Ok(mode),
            _ => Err(self.fault(
                "intake.mode",
                format!("`{}` is no file mode; hint: write it as `\"0660\"`", self.intake.mode),
            )),
        }
    }

    /// The settings of a plugin; the defaults where it has none.
    pub fn plugin(&self, name: &str) -> Plugin {
        self.plugin.get(name).cloned().unwrap_or_default()
    }

    fn fault(&self, key: &str, why: impl Into<String>) -> ConfigError {
        ConfigError::Value { path: self.path.clone(), key: key.to_owned(), why: why.into() }
    }
}

impl Default for Intake {
    fn default() -> Self {
        Self {
            mode: "0660".into(),
            group: String::new(),
            max_connections: 1024,
            max_frame: 64 << 20,
            frames_per_second: 0,
        }
    }
}

impl Default for Spool {
    fn default() -> Self {
        Self { max_size: 4 << 30, max_dead_size: 1 << 30, dead_overflow: DeadOverflow::Export }
    }
}

impl Default for Delivery {
    fn default() -> Self {
        Self {
            max_age: Duration::from_secs(7 * 86_400),
            first_retry: Duration::from_millis(500),
            longest_retry: Duration::from_secs(60),
            stop_within: Duration::from_secs(10),
            stuck_after: Duration::from_secs(300),
        }
    }
}

impl Default for Salt {
    fn default() -> Self {
        Self { config_dir: "/etc/salt".into(), returner_dir: "/var/lib/returnerd/salt/returners".into() }
    }
}

impl Default for Http {
    fn default() -> Self {
        Self {
            ca_file: None,
            web_roots: true,
            client_cert: None,
            client_key: None,
            proxy: None,
            max_request: crate::plugin::limits::MAX_HTTP_REQUEST,
            max_response: crate::plugin::limits::MAX_HTTP_RESPONSE,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".into() }
    }
}

mod defaults {
    use std::path::PathBuf;

    pub(super) fn state_dir() -> PathBuf {
        "/var/lib/returnerd".into()
    }
    pub(super) fn plugins_dir() -> PathBuf {
        "/var/lib/returnerd/plugins".into()
    }
    pub(super) fn socket() -> PathBuf {
        "/run/returnerd/returnerd.sock".into()
    }
    pub(super) fn inbox() -> PathBuf {
        "/var/lib/returnerd/inbox".into()
    }
}

/// Options of a plugin's table as JSON, which is what options are resolved in.
pub fn json_options(table: &toml::Table) -> serde_json::Map<String, serde_json::Value> {
    match serde_json::to_value(table) {
        Ok(serde_json::Value::Object(map)) => map,
        _ => serde_json::Map::new(),
    }
}

/// A number of bytes: a plain number, or text with `KiB`, `MiB` or `GiB`.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim();
    let factor = match text.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ') {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// A time: a number and one of `ms`, `s`, `m`, `h`, `d`.
fn parse_duration(text: &str) -> Option<Duration> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u64 = text[..text.len() - unit.len()].parse().ok()?;
    let factor = match unit.trim() {
        "ms" => return Some(Duration::from_millis(number)),
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    number.checked_mul(factor).map(Duration::from_secs)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u64),
    Text(String),
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match NumberOrText::deserialize(deserializer)? {
        NumberOrText::Number(number) => Ok(number),
        NumberOrText::Text(text) => parse_size(&text).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "`{text}` is no size; hint: write a number of bytes or such as \"64 MiB\""
            ))
        }),
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).ok_or_else(|| {
        serde::de::Error::custom(format!(
            "`{text}` is no time; hint: write such as \"500ms\", \"30s\", \"2h\" or \"7d\""
        ))
    })
}

fn optional_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    size(deserializer).map(Some)
}

fn optional_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("/etc/returnerd/returnerd.toml"))
    }

    #[test]
    fn an_empty_file_gives_the_defaults() {
        let config = parse("").unwrap();
        assert_eq!(config.state_dir, Path::new("/var/lib/returnerd"));
        assert_eq!(config.delivery.max_age, Duration::from_secs(604_800));
        assert_eq!(config.socket_mode().unwrap(), 0o660);
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = parse("[plugin.mysql]\nalow = []").unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("alow") && source.contains("allow"), "{source}");
    }

    #[test]
    fn sizes_and_times_have_units() {
        let config =
            parse("[spool]\nmax_size = \"2 GiB\"\n[delivery]\nmax_age = \"36h\"\n[plugin.a]\nmemory = 1024")
                .unwrap();
        assert_eq!(config.spool.max_size, 2 << 30);
        assert_eq!(config.delivery.max_age, Duration::from_secs(129_600));
        assert_eq!(config.plugin("a").memory, Some(1024));
        assert!(parse("[delivery]\nmax_age = \"7\"").is_err());
        assert!(parse("[spool]\nmax_size = \"2 GB\"").is_err());
    }

    #[test]
    fn relative_paths_and_odd_modes_are_refused() {
        assert!(parse("state_dir = \"var\"").unwrap_err().to_string().contains("`state_dir`"));
        let error = parse("[plugin.a.http]\nca_file = \"ca.pem\"").unwrap_err().to_string();
        assert!(error.contains("`plugin.a.http.ca_file`"), "{error}");
        assert!(parse("[intake]\nmode = \"rw\"").unwrap_err().to_string().contains("`intake.mode`"));
    }
}
