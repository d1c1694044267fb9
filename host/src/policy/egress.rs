//! Which addresses a sink may connect to.
//!
//! Invariants: an address is reachable only if it was granted as such, or if the host itself looked it up for this sink under
//! a granted name; special ranges (loopback, link-local with the clouds' metadata service, multicast, unspecified) must be
//! named, so a granted name that suddenly resolves to one of them leads nowhere.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use wasmtime_wasi::sockets::SocketAddrUse;

/// A protocol of the transport layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A host and port that a sink may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The protocol.
    pub protocol: Protocol,
    /// A name in lower case or an address.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Endpoint {
    fn address(&self) -> Option<IpAddr> {
        self.host.trim_start_matches('[').trim_end_matches(']').parse().ok().map(canonical)
    }
}

/// The check of one sink, shared by its instances' sockets.
#[derive(Clone)]
pub struct Egress {
    inner: Arc<Inner>,
}

struct Inner {
    plugin: String,
    endpoints: Vec<Endpoint>,
    observe: bool,
    /// Addresses that the host looked up, each with the granted names it stands for.
    resolved: RwLock<HashMap<IpAddr, BTreeSet<String>>>,
    refusals: Mutex<Refusals>,
}

#[derive(Default)]
struct Refusals {
    count: u64,
    last: Option<String>,
    logged: HashMap<String, Instant>,
}

/// The same refusal is logged at most this often.
const LOG_EVERY: Duration = Duration::from_secs(60);

impl Egress {
    /// A check for a sink of `plugin`.
    pub fn new(plugin: &str, endpoints: Vec<Endpoint>, observe: bool) -> Self {
        Self {
            inner: Arc::new(Inner {
                plugin: plugin.to_owned(),
                endpoints,
                observe,
                resolved: RwLock::default(),
                refusals: Mutex::default(),
            }),
        }
    }

    /// Whether a socket may be used so.
    pub fn check(&self, address: SocketAddr, usage: SocketAddrUse) -> bool {
        let protocol = match usage {
            // wasmtime asks for the implicit bind of every connect; anything but "any address, any port" would be a server.
            SocketAddrUse::TcpBind | SocketAddrUse::UdpBind
                if address.ip().is_unspecified() && address.port() == 0 =>
            {
                return true;
            }
            SocketAddrUse::TcpConnect => Protocol::Tcp,
            SocketAddrUse::UdpSend | SocketAddrUse::UdpReceive => Protocol::Udp,
            _ => return self.refuse(&format!("to {usage:?} on `{address}`; plugins cannot serve"), false),
        };
        let ip = canonical(address.ip());
        if self.allows(protocol, ip, address.port()) {
            return true;
        }
        let scheme = if protocol == Protocol::Tcp { "tcp" } else { "udp" };
        let special = if is_special(ip) {
            ", an address of a special range (loopback, link-local and cloud metadata, multicast, unspecified) that must itself be named"
        } else {
            ""
        };
        self.refuse(
            &format!(
                "to reach `{scheme}://{address}`{special}; hint: `allow = [\"{scheme}://{address}\"]` in `[plugin.{}]` of returnerd.toml would allow it",
                self.inner.plugin
            ),
            self.inner.observe,
        )
    }

    fn allows(&self, protocol: Protocol, ip: IpAddr, port: u16) -> bool {
        let resolved = self.inner.resolved.read().unwrap_or_else(PoisonError::into_inner);
        let names = resolved.get(&ip);
        self.inner.endpoints.iter().filter(|e| e.protocol == protocol && e.port == port).any(|endpoint| {
            match endpoint.address() {
                Some(address) => address == ip,
                None => {
                    names.is_some_and(|names| names.contains(&endpoint.host))
                        && may_lead_to(&endpoint.host, ip)
                }
            }
        })
    }

