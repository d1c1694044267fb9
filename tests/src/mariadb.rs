//! A private MariaDB for tests: on a loopback port of its own, in a scratch directory, gone with its value.
//!
//! `root` has no password and comes in by the unix socket; the user `salt` with the password `salt` may do everything
//! in the database `salt`, and comes in by TCP.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::proc::{Scratch, Server, free_port, run};
use crate::wait::{tails, wait_for_value};

const LIMIT: Duration = Duration::from_secs(60);

/// The tables as Salt's documentation has them for its own returner `mysql`: no unique key on returns, `utf8` of three bytes.
pub const DOCUMENTED_TABLES: &str = "
CREATE TABLE `jids` (`jid` varchar(255) NOT NULL, `load` mediumtext NOT NULL, UNIQUE KEY `jid` (`jid`))
    ENGINE=InnoDB DEFAULT CHARSET=utf8;
CREATE TABLE `salt_returns` (
    `fun` varchar(50) NOT NULL, `jid` varchar(255) NOT NULL, `return` mediumtext NOT NULL,
    `id` varchar(255) NOT NULL, `success` varchar(10) NOT NULL, `full_ret` mediumtext NOT NULL,
    `alter_time` TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    KEY `id` (`id`), KEY `jid` (`jid`), KEY `fun` (`fun`)) ENGINE=InnoDB DEFAULT CHARSET=utf8;
CREATE TABLE `salt_events` (
    `id` BIGINT NOT NULL AUTO_INCREMENT, `tag` varchar(255) NOT NULL, `data` mediumtext NOT NULL,
    `alter_time` TIMESTAMP DEFAULT CURRENT_TIMESTAMP, `master_id` varchar(255) NOT NULL,
    PRIMARY KEY (`id`), KEY `tag` (`tag`)) ENGINE=InnoDB DEFAULT CHARSET=utf8;";

/// A running server.
#[derive(Debug)]
pub struct MariaDb {
    server: Option<Server>,
    port: u16,
    options: Vec<String>,
    scratch: Scratch,
}

/// Certificates of a test: an authority, a server's certificate signed by it, and a client's.
#[derive(Debug)]
pub struct Certificates {
    dir: PathBuf,
}

/// Where `mariadbd` is, if it is installed.
pub fn installed() -> Option<PathBuf> {
    ["/usr/sbin/mariadbd", "/usr/libexec/mariadbd", "/usr/local/sbin/mariadbd", "/usr/local/bin/mariadbd"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
}

impl MariaDb {
    /// Starts a new, empty server with further options for `mariadbd`, such as `--max-allowed-packet=1M`.
    pub fn start(options: &[&str]) -> Self {
        Self::start_in(Scratch::new(), options)
    }

    /// Starts a new server with TLS: its certificate is for the name `localhost` and for 127.0.0.1.
    pub fn start_with_tls(options: &[&str]) -> (Self, Certificates) {
        Self::start_with_tls_for("localhost", "127.0.0.1", options)
    }

    /// Starts a new server with TLS whose certificate is for this name and address.
    pub fn start_with_tls_for(name: &str, address: &str, options: &[&str]) -> (Self, Certificates) {
        let scratch = Scratch::new();
        let certificates = Certificates::make(&scratch.path().join("tls"), name, address);
        let tls: Vec<String> = [("ca", "ca.pem"), ("cert", "server.pem"), ("key", "server.key")]
            .into_iter()
            .map(|(option, file)| format!("--ssl-{option}={}", certificates.dir.join(file).display()))
            .collect();
        let mut all: Vec<&str> = tls.iter().map(String::as_str).collect();
        all.extend(options);
        (Self::start_in(scratch, &all), certificates)
    }

    fn start_in(scratch: Scratch, options: &[&str]) -> Self {
        let data = scratch.path().join("data");
        // Servers that share a directory for temporary tables remove each other's.
        fs::create_dir(scratch.path().join("tmp")).unwrap();
        run(
            Command::new("mariadb-install-db")
                .env("TMPDIR", scratch.path().join("tmp"))
                .arg("--no-defaults")
                .arg(format!("--datadir={}", data.display()))
                .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
                .args(user_option()),
            LIMIT,
        )
        .success();
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut this = Self { server: None, port: free_port(), options, scratch };
        this.restart();
        this.root(
            "CREATE DATABASE salt CHARACTER SET utf8mb4; CREATE USER salt@'%' IDENTIFIED BY 'salt'; \
             GRANT ALL ON salt.* TO salt@'%'; DROP USER IF EXISTS ''@'localhost'",
        );
        this
    }

    /// The processor time that the server has taken.
    pub fn cpu(&self) -> std::time::Duration {
        self.server.as_ref().map(Server::cpu).unwrap_or_default()
    }

    /// The port it listens on, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs SQL as root and gives what it prints: a line for each row, columns separated by tabs.
    pub fn root(&self, sql: &str) -> String {
        self.sql("mysql", sql)
    }

    /// The same, with a database chosen.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        run(
            Command::new("mariadb")
                .args(["--no-defaults", "--batch", "--skip-column-names", "--raw", "--user=root"])
                .args(["--default-character-set=utf8mb4", "--execute", sql])
                .arg(format!("--socket={}", self.socket().display()))
                .arg(database),
            LIMIT,
        )
        .success()
    }

    /// Makes a database of its own for a test, which the user `salt` may use.
    pub fn database(&self, name: &str) {
        self.root(&format!(
            "CREATE DATABASE `{name}` CHARACTER SET utf8mb4; GRANT ALL ON `{name}`.* TO salt@'%'"
        ));
    }

    /// Stops it in order. `restart` starts it again.
    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.terminate(LIMIT);
        }
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

    /// Starts it again on the same port with the same data, after stopping it if it runs.
    pub fn restart(&mut self) {
        self.stop();
        let data = self.scratch.path().join("data");
        let log = self.scratch.path().join("mariadbd.log");
        let mut command = Command::new(installed().expect("`mariadbd` is not installed"));
        command
            .env("TMPDIR", self.scratch.path().join("tmp"))
            .arg("--no-defaults")
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--socket={}", self.socket().display()))
            .arg(format!("--pid-file={}", self.scratch.path().join("pid").display()))
            .arg(format!("--port={}", self.port))
            .args(["--bind-address=127.0.0.1", "--skip-log-bin", "--innodb-buffer-pool-size=64M"])
            .args(user_option())
            .args(&self.options);
        let mut server = Server::start("mariadbd", &mut command, &log);
        wait_for_value(
            "mariadbd to listen",
            LIMIT,
            || tails([log.as_path()], 40),
            || {
                server.must_run();
                std::net::TcpStream::connect(("127.0.0.1", self.port)).ok()
            },
        );
        self.server = Some(server);
    }

    fn socket(&self) -> PathBuf {
        self.scratch.path().join("sock")
    }
}

