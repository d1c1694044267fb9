//! What is stored comes back, with the same types from every store.

use serde_json::{Value, json};

use super::Lab;
use crate::records::{jid, published, ret};

fn objects(answer: &Value) -> usize {
    answer.as_object().unwrap_or_else(|| panic!("not a map: {answer}")).len()
}

/// Every question, of a store that is empty and of a job that nobody knows: never an error, since Salt takes that for a store
/// that is away.
pub(super) fn nothing_is_answered_with_nothing_of_the_right_type(lab: &mut Lab) {
    for (op, keys, nothing) in [
        ("get_load", json!({ "jid": jid(999) }), Value::Null),
        ("get_jid", json!({ "jid": jid(999) }), json!({})),
        ("get_endtime", json!({ "jid": jid(999) }), Value::Null),
        ("get_jids", json!({}), json!({})),
        ("get_jids_filter", json!({ "count": 5, "filter_find_job": true }), json!([])),
        ("get_fun", json!({ "fun": "test.nothing" }), json!({})),
        ("get_minions", json!({}), json!([])),
        // No jid at all.
        ("get_load", json!({ "jid": "no such job" }), Value::Null),
        ("get_jid", json!({ "jid": "no such job" }), json!({})),
    ] {
        assert_eq!(lab.ask(op, keys.clone()), nothing, "{op} {keys}");
    }
}

pub(super) fn a_job_comes_back_with_its_load_its_returns_and_in_every_list(lab: &mut Lab) {
    let (job, other) = (jid(10), jid(11));
    lab.tell_load(published(&job), &["m2", "m1"]);
    lab.tell_return(ret(&job, "m1", json!({"a": [1, 2.5, null, true, "text", {}], "b": ""})));
    let mut failed = ret(&job, "m2", "it went wrong");
    (failed["success"], failed["retcode"]) = (json!(false), json!(2));
    lab.tell_return(failed);
    lab.tell_load(published(&other), &["m1"]);
    lab.settle();

    let load = lab.load_of(&job);
    for (key, value) in published(&job).as_object().unwrap() {
        if key != "cmd" {
            assert_eq!(&load[key], value, "`{key}` of {load}");
        }
    }
    assert_eq!(load["Minions"], json!(["m1", "m2"]), "{load}");
    let returns = lab.returns_of(&job);
    assert_eq!(objects(&returns), 2, "{returns}");
    assert_eq!(returns["m1"]["return"], json!({"a": [1, 2.5, null, true, "text", {}], "b": ""}));
    assert_eq!((&returns["m1"]["success"], &returns["m1"]["retcode"]), (&json!(true), &json!(0)));
    assert_eq!((&returns["m2"]["success"], &returns["m2"]["retcode"]), (&json!(false), &json!(2)));
    for (key, value) in ret(&job, "m1", Value::Null).as_object().unwrap() {
        if key != "return" {
            assert_eq!(&returns["m1"][key], value, "`{key}` of {returns}");
        }
    }
    // A job that nobody has answered yet.
    assert_eq!(lab.returns_of(&other), json!({}));
    assert_eq!(lab.load_of(&other)["Minions"], json!(["m1"]));

    let jobs = lab.ask("get_jids", json!({}));
    assert_eq!((objects(&jobs), &jobs[&job]["user"]), (2, &json!("root")), "{jobs}");
    assert_eq!(jobs[&job]["Minions"], json!(["m1", "m2"]), "{jobs}");
    assert_eq!(jobs[&job], load);
    let latest = lab.ask("get_fun", json!({ "fun": "test.echo" }));
    assert_eq!((objects(&latest), &latest["m2"]["return"]), (2, &json!("it went wrong")), "{latest}");
    assert_eq!(lab.ask("get_fun", json!({ "fun": "test.ech" })), json!({}));
    assert_eq!(lab.ask("get_minions", json!({})), json!(["m1", "m2"]));
    assert_eq!(lab.ask("get_endtime", json!({ "jid": job })), Value::Null);
}

pub(super) fn many_minions_answer_one_job(lab: &mut Lab) {
    let minions: Vec<String> = (0..60).map(|number| format!("web{number:02}.example.org")).collect();
    let names: Vec<&str> = minions.iter().map(String::as_str).collect();
    lab.tell_load(published(&jid(20)), &names);
    for (number, minion) in names.iter().enumerate() {
        lab.tell_return(ret(&jid(20), minion, number));
    }
    lab.settle();
    let returns = lab.returns_of(&jid(20));
    assert_eq!(objects(&returns), 60);
    for (number, minion) in names.iter().enumerate() {
        assert_eq!(returns[minion]["return"], number);
    }
    assert_eq!(lab.load_of(&jid(20))["Minions"], json!(names));
    let known = lab.ask("get_minions", json!({}));
    assert!(names.iter().all(|minion| known.as_array().unwrap().contains(&json!(minion))), "{known}");
}

