//! Server processes of the tests: their start, their end, and that none outlives the test.
//!
//! Each runs in a process group of its own, so that its children end with it. A small guard process holds a pipe from
//! the test: if the test's process goes away without saying so (a kill, Ctrl-C), the guard ends the group.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::wait::tails;

/// How a command of a test ended.
#[derive(Debug)]
pub struct Output {
    /// The exit code, or 128 and the signal as a shell counts.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// From start to end.
    pub took: Duration,
    /// The command, for messages.
    pub command: String,
}

impl Output {
    /// Standard output of a command that must have succeeded.
    pub fn success(self) -> String {
        assert!(self.code == 0, "the command failed\n{self}");
        self.stdout
    }

    /// Standard output of a command that must have succeeded, as JSON.
    pub fn json(self) -> serde_json::Value {
        assert!(self.code == 0, "the command failed\n{self}");
        self.json_whatever_the_code()
    }

    /// Standard output as JSON, also of a command that reports a failed job by its exit code.
    pub fn json_whatever_the_code(self) -> serde_json::Value {
        // A runner's progress lines may stand before the document.
        let start = self.stdout.find(['{', '[', '"']).unwrap_or(0);
        match serde_json::from_str(&self.stdout[start..]) {
            Ok(value) => value,
            Err(error) => panic!("the output is not JSON: {error}\n{self}"),
        }
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code, stdout, stderr, took, command } = self;
        write!(
            out,
            "$ {command}\nexit code {code} after {took:.1?}\n--- stdout\n{stdout}\n--- stderr\n{stderr}"
        )
    }
}

/// Runs a command to its end, with no standard input. One that takes longer than `limit` is killed with its
/// children, and the test panics.
pub fn run(command: &mut Command, limit: Duration) -> Output {
    let text = describe(command);
    let began = Instant::now();
    let mut files = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    let mut child = command
        .stdin(Stdio::null())
        .stdout(files.0.try_clone().unwrap())
        .stderr(files.1.try_clone().unwrap())
        .process_group(0)
        .spawn()
        .unwrap_or_else(|error| panic!("`{text}` does not start: {error}"));
    let (status, in_time) = match wait_for_exit(&mut child, limit) {
        Some(status) => (status, true),
        None => {
            let _ = killpg(pid(&child), Signal::SIGKILL);
            (child.wait().unwrap(), false)
        }
    };
    let output = Output {
        code: exit_code(status),
        stdout: read_from_start(&mut files.0),
        stderr: read_from_start(&mut files.1),
        took: began.elapsed(),
        command: text,
    };
    assert!(in_time, "the command was killed after {limit:?}\n{output}");
    output
}

fn read_from_start(file: &mut File) -> String {
    use io::{Read, Seek};
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn describe(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap())
}

fn wait_for_exit(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if began.elapsed() >= limit {
            return None;
        }
        sleep(Duration::from_millis(10));
    }
}

/// A running server. Dropping it kills its whole process group at once.
#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
    guard: Option<Child>,
    log: PathBuf,
}

