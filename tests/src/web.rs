//! A small HTTP server on loopback that tells what it saw, with TLS where a test wants it, and a proxy that makes tunnels.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::certificates::Identity;

/// A request as the server saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The method.
    pub method: String,
    /// The target: a path with its query, or a whole URI as a proxy gets it.
    pub target: String,
    /// Such as `HTTP/2.0`.
    pub version: String,
    /// The headers, their names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// The number of the connection, from 0.
    pub connection: usize,
}

impl Seen {
    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// What the server answers.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// The status; 0 stands for 200.
    pub status: u16,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// How long it takes.
    pub after: Duration,
}

impl Reply {
    /// Only a status.
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }
}

/// How a server does TLS.
#[derive(Debug, Clone)]
pub struct Tls {
    /// What it shows.
    pub identity: Identity,
    /// The authority of clients; without it none is asked for a certificate.
    pub clients: Option<String>,
    /// Whether it offers HTTP/2.
    pub http2: bool,
}

impl Tls {
    fn acceptor(&self) -> TlsAcceptor {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("the provider has the usual versions");
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                roots
                    .add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("it is PEM"))
                    .expect("a root");
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().expect("there is a root"))
            }
        };
        let cert = CertificateDer::from_pem_slice(self.identity.cert.as_bytes()).expect("it is PEM");
        let key = PrivateKeyDer::from_pem_slice(self.identity.key.as_bytes()).expect("it is PEM");
        let mut config = builder.with_single_cert(vec![cert], key).expect("the key fits");
        if self.http2 {
            config.alpn_protocols.push(b"h2".to_vec());
        }
        config.alpn_protocols.push(b"http/1.1".to_vec());
        TlsAcceptor::from(Arc::new(config))
    }
}

type Handler = dyn Fn(&Seen) -> Reply + Send + Sync;

struct Shared {
    seen: Mutex<Vec<Seen>>,
    connections: AtomicUsize,
    handler: Box<Handler>,
}

/// A server that runs until it is dropped.
pub struct WebServer {
    port: u16,
    shared: Arc<Shared>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl WebServer {
    /// Plain HTTP.
    pub fn start(handler: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::run(None, Box::new(handler))
    }

    /// HTTPS.
    pub fn start_tls(tls: &Tls, handler: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::run(Some(tls.acceptor()), Box::new(handler))
    }

    fn run(tls: Option<TlsAcceptor>, handler: Box<Handler>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port of loopback is free");
        listener.set_nonblocking(true).expect("it is a socket");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared { seen: Mutex::default(), connections: AtomicUsize::new(0), handler });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a thread can be made");
        let inner = shared.clone();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("it is a listener");
            while let Ok((stream, _)) = listener.accept().await {
                let (shared, tls) = (inner.clone(), tls.clone());
                tokio::spawn(async move {
                    let number = shared.connections.fetch_add(1, Ordering::Relaxed);
                    match tls {
                        None => serve(stream, shared, number).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, shared, number).await;
                            }
                        }
                    }
                });
            }
        });
        Self { port, shared, runtime: Some(runtime) }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many connections there were.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve<S>(stream: S, shared: Arc<Shared>, number: usize)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(answer(&shared, number, request).await) }
    });
    // A client that goes away ends its connection, no more.
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(shared: &Shared, connection: usize, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
    let text = |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let seen = Seen {
        method: head.method.to_string(),
        target: head.uri.to_string(),
        version: format!("{:?}", head.version),
        headers: head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        body,
        connection,
    };
    let reply = (shared.handler)(&seen);
    shared.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    tokio::time::sleep(reply.after).await;
    let mut response = Response::builder().status(if reply.status == 0 { 200 } else { reply.status });
    for (name, value) in &reply.headers {
        response = response.header(name, value);
    }
    response.body(Full::from(reply.body)).expect("the test's reply is a response")
}

/// A proxy that makes tunnels to one port of loopback, whatever it is asked for.
#[derive(Debug)]
pub struct TunnelProxy {
    port: u16,
    heads: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
}

impl TunnelProxy {
    /// Listens on a free port.
    pub fn start(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port of loopback is free");
        let port = listener.local_addr().expect("it is bound").port();
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (inner, stopped) = (heads.clone(), stop.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let heads = inner.clone();
                thread::spawn(move || tunnel(stream?, target, &heads));
            }
        });
        Self { port, heads, stop }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What it was asked, each with all its headers.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for TunnelProxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn tunnel(mut client: TcpStream, target: u16, heads: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    heads.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    let mut server = TcpStream::connect(("127.0.0.1", target))?;
    client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n")?;
    let (mut from_server, mut to_client) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || {
        let _ = std::io::copy(&mut from_server, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Both);
    });
    std::io::copy(&mut client, &mut server)?;
    server.shutdown(Shutdown::Both)
}
