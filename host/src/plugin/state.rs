//! What belongs to one instance on the host's side: its WASI context, its table, its limits and its policy.
//!
//! Invariant: the environment, the arguments and stdin are empty; the network and directories are those of the policy.

use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtxView, WasiHttpView};

use super::instance::Opening;
use super::limits::{Limiter, MAX_RANDOM, MAX_RESOURCES};
use super::stdio::GuestLog;
use crate::policy::directories::{self, DirectoryError};
use crate::policy::egress::Egress;
use crate::policy::file_locks::LockDirs;
use crate::policy::http::Http;
use crate::policy::unix_datagrams::UnixPeers;

/// The state of one store.
pub struct State {
    pub(crate) wasi: WasiCtx,
    pub(crate) table: ResourceTable,
    pub(crate) limiter: Limiter,
    pub(crate) egress: Egress,
    pub(crate) http: Http,
    pub(crate) locks: LockDirs,
    pub(crate) unix: UnixPeers,
    /// Sockets it may have at once.
    pub(crate) sockets: usize,
    /// Ticks left on the processor in this call.
    pub(crate) cpu_ticks: u64,
}

impl State {
    /// The state for a new instance of a sink.
    pub(crate) fn new(opening: &Opening<'_>) -> Result<Self, DirectoryError> {
        let Opening { sink, limits, policy, egress, http, own, log, secrets, .. } = opening;
        let log = GuestLog::new(sink, log, secrets);
        let check = Egress::clone(egress);
        let mut builder = WasiCtxBuilder::new();
        builder
            .stdout(log.clone())
            .stderr(log)
            .max_random_size(MAX_RANDOM)
            // WASI's own sockets for TCP are never made: see `policy::tcp`.
            .allow_tcp(false)
            .allow_udp(true)
            .socket_addr_check(move |address, usage| {
                let allowed = check.check(address, usage);
                Box::pin(async move { allowed })
            });
        let locks = directories::give(&mut builder, policy.directories())?;
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_RESOURCES);
        Ok(Self {
            wasi: builder.build(),
            table,
            limiter: Limiter::new(limits.memory),
            egress: Egress::clone(egress),
            http: Http::new(http, egress),
            locks,
            unix: UnixPeers::new(policy.unix_sockets(), egress, own),
            sockets: limits.sockets,
            cpu_ticks: 0,
        })
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for State {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        self.http.view(&mut self.table)
    }
}
