//! What went wrong with a request: for the log in full, for the plugin as one of WASI HTTP's codes.

use std::error::Error as StdError;
use std::io;
use std::net::IpAddr;

use wasmtime_wasi_http::Error;

use super::rules::Origin;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The target is not one.
    #[error("the URI has no host")]
    Target,
    /// The name led to an address that is not granted.
    #[error("the name leads to `{address}`, which is not granted")]
    Refused {
        /// The target.
        target: Origin,
        /// One of its addresses.
        address: IpAddr,
    },
    /// The name has no address.
    #[error("cannot look the name up")]
    Name(#[source] io::Error),
    /// No address answered.
    #[error("cannot connect")]
    Tcp(#[source] io::Error),
    /// The proxy gave no way.
    #[error("the proxy gave no connection")]
    Proxy(#[source] Box<dyn StdError + Send + Sync>),
    /// A proxy of a kind that is not supported.
    #[error("the environment names a proxy that is not of the kind `http://`")]
    ProxyKind,
    /// TLS.
    #[error("no TLS connection")]
    Tls(#[source] io::Error),
    /// It took too long.
    #[error("no connection within the time limit")]
    Timeout,
}

/// The error of WASI HTTP that fits best.
pub fn to_wasi(error: &(dyn StdError + 'static)) -> Error {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(known) = known(error) {
            return known;
        }
        cause = error.source();
    }
    Error::HttpProtocolError
}

fn known(error: &(dyn StdError + 'static)) -> Option<Error> {
    if let Some(error) = error.downcast_ref::<ConnectError>() {
        return Some(match error {
            ConnectError::Target => Error::HttpRequestUriInvalid,
            ConnectError::Refused { .. } => Error::HttpRequestDenied,
            ConnectError::Name(_) => Error::DnsError { rcode: None, info_code: None },
            ConnectError::Tcp(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Error::ConnectionRefused
            }
            ConnectError::Tcp(_) => Error::DestinationUnavailable,
            ConnectError::Proxy(_) => Error::DestinationUnavailable,
            ConnectError::ProxyKind => Error::ConfigurationError,
            ConnectError::Tls(error) => tls(error).unwrap_or(Error::TlsProtocolError),
            ConnectError::Timeout => Error::ConnectionTimeout,
        });
    }
    // What the body of the request failed with.
    match error.downcast_ref::<Error>() {
        Some(Error::HttpRequestBodySize(size)) => return Some(Error::HttpRequestBodySize(*size)),
        Some(_) => return Some(Error::HttpProtocolError),
        None => {}
    }
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        if error.is_parse_too_large() {
            return Some(Error::HttpResponseHeaderSectionSize(None));
        }
        if error.is_timeout() {
            return Some(Error::HttpResponseTimeout);
        }
        if error.is_incomplete_message() {
            return Some(Error::HttpResponseIncomplete);
        }
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return Some(tls(error).unwrap_or(Error::ConnectionTerminated));
    }
    None
}

fn tls(error: &io::Error) -> Option<Error> {
    Some(match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(_) => Error::TlsCertificateError,
        rustls::Error::AlertReceived(alert) => Error::TlsAlertReceived {
            alert_id: Some(u8::from(*alert)),
            alert_message: Some(format!("{alert:?}")),
        },
        _ => Error::TlsProtocolError,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls_error(error: rustls::Error) -> ConnectError {
        ConnectError::Tls(io::Error::other(error))
    }

    #[test]
    fn each_cause_has_its_code() {
        let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let wrapped = ConnectError::Proxy(Box::new(tls_error(unknown.clone())));
        assert!(matches!(to_wasi(&wrapped), Error::DestinationUnavailable));
        assert!(matches!(to_wasi(&tls_error(unknown)), Error::TlsCertificateError));
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
        assert!(matches!(to_wasi(&tls_error(alert)), Error::TlsAlertReceived { alert_id: Some(116), .. }));
        let refused = ConnectError::Tcp(io::Error::from(io::ErrorKind::ConnectionRefused));
        assert!(matches!(to_wasi(&refused), Error::ConnectionRefused));
        assert!(matches!(to_wasi(&Error::HttpRequestBodySize(Some(5))), Error::HttpRequestBodySize(Some(5))));
    }
}
