//! The unix socket: accepts connections, reads frames, writes answers.
//!
//! Invariants: a connection's fault is answered to that connection and disturbs nothing else; a client that says nothing, or too much, is
//! dropped; the number of connections is bounded, further ones wait in the kernel.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};

use super::{Intake, IntakeError};
use crate::config::Config;
use crate::observe::chain;
use crate::salt::frame::{self, Answer, Code};

/// A connection without a request for this long is closed.
const IDLE: Duration = Duration::from_secs(300);

/// The rest of a frame must come within this time, so that half a frame does not hold a connection for ever.
const REST_OF_FRAME: Duration = Duration::from_secs(30);

/// Binds the socket, after making sure that no other daemon listens there.
pub fn bind(config: &Config) -> Result<UnixListener, IntakeError> {
    let path = &config.socket;
    let error = |source| IntakeError::Bind { path: path.clone(), source };
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(error)?;
    }
    if path.exists() {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(IntakeError::Taken(path.clone()));
        }
        // A socket file that nobody listens on is left over from a crash.
        std::fs::remove_file(path).map_err(error)?;
    }
    let listener = UnixListener::bind(path).map_err(error)?;
    let mode = config.socket_mode().unwrap_or(0o660);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(error)?;
    if !config.intake.group.is_empty() {
        super::give_to_group(path, &config.intake.group)?;
    }
    Ok(listener)
}

/// Serves connections until `stop` is set.
pub async fn serve(listener: UnixListener, intake: Arc<Intake>, mut stop: watch::Receiver<bool>) {
    let config = intake.config();
    let permits = Arc::new(Semaphore::new(config.intake.max_connections.max(1)));
    loop {
        let permit = tokio::select! {
            _ = stop.changed() => return,
            permit = permits.clone().acquire_owned() => permit,
        };
        let Ok(permit) = permit else { return };
        let accepted = tokio::select! {
            _ = stop.changed() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let intake = intake.clone();
                let stop = stop.clone();
                tokio::spawn(async move {
                    connection(stream, intake, stop).await;
                    drop(permit);
                });
            }
            Err(error) => {
                // Out of file descriptors, say: the others go on, and this one is tried again.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(mut stream: UnixStream, intake: Arc<Intake>, mut stop: watch::Receiver<bool>) {
    let peer = stream.peer_cred().map(|cred| (cred.uid(), cred.pid().unwrap_or(0))).unwrap_or((u32::MAX, 0));
    tracing::debug!(uid = peer.0, pid = peer.1, "connected");
    let config = intake.config();
    let max_frame = usize::try_from(config.intake.max_frame).unwrap_or(frame::MAX_FRAME);
    let mut rate = Rate::new(config.intake.frames_per_second);
    loop {
        let readable = tokio::select! {
            _ = stop.changed() => return,
            readable = tokio::time::timeout(IDLE, stream.readable()) => readable,
        };
        if !matches!(readable, Ok(Ok(()))) {
            return;
        }
        let read = tokio::time::timeout(REST_OF_FRAME, frame::read_frame(&mut stream, max_frame)).await;
        let body = match read {
            Ok(Ok(Some(body))) => body,
            Ok(Ok(None)) => return,
            Ok(Err(error)) => {
                let text = chain(&error);
                tracing::warn!(uid = peer.0, pid = peer.1, "bad frame: {text}");
                refuse(&mut stream, &text).await;
                return;
            }
            Err(_) => {
                tracing::warn!(
                    uid = peer.0,
                    pid = peer.1,
                    "bad frame: its rest did not come within {REST_OF_FRAME:?}"
                );
                refuse(&mut stream, "the rest of the frame did not come in time").await;
                return;
            }
        };
        rate.wait().await;
        let (answer, keep) = intake.answer(&body, peer).await;
        let sent =
            tokio::time::timeout(REST_OF_FRAME, frame::write_frame(&mut stream, &answer, usize::MAX)).await;
        if !matches!(sent, Ok(Ok(()))) || !keep {
            return;
        }
    }
}

async fn refuse(stream: &mut UnixStream, text: &str) {
    let answer = Answer::Failed { error: text.to_owned(), code: Code::BadRequest }.to_body();
    let _ =
        tokio::time::timeout(Duration::from_secs(1), frame::write_frame(stream, &answer, usize::MAX)).await;
}

/// Limits the frames of one connection by making it wait.
struct Rate {
    per_second: f64,
    allowance: f64,
    checked: tokio::time::Instant,
}

impl Rate {
    fn new(per_second: u32) -> Self {
        let per_second = f64::from(per_second);
        Self { per_second, allowance: per_second, checked: tokio::time::Instant::now() }
    }

    async fn wait(&mut self) {
        if self.per_second == 0.0 {
            return;
        }
        let now = tokio::time::Instant::now();
        let earned = now.duration_since(self.checked).as_secs_f64() * self.per_second;
        self.checked = now;
        self.allowance = (self.allowance + earned).min(self.per_second) - 1.0;
        if self.allowance < 0.0 {
            tokio::time::sleep(Duration::from_secs_f64(-self.allowance / self.per_second)).await;
        }
    }
}
