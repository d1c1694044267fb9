//! Stored jobs that become many: the list of jobs and the look-up of one, through the daemon, by store.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use returnerd_tests::client::Client;
use returnerd_tests::daemon::Daemon;
use returnerd_tests::mariadb::{MariaDb, installed};
use rusqlite::Connection;
use serde_json::{Value, json};

use super::exponent;
use super::lab::{a_return, wait_until_empty};
use crate::figure;

const COUNTS: [u32; 3] = [1_000, 100_000, 1_000_000];
const LOOKUPS: u32 = 100;
/// Jobs in one statement of the filling.
const STEP: u32 = 100_000;

/// Runs SQL in a store.
type Sql<'a> = &'a dyn Fn(&str);
/// The statements that store the jobs with these numbers.
type Fill = fn(u32, u32) -> Vec<String>;

pub(crate) fn run() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("jobs.db");
    measure("sqlite3", &json!({ "sqlite3.database": file }), sqlite, &|sql| {
        Connection::open(&file).unwrap().execute_batch(&format!("PRAGMA synchronous = OFF; {sql}")).unwrap();
    });
    if installed().is_none() {
        eprintln!("SKIPPED: `mariadbd` is not installed");
        return;
    }
    let server = MariaDb::start(&["--innodb-flush-log-at-trx-commit=0", "--innodb-log-file-size=256M"]);
    let opts = json!({ "mysql.host": "127.0.0.1", "mysql.port": server.port() });
    measure("mysql", &opts, mysql, &|sql| {
        server.sql("salt", sql);
    });
}

fn measure(store: &str, opts: &Value, fill: Fill, sql: Sql<'_>) {
    let mut daemon = Daemon::builder().plugins(&[store]).start();
    let mut client = daemon.client().with_opts(opts.clone());
    // The plugin makes its tables.
    client.return_(store, a_return(999_999_999, "x")).done();
    wait_until_empty(&mut client, Duration::from_secs(30));
    let mut there = 0;
    let (mut newest, mut all, mut lookups) = (Vec::new(), Vec::new(), Vec::new());
    for count in COUNTS {
        for from in (there..count).step_by(STEP as usize) {
            for statement in fill(from, count.min(from + STEP)) {
                sql(&statement);
            }
        }
        there = count;
        let name = format!("{store}_jobs_{count}");
        let points = [
            (&mut newest, "newest_50", newest_50(&mut client, store)),
            (&mut all, "list", whole_list(&mut client, store)),
            (&mut lookups, "look_up", look_up(&mut client, store, count)),
        ];
        for (series, what, ms) in points {
            figure(&format!("{name}_{what}"), ms, "ms");
            series.push((f64::from(count), ms));
        }
    }
    for (what, series) in [("newest_50", newest), ("list", all), ("look_up", lookups)] {
        exponent(&format!("{store}_jobs_{what}"), &series);
    }
    drop(client);
    daemon.stop();
}

fn newest_50(client: &mut Client, store: &str) -> f64 {
    let ask = |client: &mut Client| {
        let keys = json!({ "count": 50, "filter_find_job": true });
        assert_eq!(client.query("get_jids_filter", store, keys).json().as_array().unwrap().len(), 50);
    };
    ask(client);
    let began = Instant::now();
    (0..10).for_each(|_| ask(client));
    began.elapsed().as_secs_f64() * 1e3 / 10.0
}

/// What Salt's `jobs.list_jobs` asks for. The daemon cuts it at a size.
fn whole_list(client: &mut Client, store: &str) -> f64 {
    let began = Instant::now();
    let jobs = client.query("get_jids", store, json!({})).done();
    let took = began.elapsed().as_secs_f64() * 1e3;
    figure(&format!("{store}_listed"), jobs.as_map().unwrap().len() as f64, "jobs");
    took
}

fn look_up(client: &mut Client, store: &str, count: u32) -> f64 {
    let began = Instant::now();
    for number in 0..LOOKUPS {
        let jid = jid(number * (count / LOOKUPS));
        let found = client.query("get_jid", store, json!({ "jid": jid })).json();
        assert_eq!(found.as_object().unwrap().len(), 1, "{jid}");
    }
    began.elapsed().as_secs_f64() * 1e3 / f64::from(LOOKUPS)
}

fn jid(number: u32) -> String {
    format!("20250101{number:012}")
}

/// The load and the one return of a job, as SQL text with `JID` in it.
const LOAD: &str = r#"{"fun": "test.ping", "arg": [], "tgt": "*", "tgt_type": "glob", "user": "root", "Minions": ["minion-1"], "jid": ""#;
const RETURN: &str = r#"{"fun": "test.ping", "fun_args": [], "id": "minion-1", "return": true, "success": true, "retcode": 0, "jid": ""#;

fn sqlite(from: u32, to: u32) -> Vec<String> {
    let numbers =
        format!("WITH RECURSIVE n(i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {to})");
    let jid = "printf('20250101%012d', i)";
    let mut sql = String::from("BEGIN;");
    let _ = write!(
        sql,
        "INSERT INTO jids (jid, load) {numbers} SELECT {jid}, '{LOAD}' || {jid} || '\"}}' FROM n;"
    );
    let _ = write!(
        sql,
        "INSERT INTO salt_returns (fun, jid, id, fun_args, date, full_ret, success) {numbers} \
         SELECT 'test.ping', {jid}, 'minion-1', '[]', '2025-01-01 00:00:00.000000', '{RETURN}' || {jid} || '\"}}', '1' FROM n;"
    );
    sql.push_str("COMMIT;");
    vec![sql]
}

fn mysql(from: u32, to: u32) -> Vec<String> {
    let jid = "concat('20250101', lpad(seq, 12, '0'))";
    let numbers = format!("seq_{from}_to_{}", to - 1);
    vec![
        format!(
            "INSERT INTO jids (jid, `load`) SELECT {jid}, concat('{LOAD}', {jid}, '\"}}') FROM {numbers}"
        ),
        format!(
            "INSERT INTO salt_returns (fun, jid, `return`, id, success, full_ret) \
             SELECT 'test.ping', {jid}, 'true', 'minion-1', '1', concat('{RETURN}', {jid}, '\"}}') FROM {numbers}"
        ),
    ]
}
