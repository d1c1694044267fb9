//! `serve`: the daemon in the foreground.

use super::CliError;
use crate::config::Config;
use crate::{daemon, observe};

/// Threads of the runtime: the work is waiting for sockets and the spool; guests run on these threads too.
const WORKERS: usize = 4;

/// Threads for what blocks: reading the spool, looking up names. Each keeps some memory of its own.
const BLOCKING: usize = 8;

/// Stack of a worker: JSON and msgpack nested 1,000 deep are walked by recursion.
const STACK: usize = 8 << 20;

pub(super) fn run(config: Config) -> Result<(), CliError> {
    observe::init_logging(&config.log.level);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_stack_size(STACK)
        .max_blocking_threads(BLOCKING)
        .thread_name("returnerd")
        .enable_all()
        .build()
        .map_err(|error| CliError::Text(format!("cannot start the runtime: {error}")))?;
    let result = runtime.block_on(daemon::run(config));
    // Whatever still blocks a thread (a slow name server, say) must not hold up the exit.
    runtime.shutdown_timeout(std::time::Duration::from_millis(500));
    Ok(result?)
}
