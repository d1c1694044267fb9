//! Dead letters: kept, shown, put back, exported, bounded.

use super::*;

#[tokio::test]
async fn dead_letters_are_found_by_what_is_known_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let a = spool.sink(new_sink("mysql")).await.unwrap();
    let b = spool.sink(new_sink("slack")).await.unwrap();
    let (one, two, three) =
        (put(&spool, a, b"1").await, put(&spool, a, b"22").await, put(&spool, b, b"\xff3").await);
    spool.settle(vec![retry(two, 1)]).await.unwrap();
    let other = Settlement::Dead { seq: two, reason: "too wide".to_owned(), class: DeadClass::Rejected };
    spool.settle(vec![rejected(one), other, rejected(three)]).await.unwrap();
    let ids = async |filter: DeadFilter| {
        spool.dead_list(filter).await.unwrap().iter().map(|d| d.id).collect::<Vec<_>>()
    };
    let all = DeadFilter::default;
    assert_eq!(ids(all()).await, [one, two, three]);
    assert_eq!(ids(DeadFilter { plugin: Some("slack".to_owned()), ..all() }).await, [three]);
    assert_eq!(ids(DeadFilter { sink: Some(a), limit: Some(1), ..all() }).await, [one]);
    assert_eq!(ids(DeadFilter { reason: Some("wide".to_owned()), ..all() }).await, [two]);
    assert_eq!(ids(DeadFilter { reason: Some("refused".to_owned()), ..all() }).await, [two]);
    assert_eq!(ids(DeadFilter { ids: Some(vec![three, 99]), ..all() }).await, [three]);
    assert_eq!(ids(DeadFilter { class: Some(DeadClass::Expired), ..all() }).await, [0; 0]);
    assert_eq!(ids(DeadFilter { before_ms: Some(5), ..all() }).await, [0; 0]);
    assert_eq!(ids(DeadFilter { after_ms: Some(5), ..all() }).await.len(), 3);
    let letter = spool.dead_show(two).await.unwrap().unwrap();
    assert!(letter.sound);
    assert_eq!((letter.row.attempts, letter.row.size, &letter.body[..]), (1, 2, &b"22"[..]));
    let (lines, count) = spool.dead_export(all(), Vec::new()).await.unwrap();
    assert_eq!(count, 3);
    let lines: Vec<serde_json::Value> = lines
        .split(|b| *b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect();
    assert_eq!((&lines[1]["body"], &lines[1]["reason"]), (&"22".into(), &"too wide".into()));
    assert_eq!((&lines[2]["body_base64"], &lines[2]["plugin"]), (&"/zM=".into(), &"slack".into()));
    let reader = SpoolReader::open(dir.path()).unwrap();
    assert_eq!(reader.dead_list(&all()).unwrap().len(), 3);

    assert_eq!(spool.dead_retry(DeadFilter { sink: Some(a), ..all() }).await.unwrap(), 2);
    assert_eq!(seqs(&everything(&spool, a).await), [one, two]);
    assert_eq!(spool.dead_drop(all()).await.unwrap(), 1);
    let t = spool.totals();
    assert_eq!((t.items, t.bytes, t.dead, t.dead_bytes, t.revived, t.dropped), (2, 3, 0, 0, 2, 1));
}

#[tokio::test]
async fn many_dead_letters_are_put_back_in_small_commits() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let got = spool.append(frame(vec![item(sink, "1", b"x"); 1300])).await.unwrap().seqs;
    spool.settle(got.iter().map(|s| rejected(*s)).collect()).await.unwrap();
    assert_eq!(
        spool.dead_retry(DeadFilter { limit: Some(1100), ..DeadFilter::default() }).await.unwrap(),
        1100
    );
    assert_eq!(spool.totals().dead, 200);
}

#[tokio::test]
async fn a_full_table_refuses_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { max_dead_bytes: 10, dead_hold: Duration::from_secs(60), ..small() };
    let (spool, _) = Spool::open(dir.path(), limits).unwrap();
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let (one, two) = (put(&spool, sink, &[0; 8]).await, put(&spool, sink, &[0; 8]).await);
    spool.settle(vec![rejected(one)]).await.unwrap();
    assert_eq!(spool.state().dead_trouble, None);
    spool.settle(vec![rejected(two)]).await.unwrap();
    assert!(spool.state().dead_trouble.unwrap().contains("8 of 10 bytes"));
    assert_eq!((spool.totals().dead, spool.totals().items), (1, 1));
    let now = disk::now_ms();
    assert!(spool.batch(sink, ALL, now, &HashSet::new()).await.unwrap().is_empty(), "held back");
    let later = spool.batch(sink, ALL, now + 120_000, &HashSet::new()).await.unwrap();
    assert!(later[0].error.as_ref().unwrap().contains("no such table"));
    assert_eq!(spool.dead_drop(DeadFilter::default()).await.unwrap(), 1);
    assert_eq!(spool.state().dead_trouble, None);
    spool.settle(vec![rejected(two)]).await.unwrap();
    assert_eq!((spool.totals().dead, spool.totals().items), (1, 0));
}

#[tokio::test]
async fn the_oldest_are_exported_before_they_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("dead");
    let limits = Limits { max_dead_bytes: 100, dead_policy: DeadPolicy::Export(out.clone()), ..small() };
    let (spool, _) = Spool::open(dir.path().join("state"), limits).unwrap();
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let mut got = Vec::new();
    for n in 0..30u8 {
        let seq = put(&spool, sink, &[b'a' + n % 26; 10]).await;
        spool.settle(vec![rejected(seq)]).await.unwrap();
        got.push(seq);
    }
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(&out).unwrap() {
        let path = entry.unwrap().path();
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with("dead-20"), "{path:?}");
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            lines.push(line["id"].as_u64().unwrap());
        }
    }
    lines.extend(spool.dead_list(DeadFilter::default()).await.unwrap().iter().map(|d| d.id));
    lines.sort_unstable();
    assert_eq!(lines, got);
    assert!(spool.totals().dead_bytes <= 100);
    assert_eq!(spool.totals().exported + spool.totals().dead, 30);
    let huge = put(&spool, sink, &[0; 500]).await;
    spool.settle(vec![rejected(huge)]).await.unwrap();
    assert_eq!(spool.totals().dead, 1);
}

#[tokio::test]
async fn an_export_that_fails_keeps_the_item_in_its_lane() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("not-a-directory");
    std::fs::write(&file, "").unwrap();
    let limits = Limits { max_dead_bytes: 10, dead_policy: DeadPolicy::Export(file.join("x")), ..small() };
    let (spool, _) = Spool::open(dir.path().join("state"), limits).unwrap();
    let sink = spool.sink(new_sink("a")).await.unwrap();
    let (one, two) = (put(&spool, sink, &[0; 8]).await, put(&spool, sink, &[0; 8]).await);
    spool.settle(vec![rejected(one), rejected(two)]).await.unwrap();
    assert!(spool.state().dead_trouble.unwrap().contains("cannot be exported"));
    assert_eq!((spool.totals().dead, spool.totals().items), (1, 1));
}
