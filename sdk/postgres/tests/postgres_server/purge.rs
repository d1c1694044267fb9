//! Removing what is old.

use returner_sdk::prelude::*;

use crate::support::*;

const DAY: u64 = 86_400_000;

/// The cutoff of the tests: one day before the records that arrive now.
fn request(limit: u32, archive: bool) -> PurgeRequest {
    PurgeRequest { cutoff_ms: ARRIVED - DAY, cutoff_jid: "20261130033139000000".into(), archive, limit }
}

fn aged(ret: JobReturn, ms: u64) -> JobReturn {
    JobReturn { arrived_ms: ARRIVED - ms, ..ret }
}

async fn fill(db: &mut Db) {
    let old = "20261101000000000001";
    let half = "20261102000000000002";
    let young = "20261201033139637056";
    let bare = "20261103000000000003";
    let loads = [old, half, young, bare].map(|jid| load(jid, "test.ping")).to_vec();
    assert!(stored(&db.save_loads(loads).await.unwrap()));
    let mut returns: Vec<JobReturn> =
        (0..25).map(|n| aged(ret(old, &format!("m{n:02}"), "test.ping", "1"), 2 * DAY)).collect();
    returns.push(aged(ret(half, "m1", "test.ping", "1"), 2 * DAY));
    returns.push(aged(ret(half, "m2", "test.ping", "1"), DAY / 2));
    returns.push(ret(young, "m1", "test.ping", "1"));
    assert!(stored(&db.deliver(returns).await.unwrap()));
    let mut events: Vec<Event> = (1..=30).map(|id| event(id + (1 << 50), "salt/auth", "{}")).collect();
    for event in &mut events[..20] {
        event.arrived_ms -= 2 * DAY;
    }
    assert!(stored(&db.deliver_events(events).await.unwrap()));
}

fn left(place: &Place) -> (String, String, String) {
    (
        place.sql("SELECT jid FROM jids ORDER BY jid"),
        place.sql("SELECT jid, COUNT(*) FROM salt_returns GROUP BY jid ORDER BY jid"),
        place.sql("SELECT COUNT(*), MIN(id) - (1::bigint << 50) FROM salt_events"),
    )
}

fn right(place: &Place) {
    let (jids, returns, events) = left(place);
    assert_eq!(jids, "20261102000000000002\n20261201033139637056\n");
    assert_eq!(returns, "20261102000000000002|2\n20261201033139637056|1\n");
    assert_eq!(events, "10|21\n");
}

#[test]
fn a_job_goes_only_when_all_its_returns_are_old() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            fill(&mut db).await;
            let purged = db.purge(request(1000, false)).await.unwrap();
            assert_eq!((purged.removed, purged.more), (25 + 2 + 20, false));
            right(&place);
        });
    }
}

#[test]
fn small_steps_lead_to_the_same_end() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            fill(&mut db).await;
            let mut removed = 0;
            let mut calls = 0;
            loop {
                let purged = db.purge(request(10, false)).await.unwrap();
                assert!(purged.removed <= 10);
                removed += purged.removed;
                calls += 1;
                if !purged.more {
                    break;
                }
                assert!(calls < 20, "it does not end");
            }
            assert_eq!(removed, 47);
            right(&place);
        });
    }
}

#[test]
fn what_is_archived_is_copied_first_and_once() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            fill(&mut db).await;
            while db.purge(request(10, true)).await.unwrap().more {}
            right(&place);
            let archived = "SELECT (SELECT COUNT(*) FROM jids_archive), (SELECT COUNT(*) FROM salt_returns_archive), \
                            (SELECT COUNT(DISTINCT (jid, id)) FROM salt_returns_archive), \
                            (SELECT COUNT(*) FROM salt_events_archive)";
            assert_eq!(place.sql(archived), "2|25|25|20\n");
            // A late repetition of what was archived does not stop the next purge.
            let late = aged(ret("20261101000000000001", "m00", "test.ping", "1"), 2 * DAY);
            db.deliver(vec![late]).await.unwrap();
            db.save_loads(vec![load("20261101000000000001", "test.ping")]).await.unwrap();
            assert_eq!(db.purge(request(10, true)).await.unwrap().removed, 2);
            right(&place);
        });
    }
}

#[test]
fn old_events_go_beside_young_ones_of_salts_own_returner() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            fill(&mut db).await;
            place.sql(&format!(
                "SET ROLE salt; INSERT INTO salt_events (tag, data, master_id, alter_time)
                 SELECT 'own', '{{}}', 'x', to_timestamp({} + n * 86400) FROM generate_series(-3, 2) AS n",
                ARRIVED / 1000
            ));
            while db.purge(request(1000, false)).await.unwrap().more {}
            assert_eq!(
                place.sql("SELECT COUNT(*), COUNT(*) FILTER (WHERE tag = 'own') FROM salt_events"),
                "14|4\n"
            );
        });
    }
}
