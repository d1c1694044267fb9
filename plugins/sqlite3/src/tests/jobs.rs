//! Loads, listings and the purge.

use super::*;

fn filter(limit: u32, before: Option<&str>, without: &[&str]) -> JidsFilter {
    JidsFilter {
        limit,
        before: before.map(str::to_owned),
        without_funs: without.iter().map(|f| (*f).to_owned()).collect(),
    }
}

fn listed(store: &mut Store, filter: JidsFilter) -> Vec<String> {
    run(store.get_jids(filter)).unwrap().into_iter().map(|load| load.jid).collect()
}

fn purge(store: &mut Store, archive: bool, limit: u32) -> Purged {
    let (cutoff_ms, cutoff_jid) = (CUTOFF.0, CUTOFF.1.to_owned());
    run(store.purge(PurgeRequest { cutoff_ms, cutoff_jid, archive, limit })).unwrap()
}

#[test]
fn the_published_load_stands_whatever_comes_after_it() {
    let file = shared(DOCUMENTED);
    let mut store = open(&file.path);
    let published = r#"{"fun": "test.ping", "tgt": "*", "tgt_type": "glob", "user": "ops"}"#;
    let stub = r#"{"fun": "test.ping", "tgt": "m1"}"#;
    run(store.save_loads(vec![load("1", LoadKind::Stub, stub, &["m1"])])).unwrap();
    let shown = run(store.get_load("1".into())).unwrap().unwrap();
    assert_eq!(shown.document, r#"{"fun": "test.ping", "tgt": "m1", "Minions": ["m1"]}"#);
    for (kind, document) in [
        (LoadKind::Published, published),
        (LoadKind::Stub, stub),
        (LoadKind::Published, r#"{"fun": "later"}"#),
    ] {
        assert_eq!(
            run(store.save_loads(vec![load("1", kind, document, &["m2"])])).unwrap(),
            [Verdict::Stored]
        );
    }
    let shown = run(store.get_load("1".into())).unwrap().unwrap();
    let expected =
        r#"{"fun": "test.ping", "tgt": "*", "tgt_type": "glob", "user": "ops", "Minions": ["m1", "m2"]}"#;
    assert_eq!(shown.document, expected);
    assert_eq!(file.count("jids"), 1);
    assert_eq!(run(store.get_load("2".into())).unwrap(), None);
}

#[test]
fn an_end_time_is_added_to_a_load_that_salt_wrote() {
    let file =
        shared(&format!("{DOCUMENTED} INSERT INTO jids VALUES ('1', '\"{{\\\"fun\\\": \\\"f\\\"}}\"');"));
    let mut store = open(&file.path);
    let mut addition = load("1", LoadKind::Addition, "{}", &[]);
    addition.end_time = Some("2026, Dec 01 03:31:40.000000".into());
    run(store.save_loads(vec![addition])).unwrap();
    let shown = run(store.get_load("1".into())).unwrap().unwrap();
    assert_eq!(shown.document, r#"{"fun": "f", "EndTime": "2026, Dec 01 03:31:40.000000"}"#);
}

#[test]
fn jobs_are_listed_newest_first_in_pages_without_some_functions() {
    let file = shared("");
    let mut store = open(&file.path);
    let loads = (1..=6).map(|n| {
        let fun = if n % 3 == 0 { "saltutil.find_job" } else { "test.ping" };
        load(&format!("2026120100000000000{n}"), LoadKind::Published, &format!(r#"{{"fun": "{fun}"}}"#), &[])
    });
    run(store.save_loads(loads.collect())).unwrap();
    let last = |jids: Vec<String>| jids.iter().map(|jid| jid[19..].to_owned()).collect::<String>();
    assert_eq!(last(listed(&mut store, filter(10, None, &[]))), "654321");
    assert_eq!(last(listed(&mut store, filter(10, None, &["saltutil.find_job", "x"]))), "5421");
    assert_eq!(
        last(listed(&mut store, filter(2, Some("20261201000000000005"), &["saltutil.find_job"]))),
        "42"
    );
    assert_eq!(last(listed(&mut store, filter(0, None, &[]))), "");
}

#[test]
fn a_load_that_cannot_be_read_hides_no_other() {
    let file = shared(DOCUMENTED);
    for (jid, text) in
        [("1", "{'fun': 'f'}"), ("2", ""), ("3", r#""{\"fun\": \"g\"}""#), ("4", r#"{"x": NaN}"#)]
    {
        file.native.execute("INSERT INTO jids VALUES (?1, ?2)", [jid, text]).unwrap();
    }
    let mut store = open(&file.path);
    let documents: Vec<_> = run(store.get_jids(filter(10, None, &["f"])))
        .unwrap()
        .into_iter()
        .map(|load| load.document)
        .collect();
    assert_eq!(
        documents,
        [
            r#"{"x": "NaN"}"#,
            r#"{"fun": "g"}"#,
            r#"{"jid": "2", "Error": "the stored load is unreadable"}"#,
            r#"{"jid": "1", "Error": "the stored load is unreadable"}"#,
        ]
    );
    run(store.save_loads(vec![load("1", LoadKind::Published, r#"{"fun": "new"}"#, &[])])).unwrap();
    assert_eq!(run(store.get_load("1".into())).unwrap().unwrap().document, r#"{"fun": "new"}"#);
}

/// Three old jobs, of which `b` has a late return and `c` has none; one new job; a row without a job id; events.
fn fill(store: &mut Store) {
    let (a, b, c, new) =
        ("20261101000000000001", "20261101000000000002", "20261101000000000003", "20261202000000000000");
    let at = |jid: &str, minion: &str, ms: u64| JobReturn { arrived_ms: ms, ..ret(jid, minion, "1") };
    run(store.deliver(vec![
        at(a, "m1", CUTOFF.0 - DAY),
        at(a, "m2", CUTOFF.0 - DAY),
        at(b, "m1", CUTOFF.0 - DAY),
        at(b, "m2", CUTOFF.0 + DAY),
        at(new, "m1", CUTOFF.0 + DAY),
        at("req", "m1", CUTOFF.0 - DAY),
        at("req", "m2", CUTOFF.0 + DAY),
    ]))
    .unwrap();
    let loads = [a, b, c, new].map(|jid| load(jid, LoadKind::Published, r#"{"fun": "f"}"#, &[]));
    run(store.save_loads(loads.to_vec())).unwrap();
    run(store.deliver_events(vec![event(1, "old", CUTOFF.0 - 1), event(2, "new", CUTOFF.0)])).unwrap();
}

fn check_purged(file: &Shared) {
    let returns = "SELECT group_concat(substr(jid, -1) || id, ' ' ORDER BY jid, id) FROM salt_returns";
    assert_eq!(file.text(returns), "2m1 2m2 0m1 qm2");
    assert_eq!(file.text("SELECT group_concat(substr(jid, -1), ' ' ORDER BY jid) FROM jids"), "2 0");
    assert_eq!(file.text("SELECT group_concat(tag) FROM salt_events"), "new");
}

#[test]
fn a_purge_removes_whole_old_jobs_loads_without_returns_and_old_events() {
    for tables in ["", DOCUMENTED] {
        let file = shared(tables);
        let mut store = open(&file.path);
        fill(&mut store);
        assert_eq!(purge(&mut store, false, 100), Purged { removed: 6, more: false });
        check_purged(&file);
        assert_eq!(purge(&mut store, false, 100), Purged { removed: 0, more: false });
    }
}

#[test]
fn a_purge_in_small_steps_ends_at_the_same() {
    let file = shared("");
    let mut store = open(&file.path);
    fill(&mut store);
    for _ in 0..3 {
        assert_eq!(purge(&mut store, false, 2), Purged { removed: 2, more: true });
    }
    assert_eq!(purge(&mut store, false, 2), Purged { removed: 0, more: false });
    check_purged(&file);
}

#[test]
fn what_is_purged_is_copied_to_the_archive_also_one_that_others_made() {
    let file =
        shared(&format!("{DOCUMENTED} CREATE TABLE salt_returns_archive AS SELECT * FROM salt_returns;"));
    let mut store = open(&file.path);
    fill(&mut store);
    for _ in 0..3 {
        assert_eq!(purge(&mut store, true, 2).removed, 2);
    }
    check_purged(&file);
    assert_eq!(
        (file.count("salt_returns_archive"), file.count("jids_archive"), file.count("salt_events_archive")),
        (3, 2, 1)
    );
    assert_eq!(file.text("SELECT count(extra) || '' FROM salt_returns_archive"), "3");
}