    /// Whether the host may look a name up for the plugin.
    pub fn may_resolve(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        if self.inner.endpoints.iter().any(|endpoint| endpoint.host == name) {
            return true;
        }
        self.refuse(
            &format!(
                "to look up `{name}`; hint: `allow = [\"tcp://{name}:PORT\"]` in `[plugin.{}]` of returnerd.toml would allow it",
                self.inner.plugin
            ),
            self.inner.observe,
        )
    }

    /// Notes what a granted name resolved to, so that these addresses can be connected to.
    pub fn resolved(&self, name: &str, addresses: &[IpAddr]) {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let mut resolved = self.inner.resolved.write().unwrap_or_else(PoisonError::into_inner);
        // An answer replaces the one before: an address that a name no longer has is no longer reachable by it.
        for names in resolved.values_mut() {
            names.remove(&name);
        }
        resolved.retain(|_, names| !names.is_empty());
        for address in addresses {
            resolved.entry(canonical(*address)).or_default().insert(name.clone());
        }
    }

    /// How often something was refused, and what last.
    pub fn refusals(&self) -> (u64, Option<String>) {
        let refusals = self.inner.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        (refusals.count, refusals.last.clone())
    }

    /// The plugin it is for.
    pub(super) fn plugin(&self) -> &str {
        &self.inner.plugin
    }

    /// Whether refusals are only logged.
    pub(super) fn observes(&self) -> bool {
        self.inner.observe
    }

    /// Counts and logs something that is not granted; gives back whether it passes all the same.
    pub(super) fn refuse(&self, what: &str, pass: bool) -> bool {
        let mut refusals = self.inner.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.count += 1;
        refusals.last = Some(format!("not granted: {what}"));
        let now = Instant::now();
        refusals.logged.retain(|_, at| now.duration_since(*at) < LOG_EVERY);
        if refusals.logged.len() < 100 && refusals.logged.insert(what.to_owned(), now).is_none() {
            let plugin = &self.inner.plugin;
            if pass {
                tracing::warn!(plugin, "observed, would be refused: the plugin wants {what}");
            } else {
                tracing::warn!(plugin, "refused: the plugin wants {what}");
            }
        }
        pass
    }
}

/// An IPv4 address inside an IPv6 one counts as what it is.
pub(super) fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// Whether a granted name may lead to an address: to none of the special ranges, but `localhost` to loopback.
pub(super) fn may_lead_to(name: &str, ip: IpAddr) -> bool {
    !is_special(ip) || (name == "localhost" && ip.is_loopback())
}

/// An IPv4 address inside an IPv6 one that a router on the way may unpack: NAT64's and 6to4's.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let octets = ip.octets();
    let at = match octets {
        [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, ..] => 12,
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ..] => 12,
        [0x20, 0x02, ..] => 2,
        _ => return None,
    };
    Some(Ipv4Addr::new(octets[at], octets[at + 1], octets[at + 2], octets[at + 3]))
}

