//! Slack's two plugins in the daemon: what arrives, what waits, and that a Slack in trouble is nobody else's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod support;

use std::fs;
use std::time::Duration;

use returnerd_tests::daemon::Daemon;
use returnerd_tests::slack::{FakeSlack, TOKEN, WEBHOOK};
use returnerd_tests::wait::wait_for_value;
use serde_json::{Value, json};
use support::*;

const POST: &str = "/api/chat.postMessage";

fn opts(slack: &FakeSlack) -> Value {
    json!({"slack.channel": "#ops", "slack.api_key": TOKEN, "slack.api_url": slack.url()})
}

fn hook_opts(slack: &FakeSlack) -> Value {
    json!({"slack_webhook.webhook": WEBHOOK, "slack_webhook.api_url": slack.url()})
}

/// Waits until Slack has so many messages.
fn messages(daemon: &Daemon, slack: &FakeSlack, count: usize) -> Vec<String> {
    let found = || Some(slack.messages()).filter(|messages| messages.len() >= count);
    let messages = wait_for_value("the messages", LIMIT, || daemon.tail(), found);
    assert_eq!(messages.len(), count, "{messages:#?}");
    messages.into_iter().map(|message| message.text).collect()
}

/// Nothing that the daemon says or logs may show these.
fn keeps_its_secrets(daemon: &Daemon) {
    let status = status(daemon).to_string();
    for secret in [TOKEN, "XXXXsecretXXXX"] {
        assert!(!daemon.log().contains(secret) && !status.contains(secret), "{}", daemon.tail());
    }
}

fn state_run(good: bool) -> Value {
    let state = |number: u32| {
        let state =
            json!({"result": good || number != 7, "changes": {}, "__run_num__": number, "comment": "c"});
        (format!("cmd_|-id{number}_|-n{number}_|-run"), state)
    };
    (0..10).map(state).collect::<serde_json::Map<_, _>>().into()
}

fn state_return(jid: &str, value: Value) -> Value {
    json!({"jid": jid, "id": "m1", "fun": "state.apply", "fun_args": [], "return": value, "success": true, "retcode": 0})
}

#[test]
fn a_return_becomes_a_message_once_under_each_name_of_the_plugin() {
    let slack = FakeSlack::start();
    let daemon = quick(&["slack"]).start();
    let mut client = client(&daemon, &[opts(&slack)]);
    client.return_("slack", ret(&jid(1), "m1", "a < b & ```c```")).done();
    let text = messages(&daemon, &slack, 1).remove(0);
    assert_eq!(
        text,
        format!(
            "```id: m1\r\nfunction: test.echo\r\nfunction args: ['a']\r\njid: {}\r\n\
             return: 'a &lt; b &amp; ``\u{200b}`c``\u{200b}`'\r\n```",
            jid(1)
        )
    );
    // Salt sends twice now and then; a runner's result is told as well.
    client.return_("slack", ret(&jid(1), "m1", "again")).done();
    client.return_("slack_returner", ret(&jid(2), "lab_master", "of a runner")).done();
    let texts = messages(&daemon, &slack, 2);
    assert!(texts[1].contains("id: lab_master\r\n"), "{texts:?}");
    let status = settled(&daemon);
    assert_eq!(sink(&status, "slack")["counts"]["stored"], 3, "{status:#}");
    assert_eq!(status["sinks"].as_array().unwrap().len(), 1, "{status:#}");
    slack.must_be_content();
    keeps_its_secrets(&daemon);
}

#[test]
fn a_profile_brings_the_token_and_the_rest_stays_as_it_was() {
    let slack = FakeSlack::start();
    let daemon = quick(&["slack"]).start();
    let opts = json!({
        "slack.channel": "#ops", "slack.api_url": slack.url(), "slack.profile": "my_slack",
        "my_slack": {"slack.api_key": TOKEN},
    });
    client(&daemon, &[opts]).return_("slack", ret(&jid(1), "m1", 1)).done();
    messages(&daemon, &slack, 1);
    assert_eq!(slack.messages()[0].channel, "ops");
}

