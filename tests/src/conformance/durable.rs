//! Long values, time, and servers that go away.

use std::time::{Duration, Instant};

use rmpv::Value as Msgpack;
use serde_json::{Value, json};

use super::Lab;
use crate::records::{LIMIT, jid, published, ret};
use crate::wait::{wait_for, wait_for_value};

/// How long the clean-up keeps jobs.
const KEEP: Duration = Duration::from_secs(8);

/// Old by their time: one with all it may have, one that is answered again later, one without a return, one without a load.
const WHOLE: &str = "20200101000000000001";
const ANSWERED: &str = "20200101000000000002";
const UNANSWERED: &str = "20200101000000000003";
const UNKNOWN: &str = "20200101000000000004";

pub(super) fn jobs_are_stored_that_will_be_old(lab: &mut Lab) {
    for job in [WHOLE, ANSWERED, UNANSWERED] {
        lab.tell_load(published(job), &["m1"]);
    }
    for job in [WHOLE, ANSWERED, UNKNOWN] {
        lab.tell_return(ret(job, "m1", "old"));
    }
    lab.settle();
    lab.sown = Some(Instant::now());
    for job in [WHOLE, ANSWERED, UNANSWERED, UNKNOWN] {
        assert_ne!(lab.load_of(job), Value::Null, "{job}");
    }
}

pub(super) fn ten_mebibytes_come_back_whole(lab: &mut Lab) {
    let text = "🚀 \"ä\n".repeat((10 << 20) / 10);
    lab.tell_return(ret(&jid(300), "m1", json!({ "long": text })));
    lab.tell_return(ret(&jid(300), "m2", "short"));
    lab.settle();
    let returns = lab.look("get_jid", json!({ "jid": jid(300) }));
    // Not by `assert_eq!`, which would print it.
    assert!(returns["m1"]["return"]["long"] == text.as_str(), "the long value has changed");
    assert_eq!(returns["m2"]["return"], "short");
}

pub(super) fn what_was_stored_before_and_after_a_restart_is_there(lab: &mut Lab) {
    lab.tell_load(published(&jid(310)), &["m1"]);
    lab.tell_return(ret(&jid(310), "m1", "before"));
    lab.settle();
    assert_eq!(lab.returns_of(&jid(310))["m1"]["return"], "before");
    lab.take_away();
    lab.give_back();
    // Both daemons still have connections that have ended.
    assert_eq!(lab.returns_of(&jid(310))["m1"]["return"], "before");
    lab.tell_load(published(&jid(311)), &["m1"]);
    lab.tell_return(ret(&jid(311), "m1", "after"));
    lab.settle();
    assert_eq!(lab.returns_of(&jid(311))["m1"]["return"], "after");
    assert_eq!(lab.load_of(&jid(310))["user"], "root");
    assert_eq!(lab.load_of(&jid(311))["user"], "root");
}

pub(super) fn what_is_accepted_while_the_store_is_away_arrives_once(lab: &mut Lab) {
    let jobs: Vec<String> = (320..340).map(jid).collect();
    let client = lab.writer();
    let requests: Vec<Msgpack> = jobs
        .iter()
        .flat_map(|job| {
            let load = json!({ "jid": job, "load": published(job), "minions": ["m1"] });
            let sent = |value: &str| json!({ "ret": ret(job, "m1", value) });
            [("load", load), ("return", sent("first")), ("return", sent("second"))]
        })
        .map(|(op, keys)| client.request(op, lab.plugin(), keys))
        .collect();
    drop(client);
    lab.take_away();
    // Each twice, as Salt does where it got no answer.
    for (number, request) in (1..).zip(requests.iter().chain(&requests)) {
        lab.send(request, number);
    }
    if lab.writer.pid().is_some() {
        let unknown = lab.writer().query("get_load", lab.plugin(), json!({ "jid": jid(999) }));
        assert_eq!((unknown.ok, unknown.code.as_str()), (false, "unavailable"), "{unknown:?}");
        let waiting = lab.writer().query("get_jid", lab.plugin(), json!({ "jid": jobs[0] })).json();
        assert!(waiting["m1"].as_str().is_some_and(|text| text.contains("first")), "{waiting}");
    }
    lab.give_back();
    wait_for("the inbox to run empty", LIMIT, || {
        std::fs::read_dir(lab.writer.inbox()).unwrap().next().is_none()
    });
    lab.settle();
    for job in &jobs {
        let returns = lab.returns_of(job);
        assert_eq!(returns.as_object().unwrap().len(), 1, "{returns}");
        assert_eq!(returns["m1"]["return"], "first");
        assert_eq!(lab.load_of(job)["user"], "root");
    }
}

pub(super) fn old_jobs_go_and_young_ones_stay(lab: &mut Lab) {
    let young = "20990101000000000000";
    let sown = lab.sown.expect("the jobs were stored before");
    // Some systems tell times by the second.
    wait_for("the jobs to be old", LIMIT, || sown.elapsed() > KEEP + Duration::from_millis(1500));
    lab.tell_return(ret(ANSWERED, "m2", "young"));
    lab.tell_load(published(young), &["m1"]);
    lab.tell_return(ret(young, "m1", "young"));
    lab.settle();
    lab.tell("clean_old_jobs", json!({ "salt": { "keep_jobs_seconds": KEEP.as_secs() } }));
    for job in [WHOLE, UNANSWERED, UNKNOWN] {
        wait_for_value(
            &format!("the old job {job} to go"),
            LIMIT,
            || lab.writer.tail(),
            || {
                let gone = lab.look("get_load", json!({ "jid": job })).is_null()
                    && lab.look("get_jid", json!({ "jid": job })) == json!({});
                gone.then_some(())
            },
        );
    }
    let returns = lab.returns_of(ANSWERED);
    assert_eq!(returns.as_object().unwrap().len(), 2, "{returns}");
    assert_eq!((&returns["m1"]["return"], &returns["m2"]["return"]), (&json!("old"), &json!("young")));
    assert_eq!(lab.load_of(ANSWERED)["user"], "root");
    assert_eq!(lab.returns_of(young)["m1"]["return"], "young");
    assert_eq!(lab.load_of(young)["user"], "root");
    let jobs = lab.look("get_jids", json!({}));
    for (job, listed) in
        [(WHOLE, false), (ANSWERED, true), (UNANSWERED, false), (UNKNOWN, false), (young, true)]
    {
        assert_eq!(jobs.get(job).is_some(), listed, "{job}");
    }
}
