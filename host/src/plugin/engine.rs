//! The one wasmtime engine of the process, its clock, and the linker with everything that a plugin can be given.
//!
//! Invariants: one [`Engine`] per process; the compile cache lies in a directory that only the daemon can write; guests run with
//! epoch interruption, so none can keep a processor.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Cache, CacheConfig, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};
use wasmtime_wasi::p2::bindings::sockets::{ip_name_lookup, tcp, tcp_create_socket, udp_create_socket};
use wasmtime_wasi::sockets::WasiSocketsCtxView;

use super::bindings::salt::returner::{file_locks, unix_datagrams};
use super::file::PluginFile;
use super::limits::{FIBER_STACK, MAX_INSTANCES, MAX_TABLE_ELEMENTS, TICK, WASM_STACK};
use super::state::State;
use crate::policy::file_locks::{HasLocks, Locks};
use crate::policy::names::{HasNames, Names};
use crate::policy::sockets::{HasSockets, Sockets};
use crate::policy::unix_datagrams::HasUnixPeers;

/// Why the engine could not be started or a plugin not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine refused its configuration.
    #[error("cannot start the WebAssembly engine")]
    Start(#[source] wasmtime::Error),
    /// The clock's thread could not be started.
    #[error("cannot start the engine's clock")]
    Clock(#[source] std::io::Error),
    /// The threads that compile could not be started.
    #[error("cannot start the compiler's threads")]
    Compilers(#[source] rayon::ThreadPoolBuildError),
    /// A plugin does not compile.
    #[error("cannot compile the plugin")]
    Compile(#[source] wasmtime::Error),
    /// A plugin imports something that the host does not have, or exports an interface of another shape.
    #[error("the plugin does not fit this host; hint: `returnerd plugin inspect` shows what it imports")]
    Link(#[source] wasmtime::Error),
}

/// How instances are allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// From slots that are reserved once.
    Pooling,
    /// One mapping for each instance.
    OnDemand,
}

/// What can be varied to measure its price; the daemon runs with the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// How instances are allocated.
    pub allocation: Allocation,
    /// Whether guests can be interrupted.
    pub epoch: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { allocation: Allocation::Pooling, epoch: true }
    }
}

/// The engine and the linker.
#[derive(Clone)]
pub struct Host {
    engine: Engine,
    linker: Linker<State>,
    allocation: Allocation,
    /// The threads that compile.
    compilers: Arc<rayon::ThreadPool>,
}

impl Host {
    /// Starts the engine. `cache_dir` must exist with mode 0700; none compiles every time.
    pub fn new(cache_dir: Option<&Path>) -> Result<Self, EngineError> {
        match Self::tuned(cache_dir, Tuning::default()) {
            Err(EngineError::Start(error)) => {
                // The pool reserves address space at once, which a small container may not have.
                tracing::info!(%error, "instances are allocated on demand, as the pool could not be reserved");
                Self::tuned(cache_dir, Tuning { allocation: Allocation::OnDemand, ..Tuning::default() })
            }
            other => other,
        }
    }

    /// Starts the engine in exactly this way.
    pub fn tuned(cache_dir: Option<&Path>, tuning: Tuning) -> Result<Self, EngineError> {
        let engine = engine(cache_dir, tuning).map_err(EngineError::Start)?;
        start_clock(&engine)?;
        let linker = linker(&engine).map_err(EngineError::Start)?;
        // Half of the processors at most, so that deliveries go on while a large plugin is compiled.
        let threads = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2);
        let compilers = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|_| "compile".into())
            .build()
            .map_err(EngineError::Compilers)?;
        Ok(Self { engine, linker, allocation: tuning.allocation, compilers: Arc::new(compilers) })
    }

    /// The engine, for new stores.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// How instances are allocated.
    pub fn allocation(&self) -> Allocation {
        self.allocation
    }

    /// Whether more than half of the places for instances are taken.
    pub fn is_crowded(&self) -> bool {
        self.engine
            .pooling_allocator_metrics()
            .is_some_and(|metrics| metrics.component_instances() > u64::from(MAX_INSTANCES / 2))
    }

    /// Compiles a file, or takes it from the cache, and resolves its imports. Takes seconds for a large plugin.
    pub fn compile(&self, file: &PluginFile) -> Result<InstancePre<State>, EngineError> {
        let component = self
            .compilers
            .install(|| Component::new(&self.engine, &file.bytes))
            .map_err(EngineError::Compile)?;
        component.initialize_copy_on_write_image().map_err(EngineError::Compile)?;
        self.linker.instantiate_pre(&component).map_err(EngineError::Link)
    }
}