pub(super) fn a_job_of_several_functions_is_one_job(lab: &mut Lab) {
    let funs = json!(["test.version", "test.arg"]);
    let mut load = published(&jid(30));
    (load["fun"], load["arg"]) = (funs.clone(), json!([[], ["b", {"c": 1}]]));
    lab.tell_load(load, &["m1", "m2"]);
    let returned = |value: Value, code: Value, success: Value| {
        json!({
            "jid": jid(30), "fun": funs, "fun_args": [[], ["b", {"c": 1}]], "return": value, "retcode": code,
            "success": success,
        })
    };
    let mut by_name = returned(
        json!({"test.version": "3008.4", "test.arg": {"args": ["b"], "kwargs": {"c": 1}}}),
        json!({"test.version": 0, "test.arg": 0}),
        json!({"test.version": true, "test.arg": true}),
    );
    by_name["id"] = json!("m1");
    // As with `multifunc_ordered`.
    let mut ordered = returned(json!(["3008.4", "failed"]), json!([0, 1]), json!([true, false]));
    ordered["id"] = json!("m2");
    lab.tell_return(by_name.clone());
    lab.tell_return(ordered.clone());
    lab.settle();
    let load = lab.load_of(&jid(30));
    assert_eq!((&load["fun"], &load["arg"]), (&funs, &json!([[], ["b", {"c": 1}]])), "{load}");
    let returns = lab.returns_of(&jid(30));
    for (minion, sent) in [("m1", &by_name), ("m2", &ordered)] {
        for key in ["fun", "fun_args", "return", "retcode", "success"] {
            assert_eq!(returns[minion][key], sent[key], "`{key}` of {returns}");
        }
    }
    let latest = lab.ask("get_fun", json!({ "fun": "test.version,test.arg" }));
    assert_eq!((objects(&latest), &latest["m2"]["jid"]), (2, &json!(jid(30))), "{latest}");
}

pub(super) fn a_resource_answers_under_its_own_id(lab: &mut Lab) {
    lab.tell_load(published(&jid(40)), &["m1"]);
    lab.tell_return(ret(&jid(40), "m1", "the minion"));
    for resource in ["ssh/switch1", "ssh/switch2"] {
        let mut answer = ret(&jid(40), "m1", resource);
        answer["resource_id"] = json!(resource.rsplit('/').next());
        lab.tell_return(answer);
    }
    lab.settle();
    let returns = lab.returns_of(&jid(40));
    let mut ids: Vec<&String> = returns.as_object().unwrap().keys().collect();
    ids.sort();
    assert_eq!(ids, ["m1", "switch1", "switch2"], "{returns}");
    assert_eq!(returns["m1"]["return"], "the minion");
    assert_eq!(
        (&returns["switch2"]["return"], &returns["switch2"]["id"]),
        (&json!("ssh/switch2"), &json!("m1"))
    );
    let known = lab.ask("get_minions", json!({}));
    assert!(known.as_array().unwrap().contains(&json!("switch1")), "{known}");
}

pub(super) fn the_latest_return_of_a_function_is_the_one_of_the_newest_job(lab: &mut Lab) {
    // The newest job answers first: what counts is the job, not the arrival.
    for (number, minion) in [(52, "m1"), (51, "m1"), (50, "m2"), (53, "m3")] {
        let mut load = published(&jid(number));
        load["fun"] = json!("pkg.version");
        lab.tell_load(load, &[minion]);
        let mut answer = ret(&jid(number), minion, number);
        answer["fun"] = json!("pkg.version");
        lab.tell_return(answer);
        if number == 52 {
            lab.settle();
        }
    }
    lab.settle();
    let latest = lab.ask("get_fun", json!({ "fun": "pkg.version" }));
    let values = ["m1", "m2", "m3"].map(|minion| &latest[minion]["return"]);
    assert_eq!((objects(&latest), values), (3, [&json!(52), &json!(50), &json!(53)]), "{latest}");
}

pub(super) fn a_limited_list_has_the_newest_jobs_without_the_probes_of_salt(lab: &mut Lab) {
    for number in 9_001..9_010 {
        let mut load = published(&jid(number));
        if number % 2 == 0 {
            load["fun"] = json!("saltutil.find_job");
        }
        lab.tell_load(load, &["m1"]);
    }
    lab.settle();
    for (count, without, wanted) in [
        (3, true, vec![9_005, 9_007, 9_009]),
        (3, false, vec![9_007, 9_008, 9_009]),
        (0, true, vec![]),
        (1, true, vec![9_009]),
    ] {
        let pairs = lab.ask("get_jids_filter", json!({ "count": count, "filter_find_job": without }));
        let listed: Vec<&Value> = pairs.as_array().unwrap().iter().map(|pair| &pair[0]).collect();
        assert_eq!(
            listed,
            wanted.iter().map(|&number| json!(jid(number))).collect::<Vec<_>>().iter().collect::<Vec<_>>()
        );
        assert!(pairs.as_array().unwrap().iter().all(|pair| pair[1]["tgt"] == "*"), "{pairs}");
    }
}
