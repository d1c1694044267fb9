//! The spool against a model in memory, with the process killed between any two steps of the writer and the disk failing.
//!
//! A kill is played by copying the files at a step, which is what a killed process leaves, together with what the model
//! knew then. Each copy is opened at the end and must agree: what was answered is there, what was not may be there or
//! not but as a whole, what was delivered is gone.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::shared::lock;
use super::*;

#[derive(Debug, Clone)]
enum Op {
    /// Frames given at the same time: how many items each has, and whether its id is new (or one used before).
    Append(Vec<(usize, Option<u8>)>),
    /// Takes a batch of a lane and settles it: 0 delivered, 1 retried, 2 rejected, else kept.
    Batch {
        sink: usize,
        most: usize,
        settle: Vec<u8>,
    },
    DeadRetry(usize),
    DeadDrop(usize),
    /// The disk fails for so many steps.
    Fail {
        full: bool,
        steps: u32,
    },
    Reopen {
        clean: bool,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => prop::collection::vec((0usize..4, prop::option::of(0u8..12)), 1..5).prop_map(Op::Append),
        4 => (0usize..2, 1usize..6, prop::collection::vec(0u8..4, 6)).prop_map(|(sink, most, settle)| Op::Batch { sink, most, settle }),
        1 => (1usize..4).prop_map(Op::DeadRetry),
        1 => (1usize..3).prop_map(Op::DeadDrop),
        1 => (any::<bool>(), 1u32..20).prop_map(|(full, steps)| Op::Fail { full, steps }),
        1 => any::<bool>().prop_map(|clean| Op::Reopen { clean }),
    ];
    prop::collection::vec(op, 1..25)
}

/// Where an item may be. More than one is possible while something about it is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Place {
    lane: bool,
    dead: bool,
    gone: bool,
}

const LANE: Place = Place { lane: true, dead: false, gone: false };
const DEAD: Place = Place { lane: false, dead: true, gone: false };
const GONE: Place = Place { lane: false, dead: false, gone: true };

/// What is known. Items are named by their bodies: numbers are known only with the answer.
#[derive(Debug, Clone, Default)]
struct Model {
    items: BTreeMap<String, Place>,
    /// Items of frames not answered yet: all or none.
    open_frames: Vec<Vec<String>>,
    ids: HashMap<u8, bool>,
}

struct Kill {
    dir: PathBuf,
    model: Model,
}

struct World {
    root: tempfile::TempDir,
    model: Arc<Mutex<Model>>,
    kills: Arc<Mutex<Vec<Kill>>>,
    failing: Arc<Mutex<(bool, u32)>>,
    step: Arc<Mutex<u32>>,
}

impl World {
    fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    fn arm(&self, spool: &Spool, at: &[u32]) {
        let (state, root, at) = (self.state(), self.root.path().to_owned(), at.to_vec());
        let (model, kills, failing, step) =
            (self.model.clone(), self.kills.clone(), self.failing.clone(), self.step.clone());
        spool.shared().fault.set(move |_| {
            let mut n = lock(&step);
            *n += 1;
            if at.contains(&n) {
                let dir = root.join(format!("kill-{n}"));
                copy_as_killed(&state, &dir);
                lock(&kills).push(Kill { dir, model: lock(&model).clone() });
            }
            let mut failing = lock(&failing);
            if failing.1 > 0 {
                failing.1 -= 1;
                let code =
                    if failing.0 { rusqlite::ffi::SQLITE_FULL } else { rusqlite::ffi::SQLITE_IOERR_WRITE };
                return Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None));
            }
            Ok(())
        });
    }
}

fn id(n: u8) -> FrameId {
    FrameId { at_ms: 1_900_000_000_000 + u64::from(n % 3), uid: [n; 16] }
}

fn name(body: &[u8]) -> String {
    String::from_utf8(body.to_vec()).unwrap()
}

async fn where_all_is(spool: &Spool) -> BTreeMap<String, Place> {
    let mut found = BTreeMap::new();
    for sink in spool.sinks().iter() {
        for item in everything(spool, sink.id).await {
            found.entry(name(&item.body)).or_insert(Place::default()).lane = true;
        }
    }
    for row in spool.dead_list(DeadFilter::default()).await.unwrap() {
        let body = spool.dead_show(row.id).await.unwrap().unwrap().body;
        found.entry(name(&body)).or_insert(Place::default()).dead = true;
    }
    found
}

