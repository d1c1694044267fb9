//! A private PostgreSQL for tests: on a loopback port of its own, in a scratch directory, gone with its value.
//!
//! The administrator `postgres` comes in by the unix socket without a password; the user `salt` with the password `salt`
//! owns the database `salt`, and comes in by TCP with SCRAM. The server refuses to run as root: there it runs as
//! `postgres` or `nobody`.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, User, chown};

use crate::certificates::Authority;
use crate::proc::{Output, Scratch, Server, free_port, run};
use crate::wait::{tails, wait_for_value};

const LIMIT: Duration = Duration::from_secs(60);

/// Who may come in how, unless a test says otherwise.
const ACCESS: &str =
    "local all postgres trust\nhost all all 127.0.0.1/32 scram-sha-256\nhost all all ::1/128 scram-sha-256\n";

/// A running server.
#[derive(Debug)]
pub struct PostgreSql {
    server: Option<Server>,
    port: u16,
    options: Vec<String>,
    scratch: Scratch,
}

/// The newest server that is installed: the directory of its programs.
pub fn installed() -> Option<PathBuf> {
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|entry| entry.path());
    let newest = versions.filter(|path| path.join("bin/postgres").exists()).max_by_key(version);
    newest.map(|path| path.join("bin"))
}

/// The tables as Salt's documentation has them for its own returners, with documents of the type `jsonb` (`pgjsonb`) or `text`
/// (`postgres`).
pub fn documented_tables(document: &str) -> String {
    let (jid, nullable, indexes) = match document {
        "jsonb" => (
            "varchar(255)",
            "NOT NULL",
            "CREATE INDEX idx_jids_jsonb ON jids USING gin (load) WITH (fastupdate=on);
             CREATE INDEX idx_salt_returns_return ON salt_returns USING gin (return) WITH (fastupdate=on);
             CREATE INDEX idx_salt_returns_full_ret ON salt_returns USING gin (full_ret) WITH (fastupdate=on);
             CREATE INDEX idx_salt_events_data ON salt_events USING gin (data) WITH (fastupdate=on);",
        ),
        _ => ("varchar(20)", "", "CREATE INDEX idx_salt_returns_updated ON salt_returns (alter_time);"),
    };
    format!(
        "SET ROLE salt;
        CREATE TABLE jids (jid {jid} PRIMARY KEY, load {document} NOT NULL);
        CREATE TABLE salt_returns (
            fun varchar(50) NOT NULL, jid varchar(255) NOT NULL, return {document} NOT NULL,
            full_ret {document} {nullable}, id varchar(255) NOT NULL, success varchar(10) NOT NULL,
            alter_time TIMESTAMP WITH TIME ZONE DEFAULT now());
        CREATE INDEX idx_salt_returns_id ON salt_returns (id);
        CREATE INDEX idx_salt_returns_jid ON salt_returns (jid);
        CREATE INDEX idx_salt_returns_fun ON salt_returns (fun);
        CREATE SEQUENCE seq_salt_events_id;
        CREATE TABLE salt_events (
            id BIGINT NOT NULL UNIQUE DEFAULT nextval('seq_salt_events_id'), tag varchar(255) NOT NULL,
            data {document} NOT NULL, alter_time TIMESTAMP WITH TIME ZONE DEFAULT now(), master_id varchar(255) NOT NULL);
        CREATE INDEX idx_salt_events_tag ON salt_events (tag);
        {indexes}"
    )
}

impl PostgreSql {
    /// Starts a new, empty server with further settings, such as `max_connections=5`.
    pub fn start(settings: &[&str]) -> Self {
        Self::start_in(Scratch::new(), settings, "UTF8")
    }

    /// Starts a new server whose databases have this encoding.
    pub fn start_encoded(encoding: &str) -> Self {
        Self::start_in(Scratch::new(), &[], encoding)
    }

    /// Starts a new server with TLS, whose certificate is signed by this authority for these names and addresses. It
    /// also asks clients for a certificate of the authority, where they have one.
    pub fn start_with_tls(authority: &Authority, names: &[&str]) -> Self {
        let scratch = Scratch::new();
        let identity = authority.sign(names);
        let file = |name: &str, text: &str| {
            let path = scratch.write(name, text);
            give_away(&path);
            path.display().to_string()
        };
        let settings = [
            "ssl=on".to_owned(),
            format!("ssl_ca_file={}", file("ca.pem", authority.pem())),
            format!("ssl_cert_file={}", file("server.pem", &identity.cert)),
            format!("ssl_key_file={}", file("server.key", &identity.key)),
        ];
        Self::start_in(scratch, &settings.each_ref().map(String::as_str), "UTF8")
    }

    fn start_in(scratch: Scratch, settings: &[&str], encoding: &str) -> Self {
        give_away(scratch.path());
        let data = scratch.path().join("data");
        let mut command = program("initdb");
        command
            .args(["--username=postgres", "--auth=trust", "--no-locale", "--no-sync"])
            .arg(format!("--encoding={encoding}"))
            .arg(format!("--pgdata={}", data.display()));
        run(&mut command, LIMIT).success();
        let options = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let mut this = Self { server: None, port: free_port(), options, scratch };
        this.access(ACCESS);
        this.restart();
        this.sql("postgres", "CREATE ROLE salt LOGIN PASSWORD 'salt'");
        this.database("salt");
        this
    }