#[test]
fn a_refusal_keeps_the_return_and_status_says_why() {
    let slack = FakeSlack::start();
    let daemon = quick(&["slack"]).start();
    let mut wrong = opts(&slack);
    wrong["slack.channel"] = json!("#none");
    client(&daemon, &[wrong]).return_("slack", ret(&jid(1), "m1", 1)).done();
    let status = status_when(&daemon, "the refusal", |status| {
        sink(status, "slack")["last_error"]
            .as_str()
            .is_some_and(|error| error.contains("`channel_not_found`"))
    });
    let sink = sink(&status, "slack");
    assert_eq!(
        (&sink["state"], &sink["waiting"], &sink["counts"]["stored"]),
        (&json!("down"), &json!(1), &json!(0))
    );
    let error = sink["last_error"].as_str().unwrap();
    assert!(error.contains("`#none`, the option `channel`") && error.contains("hint: "), "{error}");
    assert_eq!(dead(&daemon), Vec::<Value>::new());
    // It is not asked every moment.
    assert_eq!(slack.asked().len(), 1);
    keeps_its_secrets(&daemon);
}

#[test]
fn a_busy_slack_is_asked_again_when_it_says_and_not_before_also_not_for_others() {
    let slack = FakeSlack::start();
    let daemon = quick(&["slack"]).start();
    let mut client = client(&daemon, &[opts(&slack)]);
    slack.busy_next(POST, 2);
    client.return_("slack", ret(&jid(1), "m1", 1)).done();
    wait_for_value("the first try", LIMIT, || daemon.tail(), || slack.asked().first().cloned());
    for number in 2..6 {
        client.return_("slack", ret(&jid(number), "m1", number)).done();
    }
    messages(&daemon, &slack, 5);
    let asked = slack.asked();
    assert_eq!(asked.len(), 6);
    let pause = asked[1].0 - asked[0].0;
    assert!(pause >= Duration::from_secs(2), "it was asked again after {pause:?}");

    // In the middle of a batch: what went out is not sent again, the others wait.
    slack.next(
        POST,
        returnerd_tests::web::Reply {
            body: br#"{"ok": true, "channel": "C0000OPS", "ts": "1.2"}"#.to_vec(),
            ..Default::default()
        },
    );
    slack.busy_next(POST, 1);
    for number in 10..14 {
        client.return_("slack", ret(&jid(number), "m1", number)).done();
    }
    messages(&daemon, &slack, 8);
    settled(&daemon);
    assert_eq!(slack.asked().len(), 6 + 5);
    slack.must_be_content();
}

#[test]
fn a_slack_that_hangs_delays_no_other_sink() {
    let slack = FakeSlack::start();
    slack.hang(Some(Duration::from_secs(600)));
    let daemon = quick(&["slack", "slack_webhook", "sqlite3"]).start();
    let file = SqliteFile::of(&daemon);
    let mut client = client(&daemon, &[opts(&slack), hook_opts(&slack), file.opts()]);
    for name in ["slack", "slack_webhook"] {
        client.return_(name, ret(&jid(1), "m1", 1)).done();
    }
    wait_for_value("both to hang", LIMIT, || daemon.tail(), || (slack.asked().len() == 2).then_some(()));
    for number in 0..50 {
        client.return_("sqlite3", ret(&jid(number), "m1", number)).done();
    }
    let status = status_when(&daemon, "the store to have all", |status| {
        sink(status, "sqlite3")["counts"]["stored"].as_u64().is_some_and(|stored| stored >= 50)
    });
    assert_eq!(file.returns().len(), 50);
    for name in ["slack", "slack_webhook"] {
        assert_eq!(sink(&status, name)["waiting"], 1, "{status:#}");
    }
    assert_eq!(slack.asked().len(), 2, "Slack still hangs");
    let failed = status_when(&daemon, "the plugin to give up", |status| {
        sink(status, "slack")["last_error"]
            .as_str()
            .is_some_and(|error| error.contains("no answer within the time limit"))
    });
    assert_eq!(sink(&failed, "slack")["counts"]["crashes"], 0, "{failed:#}");
}

#[test]
fn an_all_good_run_sends_nothing_and_a_bad_one_shows_what_failed() {
    let slack = FakeSlack::start();
    let daemon = quick(&["slack"]).start();
    let mut opts = opts(&slack);
    opts["slack.only_show_failed"] = json!(true);
    let mut client = client(&daemon, &[opts]);
    client.return_("slack", state_return(&jid(1), state_run(true))).done();
    let status = settled(&daemon);
    assert_eq!(sink(&status, "slack")["counts"]["stored"], 1, "{status:#}");
    assert!(slack.asked().is_empty());
    client.return_("slack", state_return(&jid(2), state_run(false))).done();
    let text = messages(&daemon, &slack, 1).remove(0);
    assert_eq!(text.matches("_|-run").count(), 1, "{text}");
    assert!(text.contains("10 states: 1 failed, 0 changed, 9 unchanged") && text.contains("id7"), "{text}");
    slack.must_be_content();
}

