//! The host's side of `unix-datagrams`: messages to the unix sockets that were granted.
//!
//! Invariants
//! - Only a path that was granted as it stands is connected to, and never one that leads to something of the daemon's own:
//!   that is looked at with every connect, as a link may be put there later.
//! - A message waits for [`UNIX_WAIT`] at most, and only its own instance waits.
//! - A socket of streams that took a part of a message is not used again, so that two messages never run together.
//! - Sockets and message sizes are limited per instance.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixDatagram, UnixStream};
use tokio::time::timeout;
use wasmtime::component::HasData;

use super::egress::Egress;
use super::own::OwnPlaces;
use crate::plugin::bindings::salt::returner::unix_datagrams::{Error, Host};
use crate::plugin::limits::{MAX_UNIX_MESSAGE, MAX_UNIX_SOCKETS, UNIX_WAIT};

/// The unix sockets of one instance.
pub struct UnixPeers {
    granted: Vec<PathBuf>,
    egress: Egress,
    own: OwnPlaces,
    peers: HashMap<PathBuf, Peer>,
    wait: Duration,
}

/// A connected socket.
enum Peer {
    Datagram(UnixDatagram),
    Stream(UnixStream),
}

/// For `add_to_linker`.
pub struct HasUnixPeers;

impl HasData for HasUnixPeers {
    type Data<'a> = &'a mut UnixPeers;
}

impl Host for UnixPeers {
    async fn send(&mut self, path: String, message: Vec<u8>) -> wasmtime::Result<Result<(), Error>> {
        Ok(self.send_to(Path::new(&path), &message).await)
    }
}

impl UnixPeers {
    /// For an instance that was granted these paths; `egress` takes the refusals.
    pub fn new(granted: Vec<PathBuf>, egress: &Egress, own: &OwnPlaces) -> Self {
        Self { granted, egress: egress.clone(), own: own.clone(), peers: HashMap::new(), wait: UNIX_WAIT }
    }

    async fn send_to(&mut self, path: &Path, message: &[u8]) -> Result<(), Error> {
        self.must_be_granted(path)?;
        if message.len() > MAX_UNIX_MESSAGE {
            return Err(Error::TooLong);
        }
        // A socket from before may belong to a program that has ended; one of now may not.
        let mut kept = self.peers.remove(path);
        loop {
            let was_kept = kept.is_some();
            let mut peer = match kept.take() {
                Some(peer) => peer,
                None => self.connect(path).await?,
            };
            match timeout(self.wait, peer.write(message)).await {
                Ok(Ok(())) => {
                    self.peers.insert(path.to_owned(), peer);
                    return Ok(());
                }
                Ok(Err(error)) if was_kept && is_gone(&error) => {}
                Ok(Err(error)) => {
                    let error = reason(&error);
                    if error == Error::TooLong {
                        self.peers.insert(path.to_owned(), peer);
                    }
                    return Err(error);
                }
                Err(_) => {
                    if matches!(peer, Peer::Datagram(_)) {
                        self.peers.insert(path.to_owned(), peer);
                    }
                    return Err(Error::Busy);
                }
            }
        }
    }

    fn must_be_granted(&self, path: &Path) -> Result<(), Error> {
        if self.granted.iter().any(|granted| granted == path) {
            return Ok(());
        }
        let shown = path.display();
        let what = format!(
            "to send to `unix://{shown}`; hint: `allow = [\"unix://{shown}\"]` in `[plugin.{}]` of returnerd.toml would allow it",
            self.egress.plugin()
        );
        let pass = path.is_absolute() && self.egress.observes();
        if self.egress.refuse(&what, pass) { Ok(()) } else { Err(Error::NotGranted) }
    }

    async fn connect(&self, path: &Path) -> Result<Peer, Error> {
        if self.peers.len() >= MAX_UNIX_SOCKETS {
            return Err(Error::Limit);
        }
        if let Some((why, own)) = self.own.conflict(path) {
            let (path, own) = (path.display(), own.display());
            let what = format!("to send to `unix://{path}`, though {why} returnerd's own `{own}`");
            self.egress.refuse(&what, false);
            return Err(Error::NotGranted);
        }
        let socket = UnixDatagram::unbound().map_err(|error| reason(&error))?;
        match socket.connect(path) {
            Ok(()) => Ok(Peer::Datagram(socket)),
            Err(error) if errno(&error) == Some(Errno::EPROTOTYPE) => {
                let connected = timeout(self.wait, UnixStream::connect(path)).await;
                connected.map_err(|_| Error::Busy)?.map(Peer::Stream).map_err(|error| reason(&error))
            }
            Err(error) => Err(reason(&error)),
        }
    }
}

impl Peer {
    async fn write(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Self::Datagram(socket) => socket.send(message).await.map(drop),
            Self::Stream(stream) => {
                let mut ended = Vec::with_capacity(message.len() + 1);
                ended.extend_from_slice(message);
                ended.push(0);
                stream.write_all(&ended).await
            }
        }
    }
}

fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw)
}

/// Whether the program at the other end has gone, and another may have taken its place.
fn is_gone(error: &io::Error) -> bool {
    matches!(errno(error), Some(Errno::ECONNREFUSED | Errno::ENOTCONN | Errno::ECONNRESET | Errno::EPIPE))
}

