//! A real Salt on loopback: one master, its minions, and the commands of an administrator.
//!
//! A lab owns its scratch directory, ports and processes; several run side by side. It is ready when every minion
//! receives jobs, and no job of its own is in any job cache by then.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Map, Value};

use crate::daemon::Daemon;
use crate::env;
use crate::proc::{Output, Scratch, Server, free_port, run};
use crate::salt_config::{self, Options, Ports};
use crate::wait::{tails, wait_for_value};

/// How long a start may take: generous, for a machine that is busy with other tests.
const START_LIMIT: Duration = Duration::from_secs(90);
/// How long one command may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// How long a stop may take.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// A release of Salt that `make setup` installs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaltVersion {
    /// 3006.26, which still has all the old returners.
    V3006,
    /// 3008.4.
    V3008,
}

impl SaltVersion {
    /// Both releases.
    pub const ALL: [Self; 2] = [Self::V3006, Self::V3008];

    /// The number as Salt says it.
    pub fn number(self) -> &'static str {
        match self {
            Self::V3006 => "3006.26",
            Self::V3008 => "3008.4",
        }
    }
}

/// What a lab is to be like, before it starts.
#[derive(Debug)]
pub struct SaltLabBuilder {
    version: SaltVersion,
    scratch: Scratch,
    minions: Vec<String>,
    master_options: Options,
    minion_options: Options,
}

impl SaltLabBuilder {
    /// The ids of the minions; without this call it is `m1` alone.
    pub fn minions(mut self, ids: &[&str]) -> Self {
        self.minions = ids.iter().map(|id| (*id).to_owned()).collect();
        self
    }

    /// Adds options of the master, an object; they replace the lab's own.
    pub fn master(mut self, options: Value) -> Self {
        extend(&mut self.master_options, options);
        self
    }

    /// Adds options of all minions, an object; they replace the lab's own.
    pub fn minion(mut self, options: Value) -> Self {
        extend(&mut self.minion_options, options);
        self
    }

    /// Adds a file to the master's `file_roots`, such as `demo.sls`; under `pillar/` it is pillar.
    pub fn file(self, name: &str, text: &str) -> Self {
        self.scratch.write(&format!("srv/{name}"), text);
        self
    }

    /// Adds a returner module of the test's own for master and minions.
    pub fn returner(self, name: &str, python: &str) -> Self {
        self.scratch.write(&format!("returners/{name}.py"), python);
        self
    }

    /// Installs this daemon's shims for master and minions.
    pub fn shims_of(self, daemon: &Daemon) -> Self {
        let dir = self.returners_dir();
        fs::create_dir_all(&dir).unwrap();
        daemon.cli(&["salt", "install", "--dir", &dir.to_string_lossy()]).success();
        self
    }

    /// The directory that Salt looks for returners in (`returner_dirs`), on master and minions.
    pub fn returners_dir(&self) -> PathBuf {
        self.scratch.path().join("returners")
    }

    /// The master's configuration directory, for a daemon that reads Salt's own options.
    pub fn config_dir(&self) -> PathBuf {
        self.scratch.path().join("m")
    }

    /// Starts master and minions and waits until all of them are ready.
    pub fn start(self) -> SaltLab {
        let root = self.scratch.path().to_path_buf();
        for name in ["m", "srv/pillar", "returners", "home"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        let user =
            nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().expect("this user has a name").name;
        let ports = Ports { publish: free_port(), ret: free_port() };
        let (srv, returners) = (root.join("srv"), root.join("returners"));
        let text = salt_config::master(&root.join("m"), &srv, &returners, &user, ports, &self.master_options);
        self.scratch.write("m/master", &text);
        let mut minions = Vec::new();
        for (index, id) in self.minions.iter().enumerate() {
            let dir = root.join(format!("n{}", index + 1));
            fs::create_dir_all(&dir).unwrap();
            let text = salt_config::minion(&dir, id, &returners, &user, ports, &self.minion_options);
            fs::write(dir.join("minion"), text).unwrap();
            minions.push(Minion { id: id.clone(), dir, server: None, log_from: 0 });
        }
        let bin = env::salt_bin(self.version.number());
        let mut lab = SaltLab {
            bin,
            version: self.version,
            master: None,
            minions,
            ports,
            root,
            _scratch: self.scratch,
        };
        let began = Instant::now();
        lab.start_master();
        lab.start_minions();
        println!("Salt {} is ready after {:.1?}", lab.version.number(), began.elapsed());
        lab
    }
}

fn extend(options: &mut Options, more: Value) {
    match more {
        Value::Object(more) => options.extend(more),
        other => panic!("Salt options are an object, not `{other}`"),
    }
}

#[derive(Debug)]
struct Minion {
    id: String,
    dir: PathBuf,
    server: Option<Server>,
    /// Where in its log the present process begins, in bytes.
    log_from: usize,
}

/// A running Salt. Dropping it kills all its processes; [`SaltLab::stop`] ends them as an administrator would.
#[derive(Debug)]
pub struct SaltLab {
    bin: PathBuf,
    version: SaltVersion,
    // Minions go before their master, and both before the directory they live in.
    minions: Vec<Minion>,
    master: Option<Server>,
    ports: Ports,
    root: PathBuf,
    _scratch: Scratch,
}

impl SaltLab {
    /// A lab of this release with one minion `m1`.
    pub fn builder(version: SaltVersion) -> SaltLabBuilder {
        SaltLabBuilder {
            version,
            scratch: Scratch::new(),
            minions: vec!["m1".to_owned()],
            master_options: Map::new(),
            minion_options: Map::new(),
        }
    }