#[test]
fn a_long_return_arrives_cut_or_as_a_file_also_a_deep_one() {
    let slack = FakeSlack::start();
    let daemon = quick(&["slack", "slack_webhook"]).start();
    let mut with_files = opts(&slack);
    with_files["slack.files_url"] = json!(slack.url());
    let deep = (0..900).fold(json!("`"), |inner, _| json!([inner]));
    let deep_map = (0..900).fold(json!("`"), |inner, _| json!({"k": inner}));
    let mut number = 0;
    for (opts, yaml) in [(opts(&slack), false), (opts(&slack), true), (with_files, false)] {
        let mut opts = opts;
        opts["slack.yaml_format"] = json!(yaml);
        let mut client = client(&daemon, &[opts, hook_opts(&slack)]);
        for value in [
            json!("<text> ```\n".repeat(5_000)),
            deep.clone(),
            deep_map.clone(),
            json!("large ".repeat(1 << 20)),
        ] {
            number += 1;
            client.return_("slack", ret(&jid(number), "m1", value.clone())).done();
            client.return_("slack_webhook", ret(&jid(number), "m1", value)).done();
        }
    }
    let status = settled(&daemon);
    assert_eq!(slack.messages().len(), 24, "{status:#}");
    let files = slack.files();
    assert!(files[0].text.contains("<text> ```"), "{files:?}");
    let is_cut = |text: &str| text.contains("characters are left out");
    // Of each four one fits: lists within lists are short, maps within maps are not.
    assert_eq!(slack.messages().iter().filter(|message| is_cut(&message.text)).count(), 3 * 3, "{status:#}");
    for sink in status["sinks"].as_array().unwrap() {
        assert_eq!(sink["counts"]["crashes"], 0, "{status:#}");
    }
    assert_eq!(dead(&daemon), Vec::<Value>::new());
    slack.must_be_content();
}

#[test]
fn a_file_that_fails_at_the_last_step_brings_no_second_message() {
    let slack = FakeSlack::start();
    let daemon = quick(&["slack"]).start();
    let mut opts = opts(&slack);
    opts["slack.files_url"] = json!(slack.url());
    slack.refuse_next("files.completeUploadExternal", "internal_error");
    client(&daemon, &[opts]).return_("slack", ret(&jid(1), "m1", "text\n".repeat(5_000))).done();
    let status = settled(&daemon);
    assert!(sink(&status, "slack")["last_error"].as_str().is_some_and(|e| e.contains("`internal_error`")));
    assert_eq!((slack.messages().len(), slack.files().len()), (1, 1), "{status:#}");
    slack.must_be_content();
}

#[test]
fn a_webhook_takes_returns_and_any_event() {
    let slack = FakeSlack::start();
    let daemon = quick(&["slack_webhook"]).start();
    let mut client = client(&daemon, &[hook_opts(&slack)]);
    client.return_("slack_webhook", state_return(&jid(1), state_run(false))).done();
    messages(&daemon, &slack, 1);
    let job = json!({
        "tag": format!("salt/job/{}/ret/m2", jid(2)),
        "data": {"jid": jid(2), "id": "m2", "fun": "test.ping", "return": true, "retcode": 0, "success": true, "_stamp": "2026"},
    });
    let key = json!({"tag": "salt/key", "data": {"act": "accept", "id": "m3", "_stamp": "2026"}});
    client.events("slack_webhook", json!([job, key, {"tag": "odd", "data": {"_stamp": "2026"}}])).done();
    messages(&daemon, &slack, 4);
    let parts: Vec<Value> =
        slack.messages().into_iter().map(|message| message.fields["attachments"].clone()).collect();
    assert_eq!(parts[0][0]["fallback"], "m1 | Failed");
    assert_eq!(parts[0][3]["title"], "Failed: 1");
    assert_eq!(
        (&parts[1][0]["fallback"], &parts[1][1]["title"]),
        (&json!("m2 | Succeeded"), &json!("Return: True"))
    );
    assert_eq!(parts[2][0]["title"], "salt/key");
    slack.must_be_content();

    slack.next(
        "/services/",
        returnerd_tests::web::Reply { status: 404, body: "no_service".into(), ..Default::default() },
    );
    client.return_("slack_webhook", ret(&jid(3), "m1", 1)).done();
    let status = status_when(&daemon, "the refusal", |status| {
        sink(status, "slack_webhook")["last_error"]
            .as_str()
            .is_some_and(|error| error.contains("`no_service`"))
    });
    assert_eq!(sink(&status, "slack_webhook")["waiting"], 1);
    keeps_its_secrets(&daemon);
}

