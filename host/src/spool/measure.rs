//! Appends per second against a bare file with fdatasync, for the bench.
//!
//! The bare file stands behind the same kind of queue: one thread writes all that waits, syncs once, answers all. So the
//! ratio is what the store itself costs.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::types::{Kind, Limits, NewFrame, NewItem, NewSink, SinkId};
use super::{Spool, SpoolError};

/// Rates with one number of producers.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    /// Producers, each waiting for its answer before the next append.
    pub producers: usize,
    /// Appends per second into the spool.
    pub spool: f64,
    /// Appends per second into the bare file.
    pub bare: f64,
}

impl Rate {
    /// The spool's rate as a part of the bare file's.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.spool / self.bare.max(f64::MIN_POSITIVE)
    }
}

/// Measures both in `dir`, `rounds` times in turn for `time` each, with bodies of `size` bytes; gives the medians.
///
/// # Errors
/// If the directory cannot be written.
pub async fn appends(
    dir: &Path,
    producers: usize,
    size: usize,
    time: Duration,
    rounds: usize,
) -> Result<Rate, SpoolError> {
    let (mut spool, mut bare) = (Vec::new(), Vec::new());
    for round in 0..rounds.max(1) {
        bare.push(bare_rate(&dir.join(format!("bare-{producers}-{round}")), producers, size, time).await?);
        spool.push(spool_rate(&dir.join(format!("spool-{producers}-{round}")), producers, size, time).await?);
    }
    Ok(Rate { producers, spool: median(spool), bare: median(bare) })
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}

async fn drive<F, R>(producers: usize, time: Duration, append: F) -> f64
where
    F: Fn(usize) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = bool> + Send,
{
    let done = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let mut tasks = Vec::new();
    for n in 0..producers {
        let (done, append) = (Arc::clone(&done), append.clone());
        tasks.push(tokio::spawn(async move {
            while start.elapsed() < time && append(n).await {
                done.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    for task in tasks {
        let _ = task.await;
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
    let count = done.load(Ordering::Relaxed) as f64;
    count / start.elapsed().as_secs_f64()
}

fn item(sink: SinkId, producer: usize, size: usize) -> NewItem {
    NewItem {
        sink,
        kind: Kind::Return,
        jid: "20260101000000000000".to_owned(),
        minion: format!("minion-{producer}"),
        arrived_ms: 1_767_225_600_000,
        body: vec![b'x'; size],
    }
}

async fn spool_rate(dir: &Path, producers: usize, size: usize, time: Duration) -> Result<f64, SpoolError> {
    let (spool, _) = Spool::open(dir, Limits { reserve_bytes: 0, ..Limits::default() })?;
    let new = NewSink {
        plugin: "bench".to_owned(),
        key: "0".to_owned(),
        options: "{}".to_owned(),
        label: None,
        facts: "{}".to_owned(),
    };
    let sink = spool.sink(new).await?;
    let inner = spool.clone();
    let rate = drive(producers, time, move |n| {
        let spool = inner.clone();
        async move {
            let frame = NewFrame { id: None, items: vec![item(sink, n, size)] };
            spool.append(frame).await.is_ok()
        }
    })
    .await;
    spool.close().await;
    let _ = std::fs::remove_dir_all(dir);
    Ok(rate)
}

type Waiting = (Vec<u8>, oneshot::Sender<()>);

fn bare_writer(mut file: File, queue: &mpsc::Receiver<Waiting>) -> io::Result<()> {
    let mut buffer = Vec::new();
    let mut replies = Vec::new();
    while let Ok((body, reply)) = queue.recv() {
        buffer.extend_from_slice(&body);
        replies.push(reply);
        while let Ok((body, reply)) = queue.try_recv() {
            buffer.extend_from_slice(&body);
            replies.push(reply);
        }
        file.write_all(&buffer)?;
        file.sync_data()?;
        buffer.clear();
        for reply in replies.drain(..) {
            let _ = reply.send(());
        }
    }
    Ok(())
}

async fn bare_rate(path: &Path, producers: usize, size: usize, time: Duration) -> Result<f64, SpoolError> {
    let file = File::create(path).map_err(SpoolError::io("create", path))?;
    let (queue, waiting) = mpsc::channel::<Waiting>();
    let thread = std::thread::spawn(move || bare_writer(file, &waiting));
    let inner = queue.clone();
    let rate = drive(producers, time, move |_| {
        let queue = inner.clone();
        async move {
            let (reply, answer) = oneshot::channel();
            queue.send((vec![b'x'; size], reply)).is_ok() && answer.await.is_ok()
        }
    })
    .await;
    drop(queue);
    let _ = thread.join();
    let _ = std::fs::remove_file(path);
    Ok(rate)
}
