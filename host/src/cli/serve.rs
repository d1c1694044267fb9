//! `serve`: the daemon in the foreground.

use std::time::Duration;

use tokio::runtime::Runtime;

use super::CliError;
use crate::config::Config;
use crate::{daemon, observe};

/// Threads that take from Salt and answer: parsing, and waiting for the spool. Each is good for some 40,000 returns a second. With one
/// or with four, a return took a fifth more of two processors (`ladder_…_cpu_daemon_…` of `make bench`) than with two.
const TAKING: usize = 2;

/// Threads that hand over and answer questions; guests run on them. They are others than those that take, so that neither waits in the
/// other's queue: the system shares the processors between them, and a delivery's next step comes on although a thousand clients have
/// something to say.
const HANDING_OVER: usize = 4;

/// Threads for what blocks: reading the spool, looking up names. Each keeps some memory of its own.
const BLOCKING: usize = 8;

/// Stack of a worker: JSON and msgpack nested 1,000 deep are walked by recursion.
const STACK: usize = 8 << 20;

/// How long the end waits for threads.
const LEFT_OVER: Duration = Duration::from_millis(300);

pub(super) fn run(config: Config) -> Result<(), CliError> {
    observe::init_logging(&config.log.level);
    let taking = runtime("returnerd", TAKING)?;
    let handing_over = runtime("lanes", HANDING_OVER)?;
    let result = taking.block_on(daemon::run(config, handing_over.handle().clone()));
    // Whatever still blocks a thread (a slow name server, say) must not hold up the exit.
    handing_over.shutdown_timeout(LEFT_OVER);
    taking.shutdown_timeout(LEFT_OVER);
    Ok(result?)
}

fn runtime(name: &str, workers: usize) -> Result<Runtime, CliError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .thread_stack_size(STACK)
        .max_blocking_threads(BLOCKING)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(|error| CliError::Text(format!("cannot start the runtime: {error}")))
}
