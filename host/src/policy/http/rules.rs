//! Which requests a sink may send.
//!
//! Invariants: scheme, host and port of a request are those of a grant; the `Host` header names the same server as the URI; an
//! authority with user information or an odd port is no target at all.

use std::net::IpAddr;

use http::header::HOST;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Method, Uri};

use crate::plugin::manifest::Host;
use crate::policy::egress::{canonical, may_lead_to};

/// A server as a browser would tell it from others: scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Whether the scheme is https.
    pub tls: bool,
    /// The host.
    pub host: Host,
    /// The port.
    pub port: u16,
}

impl Origin {
    /// The origin, with an IPv4 address inside an IPv6 one counted as what it is.
    pub fn new(tls: bool, host: &Host, port: u16) -> Self {
        let host = match host {
            Host::Address(ip) => Host::Address(canonical(*ip)),
            Host::Name(name) => Host::Name(name.clone()),
        };
        Self { tls, host, port }
    }

    /// The origin of a whole URI.
    pub fn of(uri: &Uri) -> Option<Self> {
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return None,
        };
        Self::from_authority(tls, uri.authority()?)
    }

    fn from_authority(tls: bool, authority: &Authority) -> Option<Self> {
        let host = authority.host();
        // What is before an `@` would be shown as the host by a careless reader.
        let port = match authority.as_str().strip_prefix(host)? {
            "" => {
                if tls {
                    443
                } else {
                    80
                }
            }
            rest => {
                let digits =
                    rest.strip_prefix(':').filter(|port| port.bytes().all(|b| b.is_ascii_digit()))?;
                digits.parse().ok().filter(|port| *port != 0)?
            }
        };
        let host = match host.strip_prefix('[') {
            Some(rest) => Host::Address(IpAddr::V6(rest.strip_suffix(']')?.parse().ok()?)),
            None => match host.parse() {
                Ok(ip) => Host::Address(IpAddr::V4(ip)),
                Err(_) => Host::Name(host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()),
            },
        };
        Some(Self::new(tls, &host, port))
    }

    /// The host as text: a name, or an address without brackets.
    pub fn host_text(&self) -> String {
        match &self.host {
            Host::Name(name) => name.clone(),
            Host::Address(ip) => ip.to_string(),
        }
    }
}

/// As in a grant: `https://example.com:443`.
impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        match &self.host {
            Host::Address(IpAddr::V6(ip)) => write!(f, "{scheme}://[{ip}]:{}", self.port),
            _ => write!(f, "{scheme}://{}:{}", self.host_text(), self.port),
        }
    }
}

/// Why a request is not sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has no proper target.
    Uri,
    /// Its `Host` header does not name its target.
    HostHeader(Origin),
    /// It wants a tunnel.
    Method,
    /// Its target is not granted.
    NotGranted(Origin),
}

/// What one sink may request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    granted: Vec<Origin>,
}

impl Rules {
    /// Rules that grant these.
    pub fn new(granted: Vec<Origin>) -> Self {
        Self { granted }
    }

    /// The target of a request, or why it is not sent.
    pub fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<Origin, Refusal> {
        let target = Origin::of(uri).ok_or(Refusal::Uri)?;
        if *method == Method::CONNECT {
            return Err(Refusal::Method);
        }
        let mut hosts = headers.get_all(HOST).iter();
        if let Some(host) = hosts.next() {
            let named = Authority::try_from(host.as_bytes())
                .ok()
                .and_then(|authority| Origin::from_authority(target.tls, &authority));
            if named.as_ref() != Some(&target) || hosts.next().is_some() {
                return Err(Refusal::HostHeader(target));
            }
        }
        if self.granted.contains(&target) { Ok(target) } else { Err(Refusal::NotGranted(target)) }
    }

    /// Whether a granted target may be reached at an address that its name has.
    pub fn reaches(&self, target: &Origin, ip: IpAddr) -> bool {
        let ip = canonical(ip);
        let by_address = Origin { host: Host::Address(ip), ..target.clone() };
        self.granted.contains(&by_address)
            || matches!(&target.host, Host::Name(name) if may_lead_to(name, ip))
    }
}

/// The words for the log and `status`, which follow "the plugin wants".
pub fn refusal_text(refusal: &Refusal, plugin: &str) -> String {
    match refusal {
        Refusal::Uri => {
            "to send an HTTP request without a proper `http://` or `https://` host and port".into()
        }
        Refusal::Method => "an HTTP tunnel (`CONNECT`); plugins cannot have one".into(),
        Refusal::HostHeader(target) => {
            format!("to send `{target}` a `Host` header that names another server; nothing would allow it")
        }
        Refusal::NotGranted(target) => format!("to reach `{target}`; {}", hint(target, plugin)),
    }
}

