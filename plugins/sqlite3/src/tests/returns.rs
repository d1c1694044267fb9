//! Returns and events: what is stored, once, and how it is read.

use super::*;

const JID: &str = "20261201033139637056";

#[test]
fn a_return_is_stored_as_salt_stores_it_and_read_whole() {
    let file = shared("");
    let mut store = open(&file.path);
    let value = r#"{"text": "naïve → 日本 🚀", "deep": [1, null]}"#;
    assert_eq!(run(store.deliver(vec![ret(JID, "m1", value)])), Ok(vec![Verdict::Stored]));
    assert_eq!(file.text("SELECT full_ret FROM salt_returns"), value);
    assert_eq!(file.text("SELECT success FROM salt_returns"), "0");
    assert_eq!(file.text("SELECT date FROM salt_returns"), "2026-12-01 00:00:00.000000");
    assert_eq!(
        file.text("SELECT extra FROM salt_returns"),
        format!(r#"{{"jid": "{JID}", "id": "m1", "fun": "test.ping", "fun_args": [], "retcode": 2}}"#)
    );
    let read = run(store.get_returns(JID.into())).unwrap();
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].success, Some(false));
    assert_eq!(
        read[0].document,
        format!(
            r#"{{"jid": "{JID}", "id": "m1", "fun": "test.ping", "fun_args": [], "retcode": 2, "return": {value}}}"#
        )
    );
}

#[test]
fn the_first_return_of_a_minion_stays() {
    for tables in ["", DOCUMENTED] {
        let file = shared(tables);
        let mut store = open(&file.path);
        let verdicts =
            run(store.deliver(vec![ret(JID, "m1", "1"), ret(JID, "m1", "2"), ret(JID, "m2", "3")]));
        assert_eq!(verdicts.unwrap(), vec![Verdict::Stored; 3]);
        drop(store);
        let mut store = open(&file.path);
        assert_eq!(run(store.deliver(vec![ret(JID, "m1", "4")])).unwrap(), vec![Verdict::Stored]);
        let read = run(store.get_returns(JID.into())).unwrap();
        let documents: Vec<_> =
            read.iter().map(|r| (r.minion.as_str(), r.document.contains("\"return\": 1"))).collect();
        assert_eq!(documents, [("m1", true), ("m2", false)]);
        assert_eq!(file.count("salt_returns"), 2);
    }
}

#[test]
fn two_masters_that_store_the_same_return_leave_one_row() {
    let file = shared(DOCUMENTED);
    let (mut one, mut two) = (open(&file.path), open(&file.path));
    run(one.deliver(vec![ret(JID, "m1", "1")])).unwrap();
    run(two.deliver(vec![ret(JID, "m1", "1")])).unwrap();
    assert_eq!(file.count("salt_returns"), 1);
}

#[test]
fn a_resource_takes_the_place_of_its_minion() {
    let file = shared("");
    let mut store = open(&file.path);
    let mut resource = ret(JID, "m1", "2");
    resource.resource_id = Some("r1".into());
    run(store.deliver(vec![ret(JID, "m1", "1"), resource])).unwrap();
    assert_eq!(run(store.get_minions()).unwrap(), ["m1", "r1"]);
}

#[test]
fn an_unknown_outcome_stays_unknown() {
    let file = shared(DOCUMENTED);
    let mut store = open(&file.path);
    let mut unknown = ret(JID, "m1", "1");
    unknown.success = None;
    run(store.deliver(vec![unknown])).unwrap();
    assert_eq!(run(store.get_returns(JID.into())).unwrap()[0].success, None);
}