impl Server {
    /// Starts a server whose output goes to the end of `log`.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Self {
        let output = File::options().create(true).append(true).open(log).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("`{}` does not start: {error}", describe(command)));
        let guard = Command::new("sh")
            .arg("-c")
            .arg(format!("read -r _; kill -KILL -{}", child.id()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("`sh` does not start");
        Self { name: name.to_owned(), child, guard: Some(guard), log: log.to_path_buf() }
    }

    /// The process id of the server's main process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The processor time that it, its children and the processes of its group have taken, with those of its children that have ended.
    pub fn cpu(&self) -> Duration {
        let group = self.child.id().to_string();
        let ticks: u64 = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("stat")).ok())
            .filter_map(|stat| {
                // proc_pid_stat(5), from the field behind the name on: parent and group are the second and third, the times the
                // 12th and on. PostgreSQL's processes have groups of their own.
                let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
                let leader = stat.split_whitespace().next() == Some(group.as_str());
                let times = fields.get(11..if leader { 15 } else { 13 })?;
                fields
                    .get(1..3)?
                    .contains(&group.as_str())
                    .then(|| times.iter().filter_map(|time| time.parse::<u64>().ok()).sum::<u64>())
            })
            .sum();
        // The kernel tells times in hundredths of a second, whatever its own clock.
        Duration::from_millis(10 * ticks)
    }

    /// Panics with the tail of the log if the server has ended.
    pub fn must_run(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("`{}` has ended by itself: {status}\n{}", self.name, tails([self.log.as_path()], 40));
        }
    }

    /// Sends a signal to the main process only.
    pub fn signal(&self, signal: Signal) {
        kill(pid(&self.child), signal).unwrap();
    }

    /// Ends it with SIGTERM and gives its exit code. One that does not end in time is killed, and the test panics.
    pub fn terminate(mut self, limit: Duration) -> i32 {
        self.dismiss_guard();
        if self.child.try_wait().unwrap().is_none() {
            self.signal(Signal::SIGTERM);
        }
        match wait_for_exit(&mut self.child, limit) {
            Some(status) => exit_code(status),
            None => panic!(
                "`{}` did not end within {limit:?} of SIGTERM\n{}",
                self.name,
                tails([self.log.as_path()], 40)
            ),
        }
    }

    /// Waits until it has ended by itself and gives its exit code.
    pub fn wait(mut self, limit: Duration) -> i32 {
        match wait_for_exit(&mut self.child, limit) {
            Some(status) => exit_code(status),
            None => panic!("`{}` still runs after {limit:?}\n{}", self.name, tails([self.log.as_path()], 40)),
        }
    }

    /// Kills it with all its children, as a power cut would.
    pub fn kill(self) {
        drop(self);
    }

    fn dismiss_guard(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            let _ = guard.kill();
            let _ = guard.wait();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The guard goes first: afterwards the group's number may belong to somebody else.
        self.dismiss_guard();
        let _ = killpg(pid(&self.child), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// A scratch directory with a short path, since unix sockets in it have names of at most 107 bytes. It is removed at
/// the end, unless the test fails or `RETURNERD_KEEP` is set: then its path is printed.
#[derive(Debug)]
pub struct Scratch {
    dir: Option<tempfile::TempDir>,
}

impl Scratch {
    /// Makes one.
    pub fn new() -> Self {
        let temp = std::env::temp_dir();
        Self::new_in(&if temp.as_os_str().len() > 30 { PathBuf::from("/tmp") } else { temp })
    }

    /// Makes one in this directory.
    pub fn new_in(base: &Path) -> Self {
        let dir = tempfile::Builder::new().prefix("rd-").rand_bytes(6).tempdir_in(base).unwrap();
        Self { dir: Some(dir) }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.dir.as_ref().expect("it is there until dropped").path()
    }

    /// Writes a file in it, with the directories it lies in, and gives its path.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if (std::thread::panicking() || std::env::var_os("RETURNERD_KEEP").is_some())
            && let Some(dir) = self.dir.take()
        {
            eprintln!("kept for a look: {}", dir.keep().display());
        }
    }
}

/// A loopback port on which nothing listens, below the range from which the kernel takes ports for clients.
pub fn free_port() -> u16 {
    for _ in 0..1000 {
        let port = fastrand::u16(15_000..32_000);
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port on 127.0.0.1");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::wait_for;

    #[test]
    fn a_dropped_server_takes_its_children_along() {
        let scratch = Scratch::new();
        let file = scratch.path().join("child");
        let script = format!("sleep 300 & echo $! >{0}.tmp; mv {0}.tmp {0}; wait", file.display());
        let server =
            Server::start("sh", Command::new("sh").arg("-c").arg(script), &scratch.path().join("log"));
        wait_for("the child's number", Duration::from_secs(5), || file.exists());
        let child = Pid::from_raw(fs::read_to_string(&file).unwrap().trim().parse().unwrap());
        assert!(kill(child, None).is_ok());
        drop(server);
        wait_for("the child's end", Duration::from_secs(5), || {
            let state = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            state.is_empty() || state.contains(") Z ")
        });
    }

    #[test]
    fn a_terminated_server_gives_its_exit_code() {
        let scratch = Scratch::new();
        let ready = scratch.path().join("ready");
        let script = format!("trap 'exit 7' TERM; touch {}; while :; do sleep 0.02; done", ready.display());
        let server =
            Server::start("sh", Command::new("sh").arg("-c").arg(script), &scratch.path().join("log"));
        wait_for("the trap", Duration::from_secs(5), || ready.exists());
        assert_eq!(server.terminate(Duration::from_secs(5)), 7);
    }

    #[test]
    fn output_of_a_command_is_read_with_its_code() {
        let output =
            run(Command::new("sh").arg("-c").arg("echo '{\"a\": 1}'; exit 3"), Duration::from_secs(5));
        assert_eq!(output.code, 3);
        assert_eq!(output.json_whatever_the_code()["a"], 1);
    }
}
