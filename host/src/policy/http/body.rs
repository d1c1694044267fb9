//! Bodies on their way: counted, and, for a response, under a clock.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};
use wasmtime_wasi_http::{Error, WasiBody};

use super::fault::to_wasi;

/// A request's body of at most so many bytes.
pub struct Sent {
    body: WasiBody,
    limit: u64,
    left: u64,
}

impl Sent {
    /// Counts from nothing.
    pub fn new(body: WasiBody, limit: u64) -> Self {
        Self { body, limit, left: limit }
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let size = frame.data_ref().map_or(0, |data| data.len() as u64);
            let Some(left) = self.left.checked_sub(size) else {
                return Poll::Ready(Some(Err(Error::HttpRequestBodySize(Some(self.limit)))));
            };
            self.left = left;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response's body of at most so many bytes, with at most so long between two parts of it.
pub struct Received<B> {
    body: B,
    limit: u64,
    left: u64,
    between: Duration,
    clock: Pin<Box<Sleep>>,
    /// The request counts until its response is read.
    _slot: OwnedSemaphorePermit,
}

impl<B> Received<B> {
    /// Counts from nothing, from now.
    pub fn new(body: B, limit: u64, between: Duration, slot: OwnedSemaphorePermit) -> Self {
        let clock = Box::pin(tokio::time::sleep(between));
        Self { body, limit, left: limit, between, clock, _slot: slot }
    }
}

impl<B> Body for Received<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + 'static,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let size = frame.data_ref().map_or(0, |data| data.len() as u64);
                let Some(left) = self.left.checked_sub(size) else {
                    return Poll::Ready(Some(Err(Error::HttpResponseBodySize(Some(self.limit)))));
                };
                self.left = left;
                let next = Instant::now() + self.between;
                self.clock.as_mut().reset(next);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(to_wasi(&error)))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                std::task::ready!(self.clock.as_mut().poll(context));
                Poll::Ready(Some(Err(Error::ConnectionReadTimeout)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::{BodyExt, Full, StreamBody};
    use tokio::sync::Semaphore;

    use super::*;

    fn slot() -> OwnedSemaphorePermit {
        Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap()
    }

    #[tokio::test]
    async fn a_body_past_its_limit_is_an_error() {
        let full = || Full::new(Bytes::from_static(b"12345"));
        let received = |limit| Received::new(full(), limit, Duration::from_secs(9), slot());
        assert_eq!(received(5).collect().await.unwrap().to_bytes(), "12345");
        assert!(matches!(received(4).collect().await, Err(Error::HttpResponseBodySize(Some(4)))));
        let sent = |limit| Sent::new(full().map_err(|never| match never {}).boxed_unsync(), limit);
        assert_eq!(sent(5).collect().await.unwrap().to_bytes(), "12345");
        assert!(matches!(sent(4).collect().await, Err(Error::HttpRequestBodySize(Some(4)))));
    }

    #[tokio::test]
    async fn a_body_that_stops_runs_into_the_clock() {
        let never = StreamBody::new(futures_util::stream::pending::<Result<Frame<Bytes>, std::io::Error>>());
        let received = Received::new(never, 5, Duration::from_millis(1), slot());
        assert!(matches!(received.collect().await, Err(Error::ConnectionReadTimeout)));
    }
}
