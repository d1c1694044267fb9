//! A TCP proxy on loopback whose connections can be cut at any moment, as a firewall or a failing switch would.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Passes connections on to a port of loopback. Dropping it ends all of them.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: u16,
    /// Both ends of each connection that lives.
    streams: Mutex<Vec<TcpStream>>,
    accepted: AtomicU64,
    stop: AtomicBool,
}

impl Proxy {
    /// Listens on a free port and passes on to `target`.
    pub fn start(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port of loopback is free");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared {
            target,
            streams: Mutex::default(),
            accepted: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let inner = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if inner.stop.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(stream) = stream {
                    // A target that is away closes the connection, as it would without us.
                    let _ = pass_on(&inner, &stream);
                }
            }
        });
        Self { port, shared }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections were made through it.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Cuts all connections there are.
    pub fn cut(&self) {
        for stream in self.shared.streams.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.cut();
    }
}

fn pass_on(shared: &Arc<Shared>, client: &TcpStream) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", shared.target))?;
    shared.accepted.fetch_add(1, Ordering::Relaxed);
    let mut streams = shared.streams.lock().unwrap_or_else(PoisonError::into_inner);
    streams.push(client.try_clone()?);
    streams.push(server.try_clone()?);
    drop(streams);
    for (mut from, mut to) in [(client.try_clone()?, server.try_clone()?), (server, client.try_clone()?)] {
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}