fn engine(cache_dir: Option<&Path>, tuning: Tuning) -> wasmtime::Result<Engine> {
    let mut config = wasmtime::Config::new();
    config
        .wasm_component_model(true)
        .concurrency_support(false)
        .epoch_interruption(tuning.epoch)
        .memory_init_cow(true)
        .max_wasm_stack(WASM_STACK)
        .async_stack_size(FIBER_STACK);
    if let Some(directory) = cache_dir {
        let mut cache = CacheConfig::new();
        cache.with_directory(directory);
        config.cache(Some(Cache::new(cache)?));
    }
    if tuning.allocation == Allocation::Pooling {
        let mut pool = PoolingAllocationConfig::new();
        // A plugin in Rust has four core instances. Per component the numbers fit CPython's. What is reserved are addresses.
        pool.total_component_instances(MAX_INSTANCES)
            .total_core_instances(4 * MAX_INSTANCES)
            .total_memories(2 * MAX_INSTANCES)
            .total_tables(4 * MAX_INSTANCES)
            .total_stacks(MAX_INSTANCES)
            .max_component_instance_size(4 << 20)
            .max_core_instance_size(10 << 20)
            .max_core_instances_per_component(200)
            .max_memories_per_component(8)
            .max_tables_per_component(64)
            .table_elements(MAX_TABLE_ELEMENTS)
            .max_unused_warm_slots(16)
            .linear_memory_keep_resident(256 << 10)
            .table_keep_resident(64 << 10);
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    }
    Engine::new(&config)
}

fn start_clock(engine: &Engine) -> Result<(), EngineError> {
    let weak = engine.weak();
    std::thread::Builder::new()
        .name("epoch".into())
        .spawn(move || {
            while let Some(engine) = weak.upgrade() {
                engine.increment_epoch();
                drop(engine);
                std::thread::sleep(TICK);
            }
        })
        .map_err(EngineError::Clock)?;
    Ok(())
}

fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    linker.allow_shadowing(true);
    ip_name_lookup::add_to_linker::<State, HasNames>(&mut linker, |state| Names {
        egress: &state.egress,
        table: &mut state.table,
    })?;
    tcp::add_to_linker::<State, HasSockets>(&mut linker, sockets)?;
    tcp_create_socket::add_to_linker::<State, HasSockets>(&mut linker, sockets)?;
    udp_create_socket::add_to_linker::<State, HasSockets>(&mut linker, sockets)?;
    linker.allow_shadowing(false);
    crate::policy::http::add_to_linker(&mut linker)?;
    file_locks::add_to_linker::<State, HasLocks>(&mut linker, |state| Locks {
        table: &mut state.table,
        dirs: &state.locks,
    })?;
    unix_datagrams::add_to_linker::<State, HasUnixPeers>(&mut linker, |state| &mut state.unix)?;
    Ok(linker)
}

fn sockets(state: &mut State) -> Sockets<'_> {
    let wasi = WasiSocketsCtxView { ctx: state.wasi.sockets(), table: &mut state.table };
    Sockets { wasi, egress: &state.egress, most: state.sockets }
}

/// How long the clock needs at most to stop a guest that computes.
pub const REACTION: Duration = TICK;
