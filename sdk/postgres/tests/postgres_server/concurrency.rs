//! Two daemons with one database.

use std::sync::Barrier;

use returner_sdk::prelude::*;

use crate::support::*;

const ROUNDS: usize = 10;

/// Runs a function on two connections, at the same time in each round.
fn race(place: &Place, work: impl AsyncFn(&mut Db, usize, usize) + Sync) {
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                block(async {
                    let mut db = place.open().await;
                    for round in 0..ROUNDS {
                        barrier.wait();
                        work(&mut db, writer, round).await;
                    }
                });
            });
        }
    });
}

fn jid(round: usize, number: usize) -> String {
    format!("202612010331{round:02}{number:06}")
}

#[test]
fn the_same_returns_from_two_writers_make_one_row_each() {
    for place in Place::all() {
        block(async { drop(place.open().await) });
        race(&place, async |db, writer, round| {
            let mut batch: Vec<JobReturn> = (0..100)
                .map(|n| ret(&jid(round, n / 10), &format!("m{n}"), "f", &writer.to_string()))
                .collect();
            if writer == 1 {
                batch.reverse();
            }
            assert!(stored(&db.deliver(batch).await.unwrap()));
        });
        assert_eq!(place.sql("SELECT COUNT(*) FROM salt_returns"), format!("{}\n", ROUNDS * 100));
    }
}

#[test]
fn the_same_loads_in_opposite_order_meet_without_an_error() {
    for place in Place::all() {
        block(async { drop(place.open().await) });
        race(&place, async |db, writer, round| {
            let mut loads: Vec<JobLoad> = (0..100)
                .map(|n| JobLoad {
                    kind: if writer == 0 { LoadKind::Published } else { LoadKind::Addition },
                    minions: vec![format!("m{writer}")],
                    ..load(&jid(round, n), "test.ping")
                })
                .collect();
            if writer == 1 {
                loads.reverse();
            }
            assert!(stored(&db.save_loads(loads).await.unwrap()));
        });
        assert_eq!(place.sql("SELECT COUNT(*) FROM jids"), format!("{}\n", ROUNDS * 100));
        // Whoever came first, the minions of both are there and the published load stands.
        let complete = "SELECT COUNT(*) FROM jids WHERE load::jsonb -> 'Minions' = '[\"m0\", \"m1\"]' \
                        AND load::jsonb ->> 'user' = 'ops' AND NOT load::jsonb ? '__stub__'";
        assert_eq!(place.sql(complete), format!("{}\n", ROUNDS * 100));
    }
}
