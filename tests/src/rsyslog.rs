//! A private rsyslog for tests: a socket of its own in the place of `/dev/log`, UDP, TCP and TLS on loopback ports, and what
//! it took in a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::certificates::Authority;
use crate::proc::{Scratch, Server, free_port};
use crate::wait::{tails, wait_for_value};

const LIMIT: Duration = Duration::from_secs(60);

/// Between the fields of a line of the file; JSON has none outside of its escapes.
const SEPARATOR: char = '\t';

/// A running server.
#[derive(Debug)]
pub struct Rsyslog {
    server: Option<Server>,
    /// UDP and TCP.
    port: u16,
    tls_port: u16,
    authority: Authority,
    scratch: Scratch,
}

/// A message as rsyslog understood it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged {
    /// How it came: `imuxsock`, `imudp`, `imtcp`.
    pub input: String,
    /// `facility.level` by their names.
    pub priority: String,
    /// The host name.
    pub hostname: String,
    /// The program's name.
    pub program: String,
    /// The process id; `-` for none.
    pub process: String,
    /// RFC 5424's message id; `-` for none.
    pub kind: String,
    /// 1 for RFC 5424, 0 for the older form.
    pub version: String,
    /// The time that the message itself has, or that of its receipt.
    pub time: String,
    /// The message without spaces at its beginning.
    pub text: String,
}

impl Logged {
    /// The message as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }
}

/// Where `rsyslogd` is, if it is installed together with its TLS driver.
pub fn installed() -> Option<PathBuf> {
    let daemon =
        ["/usr/sbin/rsyslogd", "/sbin/rsyslogd"].into_iter().map(PathBuf::from).find(|p| p.exists())?;
    let libraries = fs::read_dir("/usr/lib").ok()?.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut drivers = libraries.map(|directory| directory.join("rsyslog/lmnsd_gtls.so"));
    drivers.any(|driver| driver.exists()).then_some(daemon)
}

impl Rsyslog {
    /// Starts one whose certificate is for the name `localhost` and for 127.0.0.1.
    pub fn start() -> Self {
        Self::start_for(&["localhost", "127.0.0.1"], false)
    }

    /// Starts one whose certificate is for these names, and which may want a certificate from its clients.
    pub fn start_for(names: &[&str], wants_certificate: bool) -> Self {
        let scratch = Scratch::new();
        let authority = Authority::new();
        let identity = authority.sign(names);
        scratch.write("ca.pem", authority.pem());
        scratch.write("server.pem", &identity.cert);
        scratch.write("server.key", &identity.key);
        let mut this = Self { server: None, port: free_port(), tls_port: free_port(), authority, scratch };
        this.scratch.write("rsyslog.conf", &this.config(wants_certificate));
        this.restart();
        this
    }

    fn config(&self, wants_certificate: bool) -> String {
        let Self { port, tls_port, .. } = self;
        let dir = self.scratch.path().display();
        let mode = if wants_certificate { "x509/certvalid" } else { "anon" };
        let properties = [
            ("inputname", SEPARATOR),
            ("syslogfacility-text", '.'),
            ("syslogseverity-text", SEPARATOR),
            ("hostname", SEPARATOR),
            ("app-name", SEPARATOR),
            ("procid", SEPARATOR),
            ("msgid", SEPARATOR),
            ("protocol-version", SEPARATOR),
        ];
        let fields: String = properties
            .map(|(name, after)| format!("property(name=\"{name}\") constant(value=\"{after}\") "))
            .concat();
        format!(
            r#"
global(workDirectory="{dir}" maxMessageSize="64k" defaultNetstreamDriverCAFile="{dir}/ca.pem"
    defaultNetstreamDriverCertFile="{dir}/server.pem" defaultNetstreamDriverKeyFile="{dir}/server.key")
module(load="imuxsock" SysSock.Use="off")
module(load="imudp")
module(load="imtcp")
input(type="imuxsock" Socket="{dir}/log" RateLimit.Interval="0")
input(type="imudp" address="127.0.0.1" port="{port}" RateLimit.Interval="0")
input(type="imtcp" address="127.0.0.1" port="{port}")
input(type="imtcp" address="127.0.0.1" port="{tls_port}" StreamDriver.Name="gtls" StreamDriver.Mode="1"
    StreamDriver.AuthMode="{mode}")
template(name="fields" type="list") {{ {fields}
    property(name="timereported" dateFormat="rfc3339" date.inUTC="on") constant(value="{SEPARATOR}")
    property(name="msg") constant(value="\n") }}
action(type="omfile" file="{dir}/messages" template="fields")
"#
        )
    }

