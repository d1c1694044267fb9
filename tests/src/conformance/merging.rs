//! What is handed over more than once, or in pieces, or in the wrong order.

use serde_json::{Value, json};

use super::Lab;
use crate::records::{jid, published, ret, return_as_load, settled};

pub(super) fn the_first_return_of_a_minion_stands(lab: &mut Lab) {
    lab.tell_load(published(&jid(100)), &["m1", "m2"]);
    lab.tell_return(ret(&jid(100), "m1", "first"));
    lab.tell_return(ret(&jid(100), "m1", "first"));
    lab.tell_return(ret(&jid(100), "m1", "in the same batch"));
    lab.settle();
    lab.tell_return(ret(&jid(100), "m1", "after it was stored"));
    lab.tell_return(ret(&jid(100), "m1", "first"));
    lab.settle();
    // Another master sends it too.
    lab.reader().return_(lab.plugin(), ret(&jid(100), "m1", "of another master")).done();
    settled(&lab.reader);
    lab.reader.restart();
    let returns = lab.returns_of(&jid(100));
    assert_eq!(returns.as_object().unwrap().len(), 1, "{returns}");
    assert_eq!(returns["m1"]["return"], "first");
    let latest = lab.ask("get_fun", json!({ "fun": "test.echo" }));
    assert_eq!(latest["m1"]["return"], "first", "{latest}");
}

pub(super) fn the_first_published_load_stands_with_all_minions_and_the_end_time(lab: &mut Lab) {
    let job = jid(110);
    let end = "2026, Dec 01 03:31:40.000000";
    lab.tell_load(published(&job), &["m2", "m1"]);
    lab.settle();
    lab.tell("load", json!({ "jid": job, "load": return_as_load(&job, "m1") }));
    lab.tell("minions", json!({ "jid": job, "minions": ["m3", "m1"], "syndic_id": "s1" }));
    lab.tell("endtime", json!({ "jid": job, "endtime": end }));
    lab.settle();
    let mut second = published(&job);
    (second["user"], second["tgt"]) = (json!("other"), json!("m*"));
    lab.reader().load(lab.plugin(), &job, second, &["m4"]).done();
    settled(&lab.reader);
    lab.reader.restart();
    // Nothing that comes later takes anything away.
    lab.tell("load", json!({ "jid": job, "load": return_as_load(&job, "m2") }));
    lab.tell_return(ret(&job, "m2", true));
    lab.settle();
    let load = lab.load_of(&job);
    assert_eq!((&load["user"], &load["tgt"]), (&json!("root"), &json!("*")), "{load}");
    assert_eq!(load["Minions"], json!(["m1", "m2", "m3", "m4"]), "{load}");
    assert_eq!(load["EndTime"], end, "{load}");
    assert_eq!(lab.ask("get_endtime", json!({ "jid": job })), end);
    assert_eq!(lab.ask("get_jids", json!({}))[&job], load);
}

pub(super) fn a_return_without_a_load_has_a_stub_that_a_published_load_replaces(lab: &mut Lab) {
    let [alone, as_load] = [jid(120), jid(121)];
    lab.tell_return(ret(&alone, "m1", "early"));
    // As Salt's master hands it over where it does not know the job.
    lab.tell("load", json!({ "jid": as_load, "load": return_as_load(&as_load, "m1") }));
    lab.tell_return(ret(&as_load, "m1", "early"));
    lab.settle();
    for job in [&alone, &as_load] {
        let load = lab.load_of(job);
        assert_eq!((&load["fun"], &load["tgt"]), (&json!("test.echo"), &json!("m1")), "{load}");
        assert_eq!((load.get("__stub__"), load["user"].as_str()), (None, None), "{load}");
        assert_eq!(lab.ask("get_jids", json!({}))[job], load);
    }
    for job in [&alone, &as_load] {
        lab.tell_load(published(job), &["m1", "m2"]);
    }
    lab.settle();
    for job in [&alone, &as_load] {
        let load = lab.load_of(job);
        assert_eq!((&load["tgt"], &load["user"]), (&json!("*"), &json!("root")), "{load}");
        assert_eq!(load["Minions"], json!(["m1", "m2"]), "{load}");
        let returns: Value = lab.returns_of(job);
        assert_eq!(returns["m1"]["return"], "early");
    }
}
