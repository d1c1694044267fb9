//! The plugin against a Slack that is as strict as the documentation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

use std::time::Duration;

use returner_sdk::prelude::*;
use returner_sdk::serde_json::{Value, json};
use returner_slack::{Options, Slack};
use returnerd_tests::slack::{FakeSlack, TOKEN};
use returnerd_tests::web::Reply;

const POST: &str = "/api/chat.postMessage";

async fn open(slack: &FakeSlack, change: impl FnOnce(&mut Options)) -> Slack {
    let mut options = Options {
        channel: Some("#ops".into()),
        api_key: Some(TOKEN.into()),
        api_url: Some(slack.url()),
        ..Options::default()
    };
    change(&mut options);
    Slack::open(options, &Context::default()).await.unwrap()
}

fn ret(number: u32, value: Value) -> JobReturn {
    JobReturn {
        jid: format!("20261201{number:012}"),
        minion: "m1".into(),
        resource_id: None,
        fun: "test.echo".into(),
        fun_args: r#"["a"]"#.into(),
        value: value.to_string(),
        document: "{}".into(),
        success: Some(true),
        retcode: Some(0),
        trimmed: false,
        arrived_ms: 0,
    }
}

/// The text of an error that asks for another try, and when.
fn retry<T: std::fmt::Debug>(result: Result<T>) -> (String, Option<u32>) {
    match result {
        Err(Error::Retry { why, after_ms }) => {
            assert!(!why.contains(TOKEN), "the token is in an error: {why}");
            (why, after_ms)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_return_becomes_a_message_of_the_channel_with_the_token_in_a_header() {
    let slack = FakeSlack::start();
    let mut plugin = open(&slack, |options| options.username = Some("Salt & co".into())).await;
    assert_eq!(plugin.deliver(vec![ret(1, json!("a < b & `c` ü🚀"))]).await.unwrap(), [Verdict::Stored]);
    let [message] = slack.messages().try_into().unwrap();
    assert_eq!(message.channel, "ops");
    assert_eq!(
        message.text,
        "```id: m1\r\nfunction: test.echo\r\nfunction args: ['a']\r\njid: 20261201000000000001\r\n\
         return: 'a &lt; b &amp; `c` ü🚀'\r\n```"
    );
    assert_eq!(message.fields["username"], "Salt & co");
    slack.must_be_content();
}

#[tokio::test]
async fn a_return_that_comes_again_is_not_sent_again() {
    let slack = FakeSlack::start();
    let mut plugin = open(&slack, |_| {}).await;
    let resource = JobReturn { resource_id: Some("r1".into()), ..ret(1, json!(1)) };
    let batch = vec![ret(1, json!(1)), ret(1, json!("other")), resource.clone(), ret(2, json!(2))];
    for _ in 0..2 {
        assert_eq!(plugin.deliver(batch.clone()).await.unwrap(), vec![Verdict::Stored; 4]);
    }
    assert_eq!(slack.messages().len(), 3);
    assert!(slack.messages()[1].text.contains("id: r1\r\n"));
    slack.must_be_content();
}

#[tokio::test]
async fn a_refusal_within_status_200_waits_and_names_the_option() {
    let slack = FakeSlack::start();
    for (token, channel, code) in [
        ("xoxb-wrong", "#ops", "`invalid_auth`"),
        (TOKEN, "#none", "`channel_not_found`"),
        (TOKEN, "#private", "`not_in_channel`"),
        (TOKEN, "#old", "`is_archived`"),
    ] {
        let change = |options: &mut Options| {
            (options.api_key, options.channel) = (Some(token.into()), Some(channel.into()));
        };
        let mut plugin = open(&slack, change).await;
        let (why, after) = retry(plugin.deliver(vec![ret(1, json!(1)), ret(2, json!(2))]).await);
        assert!(why.contains(code) && why.contains("the option `"), "{why}");
        assert_eq!(after, Some(60_000));
    }
    slack.without_scope("chat:write");
    let mut plugin = open(&slack, |_| {}).await;
    let (why, _) = retry(plugin.deliver(vec![ret(1, json!(1))]).await);
    assert!(why.contains("`missing_scope`") && why.contains("`chat:write`"), "{why}");
    assert_eq!(slack.messages().len(), 0);
    // Once it is mended it works at once.
    slack.with_scope("chat:write");
    assert_eq!(plugin.deliver(vec![ret(1, json!(1))]).await.unwrap(), [Verdict::Stored]);
    slack.must_be_content();
}

#[tokio::test]
async fn a_text_that_slack_refuses_dies_alone() {
    let slack = FakeSlack::start();
    let mut plugin = open(&slack, |_| {}).await;
    slack.refuse_next("chat.postMessage", "msg_too_long");
    let verdicts = plugin.deliver(vec![ret(1, json!(1)), ret(2, json!(2))]).await.unwrap();
    let [Verdict::Reject(why), Verdict::Stored] = &verdicts[..] else { panic!("{verdicts:?}") };
    assert!(why.contains("`msg_too_long`"), "{why}");
}

#[tokio::test]
async fn a_busy_slack_is_not_asked_before_its_time_and_nothing_is_sent_twice() {
    let slack = FakeSlack::start();
    let mut plugin = open(&slack, |_| {}).await;
    slack.next(
        POST,
        Reply { body: br#"{"ok": true, "channel": "C0000OPS", "ts": "1.2"}"#.to_vec(), ..Reply::default() },
    );
    slack.busy_next(POST, 1);
    let batch: Vec<JobReturn> = (0..4).map(|number| ret(number, json!(number))).collect();
    let verdicts = plugin.deliver(batch.clone()).await.unwrap();
    assert_eq!(verdicts[0], Verdict::Stored);
    for verdict in &verdicts[1..] {
        let Verdict::Retry(info) = verdict else { panic!("{verdicts:?}") };
        assert_eq!(info.after_ms, Some(1_000));
    }
    assert_eq!(slack.asked().len(), 2);
    // Another return before the time is over: Slack is not asked.
    let (why, after) = retry(plugin.deliver(vec![ret(9, json!(9))]).await);
    assert!(why.contains("no more messages") && after.unwrap() <= 1_001, "{why} {after:?}");
    assert_eq!(slack.asked().len(), 2);
    tokio::time::sleep(Duration::from_millis(after.unwrap().into())).await;
    assert_eq!(plugin.deliver(batch).await.unwrap(), vec![Verdict::Stored; 4]);
    assert_eq!(slack.messages().len(), 3);
    // In a 200 it is the same.
    slack.refuse_next("chat.postMessage", "ratelimited");
    assert_eq!(retry(plugin.deliver(vec![ret(10, json!(1))]).await).1, Some(30_000));
    slack.must_be_content();
}

#[tokio::test]
async fn a_server_that_is_not_slack_gets_nothing_lost() {
    let slack = FakeSlack::start();
    let mut plugin = open(&slack, |options| options.api_url = Some(slack.url() + "/elsewhere")).await;
    let (why, after) = retry(plugin.deliver(vec![ret(1, json!(1))]).await);
    assert!(why.contains("404") && why.contains("`api_url`") && after == Some(60_000), "{why}");
    let mut plugin = open(&slack, |_| {}).await;
    slack.next(POST, Reply { body: b"<html>log in</html>".to_vec(), ..Reply::default() });
    let (why, _) = retry(plugin.deliver(vec![ret(1, json!(1))]).await);
    assert!(why.contains("`api_url`"), "{why}");
    slack.next(POST, Reply::status(503));
    retry(plugin.deliver(vec![ret(1, json!(1))]).await);
    let mut away = open(&slack, |options| options.api_url = Some("http://127.0.0.1:1".into())).await;
    retry(away.deliver(vec![ret(1, json!(1))]).await);
}

#[tokio::test]
async fn as_user_is_left_out_where_slack_no_longer_takes_it() {
    let slack = FakeSlack::start();
    let mut plugin = open(&slack, |options| options.as_user = Some(true)).await;
    assert_eq!(
        plugin.deliver(vec![ret(1, json!(1)), ret(2, json!(2))]).await.unwrap(),
        vec![Verdict::Stored; 2]
    );
    assert_eq!((slack.messages().len(), slack.asked().len()), (2, 3));
    slack.with_as_user();
    let mut plugin = open(&slack, |options| options.as_user = Some(true)).await;
    plugin.deliver(vec![ret(3, json!(1))]).await.unwrap();
    assert_eq!(slack.messages()[2].fields["as_user"], "true");
    slack.must_be_content();
}

fn long() -> Value {
    json!(format!("{}```end", "a line with <angles> & more\n".repeat(2_000)))
}

#[tokio::test]
async fn a_long_return_is_cut_with_a_note_and_its_block_is_closed() {
    let slack = FakeSlack::start();
    for (number, max_text) in [500, 4_000, 40_000].into_iter().enumerate() {
        let mut plugin = open(&slack, |options| options.max_text = max_text).await;
        let returns = vec![ret(number.try_into().unwrap(), long())];
        assert_eq!(plugin.deliver(returns).await.unwrap(), [Verdict::Stored]);
        let text = slack.messages()[number].text.clone();
        assert!(text.chars().count() <= usize::try_from(max_text).unwrap());
        assert!(text.contains("characters are left out; `salt-run jobs.lookup_jid 2026"), "{text}");
    }
    slack.must_be_content();
}

#[tokio::test]
async fn a_long_return_is_whole_in_a_file_in_the_thread_of_its_message() {
    let slack = FakeSlack::start();
    let mut plugin = open(&slack, |options| options.files_url = Some(slack.url())).await;
    let batch = vec![ret(1, long()), ret(2, json!("short"))];
    assert_eq!(plugin.deliver(batch).await.unwrap(), vec![Verdict::Stored; 2]);
    assert_eq!(slack.messages().len(), 2);
    let [file] = slack.files().try_into().unwrap();
    assert_eq!((file.name.as_str(), file.channel.as_str()), ("20261201000000000001-m1.txt", "ops"));
    assert_eq!(file.text.matches("<angles> & more\\n").count(), 2_000);
    assert!(file.text.starts_with("id: m1\r\n") && file.text.contains("```end"));
    assert_eq!(file.thread, slack.messages()[0].text);
    assert!(file.thread.contains("left out; all of it is in the file in the thread]"), "{}", file.thread);
    slack.must_be_content();
}

#[tokio::test]
async fn a_file_that_fails_at_the_last_step_is_tried_again_without_a_second_message() {
    let slack = FakeSlack::start();
    let mut plugin = open(&slack, |options| options.files_url = Some(slack.url())).await;
    slack.refuse_next("files.completeUploadExternal", "internal_error");
    retry(plugin.deliver(vec![ret(1, long())]).await);
    assert_eq!((slack.messages().len(), slack.files().len()), (1, 0));
    assert_eq!(plugin.deliver(vec![ret(1, long())]).await.unwrap(), [Verdict::Stored]);
    assert_eq!((slack.messages().len(), slack.files().len()), (1, 1));
    slack.must_be_content();
}

#[tokio::test]
async fn without_the_scope_for_files_the_cut_message_says_why_there_is_none() {
    let slack = FakeSlack::start();
    slack.without_scope("files:write");
    let mut plugin = open(&slack, |options| options.files_url = Some(slack.url())).await;
    assert_eq!(plugin.deliver(vec![ret(1, long())]).await.unwrap(), [Verdict::Stored]);
    let text = &slack.messages()[0].text;
    assert!(text.contains("`missing_scope` (the app needs the scope `files:write`)]\r\n```"), "{text}");
    assert_eq!(slack.files(), []);
    slack.must_be_content();
}

#[tokio::test]
async fn a_file_goes_to_no_server_that_the_option_does_not_name() {
    let (slack, other) = (FakeSlack::start(), FakeSlack::start());
    let mut plugin = open(&slack, |options| options.files_url = Some(other.url())).await;
    let (why, after) = retry(plugin.deliver(vec![ret(1, long())]).await);
    assert!(why.contains(&slack.url()) && why.contains("`files_url`") && after == Some(60_000), "{why}");
    assert!(other.asked().is_empty() && slack.messages().is_empty());
}

#[tokio::test]
async fn what_the_options_keep_back_asks_slack_nothing() {
    let slack = FakeSlack::start();
    let mut plugin = open(&slack, |options| options.only_show_failed = true).await;
    let good = json!({"cmd_|-a_|-a_|-run": {"result": true, "changes": {"x": 1}}});
    assert_eq!(plugin.deliver(vec![ret(1, good)]).await.unwrap(), [Verdict::Stored]);
    assert!(slack.asked().is_empty());
}
