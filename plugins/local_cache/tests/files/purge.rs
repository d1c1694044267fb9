//! Removing what is old.

use std::fs;
use std::time::{Duration, SystemTime};

use returner_sdk::prelude::*;
use serde_json::json;

use crate::support::*;

const DAY: Duration = Duration::from_secs(86_400);

fn request(keep: Duration, limit: u32) -> PurgeRequest {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    PurgeRequest {
        cutoff_ms: (now - keep).as_millis().try_into().unwrap(),
        cutoff_jid: jid_of(keep, 0),
        archive: false,
        limit,
    }
}

fn purge(store: &mut returner_local_cache::Store, keep: Duration, limit: u32) -> (u64, bool) {
    let purged = run(store.purge(request(keep, limit))).unwrap();
    (purged.removed, purged.more)
}

/// A job with returns that were stored as long ago as it was published.
fn old_job(
    cache: &Cache,
    store: &mut returner_local_cache::Store,
    jid: &str,
    age: Duration,
    minions: &[&str],
) {
    save(store, vec![published(jid, "test.echo", minions)]);
    deliver(store, minions.iter().map(|minion| ret(jid, minion, json!(1))).collect());
    for minion in minions {
        set_age(&cache.job(jid).join(minion).join("return.p"), age);
    }
}

#[test]
fn a_job_goes_by_its_own_time_when_all_its_returns_are_old() {
    let cache = Cache::new();
    let mut store = cache.open();
    let (old, late, fresh) = (jid_of(3 * DAY, 1), jid_of(3 * DAY, 2), jid_of(Duration::from_secs(60), 3));
    for jid in [&old, &late, &fresh] {
        old_job(&cache, &mut store, jid, 2 * DAY, &["m1", "m2"]);
    }
    // A return that came late; the files of the job itself are all new, as after a package's upgrade or a copy.
    set_age(&cache.job(&late).join("m2/return.p"), Duration::ZERO);
    // A job of Salt's without a time in its id goes by its file.
    old_job(&cache, &mut store, "no-time", 2 * DAY, &["m1"]);
    old_job(&cache, &mut store, "no-time-yet", 2 * DAY, &["m1"]);
    set_age(&cache.job("no-time").join("jid"), 2 * DAY);
    assert_eq!(purge(&mut store, DAY, 100), (5, false));
    assert!(!cache.job(&old).exists() && !cache.job("no-time").exists());
    for jid in [&late, &fresh, "no-time-yet"] {
        assert!(cache.job(jid).exists(), "{jid}");
    }
    assert_eq!(jids(&mut store, filter(10, None, &[])), ["no-time-yet", &fresh, &late]);
    assert_eq!(purge(&mut store, DAY, 100), (0, false));
    assert!(
        fs::read_dir(cache.jobs().join(".returnerd/work"))
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().to_string_lossy().starts_with("old-") })
    );
}

#[test]
fn no_call_removes_more_than_it_may_and_all_goes_in_the_end() {
    let cache = Cache::new();
    let mut store = cache.open();
    let many: Vec<String> = (0..25).map(|number| format!("m{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for number in 0..6 {
        old_job(
            &cache,
            &mut store,
            &jid_of(3 * DAY, number),
            2 * DAY,
            if number == 0 { &many } else { &["m1"] },
        );
    }
    let (mut removed, mut calls) = (0, 0);
    loop {
        let (now, more) = purge(&mut store, DAY, 10);
        assert!(now <= 10 && (now > 0 || !more));
        removed += now;
        calls += 1;
        if !more {
            break;
        }
    }
    assert_eq!(removed, 26 + 5 * 2);
    assert!(calls >= 4, "{calls}");
    assert!(files(&cache.jobs()).iter().all(|file| file.starts_with(".returnerd")));
}

#[test]
fn a_fresh_job_of_the_same_directory_stays() {
    let cache = Cache::new();
    let mut store = cache.open();
    let old = "20260110080000000001";
    // Of many fresh ids one shares the first two digits.
    let fresh = (0..)
        .map(|number| jid_of(Duration::ZERO, number))
        .find(|fresh| cache.job(fresh).parent() == cache.job(old).parent());
    let fresh = fresh.unwrap();
    old_job(&cache, &mut store, old, 2 * DAY, &["m1"]);
    old_job(&cache, &mut store, &fresh, Duration::ZERO, &["m1"]);
    assert_eq!(purge(&mut store, DAY, 100), (2, false));
    assert!(!cache.job(old).exists() && cache.job(&fresh).exists());
}

#[test]
fn jobs_that_vanish_meanwhile_are_passed_over() {
    let cache = Cache::new();
    let mut store = cache.open();
    for number in 0..10 {
        old_job(&cache, &mut store, &jid_of(3 * DAY, number), 2 * DAY, &["m1"]);
    }
    assert_eq!(jids(&mut store, filter(100, None, &[])).len(), 10);
    for jid in jids(&mut store, filter(5, None, &[])) {
        fs::remove_dir_all(cache.job(&jid)).unwrap();
    }
    // Two at once.
    let removed = std::thread::scope(|scope| {
        let other = scope.spawn(|| purge(&mut cache.open(), DAY, 100).0);
        purge(&mut store, DAY, 100).0 + other.join().unwrap()
    });
    assert_eq!(removed, 10);
    assert!(jids(&mut cache.open(), filter(100, None, &[])).is_empty());
}

#[test]
fn what_an_interrupted_call_moved_away_comes_back() {
    let cache = Cache::new();
    let mut store = cache.open();
    let jid = jid_of(3 * DAY, 1);
    old_job(&cache, &mut store, &jid, Duration::ZERO, &["m1"]);
    let aside = cache.jobs().join(".returnerd/work/old-1");
    fs::rename(cache.job(&jid), &aside).unwrap();
    let directory = fs::File::open(&aside).unwrap();
    directory.set_modified(SystemTime::now() - DAY).unwrap();
    let mut store = cache.open();
    assert_eq!(returns(&mut store, &jid).len(), 1);
    assert!(!aside.exists());
}

#[test]
fn a_directory_that_nobody_knows_the_job_of_goes_when_it_is_old() {
    let cache = Cache::new();
    let mut store = cache.open();
    let [old, fresh] = [cache.job("old"), cache.job("fresh")];
    for directory in [&old, &fresh] {
        fs::create_dir_all(directory.join("m1")).unwrap();
    }
    fs::File::open(&old).unwrap().set_modified(SystemTime::now() - 2 * DAY).unwrap();
    for _ in 0..2 {
        assert!(jids(&mut store, filter(10, None, &[])).is_empty());
    }
    assert_eq!(purge(&mut store, DAY, 100), (0, false));
    assert!(!old.exists() && fresh.exists());
}
