//! Makes the connections of one sink's client.
//!
//! Invariants: a direct connection goes only to an address that the host looked up itself just before and that the rules let the
//! target's name lead to; through a proxy, which the operator named, the proxy looks the name up.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::fault::ConnectError;
use super::rules::{Origin, Rules, address_text};
use super::settings::{Proxy, Via};
use crate::plugin::limits::MAX_HTTP_CONNECT;
use crate::plugin::manifest::Host;
use crate::policy::egress::Egress;

/// Looks a name up.
pub type Resolve = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// The system's look-up.
pub fn system_resolver() -> Resolve {
    Arc::new(|name| {
        Box::pin(async move {
            Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
        })
    })
}

/// See the module.
#[derive(Clone)]
pub struct Connector {
    pub(super) rules: Arc<Rules>,
    pub(super) tls: Arc<rustls::ClientConfig>,
    pub(super) proxy: Proxy,
    pub(super) resolve: Resolve,
    /// Where refusals are told: the check of the sink's newest instance.
    pub(super) egress: Arc<ArcSwap<Egress>>,
    pub(super) plugin: Arc<str>,
}

impl Connector {
    async fn connect(&self, uri: &Uri) -> Result<Conn, ConnectError> {
        let target = Origin::of(uri).ok_or(ConnectError::Target)?;
        let via = self.proxy.of(uri);
        let proxied = via.is_some();
        let tcp = match via {
            None => dial(&self.addresses(&target).await?, target.port).await?,
            Some(via) => self.through(via, uri, target.tls).await?,
        };
        if !target.tls {
            return Ok(Conn::new(tcp, false, proxied));
        }
        let name = match &target.host {
            Host::Address(ip) => ServerName::from(*ip),
            Host::Name(name) => ServerName::try_from(name.clone()).map_err(|_| ConnectError::Target)?,
        };
        let stream =
            TlsConnector::from(self.tls.clone()).connect(name, tcp).await.map_err(ConnectError::Tls)?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(Conn::new(stream, http2, false))
    }

    /// The addresses of a target that it may be reached at.
    async fn addresses(&self, target: &Origin) -> Result<Vec<IpAddr>, ConnectError> {
        let found = match &target.host {
            Host::Address(ip) => return Ok(vec![*ip]),
            Host::Name(name) => (self.resolve)(name.clone()).await.map_err(ConnectError::Name)?,
        };
        let (good, bad): (Vec<IpAddr>, Vec<IpAddr>) =
            found.iter().map(|ip| ip.to_canonical()).partition(|ip| self.rules.reaches(target, *ip));
        match (good.is_empty(), bad.first()) {
            (false, _) => Ok(good),
            (true, None) => Err(ConnectError::Name(io::Error::from(io::ErrorKind::NotFound))),
            (true, Some(address)) => {
                let egress = self.egress.load();
                if egress.refuse(&address_text(target, *address, &self.plugin), egress.observes()) {
                    return Ok(bad);
                }
                Err(ConnectError::Refused { target: target.clone(), address: *address })
            }
        }
    }

    async fn through(&self, via: Via, uri: &Uri, tls: bool) -> Result<TcpStream, ConnectError> {
        if via.uri.scheme_str() != Some("http") {
            return Err(ConnectError::ProxyKind);
        }
        let dial = Dial { resolve: self.resolve.clone() };
        if !tls {
            return dial.dial(&via.uri).await.map_err(|error| ConnectError::Proxy(error.into()));
        }
        let mut tunnel = Tunnel::new(via.uri, dial);
        if let Some(auth) = via.auth {
            tunnel = tunnel.with_auth(auth);
        }
        let stream = tunnel.call(uri.clone()).await.map_err(|error| ConnectError::Proxy(error.into()))?;
        Ok(stream.into_inner())
    }
}

impl Service<Uri> for Connector {
    type Response = Conn;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<Conn, ConnectError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            tokio::time::timeout(MAX_HTTP_CONNECT, this.connect(&uri))
                .await
                .unwrap_or(Err(ConnectError::Timeout))
        })
    }
}

/// Tries the addresses in turn, each with its share of the time.
async fn dial(addresses: &[IpAddr], port: u16) -> Result<TcpStream, ConnectError> {
    let share = MAX_HTTP_CONNECT / u32::try_from(addresses.len()).unwrap_or(u32::MAX).clamp(1, 6);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for ip in addresses {
        match tokio::time::timeout(share, TcpStream::connect(SocketAddr::new(*ip, port))).await {
            Ok(Ok(stream)) => {
                // Requests are written whole; waiting for more would only delay their ends.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = io::Error::from(io::ErrorKind::TimedOut),
        }
    }
    Err(ConnectError::Tcp(last))
}

/// Connects to a proxy, wherever that is.
#[derive(Clone)]
struct Dial {
    resolve: Resolve,
}

impl Dial {
    async fn dial(&self, uri: &Uri) -> Result<TcpStream, ConnectError> {
        let proxy = Origin::of(uri).ok_or(ConnectError::Target)?;
        let addresses = match &proxy.host {
            Host::Address(ip) => vec![*ip],
            Host::Name(name) => (self.resolve)(name.clone()).await.map_err(ConnectError::Name)?,
        };
        dial(&addresses, proxy.port).await
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<TokioIo<TcpStream>, ConnectError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { this.dial(&uri).await.map(TokioIo::new) })
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// One connection, with TLS or without.
pub struct Conn {
    io: TokioIo<Box<dyn Stream>>,
    http2: bool,
    /// Whether requests go to a proxy that reads them.
    proxied: bool,
}

impl Conn {
    fn new(stream: impl Stream + 'static, http2: bool, proxied: bool) -> Self {
        Self { io: TokioIo::new(Box::new(stream)), http2, proxied }
    }
}

impl Connection for Conn {
    fn connected(&self) -> Connected {
        let connected = Connected::new().proxy(self.proxied);
        if self.http2 { connected.negotiated_h2() } else { connected }
    }
}

impl Read for Conn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl Write for Conn {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }
}
