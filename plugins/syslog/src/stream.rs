//! A connection to a server by TCP or TLS.
//!
//! Invariant: a batch counts as sent only if the server had not closed the connection before it nor, as far as can be seen,
//! right after. More the protocol does not offer: nothing is ever acknowledged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use returner_sdk::prelude::*;
use returner_sdk::tls::{self, rustls::ClientConfig};
use returner_sdk::tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use returner_sdk::tokio::net::TcpStream;
use returner_sdk::tokio::time::timeout;

use crate::options::{Framing, Server};

const CONNECT: Duration = Duration::from_secs(10);
const WRITE: Duration = Duration::from_secs(30);
/// Long enough to see what has come in already.
const LOOK: Duration = Duration::from_millis(1);

trait Both: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Both for T {}

/// The connection of an instance, opened anew where it was lost.
pub(crate) struct Connection {
    server: Server,
    framing: Framing,
    tls: Option<Arc<ClientConfig>>,
    open: Option<Open>,
}

struct Open {
    stream: Box<dyn Both>,
    /// How long a refusal may take to come back from this server; zero once a batch has passed.
    patience: Duration,
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(
        server: Server,
        framing: Framing,
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Self> {
        let mut connection = Self { server, framing, tls, open: None };
        connection.open = Some(connection.connect().await?);
        Ok(connection)
    }

    /// Sends messages in one write. Where the connection turns out to be lost they are all sent again over a new one.
    pub(crate) async fn send(&mut self, messages: &[String]) -> Result<()> {
        let bytes = framed(messages, self.framing);
        let mut why = String::new();
        for _ in 0..2 {
            let mut open = match self.open.take() {
                Some(mut open) => match open.is_closed(LOOK).await {
                    false => open,
                    true => self.connect().await?,
                },
                None => self.connect().await?,
            };
            match timeout(WRITE, open.write(&bytes)).await {
                Ok(Ok(())) if !open.is_closed(open.patience.max(LOOK)).await => {
                    open.patience = Duration::ZERO;
                    self.open = Some(open);
                    return Ok(());
                }
                Ok(Ok(())) => why = "closed the connection".into(),
                Ok(Err(error)) => why = format!("broke the connection: {error}"),
                Err(_) => return Err(Error::retry(format!("{} took nothing for {WRITE:?}", self.server))),
            }
        }
        Err(Error::retry(format!("{} {why}", self.server)))
    }

    async fn connect(&self) -> Result<Open> {
        let Self { server, tls, .. } = self;
        let began = Instant::now();
        let hint = if tls.is_some() { "; hint: does it speak TLS on this port?" } else { "" };
        let stream = timeout(CONNECT, self.dial())
            .await
            .map_err(|_| Error::retry(format!("{server} did not answer within {CONNECT:?}{hint}")))??;
        // A few round trips.
        let patience = (began.elapsed() * 3).clamp(Duration::from_millis(20), Duration::from_secs(2));
        let mut open = Open { stream, patience };
        // A server that does not take our certificate says so only after the handshake has ended for us.
        if tls.is_some() && open.is_closed(patience).await {
            return Err(Error::retry(format!(
                "{server} ended the TLS connection at once; hint: it may want `ssl_cert` and `ssl_key`, or others"
            )));
        }
        Ok(open)
    }

    async fn dial(&self) -> Result<Box<dyn Both>> {
        let Self { server, tls, .. } = self;
        let addresses = returner_sdk::resolve(&server.host, server.port).map_err(|error| {
            Error::retry(format!("cannot find the server `{}` (option `server`): {error}", server.host))
        })?;
        let stream = TcpStream::connect(&addresses[..])
            .await
            .map_err(|error| Error::retry(format!("cannot connect to {server}: {error}")))?;
        let Some(config) = tls else { return Ok(Box::new(stream)) };
        match tls::connect(config.clone(), &server.host, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(error.context(&format!("{server}, checked by `ssl_ca`"))),
        }
    }

    /// Says goodbye.
    pub(crate) async fn close(self) {
        if let Some(mut open) = self.open {
            let _ = timeout(Duration::from_secs(1), open.stream.shutdown()).await;
        }
    }
}

impl Open {
    async fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Whether the other end has closed the connection, or does so within this time. What it says is of no interest.
    async fn is_closed(&mut self, within: Duration) -> bool {
        let mut bytes = [0; 512];
        let closed = async { while matches!(self.stream.read(&mut bytes).await, Ok(1..)) {} };
        timeout(within, closed).await.is_ok()
    }
}

fn framed(messages: &[String], framing: Framing) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(messages.iter().map(|message| message.len() + 8).sum());
    for message in messages {
        if framing == Framing::OctetCounting {
            bytes.extend_from_slice(format!("{} ", message.len()).as_bytes());
        }
        bytes.extend_from_slice(message.as_bytes());
        if framing == Framing::Newline {
            bytes.push(b'\n');
        }
    }
    bytes
}