fn agree(model: &Model, found: &BTreeMap<String, Place>, what: &str) {
    for (name, at) in found {
        assert!(at.lane != at.dead, "{what}: {name} is in both tables");
        let known = model.items.get(name).unwrap_or_else(|| panic!("{what}: {name} was never given"));
        assert!(
            (at.lane && known.lane) || (at.dead && known.dead),
            "{what}: {name} is at {at:?}, not {known:?}"
        );
    }
    for (name, known) in &model.items {
        assert!(found.contains_key(name) || known.gone, "{what}: {name} is lost, it was {known:?}");
    }
    for frame in &model.open_frames {
        let there = frame.iter().filter(|n| found.contains_key(*n)).count();
        assert!(there == 0 || there == frame.len(), "{what}: half a frame {frame:?}");
    }
}

async fn run(ops: Vec<Op>, kill_at: Vec<u32>) {
    let world = World {
        root: tempfile::tempdir().unwrap(),
        model: Arc::default(),
        kills: Arc::default(),
        failing: Arc::default(),
        step: Arc::default(),
    };
    let mut spool = open(&world.state());
    let sinks = [spool.sink(new_sink("a")).await.unwrap(), spool.sink(new_sink("b")).await.unwrap()];
    world.arm(&spool, &kill_at);
    let mut fresh = 0;
    for op in ops {
        match op {
            Op::Append(frames) => append(&world, &spool, sinks, frames, &mut fresh).await,
            Op::Batch { sink, most, settle } => batch(&world, &spool, sinks[sink], most, &settle).await,
            Op::DeadRetry(most) => dead(&world, &spool, most, LANE).await,
            Op::DeadDrop(most) => dead(&world, &spool, most, GONE).await,
            Op::Fail { full, steps } => *lock(&world.failing) = (full, steps),
            Op::Reopen { clean } => {
                lock(&world.failing).1 = 0;
                if !clean {
                    let copy = world.root.path().join("moved");
                    spool.shared().fault.clear();
                    let mut state = spool.state_changes();
                    state.wait_for(|s| s.owed == 0).await.unwrap();
                    copy_as_killed(&world.state(), &copy);
                    spool.close().await;
                    std::fs::remove_dir_all(world.state()).unwrap();
                    std::fs::rename(copy, world.state()).unwrap();
                } else {
                    spool.close().await;
                }
                let (again, recovery) = Spool::open(world.state(), small()).unwrap();
                assert!(recovery.damage.is_none(), "{recovery:?}");
                spool = again;
                world.arm(&spool, &kill_at);
            }
        }
    }
    lock(&world.failing).1 = 0;
    let mut state = spool.state_changes();
    state.wait_for(|s| s.condition == Condition::Healthy && s.owed == 0).await.unwrap();
    spool.shared().fault.clear();
    let found = where_all_is(&spool).await;
    agree(&lock(&world.model), &found, "at the end");
    check_counts(&spool, &found);
    spool.close().await;
    let kills = std::mem::take(&mut *lock(&world.kills));
    for kill in kills {
        let (spool, recovery) = Spool::open(&kill.dir, small()).unwrap();
        assert!(recovery.damage.is_none(), "{recovery:?}");
        let found = where_all_is(&spool).await;
        agree(&kill.model, &found, &format!("{:?}", kill.dir.file_name()));
        check_counts(&spool, &found);
        for (n, answered) in &kill.model.ids {
            let again = spool.append(NewFrame { id: Some(id(*n)), items: vec![] }).await.unwrap();
            assert!(again.duplicate || !answered, "frame {n} was answered and is not known");
        }
        assert!(spool.verify().await.unwrap().is_sound());
        spool.close().await;
    }
}

fn check_counts(spool: &Spool, found: &BTreeMap<String, Place>) {
    let t = spool.totals();
    let lane: Vec<_> = found.iter().filter(|(_, p)| p.lane).collect();
    assert_eq!((t.items, t.bytes), (lane.len() as u64, lane.iter().map(|(n, _)| n.len() as u64).sum()));
    assert_eq!(t.dead, found.values().filter(|p| p.dead).count() as u64);
}

