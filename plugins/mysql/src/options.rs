//! The options of the manifest and what they mean for a connection.
//!
//! As in Salt's own returner, the text `none` in an option is the same as leaving it out.

use mysql_async::{ClientIdentity, Opts, OptsBuilder, SslOpts};
use returner_sdk::given;
use returner_sdk::prelude::*;

/// The options as the host hands them over.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Name or address of the server.
    pub host: String,
    /// User to log in as.
    pub user: Option<String>,
    /// The user's password.
    pub pass: Option<String>,
    /// Database that holds the tables.
    pub db: String,
    /// TCP port of the server.
    pub port: u16,
    /// PEM text: the authorities that may sign the server's certificate.
    pub ssl_ca: Option<String>,
    /// PEM text: the certificate chain to log in with.
    pub ssl_cert: Option<String>,
    /// PEM text: the private key of `ssl_cert`.
    pub ssl_key: Option<String>,
    /// `disabled` or `verify_identity`; none decides by the other `ssl_` options.
    pub ssl_mode: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        let salt = || "salt".to_owned();
        Self {
            host: salt(),
            user: Some(salt()),
            pass: Some(salt()),
            db: salt(),
            port: 3306,
            ssl_ca: None,
            ssl_cert: None,
            ssl_key: None,
            ssl_mode: None,
        }
    }
}

/// Options that were checked.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: String,
    pub(crate) db: String,
    /// Whether the connection is encrypted and the server verified.
    pub(crate) tls: bool,
    pass: Option<String>,
    ssl: Option<SslOpts>,
}

impl Options {
    /// Checks them. An error is fatal and names the option.
    pub(crate) fn settings(self) -> Result<Settings> {
        let [ca, cert, key, mode] = [self.ssl_ca, self.ssl_cert, self.ssl_key, self.ssl_mode].map(given);
        let any = ca.is_some() || cert.is_some() || key.is_some();
        let tls = match mode.as_deref() {
            None => any,
            Some("verify_identity") => true,
            Some("disabled") if any => {
                return Err(Error::fatal(
                    "the option `ssl_mode` is `disabled`, but `ssl_ca`, `ssl_cert` or `ssl_key` is set; \
                     hint: remove one or the other",
                ));
            }
            Some("disabled") => false,
            Some(other) => {
                return Err(Error::fatal(format!(
                    "the option `ssl_mode` is `{other}`; hint: it may be `disabled` or `verify_identity`"
                )));
            }
        };
        for (option, text) in [("ssl_ca", &ca), ("ssl_cert", &cert), ("ssl_key", &key)] {
            if text.as_ref().is_some_and(|text| !text.contains("-----BEGIN ")) {
                return Err(Error::fatal(format!("the file of the option `{option}` holds no PEM text")));
            }
        }
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => {
                Some(ClientIdentity::new(cert.into_bytes().into(), key.into_bytes().into()))
            }
            (None, None) => None,
            _ => return Err(Error::fatal("the options `ssl_cert` and `ssl_key` need each other")),
        };
        let ssl = tls.then(|| {
            let ssl = SslOpts::default().with_client_identity(identity);
            match ca {
                Some(ca) => {
                    ssl.with_root_certs(vec![ca.into_bytes().into()]).with_disable_built_in_roots(true)
                }
                None => ssl,
            }
        });
        if self.host.is_empty() || self.db.is_empty() {
            return Err(Error::fatal("the options `host` and `db` must not be empty"));
        }
        Ok(Settings {
            host: self.host,
            port: self.port,
            user: given(self.user).unwrap_or_default(),
            db: self.db,
            tls,
            pass: given(self.pass),
            ssl,
        })
    }
}

impl Settings {
    /// The driver's options, for a server whose addresses are known.
    pub(crate) fn driver(&self, addresses: Vec<std::net::IpAddr>) -> Opts {
        OptsBuilder::default()
            .ip_or_hostname(self.host.clone())
            .resolved_ips(Some(addresses))
            .tcp_port(self.port)
            .user(Some(self.user.clone()))
            .pass(self.pass.clone())
            .db_name(Some(self.db.clone()))
            .prefer_socket(false)
            .ssl_opts(self.ssl.clone())
            .into()
    }
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
        assert_eq!((settings.host.as_str(), settings.port, settings.tls), ("salt", 3306, false));
        assert_eq!((settings.user.as_str(), settings.pass.as_deref()), ("salt", Some("salt")));
    }

    #[test]
    fn the_text_none_is_no_value() {
        let ca = Some("None".to_owned());
        let settings = Options { pass: ca.clone(), ssl_ca: ca, ..Options::default() }.settings().unwrap();
        assert!(!settings.tls && settings.pass.is_none());
    }

    #[test]
    fn contradicting_tls_options_are_refused_by_name() {
        let pem = Some("-----BEGIN CERTIFICATE-----".to_owned());
        let off = Some("disabled".to_owned());
        assert!(
            fatal(Options { ssl_ca: pem.clone(), ssl_mode: off, ..Options::default() })
                .contains("`ssl_mode`")
        );
        assert!(fatal(Options { ssl_cert: pem, ..Options::default() }).contains("`ssl_key`"));
        assert!(fatal(Options { ssl_ca: Some("x".into()), ..Options::default() }).contains("`ssl_ca`"));
        let mode = Some("prefer".to_owned());
        assert!(fatal(Options { ssl_mode: mode, ..Options::default() }).contains("verify_identity"));
    }
}
