//! The parts of a URL that a request needs.

/// A URL taken apart. Its host and path are checked by who sends the request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) tls: bool,
    /// Host and port as they were written, without a login.
    pub(super) authority: String,
    pub(super) path_and_query: String,
    pub(super) login: Option<(String, String)>,
}

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or_default();
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            // The value may hold a token, so it is not shown.
            _ => return Err("the URL does not begin with `http://` or `https://`".into()),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (login, authority) = match authority.rsplit_once('@') {
            Some((login, authority)) => (Some(login), authority),
            None => (None, authority),
        };
        if authority.is_empty() {
            return Err("the URL names no host".into());
        }
        let path_and_query = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let login = login.map(|login| {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            (decode(user), decode(password))
        });
        Ok(Self { tls, authority: authority.to_owned(), path_and_query, login })
    }

    /// Scheme, host and port, for messages and grants.
    pub(super) fn origin(&self) -> String {
        let (scheme, usual) = if self.tls { ("https", 443) } else { ("http", 80) };
        let has_port = self.authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        if has_port {
            format!("{scheme}://{}", self.authority)
        } else {
            format!("{scheme}://{}:{usual}", self.authority)
        }
    }
}

/// Undoes `%41`; what is not like that stays.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = |at: usize| after.get(at).and_then(|b| char::from(*b).to_digit(16));
        if let (b'%', Some(high), Some(low)) = (byte, hex(0), hex(1)) {
            bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
            rest = after.get(2..).unwrap_or_default();
        } else {
            bytes.push(byte);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let url = Url::parse("https://us%40er:p:w@example.com:8443/a/b?c=d#e").unwrap();
        assert!(url.tls);
        assert_eq!(url.authority, "example.com:8443");
        assert_eq!(url.path_and_query, "/a/b?c=d");
        assert_eq!(url.login, Some(("us@er".into(), "p:w".into())));
        assert_eq!(url.origin(), "https://example.com:8443");
        let url = Url::parse("http://[::1]?q").unwrap();
        assert_eq!((url.path_and_query.as_str(), url.origin().as_str()), ("/?q", "http://[::1]:80"));
        for bad in ["example.com", "ftp://example.com", "http://", "http:///path", ""] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
    }
}
