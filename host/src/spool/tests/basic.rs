//! Lanes, settling, queries, reopening.

use std::os::unix::fs::PermissionsExt;

use super::*;

#[tokio::test]
async fn an_appended_item_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let seq = put(&spool, sink, b"one").await;
    spool.close().await;
    let (spool, recovery) = Spool::open(dir.path(), small()).unwrap();
    assert!(recovery.clean && !recovery.created && recovery.damage.is_none());
    assert_eq!((recovery.items, recovery.bytes), (1, 3));
    let items = everything(&spool, sink).await;
    assert_eq!((items[0].seq, &items[0].body[..]), (seq, &b"one"[..]));
    assert!(put(&spool, sink, b"two").await > seq);
}

#[tokio::test]
async fn a_sink_is_registered_once() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let a = spool.sink(new_sink("a")).await.unwrap();
    let b = spool.sink(new_sink("b")).await.unwrap();
    assert_ne!(a, b);
    assert_eq!(spool.sink(new_sink("a")).await.unwrap(), a);
    assert_eq!(spool.sinks().len(), 2);
    let shown = format!("{:?} {:?}", spool.sinks(), new_sink("a"));
    assert!(!shown.contains("secret"));
    spool.close().await;
    assert_eq!(open(dir.path()).sinks()[0].options, r#"{"password":"secret"}"#);
}

#[tokio::test]
async fn files_are_private_and_the_spool_has_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let spool = open(&path);
    spool.sink(new_sink("a")).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    for entry in std::fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
    }
    let second = Spool::open(&path, small());
    assert!(matches!(second, Err(SpoolError::InUse { .. })));
    let reader = SpoolReader::open(&path).unwrap();
    assert_eq!(reader.sinks().unwrap().len(), 1);
    spool.close().await;
    assert!(Spool::open(&path, small()).is_ok());
}

#[tokio::test]
async fn a_repeated_frame_is_taken_once() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let id = Some(FrameId { at_ms: disk::now_ms(), uid: [7; 16] });
    let same = NewFrame { id, items: vec![item(sink, "1", b"x")] };
    let (first, second) = tokio::join!(spool.append(same.clone()), spool.append(same.clone()));
    assert_eq!(u8::from(first.unwrap().duplicate) + u8::from(second.unwrap().duplicate), 1);
    spool.close().await;
    let spool = open(dir.path());
    assert!(spool.append(same).await.unwrap().duplicate);
    assert_eq!(everything(&spool, sink).await.len(), 1);
    assert_eq!(spool.totals().duplicates, 1);
}

#[tokio::test]
async fn old_frame_ids_are_forgotten_and_young_ones_kept() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { frame_ids_for: Duration::from_millis(1), ..small() };
    let (spool, _) = Spool::open(dir.path(), limits).unwrap();
    let young = FrameId { at_ms: disk::now_ms() + 3_600_000, uid: [1; 16] };
    spool.append(NewFrame { id: Some(young), items: vec![] }).await.unwrap();
    for n in 0..200u8 {
        let id = FrameId { at_ms: 1000 + u64::from(n), uid: [n; 16] };
        spool.append(NewFrame { id: Some(id), items: vec![] }).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let conn = schema::open_reading(&dir.path().join(DB)).unwrap();
    let left: i64 = conn.query_row("SELECT count(*) FROM frames", [], |r| r.get(0)).unwrap();
    assert!((1..100).contains(&left), "{left}");
    assert!(spool.append(NewFrame { id: Some(young), items: vec![] }).await.unwrap().duplicate);
}

#[tokio::test]
async fn statements_are_planned_once_whatever_is_bound_to_them() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let conn = schema::open_reading(&dir.path().join(DB)).unwrap();
    let mut fresh = conn.prepare(read::FRESH).unwrap();
    for limit in [1, 1_000, 2] {
        assert!(!fresh.exists((1, limit)).unwrap());
    }
    assert_eq!(fresh.get_status(rusqlite::StatementStatus::RePrepare), 0);
    drop(spool);
}

