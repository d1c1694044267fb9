//! The daemon under test: `returnerd serve` with a configuration, state and plugins of its own.
//!
//! The plugins directory is private to the daemon, so that a test may drop, replace and remove files in it.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::client::Client;
use crate::env;
use crate::proc::{Output, Scratch, Server, run};
use crate::wait::{tails, wait_for_value};

const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(30);
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// What a daemon is to be like, before it starts.
#[derive(Debug)]
pub struct DaemonBuilder {
    scratch: Scratch,
    plugins: Vec<String>,
    top: String,
    tables: String,
    level: &'static str,
    variables: Vec<(String, String)>,
}

impl DaemonBuilder {
    /// Puts these built plugins into its plugins directory.
    pub fn plugins(mut self, names: &[&str]) -> Self {
        self.plugins.extend(names.iter().map(|name| (*name).to_owned()));
        self
    }

    /// Adds lines to the top of the configuration, outside all tables.
    pub fn top(mut self, lines: &str) -> Self {
        self.top.push_str(lines);
        self.top.push('\n');
        self
    }

    /// Adds tables to the configuration, such as `[plugin.mysql]` with its lines.
    pub fn tables(mut self, lines: &str) -> Self {
        self.tables.push_str(lines);
        self.tables.push('\n');
        self
    }

    /// Logs no more than it does by default, for measurements.
    pub fn quiet(mut self) -> Self {
        self.level = "info";
        self
    }

    /// Sets a variable of its environment.
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Lets a plugin reach these addresses: `tcp://127.0.0.1:3307`.
    pub fn allow(self, plugin: &str, addresses: &[&str]) -> Self {
        let list: Vec<String> = addresses.iter().map(|address| format!("{address:?}")).collect();
        self.tables(&format!("[plugin.{plugin}]\nallow = [{}]\n", list.join(", ")))
    }

    /// The daemon's directory, to name files in the configuration.
    pub fn root(&self) -> &Path {
        self.scratch.path()
    }

    /// Writes everything and does not start.
    pub fn prepare(self) -> Daemon {
        let root = self.scratch.path().to_path_buf();
        let (plugins_dir, socket, inbox) =
            (root.join("plugins"), root.join("returnerd.sock"), root.join("inbox"));
        for dir in [&plugins_dir, &inbox, &root.join("state")] {
            fs::create_dir_all(dir).unwrap();
        }
        share_compiled_plugins(&root.join("state/cache"));
        let text = format!(
            "state_dir = {:?}\nplugins_dir = {plugins_dir:?}\nsocket = {socket:?}\ninbox = {inbox:?}\n{}\n\
             [log]\nlevel = \"{}\"\n\n{}",
            root.join("state"),
            self.top,
            self.level,
            self.tables
        );
        let config = self.scratch.write("returnerd.toml", &text);
        let daemon = Daemon {
            server: None,
            config,
            socket,
            inbox,
            plugins_dir,
            root,
            variables: self.variables,
            _scratch: self.scratch,
        };
        for name in &self.plugins {
            daemon.drop_plugin(name);
        }
        daemon
    }

    /// Writes everything, starts the daemon and waits until it listens.
    pub fn start(self) -> Daemon {
        let mut daemon = self.prepare();
        daemon.start();
        daemon
    }
}

/// Lets the daemons of all tests keep their compiled plugins in one place: compiling takes seconds, loading does not.
fn share_compiled_plugins(cache: &Path) {
    let shared = env::target_dir().join("compiled-plugins");
    // The daemon refuses a place that others can write to.
    let _ = fs::DirBuilder::new().mode(0o700).create(&shared);
    std::os::unix::fs::symlink(shared, cache).unwrap();
}

/// A daemon that runs or did run. Dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    server: Option<Server>,
    config: PathBuf,
    socket: PathBuf,
    inbox: PathBuf,
    plugins_dir: PathBuf,
    root: PathBuf,
    variables: Vec<(String, String)>,
    _scratch: Scratch,
}

