//! What one writer stores and reads.

use std::fs;

use returner_sdk::prelude::*;
use serde_json::json;

use crate::support::*;

#[test]
fn what_is_stored_is_read_back_whole() {
    let cache = Cache::new();
    let mut store = cache.open();
    save(&mut store, vec![published(&jid(1), "test.echo", &["m2", "m1"])]);
    let document = json!({
        "jid": jid(1), "id": "m1", "fun": "test.echo", "fun_args": ["x"], "retcode": 2, "success": false, "out": "nested",
        "return": {"deep": [1, 1.0, -5, 18_446_744_073_709_551_615_u64, null, "ä🚀"], "bytes": {"__bytes__": "/wA="}},
        "_stamp": "2026-12-01T03:31:40.000000"
    });
    deliver(&mut store, vec![ret_of(&document), ret(&jid(1), "m2", json!("b"))]);
    assert_eq!(
        files(&cache.job(&jid(1))),
        [".load.p", ".minions.p", "jid", "m1/out.p", "m1/return.p", "m2/return.p"]
    );
    let mut other = cache.open();
    assert_eq!(returns(&mut other, &jid(1))["m1"], document);
    assert_eq!(returns(&mut other, &jid(1))["m2"]["return"], "b");
    let load = load(&mut other, &jid(1)).unwrap();
    assert_eq!((&load["tgt"], &load["Minions"]), (&json!("*"), &json!(["m1", "m2"])));
    assert_eq!(jids(&mut other, filter(10, None, &[])), [jid(1)]);
    assert_eq!(run(other.get_minions()).unwrap(), ["m1", "m2"]);
}

#[test]
fn the_first_return_stays() {
    let cache = Cache::new();
    let mut store = cache.open();
    deliver(&mut store, vec![ret(&jid(1), "m1", json!("first")), ret(&jid(1), "m1", json!("same batch"))]);
    deliver(&mut store, vec![ret(&jid(1), "m1", json!("later"))]);
    assert_eq!(returns(&mut store, &jid(1))["m1"]["return"], "first");
    // What a crash left of a return is none.
    fs::write(cache.job(&jid(1)).join("m1/return.p"), "").unwrap();
    fs::create_dir(cache.job(&jid(1)).join("m2")).unwrap();
    deliver(&mut store, vec![ret(&jid(1), "m1", json!("again")), ret(&jid(1), "m2", json!("b"))]);
    let returns = returns(&mut store, &jid(1));
    assert_eq!((&returns["m1"]["return"], &returns["m2"]["return"]), (&json!("again"), &json!("b")));
}

#[test]
fn loads_meet_by_the_one_rule() {
    let cache = Cache::new();
    let mut store = cache.open();
    save(&mut store, vec![stub(&jid(1), "test.echo")]);
    assert_eq!(load(&mut store, &jid(1)).unwrap()["tgt"], "m1");
    assert_eq!(load(&mut store, &jid(1)).unwrap().get("__stub__"), None);
    save(&mut store, vec![addition(&jid(1), &["m3"], Some("2026, Dec 01 03:31:41.000000"))]);
    save(&mut store, vec![published(&jid(1), "test.echo", &["m1"])]);
    let first = load(&mut store, &jid(1)).unwrap();
    assert_eq!((&first["tgt"], &first["user"]), (&json!("*"), &json!("ops")));
    assert_eq!(first["Minions"], json!(["m1", "m3"]));
    assert_eq!(first["EndTime"], "2026, Dec 01 03:31:41.000000");
    save(&mut store, vec![stub(&jid(1), "other.fun")]);
    save(&mut store, vec![published(&jid(1), "other.fun", &[])]);
    assert_eq!(load(&mut store, &jid(1)).unwrap(), first);
}

#[test]
fn of_a_job_with_minions_alone_these_are_shown_and_it_is_in_no_list() {
    let cache = Cache::new();
    let mut store = cache.open();
    save(&mut store, vec![addition(&jid(1), &["m2", "m1"], None)]);
    assert_eq!(load(&mut store, &jid(1)).unwrap()["Minions"], json!(["m1", "m2"]));
    assert_eq!(files(&cache.job(&jid(1))), [".minions.p", "jid"]);
    assert!(jids(&mut store, filter(10, None, &[])).is_empty());
    assert_eq!(load(&mut store, &jid(2)), None);
    save(&mut store, vec![stub(&jid(1), "f")]);
    assert_eq!(load(&mut store, &jid(1)).unwrap()["Minions"], json!(["m1", "m2"]));
}

#[test]
fn ids_that_are_no_file_names_are_dead_letters_and_others_pass() {
    let cache = Cache::new();
    let mut store = cache.open();
    let bad = ["../../x", "a/b", "..", "", ".load.p", "jid", "endtime", "a\0b"];
    let mut batch: Vec<JobReturn> = bad.iter().map(|id| ret(&jid(1), id, json!(1))).collect();
    batch.push(ret(&jid(1), "good", json!(1)));
    batch.push(ret("", "m1", json!(1)));
    batch.push(ret(&jid(1), &"x".repeat(256), json!(1)));
    batch.push(ret(&jid(1), &"x".repeat(255), json!(1)));
    let verdicts = run(store.deliver(batch)).unwrap();
    let stored: Vec<bool> = verdicts.iter().map(|verdict| *verdict == Verdict::Stored).collect();
    let rejected = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Reject(_))).count();
    assert_eq!(rejected, bad.len() + 2, "{verdicts:?}");
    assert!(stored[bad.len()] && stored[bad.len() + 3]);
    assert_eq!(returns(&mut store, &jid(1)).len(), 2);
    // Neither is a hostile id of a job a path.
    for jid in ["../../../etc", "/etc", "a\nb"] {
        assert_eq!(load(&mut store, jid), None);
        assert!(returns(&mut store, jid).is_empty());
    }
}

