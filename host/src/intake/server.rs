//! The unix socket: accepts connections, reads frames, writes answers.
//!
//! Invariants: a connection's fault is answered to that connection and disturbs nothing else; a client that says nothing, or too much, is
//! dropped; the number of connections is bounded, further ones wait in the kernel. Shims keep their connection between requests: when
//! there is no place left, the one that has been silent for longest is closed, but never one that has not been answered yet.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::places::{Places, Silence};
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
    let places = Places::new(intake.config().intake.max_connections);
    loop {
        let accepted = tokio::select! {
            _ = stop.changed() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let place = tokio::select! {
                    _ = stop.changed() => return,
                    place = places.take() => place,
                };
                let Some(place) = place else { return };
                let (intake, places, stop) = (intake.clone(), places.clone(), stop.clone());
                tokio::spawn(async move {
                    connection(stream, intake, &places, stop).await;
                    drop(place);
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

async fn connection(
    stream: UnixStream,
    intake: Arc<Intake>,
    places: &Places,
    mut stop: watch::Receiver<bool>,
) {
    let peer = stream.peer_cred().map(|cred| (cred.uid(), cred.pid().unwrap_or(0))).unwrap_or((u32::MAX, 0));
    tracing::debug!(uid = peer.0, pid = peer.1, "connected");
    let config = intake.config();
    let max_frame = usize::try_from(config.intake.max_frame).unwrap_or(frame::MAX_FRAME);
    let mut rate = Rate::new(config.intake.frames_per_second);
    let mut stream = BufReader::new(stream);
    let mut silence: Option<Silence> = None;
    loop {
        let begun = tokio::select! {
            biased;
            begun = begins(&mut stream, IDLE) => begun,
            _ = stop.changed() => return,
            // Whoever keeps a connection makes a new one when it needs it.
            () = told_to_go(&mut silence) => return,
        };
        if !begun {
            return;
        }
        if let Some(silence) = silence.take() {
            silence.broken();
        }
        let next = tokio::select! {
            _ = stop.changed() => return,
            next = whole_frame(&mut stream, max_frame, REST_OF_FRAME) => next,
        };
        let body = match next {
            Ok(Some(body)) => body,
            Ok(None) => return,
            Err(text) => {
                tracing::warn!(uid = peer.0, pid = peer.1, "bad frame: {text}");
                refuse(stream.get_mut(), &text).await;
                return;
            }
        };
        rate.wait().await;
        let (answer, keep) = intake.answer(&body, peer).await;
        // Before the answer is on its way, so that the order is the one the clients see.
        silence = Some(places.silent());
        let sent = frame::write_frame(stream.get_mut(), &answer, usize::MAX);
        if !matches!(tokio::time::timeout(REST_OF_FRAME, sent).await, Ok(Ok(()))) || !keep {
            return;
        }
    }
}

/// Waits until a client that has been answered is to make room; for ever before that.
async fn told_to_go(silence: &mut Option<Silence>) {
    match silence {
        Some(silence) => silence.told_to_go().await,
        None => std::future::pending().await,
    }
}

/// Waits for a frame to begin; false if the client has gone or says nothing for `idle`.
async fn begins(stream: &mut (impl AsyncBufRead + Unpin), idle: Duration) -> bool {
    // Being readable would not do: a stream says so until a read has found nothing.
    matches!(tokio::time::timeout(idle, stream.fill_buf()).await, Ok(Ok(begun)) if !begun.is_empty())
}

/// The body of a frame that has begun; all of it must come within `rest`. The error is the text for the client.
async fn whole_frame(
    stream: &mut (impl AsyncBufRead + Unpin),
    max_frame: usize,
    rest: Duration,
) -> Result<Option<Vec<u8>>, String> {
    match tokio::time::timeout(rest, frame::read_frame(stream, max_frame)).await {
        Ok(read) => read.map_err(|error| chain(&error)),
        Err(_) => Err(format!("the rest of the frame did not come within {rest:?}")),
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_client_may_be_silent_between_frames_but_not_within_one() {
        let (idle, rest) = (Duration::from_secs(60), Duration::from_millis(50));
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut server = BufReader::new(server);
        frame::write_frame(&mut client, b"one", 10).await.unwrap();
        assert!(begins(&mut server, idle).await);
        assert_eq!(whole_frame(&mut server, 10, rest).await, Ok(Some(b"one".to_vec())));
        let silent = tokio::time::timeout(4 * rest, begins(&mut server, idle)).await;
        assert!(silent.is_err(), "the connection is kept, not {silent:?}");
        frame::write_frame(&mut client, b"two", 10).await.unwrap();
        assert!(begins(&mut server, idle).await);
        assert_eq!(whole_frame(&mut server, 10, rest).await, Ok(Some(b"two".to_vec())));
        assert!(!begins(&mut server, rest).await);
        client.write_all(&[0, 0, 0, 9, b'x']).await.unwrap();
        assert!(begins(&mut server, idle).await);
        let halfway = whole_frame(&mut server, 10, rest).await;
        assert!(halfway.is_err_and(|text| text.contains("did not come within 50ms")));
    }
}
