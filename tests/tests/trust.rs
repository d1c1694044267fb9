//! Whom the daemon trusts: pinned files, directories of its own, what it shows of secrets, its clients.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use returnerd_tests::daemon::Daemon;
use returnerd_tests::env;
use returnerd_tests::wait::wait_for_value;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(20);

fn status(daemon: &Daemon) -> Value {
    daemon.cli(&["status", "--json"]).json_whatever_the_code()
}

/// Waits until the whole status has a text.
fn wait_for_status(daemon: &Daemon, text: &str) -> Value {
    wait_for_value(
        &format!("`{text}` in the status"),
        LIMIT,
        || status(daemon).to_string(),
        || {
            let status = status(daemon);
            status.to_string().contains(text).then_some(status)
        },
    )
}

fn ret(jid: u64) -> Value {
    json!({ "jid": format!("20261202{jid:012}"), "id": "m1", "fun": "test.ping", "return": true, "retcode": 0 })
}

fn sha256(name: &str, daemon: &Daemon) -> String {
    let file = daemon.plugins_dir().join(format!("{name}.wasm"));
    let shown = daemon.cli(&["plugin", "inspect", "--json", file.to_str().unwrap()]).json();
    shown["sha256"].as_str().unwrap().to_owned()
}

#[test]
fn only_the_pinned_file_is_loaded() {
    let mut daemon = Daemon::builder().top("require_pin = true").prepare();
    daemon.drop_plugin_file("probe", &env::guest("probe"));
    daemon.start();
    let sha = sha256("probe", &daemon);
    let status = wait_for_status(&daemon, "is not pinned");
    let error = status["broken"][0]["error"].as_str().unwrap();
    assert!(error.contains(&format!("sha256 = \"{sha}\"")) && error.contains("[plugin.probe]"), "{error}");

    let config = fs::read_to_string(daemon.config()).unwrap();
    let pin = |sha: &str| {
        fs::write(daemon.config(), format!("{config}\n[plugin.probe]\nsha256 = \"{sha}\"\n")).unwrap();
        daemon.signal(nix::sys::signal::Signal::SIGHUP);
    };
    pin(&sha.replace(&sha[..4], "0000"));
    wait_for_status(&daemon, "has the SHA-256");
    pin(&sha.to_uppercase());
    let status = wait_for_status(&daemon, "\"name\":\"probe\"");
    assert_eq!(status["broken"], json!([]));

    // Another file with the pinned one's name does not take its place.
    daemon.drop_plugin_file("probe", &env::guest("hostile"));
    let status = wait_for_status(&daemon, "says that it is the plugin");
    assert_eq!(status["plugins"][0]["sha256"], json!(sha), "the pinned file goes on serving");
}

