//! How fast returns are stored. Run with `cargo test --workspace --test redis_server -- --ignored --nocapture throughput`.

use std::time::{Duration, Instant};

use returner_sdk::prelude::*;

use crate::support::*;

const WINDOW: Duration = Duration::from_secs(3);

#[test]
#[ignore = "measures"]
fn throughput() {
    // A document of about 1 KiB.
    let value = format!("\"{}\"", "0123456789abcde ".repeat(56));
    for size in [1, 100, 1000] {
        let Some(place) = Place::fresh() else { return };
        block(async {
            let mut db = place.open().await;
            let (mut rounds, mut busy) = (0, Duration::ZERO);
            let began = Instant::now();
            while began.elapsed() < WINDOW {
                let batch: Vec<JobReturn> = (0..size)
                    .map(|n| {
                        let jid = format!("202612010331{:08}", rounds * 1000 + n / 100);
                        ret(&jid, &format!("minion-{n}"), "cmd.run", &value)
                    })
                    .collect();
                let at = Instant::now();
                assert!(stored(&db.deliver(batch).await.unwrap()));
                busy += at.elapsed();
                rounds += 1;
            }
            println!(
                "{size:>5} returns a batch: {:.0} returns/s",
                (rounds * size) as f64 / busy.as_secs_f64()
            );
        });
    }
}
