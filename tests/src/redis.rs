//! A private Redis for tests: on loopback ports of its own, in a scratch directory, gone with its value.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::certificates::{Authority, Identity};
use crate::proc::{Scratch, Server, free_port, run};
use crate::wait::{tails, wait_for_value};

const LIMIT: Duration = Duration::from_secs(60);

/// A running server.
#[derive(Debug)]
pub struct Redis {
    server: Option<Server>,
    port: u16,
    options: Vec<String>,
    scratch: Scratch,
    /// What `redis-cli` needs to log in.
    password: Option<String>,
    /// Where it speaks TLS, if it does.
    tls: Option<(u16, Authority)>,
}

/// Where `redis-server` is, if it is installed.
pub fn installed() -> Option<PathBuf> {
    ["/usr/bin", "/usr/local/bin"]
        .into_iter()
        .map(|dir| PathBuf::from(dir).join("redis-server"))
        .find(|path| path.exists())
}

impl Redis {
    /// Starts a new, empty server with further options for `redis-server`, such as `--maxmemory 10mb`, each word by itself.
    pub fn start(options: &[&str]) -> Self {
        Self::start_in(Scratch::new(), None, None, options)
    }

    /// Starts a new server that wants this password.
    pub fn start_with_password(password: &str) -> Self {
        Self::start_in(Scratch::new(), Some(password), None, &["--requirepass", password])
    }

    /// Starts a new server that also speaks TLS, on a port of its own, with a certificate for these names or addresses.
    /// `clients` says whether it wants a certificate of clients: `yes`, `no` or `optional`.
    pub fn start_with_tls(names: &[&str], clients: &str) -> Self {
        let scratch = Scratch::new();
        let authority = Authority::new();
        let Identity { cert, key } = authority.sign(names);
        let port = free_port().to_string();
        let files = [("ca-cert", authority.pem()), ("cert", &cert), ("key", &key)].map(|(name, text)| {
            let path = scratch.write(&format!("tls/{name}.pem"), text);
            [format!("--tls-{name}-file"), path.display().to_string()]
        });
        let mut options = vec!["--tls-port", &port, "--tls-auth-clients", clients];
        options.extend(files.iter().flatten().map(String::as_str));
        let tls = (port.parse().unwrap(), authority);
        Self::start_in(scratch, None, Some(tls), &options)
    }

    fn start_in(
        scratch: Scratch,
        password: Option<&str>,
        tls: Option<(u16, Authority)>,
        options: &[&str],
    ) -> Self {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let password = password.map(str::to_owned);
        let mut this = Self { server: None, port: free_port(), options, scratch, password, tls };
        this.restart();
        this
    }

    /// The processor time that the server has taken.
    pub fn cpu(&self) -> std::time::Duration {
        self.server.as_ref().map(Server::cpu).unwrap_or_default()
    }

    /// The port it listens on, on 127.0.0.1, in plain text.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port on which it speaks TLS, and the authority that signed its certificate.
    pub fn tls(&self) -> (u16, &Authority) {
        let (port, authority) = self.tls.as_ref().expect("the server speaks no TLS");
        (*port, authority)
    }

    /// Runs a command in a database and gives what `redis-cli` prints, a line for each reply.
    pub fn cli_in(&self, db: u32, words: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["--no-auth-warning", "-e", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        command.args(["-n", &db.to_string()]);
        if let Some(password) = &self.password {
            command.args(["-a", password]);
        }
        run(command.args(words), LIMIT).success().trim_end().to_owned()
    }

    /// The same in database 0.
    pub fn cli(&self, words: &[&str]) -> String {
        self.cli_in(0, words)
    }

    /// Kills it, as a power cut would. `restart` starts it again.
    pub fn kill(&mut self) {
        self.server = None;
    }

    /// Holds it still, so that it answers nobody, or lets it go on.
    pub fn freeze(&self, frozen: bool) {
        if let Some(server) = &self.server {
            server.signal(if frozen { Signal::SIGSTOP } else { Signal::SIGCONT });
        }
    }

    /// Stops it in order. `restart` starts it again.
    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.terminate(LIMIT);
        }
    }

    /// Starts it again on the same port with the same data, after stopping it if it runs.
    pub fn restart(&mut self) {
        self.stop();
        let log = self.scratch.path().join("redis.log");
        let mut command = Command::new(installed().expect("`redis-server` is not installed"));
        command
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .args(["--dir", &self.scratch.path().display().to_string()])
            .args(["--save", "", "--appendonly", "yes", "--appendfsync", "always", "--daemonize", "no"])
            .args(&self.options);
        let mut server = Server::start("redis-server", &mut command, &log);
        wait_for_value(
            "redis-server to answer",
            LIMIT,
            || tails([log.as_path()], 40),
            || {
                server.must_run();
                let mut ping = Command::new("redis-cli");
                ping.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "PING"]);
                let answer = run(&mut ping, LIMIT).stdout;
                (answer.contains("PONG") || answer.contains("NOAUTH")).then_some(())
            },
        );
        self.server = Some(server);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_outlives_a_kill_and_nothing_outlives_the_value() {
        if installed().is_none() {
            eprintln!("SKIPPED: `redis-server` is not installed");
            return;
        }
        let mut redis = Redis::start_with_password("secret");
        redis.cli(&["SET", "a", "7"]);
        redis.kill();
        assert!(std::net::TcpStream::connect(("127.0.0.1", redis.port())).is_err());
        redis.restart();
        assert_eq!(redis.cli(&["GET", "a"]), "7");
        let port = redis.port();
        drop(redis);
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    }
}
