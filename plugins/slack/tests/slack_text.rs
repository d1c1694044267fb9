//! The text of a message against what Salt 3006's own returner would have sent.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

use std::process::{Command, Stdio};

use returner_sdk::prelude::*;
use returner_sdk::serde_json::{Value, json};
use returner_slack::{Options, Slack};
use returnerd_tests::env;
use returnerd_tests::slack::{FakeSlack, TOKEN};

const SCRIPT: &str = r#"
import json, sys
import salt.returners.slack_returner as module
options, rets = json.load(sys.stdin)
sent = []
module.__salt__ = {}
module.__opts__ = options
module._post_message = lambda channel, message, *_: sent.append("```" + message + "```")
for ret in rets:
    module.returner(ret)
json.dump(sent, sys.stdout)
"#;

/// What Salt's returner would post of these returns.
fn of_salt(rets: &[Value]) -> Vec<String> {
    let options = json!({"slack.username": "u", "slack.as_user": true, "slack.api_key": "k"});
    let mut child = Command::new(env::salt_bin("3006.26").join("python"))
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = json!([options, rets]).to_string();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    returner_sdk::serde_json::from_slice(&output.stdout).unwrap()
}

fn ret(document: &Value) -> JobReturn {
    JobReturn {
        jid: document["jid"].as_str().unwrap().into(),
        minion: document["id"].as_str().unwrap().into(),
        resource_id: None,
        fun: document["fun"].as_str().unwrap().into(),
        fun_args: document["fun_args"].to_string(),
        value: document["return"].to_string(),
        document: document.to_string(),
        success: Some(true),
        retcode: Some(0),
        trimmed: false,
        arrived_ms: 0,
    }
}

#[tokio::test]
async fn the_text_is_the_one_that_salts_own_returner_sends() {
    let state = json!({
        "pkg_|-nginx_|-nginx_|-installed": {
            "name": "nginx", "changes": {"nginx": {"old": "", "new": "1.26.3-3"}}, "result": true, "duration": 5120.773,
            "comment": "The following packages were installed/updated: nginx", "__sls__": "web", "__run_num__": 0,
        },
        "file_|-/etc/nginx/nginx.conf_|-/etc/nginx/nginx.conf_|-managed": {
            "result": false, "changes": {}, "__run_num__": 1, "warnings": [],
            "comment": "Source file salt://nginx.conf not found in saltenv 'base'\nIt's \"gone\"",
        },
    });
    let values = [
        json!(true),
        json!(null),
        json!("a text"),
        json!("two\nlines and a tab\t"),
        json!("a long line of many words ".repeat(20)),
        json!([1, 2.5, 1e300, -0.0, 123_456_789_012_345_678_u64]),
        json!({"eth0": {"up": true, "inet": [{"address": "192.0.2.1", "label": "eth0"}], "mtu": 1500}}),
        json!({"ümläut": "größe 🚀", "quote'": "\"", "empty": {}, "none": []}),
        state,
    ];
    let document = |(number, value): (usize, &Value)| {
        let args = json!(["web", {"test": true, "pillar": {"a": null}}]);
        json!({"jid": format!("2026120100000000000{number}"), "id": "m1", "fun": "state.apply", "fun_args": args, "return": value})
    };
    let documents: Vec<Value> = values.iter().enumerate().map(document).collect();
    let slack = FakeSlack::start();
    let options = Options { api_key: Some(TOKEN.into()), api_url: Some(slack.url()), ..Options::default() };
    let mut plugin = Slack::open(options, &Context::default()).await.unwrap();
    plugin.deliver(documents.iter().map(ret).collect()).await.unwrap();
    // There is nothing to be escaped in these but what Salt leaves as it is.
    let ours: Vec<String> = slack.messages().into_iter().map(|message| message.text).collect();
    assert_eq!(ours, of_salt(&documents));
    slack.must_be_content();
}
