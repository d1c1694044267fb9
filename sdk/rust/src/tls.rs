//! TLS for plugins that speak a protocol of their own over TCP.
//!
//! Invariants: nothing is sent in plain text once TLS was asked for; a certificate is checked unless the administrator
//! chose a mode that says otherwise; an error names the option it comes from.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
pub use tokio_rustls::client::TlsStream;
pub use {rustls, tokio_rustls};

use crate::{Error, Result};

/// What is checked of a server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Check {
    /// That a trusted authority signed it and that it is for the server's name.
    #[default]
    Full,
    /// That a trusted authority signed it, for whatever name.
    Authority,
    /// Nothing: the connection is encrypted, but whoever answers is taken for the server.
    Nothing,
}

/// How to speak TLS. The texts are PEM, as options of type `file` bring them.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// What is checked.
    pub check: Check,
    /// The trusted authorities; none for those of the public web.
    pub ca: Option<String>,
    /// A certificate chain to log in with; needs `key`.
    pub cert: Option<String>,
    /// The private key of `cert`.
    pub key: Option<String>,
    /// Revocation lists.
    pub crl: Option<String>,
}

/// What the options are called, for messages.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// The option behind [`Settings::ca`].
    pub ca: &'static str,
    /// The option behind [`Settings::cert`].
    pub cert: &'static str,
    /// The option behind [`Settings::key`].
    pub key: &'static str,
    /// The option behind [`Settings::crl`].
    pub crl: &'static str,
}

impl Settings {
    /// The client's configuration.
    ///
    /// # Errors
    /// [`Error::Fatal`] that names the option whose text cannot be used.
    pub fn client(&self, names: &Names) -> Result<Arc<ClientConfig>> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::fatal(format!("TLS cannot be used: {error}")))?;
        let verifier: Arc<dyn ServerCertVerifier> = match self.check {
            Check::Nothing => Arc::new(Lenient { chain: None, provider }),
            check => {
                let crls = match &self.crl {
                    Some(text) => pem::<CertificateRevocationListDer<'static>>(text, names.crl)?,
                    None => Vec::new(),
                };
                let chain = WebPkiServerVerifier::builder_with_provider(
                    self.roots(names)?.into(),
                    Arc::clone(&provider),
                )
                .with_crls(crls)
                .allow_unknown_revocation_status()
                .build()
                .map_err(|error| {
                    Error::fatal(format!(
                        "the certificates of the option `{}` cannot be used: {error}",
                        names.ca
                    ))
                })?;
                match check {
                    Check::Full => chain,
                    _ => Arc::new(Lenient { chain: Some(chain), provider }),
                }
            }
        };
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let config = match (&self.cert, &self.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| {
                    Error::fatal(format!(
                        "the file of the option `{}` holds no private key (PEM): {error}",
                        names.key
                    ))
                })?;
                builder.with_client_auth_cert(pem(cert, names.cert)?, key).map_err(|error| {
                    Error::fatal(format!(
                        "the options `{}` and `{}` do not fit: {error}",
                        names.cert, names.key
                    ))
                })?
            }
            _ => {
                return Err(Error::fatal(format!(
                    "the options `{}` and `{}` need each other",
                    names.cert, names.key
                )));
            }
        };
        Ok(Arc::new(config))
    }

    fn roots(&self, names: &Names) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(text) => {
                for certificate in pem::<CertificateDer<'static>>(text, names.ca)? {
                    roots.add(certificate).map_err(|error| {
                        Error::fatal(format!(
                            "a certificate of the option `{}` cannot be used: {error}",
                            names.ca
                        ))
                    })?;
                }
            }
        }
        Ok(roots)
    }
}

fn pem<T: PemObject>(text: &str, option: &str) -> Result<Vec<T>> {
    let items =
        T::pem_slice_iter(text.as_bytes()).collect::<std::result::Result<Vec<T>, _>>().map_err(|error| {
            Error::fatal(format!("the file of the option `{option}` is not proper PEM: {error}"))
        })?;
    if items.is_empty() {
        return Err(Error::fatal(format!(
            "the file of the option `{option}` holds nothing of its kind in PEM"
        )));
    }
    Ok(items)
}

/// Begins TLS on a connection to the server of this name (or address).
///
/// # Errors
/// [`Error::Retry`] with the reason if the server speaks no TLS or its certificate is not accepted: both can be mended there.
pub async fn connect(
    config: Arc<ClientConfig>,
    host: &str,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>> {
    let name = server_name(host)?;
    TlsConnector::from(config)
        .connect(name, stream)
        .await
        .map_err(|error| Error::retry(format!("no TLS connection with `{host}`: {error}")))
}

/// A host's name or address as a certificate has it.
pub fn server_name(host: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(host.to_owned()).map_err(|_| {
        Error::fatal(format!("`{host}` is neither a host's name nor an address, which TLS needs"))
    })
}

/// Checks the chain at most, never the name.
#[derive(Debug)]
struct Lenient {
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp, now) {
            // The name is looked at last, after the chain has been found good.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names = Names { ca: "the_ca", cert: "the_cert", key: "the_key", crl: "the_crl" };

    fn fatal(settings: &Settings) -> String {
        match settings.client(&NAMES) {
            Err(Error::Fatal(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_options_the_public_authorities_are_trusted() {
        assert!(Settings::default().client(&NAMES).is_ok());
    }

    #[test]
    fn an_unusable_file_is_refused_by_its_option() {
        let text = || Some("hello".to_owned());
        assert!(fatal(&Settings { ca: text(), ..Settings::default() }).contains("`the_ca`"));
        assert!(fatal(&Settings { crl: text(), ..Settings::default() }).contains("`the_crl`"));
        assert!(fatal(&Settings { cert: text(), ..Settings::default() }).contains("`the_key`"));
        assert!(fatal(&Settings { cert: text(), key: text(), ..Settings::default() }).contains("`the_key`"));
    }
}
