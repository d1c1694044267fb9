//! The driver's TLS, made of the SDK's.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use returner_sdk::tls::{self, rustls::ClientConfig};
use returner_sdk::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use returner_sdk::tokio::net::TcpStream;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// Begins TLS with one server.
pub(crate) struct Connector {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) host: String,
}

impl TlsConnect<TcpStream> for Connector {
    type Stream = Stream;
    type Error = returner_sdk::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, returner_sdk::Error>> + Send>>;

    fn connect(self, stream: TcpStream) -> Self::Future {
        Box::pin(async move { Ok(Stream(tls::connect(self.config, &self.host, stream).await?)) })
    }
}

/// An encrypted connection.
pub(crate) struct Stream(tls::TlsStream<TcpStream>);

impl TlsStream for Stream {
    // Without it SCRAM still proves that the server knows the password's hash.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
