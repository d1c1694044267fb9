//! Every limit on a plugin, in one table with its reason, and the limiter that counts memory over all memories.
//!
//! Invariant: what a store was allowed is what its limiter counted; a growth that wasmtime then fails is taken back.

use std::time::Duration;

use wasmtime::ResourceLimiter;

use crate::config;

/// How often the epoch moves; the unit of the CPU budget.
pub const TICK: Duration = Duration::from_millis(10);

/// The largest `.wasm` file. A Python component has 18 to 35 MB.
pub const MAX_FILE: u64 = 64 << 20;

/// Text of one log line of a guest, in bytes; the rest is cut. Long enough for a database's error with its statement.
pub const MAX_LOG_LINE: usize = 4096;

/// Log lines of one instance in a burst and per second: a plugin that logs each record must not fill the disk.
pub const LOG_BURST: u32 = 100;
/// See [`LOG_BURST`].
pub const LOG_PER_SECOND: u32 = 20;

/// Bytes that a guest may hand over at once, in an answer or to a host function: room for the returns of a large job.
pub const HOSTCALL_BYTES: usize = 128 << 20;

/// Handles of the component model in one instance (wasmtime's default is 100,000). A driver uses a few dozen.
pub const MAX_HANDLES: usize = 1_024;

/// Entries of the host's table for one instance: sockets, streams, pollables, files (wasmtime's default is 1,000,000). Each may be a
/// file descriptor of the daemon's, which all plugins and the socket share.
pub const MAX_RESOURCES: usize = 512;

/// A plugin's reason for a verdict or failure, in bytes; the rest is cut. It goes into logs, `status` and dead letters.
pub const MAX_REASON: usize = 4_096;

/// Records in one call and the bytes of their documents, whatever a manifest asks for: a batch lies in the host's memory, then in the
/// guest's, each time with the values of returns once more, which stand within their documents.
pub const MAX_BATCH_ITEMS: usize = 10_000;
/// See [`MAX_BATCH_ITEMS`].
pub const MAX_BATCH_BYTES: u64 = 16 << 20;

/// What a log line costs of the allowance: one, and one more for each so many bytes.
pub const LOG_LINE_COST: usize = 512;

/// Random bytes in one call.
pub const MAX_RANDOM: u64 = 1 << 20;

/// Bytes of the body of an HTTP request, unless `max_request` says otherwise: several times the largest batch.
pub const MAX_HTTP_REQUEST: u64 = 64 << 20;

/// Bytes of the body of an HTTP response, unless `max_response` says otherwise: a bulk answer has about 200 bytes per record.
pub const MAX_HTTP_RESPONSE: u64 = 16 << 20;

/// Bytes of all headers of an HTTP request or response. Servers commonly take 8 to 64 KiB.
pub const MAX_HTTP_HEADERS: usize = 64 << 10;

/// HTTP requests of one instance at once, counted until their responses are read.
pub const MAX_HTTP_REQUESTS: usize = 16;

/// Longest way to a connection: look-up, TCP, proxy, TLS.
pub const MAX_HTTP_CONNECT: Duration = Duration::from_secs(30);
/// The same for a plugin that sets no time.
pub const HTTP_CONNECT: Duration = Duration::from_secs(10);

/// Longest time from the connection to the response's headers, and between two parts of its body. A call has its own limit.
pub const MAX_HTTP_WAIT: Duration = Duration::from_secs(300);
/// The same for a plugin that sets no time: shorter than a call, so that the plugin learns of it and can say so.
pub const HTTP_WAIT: Duration = Duration::from_secs(30);

/// An HTTP connection without a request is closed after this long. Servers commonly close it after 60 s or more.
pub const HTTP_IDLE: Duration = Duration::from_secs(55);

/// Bytes of one message to a unix socket. Linux takes about 200 KiB by default, a syslog daemon usually 8 KiB.
pub const MAX_UNIX_MESSAGE: usize = 256 << 10;

/// Unix sockets of one instance at once. One is what a plugin needs.
pub const MAX_UNIX_SOCKETS: usize = 8;

/// How long a message to a unix socket may wait for room: much shorter than a call, so that the plugin learns of it and can say so.
pub const UNIX_WAIT: Duration = Duration::from_secs(5);

/// Elements over all tables, and so of any one. A large Python component has below 20,000 functions.
pub const MAX_TABLE_ELEMENTS: usize = 100_000;

/// Instances that run at once, over all plugins: each sink that works has one, and a second while it is asked something.
pub const MAX_INSTANCES: u32 = 1_024;

/// Wasm stack of an instance: twice wasmtime's, as nesting 1,000 deep is read by recursion in guests.
pub const WASM_STACK: usize = 1 << 20;

/// Stack of the fiber a call runs on; what is beyond [`WASM_STACK`] is the host functions' part.
pub const FIBER_STACK: usize = 3 << 20;

