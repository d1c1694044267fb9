//! Commits that are shared.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_waits_shares_a_commit() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let before = spool.totals().commits;
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let spool = spool.clone();
            tokio::spawn(async move { put(&spool, sink, b"x").await })
        })
        .collect();
    let mut got = HashSet::new();
    for task in tasks {
        assert!(got.insert(task.await.unwrap()));
    }
    assert_eq!(everything(&spool, sink).await.len(), 200);
    assert!(spool.totals().commits - before < 100, "{}", spool.totals().commits);
}

#[tokio::test]
async fn one_bad_command_does_not_fail_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { max_item_bytes: 10, ..small() };
    let (spool, _) = Spool::open(dir.path(), limits).unwrap();
    let sink = spool.sink(new_sink("a")).await.unwrap();
    // The statement itself fails for one frame: all are run again one by one.
    spool.shared().fault.set({
        let mut n = 0;
        move |step| {
            n += u32::from(step == "item");
            if step == "item" && n % 3 == 2 {
                return Err(rusqlite::Error::InvalidQuery);
            }
            Ok(())
        }
    });
    let (a, b, c, d) = tokio::join!(
        spool.append(frame(vec![item(sink, "1", b"a")])),
        spool.append(frame(vec![item(sink, "1", b"much too large")])),
        spool.append(frame(vec![item(SinkId(99), "1", b"c")])),
        spool.append(frame(vec![item(sink, "1", b"d")])),
    );
    spool.shared().fault.clear();
    assert!(matches!(b, Err(SpoolError::TooLarge { size: 14, limit: 10 })));
    assert!(matches!(c, Err(SpoolError::UnknownSink(99))));
    let taken = usize::from(a.is_ok()) + usize::from(d.is_ok());
    assert!(taken >= 1);
    assert_eq!(everything(&spool, sink).await.len(), taken);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_does_not_hold_up_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let sink = spool.sink(new_sink("a")).await.unwrap();
    put(&spool, sink, b"x").await;
    let reader = schema::open_reading(&dir.path().join(DB)).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    let count = |c: &rusqlite::Connection| {
        c.query_row("SELECT count(*) FROM items", [], |r| r.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(count(&reader), 1);
    for _ in 0..10 {
        put(&spool, sink, b"x").await;
    }
    assert_eq!(count(&reader), 1);
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(count(&reader), 11);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_wait_when_too_much_waits() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { max_waiting_bytes: 8 << 10, ..small() };
    let (spool, _) = Spool::open(dir.path(), limits).unwrap();
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let most = std::sync::Arc::new(AtomicU64::new(0));
    spool.shared().fault.set({
        let (most, shared) = (most.clone(), std::sync::Arc::downgrade(spool.shared()));
        move |_| {
            if let Some(shared) = shared.upgrade() {
                most.fetch_max(shared.waiting() as u64, Ordering::Relaxed);
            }
            Ok(())
        }
    });
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let spool = spool.clone();
            tokio::spawn(async move { put(&spool, sink, &[0; 1000]).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    // One larger than the bound passes alone.
    put(&spool, sink, &[0; 100_000]).await;
    spool.shared().fault.clear();
    assert!(most.load(Ordering::Relaxed) <= 8);
}

#[tokio::test]
async fn every_commit_waits_for_the_disk_but_that_of_settlements_alone() {
    let dir = tempfile::tempdir().unwrap();
    let lock = recover::lock(dir.path()).unwrap();
    let shared = Arc::new(Shared::new(dir.path().to_owned(), small()));
    let mut writer = writer::Writer::new(shared.clone(), lock);
    writer.start().unwrap();
    // SQLite's numbers: 1 for NORMAL, 2 for FULL.
    let level = |writer: &writer::Writer| -> i64 {
        writer.conn.as_ref().unwrap().query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap()
    };
    let (reply, mut id) = oneshot::channel();
    writer.group([Command::Sink { new: new_sink("a"), reply }].into());
    let sink = id.try_recv().unwrap().unwrap();
    assert_eq!(level(&writer), 2, "a new sink");
    let room = [shared.room(1).await.unwrap(), shared.room(1).await.unwrap()];
    let [append, another] = room.map(|_room| {
        let (reply, answer) = oneshot::channel();
        (Command::Append { frame: frame(vec![item(sink, "1", b"x")]), reply, _room }, answer)
    });
    let settle = |seq| Command::Settle { list: vec![Settlement::Delivered { seq }], reply: None };
    let (append, mut answer) = append;
    writer.group([append].into());
    assert_eq!(level(&writer), 2, "an append");
    let seq = answer.try_recv().unwrap().unwrap().seqs[0];
    writer.group([settle(seq), settle(seq)].into());
    assert_eq!(level(&writer), 1, "settlements");
    writer.group([settle(seq), another.0].into());
    assert_eq!(level(&writer), 2, "an append beside a settlement");
    for command in
        [|reply| Command::Revive { ids: vec![1], reply }, |reply| Command::Discard { ids: vec![1], reply }]
    {
        writer.group([settle(seq)].into());
        writer.group([command(oneshot::channel().0)].into());
        assert_eq!(level(&writer), 2, "what somebody asked for");
    }
}
