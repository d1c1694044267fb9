//! Several writers on one directory at the same time.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

use returner_sdk::msgpack;
use serde_json::{Value, json};

use crate::support::*;

const JOBS: u32 = 40;

#[test]
fn two_of_ours_lose_nothing() {
    let cache = Cache::new();
    thread::scope(|scope| {
        for writer in 0..2_u32 {
            let cache = &cache;
            scope.spawn(move || {
                let mut store = cache.open();
                for number in 0..JOBS {
                    // The same jobs in opposite order.
                    let jid = jid(if writer == 0 { number } else { JOBS - 1 - number });
                    let own = format!("m{writer}");
                    if writer == 0 {
                        save(&mut store, vec![published(&jid, "test.echo", &[&own])]);
                    } else {
                        save(&mut store, vec![stub(&jid, "test.echo")]);
                        save(&mut store, vec![addition(&jid, &[&own], None)]);
                    }
                    deliver(
                        &mut store,
                        vec![ret(&jid, "both", json!(writer)), ret(&jid, &own, json!(writer))],
                    );
                }
            });
        }
    });
    let mut store = cache.open();
    for number in 0..JOBS {
        let load = load(&mut store, &jid(number)).unwrap();
        assert_eq!((&load["user"], &load["Minions"]), (&json!("ops"), &json!(["m0", "m1"])));
        assert_eq!(returns(&mut store, &jid(number)).keys().collect::<Vec<_>>(), ["both", "m0", "m1"]);
    }
    assert_eq!(jids(&mut store, filter(1000, None, &[])).len(), JOBS as usize);
}

#[test]
fn a_load_that_salt_writes_while_a_stub_is_made_stays() {
    let cache = Cache::new();
    thread::scope(|scope| {
        // In Salt's place, which cannot be told to be just that late: the load comes as soon as the job's directory is there.
        scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_secs(30);
            for number in 0..JOBS {
                let jid = jid(number);
                let load = json!({"jid": jid, "fun": "f", "tgt": "*", "user": "salt", "arg": []}).to_string();
                let new = cache.job(&jid).join("salts-new");
                let content = msgpack::encode(&msgpack::from_json(&load).unwrap());
                while fs::write(&new, &content).is_err() && Instant::now() < deadline {
                    thread::yield_now();
                }
                fs::rename(&new, cache.job(&jid).join(".load.p")).unwrap();
            }
        });
        let mut store = cache.open();
        for number in 0..JOBS {
            save(&mut store, vec![stub(&jid(number), "f")]);
        }
    });
    let mut store = cache.open();
    for number in 0..JOBS {
        assert_eq!(load(&mut store, &jid(number)).unwrap()["user"], "salt", "{number}");
    }
}

#[test]
fn an_empty_directory_that_salt_has_just_made_is_filled_and_not_replaced() {
    let cache = Cache::new();
    let (jid, job) = (jid(1), cache.job(&jid(1)));
    let minion = job.join("m1");
    fs::create_dir_all(&job).unwrap();
    let mut store = cache.open();
    let inode = |path: &std::path::Path| fs::metadata(path).unwrap().ino();
    let before = inode(&job);
    save(&mut store, vec![stub(&jid, "f")]);
    assert_eq!(inode(&job), before);
    fs::create_dir(&minion).unwrap();
    let before = inode(&minion);
    deliver(&mut store, vec![ret(&jid, "m1", json!(1))]);
    assert_eq!(inode(&minion), before);
    assert_eq!(returns(&mut store, &jid)["m1"]["return"], 1);
}

#[test]
fn ours_and_salts_lose_nothing_while_salts_cleaner_runs() {
    for release in RELEASES {
        let cache = Cache::new();
        let calls: Vec<Value> = (0..JOBS)
            .flat_map(|number| {
                let jid = jid(number);
                [
                    json!(["prep_jid", [], {"passed_jid": jid}]),
                    json!(["save_load", [jid, {"jid": jid, "fun": "f", "tgt": "*", "user": "salt", "arg": []}, ["m1"]], {}]),
                    json!(["returner", [{"jid": jid, "id": "salts", "return": number}], {}]),
                    json!(["returner", [{"jid": jid, "id": "both", "return": number}], {}]),
                    json!(["clean_old_jobs", [], {}]),
                ]
            })
            .collect();
        let salt = cache.start_salt(release, json!(calls));
        let mut store = cache.open();
        let mut round = 0_u32;
        // As long as Salt writes, and then once more.
        let mut salt = Some(salt);
        loop {
            let number = round % JOBS;
            let jid = jid(number);
            save(&mut store, vec![stub(&jid, "f")]);
            deliver(&mut store, vec![ret(&jid, "ours", json!(number)), ret(&jid, "both", json!(number))]);
            // Jobs that only we know.
            deliver(&mut store, vec![ret(&format!("20261202{round:012}"), "m1", json!(round))]);
            round += 1;
            let over = salt.as_mut().is_none_or(|salt| salt.try_wait().unwrap().is_some());
            if over && round.is_multiple_of(JOBS) {
                break;
            }
        }
        let (_, errors) = answers(salt.take().unwrap());
        let unexpected = |error: &&Value| !error.as_str().unwrap().contains("Duplicate return");
        assert_eq!(errors.iter().find(unexpected), None);
        for number in 0..JOBS {
            let found = returns(&mut store, &jid(number));
            assert_eq!(found.keys().collect::<Vec<_>>(), ["both", "ours", "salts"], "{release} {number}");
            assert!(found.values().all(|ret| ret["return"] == number));
            assert_eq!(load(&mut store, &jid(number)).unwrap()["user"], "salt");
        }
        for round in 0..round {
            assert_eq!(returns(&mut store, &format!("20261202{round:012}")).len(), 1);
        }
    }
}
