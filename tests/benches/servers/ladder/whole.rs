//! The whole daemon: clients hand over, each its next return when the last is acknowledged, and the clock stops when all are stored.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use returnerd_tests::client::{encode, frame};
use returnerd_tests::daemon::Daemon;
use returnerd_tests::proc::Scratch;
use returnerd_tests::wait::wait_for_value;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::records::Returns;
use super::system::System;

const LIMIT: Duration = Duration::from_secs(90);
/// How long the clients should be at work.
const AIM: Duration = Duration::from_secs(3);

/// Where the spool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// On a file system in memory, where acknowledging costs no disk.
    Memory,
    /// On the disk of the temporary directory.
    Disk,
}

/// Per second.
pub(crate) struct Rates {
    /// Acknowledged.
    pub(crate) accepted: f64,
    /// Stored in the system, from the first hand-over to the last row.
    pub(crate) stored: f64,
    /// The processor time of each return: in the daemon, the server and the clients.
    pub(crate) cpu: [Duration; 3],
}

/// Measures with so many clients at once; `about` is a guess of the rate. None if this machine has no such place.
pub(crate) fn rate(
    system: &System,
    place: Place,
    clients: usize,
    about: f64,
    returns: &mut Returns,
) -> Option<Rates> {
    let memory = Path::new("/dev/shm");
    let scratch = match place {
        Place::Memory if !memory.is_dir() => {
            println!("# SKIPPED: the spool in memory: there is no /dev/shm");
            return None;
        }
        Place::Memory => Scratch::new_in(memory),
        Place::Disk => Scratch::new(),
    };
    let mut daemon = Daemon::builder_in(scratch)
        .plugins(&[system.name()])
        .tables("[intake]\nmax_connections = 2048")
        .quiet()
        .start();
    let name = system.name();
    let prefix = if name == "pgjsonb" { "returner.pgjsonb" } else { name };
    let opts: Value = system
        .options()
        .as_object()
        .into_iter()
        .flatten()
        .map(|(option, value)| (format!("{prefix}.{option}"), value.clone()))
        .collect();
    let client = daemon.client().with_opts(opts);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let wanted = (about * AIM.as_secs_f64()) as usize;
    let each = (wanted / clients).clamp(if clients == 1 { 200 } else { 3 }, 20_000);
    let mut make = |count: usize| -> Vec<Vec<u8>> {
        let one = |returns: &mut Returns| {
            frame(&encode(&client.request("return", name, json!({"ret": returns.next_of_salt()}))))
        };
        (0..count).map(|_| one(returns)).collect()
    };
    // The first opens the sink.
    let warm = make(1);
    // In turn, so that the daemon sees the returns about in the order in which the other rungs store them.
    let mut work: Vec<Vec<Vec<u8>>> = vec![Vec::with_capacity(each); clients];
    for _ in 0..each {
        for (client, frame) in work.iter_mut().zip(make(clients)) {
            client.push(frame);
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(hand_over(daemon.socket(), vec![warm]));
    drained(&daemon);
    let before = system.count();
    let times = || [daemon.cpu(), system.cpu(), clients_cpu()];
    let (times_before, began) = (times(), Instant::now());
    runtime.block_on(hand_over(daemon.socket(), work));
    let accepted = began.elapsed();
    drained(&daemon);
    let stored = began.elapsed();
    let count = each * clients;
    let mut cpu = times();
    for (after, before) in cpu.iter_mut().zip(times_before) {
        *after = (*after - before) / u32::try_from(count).unwrap();
    }
    assert_eq!(system.count() - before, count, "all returns of `{name}` are stored\n{}", daemon.tail());
    daemon.stop();
    let per_second = |time: Duration| count as f64 / time.as_secs_f64();
    Some(Rates { accepted: per_second(accepted), stored: per_second(stored), cpu })
}

/// The processor time of this process, whose clients are the only ones at work.
fn clients_cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap()))
        .sum()
}

async fn hand_over(socket: &Path, work: Vec<Vec<Vec<u8>>>) {
    let mut tasks = Vec::new();
    for frames in work {
        let mut stream = UnixStream::connect(socket).await.unwrap();
        tasks.push(tokio::spawn(async move {
            let mut answer = Vec::new();
            for frame in frames {
                stream.write_all(&frame).await.unwrap();
                let length = stream.read_u32().await.unwrap();
                answer.resize(length as usize, 0);
                stream.read_exact(&mut answer).await.unwrap();
            }
            answer
        }));
    }
    for task in tasks {
        let answer = rmpv::decode::read_value(&mut task.await.unwrap().as_slice()).unwrap();
        let ok = answer
            .as_map()
            .into_iter()
            .flatten()
            .any(|(key, value)| key.as_str() == Some("ok") && value.as_bool() == Some(true));
        assert!(ok, "{answer}");
    }
}

/// Waits until nothing waits in any lane.
pub(crate) fn drained(daemon: &Daemon) {
    wait_for_value(
        "the lane to run empty",
        LIMIT,
        || daemon.tail(),
        || {
            let status: Value = daemon.cli(&["status", "--json"]).json_whatever_the_code();
            (status["spool"]["items"] == 0).then_some(())
        },
    );
}
