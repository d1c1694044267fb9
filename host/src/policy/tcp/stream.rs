//! The two streams of a connection.
//!
//! Invariants: bytes go out in the order in which they were written; while a write has not gone out whole, no other is taken; after an
//! error the stream says it once and is closed.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes, BytesMut};
use nix::sys::socket::{self, Shutdown};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use wasmtime_wasi::p2::{InputStream, OutputStream, Pollable, StreamError, StreamResult};

/// Bytes of one read or write. A batch of megabytes should not go out in very many pieces.
pub(super) const PIECE: usize = 256 << 10;

/// Something that goes on for a socket, and ends with it.
pub(super) struct Task<T>(JoinHandle<io::Result<T>>);

impl<T: Send + 'static> Task<T> {
    pub(super) fn spawn(work: impl Future<Output = io::Result<T>> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|ended| ended.unwrap_or_else(|error| Err(io::Error::other(error))))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What comes in.
pub(super) struct Reader {
    stream: Arc<TcpStream>,
    closed: bool,
}

impl Reader {
    pub(super) fn new(stream: Arc<TcpStream>) -> Self {
        Self { stream, closed: false }
    }
}

impl InputStream for Reader {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        if self.closed {
            return Err(StreamError::Closed);
        }
        if size == 0 {
            return Ok(Bytes::new());
        }
        let mut buffer = BytesMut::zeroed(size.min(PIECE));
        match self.stream.try_read(&mut buffer) {
            Ok(0) => {
                self.closed = true;
                Err(StreamError::Closed)
            }
            Ok(count) => {
                buffer.truncate(count);
                Ok(buffer.freeze())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Bytes::new()),
            Err(error) => {
                self.closed = true;
                Err(failed(error))
            }
        }
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Reader {
    async fn ready(&mut self) {
        if !self.closed {
            // An error is told by the next read.
            let _ = self.stream.readable().await;
        }
    }
}

/// What becomes of the last write.
#[derive(Default)]
enum Last {
    /// It has gone out.
    #[default]
    Sent,
    /// It goes out, and with `end` our side is closed after it.
    Going { task: Task<()>, end: bool },
    /// There will be no other; the error was not told yet.
    Ended(Option<io::Error>),
}

/// How far sending is; the socket and its stream share it.
#[derive(Default)]
pub(super) struct Sending(Mutex<Last>);

impl Sending {
    fn lock(&self) -> MutexGuard<'_, Last> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes our side, after what goes out.
    pub(super) fn end(&self, stream: &Arc<TcpStream>) -> io::Result<()> {
        let mut last = self.lock();
        match std::mem::take(&mut *last) {
            Last::Sent => {
                *last = Last::Ended(None);
                shutdown(stream, Shutdown::Write)
            }
            Last::Going { mut task, end: false } => {
                let stream = Arc::clone(stream);
                // The plugin may well look at this stream no more.
                let task = Task::spawn(async move {
                    poll_fn(|context| task.poll(context)).await?;
                    shutdown(&stream, Shutdown::Write)
                });
                *last = Last::Going { task, end: true };
                Ok(())
            }
            ended => {
                *last = ended;
                Ok(())
            }
        }
    }
}

/// What goes out.
pub(super) struct Writer {
    stream: Arc<TcpStream>,
    sending: Arc<Sending>,
    permit: usize,
}

impl Writer {
    pub(super) fn new(stream: Arc<TcpStream>, sending: Arc<Sending>) -> Self {
        Self { stream, sending, permit: 0 }
    }

    /// Ready when another write can be taken, or none ever will.
    fn poll_sent(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut last = self.sending.lock();
        if let Last::Going { task, end } = &mut *last {
            let end = *end;
            let Poll::Ready(result) = task.poll(context) else { return Poll::Pending };
            *last = match result {
                Ok(()) if !end => Last::Sent,
                Ok(()) => Last::Ended(None),
                Err(error) => Last::Ended(Some(error)),
            };
        }
        Poll::Ready(())
    }

    /// The error of a stream that takes nothing any more.
    fn open(&self) -> StreamResult<()> {
        match &mut *self.sending.lock() {
            Last::Ended(error) => Err(error.take().map_or(StreamError::Closed, failed)),
            _ => Ok(()),
        }
    }
}

impl OutputStream for Writer {
    fn check_write(&mut self) -> StreamResult<usize> {
        if self.poll_sent(&mut Context::from_waker(Waker::noop())).is_pending() {
            return Ok(0);
        }
        self.open()?;
        self.permit = PIECE;
        Ok(PIECE)
    }

    fn write(&mut self, mut bytes: Bytes) -> StreamResult<()> {
        if bytes.len() > self.permit {
            return Err(StreamError::trap("more bytes are written than were permitted"));
        }
        self.open()?;
        while !bytes.is_empty() {
            self.permit = 0;
            match self.stream.try_write(&bytes) {
                Ok(count) => bytes.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let task = Task::spawn(send(self.stream.clone(), bytes));
                    *self.sending.lock() = Last::Going { task, end: false };
                    return Ok(());
                }
                Err(error) => {
                    *self.sending.lock() = Last::Ended(None);
                    return Err(failed(error));
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        // Nothing is held back.
        self.open()
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Writer {
    async fn ready(&mut self) {
        poll_fn(|context| self.poll_sent(context)).await;
    }
}

async fn send(stream: Arc<TcpStream>, mut bytes: Bytes) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(&bytes) {
            Ok(count) => bytes.advance(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads nothing any more: the reader finds the end.
pub(super) fn end_reading(stream: &TcpStream) -> io::Result<()> {
    shutdown(stream, Shutdown::Read)
}

fn shutdown(stream: &TcpStream, what: Shutdown) -> io::Result<()> {
    match socket::shutdown(stream.as_raw_fd(), what) {
        // The other side has gone already.
        Ok(()) | Err(nix::errno::Errno::ENOTCONN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn failed(error: io::Error) -> StreamError {
    if error.kind() == io::ErrorKind::BrokenPipe {
        StreamError::Closed
    } else {
        StreamError::LastOperationFailed(error.into())
    }
}
