//! The options of the manifest and what they mean for a connection.
//!
//! Invariant: what cannot be done (a unix socket, a cluster) is refused by the option's name, never passed over.

use std::sync::Arc;

use returner_sdk::given;
use returner_sdk::prelude::*;
use returner_sdk::serde_json::Value;
use returner_sdk::tls::{self, Check, Names, rustls::ClientConfig};

const TLS: Names =
    Names { ca: "ssl_ca_certs", cert: "ssl_certfile", key: "ssl_keyfile", crl: "ssl_ca_certs" };

/// The longest time to live, about a century: the server counts in milliseconds and must not overflow.
const LONGEST: f64 = 3e9;

/// The options as the host hands them over.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Name or address of the server.
    pub host: String,
    /// TCP port of the server.
    pub port: u16,
    /// Number of the database.
    pub db: String,
    /// ACL user to log in as.
    pub username: Option<String>,
    /// The user's password.
    pub password: Option<String>,
    /// Not supported.
    pub unix_socket_path: Option<String>,
    /// Not supported.
    pub cluster_mode: bool,
    /// Not supported.
    pub startup_nodes: Vec<Value>,
    /// Time to live of what is stored, in seconds; 0 is for ever.
    pub keep_jobs_seconds: f64,
    /// Whether to use TLS; none decides by the files.
    pub ssl: Option<bool>,
    /// PEM text: the authorities that may sign the server's certificate.
    pub ssl_ca_certs: Option<String>,
    /// PEM text: the certificate chain to log in with.
    pub ssl_certfile: Option<String>,
    /// PEM text: the private key of `ssl_certfile`.
    pub ssl_keyfile: Option<String>,
    /// `required` or `none`.
    pub ssl_cert_reqs: String,
    /// Whether the certificate must be for the server's name.
    pub ssl_check_hostname: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            host: "salt".into(),
            port: 6379,
            db: "0".into(),
            username: None,
            password: None,
            unix_socket_path: None,
            cluster_mode: false,
            startup_nodes: Vec::new(),
            keep_jobs_seconds: 86_400.0,
            ssl: None,
            ssl_ca_certs: None,
            ssl_certfile: None,
            ssl_keyfile: None,
            ssl_cert_reqs: "required".into(),
            ssl_check_hostname: true,
        }
    }
}

/// Options that were checked.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) db: u32,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    /// Time to live in seconds; 0 is for ever.
    pub(crate) ttl: u64,
    /// How to speak TLS, if at all.
    pub(crate) tls: Option<Arc<ClientConfig>>,
}

