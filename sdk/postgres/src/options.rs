//! The options of the manifests and what they mean for a connection.
//!
//! Invariants: `require` and more never send anything in plain text; a certificate that was to be checked is checked;
//! options that contradict each other are refused by name.

use std::sync::Arc;
use std::time::Duration;

use returner_sdk::given;
use returner_sdk::prelude::*;
use returner_sdk::tls::{self, Check, Names, rustls::ClientConfig};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

const LONGEST_CONNECT_SECONDS: i64 = 60;
const NAMES: Names = Names { ca: "sslrootcert", cert: "sslcert", key: "sslkey", crl: "sslcrl" };

/// The options as the host hands them over.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Name or address of the server.
    pub host: String,
    /// User to log in as.
    pub user: Option<String>,
    /// The user's password.
    #[serde(alias = "passwd")]
    pub pass: Option<String>,
    /// Database that holds the tables.
    pub db: String,
    /// TCP port of the server.
    pub port: u16,
    /// Seconds that connecting may take.
    pub connect_timeout: i64,
    /// How TLS is used, in libpq's words; none decides by the other `ssl` options.
    pub sslmode: Option<String>,
    /// PEM text: the certificate chain to log in with.
    pub sslcert: Option<String>,
    /// PEM text: the private key of `sslcert`.
    pub sslkey: Option<String>,
    /// PEM text: the authorities that may sign the server's certificate.
    pub sslrootcert: Option<String>,
    /// PEM text: certificates that were revoked.
    pub sslcrl: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        let salt = || "salt".to_owned();
        Self {
            host: "localhost".into(),
            user: Some(salt()),
            pass: Some(salt()),
            db: salt(),
            port: 5432,
            connect_timeout: 10,
            sslmode: None,
            sslcert: None,
            sslkey: None,
            sslrootcert: None,
            sslcrl: None,
        }
    }
}

/// The modes that libpq has, in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

const MODES: [(&str, Mode); 6] = [
    ("disable", Mode::Disable),
    ("allow", Mode::Allow),
    ("prefer", Mode::Prefer),
    ("require", Mode::Require),
    ("verify-ca", Mode::VerifyCa),
    ("verify-full", Mode::VerifyFull),
];

/// Options that were checked.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: String,
    pub(crate) db: String,
    /// What the option with the password is called.
    pub(crate) password_option: &'static str,
    pub(crate) connect_within: Duration,
    pub(crate) mode: Mode,
    pub(crate) tls: Arc<ClientConfig>,
    pass: Option<String>,
}

impl Options {
    /// Checks them. An error is fatal and names the option.
    pub(crate) fn settings(self, password_option: &'static str) -> Result<Settings> {
        let [mode, ca, cert, key, crl] =
            [self.sslmode, self.sslrootcert, self.sslcert, self.sslkey, self.sslcrl].map(given);
        let mode = match mode.as_deref() {
            // Whoever names an authority wants it to be asked.
            None if ca.is_some() || crl.is_some() => Mode::VerifyFull,
            None if cert.is_some() || key.is_some() => Mode::Require,
            None => Mode::Prefer,
            Some(name) => match MODES.into_iter().find(|(known, _)| *known == name) {
                Some((_, mode)) => mode,
                None => {
                    let known = MODES.map(|(name, _)| name).join("`, `");
                    return Err(Error::fatal(format!(
                        "the option `sslmode` is `{name}`; hint: it may be `{known}`"
                    )));
                }
            },
        };
        let any = ca.is_some() || cert.is_some() || key.is_some() || crl.is_some();
        if mode == Mode::Disable && any {
            return Err(Error::fatal(
                "the option `sslmode` is `disable`, but `sslrootcert`, `sslcert`, `sslkey` or `sslcrl` is set; \
                 hint: remove one or the other",
            ));
        }
        let check = match mode {
            Mode::VerifyFull => Check::Full,
            Mode::VerifyCa if ca.is_none() => {
                return Err(Error::fatal(
                    "the option `sslmode` is `verify-ca` without `sslrootcert`, so that any certificate of a public \
                     authority would do; hint: set `sslrootcert`, or `sslmode: verify-full`",
                ));
            }
            _ if ca.is_some() => Check::Authority,
            _ if crl.is_some() => {
                return Err(Error::fatal(
                    "the option `sslcrl` says nothing where certificates are not checked; hint: set `sslrootcert` too",
                ));
            }
            _ => Check::Nothing,
        };
        let tls = tls::Settings { check, ca, cert, key, crl }.client(&NAMES)?;
        if self.host.is_empty() || self.db.is_empty() {
            return Err(Error::fatal("the options `host` and `db` must not be empty"));
        }
        if self.host.starts_with('/') {
            return Err(Error::fatal(format!(
                "the option `host` is `{}`, but a plugin cannot reach a unix socket; hint: set it to `localhost` and let the \
                 server listen there",
                self.host
            )));
        }
        if mode == Mode::VerifyFull {
            tls::server_name(&self.host).map_err(|error| error.context("option `host`"))?;
        }
        let Some(user) = given(self.user) else {
            return Err(Error::fatal("the option `user` must not be empty"));
        };
        let seconds = match self.connect_timeout {
            ..=0 => LONGEST_CONNECT_SECONDS,
            seconds => seconds.min(LONGEST_CONNECT_SECONDS),
        };
        Ok(Settings {
            host: self.host,
            port: self.port,
            user,
            db: self.db,
            password_option,
            connect_within: Duration::from_secs(seconds.unsigned_abs()),
            mode,
            tls,
            pass: given(self.pass),
        })
    }
}