#[tokio::test]
async fn a_batch_has_the_oldest_due_items_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let a = spool.sink(new_sink("a")).await.unwrap();
    let b = spool.sink(new_sink("b")).await.unwrap();
    let mut mine = Vec::new();
    for n in 0..6 {
        mine.push(put(&spool, a, &[n; 100]).await);
        put(&spool, b, &[n; 100]).await;
    }
    spool.settle(vec![retry(mine[0], 500), retry(mine[1], 2000)]).await.unwrap();
    let none = HashSet::new();
    let limits = BatchLimits { max_items: 3, max_bytes: 1000 };
    assert_eq!(seqs(&spool.batch(a, limits, 499, &none).await.unwrap()), mine[2..5]);
    let at_1000 = spool.batch(a, limits, 1000, &none).await.unwrap();
    assert_eq!(seqs(&at_1000), [mine[0], mine[2], mine[3]]);
    assert_eq!((at_1000[0].attempts, at_1000[0].error.as_deref()), (1, Some("connection refused")));
    assert_eq!(seqs(&spool.batch(a, limits, 2000, &none).await.unwrap()), mine[..3]);
    let out: HashSet<u64> = mine[2..5].iter().copied().collect();
    assert_eq!(seqs(&spool.batch(a, limits, 0, &out).await.unwrap()), [mine[5]]);
    let tight = BatchLimits { max_items: 10, max_bytes: 1 };
    assert_eq!(seqs(&spool.batch(a, tight, 0, &none).await.unwrap()), [mine[2]]);
    let two = BatchLimits { max_items: 10, max_bytes: 200 };
    assert_eq!(spool.batch(a, two, 0, &none).await.unwrap().len(), 2);
    assert_eq!(spool.next_due(a, &none).await.unwrap(), Some(0));
    let out: HashSet<u64> = mine[2..].iter().copied().collect();
    assert_eq!(spool.next_due(a, &out).await.unwrap(), Some(500));
    let out: HashSet<u64> = mine.iter().copied().collect();
    assert_eq!(spool.next_due(a, &out).await.unwrap(), None);
}

#[tokio::test]
async fn settling_twice_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let seq = put(&spool, sink, b"x").await;
    for _ in 0..2 {
        assert_eq!(spool.settle(vec![Settlement::Delivered { seq }]).await.unwrap(), Settled::Committed);
    }
    spool.settle(vec![retry(seq, 1), rejected(seq)]).await.unwrap();
    assert_eq!(spool.totals(), Totals { accepted: 1, delivered: 1, commits: 5, ..Totals::default() });
}

#[tokio::test]
async fn queries_see_what_waits() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let a = spool.sink(new_sink("a")).await.unwrap();
    let b = spool.sink(new_sink("b")).await.unwrap();
    for n in 0..4 {
        let jid = format!("2026010{n}");
        let load = NewItem { kind: Kind::Load, ..item(a, &jid, b"load") };
        spool.append(frame(vec![load, item(a, &jid, b"r"), item(b, &jid, b"other")])).await.unwrap();
    }
    let job = spool.pending_of_job(a, "20260102").await.unwrap();
    assert_eq!(job.iter().map(|i| i.kind).collect::<Vec<_>>(), [Kind::Load, Kind::Return]);
    assert!(spool.pending_of_job(a, "nope").await.unwrap().is_empty());
    let jids = |items: Vec<Item>| items.into_iter().map(|i| i.jid).collect::<Vec<_>>();
    assert_eq!(jids(spool.pending_loads(a, None, 2).await.unwrap()), ["20260103", "20260102"]);
    assert_eq!(jids(spool.pending_loads(a, Some("20260102"), 9).await.unwrap()), ["20260101", "20260100"]);
    assert!(spool.pending_loads(b, None, 9).await.unwrap().is_empty());
    let newest = spool.pending_returns(a, None, 3).await.unwrap();
    spool.settle(vec![retry(newest[1].seq, 1 << 40)]).await.unwrap();
    let again = spool.pending_returns(a, None, 3).await.unwrap();
    assert_eq!(seqs(&again), seqs(&newest));
    let rest = spool.pending_returns(a, Some(newest[2].seq), 3).await.unwrap();
    assert_eq!(jids(rest), ["20260100"]);
}

