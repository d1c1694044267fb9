//! Each source of returns and loads, in the shape that was captured from Salt.

use serde_json::json;

use super::super::frame::{Envelope, Role};
use super::*;

const JID: &str = "20261201033051370966";

fn envelope() -> Envelope {
    Envelope { uid: [7; 16], at: 1_796_095_851.5, ..Envelope::new("mysql", "m1", Role::Minion) }
}

fn msgpack(value: serde_json::Value) -> Value {
    json::from_tree(value)
}

fn take(op: Op) -> Result<Vec<Record>, RecordError> {
    records(&envelope(), op, 42, &Ids::new(1))
}

fn try_ret(value: serde_json::Value) -> Result<JobReturn, RecordError> {
    take(Op::Return { ret: msgpack(value) }).map(|mut records| match records.remove(0) {
        Record::Return(ret) => ret,
        other => unreachable!("{other:?}"),
    })
}

fn ret(value: serde_json::Value) -> JobReturn {
    let ret = try_ret(value).unwrap();
    let document: serde_json::Value = serde_json::from_str(&ret.document).unwrap();
    for key in ["jid", "id", "fun", "return"] {
        assert!(document.get(key).is_some(), "{key} in {document}");
    }
    assert_eq!(document["jid"], ret.jid.as_str());
    assert_eq!(document["return"], serde_json::from_str::<serde_json::Value>(&ret.value).unwrap());
    ret
}

