//! Ours beside Salt's own returner `mysql`: the same Python makes the same returns in the same loop, into the same MariaDB, through
//! Salt 3006's returner or through our shim and the daemon.
//!
//! A client is a process, as Salt's are. `warm` keeps its connection, `new` makes a process for each return, as a minion does for
//! each job. Beside both stands a returner that does nothing: what Python alone takes, which nobody can go below.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use returnerd_tests::daemon::Daemon;
use returnerd_tests::env;
use returnerd_tests::mariadb::DOCUMENTED_TABLES;
use returnerd_tests::mariadb::{self, MariaDb};
use returnerd_tests::proc::{Scratch, run as run_command};
use returnerd_tests::wait::wait_for_value;
use serde_json::{Value, json};

use crate::figures::{figure, quantile, row};

const CLIENTS: [u32; 3] = [1, 10, 100];
/// How long the clients of one run work.
const SECONDS: f64 = 2.0;
const LIMIT: Duration = Duration::from_secs(120);

struct Bench {
    server: MariaDb,
    daemon: Daemon,
    scratch: Scratch,
    runs: u32,
}

/// Whose returner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Nobodys,
    Salts,
    Ours,
}

impl Whose {
    fn name(self) -> &'static str {
        match self {
            Self::Nobodys => "python",
            Self::Salts => "salt",
            Self::Ours => "ours",
        }
    }
}

struct Found {
    /// Calls that came back, per second.
    called: f64,
    /// Returns stored, per second, to the last row.
    stored: f64,
    times: Vec<f64>,
    syncs: Vec<f64>,
    connections: u64,
    count: usize,
}

pub(crate) fn run() {
    if mariadb::installed().is_none() {
        println!("# SKIPPED: beside Salt: `mariadbd` is not installed");
        return;
    }
    let mut bench = Bench::start();
    // Not counted: until the spool's log has its size, each sync also has to make it longer.
    bench.calls(Whose::Ours, "warm", 1, false);
    acknowledgement(&mut bench);
    for how in ["warm", "new"] {
        row(&[&format!("{how} process"), "clients", "stored/s", "p50 us", "p99 us", "connections"]);
        for clients in CLIENTS {
            let mut found = [Whose::Nobodys, Whose::Salts, Whose::Ours].map(|whose| {
                let mut found = bench.calls(whose, how, clients, false);
                let key = format!("{}_{how}_{clients}", whose.name());
                let (p50, p99) = (quantile(&mut found.times, 0.5), quantile(&mut found.times, 0.99));
                figure(&format!("called_{key}"), found.called, "per_s");
                figure(&format!("call_p50_{key}"), p50, "us");
                figure(&format!("call_p99_{key}"), p99, "us");
                if whose != Whose::Nobodys {
                    figure(&format!("stored_{key}"), found.stored, "per_s");
                    figure(&format!("connections_{key}"), found.connections as f64, "connections");
                    let each = found.connections as f64 / found.count as f64;
                    figure(&format!("connections_per_return_{key}"), each, "ratio");
                }
                let cells = [
                    clients.to_string(),
                    format!("{:.0}", found.stored),
                    format!("{p50:.0}"),
                    format!("{p99:.0}"),
                    found.connections.to_string(),
                ];
                row(&[whose.name(), &cells[0], &cells[1], &cells[2], &cells[3], &cells[4]]);
                found
            });
            let [python, salts, ours] = &mut found;
            figure(&format!("ours_to_salt_stored_{how}_{clients}"), ours.stored / salts.stored, "ratio");
            figure(&format!("ours_to_salt_called_{how}_{clients}"), ours.called / salts.called, "ratio");
            figure(&format!("python_to_salt_called_{how}_{clients}"), python.called / salts.called, "ratio");
            for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
                let ratio = quantile(&mut ours.times, part) / quantile(&mut salts.times, part);
                figure(&format!("ours_to_salt_{name}_{how}_{clients}"), ratio, "ratio");
            }
        }
    }
    bench.daemon.stop();
}