/// As root the server wants to be told that this is meant.
fn user_option() -> Option<&'static str> {
    nix::unistd::geteuid().is_root().then_some("--user=root")
}

impl Certificates {
    /// Makes an authority, a certificate for a server of this name and address, and one for a client, in `dir`.
    pub fn make(dir: &Path, name: &str, address: &str) -> Self {
        fs::create_dir_all(dir).unwrap();
        let openssl = |arguments: &[&str]| {
            run(Command::new("openssl").current_dir(dir).args(arguments), LIMIT).success();
        };
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"];
        let mut authority =
            vec!["req", "-x509", "-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.pem"];
        authority.extend(curve);
        openssl(&authority);
        let alternative = format!("subjectAltName=DNS:{name},IP:{address}");
        for (file, subject) in [("server", format!("/CN={name}")), ("client", "/CN=salt client".to_owned())] {
            let (key, pem) = (format!("{file}.key"), format!("{file}.pem"));
            let mut request =
                vec!["req", "-x509", "-CA", "ca.pem", "-CAkey", "ca.key", "-subj", subject.as_str()];
            request.extend([
                "-keyout",
                key.as_str(),
                "-out",
                pem.as_str(),
                "-addext",
                "basicConstraints=CA:FALSE",
            ]);
            if file == "server" {
                request.extend(["-addext", alternative.as_str()]);
            }
            request.extend(curve);
            openssl(&request);
        }
        Self { dir: dir.to_path_buf() }
    }

    /// The text of one of the files: `ca.pem`, `server.pem`, `server.key`, `client.pem`, `client.key`.
    pub fn text(&self, file: &str) -> String {
        fs::read_to_string(self.dir.join(file)).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_outlives_a_kill_and_nothing_outlives_the_value() {
        if installed().is_none() {
            eprintln!("skipped: `mariadbd` is not installed");
            return;
        }
        let mut db = MariaDb::start(&[]);
        db.sql("salt", "CREATE TABLE t (a int); INSERT INTO t VALUES (7)");
        db.kill();
        assert!(std::net::TcpStream::connect(("127.0.0.1", db.port())).is_err());
        db.restart();
        assert_eq!(db.sql("salt", "SELECT a FROM t"), "7\n");
        let port = db.port();
        drop(db);
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    }
}