async fn append(
    world: &World,
    spool: &Spool,
    sinks: [SinkId; 2],
    frames: Vec<(usize, Option<u8>)>,
    fresh: &mut usize,
) {
    let mut tasks = Vec::new();
    let mut used = HashSet::new();
    for (count, given) in frames {
        // Two frames with one id at the same time have their own test: which of them is taken is not known.
        let given = given.filter(|n| used.insert(*n));
        let known = given.is_some_and(|n| lock(&world.model).ids.get(&n) == Some(&true));
        let names: Vec<String> = (0..count).map(|i| format!("item-{}-{i}", *fresh)).collect();
        *fresh += 1;
        let items = names.iter().enumerate().map(|(i, n)| item(sinks[i % 2], "1", n.as_bytes())).collect();
        if !known {
            let mut model = lock(&world.model);
            model
                .items
                .extend(names.iter().map(|n| (n.clone(), Place { lane: true, dead: false, gone: true })));
            model.open_frames.push(names.clone());
            given.map(|n| model.ids.insert(n, false));
        }
        let (spool, frame) = (spool.clone(), NewFrame { id: given.map(id), items });
        tasks.push((names, given, known, tokio::spawn(async move { spool.append(frame).await })));
    }
    for (names, given, known, task) in tasks {
        let result = task.await.unwrap();
        let mut model = lock(&world.model);
        if known {
            assert!(result.is_err() || result.unwrap().duplicate);
            continue;
        }
        model.open_frames.retain(|f| *f != names);
        match result {
            Ok(done) => {
                assert!(!done.duplicate && done.seqs.len() == names.len());
                model.items.extend(names.into_iter().map(|n| (n, LANE)));
                given.map(|n| model.ids.insert(n, true));
            }
            Err(err) => {
                assert!(err.is_temporary(), "{err:?}");
                model.items.retain(|n, _| !names.contains(n));
                given.map(|n| model.ids.remove(&n));
            }
        }
    }
}

async fn batch(world: &World, spool: &Spool, sink: SinkId, most: usize, settle: &[u8]) {
    let limits = BatchLimits { max_items: most, max_bytes: 1 << 20 };
    let items = match spool.batch(sink, limits, 1 << 50, &HashSet::new()).await {
        Ok(items) => items,
        Err(err) => return assert!(err.is_temporary(), "{err:?}"),
    };
    let mut list = Vec::new();
    let mut then = Vec::new();
    for (item, how) in items.iter().zip(settle) {
        let name = name(&item.body);
        let mut model = lock(&world.model);
        assert_eq!(model.items.get(&name), Some(&LANE), "{name} was given out");
        let (settlement, place) = match how {
            0 => (Settlement::Delivered { seq: item.seq }, GONE),
            1 => (retry(item.seq, 5), LANE),
            2 => (rejected(item.seq), DEAD),
            _ => continue,
        };
        list.push(settlement);
        model.items.insert(name.clone(), Place { lane: true, dead: place.dead, gone: place.gone });
        then.push((name, place));
    }
    match spool.settle(list).await.unwrap() {
        Settled::Committed => lock(&world.model).items.extend(then),
        // In this process it counts; a kill before it is written may undo it. The model keeps both possible, so the end
        // of the run waits until nothing is owed and looks only then.
        Settled::Deferred => {
            lock(&world.failing).1 = 0;
            let mut state = spool.state_changes();
            state.wait_for(|s| s.owed == 0).await.unwrap();
            lock(&world.model).items.extend(then);
        }
    }
}

async fn dead(world: &World, spool: &Spool, most: usize, to: Place) {
    let filter = DeadFilter { limit: Some(most), ..DeadFilter::default() };
    let Ok(rows) = spool.dead_list(filter.clone()).await else { return };
    let mut names = Vec::new();
    for row in &rows {
        let Ok(Some(letter)) = spool.dead_show(row.id).await else { return };
        names.push(name(&letter.body));
    }
    let both = Place { lane: to.lane, dead: true, gone: to.gone };
    lock(&world.model).items.extend(names.iter().map(|n| (n.clone(), both)));
    let result = if to == LANE { spool.dead_retry(filter).await } else { spool.dead_drop(filter).await };
    let place = match result {
        Ok(done) => {
            assert_eq!(done, names.len() as u64);
            to
        }
        Err(err) => {
            assert!(err.is_temporary(), "{err:?}");
            DEAD
        }
    };
    lock(&world.model).items.extend(names.into_iter().map(|n| (n, place)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_answered_outlives_a_kill_at_any_step(ops in ops(), kill_at in prop::collection::vec(1u32..150, 0..5)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(run(ops, kill_at));
    }
}