/// One client, whose calls take turns with bare fdatasyncs of as many bytes.
fn acknowledgement(bench: &mut Bench) {
    let mut found = bench.calls(Whose::Ours, "warm", 1, true);
    for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
        let (call, sync) = (quantile(&mut found.times, part), quantile(&mut found.syncs, part));
        figure(&format!("shim_ack_{name}"), call, "us");
        figure(&format!("shim_fdatasync_{name}"), sync, "us");
        figure(&format!("shim_ack_to_fdatasync_{name}"), call / sync, "ratio");
    }
}

impl Bench {
    fn start() -> Self {
        let server = MariaDb::start(&["--max-allowed-packet=64M", "--innodb-log-file-size=512M"]);
        for name in ["salts", "ours"] {
            server.database(name);
        }
        // Salt's returner makes no tables.
        server.sql("salts", DOCUMENTED_TABLES);
        let scratch = Scratch::new();
        let daemon = Daemon::builder().plugins(&["mysql"]).quiet().start();
        let shims = scratch.path().join("returners");
        daemon.cli(&["salt", "install", "--dir", &shims.display().to_string()]).success();
        Self { server, daemon, scratch, runs: 0 }
    }

    fn calls(&mut self, whose: Whose, how: &str, clients: u32, beside: bool) -> Found {
        self.runs += 1;
        let mut opts = json!({
            "mysql.host": "127.0.0.1", "mysql.port": self.server.port(), "mysql.user": "salt", "mysql.pass": "salt",
            "mysql.db": if whose == Whose::Salts { "salts" } else { "ours" },
        });
        if whose == Whose::Ours {
            opts["returner_dirs"] = json!([self.scratch.path().join("returners")]);
            opts["returnerd"] =
                json!({"socket": self.daemon.socket(), "inbox": self.daemon.inbox(), "timeout": 30});
        }
        let mut given = json!({
            "opts": opts, "clients": clients, "how": how, "seconds": SECONDS,
            "prefix": format!("202612{:02}", self.runs),
        });
        if whose != Whose::Nobodys {
            given["returner"] = json!("mysql");
        }
        if beside {
            given["beside"] = json!(self.daemon.root().join("bare"));
        }
        let file = self.scratch.write("given.json", &given.to_string());
        let before = self.connections();
        let mut command = Command::new(env::salt_bin("3006.26").join("python"));
        command.env("PYTHONDONTWRITEBYTECODE", "1").arg("-Wignore");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/bench/returner.py")).arg(file);
        let answer = run_command(&mut command, LIMIT).json();
        let stored_by = if whose == Whose::Ours {
            self.drained();
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
                - answer["began"].as_f64().unwrap()
        } else {
            answer["seconds"].as_f64().unwrap()
        };
        let connections = self.connections() - before - 1;
        let count = answer["count"].as_u64().unwrap();
        self.all_are_stored(whose, how, clients, count);
        let list = |name: &str| answer[name].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
        Found {
            called: count as f64 / answer["seconds"].as_f64().unwrap(),
            stored: count as f64 / stored_by,
            times: list("times"),
            syncs: list("syncs"),
            connections,
            count: usize::try_from(count).unwrap(),
        }
    }

    fn all_are_stored(&self, whose: Whose, how: &str, clients: u32, count: u64) {
        let database = match whose {
            Whose::Nobodys => return,
            Whose::Salts => "salts",
            Whose::Ours => "ours",
        };
        let like = format!("202612{:02}%", self.runs);
        let sql = format!("SELECT count(*) FROM salt_returns WHERE jid LIKE '{like}'");
        let rows: u64 = self.server.sql(database, &sql).trim().parse().unwrap();
        let warm = if how == "warm" { u64::from(clients) } else { 0 };
        assert_eq!(rows, count + warm, "all returns of `{database}` are stored\n{}", self.daemon.tail());
    }

    /// How many connections the server has ever had, this one included.
    fn connections(&self) -> u64 {
        let line = self.server.root("SHOW GLOBAL STATUS LIKE 'Connections'");
        line.split_whitespace().next_back().unwrap().parse().unwrap()
    }

    fn drained(&self) {
        wait_for_value(
            "the lane to run empty",
            LIMIT,
            || self.daemon.tail(),
            || {
                let status: Value = self.daemon.cli(&["status", "--json"]).json_whatever_the_code();
                (status["spool"]["items"] == 0).then_some(())
            },
        );
    }
}