impl Daemon {
    /// A daemon without plugins.
    pub fn builder() -> DaemonBuilder {
        Self::builder_in(Scratch::new())
    }

    /// The same with all its files in this directory, which chooses the disk.
    pub fn builder_in(scratch: Scratch) -> DaemonBuilder {
        DaemonBuilder {
            scratch,
            plugins: Vec::new(),
            top: String::new(),
            tables: String::new(),
            level: "debug",
            variables: Vec::new(),
        }
    }

    /// Its unix socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its inbox directory.
    pub fn inbox(&self) -> &Path {
        &self.inbox
    }

    /// Its plugins directory.
    pub fn plugins_dir(&self) -> &Path {
        &self.plugins_dir
    }

    /// Its directory; state is in `state`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Its configuration file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// The processor time that it has taken.
    pub fn cpu(&self) -> Duration {
        self.server.as_ref().map(Server::cpu).unwrap_or_default()
    }

    /// The process id, if it runs.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Server::pid)
    }

    /// All that it has logged.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last lines that it has logged, for messages.
    pub fn tail(&self) -> String {
        tails([self.log_file().as_path()], 60)
    }

    /// Puts a built plugin into the plugins directory, by rename as an administrator should.
    pub fn drop_plugin(&self, name: &str) {
        self.drop_plugin_file(name, &env::plugin(name));
    }

    /// Puts any file into the plugins directory as the plugin of this name.
    pub fn drop_plugin_file(&self, name: &str, file: &Path) {
        let temporary = self.plugins_dir.join(format!(".{name}.tmp"));
        fs::copy(file, &temporary).unwrap();
        fs::rename(temporary, self.plugins_dir.join(format!("{name}.wasm"))).unwrap();
    }

    /// Takes a plugin out of the plugins directory.
    pub fn remove_plugin(&self, name: &str) {
        fs::remove_file(self.plugins_dir.join(format!("{name}.wasm"))).unwrap();
    }

    /// Starts it and waits until it listens; gives how long that took.
    pub fn start(&mut self) -> Duration {
        assert!(self.server.is_none(), "the daemon runs already");
        let began = Instant::now();
        let mut command = self.command();
        command.arg("serve");
        let log = self.log_file();
        let mut server = Server::start("returnerd", &mut command, &log);
        let context = || tails([log.as_path()], 60);
        wait_for_value("the daemon's socket", START_LIMIT, context, || {
            server.must_run();
            UnixStream::connect(&self.socket).is_ok().then_some(())
        });
        self.server = Some(server);
        began.elapsed()
    }

    /// Ends it with SIGTERM, which must succeed.
    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            let code = server.terminate(STOP_LIMIT);
            assert!(code == 0, "the daemon ended with exit code {code}\n{}", self.tail());
        }
    }

    /// Kills it with SIGKILL, as a crash would.
    pub fn kill(&mut self) {
        if let Some(server) = self.server.take() {
            server.kill();
        }
    }

    /// Stops and starts it.
    pub fn restart(&mut self) {
        self.stop();
        self.start();
    }

    /// Sends it a signal, such as SIGHUP.
    pub fn signal(&self, signal: Signal) {
        self.server.as_ref().expect("the daemon does not run").signal(signal);
    }

    /// Panics with its log if it has ended.
    pub fn must_run(&mut self) {
        self.server.as_mut().expect("the daemon does not run").must_run();
    }

    /// Runs `returnerd --config FILE …`.
    pub fn cli(&self, args: &[&str]) -> Output {
        run(self.command().args(args), COMMAND_LIMIT)
    }

    /// A new connection to its socket.
    pub fn client(&self) -> Client {
        match Client::connect(&self.socket) {
            Ok(client) => client,
            Err(error) => panic!("the daemon takes no connection: {error}\n{}", self.tail()),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env::returnerd());
        command.arg("--config").arg(&self.config);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn log_file(&self) -> PathBuf {
        self.root.join("log")
    }
}