    /// The socket in the place of `/dev/log`.
    pub fn socket(&self) -> PathBuf {
        self.scratch.path().join("log")
    }

    /// The port for UDP and TCP, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port for TLS, on 127.0.0.1.
    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    /// Who signed its certificate.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The file with the certificate of the one who signed its certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.scratch.path().join("ca.pem")
    }

    /// What it has taken so far, in its order.
    pub fn logged(&self) -> Vec<Logged> {
        let bytes = fs::read(self.scratch.path().join("messages")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        text.split_inclusive('\n').filter(|line| line.ends_with('\n')).filter_map(logged).collect()
    }

    /// Waits until it has taken so many messages; gives them.
    pub fn wait_for(&self, count: usize) -> Vec<Logged> {
        wait_for_value(
            &format!("{count} messages"),
            LIMIT,
            || format!("{:#?}", self.logged().into_iter().rev().take(3).collect::<Vec<_>>()),
            || Some(self.logged()).filter(|logged| logged.len() >= count),
        )
    }

    /// Stops it in order. `restart` starts it again.
    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.terminate(LIMIT);
        }
    }

    /// Starts it again on the same ports, after stopping it if it runs.
    pub fn restart(&mut self) {
        self.stop();
        let path = |name: &str| self.scratch.path().join(name);
        let log = path("rsyslogd.log");
        let mut command = Command::new(installed().expect("`rsyslogd` is not installed"));
        command.arg("-n").arg("-f").arg(path("rsyslog.conf")).arg("-i").arg(path("pid"));
        let mut server = Server::start("rsyslogd", &mut command, &log);
        wait_for_value(
            "rsyslogd to listen",
            LIMIT,
            || tails([log.as_path()], 40),
            || {
                server.must_run();
                self.listens().then_some(())
            },
        );
        self.server = Some(server);
    }

    fn listens(&self) -> bool {
        let tcp = |port| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        self.takes_local(&self.socket()) && tcp(self.port) && tcp(self.tls_port)
    }

    fn takes_local(&self, socket: &Path) -> bool {
        std::os::unix::net::UnixDatagram::unbound().and_then(|own| own.connect(socket)).is_ok()
    }
}

/// A line of the file; none for one of rsyslog's own.
fn logged(line: &str) -> Option<Logged> {
    let mut parts = line.trim_end_matches('\n').splitn(9, SEPARATOR).map(str::to_owned);
    let mut next = || parts.next();
    let logged = Logged {
        input: next()?,
        priority: next()?,
        hostname: next()?,
        program: next()?,
        process: next()?,
        kind: next()?,
        version: next()?,
        time: next()?,
        text: next()?.trim_start().to_owned(),
    };
    (logged.program != "rsyslogd").then_some(logged)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn what_is_sent_is_read_back_also_after_a_restart() {
        if installed().is_none() {
            eprintln!("skipped: `rsyslogd` is not installed");
            return;
        }
        let mut rsyslog = Rsyslog::start();
        for number in 1..=2 {
            let text = format!("<14>tests[7]: {{\"number\": {number}}}");
            UnixDatagram::unbound().unwrap().send_to(text.as_bytes(), rsyslog.socket()).unwrap();
            let last = rsyslog.wait_for(number).pop().unwrap();
            assert_eq!(last.json()["number"], number);
            assert_eq!((last.priority.as_str(), last.process.as_str()), ("user.info", "7"));
            rsyslog.restart();
        }
    }
}
