//! High-water mark and owed settlements.

use super::*;

#[tokio::test]
async fn past_the_mark_appends_are_refused_and_settling_works() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { max_bytes: 1000, ..small() };
    let (spool, _) = Spool::open(dir.path(), limits.clone()).unwrap();
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let id = Some(FrameId { at_ms: 5, uid: [1; 16] });
    let known = NewFrame { id, items: vec![item(sink, "1", &[0; 300])] };
    let first = spool.append(known.clone()).await.unwrap().seqs[0];
    let mut got = vec![first];
    for _ in 0..2 {
        got.push(put(&spool, sink, &[0; 300]).await);
    }
    let refused = spool.append(frame(vec![item(sink, "1", &[0; 101])])).await.unwrap_err();
    assert!(matches!(refused, SpoolError::Full { bytes: 900, max_bytes: 1000, items: 3 }), "{refused}");
    assert!(refused.is_temporary());
    assert!(spool.append(known).await.unwrap().duplicate, "a known frame is known even when full");
    spool.settle(vec![rejected(got[0])]).await.unwrap();
    assert_eq!((spool.totals().dead_bytes, spool.totals().bytes), (300, 600));
    assert!(spool.append(frame(vec![item(sink, "1", &[0; 101])])).await.is_err(), "dead letters count");
    spool.close().await;
    let (spool, _) = Spool::open(dir.path(), limits).unwrap();
    assert!(spool.append(frame(vec![item(sink, "1", &[0; 101])])).await.is_err(), "counted again at open");
    spool.settle(vec![Settlement::Delivered { seq: got[1] }]).await.unwrap();
    put(&spool, sink, &[0; 101]).await;
}

fn disk_full() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL), None)
}

#[tokio::test]
async fn what_the_disk_does_not_take_is_owed_and_not_given_out() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = Spool::open(dir.path(), Limits { max_owed: 3, ..small() }).unwrap();
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let mut got = Vec::new();
    for _ in 0..5 {
        got.push(put(&spool, sink, b"x").await);
    }
    spool.shared().fault.set(|_| Err(disk_full()));
    let refused = spool.append(frame(vec![item(sink, "1", b"y")])).await.unwrap_err();
    assert!(matches!(refused, SpoolError::Unavailable { .. }));
    assert!(matches!(spool.state().condition, Condition::Degraded { .. }));
    let list = vec![Settlement::Delivered { seq: got[0] }, retry(got[1], 1)];
    assert_eq!(spool.settle(list).await.unwrap(), Settled::Deferred);
    assert_eq!(spool.state().owed, 2);
    let rest = spool.batch(sink, ALL, 100, &HashSet::new()).await.unwrap();
    assert_eq!(seqs(&rest), got[2..]);
    assert!(spool.settle(vec![rejected(got[2]), rejected(got[3])]).await.is_err(), "memory is bounded");
    assert_eq!(spool.settle(vec![rejected(got[2])]).await.unwrap(), Settled::Deferred);
    assert!(spool.batch(sink, ALL, 100, &HashSet::new()).await.is_err(), "the lanes pause");
    let mut state = spool.state_changes();
    spool.shared().fault.clear();
    state.wait_for(|s| s.condition == Condition::Healthy && s.owed == 0).await.unwrap();
    assert_eq!(seqs(&everything(&spool, sink).await), [got[1], got[3], got[4]]);
    assert_eq!(spool.totals().dead, 1);
    put(&spool, sink, b"y").await;
    assert_eq!(spool.totals().refused_disk, 1);
}

#[tokio::test]
async fn an_io_error_opens_the_files_anew() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let sink = spool.sink(new_sink("a")).await.unwrap();
    put(&spool, sink, b"x").await;
    spool.shared().fault.set(|step| match step {
        "commit" => Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC),
            None,
        )),
        _ => Ok(()),
    });
    assert!(spool.append(frame(vec![item(sink, "1", b"y")])).await.is_err());
    let mut state = spool.state_changes();
    state.wait_for(|s| s.condition == Condition::Healthy).await.unwrap();
    spool.shared().fault.clear();
    put(&spool, sink, b"z").await;
    let bodies: Vec<_> = everything(&spool, sink).await.into_iter().map(|i| i.body).collect();
    assert_eq!(bodies, [b"x", b"z"]);
}
