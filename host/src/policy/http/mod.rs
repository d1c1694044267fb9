//! HTTP for plugins: WASI HTTP's outgoing requests through a pooled client of the sink, under the sink's grants.
//!
//! Invariants: the sandbox's socket check is not asked here, so every request passes [`rules::Rules::check`] and every connection
//! [`rules::Rules::reaches`]; a refused request ends with the code `HTTP-request-denied` and is told to the sink's [`Egress`], which
//! logs it and shows it in `status`.

mod body;
pub mod client;
pub mod connect;
mod fault;
pub mod rules;
pub mod settings;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use http::header::HOST;
use http::{Request, Response};
use tokio::sync::Semaphore;
use wasmtime::component::{Linker, ResourceTable};
use wasmtime_wasi_http::{
    DEFAULT_FORBIDDEN_HEADERS, Error, ForbiddenHeaderFilter, RequestOptions, WasiBody, WasiHttpCtx,
    WasiHttpCtxView, WasiHttpHooks, WasiHttpView,
};

use self::client::Client;
use self::rules::{Origin, Refusal, refusal_text};
use super::egress::Egress;
use crate::plugin::limits::{MAX_HTTP_HEADERS, MAX_HTTP_REQUESTS};

/// What one instance has of HTTP.
pub struct Http {
    context: WasiHttpCtx,
    hooks: Hooks,
}

impl Http {
    /// HTTP for an instance of the sink that owns the client.
    pub fn new(client: &Arc<Client>, egress: &Egress) -> Self {
        let mut context = WasiHttpCtx::new();
        // The limit counts what the headers take in memory.
        context.set_field_size_limit(2 * MAX_HTTP_HEADERS);
        let slots = Arc::new(Semaphore::new(MAX_HTTP_REQUESTS));
        Self { context, hooks: Hooks { client: client.clone(), egress: egress.clone(), slots } }
    }

    /// The view that WASI HTTP works on.
    pub fn view<'a>(&'a mut self, table: &'a mut ResourceTable) -> WasiHttpCtxView<'a> {
        WasiHttpCtxView { hooks: &mut self.hooks, table, ctx: &mut self.context }
    }
}

/// Gives a linker WASI HTTP's interfaces.
pub fn add_to_linker<T: WasiHttpView + 'static>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(linker)
}

struct Hooks {
    client: Arc<Client>,
    egress: Egress,
    slots: Arc<Semaphore>,
}

impl Hooks {
    /// The target of a request that may be sent.
    fn target(&self, request: &Request<WasiBody>) -> Result<Origin, Error> {
        let refusal = match self.client.rules().check(request.method(), request.uri(), request.headers()) {
            Ok(target) => return Ok(target),
            Err(refusal) => refusal,
        };
        let text = refusal_text(&refusal, self.client.plugin());
        match refusal {
            Refusal::NotGranted(target) if self.egress.refuse(&text, self.egress.observes()) => Ok(target),
            Refusal::NotGranted(_) => Err(Error::HttpRequestDenied),
            // No grant would change these.
            Refusal::Uri | Refusal::HostHeader(_) | Refusal::Method => {
                self.egress.refuse(&text, false);
                Err(Error::HttpRequestDenied)
            }
        }
    }
}

type Done = Box<dyn Future<Output = Result<(), Error>> + Send>;
type Sending = Box<dyn Future<Output = Result<(Response<WasiBody>, Done), Error>> + Send>;

impl WasiHttpHooks for Hooks {
    /// `Host` passes as far as [`Hooks::target`], so that a trick with it is seen.
    fn forbidden_header_filter(&mut self) -> ForbiddenHeaderFilter {
        Arc::new(|name| *name != HOST && DEFAULT_FORBIDDEN_HEADERS.contains(name))
    }

    fn set_host_header(&mut self) -> bool {
        false
    }

    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Done,
    ) -> Sending {
        let target = self.target(&request);
        let slot = self.slots.clone().try_acquire_owned();
        let client = self.client.clone();
        Box::new(async move {
            let target = target?;
            let slot = slot.map_err(|_| Error::ConnectionLimitReached)?;
            let response = client.send(request, &target, options, slot).await?;
            Ok((response, Box::new(std::future::ready(Ok(()))) as Done))
        })
    }
}