/// The words for a granted name that leads to an address which has to be named.
pub fn address_text(target: &Origin, ip: IpAddr, plugin: &str) -> String {
    let by_address = Origin { host: Host::Address(canonical(ip)), ..target.clone() };
    format!("to reach `{target}`, whose name leads to `{ip}`; {}", hint(&by_address, plugin))
}

fn hint(origin: &Origin, plugin: &str) -> String {
    format!("hint: `allow = [\"{origin}\"]` in `[plugin.{plugin}]` of returnerd.toml would allow it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::manifest::Wish;
    use crate::policy::Policy;

    fn rules(grants: &[&str]) -> Rules {
        let grants: Vec<Wish> = grants.iter().map(|text| text.parse().unwrap()).collect();
        Rules::new(Policy { grants, ..Policy::default() }.web())
    }

    fn check(rules: &Rules, uri: &str, host: &[&str]) -> Result<Origin, Refusal> {
        let mut headers = HeaderMap::new();
        for value in host {
            headers.append(HOST, value.parse().unwrap());
        }
        rules.check(&Method::POST, &uri.parse().unwrap(), &headers)
    }

    #[test]
    fn scheme_host_and_port_must_be_granted() {
        let rules = rules(&["https://api.example.com", "http://10.0.0.1:8086", "https://[2001:db8::1]:9200"]);
        for good in [
            "https://api.example.com/x?y",
            "https://API.example.com.:443/",
            "http://10.0.0.1:8086/",
            "http://[::ffff:10.0.0.1]:8086/",
            "https://[2001:DB8:0::1]:9200/",
        ] {
            assert!(check(&rules, good, &[]).is_ok(), "{good}");
        }
        for bad in [
            "http://api.example.com/",
            "https://api.example.com:8443/",
            "https://example.com/",
            "https://api.example.com.evil.example/",
            "http://10.0.0.1/",
            "http://10.0.0.2:8086/",
            "https://10.0.0.1:8086/",
        ] {
            assert!(matches!(check(&rules, bad, &[]), Err(Refusal::NotGranted(_))), "{bad}");
        }
    }

    #[test]
    fn an_authority_that_is_read_in_two_ways_is_no_target() {
        let rules = rules(&["https://api.example.com", "https://evil.example"]);
        for odd in [
            "https://api.example.com@evil.example/",
            "https://user:secret@api.example.com/",
            "https://api.example.com:0/",
            "ftp://api.example.com/",
            "/only/a/path",
        ] {
            assert_eq!(check(&rules, odd, &[]), Err(Refusal::Uri), "{odd}");
        }
    }

    #[test]
    fn the_host_header_must_name_the_target_once() {
        let rules = rules(&["http://a.example:8080", "http://b.example"]);
        assert!(check(&rules, "http://a.example:8080/", &["A.example:8080"]).is_ok());
        assert!(check(&rules, "http://b.example/", &["b.example:80"]).is_ok());
        for bad in [
            &["b.example"][..],
            &["a.example"],
            &["a.example:8080", "a.example:8080"],
            &[""],
            &["a.example:8080/x"],
        ] {
            let result = check(&rules, "http://a.example:8080/", bad);
            assert!(matches!(result, Err(Refusal::HostHeader(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_tunnel_is_refused_even_to_what_is_granted() {
        let rules = rules(&["http://a.example"]);
        let result = rules.check(&Method::CONNECT, &"http://a.example/".parse().unwrap(), &HeaderMap::new());
        assert_eq!(result, Err(Refusal::Method));
    }

    #[test]
    fn a_name_leads_to_special_addresses_only_if_they_are_named() {
        let rules = rules(&["http://a.example", "http://localhost", "http://127.0.0.2"]);
        let target = |uri: &str| Origin::of(&uri.parse().unwrap()).unwrap();
        let name = target("http://a.example/");
        assert!(rules.reaches(&name, "192.0.2.1".parse().unwrap()));
        for special in
            ["127.0.0.1", "169.254.169.254", "::1", "0.0.0.0", "fe80::1", "::ffff:127.0.0.1", "224.0.0.1"]
        {
            assert!(!rules.reaches(&name, special.parse().unwrap()), "{special}");
        }
        assert!(rules.reaches(&name, "127.0.0.2".parse().unwrap()));
        assert!(rules.reaches(&target("http://localhost/"), "::1".parse().unwrap()));
        assert!(!rules.reaches(&target("http://localhost/"), "169.254.169.254".parse().unwrap()));
    }

    #[test]
    fn a_refusal_names_the_line_that_would_allow_it() {
        let rules = rules(&[]);
        let refusal = check(&rules, "https://[2001:db8::1]/", &[]).unwrap_err();
        let text = refusal_text(&refusal, "p");
        assert!(text.contains("`allow = [\"https://[2001:db8::1]:443\"]` in `[plugin.p]`"), "{text}");
    }
}