impl Options {
    /// Checks them. An error is fatal and names the option.
    pub(crate) fn settings(self) -> Result<Settings> {
        if given(self.unix_socket_path).is_some() {
            return Err(Error::fatal(
                "the option `unix_socket_path` is set, but a plugin can reach a server over TCP only; hint: remove it, \
                 set `host` and `port`, and let the server listen there (`bind 127.0.0.1` and `port 6379`)",
            ));
        }
        for (set, option) in
            [(self.cluster_mode, "cluster_mode"), (!self.startup_nodes.is_empty(), "cluster.startup_nodes")]
        {
            if set {
                return Err(Error::fatal(format!(
                    "the option `{option}` is set, but this plugin does not speak to a Redis Cluster; hint: remove it \
                     and name a single server, or one with replicas, in `host`"
                )));
            }
        }
        let host =
            given(Some(self.host)).ok_or_else(|| Error::fatal("the option `host` must not be empty"))?;
        let db = self.db.trim().parse().map_err(|_| {
            Error::fatal(format!("the option `db` is `{}`; hint: it is a number such as `0`", self.db))
        })?;
        let (username, password) = (given(self.username), given(self.password));
        if let (Some(username), None) = (&username, &password) {
            return Err(Error::fatal(format!(
                "the option `username` is `{username}`, but `password` is not set; hint: set it, also for a user that \
                 takes any password"
            )));
        }
        let [ca, cert, key] = [self.ssl_ca_certs, self.ssl_certfile, self.ssl_keyfile].map(given);
        let any = ca.is_some() || cert.is_some() || key.is_some();
        if any && self.ssl == Some(false) {
            return Err(Error::fatal(
                "the option `ssl` is false, but `ssl_ca_certs`, `ssl_certfile` or `ssl_keyfile` is set; \
                 hint: remove one or the other",
            ));
        }
        let check = match (self.ssl_cert_reqs.as_str(), self.ssl_check_hostname) {
            ("required", true) => Check::Full,
            ("required", false) => Check::Authority,
            ("none", _) => Check::Nothing,
            (other, _) => {
                return Err(Error::fatal(format!(
                    "the option `ssl_cert_reqs` is `{other}`; hint: it may be `required` or `none`"
                )));
            }
        };
        let tls = match self.ssl.unwrap_or(any) {
            false => None,
            true => Some(tls::Settings { check, ca, cert, key, crl: None }.client(&TLS)?),
        };
        if tls.is_some() {
            tls::server_name(&host)?;
        }
        Ok(Settings {
            host,
            port: self.port,
            db,
            username,
            password,
            ttl: time_to_live(self.keep_jobs_seconds)?,
            tls,
        })
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in range")]
fn time_to_live(seconds: f64) -> Result<u64> {
    if !(0.0..=f64::MAX).contains(&seconds) {
        return Err(Error::fatal(format!(
            "the option `keep_jobs_seconds` is {seconds}; hint: give a number of seconds, or 0 for ever"
        )));
    }
    Ok(seconds.min(LONGEST).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fatal(options: Options) -> String {
        match options.settings().err() {
            Some(Error::Fatal(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn salts_defaults_hold_without_any_option() {
        let options: Options = returner_sdk::serde_json::from_str("{}").unwrap();
        let settings = options.settings().unwrap();
        assert_eq!((settings.host.as_str(), settings.port, settings.db), ("salt", 6379, 0));
        assert_eq!((settings.ttl, settings.tls.is_none()), (86_400, true));
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        let path = Some("/run/redis.sock".to_owned());
        assert!(
            fatal(Options { unix_socket_path: path, ..Options::default() }).contains("`unix_socket_path`")
        );
        assert!(fatal(Options { cluster_mode: true, ..Options::default() }).contains("`cluster_mode`"));
        let startup_nodes = vec![Value::from("a:1")];
        let why = fatal(Options { startup_nodes, ..Options::default() });
        assert!(why.contains("`cluster.startup_nodes`") && why.contains("hint:"), "{why}");
        assert!(fatal(Options { db: "zero".into(), ..Options::default() }).contains("`db`"));
        assert!(fatal(Options { username: Some("u".into()), ..Options::default() }).contains("`password`"));
    }

    #[test]
    fn the_keep_time_is_rounded_up_and_bounded() {
        let ttl = |keep_jobs_seconds| {
            Options { keep_jobs_seconds, ..Options::default() }.settings().map(|settings| settings.ttl)
        };
        assert_eq!(ttl(0.0).unwrap(), 0);
        assert_eq!(ttl(0.2).unwrap(), 1);
        assert_eq!(ttl(1e300).unwrap(), 3_000_000_000);
        for wrong in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(ttl(wrong).is_err());
        }
    }

    #[test]
    fn a_file_turns_tls_on_and_contradictions_are_refused() {
        let text = || Some("-----BEGIN NOTHING-----".to_owned());
        let tls = Options { ssl: Some(true), ..Options::default() }.settings().unwrap();
        assert!(tls.tls.is_some());
        assert!(fatal(Options { ssl_ca_certs: text(), ..Options::default() }).contains("`ssl_ca_certs`"));
        let off = Some(false);
        assert!(fatal(Options { ssl_ca_certs: text(), ssl: off, ..Options::default() }).contains("`ssl`"));
        assert!(fatal(Options { ssl_certfile: text(), ..Options::default() }).contains("`ssl_keyfile`"));
        let none = Some("None".to_owned());
        assert!(Options { ssl_ca_certs: none, ..Options::default() }.settings().unwrap().tls.is_none());
    }
}
