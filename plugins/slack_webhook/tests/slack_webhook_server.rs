//! The plugin against a Slack that is as strict as the documentation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

use returner_sdk::prelude::*;
use returner_sdk::serde_json::{Map, Value, json};
use returner_slack_webhook::{Options, Webhook};
use returnerd_tests::slack::{FakeSlack, WEBHOOK};
use returnerd_tests::web::Reply;

async fn open(slack: &FakeSlack, change: impl FnOnce(&mut Options)) -> Webhook {
    let mut options =
        Options { webhook: Some(WEBHOOK.into()), api_url: Some(slack.url()), ..Options::default() };
    change(&mut options);
    Webhook::open(options, &Context::default()).await.unwrap()
}

fn ret(number: u32, success: Option<bool>, value: Value) -> JobReturn {
    let jid = format!("20261201{number:012}");
    JobReturn {
        document: json!({"jid": jid, "id": "m1", "fun": "test.echo", "return": value}).to_string(),
        jid,
        minion: "m1".into(),
        resource_id: None,
        fun: "test.echo".into(),
        fun_args: r#"["a", {"b": true}]"#.into(),
        value: value.to_string(),
        success,
        retcode: None,
        trimmed: false,
        arrived_ms: 0,
    }
}

fn event(id: u64, tag: &str, data: Value) -> Event {
    Event { id, tag: tag.into(), data: data.to_string(), master: "lab_master".into(), arrived_ms: 0 }
}

/// What is sent of returns, all of which Slack must take.
async fn sent(returns: Vec<JobReturn>, change: impl FnOnce(&mut Options)) -> Vec<Value> {
    let slack = FakeSlack::start();
    let mut plugin = open(&slack, change).await;
    let count = returns.len();
    assert_eq!(plugin.deliver(returns).await.unwrap(), vec![Verdict::Stored; count]);
    slack.must_be_content();
    slack.messages().into_iter().map(|message| message.fields["attachments"].clone()).collect()
}

/// Ten states: seven unchanged, one changed, two failed, of which one changed something too.
fn run() -> Value {
    let state = |number: u32| {
        let changes = if [4, 7].contains(&number) { json!({"diff": "new"}) } else { json!({}) };
        let result = ![7, 8].contains(&number);
        let state = json!({
            "result": result, "changes": changes, "__run_num__": number, "__id__": format!("id<{number}>"),
            "__sls__": "web", "duration": 100.5,
        });
        (format!("cmd_|-id{number}_|-n{number}_|-run"), state)
    };
    (0..10).map(state).collect::<Map<_, _>>().into()
}

#[tokio::test]
async fn a_return_is_two_attachments_as_salt_makes_them() {
    let messages =
        sent(vec![ret(1, Some(true), json!("a & b")), ret(2, Some(false), json!(false))], |_| {}).await;
    assert_eq!(
        messages[0],
        json!([
            {
                "fallback": "m1 | Succeeded", "author_name": "m1", "color": "#272727", "title": "Success: True",
                "text": "Function: test.echo\nFunction Args: ['a', {'b': True}]\nJID: 20261201000000000001\n",
                "mrkdwn_in": ["text"],
            },
            {"color": "good", "title": "Return: a &amp; b"},
        ])
    );
    assert_eq!(messages[1][0]["fallback"], "m1 | Failed");
    assert_eq!(messages[1][1], json!({"color": "danger", "title": "Return: False"}));
}

#[tokio::test]
async fn titles_are_filled_in_and_an_unknown_outcome_is_called_so() {
    let resource = JobReturn { resource_id: Some("r<1>".into()), ..ret(1, Some(true), json!(1)) };
    let change = |options: &mut Options| {
        options.success_title = Some("{id} {fun} {nothing}".into());
        options.author_icon = Some("https://x.example/i.png".into());
    };
    let messages = sent(vec![resource, ret(2, None, json!(1))], change).await;
    assert_eq!(messages[0][0]["fallback"], "r&lt;1&gt; test.echo {nothing}");
    assert_eq!(messages[0][0]["author_icon"], "https://x.example/i.png");
    assert_eq!(messages[1][0]["fallback"], "m1 | Returned");
    assert_eq!(messages[1][0]["title"], "Success: unknown");
}

