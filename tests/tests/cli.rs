//! The command line: what it prints, and the exit codes that scripts rely on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use returnerd_tests::daemon::{Daemon, DaemonBuilder};
use returnerd_tests::env;
use returnerd_tests::proc::{Output, Scratch, free_port, run};
use returnerd_tests::wait::wait_for;
use serde_json::{Value, json};
use support::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn init_makes_what_check_and_serve_need() {
    let scratch = Scratch::new();
    let (config, state) = (scratch.path().join("etc/returnerd.toml"), scratch.path().join("state"));
    let socket = scratch.path().join("run/s");
    let init = ["init", "--state-dir", state.to_str().unwrap(), "--socket", socket.to_str().unwrap()];
    returnerd(&config, &init).success();
    assert_eq!(mode(&config), 0o640, "options with passwords may be in it");
    for (directory, expected) in
        [("", 0o711), ("spool", 0o700), ("cache", 0o700), ("plugins", 0o755), ("inbox", 0o700)]
    {
        assert_eq!(mode(&state.join(directory)), expected, "`{directory}`");
    }
    // Whatever Salt is on this machine has nothing to do with the test.
    let text = fs::read_to_string(&config).unwrap();
    let salt = format!("config_dir = {:?}", scratch.path().join("salt"));
    fs::write(&config, text.replace("# config_dir = \"/etc/salt\"", &salt)).unwrap();
    let checked = returnerd(&config, &["check"]);
    assert_eq!(checked.code, 0, "{checked}");
    assert!(checked.stdout.contains("check: 0 faults"), "{checked}");

    let before = fs::read_to_string(&config).unwrap();
    let again = returnerd(&config, &init).success();
    assert!(again.contains("stays as it is"), "{again}");
    assert_eq!(fs::read_to_string(&config).unwrap(), before);

    let missing = returnerd(&scratch.path().join("none.toml"), &["check"]);
    assert_eq!(missing.code, 1, "{missing}");
    assert!(missing.stdout.contains("returnerd init"), "{missing}");
}

/// A daemon that does not run, beside a Salt whose master has this configuration.
fn beside(plugins: &[&str], master: &str) -> Daemon {
    let builder: DaemonBuilder = Daemon::builder().plugins(plugins);
    let salt = builder.root().join("salt");
    fs::create_dir(&salt).unwrap();
    fs::write(salt.join("master"), master).unwrap();
    let table = format!("[salt]\nconfig_dir = {salt:?}\nreturner_dir = {:?}\n", builder.root().join("shims"));
    let daemon = builder.tables(&table).prepare();
    daemon.cli(&["init"]).success();
    daemon
}

/// The faults that `check` names; its exit code must fit.
fn faults(daemon: &Daemon) -> Vec<String> {
    let output = daemon.cli(&["check", "--json", "--quick"]);
    let code = output.code;
    let report = output.json_whatever_the_code();
    let faults: Vec<String> = serde_json::from_value(report["faults"].clone()).unwrap();
    assert_eq!(code, i32::from(!faults.is_empty()), "{report:#}");
    faults
}

/// That there is exactly one fault, with these words.
fn one_fault(daemon: &Daemon, words: &[&str]) {
    let faults = faults(daemon);
    assert_eq!(faults.len(), 1, "{faults:#?}");
    for word in words {
        assert!(faults[0].contains(word), "`{word}` is not in: {}", faults[0]);
    }
}

