//! How much an outside system holds Salt up: `salt '*' test.ping` with a healthy, a slow and an absent database behind the master's
//! job cache, for ours, Salt's own `mysql`, and Salt's own `local_cache`, which has no database.
//!
//! Three masters with two minions each run side by side and take turns, so that what the machine does meanwhile hits all three.

use std::time::Duration;

use returnerd_tests::daemon::Daemon;
use returnerd_tests::mariadb::DOCUMENTED_TABLES;
use returnerd_tests::mariadb::{self, MariaDb};
use returnerd_tests::salt::{SaltLab, SaltLabBuilder, SaltVersion};
use serde_json::{Value, json};

use crate::figures::{figure, quantile, row};

const MINIONS: [&str; 2] = ["m1", "m2"];
/// Seconds that each row takes a slow database.
const SLOW: u32 = 2;

struct Master {
    name: &'static str,
    lab: SaltLab,
}

pub(crate) fn run() {
    if mariadb::installed().is_none() {
        println!("# SKIPPED: coupling: `mariadbd` is not installed");
        return;
    }
    let mut server = MariaDb::start(&[]);
    for database in ["salts", "ours"] {
        server.database(database);
    }
    server.sql("salts", DOCUMENTED_TABLES);
    let ours = SaltLab::builder(SaltVersion::V3006);
    let mut daemon = Daemon::builder()
        .plugins(&["mysql"])
        .quiet()
        .tables(&format!("[salt]\nconfig_dir = {:?}\n", ours.config_dir()))
        .start();
    let ours = ours.shims_of(&daemon).master(with_database(&server, "ours"));
    let salts = SaltLab::builder(SaltVersion::V3006).master(with_database(&server, "salts"));
    let local = SaltLab::builder(SaltVersion::V3006);
    let masters = start([("local_cache", local), ("ours", ours), ("salt_mysql", salts)]);

    row(&["salt '*' test.ping", "local_cache s", "ours s", "Salt's mysql s", "all answered"]);
    pings(&masters, "warm_up", 1);
    pings(&masters, "healthy", 6);
    // Once the plugin has made its tables.
    for (database, table) in
        [("ours", "jids"), ("ours", "salt_returns"), ("salts", "jids"), ("salts", "salt_returns")]
    {
        let sql =
            format!("CREATE TRIGGER slow_{table} BEFORE INSERT ON {table} FOR EACH ROW DO SLEEP({SLOW})");
        server.sql(database, &sql);
    }
    pings(&masters, "slow", 4);
    server.kill();
    pings(&masters, "down", 7);
    daemon.must_run();
    drop(masters);
    daemon.stop();
}

fn with_database(server: &MariaDb, database: &str) -> Value {
    json!({
        "master_job_cache": "mysql", "mysql.host": "127.0.0.1", "mysql.port": server.port(), "mysql.user": "salt",
        "mysql.pass": "salt", "mysql.db": database,
    })
}

fn start<const N: usize>(builders: [(&'static str, SaltLabBuilder); N]) -> Vec<Master> {
    std::thread::scope(|scope| {
        let starting = builders.map(|(name, builder)| {
            let lab = move || Master { name, lab: builder.minions(&MINIONS).start() };
            scope.spawn(lab)
        });
        starting.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Pings in turn; prints the median time of each master and its ratio to that of `local_cache`, the first of them.
fn pings(masters: &[Master], state: &str, rounds: usize) {
    let mut times: Vec<Vec<f64>> = masters.iter().map(|_| Vec::new()).collect();
    let mut complete = vec![0; masters.len()];
    for _ in 0..rounds {
        for (at, master) in masters.iter().enumerate() {
            let output = master.lab.salt(&["*", "test.ping"]);
            times[at].push(output.took.as_secs_f64());
            let answered = |id: &&str| output.stdout.contains(&format!("\"{id}\": true"));
            complete[at] += usize::from(MINIONS.iter().all(answered));
        }
    }
    if state == "warm_up" {
        return;
    }
    let medians: Vec<f64> = times.iter_mut().map(|times| quantile(times, 0.5)).collect();
    for ((master, median), complete) in masters.iter().zip(&medians).zip(&complete) {
        let key = format!("{}_{state}", master.name);
        figure(&format!("ping_{key}"), *median, "s");
        figure(&format!("ping_complete_{key}"), *complete as f64 / rounds as f64, "ratio");
        figure(&format!("ping_to_local_cache_{key}"), median / medians[0], "ratio");
    }
    let cells: Vec<String> = medians.iter().map(|median| format!("{median:.2}")).collect();
    let all: Vec<String> = complete.iter().map(|complete| format!("{complete}/{rounds}")).collect();
    row(&[state, &cells[0], &cells[1], &cells[2], &all.join(" ")]);
    // What the slow database has still to do belongs to no other state.
    std::thread::sleep(Duration::from_millis(500));
}
