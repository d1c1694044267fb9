//! How fast returns are stored. Run with
//! `cargo test --workspace --test postgres_server -- --ignored --nocapture throughput`.

use std::time::{Duration, Instant};

use returner_sdk::prelude::*;

use crate::support::*;

const WINDOW: Duration = Duration::from_secs(4);

/// Returns whose documents have about 1 KiB.
fn batch(round: usize, size: usize) -> Vec<JobReturn> {
    let value = format!("\"{}\"", "0123456789abcde ".repeat(30));
    (0..size)
        .map(|n| {
            ret(
                &format!("202612010331{:08}", round * 1000 + n / 100),
                &format!("minion-{n}"),
                "cmd.run",
                &value,
            )
        })
        .collect()
}

async fn rate(size: usize, mut store: impl AsyncFnMut(Vec<JobReturn>)) -> f64 {
    let began = Instant::now();
    let mut busy = Duration::ZERO;
    let mut rounds = 0;
    while began.elapsed() < WINDOW {
        let batch = batch(rounds, size);
        let at = Instant::now();
        store(batch).await;
        busy += at.elapsed();
        rounds += 1;
    }
    (rounds * size) as f64 / busy.as_secs_f64()
}

#[test]
#[ignore = "measures"]
fn throughput() {
    for size in [1, 100, 1000] {
        for place in Place::all() {
            let rows = block(async {
                let mut db = place.open().await;
                rate(size, async |batch| assert!(stored(&db.deliver(batch).await.unwrap()))).await
            });
            let tables = if place.old { "documented" } else { "own" };
            println!("{size:>5} returns a batch, {:?}, {tables} tables: {rows:.0} rows/s", place.flavour);
        }
    }
}