#[test]
fn check_names_what_would_make_jobs_fail_and_passes_once_it_is_mended() {
    let daemon = beside(&["mysql", "sqlite3"], "master_job_cache: sqlite3\n");
    let master = daemon.root().join("salt/master");
    let shims = daemon.root().join("shims");
    daemon.cli(&["salt", "install"]).success();
    let common = format!("returner_dirs: [{}]\nmaster_job_cache: sqlite3\n", shims.display());
    fs::create_dir_all(daemon.root().join("data")).unwrap();
    let good = format!("{common}sqlite3.database: {}\n", daemon.root().join("data/jobs.sqlite").display());

    fs::write(&master, &common).unwrap();
    one_fault(&daemon, &["`master_job_cache: sqlite3`", "`sqlite3.database`", "hint: "]);
    fs::write(&master, format!("{good}sqlite3.timeout: soon\n")).unwrap();
    one_fault(&daemon, &["`master_job_cache: sqlite3`", "sqlite3.timeout"]);
    fs::write(&master, good.replace("returner_dirs", "other_dirs")).unwrap();
    one_fault(&daemon, &["`sqlite3.py`", "salt install"]);
    fs::write(&master, good.replace("cache: sqlite3", "cache: mysql")).unwrap();
    one_fault(
        &daemon,
        &["`tcp://salt:3306`", "not granted", "allow = [\"tcp://salt:3306\"]", "[plugin.mysql]"],
    );
    fs::write(&master, "master_job_cache: [unclosed\n").unwrap();
    one_fault(&daemon, &["salt/master", "YAML"]);

    fs::write(&master, &good).unwrap();
    assert_eq!(faults(&daemon), Vec::<String>::new());
    let shim = shims.join("sqlite3.py");
    let text = fs::read_to_string(&shim).unwrap();
    fs::write(&shim, "# somebody else's\n").unwrap();
    one_fault(&daemon, &["is not returnerd's shim"]);
    fs::write(&shim, text).unwrap();

    chmod(daemon.plugins_dir(), 0o777);
    one_fault(&daemon, &["can be written to by others", "chmod go-w"]);
    chmod(daemon.plugins_dir(), 0o755);

    let broken = daemon.plugins_dir().join("broken.wasm");
    fs::write(&broken, "no plugin").unwrap();
    one_fault(&daemon, &["broken.wasm"]);
    fs::remove_file(broken).unwrap();

    let config = fs::read_to_string(daemon.config()).unwrap();
    fs::write(daemon.config(), format!("{config}\n[plugin.mysql]\nallow = [\"salt:3306\"]\n")).unwrap();
    one_fault(&daemon, &["`salt:3306`", "hint: "]);
    fs::write(daemon.config(), format!("{config}\n[plugin.mysql]\nalow = []\n")).unwrap();
    one_fault(&daemon, &["`alow`", "`allow`"]);
    fs::write(daemon.config(), config).unwrap();

    // With the plugins compiled, as it is without `--quick`.
    let whole = daemon.cli(&["check"]);
    assert_eq!(whole.code, 0, "{whole}");
    assert!(whole.stdout.contains("ok      plugin `sqlite3` 0.1.0 (returns, jobs, events)"), "{whole}");
}

#[test]
fn check_refuses_a_notifier_as_job_cache() {
    let daemon = beside(&[], "master_job_cache: probe\n");
    daemon.drop_plugin_file("probe", &env::guest("probe"));
    one_fault(&daemon, &["`master_job_cache: probe`", "cannot be a job cache", "hint: "]);
}

#[test]
fn plugins_are_listed_and_inspected_without_a_daemon() {
    let daemon = Daemon::builder().plugins(&["mysql", "sqlite3"]).prepare();
    let listed = daemon.cli(&["plugin", "list", "--json"]).json();
    let names: Vec<&Value> = listed.as_array().unwrap().iter().map(|plugin| &plugin["name"]).collect();
    assert_eq!(names, ["mysql", "sqlite3"]);
    assert_eq!(listed[0]["interfaces"], json!(["returns", "jobs", "events"]));
    let table = daemon.cli(&["plugin", "list"]).success();
    assert!(table.contains("mysql") && table.contains("returns,jobs,events"), "{table}");

    let file = env::plugin("mysql");
    let file = file.to_str().unwrap();
    let inspected = daemon.cli(&["plugin", "inspect", file, "--json"]).json();
    assert_eq!((&inspected["name"], &inspected["version"]), (&json!("mysql"), &json!("0.1.0")));
    assert_eq!(inspected["sha256"], listed[0]["sha256"]);
    assert_eq!(inspected["reach"], json!(["tcp://{host}:{port}"]));
    assert!(inspected["options"].as_array().unwrap().iter().any(|option| option["name"] == "ssl_ca"));
    let text = daemon.cli(&["plugin", "inspect", file]).success();
    assert!(text.contains("mysql.host") && text.contains("tcp://{host}:{port}"), "{text}");

    let other = daemon.root().join("other.wasm");
    fs::write(&other, "no plugin").unwrap();
    let refused = daemon.cli(&["plugin", "inspect", other.to_str().unwrap()]);
    assert_eq!(refused.code, 1, "{refused}");
    assert!(refused.stderr.contains("other.wasm"), "{refused}");
}

/// `returnerd send ARGUMENTS` with this text on its standard input.
fn send(daemon: &Daemon, arguments: &[&str], input: &str) -> Output {
    let file = daemon.root().join("input");
    fs::write(&file, input).unwrap();
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("exec \"$0\" \"$@\" < {}", file.display())).arg(env::returnerd());
    run(command.arg("--config").arg(daemon.config()).arg("send").args(arguments), LIMIT)
}