#[test]
fn a_resource_takes_the_minions_place() {
    let cache = Cache::new();
    let mut store = cache.open();
    let resource = JobReturn { resource_id: Some("r1".into()), ..ret(&jid(1), "m1", json!(1)) };
    deliver(&mut store, vec![resource, ret(&jid(1), "m1", json!(2))]);
    assert_eq!(returns(&mut store, &jid(1)).keys().collect::<Vec<_>>(), ["m1", "r1"]);
}

#[test]
fn an_unreadable_file_hides_no_other() {
    let cache = Cache::new();
    let mut store = cache.open();
    for number in 1..=2 {
        save(&mut store, vec![published(&jid(number), "test.echo", &["m1"])]);
        deliver(&mut store, vec![ret(&jid(number), "m1", json!(1)), ret(&jid(number), "m2", json!(2))]);
    }
    fs::write(cache.job(&jid(2)).join("m1/return.p"), [0xc1, 0]).unwrap();
    fs::write(cache.job(&jid(2)).join(".load.p"), [0x85]).unwrap();
    fs::write(cache.job(&jid(2)).join(".minions.p"), [0x01]).unwrap();
    let returns = returns(&mut store, &jid(2));
    assert!(returns["m1"]["return"].as_str().unwrap().contains("unreadable"));
    assert_eq!(returns["m2"]["return"], 2);
    let list = run(store.get_jids(filter(10, None, &[]))).unwrap();
    assert_eq!(list.len(), 2);
    assert!(list[0].document.contains("unreadable"), "{}", list[0].document);
    // A load that nobody can read is replaced by one that can be.
    save(&mut store, vec![published(&jid(2), "test.ping", &["m1"])]);
    assert_eq!(load(&mut store, &jid(2)).unwrap()["fun"], "test.ping");
}

#[test]
fn lists_are_newest_first_in_pages_and_without_functions() {
    let cache = Cache::new();
    let mut store = cache.open();
    for number in 0..20 {
        let fun = if number % 2 == 0 { "saltutil.find_job" } else { "test.echo" };
        save(&mut store, vec![published(&jid(number), fun, &["m1"])]);
    }
    let expected = |numbers: &[u32]| numbers.iter().map(|number| jid(*number)).collect::<Vec<_>>();
    for _ in 0..2 {
        let page = jids(&mut store, filter(3, None, &["saltutil.find_job"]));
        assert_eq!(page, expected(&[19, 17, 15]));
        assert_eq!(
            jids(&mut store, filter(3, Some(&page[2]), &["saltutil.find_job"])),
            expected(&[13, 11, 9])
        );
        assert_eq!(jids(&mut store, filter(2, Some(&jid(1)), &[])), expected(&[0]));
        // With a new instance, and with the index gone.
        fs::remove_dir_all(cache.jobs().join(".returnerd")).unwrap();
        store = cache.open();
    }
}

#[test]
fn the_latest_return_of_a_function_is_found_for_each_minion() {
    let cache = Cache::new();
    let mut store = cache.open();
    for (number, fun, minion) in
        [(1, "test.echo", "m1"), (2, "test.echo", "m2"), (3, "test.echo", "m1"), (4, "test.ping", "m1")]
    {
        save(&mut store, vec![published(&jid(number), fun, &[])]);
        deliver(&mut store, vec![ret(&jid(number), minion, json!(number))]);
    }
    let latest = run(store.get_fun("test.echo".into())).unwrap();
    let latest: Vec<_> = latest.iter().map(|ret| (ret.minion.as_str(), ret.jid.as_str())).collect();
    assert_eq!(latest, [("m1", jid(3).as_str()), ("m2", jid(2).as_str())]);
    assert!(run(store.get_fun("no.such".into())).unwrap().is_empty());
}

#[test]
fn a_job_that_is_not_to_be_kept_has_no_returns() {
    let cache = Cache::new();
    let mut store = cache.open();
    save(&mut store, vec![published(&jid(1), "test.echo", &[])]);
    fs::write(cache.job(&jid(1)).join("nocache"), "").unwrap();
    deliver(&mut store, vec![ret(&jid(1), "m1", json!(1))]);
    assert!(returns(&mut store, &jid(1)).is_empty());
}

#[test]
fn a_directory_that_is_missing_is_named_with_the_fix() {
    let options = |directory: &str| serde_json::from_value(json!({ "directory": directory })).unwrap();
    let open = |directory: &str| {
        run(returner_local_cache::Store::open(options(directory), &Context::default())).err()
    };
    let Some(Error::Retry { why, .. }) = open("/no/such/jobs") else { panic!("it must be tried again") };
    assert!(why.contains("`/no/such/jobs`") && why.contains("allow = [\"dir:///no/such/jobs\"]"), "{why}");
    assert!(matches!(open("jobs"), Some(Error::Fatal(_))));
}