fn load(jid: &str, load: serde_json::Value, minions: Value) -> JobLoad {
    match take(Op::Load { jid: jid.into(), load: msgpack(load), minions }).unwrap().remove(0) {
        Record::Load(load) => load,
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn an_ordinary_job_keeps_its_document() {
    let ret = ret(json!({
        "success": true, "return": true, "retcode": 0, "jid": JID, "fun": "test.ping", "fun_args": [],
        "user": "root", "metadata": {"k": "v"}, "ret_config": "alternative", "ret_kwargs": {"db": "x"}, "id": "m1",
    }));
    assert_eq!((ret.jid.as_str(), ret.minion.as_str(), ret.fun.as_str()), (JID, "m1", "test.ping"));
    assert_eq!((ret.value.as_str(), ret.fun_args.as_str()), ("true", "[]"));
    assert_eq!((ret.success, ret.retcode, ret.trimmed, ret.arrived_ms), (Some(true), Some(0), false, 42));
    assert_eq!(
        ret.document,
        r#"{"success": true, "return": true, "retcode": 0, "jid": "20261201033051370966", "fun": "test.ping", "fun_args": [], "user": "root", "metadata": {"k": "v"}, "ret_config": "alternative", "id": "m1"}"#
    );
}

#[test]
fn a_failed_command_has_its_return_code() {
    let ret = ret(json!({"success": false, "return": "hi", "retcode": 3, "jid": JID, "fun": "cmd.run",
        "fun_args": ["echo hi; exit 3"], "user": "root", "id": "m1"}));
    assert_eq!((ret.success, ret.retcode), (Some(false), Some(3)));
    assert_eq!(ret.fun_args, r#"["echo hi; exit 3"]"#);
}

#[test]
fn several_functions_are_good_only_together() {
    let job = |success: serde_json::Value, retcode: serde_json::Value| {
        ret(
            json!({"return": {"test.ping": true, "test.echo": "hello"}, "retcode": retcode, "success": success,
            "jid": JID, "fun": ["test.ping", "test.echo"], "fun_args": [[], ["hello"]], "id": "m1"}),
        )
    };
    let both = job(json!({"test.ping": true, "test.echo": true}), json!({"test.ping": 0, "test.echo": 0}));
    assert_eq!((both.fun.as_str(), both.success, both.retcode), ("test.ping,test.echo", Some(true), Some(0)));
    assert_eq!(both.fun_args, r#"[[], ["hello"]]"#);
    assert!(both.document.contains(r#""fun": ["test.ping", "test.echo"]"#));
    let raised = job(json!({"test.ping": true, "test.echo": false}), json!({"test.ping": 0}));
    assert_eq!((raised.success, raised.retcode), (Some(false), Some(0)));
    // `multifunc_ordered`
    let list = job(json!([true, true]), json!([0, 5]));
    assert_eq!((list.success, list.retcode), (Some(false), Some(5)));
}

#[test]
fn two_calls_of_one_function_in_list_form_are_both_kept() {
    let ret = ret(
        json!({"return": ["one", true, "two"], "retcode": [0, 0, 0], "success": [true, true, true],
        "jid": JID, "fun": ["test.echo", "test.sleep", "test.echo"], "fun_args": [["one"], [1], ["two"]], "id": "m1"}),
    );
    assert_eq!(ret.value, r#"["one", true, "two"]"#);
    assert_eq!(ret.fun, "test.echo,test.sleep,test.echo");
}

#[test]
fn salt_call_always_claims_success_so_the_code_decides() {
    let ret = ret(
        json!({"jid": JID, "return": "no", "retcode": 2, "id": "m1", "fun": "cmd.run", "fun_args": ["bar=2"],
        "success": true}),
    );
    assert_eq!((ret.success, ret.retcode), (Some(false), Some(2)));
}

#[test]
fn a_scheduled_job_without_code_is_as_it_says() {
    let ret = ret(
        json!({"id": "m1", "fun": "test.arg", "fun_args": ["q", {"w": 1}], "schedule": "sj", "jid": JID,
        "pid": 1462, "return": {}, "success": true, "ret_config": "alternative", "ret_kwargs": {"pass": "hush"}}),
    );
    assert_eq!((ret.success, ret.retcode), (Some(true), None));
    assert!(!ret.document.contains("hush") && ret.document.contains(r#""schedule": "sj""#));
}

#[test]
fn startup_states_get_a_job_id_of_their_own() {
    let request = |uid, fun: &str| {
        let ret = msgpack(json!({"id": "m1", "jid": "req", "fun": fun, "fun_args": [], "return": 1}));
        (Envelope { uid, ..envelope() }, Op::Return { ret })
    };
    let ids = Ids::new(1);
    let jid = |uid, fun| {
        let (envelope, op) = request(uid, fun);
        records(&envelope, op, 42, &ids).unwrap()[0].jid().unwrap().to_owned()
    };
    let (ping, echo) = (jid([1; 16], "test.ping"), jid([2; 16], "test.echo"));
    assert!(looks_like_jid(&ping) && looks_like_jid(&echo));
    assert_ne!(ping, echo);
    assert_eq!(jid([1; 16], "test.ping"), ping);
    assert_eq!(ms_from_jid(&ping), Some(1_796_095_851_500));
}

#[test]
fn module_run_hands_its_value_over_as_ret() {
    let ret = ret(json!({"id": "m1", "ret": {"a": 1}, "fun": "test.arg", "jid": JID}));
    assert_eq!((ret.value.as_str(), ret.success, ret.retcode), (r#"{"a": 1}"#, None, None));
    assert_eq!(
        ret.document,
        format!(r#"{{"id": "m1", "return": {{"a": 1}}, "fun": "test.arg", "jid": "{JID}"}}"#)
    );
}

#[test]
fn what_a_runner_says_inside_is_repeated_outside() {
    let inner = json!({"fun": "runner.jobs.list_jobs", "jid": JID, "user": "root", "fun_args": ["x"],
        "_stamp": "2026", "return": {}, "success": false});
    for outer in [json!({}), json!({"fun": "runner.jobs.list_jobs", "user": "root"})] {
        let mut sent = json!({"id": "host_master", "tgt": "host_master", "jid": JID, "return": inner});
        sent.as_object_mut().unwrap().extend(outer.as_object().unwrap().clone());
        let ret = ret(sent);
        assert_eq!((ret.fun.as_str(), ret.fun_args.as_str()), ("runner.jobs.list_jobs", r#"["x"]"#));
        assert_eq!((ret.minion.as_str(), ret.success, ret.retcode), ("host_master", Some(false), None));
        let document: serde_json::Value = serde_json::from_str(&ret.document).unwrap();
        assert_eq!((&document["return"], &document["success"]), (&inner, &json!(false)));
        assert_eq!(document["user"], "root");
    }
}

#[test]
fn an_orchestration_is_as_good_as_its_states() {
    let run = |result: bool| {
        let chunk = json!({"salt_|-a_|-a_|-state": {"result": result}});
        ret(
            json!({"id": "h_master", "tgt": "h_master", "jid": JID, "return": {"fun": "runner.state.orchestrate",
            "jid": JID, "user": "root", "fun_args": [], "success": true,
            "return": {"outputter": "highstate", "data": {"h_master": chunk}}}}),
        )
    };
    assert_eq!(run(false).success, Some(false));
    assert_eq!(run(true).success, Some(true));
}

#[test]
fn a_function_that_returns_something_like_a_runner_is_left_alone() {
    let inner = json!({"fun": "test.arg", "jid": "20200101000000000000", "return": 1, "success": false, "retcode": 9});
    let ret = ret(json!({"id": "m1", "jid": JID, "fun": "test.arg", "return": inner, "_stamp": "x"}));
    assert_eq!((ret.success, ret.retcode, ret.fun_args.as_str()), (None, None, "[]"));
}

#[test]
fn a_syndic_may_leave_most_keys_out() {
    let ret = ret(json!({"jid": JID, "id": "m1", "return": {"retcode": 4, "stdout": ""}, "_stamp": "x"}));
    assert_eq!((ret.fun.as_str(), ret.success, ret.retcode), ("", None, None));
    assert!(ret.document.ends_with(r#""fun": ""}"#));
}

#[test]
fn salt_ssh_puts_the_whole_result_into_return() {
    let run = |inner: serde_json::Value| {
        ret(json!({"jid": JID, "id": "web1", "return": inner, "fun": "test.ping"}))
    };
    let good = run(
        json!({"jid": "x", "return": true, "retcode": 0, "fun": "test.ping", "fun_args": [1], "id": "web1"}),
    );
    assert_eq!((good.success, good.retcode, good.fun_args.as_str()), (Some(true), Some(0), "[1]"));
    assert!(good.value.starts_with(r#"{"jid": "x", "return": true"#));
    let bad = run(json!({"stdout": "", "stderr": "Permission denied", "retcode": 255}));
    assert_eq!((bad.success, bad.retcode), (Some(false), Some(255)));
}

#[test]
fn a_state_run_is_as_good_as_its_states() {
    let run = |fun: &str, value: serde_json::Value, retcode: Option<i64>| {
        let mut sent =
            json!({"jid": JID, "id": "m1", "fun": fun, "fun_args": [], "return": value, "success": true});
        if let Some(code) = retcode {
            sent["retcode"] = code.into();
        }
        ret(sent).success
    };
    let chunk =
        |result: serde_json::Value| json!({"file_|-a_|-/tmp/a_|-managed": {"result": result, "changes": {}}});
    assert_eq!(run("state.apply", chunk(json!(true)), Some(0)), Some(true));
    assert_eq!(run("state.apply", chunk(json!(null)), Some(0)), Some(true));
    assert_eq!(run("state.apply", chunk(json!(false)), None), Some(false));
    assert_eq!(run("state.apply", chunk(json!(false)), Some(2)), Some(false));
    assert_eq!(run("state.sls", json!(["Rendering SLS 'base:bad' failed"]), Some(1)), Some(false));
    assert_eq!(run("state.highstate", json!(["No Top file found"]), None), Some(false));
    assert_eq!(run("state.sls", json!("busy"), Some(1)), Some(false));
    assert_eq!(run("test.arg", json!(["a", "b"]), None), Some(true));
    assert_eq!(run("test.arg", json!({"x": {"result": false}}), Some(0)), Some(true));
}

#[test]
fn the_outcome_is_told_from_the_states_alone_if_nothing_else_is_there() {
    let run = |result: bool| {
        let chunk = json!({"cmd_|-a_|-a_|-run": {"result": result}});
        ret(json!({"jid": JID, "id": "m1", "fun": "state.apply", "return": chunk})).success
    };
    assert_eq!((run(true), run(false)), (Some(true), Some(false)));
}

#[test]
fn resources_and_trimmed_values_are_marked() {
    let ret =
        ret(json!({"jid": JID, "id": "m1", "resource_id": "switch1", "fun": "test.ping", "fun_args": null,
        "return": {"big": "VALUE_TRIMMED"}, "retcode": 0}));
    assert_eq!((ret.resource_id.as_deref(), ret.trimmed), (Some("switch1"), true));
    assert_eq!(ret.fun_args, "[]");
}

#[test]
fn a_return_may_lack_even_its_value() {
    let ret = ret(json!({"jid": JID, "id": "m1", "fun": "test.none"}));
    assert_eq!((ret.value.as_str(), ret.success), ("null", None));
}

#[test]
fn a_return_without_id_or_jid_is_an_error_that_says_so() {
    for (key, sent) in [
        ("id", json!({"jid": JID, "return": 1})),
        ("jid", json!({"id": "m1", "return": 1})),
        ("id", json!({"jid": JID, "id": "", "return": 1})),
        ("jid", json!({"jid": null, "id": "m1", "return": 1})),
    ] {
        assert_eq!(try_ret(sent).unwrap_err().to_string(), format!("the return has no usable `{key}`"));
    }
    assert_eq!(try_ret(json!([1])).unwrap_err().to_string(), "the return is a list, not a map");
}

#[test]
fn a_value_of_1000_levels_is_kept_and_a_deeper_one_is_an_error() {
    let send = |levels: usize| {
        let mut value = Value::Nil;
        for _ in 0..levels {
            value = Value::Array(vec![value]);
        }
        let entry = |key: &str, value: Value| (Value::from(key), value);
        let ret =
            Value::Map(vec![entry("jid", JID.into()), entry("id", "m1".into()), entry("return", value)]);
        take(Op::Return { ret })
    };
    assert!(send(999).is_ok());
    assert!(matches!(send(1_000), Err(RecordError::Json { source: JsonError::TooDeep { .. }, .. })));
}

#[test]
fn a_published_load_is_told_by_its_command() {
    let sent = json!({"cmd": "publish", "tgt": "m1", "fun": "test.arg", "arg": ["one", {"__kwarg__": true, "two": 2}],
        "tgt_type": "glob", "ret": "", "jid": JID, "kwargs": {"delimiter": ":"}, "user": "root"});
    let load = load(JID, sent.clone(), msgpack(json!(["m1", 5, "m2"])));
    assert_eq!((load.kind, load.minions), (LoadKind::Published, vec!["m1".to_owned(), "m2".to_owned()]));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&load.document).unwrap(), sent);
}

#[test]
fn a_load_is_published_if_minions_or_a_target_come_with_it() {
    let ssh =
        json!({"jid": JID, "tgt_type": "glob", "tgt": "*", "user": "root", "fun": "test.ping", "arg": []});
    for odd in [Value::Nil, Value::from("m1"), Value::Map(vec![])] {
        let load = load(JID, ssh.clone(), odd);
        assert_eq!((load.kind, load.minions.len()), (LoadKind::Published, 0));
    }
    assert_eq!(load(JID, json!({"fun": "f"}), msgpack(json!([]))).kind, LoadKind::Published);
    let inside = load(JID, json!({"fun": "f", "tgt": "*", "minions": ["a"]}), Value::Nil);
    assert_eq!(inside.minions, ["a"]);
    assert_eq!(load(JID, json!({"fun": "f"}), Value::Nil).kind, LoadKind::Stub);
}

#[test]
fn a_return_given_as_load_makes_a_stub() {
    let sent = json!({"cmd": "_return", "id": "m1", "success": true, "return": {"secret": 1}, "retcode": 0, "jid": "req",
        "fun": "test.arg", "fun_args": [1], "user": "root", "tgt": "m1", "tgt_type": "glob", "arg": [1]});
    let load = load(JID, sent, Value::Nil);
    assert_eq!((load.jid.as_str(), load.kind), (JID, LoadKind::Stub));
    assert_eq!(load.minions, ["m1"], "a job of `salt-call` is for its own minion");
    assert_eq!(
        load.document,
        format!(
            r#"{{"jid": "{JID}", "fun": "test.arg", "arg": [1], "tgt": "m1", "tgt_type": "glob", "user": "root"}}"#
        )
    );
}

#[test]
fn a_stub_of_a_return_is_the_same_either_way() {
    let sent = json!({"jid": JID, "id": "m1", "fun": ["a.b", "c.d"], "fun_args": [[], ["é"]], "return": 1, "user": "ops"});
    let from_return = stub_load(&ret(sent.clone()));
    assert_eq!(from_return, load(JID, sent, Value::Nil));
    assert!(from_return.document.contains(r#""fun": ["a.b", "c.d"], "arg": [[], ["é"]]"#));
    let bare = stub_load(&ret(json!({"jid": JID, "id": "m1", "return": 1})));
    assert!(bare.document.ends_with(r#""fun": "", "arg": [], "tgt": "m1", "tgt_type": "glob"}"#));
}

#[test]
fn secrets_do_not_stay_in_a_load() {
    let sent = json!({"cmd": "publish", "fun": "f", "arg": ["key"], "tgt": "*", "key": "hush", "jid": JID,
        "kwargs": {"username": "hush", "password": "hush", "eauth": "hush", "token": "hush", "key": "hush",
            "ret_kwargs": {"pass": "hush"}, "metadata": {"k": "v"}}});
    let load = load(JID, sent, Value::Nil);
    assert!(!load.document.contains("hush") && load.document.contains("metadata"), "{}", load.document);
}

#[test]
fn minions_and_end_times_are_additions() {
    let minions =
        Op::Minions { jid: JID.into(), minions: msgpack(json!(["b", "a"])), syndic_id: Some("s".into()) };
    let Record::Load(minions) = take(minions).unwrap().remove(0) else { unreachable!() };
    assert_eq!((minions.kind, minions.minions), (LoadKind::Addition, vec!["b".to_owned(), "a".to_owned()]));
    let end = Op::EndTime { jid: JID.into(), endtime: "2026, Dec 01".into() };
    let Record::Load(end) = take(end).unwrap().remove(0) else { unreachable!() };
    assert_eq!((end.kind, end.end_time.as_deref()), (LoadKind::Addition, Some("2026, Dec 01")));
    assert_eq!(end.document, format!(r#"{{"jid": "{JID}"}}"#));
    assert!(take(Op::Minions { jid: String::new(), minions: Value::Nil, syndic_id: None }).is_err());
}

#[test]
fn events_keep_their_order_and_get_growing_ids() {
    let event = |tag: &str, data: serde_json::Value| SentEvent { tag: tag.into(), data: msgpack(data) };
    let events = vec![
        event("salt/auth", json!({"id": "m1", "_stamp": "x"})),
        event("custom", json!("plain")),
        event("salt/job/1/error", json!({"load": {"key": "hush", "fun": "f"}, "error": "no"})),
    ];
    let records = take(Op::Events { events }).unwrap();
    let events: Vec<&Event> = records
        .iter()
        .map(|record| match record {
            Record::Event(event) => event,
            other => unreachable!("{other:?}"),
        })
        .collect();
    assert_eq!(events[0].data, r#"{"id": "m1", "_stamp": "x"}"#);
    assert_eq!(events[1].data, r#"{"data": "plain"}"#);
    assert_eq!(events[2].data, r#"{"load": {"fun": "f"}, "error": "no"}"#);
    assert!(events.is_sorted_by_key(|event| event.id) && events.iter().all(|event| event.master == "m1"));
    assert!(take(Op::Events { events: vec![] }).unwrap().is_empty());
}

#[test]
fn questions_make_no_records() {
    assert!(take(Op::GetLoad { jid: JID.into() }).unwrap().is_empty());
    assert!(take(Op::Ping).unwrap().is_empty());
}
