//! The daemon of the suite, its sinks and what is read from `status`.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::neighbour::Neighbour;
use crate::client::{Answer, Client};
use crate::daemon::Daemon;
use crate::env;

/// A reason must be visible in this time.
const LIMIT: Duration = Duration::from_secs(90);

/// Limits of the hostile plugin, low so that a case is quick. The retries of one case shall not disturb the next for long.
const TABLES: &str = r#"
[delivery]
first_retry = "300ms"
longest_retry = "30s"

[plugin.hostile]
memory = "48 MiB"
cpu_per_call = "300ms"
call_within = "1500ms"
quarantine_after = 5

[plugin.web]
call_within = "1500ms"

[plugin.start_loop]
cpu_per_call = "300ms"
quarantine_after = 2

[plugin.start_bulk]
cpu_per_call = "300ms"
quarantine_after = 2
"#;

/// See the module.
pub struct Lab {
    /// The daemon.
    pub daemon: Daemon,
    /// The well-behaved sink.
    pub neighbour: Neighbour,
    /// A directory that hostile sinks may be granted.
    pub directory: PathBuf,
    pid: u32,
    number: AtomicU64,
}

impl Lab {
    /// Starts the daemon and the neighbour.
    pub fn start() -> Self {
        let mut daemon = Daemon::builder().plugins(&["sqlite3"]).tables(TABLES).prepare();
        for guest in ["probe", "hostile", "web"] {
            daemon.drop_plugin_file(guest, &env::guest(guest));
        }
        let directory = daemon.root().join("data");
        fs::create_dir(&directory).unwrap();
        daemon.start();
        let pid = daemon.pid().unwrap();
        let neighbour = Neighbour::start(&daemon);
        Self { daemon, neighbour, directory, pid, number: AtomicU64::new(0) }
    }

    /// A connection whose master's configuration has these options.
    pub fn client(&self, options: &Value) -> Client {
        self.daemon.client().with_opts(options.clone())
    }

    /// A job id that was not used before.
    pub fn jid(&self) -> String {
        format!("20261202{:012}", self.number.fetch_add(1, Ordering::Relaxed))
    }

    /// Hands a return over.
    pub fn give(&self, returner: &str, options: &Value) -> Answer {
        let ret = json!({ "jid": self.jid(), "id": "m1", "fun": "test.ping", "return": true, "retcode": 0 });
        self.client(options).return_(returner, ret)
    }

    /// What the daemon says of itself. The exit code tells of stuck lanes, which is what these are.
    pub fn status(&self) -> Value {
        self.daemon.cli(&["status", "--json"]).json_whatever_the_code()
    }

    /// The sink of the hostile plugin that has this mode.
    pub fn sink(&self, mode: &str) -> Value {
        let status = self.status();
        let mut sinks = status["sinks"].as_array().into_iter().flatten();
        sinks.find(|sink| sink["options"]["mode"] == mode).cloned().unwrap_or_default()
    }

    /// Waits until the text that `find` takes from the status has all these words.
    pub fn wait_for(&self, words: &[&str], find: impl Fn(&Self) -> String) -> Result<String, String> {
        let began = Instant::now();
        loop {
            let text = find(self);
            if text.contains("ESCAPED") {
                return Err(text);
            }
            if words.iter().all(|word| text.contains(word)) {
                return Ok(text);
            }
            if began.elapsed() > LIMIT {
                return Err(format!("`{}` is not in the status, which has: {text}", words.join("`, `")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for the reason why a file is not loaded.
    pub fn broken(&self, file: &str, words: &[&str]) -> Result<String, String> {
        self.wait_for(words, |lab| {
            let status = lab.status();
            let mut broken = status["broken"].as_array().into_iter().flatten();
            let found = broken.find(|row| row["path"].as_str().is_some_and(|path| path.ends_with(file)));
            found.and_then(|row| row["error"].as_str()).unwrap_or_default().to_owned()
        })
    }

    /// Whether the daemon was never away.
    pub fn must_be_the_same(&mut self) -> Result<(), String> {
        self.daemon.must_run();
        match self.status()["pid"].as_u64() {
            Some(pid) if pid == u64::from(self.pid) => Ok(()),
            other => Err(format!("the daemon's process was {} and is {other:?}", self.pid)),
        }
    }
}

/// The beginning of a text, on one line.
pub fn cut(text: &str, most: usize) -> String {
    let text = text.replace('\n', " ");
    let mut cut: String = text.chars().take(most).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}
