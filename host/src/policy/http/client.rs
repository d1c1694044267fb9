//! The HTTP client of one sink: its pool of connections and the time limits of a request.
//!
//! Invariants: connections are shared by nobody but the instances of one sink; a request is sent only after its target was
//! checked; no redirect is followed, so that the plugin's next request is checked as well.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::{HOST, PROXY_AUTHORIZATION};
use http::{HeaderMap, Request, Response};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Pooled;
use hyper_util::client::legacy::connect::capture_connection;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::OwnedSemaphorePermit;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody};

use super::body::{Received, Sent};
use super::connect::{Connector, Resolve};
use super::fault::to_wasi;
use super::rules::{Origin, Rules};
use super::settings::{Proxy, Settings, SettingsError};
use crate::observe::{Throttle, chain};
use crate::plugin::limits::{
    HTTP_CONNECT, HTTP_IDLE, HTTP_WAIT, MAX_HTTP_CONNECT, MAX_HTTP_HEADERS, MAX_HTTP_REQUESTS, MAX_HTTP_WAIT,
};
use crate::policy::egress::Egress;

/// How often a connection of HTTP/2 with open requests is asked whether it is alive, and how long for.
const PING: Duration = Duration::from_secs(15);

/// See the module.
pub struct Client {
    rules: Arc<Rules>,
    settings: Settings,
    proxy: Proxy,
    pool: Pooled<Connector, Sent>,
    egress: Arc<ArcSwap<Egress>>,
    throttle: Throttle,
}

impl Client {
    /// A client without connections.
    pub fn new(
        settings: Settings,
        rules: Rules,
        egress: &Egress,
        resolve: Resolve,
    ) -> Result<Self, SettingsError> {
        let rules = Arc::new(rules);
        let egress = Arc::new(ArcSwap::from_pointee(egress.clone()));
        let proxy = settings.proxy()?;
        let connector = Connector {
            rules: rules.clone(),
            tls: settings.tls()?,
            proxy: proxy.clone(),
            resolve,
            egress: egress.clone(),
            plugin: settings.plugin().into(),
        };
        let pool = Pooled::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(HTTP_IDLE)
            .pool_max_idle_per_host(MAX_HTTP_REQUESTS)
            .http1_max_buf_size(2 * MAX_HTTP_HEADERS)
            .http2_max_header_list_size(u32::try_from(MAX_HTTP_HEADERS).unwrap_or(u32::MAX))
            .http2_adaptive_window(true)
            .http2_keep_alive_interval(PING)
            .http2_keep_alive_timeout(PING)
            .build(connector);
        Ok(Self { rules, settings, proxy, pool, egress, throttle: Throttle::default() })
    }

    /// Whether it was made of these.
    pub fn is_of(&self, settings: &Settings, rules: &Rules) -> bool {
        self.settings == *settings && *self.rules == *rules
    }

    /// Tells refusals to this check from now on.
    pub fn report_to(&self, egress: &Egress) {
        self.egress.store(Arc::new(egress.clone()));
    }

    /// What may be requested.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The name of the plugin.
    pub fn plugin(&self) -> &str {
        self.settings.plugin()
    }

    /// Sends a request whose target was checked.
    pub async fn send(
        &self,
        mut request: Request<WasiBody>,
        target: &Origin,
        options: Option<RequestOptions>,
        slot: OwnedSemaphorePermit,
    ) -> Result<Response<WasiBody>, Error> {
        let (max_request, max_response) = self.settings.sizes();
        if header_size(request.headers()) > MAX_HTTP_HEADERS {
            return Err(Error::HttpRequestHeaderSectionSize(u32::try_from(MAX_HTTP_HEADERS).ok()));
        }
        if request.body().size_hint().lower() > max_request {
            return Err(Error::HttpRequestBodySize(Some(max_request)));
        }
        // The client makes the header from the URI, where the version of HTTP has one.
        request.headers_mut().remove(HOST);
        if !target.tls
            && let Some(auth) = self.proxy.of(request.uri()).and_then(|via| via.auth)
        {
            request.headers_mut().insert(PROXY_AUTHORIZATION, auth);
        }
        let limits = Times::of(options);
        let request = request.map(|body| Sent::new(body, max_request));
        let response = match self.wait(request, &limits).await {
            Ok(response) => response,
            Err(Failed::Time(error)) => {
                self.log(target, &error.to_string());
                return Err(error);
            }
            Err(Failed::Client(error)) => {
                let code = to_wasi(&error);
                // A refusal was told already.
                if !matches!(code, Error::HttpRequestDenied) {
                    self.log(target, &chain(&error));
                }
                return Err(code);
            }
        };
        if header_size(response.headers()) > MAX_HTTP_HEADERS {
            return Err(Error::HttpResponseHeaderSectionSize(u32::try_from(MAX_HTTP_HEADERS).ok()));
        }
        if response.body().size_hint().lower() > max_response {
            self.log(target, "the response is larger than `max_response`");
            return Err(Error::HttpResponseBodySize(Some(response.body().size_hint().lower())));
        }
        Ok(response.map(|body| Received::new(body, max_response, limits.between, slot).boxed_unsync()))
    }

    async fn wait(&self, mut request: Request<Sent>, times: &Times) -> Result<Response<Incoming>, Failed> {
        let mut connection = capture_connection(&mut request);
        let mut response = std::pin::pin!(self.pool.request(request));
        let connected = async {
            connection.wait_for_connection_metadata().await;
        };
        tokio::select! {
            biased;
            result = &mut response => return result.map_err(Failed::Client),
            () = connected => {}
            () = tokio::time::sleep(times.connect) => return Err(Failed::Time(Error::ConnectionTimeout)),
        }
        match tokio::time::timeout(times.first_byte, response).await {
            Ok(result) => result.map_err(Failed::Client),
            Err(_) => Err(Failed::Time(Error::HttpResponseTimeout)),
        }
    }

    fn log(&self, target: &Origin, why: &str) {
        if let Some(held) = self.throttle.pass(&format!("{target} {why}")) {
            let plugin = self.plugin();
            tracing::warn!(plugin, held_back = held, "a request to `{target}` failed: {why}");
        }
    }
}

enum Failed {
    Time(Error),
    Client(hyper_util::client::legacy::Error),
}

/// The time limits of one request: the plugin's, up to our own.
struct Times {
    connect: Duration,
    first_byte: Duration,
    between: Duration,
}

impl Times {
    fn of(options: Option<RequestOptions>) -> Self {
        let options = options.unwrap_or_default();
        Self {
            connect: options.connect_timeout.unwrap_or(HTTP_CONNECT).min(MAX_HTTP_CONNECT),
            first_byte: options.first_byte_timeout.unwrap_or(HTTP_WAIT).min(MAX_HTTP_WAIT),
            between: options.between_bytes_timeout.unwrap_or(HTTP_WAIT).min(MAX_HTTP_WAIT),
        }
    }
}

/// Bytes of all headers as HTTP/1 writes them.
fn header_size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}
