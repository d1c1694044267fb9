//! The plugin as native code, and the plugin in its sandbox called by the engine without the spool: both with a runtime of their own
//! on the calling thread.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use returner_sdk::{Config, JobReturn, Returner, Session, Verdict};
use returnerd::item;
use returnerd::plugin::engine::Tuning;
use returnerd::plugin::measure::{Measured, Open};
use returnerd_tests::env;
use tokio::runtime::Runtime;

use super::system::System;

/// A way to store returns.
pub(crate) trait Rung {
    /// Stores them all; says how long that took.
    fn deliver(&mut self, returns: Vec<JobReturn>) -> Duration;
}

/// The plugin's own code, compiled for this machine, in the session that it has in the sandbox, too.
pub(crate) struct Native(Box<dyn FnMut(Vec<JobReturn>) -> Vec<Verdict>>);

impl Native {
    pub(crate) fn open(system: &System) -> Self {
        let options = system.options().to_string();
        Self(match system {
            System::MySql(_) => session::<returner_mysql::Db>(options),
            System::PgJsonb(_) => session::<returner_pgjsonb::Db>(options),
            System::Redis(_) => session::<returner_redis::Db>(options),
            System::Sqlite3(_) => session::<returner_sqlite3::Store>(options),
        })
    }
}

fn session<T: Returner>(options: String) -> Box<dyn FnMut(Vec<JobReturn>) -> Vec<Verdict>> {
    let session = Session::<T>::new();
    let config = Config { sink: "native".into(), id: "lab_master".into(), role: "master".into(), options };
    session.open(config).expect("the plugin opens");
    Box::new(move |returns| {
        session.call(async |store| store.deliver(returns).await).expect("the plugin delivers")
    })
}

impl Rung for Native {
    fn deliver(&mut self, returns: Vec<JobReturn>) -> Duration {
        let began = Instant::now();
        let verdicts = (self.0)(returns);
        let took = began.elapsed();
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Stored), "{:?}", verdicts.first());
        took
    }
}

/// The plugin in its sandbox.
pub(crate) struct Engine {
    open: Open,
    runtime: Runtime,
    // The instance is one of this.
    _measured: Measured,
}

impl Engine {
    pub(crate) fn open(system: &System) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let file: PathBuf = env::plugin(system.name());
        let _guard = runtime.enter();
        let measured = Measured::new(&file, Tuning::default(), &system.options().to_string())
            .unwrap()
            .allow(&system.allow())
            .unwrap();
        let open = runtime.block_on(measured.open()).unwrap();
        drop(_guard);
        Self { open, runtime, _measured: measured }
    }
}

impl Rung for Engine {
    fn deliver(&mut self, returns: Vec<JobReturn>) -> Duration {
        let returns: Vec<item::JobReturn> = returns.into_iter().map(of_host).collect();
        let count = returns.len();
        let began = Instant::now();
        let stored = self.runtime.block_on(self.open.hand_over(returns)).unwrap();
        let took = began.elapsed();
        assert_eq!(stored, count);
        took
    }
}

fn of_host(ret: JobReturn) -> item::JobReturn {
    item::JobReturn {
        jid: ret.jid,
        minion: ret.minion,
        resource_id: ret.resource_id,
        fun: ret.fun,
        fun_args: ret.fun_args,
        value: ret.value,
        document: ret.document,
        success: ret.success,
        retcode: ret.retcode,
        trimmed: ret.trimmed,
        arrived_ms: ret.arrived_ms,
    }
}
