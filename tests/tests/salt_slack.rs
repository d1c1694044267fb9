//! Slack under a real Salt: minions that tell it of their returns, and a master that is asked to keep its jobs there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod salt_support;

use std::time::Duration;

use returnerd_tests::salt::{SaltLab, SaltVersion};
use returnerd_tests::slack::{FakeSlack, TOKEN};
use returnerd_tests::wait::wait_for_value;
use salt_support::daemon_beside;
use serde_json::json;

#[test]
fn slack_gets_what_minions_return_and_is_refused_as_a_job_cache() {
    let slack = FakeSlack::start();
    let options = json!({"slack.channel": "#ops", "slack.api_key": TOKEN, "slack.api_url": slack.url()});
    let builder = SaltLab::builder(SaltVersion::V3008).minions(&["m1"]);
    let daemon = daemon_beside(&builder, &["slack", "sqlite3"]);
    let mut salt = builder
        .master(salt_support::merged([options.clone(), json!({"ext_job_cache": "slack"})]))
        .minion(options)
        .shims_of(&daemon)
        .start();

    // `ext_job_cache: slack`: the command prints its result, and Slack is told.
    assert_eq!(salt.salt_json(&["m1", "test.echo", "told to Slack"]), json!({"m1": "told to Slack"}));
    let texts = || -> Vec<String> { slack.messages().into_iter().map(|message| message.text).collect() };
    wait_for_value(
        "the message",
        Duration::from_secs(30),
        || format!("{:#?}\n{}\n{}", texts(), salt.tails(), daemon.tail()),
        || texts().iter().any(|text| text.contains("told to Slack") && text.contains("m1")).then_some(()),
    );

    // `master_job_cache: slack`: refused before a job is sent, with the reason on the terminal.
    salt.reconfigure_master(json!({"ext_job_cache": "", "master_job_cache": "slack"}));
    // Salt's command ends with 0 where a master refuses to publish.
    let output = salt.salt(&["m1", "test.echo", "never sent"]);
    let reason = "the returner `slack` stores no jobs, so it cannot be the `master_job_cache`; hint: ";
    assert!(output.stdout.contains(reason), "{output}\n{}", salt.tails());
    assert!(!texts().iter().any(|text| text.contains("never sent")), "{:#?}", texts());
}
