//! What `[plugin.NAME.http]` says, ready for use: TLS with its authorities and certificate, the proxy, the sizes.
//!
//! Invariants: a file that is named must be readable and hold what it should; neither a key nor a proxy's password is ever printed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Uri;
use http::header::HeaderValue;
use hyper_util::client::proxy::matcher::Matcher;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::config;

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A file.
    #[error("cannot read `{}`, which `{key}` in `[plugin.{plugin}.http]` names", path.display())]
    Read {
        /// The plugin.
        plugin: String,
        /// The setting.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// What is in a file, or the value of a setting.
    #[error("`{key}` in `[plugin.{plugin}.http]`: {why}")]
    Value {
        /// The plugin.
        plugin: String,
        /// The setting.
        key: &'static str,
        /// What is wrong.
        why: String,
    },
}

/// The settings with the contents of their files: equal settings make equal clients.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    plugin: String,
    config: config::Http,
    ca: Option<Vec<u8>>,
    cert: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
}

/// The word for the proxy of the daemon's environment.
const ENVIRONMENT: &str = "environment";

impl Settings {
    /// Reads the files.
    pub fn load(plugin: &str, config: &config::Http) -> Result<Self, SettingsError> {
        let read = |key: &'static str, path: &Option<PathBuf>| {
            let read = |path: &Path| {
                std::fs::read(path).map_err(|source| SettingsError::Read {
                    plugin: plugin.to_owned(),
                    key,
                    path: path.to_owned(),
                    source,
                })
            };
            path.as_deref().map(read).transpose()
        };
        Ok(Self {
            plugin: plugin.to_owned(),
            ca: read("ca_file", &config.ca_file)?,
            cert: read("client_cert", &config.client_cert)?,
            key: read("client_key", &config.client_key)?,
            config: config.clone(),
        })
    }

    /// The name of the plugin.
    pub fn plugin(&self) -> &str {
        &self.plugin
    }

    /// The largest request and response body.
    pub fn sizes(&self) -> (u64, u64) {
        (self.config.max_request, self.config.max_response)
    }

    /// The side of TLS that connects.
    pub fn tls(&self) -> Result<Arc<ClientConfig>, SettingsError> {
        let mut roots = RootCertStore::empty();
        if self.config.web_roots {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        if let Some(pem) = &self.ca {
            for certificate in self.certificates("ca_file", pem)? {
                roots.add(certificate).map_err(|error| {
                    self.fault("ca_file", format!("a certificate in it cannot be used: {error}"))
                })?;
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| self.fault("ca_file", error.to_string()))?
            .with_root_certificates(roots);
        let mut config = match (&self.cert, &self.key) {
            (Some(cert), key) => {
                let chain = self.certificates("client_cert", cert)?;
                let place = if key.is_some() { "client_key" } else { "client_cert" };
                let key = PrivateKeyDer::from_pem_slice(key.as_ref().unwrap_or(cert))
                    .map_err(|_| self.fault(place, "the file has no private key in PEM"))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| {
                    self.fault(place, format!("the certificate and its key cannot be used: {error}"))
                })?
            }
            (None, Some(_)) => return Err(self.fault("client_key", "it needs `client_cert` beside it")),
            (None, None) => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// The proxy.
    pub fn proxy(&self) -> Result<Proxy, SettingsError> {
        let matcher = match self.config.proxy.as_deref() {
            None => return Ok(Proxy(None)),
            Some(ENVIRONMENT) => Matcher::from_env(),
            Some(url) => {
                let matcher = Matcher::builder().all(url.to_owned()).build();
                let proper = url.starts_with("http://")
                    && matcher.intercept(&Uri::from_static("http://example.com/")).is_some();
                if !proper {
                    // The value may hold a password, so it is not shown.
                    let why =
                        "the value is neither like \"http://proxy.example.com:3128\" nor \"environment\"";
                    return Err(self.fault("proxy", why));
                }
                matcher
            }
        };
        Ok(Proxy(Some(Arc::new(matcher))))
    }

    fn certificates(
        &self,
        key: &'static str,
        pem: &[u8],
    ) -> Result<Vec<CertificateDer<'static>>, SettingsError> {
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .map_err(|error| self.fault(key, format!("the file is not PEM: {error}")))?;
        if certificates.is_empty() {
            return Err(self.fault(key, "the file has no certificate in PEM"));
        }
        Ok(certificates)
    }

    fn fault(&self, key: &'static str, why: impl Into<String>) -> SettingsError {
        SettingsError::Value { plugin: self.plugin.clone(), key, why: why.into() }
    }
}

/// Says which requests go through a proxy.
#[derive(Clone)]
pub struct Proxy(Option<Arc<Matcher>>);

/// The proxy of one request.
pub struct Via {
    /// Where it is.
    pub uri: Uri,
    /// What it is shown.
    pub auth: Option<HeaderValue>,
}

impl Proxy {
    /// The proxy for a URI; none connects directly.
    pub fn of(&self, uri: &Uri) -> Option<Via> {
        let found = self.0.as_ref()?.intercept(uri)?;
        Some(Via { uri: found.uri().clone(), auth: found.basic_auth().cloned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(config: config::Http) -> Settings {
        Settings::load("p", &config).unwrap()
    }

    fn proxied(url: &str) -> Result<Proxy, SettingsError> {
        load(config::Http { proxy: Some(url.to_owned()), ..config::Http::default() }).proxy()
    }

    #[test]
    fn a_proxy_takes_both_schemes_and_its_password_is_apart() {
        let proxy = proxied("http://user:pass@proxy.example.com:3128").unwrap();
        for uri in ["http://a.example/", "https://a.example/"] {
            let via = proxy.of(&Uri::from_static(uri)).unwrap();
            assert_eq!(via.uri.authority().unwrap().as_str(), "proxy.example.com:3128");
            assert_eq!(via.auth.unwrap(), "Basic dXNlcjpwYXNz");
        }
        assert!(load(config::Http::default()).proxy().unwrap().of(&Uri::from_static("http://a/")).is_none());
    }

    #[test]
    fn an_odd_proxy_is_refused_without_showing_it() {
        for url in ["socks5://user:secret@p:1080", "https://user:secret@p", "proxy:3128 secret", ""] {
            let error = proxied(url).err().unwrap().to_string();
            assert!(error.contains("`proxy` in `[plugin.p.http]`") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_missing_or_holds_something_else_is_named() {
        let missing = config::Http { ca_file: Some("/does/not/exist".into()), ..config::Http::default() };
        let error = Settings::load("p", &missing).err().unwrap().to_string();
        assert!(error.contains("`/does/not/exist`") && error.contains("`ca_file`"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("empty.pem");
        std::fs::write(&file, "nothing").unwrap();
        let config = config::Http { ca_file: Some(file.clone()), ..config::Http::default() };
        assert!(load(config).tls().unwrap_err().to_string().contains("has no certificate"));
        let config = config::Http { client_key: Some(file), ..config::Http::default() };
        assert!(load(config).tls().unwrap_err().to_string().contains("`client_cert`"));
    }
}