#[test]
fn directories_that_others_may_write_to_are_refused() {
    let mut daemon = Daemon::builder().prepare();
    daemon.drop_plugin_file("probe", &env::guest("probe"));
    daemon.start();
    wait_for_status(&daemon, "\"name\":\"probe\"");
    fs::set_permissions(daemon.plugins_dir(), fs::Permissions::from_mode(0o777)).unwrap();
    daemon.drop_plugin_file("hostile", &env::guest("hostile"));
    let status = wait_for_status(&daemon, "can be written to by others (mode 777)");
    assert_eq!(status["plugins"].as_array().unwrap().len(), 1, "nothing new is loaded from there");
    let check = daemon.cli(&["check", "--quick"]);
    assert!(check.code == 1 && check.stdout.contains("can be written to by others"), "{check}");
    daemon.stop();

    fs::set_permissions(daemon.plugins_dir(), fs::Permissions::from_mode(0o755)).unwrap();
    for private in ["state", "state/cache"] {
        let path = daemon.root().join(private);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
        let output = daemon.cli(&["serve"]);
        assert!(
            output.code == 1 && output.stderr.contains("can be written to by others (mode 770)"),
            "{output}"
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    }
}

#[test]
fn no_secret_is_in_anything_that_is_shown() {
    const PASS: &str = "planted-password-4711";
    const TOKEN: &str = "planted-token-0815";
    const WRONG: &str = "planted-wrong-type";
    const OTHER: &str = "planted-of-returnerd-toml";
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut daemon = Daemon::builder()
        .plugins(&["mysql", "sqlite3"])
        .tables(&format!("[plugin.hostile.options]\ntoken = \"{OTHER}\"\n"))
        .prepare();
    daemon.drop_plugin_file("hostile", &env::guest("hostile"));
    daemon.start();
    let mut shown = String::new();

    // A server that is away, a guest that tells its secret in its log and in its reasons, options of wrong types.
    let mysql = json!({ "mysql.host": "127.0.0.1", "mysql.port": closed, "mysql.pass": PASS });
    daemon.client().with_opts(mysql).return_("mysql", ret(1)).done();
    for (number, mode) in [(2, "deliver-secret"), (3, "deliver-secretreject"), (4, "deliver-trap")] {
        let options = json!({ "hostile.mode": mode, "hostile.token": TOKEN });
        daemon.client().with_opts(options).return_("hostile", ret(number)).done();
        let options = json!({ "hostile.mode": mode });
        daemon.client().with_opts(options).return_("hostile", ret(number + 10)).done();
    }
    let answer = daemon
        .client()
        .with_opts(json!({ "mysql.host": "127.0.0.1", "mysql.pass": [WRONG], "mysql.port": 1, "mysql.ssl_key": { "a": WRONG } }))
        .return_("mysql", ret(5));
    shown.push_str(&answer.error);
    let mut client = daemon.client();
    let request =
        client.request("return", "mysql", json!({ "ret": ret(6), "ret_kwargs": [PASS], "layers": PASS }));
    shown.push_str(&client.ask(&request).error);
    let mut client = daemon.client();
    client.send_bytes(format!("{PASS}{TOKEN}").as_bytes()).unwrap();
    client.finish();
    shown.push_str(&format!("{:?}", client.read_answer().unwrap()));

    wait_for_status(&daemon, "the token is");
    let status = wait_for_value(
        "both rejections",
        LIMIT,
        || status(&daemon).to_string(),
        || {
            let status = status(&daemon);
            (status["spool"]["dead"] == 2 && daemon.log().matches("the token is").count() >= 2)
                .then_some(status)
        },
    );
    assert!(status.to_string().contains("********"), "{status}");

    let letters = daemon.cli(&["dead", "list", "--json"]).json();
    assert!(letters[0]["reason"].as_str().unwrap().contains("the token is ********"), "{letters}");
    let id = letters[0]["id"].to_string();
    let file = daemon.plugins_dir().join("hostile.wasm");
    let file = file.to_str().unwrap();
    for command in [
        &["status"][..],
        &["status", "--json"],
        &["plugin", "list"],
        &["plugin", "inspect", file],
        &["plugin", "inspect", "--json", file],
        &["check", "--quick"],
        &["check", "--json", "--quick"],
        &["dead", "list"],
        &["dead", "list", "--json"],
        &["dead", "show", &id],
        &["jobs", "list"],
    ] {
        let output = daemon.cli(command);
        shown.push_str(&format!("{command:?}\n{}\n{}\n", output.stdout, output.stderr));
    }
    daemon.stop();
    shown.push_str(&daemon.log());
    for secret in [PASS, TOKEN, WRONG, OTHER] {
        let line = shown.lines().find(|line| line.contains(secret));
        assert_eq!(line, None, "`{secret}` is shown");
    }
}

#[test]
fn a_client_is_known_by_its_user_and_an_eager_one_is_slowed_down_alone() {
    let daemon = Daemon::builder().tables("[intake]\nmode = \"0600\"\nframes_per_second = 20\n").start();
    let mode = fs::metadata(daemon.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut eager = daemon.client();
    let began = Instant::now();
    // The first 20 pass at once, the others with the rate: this cannot be quicker, however fast the machine.
    for _ in 0..60 {
        eager.query("ping", "", json!({})).done();
    }
    assert!(began.elapsed() >= Duration::from_millis(1_900), "60 frames took {:?}", began.elapsed());
    // Another client has a rate of its own: its burst passes before the eager one could have sent as many.
    let mut other = daemon.client();
    let began = Instant::now();
    for _ in 0..20 {
        other.query("ping", "", json!({})).done();
    }
    assert!(began.elapsed() < Duration::from_millis(900), "20 frames of another took {:?}", began.elapsed());

    let mut bad = daemon.client();
    bad.send_frame(b"\xc1").unwrap();
    assert!(!bad.read_answer().unwrap().unwrap().ok);
    let (uid, pid) = (nix::unistd::getuid(), std::process::id());
    wait_for_value(
        "the client in the log",
        LIMIT,
        || daemon.tail(),
        || {
            let log = daemon.log();
            let mut lines = log.lines().filter(|line| line.contains(&format!("uid={uid} pid={pid}")));
            (lines.clone().any(|line| line.contains("connected")) && lines.any(|line| line.contains("bad ")))
                .then_some(())
        },
    );
}

#[test]
fn observing_lets_pass_and_tells_what_would_be_refused() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = server.local_addr().unwrap().to_string();
    let mut daemon = Daemon::builder().tables("[plugin.hostile]\nmode = \"observe\"\n").prepare();
    daemon.drop_plugin_file("hostile", &env::guest("hostile"));
    daemon.start();
    let options = json!({ "hostile.mode": "deliver-connect", "hostile.target": target });
    daemon.client().with_opts(options).return_("hostile", ret(1)).done();
    server.accept().unwrap();
    let status = wait_for_status(&daemon, "ESCAPED: connect");
    assert!(
        status["sinks"][0]["refused"].as_str().unwrap().contains(&format!("allow = [\"tcp://{target}\"]")),
        "{status}"
    );
    assert!(daemon.log().contains("observed, would be refused"), "{}", daemon.tail());
}

#[test]
fn inspect_sets_wishes_against_grants() {
    let daemon = Daemon::builder()
        .tables("[plugin.hostile]\nallow = [\"udp://db.example.com:9\"]\n[plugin.hostile.options]\nmode = \"x\"\nhost = \"db.example.com\"\n")
        .prepare();
    daemon.drop_plugin_file("hostile", &env::guest("hostile"));
    daemon.drop_plugin("mysql");
    let inspect = |name: &str| {
        let file = daemon.plugins_dir().join(format!("{name}.wasm"));
        daemon.cli(&["plugin", "inspect", file.to_str().unwrap()]).success()
    };
    let text = inspect("hostile");
    assert!(text.contains("tcp://db.example.com:9: granted, as"), "{text}");
    let text = inspect("mysql");
    let line = text.lines().find(|line| line.contains("tcp://salt:3306: not granted")).expect(&text);
    assert!(line.contains("`allow = [\"tcp://salt:3306\"]` in `[plugin.mysql]`"), "{line}");
}