#[test]
fn send_tells_what_became_of_a_return() {
    let mut daemon = beside(&["sqlite3"], "");
    let file = SqliteFile::of(&daemon);
    // A table with a rule of its own, so that the store refuses something.
    let script = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('''CREATE TABLE salt_returns (fun TEXT KEY, \
        jid TEXT KEY, id TEXT KEY CHECK (id <> 'refused'), fun_args TEXT, date TEXT NOT NULL, full_ret TEXT NOT NULL, \
        success TEXT NOT NULL)''')";
    run(Command::new(python()).arg("-c").arg(script).arg(&file.0), LIMIT).success();
    fs::write(daemon.root().join("salt/master"), format!("sqlite3.database: {}\n", file.0.display()))
        .unwrap();
    let away = send(&daemon, &["--returner", "sqlite3"], "{}");
    assert_eq!(away.code, 1, "{away}");
    assert!(away.stderr.contains("cannot reach the daemon"), "{away}");
    daemon.start();

    let stored =
        send(&daemon, &["--returner", "sqlite3", "--wait"], &ret(&jid(1), "m1", "grüße").to_string());
    assert_eq!(stored.json(), json!({"sink": "sqlite3", "verdict": "stored"}));
    assert_eq!(file.returns(), [format!("{} m1", jid(1))]);

    let path = daemon.root().join("return.json");
    fs::write(&path, ret(&jid(2), "m1", 2).to_string()).unwrap();
    let accepted = daemon.cli(&["send", path.to_str().unwrap(), "-r", "sqlite3"]).success();
    assert!(accepted.contains("accepted for `sqlite3`"), "{accepted}");

    let refused = send(&daemon, &["-r", "sqlite3", "--wait"], &ret(&jid(3), "refused", 3).to_string());
    assert_eq!(refused.code, 1, "{refused}");
    assert!(refused.stderr.contains("rejected: ") && refused.stderr.contains("CHECK"), "{refused}");

    for (input, words) in
        [("{not json", "not valid JSON"), ("{\"id\": \"m1\"}", "`jid`"), ("[1]", "not a map")]
    {
        let refused = send(&daemon, &["-r", "sqlite3"], input);
        assert_eq!(refused.code, 1, "{refused}");
        assert!(refused.stderr.contains(words), "{refused}");
    }
    let unknown = send(&daemon, &["-r", "sqlite", "-o", "database=/x"], &ret(&jid(4), "m1", 4).to_string());
    assert_eq!(unknown.code, 1, "{unknown}");
    assert!(unknown.stderr.contains("the nearest is `sqlite3`"), "{unknown}");

    // One that cannot be stored yet: the wait ends, the return stays.
    let elsewhere = format!("database={}/none/x.sqlite", daemon.root().display());
    let waits = send(
        &daemon,
        &["-r", "sqlite3", "--wait", "--timeout", "1", "-o", &elsewhere],
        &ret(&jid(5), "m1", 5).to_string(),
    );
    assert_eq!(waits.code, 1, "{waits}");
    assert!(waits.stderr.contains("it is tried again"), "{waits}");
    status_when(&daemon, "the other lanes to run empty", |status| status["spool"]["items"] == 1);
    assert_eq!(file.returns().len(), 2);
}

#[test]
fn jobs_are_listed_and_shown_from_the_store() {
    let daemon = quick(&["sqlite3"]).start();
    let file = SqliteFile::of(&daemon);
    let none = daemon.cli(&["jobs", "list"]);
    assert_eq!(none.code, 1, "{none}");
    let mut client = client(&daemon, &[file.opts()]);
    for number in 1..=3 {
        client.load("sqlite3", &jid(number), published(&jid(number)), &["m1"]).done();
        client.return_("sqlite3", ret(&jid(number), "m1", "grüße 🦀")).done();
    }
    settled(&daemon);
    let listed = daemon.cli(&["jobs", "list", "--json"]).json();
    let jids: Vec<&Value> = listed.as_array().unwrap().iter().map(|job| &job["jid"]).collect();
    assert_eq!(jids, [&json!(jid(3)), &json!(jid(2)), &json!(jid(1))], "newest first");
    assert_eq!(listed[0]["load"]["fun"], "test.echo");
    let two = daemon.cli(&["jobs", "list", "-n", "2", "--json"]).json();
    assert_eq!(two.as_array().unwrap().len(), 2);
    let table = daemon.cli(&["jobs", "list", "--returner", "sqlite3"]).success();
    assert!(table.contains(&jid(1)) && table.contains("test.echo"), "{table}");

    let shown = daemon.cli(&["jobs", "show", &jid(2), "--json"]).json();
    assert_eq!(shown["load"]["Minions"], json!(["m1"]));
    assert_eq!(shown["returns"]["m1"]["return"], "grüße 🦀");
    let text = daemon.cli(&["jobs", "show", &jid(2)]).success();
    assert!(text.contains("m1: success true, retcode 0") && text.contains("grüße 🦀"), "{text}");
    let missing = daemon.cli(&["jobs", "show", &jid(9)]);
    assert_eq!(missing.code, 1, "{missing}");
    assert!(missing.stderr.contains(&jid(9)), "{missing}");
}