/// The limits of one plugin.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes over all memories of an instance. 256 MiB holds a batch of 10 MiB returns several times over.
    pub memory: usize,
    /// Ticks of [`TICK`] on the processor per call. 10 s is a thousand times what a full batch needs.
    pub cpu_ticks: u64,
    /// Longest call, waiting included: long enough for a database that creates its tables under load.
    pub call: Duration,
    /// Longest `open`: a connect with TLS and a look at the schema.
    pub open: Duration,
    /// Longest `close`; a goodbye is a courtesy.
    pub close: Duration,
    /// An instance is renewed after about this long, so that leaks of drivers and stale policy end.
    pub renew_after: Duration,
    /// An instance is renewed after about so many calls: what leaks a little with each call never grows large.
    pub renew_after_calls: u64,
    /// Sockets of an instance at once. A driver has one connection, or a pool of a few.
    pub sockets: usize,
    /// Strikes after which a plugin is left alone: enough to find a record that it crashes on (four), and some for accidents.
    pub quarantine_after: u32,
    /// An instance whose memory ever passed this is renewed after the call, since linear memory never shrinks.
    pub renew_above: usize,
    /// An instance used for questions is closed after being idle for this long, with its connection; one that delivers only where
    /// the places for instances are getting short.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: 256 << 20,
            cpu_ticks: 1_000,
            call: Duration::from_secs(60),
            open: Duration::from_secs(20),
            close: Duration::from_secs(2),
            renew_after: Duration::from_secs(4 * 3_600),
            renew_after_calls: 100_000,
            sockets: 32,
            quarantine_after: 8,
            renew_above: 128 << 20,
            idle: Duration::from_secs(60),
        }
    }
}

impl Limits {
    /// The defaults with what `returnerd.toml` says of the plugin.
    pub fn of(settings: &config::Plugin) -> Self {
        let mut limits = Self::default();
        if let Some(memory) = settings.memory {
            limits.memory = usize::try_from(memory).unwrap_or(usize::MAX);
            limits.renew_above = limits.memory / 2;
        }
        if let Some(cpu) = settings.cpu_per_call {
            limits.cpu_ticks = u64::try_from(cpu.as_millis() / TICK.as_millis()).unwrap_or(u64::MAX).max(1);
        }
        if let Some(call) = settings.call_within {
            limits.call = call;
            limits.open = limits.open.min(call);
        }
        if let Some(renew) = settings.renew_after {
            limits.renew_after = renew;
        }
        limits.renew_after_calls = settings.renew_after_calls.unwrap_or(limits.renew_after_calls).max(1);
        limits.sockets = settings.sockets.unwrap_or(limits.sockets);
        limits.quarantine_after = settings.quarantine_after.unwrap_or(limits.quarantine_after).max(1);
        limits
    }
}

/// Counts what an instance has and refuses more than its limits.
#[derive(Debug)]
pub struct Limiter {
    memory_limit: usize,
    memory: usize,
    peak: usize,
    tables: usize,
    last_growth: usize,
    refused: Option<String>,
}

impl Limiter {
    /// A limiter for an empty store.
    pub fn new(memory_limit: usize) -> Self {
        Self { memory_limit, memory: 0, peak: 0, tables: 0, last_growth: 0, refused: None }
    }

    /// The most bytes the memories ever had.
    pub fn peak(&self) -> usize {
        self.peak
    }

    /// What was refused last, for the message of the trap that usually follows.
    pub fn take_refused(&mut self) -> Option<String> {
        self.refused.take()
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let growth = desired.saturating_sub(current);
        let total = self.memory.saturating_add(growth);
        if total > self.memory_limit {
            self.refused = Some(format!(
                "the instance wanted {total} bytes of memory and its limit is {}; hint: raise `memory` in its table in returnerd.toml",
                self.memory_limit
            ));
            return Ok(false);
        }
        self.memory = total;
        self.peak = self.peak.max(total);
        self.last_growth = growth;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.memory = self.memory.saturating_sub(std::mem::take(&mut self.last_growth));
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.tables.saturating_add(desired.saturating_sub(current));
        if total > MAX_TABLE_ELEMENTS {
            self.refused = Some(format!(
                "the instance wanted {total} table elements and the limit is {MAX_TABLE_ELEMENTS}"
            ));
            return Ok(false);
        }
        self.tables = total;
        Ok(true)
    }

    fn instances(&self) -> usize {
        64
    }

    fn tables(&self) -> usize {
        64
    }

    fn memories(&self) -> usize {
        16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_over_all_memories() {
        let mut limiter = Limiter::new(100);
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert!(!limiter.memory_growing(0, 60, None).unwrap());
        assert!(limiter.take_refused().unwrap().contains("120 bytes"));
        assert!(limiter.memory_growing(0, 40, None).unwrap());
        assert_eq!(limiter.peak(), 100);
    }

    #[test]
    fn a_growth_that_failed_is_taken_back() {
        let mut limiter = Limiter::new(100);
        assert!(limiter.memory_growing(0, 100, None).unwrap());
        limiter.memory_grow_failed(wasmtime::Error::msg("no address space")).unwrap();
        assert!(limiter.memory_growing(0, 100, None).unwrap());
    }
}