#[tokio::test]
async fn a_state_run_is_counted_and_its_states_are_named_if_wanted() {
    let runs = || vec![ret(1, Some(false), run())];
    let messages = sent(runs(), |_| {}).await;
    let text = messages[0][0]["text"].as_str().unwrap();
    assert!(
        text.ends_with("Total: 10\nDuration: 1.00 secs") || text.ends_with("Total: 10\nDuration: 1.01 secs"),
        "{text}"
    );
    let titles: Vec<&str> = (1..4).map(|at| messages[0][at]["title"].as_str().unwrap()).collect();
    assert_eq!(titles, ["Unchanged: 7", "Changed: 1", "Failed: 2"]);
    assert_eq!(messages[0][3]["fields"], Value::Null);
    let messages = sent(runs(), |options| options.show_tasks = true).await;
    assert_eq!(messages[0][2]["fields"], json!([{"value": "web.sls | id&lt;4&gt;", "short": false}]));
    assert_eq!(messages[0][3]["fields"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn long_returns_are_cut_with_a_note_and_maps_are_yaml() {
    let long = "a <line> of ``` text\n".repeat(5_000);
    let many: Map<String, Value> = (0..500)
        .map(|number| {
            let state =
                json!({"result": false, "changes": {}, "__run_num__": number, "__id__": "i".repeat(500)});
            (format!("cmd_|-{number}_|-n_|-run"), state)
        })
        .collect();
    let returns = vec![
        ret(1, Some(true), json!(long)),
        ret(2, Some(true), json!({"b": {"c": [1, true]}})),
        ret(3, Some(true), json!([long, long])),
        ret(4, Some(false), many.into()),
        ret(5, Some(true), json!("")),
        ret(6, Some(true), json!("\n\n")),
        JobReturn { fun_args: json!([long]).to_string(), ..ret(7, Some(true), json!(true)) },
    ];
    let messages = sent(returns, |options| options.show_tasks = true).await;
    let text = messages[0][1]["text"].as_str().unwrap();
    assert!(
        text.starts_with("```a &lt;line&gt;") && text.contains("characters are left out; `salt-run"),
        "{text}"
    );
    assert_eq!(messages[1][1]["text"], "```b:\n  c:\n  - 1\n  - true\n```");
    let fields = messages[3][3]["fields"].as_array().unwrap();
    assert_eq!((fields.len(), fields[30]["value"].as_str()), (31, Some("and 470 more")));
    assert_eq!(messages[5][1]["text"], r#""\n\n""#);
    assert!(messages[6][0]["text"].as_str().unwrap().contains("… (cut)\nJID: "));
}

#[tokio::test]
async fn a_refusal_waits_and_names_the_option_without_the_secret() {
    let slack = FakeSlack::start();
    for (status, code) in [
        (404, "no_service"),
        (403, "invalid_token"),
        (410, "channel_is_archived"),
        (403, "action_prohibited"),
        (302, "<html>"),
        (200, "hello"),
        (500, "rollup_error"),
    ] {
        let mut plugin = open(&slack, |_| {}).await;
        slack.next("/services/", Reply { status, body: code.into(), ..Reply::default() });
        match plugin.deliver(vec![ret(1, None, json!(1)), ret(2, None, json!(2))]).await {
            Err(Error::Retry { why, after_ms }) => {
                assert_eq!(after_ms, (status != 500).then_some(60_000));
                assert!(!why.contains("secret") && !why.contains("T00000000"), "{why}");
                let option = if code.starts_with(['<', 'h']) { "`api_url`" } else { "`webhook`" };
                assert!(why.contains(option) || status == 500, "{why}");
            }
            other => panic!("{code}: {other:?}"),
        }
    }
    let mut plugin = open(&slack, |options| options.webhook = Some("T00000000/B00000000/wrong".into())).await;
    assert!(matches!(plugin.deliver(vec![ret(1, None, json!(1))]).await, Err(Error::Retry { .. })));
    assert_eq!(slack.messages(), []);
    slack.must_be_content();
}

#[tokio::test]
async fn a_message_that_slack_refuses_dies_alone_and_a_pause_is_kept() {
    let slack = FakeSlack::start();
    let mut plugin = open(&slack, |_| {}).await;
    slack.next("/services/", Reply { status: 400, body: "invalid_payload".into(), ..Reply::default() });
    let verdicts = plugin.deliver(vec![ret(1, None, json!(1)), ret(2, None, json!(2))]).await.unwrap();
    assert!(matches!(&verdicts[..], [Verdict::Reject(_), Verdict::Stored]), "{verdicts:?}");
    slack.busy_next("/services/", 7);
    for _ in 0..3 {
        let Err(Error::Retry { after_ms: Some(ms), .. }) = plugin.deliver(vec![ret(3, None, json!(1))]).await
        else {
            panic!()
        };
        assert!((6_000..=7_001).contains(&ms), "{ms}");
    }
    assert_eq!(slack.asked().len(), 3);
}

#[tokio::test]
async fn every_event_is_taken_and_those_of_jobs_look_like_returns() {
    let slack = FakeSlack::start();
    let mut plugin = open(&slack, |_| {}).await;
    let events = vec![
        event(
            1,
            "salt/job/20261201000000000001/ret/m1",
            json!({
                "jid": "20261201000000000001", "id": "m1", "fun": "state.apply", "return": run(), "retcode": 2, "success": true,
            }),
        ),
        event(2, "salt/job/20261201000000000001/ret/m2", json!({"return": true, "retcode": 0})),
        event(3, "salt/key", json!({"act": "accept", "id": "m<3>", "_stamp": "2026"})),
        event(4, "odd", json!("text")),
        event(5, "odd/empty", json!({})),
        event(6, "salt/auth", json!({"id": "m1", "act": "accept"})),
        event(7, "salt/job/1/ret/m1", json!({"fun": "saltutil.find_job", "return": {}, "id": "m1"})),
    ];
    for _ in 0..2 {
        assert_eq!(plugin.deliver_events(events.clone()).await.unwrap(), vec![Verdict::Stored; 7]);
    }
    let messages: Vec<Value> =
        slack.messages().into_iter().map(|m| m.fields["attachments"].clone()).collect();
    assert_eq!(messages.len(), 5);
    assert_eq!(
        (&messages[0][0]["fallback"], &messages[0][3]["title"]),
        (&json!("m1 | Failed"), &json!("Failed: 2"))
    );
    assert_eq!(messages[1][0]["author_name"], "m2");
    assert_eq!(messages[2][0]["title"], "salt/key");
    assert_eq!(messages[2][0]["author_name"], "lab_master");
    assert!(messages[2][0]["text"].as_str().unwrap().contains("id: m&lt;3&gt;\n"), "{}", messages[2]);
    slack.must_be_content();
}