    /// The release.
    pub fn version(&self) -> SaltVersion {
        self.version
    }

    /// The directory that Salt looks for returners in.
    pub fn returners_dir(&self) -> PathBuf {
        self.root.join("returners")
    }

    /// The lab's directory: the master lives in `m`, the minions in `n1`, `n2`, …, state files in `srv`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The master's log.
    pub fn master_log(&self) -> String {
        read(&self.root.join("m/log"))
    }

    /// The log of a minion.
    pub fn minion_log(&self, id: &str) -> String {
        read(&self.minion_by_id(id).dir.join("log"))
    }

    /// Runs `salt` with JSON output.
    pub fn salt(&self, args: &[&str]) -> Output {
        self.run("salt", &self.root.join("m"), &["--out=json", "--out-indent=-1"], args)
    }

    /// Runs `salt` and gives what each minion answered, an object by minion, whatever the exit code.
    pub fn salt_json(&self, args: &[&str]) -> Value {
        let output = self.salt(args);
        let mut answers = Map::new();
        for document in serde_json::Deserializer::from_str(&output.stdout).into_iter::<Value>() {
            match document {
                Ok(Value::Object(more)) => answers.extend(more),
                Ok(_) => {}
                Err(error) => panic!("`salt` did not print JSON: {error}\n{output}\n{}", self.tails()),
            }
        }
        assert!(!answers.is_empty(), "`salt` printed no answer\n{output}\n{}", self.tails());
        Value::Object(answers)
    }

    /// Publishes a job without waiting for it and gives its jid.
    pub fn publish(&self, args: &[&str]) -> String {
        let output = self.run("salt", &self.root.join("m"), &["--async"], args);
        let text = output.success();
        match text.split_whitespace().next_back() {
            Some(jid) if jid.len() >= 20 && jid.starts_with("20") => jid.to_owned(),
            _ => panic!("`salt --async` printed no jid: {text}\n{}", self.tails()),
        }
    }

    /// Runs `salt-run` with JSON output.
    pub fn salt_run(&self, args: &[&str]) -> Output {
        self.run("salt-run", &self.root.join("m"), &["--out=json"], args)
    }

    /// Runs `salt-run`, which must succeed, and gives its result.
    pub fn salt_run_json(&self, args: &[&str]) -> Value {
        self.salt_run(args).json()
    }

    /// Runs `salt-call` on a minion with JSON output.
    pub fn salt_call(&self, id: &str, args: &[&str]) -> Output {
        self.run("salt-call", &self.minion_by_id(id).dir, &["--out=json"], args)
    }

    /// Runs `salt-call` on a minion and gives the value that the function returned, whatever the exit code.
    pub fn salt_call_json(&self, id: &str, args: &[&str]) -> Value {
        self.salt_call(id, args).json_whatever_the_code()["local"].clone()
    }

    /// Waits until the job cache knows returns of all these minions for a job, asking with `jobs.lookup_jid`, and gives
    /// the answer. Salt stores a return only after it has shown it.
    pub fn lookup_jid_of(&self, jid: &str, ids: &[&str]) -> Value {
        wait_for_value(
            &format!("returns of {ids:?} for job {jid}"),
            Duration::from_secs(60),
            || self.tails(),
            || {
                let answer = self.salt_run_json(&["jobs.lookup_jid", jid]);
                ids.iter().all(|id| answer.get(id).is_some()).then_some(answer)
            },
        )
    }

    /// Stops master and minions with SIGTERM. It takes seconds; a test that does not care lets the lab drop instead.
    pub fn stop(mut self) {
        let servers: Vec<Server> = self
            .minions
            .iter_mut()
            .filter_map(|minion| minion.server.take())
            .chain(self.master.take())
            .collect();
        end(servers);
    }

    /// Ends the master and starts it again with the same keys and job cache, and waits for the minions to come back.
    pub fn restart_master(&mut self) {
        if let Some(server) = self.master.take() {
            server.terminate(STOP_LIMIT);
        }
        self.start_master();
        self.await_master();
        let (publish, minions) = (self.ports.publish, self.minions.len());
        wait_for_value("the minions to come back", START_LIMIT, self.tails_later(), || {
            (established_to(publish) >= minions).then_some(())
        });
    }

    /// Ends the minions and starts them again. A minion of Salt 3008 that has outlived its master learns the new one's key by the first
    /// job, and now and then sends what that job returned with the old one. It then waits 30 s for an answer and gives up.
    pub fn restart_minions(&mut self) {
        end(self.minions.iter_mut().filter_map(|minion| minion.server.take()).collect());
        self.start_minions();
    }

