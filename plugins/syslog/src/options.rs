//! The options of the manifest and what they mean together.

use std::sync::Arc;

use returner_sdk::given;
use returner_sdk::prelude::*;
use returner_sdk::tls::{self, Check, Names, rustls::ClientConfig};

use crate::names::{self, Flag};

/// RFC 5424: every receiver takes so much.
const LEAST_MAX: u64 = 480;
/// What a UDP packet can carry over IPv4.
const MOST_UDP: u64 = 65_507;
/// The host's own limit for unix sockets.
const MOST_LOCAL: u64 = 256 << 10;
/// Several times a full batch.
const MOST_STREAM: u64 = 16 << 20;

/// The options as the host hands them over.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Severity.
    pub level: String,
    /// Facility.
    pub facility: String,
    /// Name of the program.
    pub tag: Option<String>,
    /// Names of syslog(3)'s options.
    pub options: Vec<String>,
    /// `local`, `udp`, `tcp` or `tls`.
    pub transport: String,
    /// Unix socket of this machine's log.
    pub socket: String,
    /// Name or address of the server.
    pub server: Option<String>,
    /// Port of the server.
    pub port: Option<u16>,
    /// Host name in messages to a server.
    pub hostname: Option<String>,
    /// `octet-counting` or `newline`.
    pub framing: String,
    /// Longest message in bytes.
    pub max_message: Option<u64>,
    /// PEM text: the authorities that may sign the server's certificate.
    pub ssl_ca: Option<String>,
    /// PEM text: the certificate chain to log in with.
    pub ssl_cert: Option<String>,
    /// PEM text: the private key of `ssl_cert`.
    pub ssl_key: Option<String>,
    /// `verify_identity` or `verify_ca`.
    pub ssl_mode: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            level: "LOG_INFO".into(),
            facility: "LOG_USER".into(),
            tag: None,
            options: Vec::new(),
            transport: "local".into(),
            socket: "/dev/log".into(),
            server: None,
            port: None,
            hostname: None,
            framing: "octet-counting".into(),
            max_message: None,
            ssl_ca: None,
            ssl_cert: None,
            ssl_key: None,
            ssl_mode: "verify_identity".into(),
        }
    }
}

/// Options that were checked.
pub(crate) struct Settings {
    /// The number before a message: eight times the facility, and the level.
    pub(crate) priority: u8,
    pub(crate) tag: String,
    /// The host name in messages to a server.
    pub(crate) hostname: String,
    /// Whether the job id stands in the process id's place.
    pub(crate) with_job_id: bool,
    /// Whether each message is written to the daemon's log too.
    pub(crate) print: bool,
    /// Longest message in bytes.
    pub(crate) max: usize,
    /// Whether messages go to a server, in the form that servers expect.
    pub(crate) for_server: bool,
}

/// Where the messages go.
pub(crate) enum Way {
    Local { socket: String },
    Udp(Server),
    Stream { server: Server, framing: Framing, tls: Option<Arc<ClientConfig>> },
}

/// A host and port.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}:{}` (options `server`, `port`)", self.host, self.port)
    }
}

/// How messages on a connection are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// The length in decimal digits and a space before each.
    OctetCounting,
    /// A newline after each.
    Newline,
}

impl Options {
    /// Checks them. An error is fatal and names the option.
    pub(crate) fn settings(self, context: &Context) -> Result<(Settings, Way)> {
        let priority = names::facility(&self.facility)? * 8 + names::level(&self.level)?;
        let flags = self.options.iter().map(|name| names::option(name)).collect::<Result<Vec<_>>>()?;
        let tag = match given(self.tag.clone()) {
            Some(tag) => checked_tag(tag)?,
            None => if context.role == "master" { "salt-master" } else { "salt-minion" }.to_owned(),
        };
        let way = self.way()?;
        let (usual, most) = match way {
            Way::Local { .. } => (8_096, MOST_LOCAL),
            Way::Udp(_) => (2_048, MOST_UDP),
            Way::Stream { .. } => (8_096, MOST_STREAM),
        };
        let max = self.max_message.unwrap_or(usual);
        if !(LEAST_MAX..=most).contains(&max) {
            return Err(Error::fatal(format!(
                "the option `max_message` is {max}; hint: for the transport `{}` it may be from {LEAST_MAX} to {most}",
                self.transport
            )));
        }
        let settings = Settings {
            priority,
            tag,
            hostname: word(given(self.hostname).as_deref().unwrap_or(&context.id), 255),
            with_job_id: flags.contains(&Flag::JobId),
            print: flags.contains(&Flag::Print),
            max: usize::try_from(max).unwrap_or(usize::MAX),
            for_server: !matches!(way, Way::Local { .. }),
        };
        Ok((settings, way))
    }