#[test]
fn two_profiles_of_one_plugin_are_two_sinks() {
    let daemon = quick(&["sqlite3"]).start();
    let (one, two) = (SqliteFile::named(&daemon, "one"), SqliteFile::named(&daemon, "two"));
    let mut client = client(&daemon, &[one.opts(), json!({ "alternative.sqlite3.database": two.0 })]);
    client.return_("sqlite3", ret(&jid(1), "m1", 1)).done();
    let with_profile = json!({ "ret": ret(&jid(2), "m1", 2), "ret_config": "alternative" });
    client.query("return", "sqlite3", with_profile).done();
    // The same options by another way lead to the same sink.
    let with_kwargs = json!({ "ret": ret(&jid(3), "m1", 3), "ret_kwargs": { "database": two.0 } });
    client.query("return", "sqlite3", with_kwargs).done();
    let status = settled(&daemon);
    let labels: Vec<&Value> = status["sinks"].as_array().unwrap().iter().map(|sink| &sink["sink"]).collect();
    assert_eq!(labels, ["sqlite3", "sqlite3#2"]);
    assert_eq!(one.returns(), [format!("{} m1", jid(1))]);
    assert_eq!(two.returns(), [format!("{} m1", jid(2)), format!("{} m1", jid(3))]);
    let ambiguous = daemon.cli(&["jobs", "list"]);
    assert_eq!(ambiguous.code, 1, "{ambiguous}");
    assert!(
        ambiguous.stderr.contains("`sqlite3#2`") && ambiguous.stderr.contains("--returner"),
        "{ambiguous}"
    );
    let named = daemon.cli(&["jobs", "show", &jid(3), "-r", "sqlite3#2", "--json"]).json();
    assert_eq!(named["returns"]["m1"]["return"], 3);
}

#[test]
fn status_fails_when_something_is_stuck_and_shows_no_secret() {
    let mut daemon =
        Daemon::builder().plugins(&["mysql"]).tables(&format!("{QUICK}stuck_after = \"1s\"\n")).start();
    let fine = daemon.cli(&["status"]);
    assert_eq!(fine.code, 0, "{fine}");
    let secret = json!({ "mysql.pass": "hunter2-hunter2" });
    let mut client = client(&daemon, &[mysql_opts(free_port(), "salt"), secret]);
    client.return_("mysql", ret(&jid(1), "m1", 1)).done();
    wait_for("a lane to be stuck", LIMIT, || daemon.cli(&["status", "--json"]).code == 1);
    let stuck = status(&daemon);
    assert!(stuck["stuck"][0].as_str().unwrap().contains("`mysql` is down with 1 records"), "{stuck:#}");
    let text = daemon.cli(&["status"]);
    assert_eq!(text.code, 1, "{text}");
    assert!(text.stdout.contains("stuck: `mysql`") && text.stdout.contains("last error"), "{text}");
    for shown in [stuck.to_string(), text.stdout, daemon.log()] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    // The queue can be looked at with the daemon and without it.
    for running in [true, false] {
        let stat = daemon.cli(&["spool", "stat", "--json"]).json();
        assert_eq!(stat["totals"]["items"], 1, "running {running}: {stat:#}");
        let stat = daemon.cli(&["spool", "stat"]).success();
        assert!(stat.contains("1 items") && stat.contains("mysql"), "{stat}");
        let verified = daemon.cli(&["spool", "verify", "--json"]).json();
        assert_eq!(verified["problems"], json!([]), "{verified:#}");
        assert!(daemon.cli(&["spool", "verify"]).success().contains("records checked"));
        if running {
            daemon.stop();
        }
    }
    let away = daemon.cli(&["status"]);
    assert_eq!(away.code, 1, "{away}");
    assert!(away.stderr.contains("cannot reach the daemon") && away.stderr.contains("hint: "), "{away}");
}

#[test]
fn completions_and_manual_need_no_configuration() {
    let scratch = Scratch::new();
    let none = scratch.path().join("none.toml");
    let script = scratch.write("complete.bash", &returnerd(&none, &["completions", "bash"]).success());
    run(Command::new("bash").arg("-n").arg(&script), LIMIT).success();
    assert!(fs::read_to_string(&script).unwrap().contains("complete -F _returnerd"));
    let page = returnerd(&none, &["man"]).success();
    assert!(page.contains(".TH returnerd 1") && page.contains("salt"), "{page}");
    let pages = scratch.path().join("man");
    returnerd(&none, &["man", pages.to_str().unwrap()]).success();
    for name in ["returnerd.1", "returnerd-dead-retry.1", "returnerd-salt-install.1"] {
        assert!(pages.join(name).is_file(), "`{name}` is missing");
    }
    let wrong = returnerd(&none, &["no-such-command"]);
    assert_eq!(wrong.code, 2, "{wrong}");
}