impl Settings {
    /// The driver's options, for one attempt.
    pub(crate) fn driver(&self, ssl_mode: SslMode) -> Config {
        let mut config = Config::new();
        config.user(&self.user).dbname(&self.db).application_name("returnerd").ssl_mode(ssl_mode);
        if let Some(pass) = &self.pass {
            config.password(pass);
        }
        config
    }

    /// The attempts of the mode: one, and for some modes another if that one is refused.
    pub(crate) fn attempts(&self) -> (SslMode, Option<SslMode>) {
        match self.mode {
            Mode::Disable => (SslMode::Disable, None),
            Mode::Allow => (SslMode::Disable, Some(SslMode::Require)),
            Mode::Prefer => (SslMode::Prefer, Some(SslMode::Disable)),
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => (SslMode::Require, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEM: &str = "-----BEGIN CERTIFICATE-----";

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn fatal(options: Options) -> String {
        match options.settings("pass").err() {
            Some(Error::Fatal(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn salts_defaults_hold_without_any_option() {
        let options: Options = returner_sdk::serde_json::from_str("{}").unwrap();
        let settings = options.settings("pass").unwrap();
        assert_eq!((settings.host.as_str(), settings.port, settings.mode), ("localhost", 5432, Mode::Prefer));
        assert_eq!((settings.user.as_str(), settings.pass.as_deref()), ("salt", Some("salt")));
        assert_eq!(settings.connect_within, Duration::from_secs(10));
        let options: Options = returner_sdk::serde_json::from_str(r#"{"passwd": "x"}"#).unwrap();
        assert_eq!(options.pass.as_deref(), Some("x"));
    }

    #[test]
    fn the_text_none_is_no_value() {
        let options = Options { pass: text("None"), sslmode: text("none"), ..Options::default() };
        let settings = options.settings("pass").unwrap();
        assert!(settings.mode == Mode::Prefer && settings.pass.is_none());
    }

    #[test]
    fn contradicting_options_are_refused_by_name() {
        let with = |mode: &str, ca: Option<&str>| Options {
            sslmode: text(mode),
            sslrootcert: ca.map(str::to_owned),
            ..Options::default()
        };
        assert!(fatal(with("disable", Some(PEM))).contains("`sslmode`"));
        assert!(fatal(with("verify-ca", None)).contains("`sslrootcert`"));
        assert!(fatal(with("on", None)).contains("`verify-full`"));
        assert!(fatal(with("require", Some("x"))).contains("`sslrootcert`"));
        assert!(fatal(Options { sslcert: text(PEM), ..Options::default() }).contains("`sslkey`"));
        assert!(fatal(Options { sslcrl: text(PEM), ..with("require", None) }).contains("`sslcrl`"));
        assert!(fatal(Options { host: "/run/postgresql".into(), ..Options::default() }).contains("`host`"));
        assert!(fatal(Options { user: text("none"), ..Options::default() }).contains("`user`"));
    }

    #[test]
    fn waiting_for_a_connection_is_bounded() {
        for (seconds, wanted) in [(0, 60), (-1, 60), (3, 3), (900, 60)] {
            let settings =
                Options { connect_timeout: seconds, ..Options::default() }.settings("pass").unwrap();
            assert_eq!(settings.connect_within.as_secs(), wanted);
        }
    }
}