#[tokio::test]
async fn stats_tell_depth_age_and_errors() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let a = spool.sink(new_sink("a")).await.unwrap();
    spool.sink(new_sink("b")).await.unwrap();
    let first = NewItem { arrived_ms: 77, ..item(a, "1", b"12345") };
    let seq = spool.append(frame(vec![first, item(a, "1", b"678")])).await.unwrap().seqs[0];
    spool.settle(vec![retry(seq, 10)]).await.unwrap();
    spool.settle(vec![retry(seq, 20)]).await.unwrap();
    let check = |stats: Stats| {
        let lane = &stats.lanes[0];
        assert_eq!((lane.depth, lane.bytes, lane.retried, lane.max_attempts), (2, 8, 1, 2));
        assert_eq!(lane.oldest_ms, Some(77));
        assert_eq!(lane.last_error.as_ref().unwrap().0, "connection refused");
        assert_eq!((stats.lanes[1].depth, stats.lanes[1].oldest_ms), (0, None));
    };
    check(spool.stats().await.unwrap());
    check(SpoolReader::open(dir.path()).unwrap().stats().unwrap());
    spool.close().await;
    check(open(dir.path()).stats().await.unwrap());
}

#[tokio::test]
async fn the_lane_is_read_from_its_index_alone() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    spool.sink(new_sink("a")).await.unwrap();
    let conn = schema::open_reading(&dir.path().join(DB)).unwrap();
    let overdue = "SELECT seq FROM items INDEXED BY lane WHERE sink = ?1 AND since_ms < ?2 LIMIT ?3";
    for sql in [read::FRESH, read::DUE, overdue] {
        let plan: Vec<String> = conn
            .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
            .unwrap()
            .query_map(
                rusqlite::params_from_iter((0..if sql == read::FRESH { 2 } else { 3 }).map(|_| 1)),
                |r| r.get(3),
            )
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert!(plan.len() == 1 && plan[0].contains("COVERING INDEX lane (sink=?"), "{plan:?}");
    }
}

#[tokio::test]
async fn a_closed_spool_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let other = spool.clone();
    spool.close().await;
    assert!(matches!(other.append(frame(vec![item(sink, "1", b"x")])).await, Err(SpoolError::Closed)));
    assert!(matches!(other.batch(sink, ALL, 1, &HashSet::new()).await, Err(SpoolError::Closed)));
    assert!(matches!(other.settle(vec![retry(1, 1)]).await, Err(SpoolError::Closed)));
}

#[tokio::test]
async fn arrivals_and_expiry() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let mut arrivals = spool.arrivals();
    let old = NewItem { arrived_ms: 1000, ..item(sink, "1", b"old") };
    let got = spool
        .append(frame(vec![old.clone(), old.clone(), old, item(sink, "1", b"young")]))
        .await
        .unwrap()
        .seqs;
    arrivals.changed().await.unwrap();
    assert_eq!(*arrivals.borrow(), got[3]);
    spool.settle(vec![retry(got[1], 1 << 40)]).await.unwrap();
    let out = HashSet::from([got[0]]);
    assert_eq!(spool.expire(sink, 2000, 10, "too old", &out).await.unwrap(), 2);
    let dead = spool.dead_list(DeadFilter::default()).await.unwrap();
    assert_eq!(dead.iter().map(|d| d.id).collect::<Vec<_>>(), got[1..3]);
    assert_eq!(dead[0].error.as_deref(), Some("connection refused"));
    assert_eq!(dead[0].class, DeadClass::Expired);
    // It was being delivered when it expired: it is delivered.
    spool.settle(vec![Settlement::Delivered { seq: got[2] }]).await.unwrap();
    assert_eq!(spool.totals().dead, 1);
    // Put back, its patience begins again.
    assert_eq!(spool.dead_retry(DeadFilter::default()).await.unwrap(), 1);
    assert_eq!(spool.expire(sink, 2000, 10, "too old", &out).await.unwrap(), 0);
    assert_eq!(seqs(&everything(&spool, sink).await), [got[0], got[1], got[3]]);
}