    fn way(&self) -> Result<Way> {
        let server = given(self.server.clone());
        let has_tls =
            [&self.ssl_ca, &self.ssl_cert, &self.ssl_key].iter().any(|&file| given(file.clone()).is_some());
        let transport = self.transport.as_str();
        if !matches!(transport, "local" | "udp" | "tcp" | "tls") {
            return Err(Error::fatal(format!(
                "the option `transport` is `{transport}`; hint: it may be `local`, `udp`, `tcp` or `tls`"
            )));
        }
        if has_tls && transport != "tls" {
            return Err(Error::fatal(format!(
                "the option `transport` is `{transport}`, but `ssl_ca`, `ssl_cert` or `ssl_key` is set; \
                 hint: set `transport` to `tls` or remove them"
            )));
        }
        if transport == "local" {
            if server.is_some() {
                return Err(Error::fatal(
                    "the option `server` is set, but `transport` is `local`; hint: set `transport` to `tls`, `tcp` or `udp`",
                ));
            }
            return Ok(Way::Local { socket: self.socket.clone() });
        }
        let host = server.ok_or_else(|| {
            Error::fatal(format!("the option `server` is not set, and `transport` is `{transport}`"))
        })?;
        if host.contains(':') && host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(Error::fatal(format!(
                "the option `server` is `{host}`, which is neither a name nor an address; hint: the port goes into `port`"
            )));
        }
        let port = self.port.unwrap_or(if transport == "tls" { 6_514 } else { 514 });
        if port == 0 {
            return Err(Error::fatal("the option `port` is 0"));
        }
        let server = Server { host, port };
        if transport == "udp" {
            return Ok(Way::Udp(server));
        }
        let framing = match self.framing.as_str() {
            "octet-counting" => Framing::OctetCounting,
            "newline" => Framing::Newline,
            other => {
                return Err(Error::fatal(format!(
                    "the option `framing` is `{other}`; hint: it may be `octet-counting` or `newline`"
                )));
            }
        };
        let tls = if transport == "tls" { Some(self.tls()?) } else { None };
        Ok(Way::Stream { server, framing, tls })
    }

    fn tls(&self) -> Result<Arc<ClientConfig>> {
        let check = match self.ssl_mode.as_str() {
            "verify_identity" => Check::Full,
            "verify_ca" => Check::Authority,
            other => {
                return Err(Error::fatal(format!(
                    "the option `ssl_mode` is `{other}`; hint: it may be `verify_identity` or `verify_ca`"
                )));
            }
        };
        let settings = tls::Settings {
            check,
            ca: given(self.ssl_ca.clone()),
            cert: given(self.ssl_cert.clone()),
            key: given(self.ssl_key.clone()),
            crl: None,
        };
        settings.client(&Names { ca: "ssl_ca", cert: "ssl_cert", key: "ssl_key", crl: "" })
    }
}

/// A tag ends at a space, a colon or a bracket for those who read it.
fn checked_tag(tag: String) -> Result<String> {
    let good = |b: u8| b.is_ascii_graphic() && !matches!(b, b':' | b'[' | b']');
    if tag.len() <= 32 && tag.bytes().all(good) {
        return Ok(tag);
    }
    Err(Error::fatal(format!(
        "the option `tag` is `{tag}`; hint: it may have 32 characters of ASCII, without spaces, `:`, `[` and `]`"
    )))
}

/// A text as a field of RFC 5424's header: printable ASCII without spaces, of a limited length, `-` for none.
pub(crate) fn word(text: &str, most: usize) -> String {
    let word: String = text.chars().map(|c| if c.is_ascii_graphic() { c } else { '_' }).take(most).collect();
    if word.is_empty() { "-".to_owned() } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context {
        Context { sink: "syslog".into(), id: "web1.example.com".into(), role: "minion".into() }
    }

    fn fatal(options: Options) -> String {
        match options.settings(&context()).err() {
            Some(Error::Fatal(why)) => why,
            other => panic!("not fatal: {other:?}"),
        }
    }

    #[test]
    fn salts_defaults_hold_without_any_option() {
        let options: Options = returner_sdk::serde_json::from_str("{}").unwrap();
        let (settings, way) = options.settings(&context()).unwrap();
        assert_eq!((settings.priority, settings.max), (14, 8_096));
        assert_eq!((settings.tag.as_str(), settings.hostname.as_str()), ("salt-minion", "web1.example.com"));
        assert!(matches!(way, Way::Local { socket } if socket == "/dev/log"));
        assert!(!settings.with_job_id && !settings.print);
    }

    #[test]
    fn each_transport_has_its_usual_port_and_size() {
        for (transport, port, max) in [("udp", 514, 2_048), ("tcp", 514, 8_096), ("tls", 6_514, 8_096)] {
            let options =
                Options { transport: transport.into(), server: Some("loghost".into()), ..Options::default() };
            let (settings, way) = options.settings(&context()).unwrap();
            let (Way::Udp(server) | Way::Stream { server, .. }) = way else { panic!("{transport}") };
            assert_eq!((server.port, settings.max), (port, max), "{transport}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused_by_name() {
        let server = Some("loghost".to_owned());
        let tcp = Options { transport: "tcp".into(), server: server.clone(), ..Options::default() };
        for (options, words) in [
            (Options { server: server.clone(), ..Options::default() }, ["`server`", "`transport`"]),
            (Options { server: None, ..tcp.clone() }, ["`server`", "`tcp`"]),
            (Options { ssl_ca: Some("x".into()), ..tcp.clone() }, ["`ssl_ca`", "`tls`"]),
            (Options { server: Some("loghost:514".into()), ..tcp.clone() }, ["`loghost:514`", "`port`"]),
            (Options { max_message: Some(100), ..tcp.clone() }, ["`max_message`", "480"]),
            (Options { tag: Some("x".repeat(33)), ..tcp.clone() }, ["`tag`", "32"]),
            (Options { tag: Some("a b".into()), ..tcp.clone() }, ["`tag`", "spaces"]),
            (
                Options { transport: "udp".into(), max_message: Some(70_000), ..tcp.clone() },
                ["`max_message`", "65507"],
            ),
        ] {
            let why = fatal(options);
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        }
    }
}
