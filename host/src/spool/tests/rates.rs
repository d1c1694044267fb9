//! Rates and start with a long lane; run by hand: `cargo test --release -- --ignored --nocapture rates`.

use std::time::Instant;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn rates_against_a_bare_file() {
    let dir = tempfile::tempdir().unwrap();
    let only = std::env::var("SPOOL_PRODUCERS").ok().and_then(|v| v.parse().ok());
    for producers in only.map_or(vec![1, 8, 64, 512], |n| vec![n]) {
        let rate = measure::appends(dir.path(), producers, 1024, Duration::from_secs(1), 5).await.unwrap();
        println!(
            "{producers:4} producers: spool {:8.0}/s, bare {:8.0}/s, ratio {:.2}",
            rate.spool,
            rate.bare,
            rate.ratio()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn rates_with_a_million_items() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let start = Instant::now();
    for _ in 0..1000 {
        spool.append(frame(vec![item(sink, "20260101000000000000", &[0; 1024]); 1000])).await.unwrap();
    }
    println!("a million items in {:?}", start.elapsed());
    let rss = || {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        text.lines().find(|l| l.starts_with("VmRSS")).unwrap().to_owned()
    };
    let snapshot = dir.path().join("killed");
    copy_as_killed(dir.path(), &snapshot);
    // Otherwise the first sync of the measured start would write a gigabyte of the copy.
    assert!(std::process::Command::new("sync").status().unwrap().success());
    spool.close().await;
    for (what, path) in [("clean", dir.path()), ("killed", &snapshot)] {
        let start = Instant::now();
        let (spool, recovery) = Spool::open(path, small()).unwrap();
        println!("{what}: open with {} items in {:?}, {}", recovery.items, start.elapsed(), rss());
        let start = Instant::now();
        let items = spool
            .batch(sink, BatchLimits { max_items: 500, max_bytes: 1 << 20 }, 1, &HashSet::new())
            .await
            .unwrap();
        println!("{what}: batch of {} in {:?}", items.len(), start.elapsed());
        let start = Instant::now();
        spool.settle(items.iter().map(|i| Settlement::Delivered { seq: i.seq }).collect()).await.unwrap();
        println!("{what}: settled in {:?}", start.elapsed());
        let start = Instant::now();
        spool.stats().await.unwrap();
        println!("{what}: stats in {:?}", start.elapsed());
        let start = Instant::now();
        let mut n = 0;
        while n < 100_000 {
            let items = spool
                .batch(sink, BatchLimits { max_items: 1000, max_bytes: 8 << 20 }, 1, &HashSet::new())
                .await
                .unwrap();
            n += items.len();
            spool.settle(items.iter().map(|i| retry(i.seq, 1 << 45)).collect()).await.unwrap();
        }
        println!("{what}: {n} items retried in {:?}", start.elapsed());
        let start = Instant::now();
        let items = spool
            .batch(sink, BatchLimits { max_items: 500, max_bytes: 1 << 20 }, 1, &HashSet::new())
            .await
            .unwrap();
        println!("{what}: batch of {} behind {n} held back in {:?}", items.len(), start.elapsed());
        let start = Instant::now();
        spool.stats().await.unwrap();
        println!("{what}: stats in {:?}", start.elapsed());
        spool.close().await;
    }
}