#[test]
fn rows_that_salt_wrote_are_read_beside_ours() {
    let file = shared(DOCUMENTED);
    for (minion, value) in [("s1", "{\"load\": NaN}"), ("s1", "\"again\""), ("s2", "not json")] {
        file.native.execute(SALT_INSERT, (JID, minion, "2026-12-01 04:31:39.637056", value)).unwrap();
    }
    let mut store = open(&file.path);
    run(store.deliver(vec![ret(JID, "m1", "true"), ret(JID, "s1", "true")])).unwrap();
    let read = run(store.get_returns(JID.into())).unwrap();
    let documents: std::collections::BTreeMap<_, _> =
        read.iter().map(|r| (r.minion.as_str(), (r.document.as_str(), r.success))).collect();
    assert_eq!(documents.len(), 3);
    let head = |id: &str| {
        format!(r#"{{"jid": "{JID}", "id": "{id}", "fun": "test.ping", "fun_args": [], "success": true"#)
    };
    assert_eq!(
        documents["s1"],
        (format!(r#"{}, "return": {{"load": "NaN"}}}}"#, head("s1")).as_str(), Some(true))
    );
    assert_eq!(documents["s2"], (format!(r#"{}, "return": "not json"}}"#, head("s2")).as_str(), Some(true)));
    assert!(documents["m1"].0.contains("\"retcode\": 2"));
    // Salt goes on writing to the same table.
    file.native.execute(SALT_INSERT, (JID, "s3", "2026-12-01 04:31:40.000000", "true")).unwrap();
    assert_eq!(run(store.get_minions()).unwrap(), ["m1", "s1", "s2", "s3"]);
}

#[test]
fn the_latest_return_of_a_function_comes_from_each_minion() {
    let file = shared(DOCUMENTED);
    let mut store = open(&file.path);
    let mut other = ret("20261203000000000000", "m1", "9");
    other.fun = "test.version".into();
    run(store.deliver(vec![
        ret("20261202000000000000", "m1", "2"),
        ret("20261201000000000000", "m1", "1"),
        ret("20261201000000000000", "m2", "3"),
        ret("req", "m1", "4"),
        other,
    ]))
    .unwrap();
    let mut latest: Vec<_> =
        run(store.get_fun("test.ping".into())).unwrap().into_iter().map(|r| (r.minion, r.jid)).collect();
    latest.sort();
    let expected = [("m1", "20261202000000000000"), ("m2", "20261201000000000000")];
    assert_eq!(latest, expected.map(|(id, jid)| (id.to_owned(), jid.to_owned())));
    assert_eq!(run(store.get_fun("no.such".into())).unwrap(), []);
    assert_eq!(run(store.get_returns("no such".into())).unwrap(), []);
}

#[test]
fn a_table_that_refuses_one_record_keeps_the_others() {
    let file = shared(&format!(
        "{DOCUMENTED} CREATE TRIGGER t BEFORE INSERT ON salt_returns
        WHEN new.id = 'bad' BEGIN SELECT raise(ABORT, 'not this one'); END;"
    ));
    let mut store = open(&file.path);
    let verdicts =
        run(store.deliver(vec![ret(JID, "m1", "1"), ret(JID, "bad", "2"), ret(JID, "m2", "3")])).unwrap();
    assert!(matches!(&verdicts[1], Verdict::Reject(why) if why.contains("not this one")), "{verdicts:?}");
    assert_eq!((&verdicts[0], &verdicts[2]), (&Verdict::Stored, &Verdict::Stored));
    assert_eq!(file.count("salt_returns"), 2);
}

#[test]
fn an_event_that_comes_twice_is_stored_once() {
    let file = shared("");
    let mut store = open(&file.path);
    let batch =
        vec![event(7, "salt/auth", CUTOFF.0), event(8, "salt/key", CUTOFF.0), event(u64::MAX, "x", 0)];
    for _ in 0..2 {
        let verdicts = run(store.deliver_events(batch.clone())).unwrap();
        assert_eq!(verdicts[..2], [Verdict::Stored, Verdict::Stored]);
        assert!(matches!(verdicts[2], Verdict::Reject(_)));
    }
    assert_eq!(
        file.text(
            "SELECT group_concat(concat_ws('|', id, tag, data, alter_time, master_id), ';') FROM salt_events"
        ),
        r#"7|salt/auth|{"_stamp": "x"}|2026-12-01 00:00:00.000000|master;8|salt/key|{"_stamp": "x"}|2026-12-01 00:00:00.000000|master"#
    );
}
