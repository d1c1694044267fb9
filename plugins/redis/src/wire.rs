//! One connection: commands go out together, their replies come back in order.
//!
//! Invariant: after an exchange that failed or was dropped half-way the connection must not be used again, since its
//! replies would be taken for those of other commands.

use std::io;
use std::pin::Pin;
use std::task::Poll;

use redis_protocol::resp2::decode::decode;
pub(crate) use redis_protocol::resp2::types::OwnedFrame as Reply;
use returner_sdk::tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

const CHUNK: usize = 256 << 10;

/// A stream of bytes both ways: TCP, with or without TLS.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// Commands to send together.
#[derive(Default)]
pub(crate) struct Pipeline {
    bytes: Vec<u8>,
    count: usize,
}

impl Pipeline {
    /// One command.
    pub(crate) fn one(words: &[&str]) -> Self {
        let mut pipeline = Self::default();
        pipeline.add(words);
        pipeline
    }

    /// Adds a command.
    pub(crate) fn add(&mut self, words: &[&str]) {
        let size = words.iter().map(|word| word.len() + 24).sum();
        self.bytes.reserve(size);
        self.line(b'*', words.len());
        for word in words {
            self.line(b'$', word.len());
            self.bytes.extend_from_slice(word.as_bytes());
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.count += 1;
    }

    /// How many commands there are.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    fn line(&mut self, kind: u8, number: usize) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(number.to_string().as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }
}

/// An open connection.
pub(crate) struct Wire {
    stream: Box<dyn Stream>,
    unread: Vec<u8>,
}

impl Wire {
    pub(crate) fn new(stream: impl Stream + 'static) -> Self {
        Self { stream: Box::new(stream), unread: Vec::new() }
    }

    /// Sends commands and reads a reply for each.
    pub(crate) async fn exchange(&mut self, pipeline: &Pipeline) -> io::Result<Vec<Reply>> {
        self.stream.write_all(&pipeline.bytes).await?;
        self.stream.flush().await?;
        let mut replies = Vec::with_capacity(pipeline.count);
        let mut start = 0;
        while replies.len() < pipeline.count {
            let found = decode(&self.unread[start..])
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            match found {
                Some((reply, length)) => {
                    replies.push(reply);
                    start += length;
                }
                None => {
                    self.unread.drain(..start);
                    start = 0;
                    self.read().await?;
                }
            }
        }
        self.unread.drain(..start);
        // The room of one large answer is not kept.
        self.unread.shrink_to(CHUNK);
        Ok(replies)
    }

    /// Waits for bytes, then takes all that are there, so that a long reply is not looked through for each part of it.
    async fn read(&mut self) -> io::Result<()> {
        self.unread.reserve(CHUNK);
        if self.stream.read_buf(&mut self.unread).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        let mut chunk = vec![0; 64 << 10];
        loop {
            let mut part = ReadBuf::new(&mut chunk);
            let stream = &mut self.stream;
            let ready = std::future::poll_fn(|context| {
                Poll::Ready(match Pin::new(&mut *stream).poll_read(context, &mut part) {
                    Poll::Ready(result) => Some(result),
                    Poll::Pending => None,
                })
            })
            .await;
            match ready {
                // An end shows again at the next read, if that is needed at all.
                None => return Ok(()),
                Some(result) => result?,
            }
            if part.filled().is_empty() {
                return Ok(());
            }
            self.unread.extend_from_slice(part.filled());
        }
    }
}

/// A reply as text; none for nil and for what is no text.
pub(crate) fn text(reply: Reply) -> Option<String> {
    match reply {
        Reply::BulkString(bytes) | Reply::SimpleString(bytes) => Some(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }),
        Reply::Integer(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A reply as a list; anything else is an empty one.
pub(crate) fn list(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::Array(items) => items,
        _ => Vec::new(),
    }
}

/// A reply as a list of texts.
pub(crate) fn texts(reply: Reply) -> Vec<String> {
    list(reply).into_iter().filter_map(text).collect()
}

/// A reply as a number; anything else is 0.
pub(crate) fn number(reply: &Reply) -> u64 {
    match reply {
        Reply::Integer(number) => u64::try_from(*number).unwrap_or_default(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use returner_sdk::tokio;

    use super::*;

    #[test]
    fn commands_are_written_and_replies_in_parts_are_read() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (near, mut far) = tokio::io::duplex(1 << 16);
            let mut wire = Wire::new(near);
            let mut pipeline = Pipeline::one(&["GET", "ä\r\n"]);
            pipeline.add(&["PING"]);
            assert_eq!(pipeline.len(), 2);
            let server = async {
                let wanted = "*2\r\n$3\r\nGET\r\n$4\r\nä\r\n\r\n*1\r\n$4\r\nPING\r\n".as_bytes();
                let mut asked = vec![0; wanted.len()];
                far.read_exact(&mut asked).await.unwrap();
                assert_eq!(asked, wanted);
                for part in ["*2\r\n$3\r\na", "\r\n\r\n:7\r", "\n-ERR no\r\n"] {
                    far.write_all(part.as_bytes()).await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let (replies, ()) = tokio::join!(wire.exchange(&pipeline), server);
            let inner = vec![Reply::BulkString(b"a\r\n".to_vec()), Reply::Integer(7)];
            assert_eq!(replies.unwrap(), [Reply::Array(inner), Reply::Error("ERR no".into())]);
            drop(far);
            assert!(wire.exchange(&Pipeline::one(&["PING"])).await.is_err());
        });
    }
}