fn reason(error: &io::Error) -> Error {
    match errno(error) {
        Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ENOTSOCK | Errno::ENAMETOOLONG) => Error::Absent,
        // An ordinary file gives this, too.
        Some(
            Errno::ECONNREFUSED
            | Errno::ENOTCONN
            | Errno::ECONNRESET
            | Errno::EPIPE
            | Errno::EACCES
            | Errno::EPERM
            | Errno::EPROTOTYPE,
        ) => Error::Refused,
        Some(Errno::EMSGSIZE) => Error::TooLong,
        Some(Errno::EAGAIN | Errno::ENOBUFS) => Error::Busy,
        // A path that no socket's address can hold.
        None if error.kind() == io::ErrorKind::InvalidInput => Error::Absent,
        _ => Error::Io,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net as std_unix;

    use tokio::io::AsyncReadExt;
    use tokio::net::UnixListener;

    use super::*;
    use crate::config::Config;

    fn peers(root: &Path, granted: &[&str]) -> UnixPeers {
        let granted = granted.iter().map(|name| root.join(name)).collect();
        let text = format!("state_dir = {root:?}\nsocket = {:?}", root.join("own"));
        let config = Config::parse(&text, &root.join("returnerd.toml")).unwrap();
        let mut peers =
            UnixPeers::new(granted, &Egress::new("p", Vec::new(), false), &OwnPlaces::of(&config));
        peers.wait = Duration::from_millis(200);
        peers
    }

    async fn received(socket: &UnixDatagram) -> String {
        let mut bytes = vec![0; 1 << 16];
        let length = socket.recv(&mut bytes).await.unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[tokio::test]
    async fn messages_arrive_also_after_the_receiver_was_started_anew() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("log");
        let mut peers = peers(root.path(), &["log"]);
        assert_eq!(peers.send_to(&path, b"0").await, Err(Error::Absent));
        let log = UnixDatagram::bind(&path).unwrap();
        peers.send_to(&path, b"1").await.unwrap();
        assert_eq!(received(&log).await, "1");
        drop(log);
        assert_eq!(peers.send_to(&path, b"2").await, Err(Error::Refused));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(peers.send_to(&path, b"3").await, Err(Error::Absent));
        let log = UnixDatagram::bind(&path).unwrap();
        peers.send_to(&path, b"4").await.unwrap();
        drop(log);
        std::fs::remove_file(&path).unwrap();
        let log = UnixDatagram::bind(&path).unwrap();
        peers.send_to(&path, b"5").await.unwrap();
        assert_eq!(received(&log).await, "5");
    }

    #[tokio::test]
    async fn a_socket_of_streams_gets_each_message_with_a_nul() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("log");
        let mut peers = peers(root.path(), &["log"]);
        for round in 0..2 {
            let _ = std::fs::remove_file(&path);
            let listener = UnixListener::bind(&path).unwrap();
            peers.send_to(&path, b"one").await.unwrap();
            peers.send_to(&path, b"two").await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 8];
            stream.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"one\0two\0", "round {round}");
        }
    }

    #[tokio::test]
    async fn only_what_was_granted_is_reached_and_the_refusal_names_the_line() {
        let root = tempfile::tempdir().unwrap();
        let other = root.path().join("other");
        let log = UnixDatagram::bind(&other).unwrap();
        let mut peers = peers(root.path(), &["log"]);
        for path in [other.clone(), root.path().join("log/../other"), PathBuf::from("other")] {
            assert_eq!(peers.send_to(&path, b"x").await, Err(Error::NotGranted), "{path:?}");
        }
        assert_eq!(log.try_recv(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        peers.send_to(&other, b"x").await.unwrap_err();
        let (count, last) = peers.egress.refusals();
        let line = format!("`allow = [\"unix://{}\"]` in `[plugin.p]`", other.display());
        assert!(count == 4 && last.as_ref().is_some_and(|last| last.contains(&line)), "{last:?}");
    }

    #[tokio::test]
    async fn a_granted_path_that_leads_to_the_daemons_socket_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let own = std_unix::UnixDatagram::bind(root.path().join("own")).unwrap();
        std::os::unix::fs::symlink("own", root.path().join("log")).unwrap();
        let mut peers = peers(root.path(), &["log", "own"]);
        for name in ["log", "own"] {
            assert_eq!(peers.send_to(&root.path().join(name), b"x").await, Err(Error::NotGranted));
        }
        own.set_nonblocking(true).unwrap();
        assert!(own.recv(&mut [0; 8]).is_err());
        assert!(peers.egress.refusals().1.unwrap().contains("returnerd's own"));
    }

    #[tokio::test]
    async fn a_receiver_that_takes_nothing_costs_a_limited_time() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("log");
        let log = UnixDatagram::bind(&path).unwrap();
        let mut peers = peers(root.path(), &["log"]);
        let mut sent = 0;
        while peers.send_to(&path, b"x").await.is_ok() {
            sent += 1;
            assert!(sent < 100_000, "the queue has no end");
        }
        assert_eq!(peers.send_to(&path, b"x").await, Err(Error::Busy));
        for _ in 0..sent {
            received(&log).await;
        }
        peers.send_to(&path, b"again").await.unwrap();
        assert_eq!(received(&log).await, "again");
    }

    #[tokio::test]
    async fn sizes_and_sockets_are_limited() {
        let root = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..=MAX_UNIX_SOCKETS).map(|number| format!("log{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let _logs: Vec<_> =
            names.iter().map(|name| UnixDatagram::bind(root.path().join(name)).unwrap()).collect();
        let mut peers = peers(root.path(), &names);
        let too_long = vec![b'x'; MAX_UNIX_MESSAGE + 1];
        assert_eq!(peers.send_to(&root.path().join("log0"), &too_long).await, Err(Error::TooLong));
        let (last, first) = names.split_last().unwrap();
        for name in first {
            peers.send_to(&root.path().join(name), b"x").await.unwrap();
        }
        assert_eq!(peers.send_to(&root.path().join(last), b"x").await, Err(Error::Limit));
    }
}
