//! How fast returns are stored, beside the same driver used directly. Run with
//! `cargo test --release -p returner-mysql -- --ignored --nocapture throughput`.

use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
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
        let mut line = format!("{size:>5} returns a batch:");
        for (kind, place) in ["own table", "documented table"].into_iter().zip(Place::both()) {
            let rows = block(async {
                let mut db = place.open().await;
                rate(size, async |batch| assert!(stored(&db.deliver(batch).await.unwrap()))).await
            });
            line.push_str(&format!(" {rows:.0} rows/s ({kind}),"));
        }
        let Some(place) = Place::fresh() else { return };
        block(async { drop(place.open().await) });
        let rows = block(async {
            let opts = mysql_async::OptsBuilder::default()
                .ip_or_hostname("127.0.0.1")
                .tcp_port(place.server.port())
                .user(Some("salt"))
                .pass(Some("salt"))
                .db_name(Some(place.name.clone()))
                .prefer_socket(false);
            let mut conn = mysql_async::Conn::new(opts).await.unwrap();
            rate(size, async |batch| {
                let rows = vec!["(?,?,?,?,?,?)"; batch.len()].join(",");
                let sql = format!(
                    "INSERT INTO salt_returns (fun, jid, `return`, id, success, full_ret) VALUES {rows}"
                );
                let values: Vec<mysql_async::Value> = batch
                    .into_iter()
                    .flat_map(|r| [r.fun, r.jid, r.value, r.minion, "1".into(), r.document].map(Into::into))
                    .collect();
                conn.exec_drop(sql, values).await.unwrap();
            })
            .await
        });
        println!("{line} {rows:.0} rows/s (driver alone, prepared)");
    }
}
