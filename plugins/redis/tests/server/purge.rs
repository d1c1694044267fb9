//! Removing what is old.

use returner_redis::{Db, Options};
use returner_sdk::prelude::*;

use crate::support::*;

const DAY: u64 = 86_400_000;
const OLD: &str = "20261101000000000001";
const HALF: &str = "20261102000000000002";
const BARE: &str = "20261103000000000003";
const UNPUBLISHED: &str = "20261104000000000004";
const YOUNG: &str = "20261201033139637056";

/// The cutoff of the tests: one day before the records that arrive now.
fn request(limit: u32) -> PurgeRequest {
    PurgeRequest {
        cutoff_ms: ARRIVED - DAY,
        cutoff_jid: "20261130033139000000".into(),
        archive: false,
        limit,
    }
}

fn aged(ret: JobReturn, ms: u64) -> JobReturn {
    JobReturn { arrived_ms: ARRIVED - ms, ..ret }
}

async fn fill(db: &mut Db) {
    let mut loads = [OLD, HALF, BARE, YOUNG].map(|jid| load(jid, "test.ping")).to_vec();
    for load in &mut loads[..3] {
        load.arrived_ms -= 2 * DAY;
    }
    assert!(stored(&db.save_loads(loads).await.unwrap()));
    let mut returns: Vec<JobReturn> =
        (0..25).map(|n| aged(ret(OLD, &format!("m{n:02}"), "test.ping", "1"), 2 * DAY)).collect();
    returns.push(aged(ret(HALF, "m1", "test.ping", "1"), 2 * DAY));
    returns.push(aged(ret(HALF, "m2", "test.ping", "1"), DAY / 2));
    // By `--return` only, so without a load.
    returns.push(aged(ret(UNPUBLISHED, "m1", "test.ping", "1"), DAY / 2));
    returns.push(ret(YOUNG, "m1", "test.ping", "1"));
    assert!(stored(&db.deliver(returns).await.unwrap()));
}

fn right(place: &Place) {
    let is = |words: &[&str], wanted: &str| assert_eq!(place.cli(words), wanted, "{words:?}");
    is(&["ZRANGE", "returnerd:jids", "0", "-1"], &format!("{HALF}\n{YOUNG}"));
    is(&["ZRANGEBYLEX", "returnerd:jids", "-", "+"], &format!("{HALF}\n{YOUNG}"));
    is(&["ZCARD", "returnerd:last"], "3");
    is(&["HLEN", &format!("ret:{HALF}")], "2");
    is(&["HLEN", &format!("ret:{UNPUBLISHED}")], "1");
    is(&["EXISTS", &format!("ret:{OLD}"), &format!("load:{OLD}"), &format!("load:{BARE}")], "0");
    is(&["EXISTS", &format!("ret:{YOUNG}"), &format!("load:{YOUNG}"), &format!("load:{HALF}")], "3");
}

#[test]
fn a_job_goes_only_when_all_of_it_is_old_and_one_without_a_load_is_no_exception() {
    let Some(place) = Place::fresh() else { return };
    block(async {
        let mut db = place.open().await;
        fill(&mut db).await;
        let purged = db.purge(request(1000)).await.unwrap();
        assert_eq!((purged.removed, purged.more), (25 + 2, false));
        right(&place);
    });
}

#[test]
fn small_steps_lead_to_the_same_end() {
    for keep_jobs_seconds in [86_400.0, 0.0] {
        let Some(place) = Place::fresh() else { return };
        block(async {
            let mut db = open(Options { keep_jobs_seconds, ..place.options() }).await.unwrap();
            fill(&mut db).await;
            let (mut removed, mut calls) = (0, 0);
            loop {
                let purged = db.purge(request(10)).await.unwrap();
                assert!(purged.removed <= 10);
                removed += purged.removed;
                calls += 1;
                if !purged.more {
                    break;
                }
                assert!(calls < 20, "it does not end");
            }
            assert_eq!(removed, 27);
            right(&place);
        });
    }
}

#[test]
fn pointers_and_minions_that_nothing_ends_go_with_their_jobs() {
    let Some(place) = Place::fresh() else { return };
    block(async {
        let mut db = open(Options { keep_jobs_seconds: 0.0, ..place.options() }).await.unwrap();
        let old = |minion: &str, fun: &str| aged(ret(OLD, minion, fun, "1"), 2 * DAY);
        let several = JobReturn {
            fun: "a.b,c.d".into(),
            document: format!(r#"{{"jid": "{OLD}", "id": "m3", "fun": ["a.b", "c.d"], "return": {{}}}}"#),
            ..old("m3", "a.b")
        };
        let batch = vec![old("m1", "f"), old("m2", "f"), several, ret(YOUNG, "m2", "f", "1")];
        db.deliver(batch).await.unwrap();
        assert_eq!(place.cli(&["EXISTS", "m1:f", "m2:f", "m3:a.b,c.d"]), "3");
        assert_eq!(db.purge(request(100)).await.unwrap().removed, 3);
        assert_eq!(place.cli(&["EXISTS", "m1:f", "m3:a.b,c.d"]), "0");
        assert_eq!(place.cli(&["GET", "m2:f"]), YOUNG);
        // Minions go once their last return is older than the cutoff: all were stored just now.
        assert_eq!(place.cli(&["SCARD", "minions"]), "3");
        let later = PurgeRequest { cutoff_ms: now_ms() + DAY, ..request(100) };
        assert!(!db.purge(later).await.unwrap().more);
        assert_eq!(place.cli(&["KEYS", "*"]), "returnerd:imported");
    });
}

#[test]
fn old_jobs_of_salts_own_returner_go_too() {
    let Some(place) = Place::fresh() else { return };
    place.cli(&["HSET", &format!("ret:{OLD}"), "m1", "{}"]);
    place.cli(&["SET", &format!("load:{OLD}"), "{}"]);
    // Its last return came just now, as the time it has left shows.
    place.cli(&["HSET", &format!("ret:{HALF}"), "m1", "{}"]);
    place.cli(&["EXPIRE", &format!("ret:{HALF}"), "86400"]);
    block(async {
        let mut db = place.open().await;
        assert_eq!(db.purge(request(100)).await.unwrap().removed, 2);
        assert_eq!(place.cli(&["EXISTS", &format!("ret:{OLD}"), &format!("load:{OLD}")]), "0");
        let still = place.cli(&["EXISTS", &format!("ret:{HALF}")]);
        assert_eq!(still, "1");
    });
}
