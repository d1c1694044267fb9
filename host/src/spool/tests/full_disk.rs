//! A small file system that really fills up. Needs the right to mount; says so where it is missing.

use std::path::PathBuf;
use std::process::Command as Process;

use super::*;

struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(at: &Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let out = Process::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(at)
            .output();
        if out.is_ok_and(|o| o.status.success()) {
            return Some(Self(at.to_owned()));
        }
        eprintln!("skipped: mounting a tmpfs is not permitted here");
        None
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Process::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn limits() -> Limits {
    Limits { reserve_bytes: 1 << 20, log_bytes: 512 << 10, ..small() }
}

async fn fill(spool: &Spool, sink: SinkId) -> Vec<u64> {
    let mut taken = Vec::new();
    for n in 0.. {
        assert!(n < 10_000, "the file system never filled up");
        match spool.append(frame(vec![item(sink, "1", &[b'x'; 3000])])).await {
            Ok(done) => taken.extend(done.seqs),
            Err(SpoolError::Unavailable { .. }) => return taken,
            Err(err) => panic!("{err}"),
        }
    }
    taken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_acceptance_and_frees_it_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("fs");
    let Some(_fs) = Tmpfs::mount(&at, "12m") else { return };
    let (state, filler) = (at.join("state"), at.join("filler"));
    std::fs::write(&filler, vec![0; 4 << 20]).unwrap();
    // A look at the disk empties the log, which can make room for a few more. It must not come between an error and what is seen of it.
    let limits = || Limits { probe_every: Duration::from_secs(3), ..limits() };
    let (spool, _) = Spool::open(&state, limits()).unwrap();
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let mut changes = spool.state_changes();
    let mut expected = HashSet::new();
    for round in 0..3 {
        let taken = fill(&spool, sink).await;
        assert!(matches!(spool.state().condition, Condition::Degraded { .. }));
        expected.extend(taken.iter().copied());
        assert!(!taken.is_empty() && spool.append(frame(vec![item(sink, "1", b"x")])).await.is_err());
        // Settling goes on while the disk is full.
        let out = spool
            .batch(sink, BatchLimits { max_items: 20, max_bytes: 1 << 20 }, 1, &HashSet::new())
            .await
            .unwrap();
        assert_eq!(out.len(), 20);
        let settled =
            spool.settle(out.iter().map(|i| Settlement::Delivered { seq: i.seq }).collect()).await.unwrap();
        eprintln!("round {round}: took {}, settling was {settled:?}", taken.len());
        out.iter().for_each(|i| assert!(expected.remove(&i.seq)));
        assert_eq!(seqs(&everything(&spool, sink).await).into_iter().collect::<HashSet<_>>(), expected);
        // Space returns.
        let left = (2 - round) * (1 << 20);
        std::fs::OpenOptions::new().write(true).open(&filler).unwrap().set_len(left).unwrap();
        let healthy = changes.wait_for(|s| s.condition == Condition::Healthy && s.owed == 0);
        if tokio::time::timeout(Duration::from_secs(20), healthy).await.is_err() {
            panic!("still {:?}", spool.state());
        }
        expected.insert(put(&spool, sink, b"after").await);
    }
    spool.close().await;
    let (spool, recovery) = Spool::open(&state, limits()).unwrap();
    assert!(recovery.damage.is_none());
    assert_eq!(seqs(&everything(&spool, sink).await).into_iter().collect::<HashSet<_>>(), expected);
    assert!(spool.verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spool_opens_on_a_full_disk_and_works_when_there_is_space() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("fs");
    let Some(_fs) = Tmpfs::mount(&at, "6m") else { return };
    let state = at.join("state");
    let (spool, _) = Spool::open(&state, limits()).unwrap();
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let seq = put(&spool, sink, b"before").await;
    spool.close().await;
    std::fs::remove_file(state.join("spool.reserve")).unwrap();
    let filler = at.join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    let (spool, recovery) = Spool::open(&state, limits()).unwrap();
    eprintln!("{recovery:?}");
    assert!(matches!(spool.state().condition, Condition::Degraded { .. }));
    assert!(spool.append(frame(vec![item(sink, "1", b"x")])).await.unwrap_err().is_temporary());
    let mut changes = spool.state_changes();
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    changes.wait_for(|s| s.condition == Condition::Healthy).await.unwrap();
    let second = put(&spool, sink, b"x").await;
    assert_eq!(seqs(&everything(&spool, sink).await), [seq, second]);
}
