//! The least that a program with the same driver can do: one statement for each batch, prepared, with no look at what is there.

use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder, Value};
use returner_sdk::JobReturn;
use tokio::runtime::Runtime;

use super::rungs::Rung;
use super::system::System;

struct MySql {
    conn: Conn,
    runtime: Runtime,
}

/// A connection of its own to this system; none where there is no such program.
pub(crate) fn open(system: &System) -> Option<Box<dyn Rung>> {
    let System::MySql(server) = system else { return None };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let options = OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(server.port())
        .user(Some("salt"))
        .pass(Some("salt"))
        .db_name(Some("salt"))
        .prefer_socket(false);
    let conn = runtime.block_on(Conn::new(options)).unwrap();
    Some(Box::new(MySql { conn, runtime }))
}

impl Rung for MySql {
    fn deliver(&mut self, returns: Vec<JobReturn>) -> Duration {
        let began = Instant::now();
        let rows = vec!["(?,?,?,?,?,?)"; returns.len()].join(",");
        let sql =
            format!("INSERT INTO salt_returns (fun, jid, `return`, id, success, full_ret) VALUES {rows}");
        let values: Vec<Value> = returns
            .into_iter()
            .flat_map(|r| [r.fun, r.jid, r.value, r.minion, "1".into(), r.document].map(Into::into))
            .collect();
        self.runtime.block_on(self.conn.exec_drop(sql, values)).unwrap();
        began.elapsed()
    }
}
