//! Many jobs: what a list and a batch cost. The figures are printed; only gross slowness fails.

use std::fs;
use std::time::{Duration, Instant};

use returner_sdk::msgpack;
use returner_sdk::prelude::*;
use serde_json::json;

use crate::support::*;

/// Returns of a batch.
const BATCH: u32 = 200;

/// Makes jobs as Salt would, without the cost of putting each on disk.
fn make(cache: &Cache, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let (jid, job) = (jid(number), cache.job(&jid(number)));
        fs::create_dir_all(&job).unwrap();
        fs::write(job.join("jid"), &jid).unwrap();
        let load = json!({"jid": jid, "fun": if number.is_multiple_of(20) { "test.ping" } else { "saltutil.find_job" }, "tgt": "*"});
        fs::write(job.join(".load.p"), msgpack::encode(&msgpack::from_tree(load))).unwrap();
    }
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let result = work();
    let took = began.elapsed();
    eprintln!("{what}: {took:?}");
    (result, took)
}

#[test]
fn a_list_does_not_cost_more_for_jobs_that_are_known() {
    let cache = Cache::new();
    let number = std::env::var("LOCAL_CACHE_JOBS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000);
    make(&cache, 0..number);
    // The first time every job is read; what does not fit into one call is done by the next.
    let mut calls = 0;
    timed("first list", || {
        loop {
            calls += 1;
            match run(cache.open().get_jids(filter(50, None, &[]))) {
                Ok(list) => break assert_eq!(list.len(), 50),
                Err(Error::Retry { why, .. }) if calls < 100 => assert!(why.contains("ask again"), "{why}"),
                Err(error) => panic!("{error}"),
            }
        }
    });
    eprintln!("{calls} calls");
    let mut store = cache.open();
    timed("settling", || {
        std::thread::sleep(Duration::from_millis(2_100));
        jids(&mut store, filter(1, None, &[]));
    });
    let (list, took) = timed("with a new instance", || jids(&mut cache.open(), filter(50, None, &[])));
    assert_eq!(list[0], jid(number - 1));
    assert!(took < Duration::from_secs(2), "{took:?}");
    let mut store = cache.open();
    jids(&mut store, filter(1, None, &[]));
    timed("again", || jids(&mut store, filter(50, None, &[])));
    let without = ["saltutil.find_job"];
    timed("without find_job", || jids(&mut store, filter(50, None, &without)));
    timed("without find_job, again", || jids(&mut store, filter(50, None, &without)));
    timed("get_fun", || run(store.get_fun("test.ping".into())).unwrap());
    timed("get_fun, again", || run(store.get_fun("test.ping".into())).unwrap());
    make(&cache, number..number + 100);
    let (list, _) = timed("after 100 new jobs", || jids(&mut store, filter(200, None, &[])));
    assert_eq!(list.len(), 200);
    assert_eq!(list[0], jid(number + 99));
}

#[test]
fn a_batch_is_on_disk_within_a_bounded_time() {
    let cache = Cache::new();
    let mut store = cache.open();
    let one_job: Vec<JobReturn> =
        (0..BATCH).map(|number| ret(&jid(0), &format!("m{number}"), json!("x".repeat(500)))).collect();
    let (_, took) = timed("returns of one job", || deliver(&mut store, one_job.clone()));
    assert!(took < Duration::from_secs(60));
    timed("the same again", || deliver(&mut store, one_job));
    let jobs: Vec<JobReturn> =
        (1..=BATCH).map(|number| ret(&jid(number), "m1", json!("x".repeat(500)))).collect();
    let loads = (1..=BATCH).map(|number| published(&jid(number), "test.echo", &["m1"])).collect();
    let (_, took) = timed("as many loads", || save(&mut store, loads));
    assert!(took < Duration::from_secs(120));
    let (_, took) = timed("returns of as many jobs", || deliver(&mut store, jobs));
    assert!(took < Duration::from_secs(120));
    let (list, _) = timed("their list", || jids(&mut store, filter(5_000, None, &[])));
    assert_eq!(list.len(), BATCH as usize);
}