    /// Changes options of the master, an object, and restarts it.
    pub fn reconfigure_master(&mut self, options: Value) {
        let file = self.root.join("m/master");
        let mut all: Options = serde_json::from_str(&read(&file)).unwrap();
        extend(&mut all, options);
        fs::write(file, Value::Object(all).to_string()).unwrap();
        self.restart_master();
    }

    /// The last lines of all logs, for messages.
    pub fn tails(&self) -> String {
        let mut files = vec![self.root.join("m/out"), self.root.join("m/log")];
        for minion in &self.minions {
            files.extend([minion.dir.join("out"), minion.dir.join("log")]);
        }
        tails(files.iter().map(PathBuf::as_path), 25)
    }

    /// Runs a Python program with this release of Salt; it gets the master's configuration directory and `input`.
    pub fn python(&self, program: &str, input: &str) -> Output {
        let mut command = Command::new(self.bin.join("python"));
        command.args(["-c", program]).arg(self.root.join("m")).arg(input);
        run(self.environment(&mut command), COMMAND_LIMIT)
    }

    fn minion_by_id(&self, id: &str) -> &Minion {
        match self.minions.iter().find(|minion| minion.id == id) {
            Some(minion) => minion,
            None => panic!("the lab has no minion `{id}`"),
        }
    }

    fn command(&self, program: &str, config: &Path) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.arg("-c").arg(config);
        self.environment(&mut command);
        command
    }

    fn environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        // Salt keeps a token and a cache in the home directory, which must not be the user's.
        command.env("HOME", self.root.join("home"));
        command.env("LC_ALL", "C.UTF-8").env("PYTHONWARNINGS", "ignore").env_remove("PYTHONPATH")
    }

    fn run(&self, program: &str, config: &Path, options: &[&str], args: &[&str]) -> Output {
        run(self.command(program, config).args(options).args(args), COMMAND_LIMIT)
    }

    fn start_master(&mut self) {
        let config = self.root.join("m");
        let mut command = self.command("salt-master", &config);
        self.master = Some(Server::start("salt-master", &mut command, &config.join("out")));
    }

    fn await_master(&mut self) {
        let sockets = self.root.join("m/s");
        let ret = self.ports.ret;
        let context = self.tails_later();
        let Some(master) = &mut self.master else { panic!("the master was not started") };
        wait_for_value("the master", START_LIMIT, context, || {
            master.must_run();
            let ready = is_socket(&sockets.join("publish_pull.ipc"))
                && is_socket(&sockets.join("master_event_pub.ipc"))
                && TcpStream::connect(("127.0.0.1", ret)).is_ok();
            ready.then_some(())
        });
    }

    /// Starts all minions at once and waits for them.
    fn start_minions(&mut self) {
        for index in 0..self.minions.len() {
            self.launch_minion(index);
        }
        for index in 0..self.minions.len() {
            self.await_minion(index);
        }
    }

    fn launch_minion(&mut self, index: usize) {
        let dir = self.minions[index].dir.clone();
        self.minions[index].log_from = read(&dir.join("log")).len();
        let mut command = self.command("salt-minion", &dir);
        self.minions[index].server = Some(Server::start("salt-minion", &mut command, &dir.join("out")));
    }

    fn await_minion(&mut self, index: usize) {
        self.await_master();
        let context = self.tails_later();
        let publish = self.ports.publish;
        let Some(master) = &mut self.master else { panic!("the master was not started") };
        let Minion { id, dir, server, log_from } = &mut self.minions[index];
        let Some(server) = server else { panic!("minion `{id}` was not started") };
        let log = dir.join("log");
        wait_for_value(&format!("minion `{id}`"), START_LIMIT, context, || {
            master.must_run();
            server.must_run();
            // It says so after the master has answered it; the subscription is its connection to the publish port.
            let said = read(&log)
                .get(*log_from..)
                .is_some_and(|log| log.contains("Minion is ready to receive requests!"));
            let ready = said && established_to(publish) > index;
            ready.then_some(())
        });
    }

    fn tails_later(&self) -> impl FnOnce() -> String + use<> {
        let mut files = vec![self.root.join("m/out"), self.root.join("m/log")];
        files.extend(self.minions.iter().flat_map(|minion| [minion.dir.join("out"), minion.dir.join("log")]));
        move || tails(files.iter().map(PathBuf::as_path), 25)
    }
}

fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

/// Ends servers, all at the same time, and waits for them.
fn end(servers: Vec<Server>) {
    for server in &servers {
        server.signal(Signal::SIGTERM);
    }
    for server in servers {
        server.wait(STOP_LIMIT);
    }
}

/// How many connections of this machine to this port on 127.0.0.1 are established, seen from the client's side.
fn established_to(port: u16) -> usize {
    let remote = format!("0100007F:{port:04X}");
    let table = read(Path::new("/proc/net/tcp"));
    let connected = |line: &&str| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next() == Some(remote.as_str()) && fields.next() == Some("01")
    };
    table.lines().filter(connected).count()
}