    /// The processor time that the server has taken.
    pub fn cpu(&self) -> std::time::Duration {
        self.server.as_ref().map(Server::cpu).unwrap_or_default()
    }

    /// The port it listens on, on 127.0.0.1 and ::1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs SQL as the administrator and gives what it prints: a line for each row, columns separated by `|`.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        self.psql(database, sql).success()
    }

    fn psql(&self, database: &str, sql: &str) -> Output {
        let socket = format!("--host={}", self.scratch.path().display());
        let mut command = program("psql");
        command
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"])
            .args(["--username=postgres", "--command", sql])
            .args([socket, format!("--port={}", self.port), format!("--dbname={database}")])
            .env("PGCLIENTENCODING", "UTF8");
        run(&mut command, LIMIT)
    }

    /// Makes a database of its own for a test, owned by the user `salt`.
    pub fn database(&self, name: &str) {
        self.sql("postgres", &format!("CREATE DATABASE {name} OWNER salt"));
    }

    /// Sets the whole of `pg_hba.conf`; it holds from the next start or `reload`.
    pub fn access(&self, lines: &str) {
        let file = self.scratch.path().join("data/pg_hba.conf");
        fs::write(&file, lines).unwrap();
        give_away(&file);
    }

    /// Lets it read its configuration again.
    pub fn reload(&self) {
        self.sql("postgres", "SELECT pg_reload_conf()");
        // The next session is of a server process that has read it.
        let began = "SELECT pg_conf_load_time() > now() - interval '1 minute'";
        assert_eq!(self.sql("postgres", began), "t\n");
    }

    /// Ends all sessions of the user `salt`, as an administrator would.
    pub fn end_sessions(&self) {
        self.sql(
            "postgres",
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'salt'",
        );
    }

    /// Stops it in order, ending all sessions. `restart` starts it again.
    pub fn stop(&mut self) {
        // SIGTERM would wait for the clients to go.
        self.end(Signal::SIGINT);
    }

    /// Ends it without a checkpoint, as a power cut would. `restart` starts it again and lets it recover.
    pub fn kill(&mut self) {
        // SIGKILL would leave shared memory behind, and sessions that a new server must wait for.
        self.end(Signal::SIGQUIT);
    }

    fn end(&mut self, signal: Signal) {
        if let Some(server) = self.server.take() {
            server.signal(signal);
            server.wait(LIMIT);
        }
    }

    /// Holds all its processes still, so that it answers nobody, or lets them go on.
    pub fn freeze(&self, frozen: bool) {
        if let Some(server) = &self.server {
            let signal = if frozen { "-STOP" } else { "-CONT" };
            // Its sessions have process groups of their own.
            let pid = server.pid().to_string();
            run(Command::new("pkill").args([signal, "--parent", &pid]), LIMIT);
            server.signal(if frozen { Signal::SIGSTOP } else { Signal::SIGCONT });
        }
    }

    /// Starts it again on the same port with the same data, after stopping it if it runs.
    pub fn restart(&mut self) {
        self.stop();
        let data = self.scratch.path().join("data");
        let log = self.scratch.path().join("postgres.log");
        let mut command = program("postgres");
        command
            .arg("-D")
            .arg(&data)
            .args(["-p", &self.port.to_string()])
            .args(["-c", "listen_addresses=127.0.0.1,::1", "-c", "shared_buffers=32MB", "-c", "fsync=off"])
            .args(["-c", "password_encryption=scram-sha-256", "-c", "autovacuum_naptime=10min"])
            .arg("-c")
            .arg(format!("unix_socket_directories={}", self.scratch.path().display()));
        for option in &self.options {
            command.args(["-c", option]);
        }
        self.server = Some(Server::start("postgres", &mut command, &log));
        wait_for_value(
            "the server to take sessions",
            LIMIT,
            || tails([log.as_path()], 40),
            || {
                self.server.as_mut().unwrap().must_run();
                let answer = self.psql("postgres", "SELECT 1");
                (answer.code == 0).then_some(())
            },
        );
    }
}

impl Drop for PostgreSql {
    fn drop(&mut self) {
        self.freeze(false);
        self.end(Signal::SIGQUIT);
    }
}

/// One of the server's programs, run as somebody who may run it.
fn program(name: &str) -> Command {
    let bin = installed().expect("PostgreSQL is not installed");
    let mut command = Command::new(bin.join(name));
    command.current_dir("/").env("LC_ALL", "C");
    if let Some((uid, gid)) = account() {
        command.uid(uid.as_raw()).gid(gid.as_raw());
    }
    command
}

/// Who runs the server, if not this user.
fn account() -> Option<(Uid, Gid)> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    let user = ["postgres", "nobody"].into_iter().find_map(|name| User::from_name(name).unwrap());
    let user = user.expect("there is neither a user `postgres` nor `nobody`");
    Some((user.uid, user.gid))
}

/// Makes a file or directory the server's, readable for it alone.
fn give_away(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = if path.is_dir() { 0o700 } else { 0o600 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    if let Some((uid, gid)) = account() {
        chown(path, Some(uid), Some(gid)).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_outlives_a_kill_and_nothing_outlives_the_value() {
        if installed().is_none() {
            eprintln!("skipped: PostgreSQL is not installed");
            return;
        }
        let mut db = PostgreSql::start(&["max_connections=20"]);
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