/// Ranges that have to be named: loopback, link-local, multicast, broadcast, unspecified and "this network".
fn is_special(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            ip.is_loopback()
                || ip.is_link_local()
                || ip.is_multicast()
                || ip.is_broadcast()
                || ip.is_unspecified()
                || ip.octets()[0] == 0
                // Another large cloud's metadata service.
                || ip == Ipv4Addr::new(100, 100, 100, 200)
        }
        IpAddr::V6(ip) => {
            ip.is_loopback()
                || ip.is_unspecified()
                || ip.is_multicast()
                || ip.is_unicast_link_local()
                || embedded(ip).is_some_and(|ip| is_special(ip.into()))
                // The metadata service of one large cloud.
                || ip == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn egress(grants: &[(&str, u16)]) -> Egress {
        let endpoints = grants
            .iter()
            .map(|(host, port)| Endpoint { protocol: Protocol::Tcp, host: (*host).to_owned(), port: *port })
            .collect();
        Egress::new("t", endpoints, false)
    }

    fn connects(egress: &Egress, address: &str) -> bool {
        egress.check(address.parse().unwrap(), SocketAddrUse::TcpConnect)
    }

    #[test]
    fn only_the_implicit_bind_of_a_connect_passes() {
        let egress = egress(&[("10.0.0.1", 3306)]);
        assert!(egress.check("0.0.0.0:0".parse().unwrap(), SocketAddrUse::TcpBind));
        assert!(!egress.check("0.0.0.0:80".parse().unwrap(), SocketAddrUse::TcpBind));
        assert!(!egress.check("0.0.0.0:0".parse().unwrap(), SocketAddrUse::TcpListen));
        assert!(!egress.check("127.0.0.1:0".parse().unwrap(), SocketAddrUse::UdpBind));
    }

    #[test]
    fn an_address_must_be_granted_with_its_port() {
        let egress = egress(&[("10.0.0.1", 3306), ("[fd00::1]", 1)]);
        assert!(connects(&egress, "10.0.0.1:3306"));
        assert!(connects(&egress, "[::ffff:10.0.0.1]:3306"));
        assert!(connects(&egress, "[fd00::1]:1"));
        assert!(!connects(&egress, "10.0.0.1:3307"));
        assert!(!connects(&egress, "10.0.0.2:3306"));
        assert!(egress.refusals().1.unwrap().contains("allow = [\"tcp://10.0.0.2:3306\"]"));
    }

    #[test]
    fn a_name_reaches_only_what_the_host_looked_up() {
        let egress = egress(&[("db.example.com", 3306)]);
        assert!(!connects(&egress, "192.0.2.7:3306"));
        egress.resolved("DB.example.com.", &["192.0.2.7".parse().unwrap()]);
        assert!(connects(&egress, "192.0.2.7:3306"));
        egress.resolved("db.example.com", &["192.0.2.8".parse().unwrap()]);
        assert!(!connects(&egress, "192.0.2.7:3306"));
    }

    #[test]
    fn a_name_does_not_lead_to_special_ranges() {
        let egress = egress(&[("db.example.com", 80), ("localhost", 80)]);
        let bad = [
            "127.0.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "fd00:ec2::254",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::169.254.169.254",
            "2002:7f00:1::",
        ];
        let addresses: Vec<IpAddr> = bad.iter().map(|a| a.parse().unwrap()).collect();
        egress.resolved("db.example.com", &addresses);
        for address in &addresses {
            assert!(!egress.check(SocketAddr::new(*address, 80), SocketAddrUse::TcpConnect), "{address}");
        }
        assert!(egress.refusals().1.unwrap().contains("special range"));
        egress.resolved("localhost", &["127.0.0.1".parse().unwrap()]);
        assert!(connects(&egress, "127.0.0.1:80"));
        egress.resolved("localhost", &["169.254.169.254".parse().unwrap()]);
        assert!(!connects(&egress, "169.254.169.254:80"), "localhost stands for loopback only");
    }

    #[test]
    fn a_special_address_that_is_itself_named_is_reached() {
        let egress = egress(&[("127.0.0.1", 80), ("169.254.169.254", 80)]);
        for address in ["127.0.0.1:80", "[::ffff:127.0.0.1]:80", "169.254.169.254:80"] {
            assert!(connects(&egress, address), "{address}");
        }
        assert!(!connects(&egress, "127.0.0.2:80"));
    }

    #[test]
    fn an_observed_refusal_passes_and_is_counted_but_a_server_is_never_allowed() {
        let egress = Egress::new("t", Vec::new(), true);
        assert!(connects(&egress, "192.0.2.1:80"));
        assert!(egress.may_resolve("any.example.com"));
        assert_eq!(egress.refusals().0, 2);
        assert!(!egress.check("0.0.0.0:80".parse().unwrap(), SocketAddrUse::TcpListen));
    }

    #[test]
    fn only_granted_names_are_looked_up() {
        let egress = egress(&[("db.example.com", 80)]);
        assert!(egress.may_resolve("db.EXAMPLE.com."));
        assert!(!egress.may_resolve("evil.example.com"));
    }
}
