//! Options for a server of the tests, and records to log.

use std::future::Future;

use returner_sdk::prelude::*;
use returner_sdk::serde_json::json;
use returner_syslog::{Options, Syslog};
use returnerd_tests::rsyslog::{self, Rsyslog};

/// When the records of the tests arrive: 2026-12-01 03:31:39 UTC.
pub const ARRIVED: u64 = 1_796_095_899_000;

/// The ways to a server, each with the name of rsyslog's input.
pub const WAYS: [(&str, &str); 4] =
    [("local", "imuxsock"), ("udp", "imudp"), ("tcp", "imtcp"), ("tls", "imtcp")];

/// Whether there is a server to test with; says so if not.
pub fn available() -> bool {
    let there = rsyslog::installed().is_some();
    if !there {
        eprintln!("SKIPPED: `rsyslogd` or its driver `lmnsd_gtls.so` is not installed");
    }
    there
}

/// Options that lead to the server by this transport.
pub fn options(rsyslog: &Rsyslog, transport: &str) -> Options {
    let remote = transport != "local";
    Options {
        transport: transport.into(),
        socket: rsyslog.socket().to_str().unwrap().into(),
        server: remote.then(|| "127.0.0.1".into()),
        port: remote.then(|| if transport == "tls" { rsyslog.tls_port() } else { rsyslog.port() }),
        ssl_ca: (transport == "tls").then(|| rsyslog.authority().pem().to_owned()),
        ..Options::default()
    }
}

pub async fn open(options: Options) -> Result<Syslog> {
    let context = Context { sink: "syslog".into(), id: "web1.example.com".into(), role: "minion".into() };
    Syslog::open(options, &context).await
}

/// Runs a test's async part.
pub fn block<T>(future: impl Future<Output = T>) -> T {
    returner_sdk::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A job id with this number.
pub fn jid(number: usize) -> String {
    format!("20261201{number:012}")
}

/// A return of this number with this value.
pub fn ret(number: usize, value: &str) -> JobReturn {
    let jid = jid(number);
    let document = json!({
        "jid": jid, "id": "m1", "fun": "test.echo", "fun_args": [], "return": value, "retcode": 0,
    });
    JobReturn {
        jid,
        minion: "m1".into(),
        resource_id: None,
        fun: "test.echo".into(),
        fun_args: "[]".into(),
        value: json!(value).to_string(),
        document: document.to_string(),
        success: Some(true),
        retcode: Some(0),
        trimmed: false,
        arrived_ms: ARRIVED,
    }
}

pub fn stored(verdicts: &[Verdict]) -> bool {
    verdicts.iter().all(|verdict| *verdict == Verdict::Stored)
}

/// The reason of a `retry`.
pub fn retry<T>(result: Result<T>) -> String {
    match result {
        Err(Error::Retry { why, .. }) => why,
        Err(other) => panic!("no retry: {other:?}"),
        Ok(_) => panic!("no retry: it worked"),
    }
}