#[test]
fn a_notifier_as_job_cache_is_refused_by_check_and_by_every_question() {
    let slack = FakeSlack::start();
    let builder = quick(&["slack", "slack_webhook"]);
    let salt = builder.root().join("salt");
    fs::create_dir(&salt).unwrap();
    let table = format!("[salt]\nconfig_dir = {salt:?}\nreturner_dir = {:?}\n", builder.root().join("shims"));
    let mut daemon = builder.tables(&table).prepare();
    daemon.cli(&["init"]).success();
    daemon.cli(&["salt", "install"]).success();
    for name in ["slack", "slack_returner", "slack_webhook", "slack_webhook_return"] {
        fs::write(salt.join("master"), format!("master_job_cache: {name}\n")).unwrap();
        let check = daemon.cli(&["check", "--quick", "--json"]);
        assert_eq!(check.code, 1, "{check}");
        let faults = check.json_whatever_the_code()["faults"].clone();
        let [fault] = &faults.as_array().unwrap()[..] else { panic!("{faults:#}") };
        let fault = fault.as_str().unwrap();
        let plugin = if name.starts_with("slack_webhook") { "slack_webhook" } else { "slack" };
        for words in [
            format!("`master_job_cache: {name}`"),
            format!("the plugin `{plugin}` only takes returns and cannot be a job cache"),
            "hint: name a store such as `sqlite3`".to_owned(),
        ] {
            assert!(fault.contains(&words), "`{words}` is not in: {fault}");
        }
        // What Salt calls says the same before any job starts.
        let shim = fs::read_to_string(daemon.root().join(format!("shims/{name}.py"))).unwrap();
        assert!(!shim.lines().any(|line| line.starts_with("INTERFACES") && line.contains("jobs")), "{name}");
    }

    daemon.start();
    let mut client = client(&daemon, &[opts(&slack)]);
    for (op, keys) in [
        ("get_load", json!({"jid": jid(1)})),
        ("get_jid", json!({"jid": jid(1)})),
        ("get_jids", json!({})),
        ("get_fun", json!({"fun": "test.echo"})),
        ("get_minions", json!({})),
    ] {
        let answer = client.query(op, "slack", keys);
        assert_eq!((answer.ok, answer.code.as_str()), (false, "unsupported"), "{answer:?}");
        assert!(answer.error.contains("`slack` cannot answer questions about jobs"), "{answer:?}");
        assert!(answer.error.contains("hint: name a store"), "{answer:?}");
    }
    // As an `ext_job_cache` it gets loads, which it has no use for.
    client.load("slack", &jid(1), published(&jid(1)), &["m1"]).done();
    settled(&daemon);
    assert!(slack.asked().is_empty());
}

#[test]
fn the_default_servers_need_a_line_that_init_writes() {
    let daemon = quick(&["slack", "slack_webhook"]).start();
    let opts = json!({"slack.api_key": TOKEN, "slack_webhook.webhook": WEBHOOK});
    let mut client = client(&daemon, &[opts]);
    for (name, line) in [("slack", "https://slack.com:443"), ("slack_webhook", "https://hooks.slack.com:443")]
    {
        client.return_(name, ret(&jid(1), "m1", 1)).done();
        let status = status_when(&daemon, "the refusal", |status| {
            sink(status, name)["refused"].as_str().is_some_and(|refused| refused.contains(line))
        });
        assert_eq!(sink(&status, name)["waiting"], 1);
    }
    let config = daemon.root().join("new/returnerd.toml");
    let state = daemon.root().join("new/state");
    let args =
        ["init", "--state-dir", state.to_str().unwrap(), "--socket", state.join("s").to_str().unwrap()]
            .map(str::to_owned);
    returnerd(&config, &args.each_ref().map(String::as_str)).success();
    let text = fs::read_to_string(config).unwrap();
    assert!(text.contains("[plugin.slack]\nallow = [\"https://slack.com\"]"), "{text}");
    assert!(text.contains("[plugin.slack_webhook]\nallow = [\"https://hooks.slack.com\"]"), "{text}");
}
