//! The tables: makes what is missing, and brings tables that were made from Salt's documentation into shape.
//!
//! Invariants: no column, row or table is ever removed or changed. Tables that exist get two things that no other program
//! notices: the column `extra`, and plain indexes, without which every return would search the whole table.

use std::collections::BTreeSet;

use returner_sdk::{Error, Result};
use rusqlite::Connection;

use crate::database::Database;

struct Table {
    name: &'static str,
    /// The statements that make it, with its unique keys.
    make: &'static str,
    /// The columns without which nothing works.
    columns: &'static [&'static str],
    /// For a table that exists; those of a new one are already in `make`.
    indexes: &'static [(&'static str, &'static str)],
}

const TABLES: [Table; 3] = [
    Table {
        name: "jids",
        make: "CREATE TABLE jids (jid TEXT PRIMARY KEY, load TEXT NOT NULL);",
        columns: &["jid", "load"],
        indexes: &[],
    },
    Table {
        name: "salt_returns",
        make: "CREATE TABLE salt_returns (
                 fun TEXT, jid TEXT, id TEXT, fun_args TEXT, date TEXT NOT NULL, full_ret TEXT NOT NULL,
                 success TEXT NOT NULL, extra TEXT);
               CREATE UNIQUE INDEX salt_returns_jid_id ON salt_returns (jid, id);",
        columns: &["fun", "jid", "id", "fun_args", "date", "full_ret", "success"],
        indexes: &[
            ("salt_returns_jid_id", "salt_returns (jid, id)"),
            ("salt_returns_fun", "salt_returns (fun, id, jid)"),
            ("salt_returns_date", "salt_returns (date)"),
        ],
    },
    Table {
        name: "salt_events",
        make: "CREATE TABLE salt_events (
                 id INTEGER PRIMARY KEY, tag TEXT, data TEXT, alter_time TEXT, master_id TEXT);",
        columns: &["id", "tag", "data", "alter_time", "master_id"],
        indexes: &[
            ("salt_events_tag", "salt_events (tag)"),
            ("salt_events_alter_time", "salt_events (alter_time)"),
        ],
    },
];

/// Makes what is missing. It writes nothing if all is there.
pub fn prepare(database: &mut Database) -> Result<()> {
    if database.read(missing)?.is_empty() {
        return check(database);
    }
    let path = database.path().display().to_string();
    // Another instance may have been quicker, so look again inside the transaction.
    let done = database.write(|transaction| {
        let statements = missing(transaction)?;
        for statement in &statements {
            transaction.execute_batch(statement)?;
        }
        Ok(statements)
    });
    // A table that lacks more than `extra` makes the statements fail; say which columns.
    check(database)?;
    for statement in done? {
        eprintln!("`{path}`: {}", statement.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    Ok(())
}

/// The statements that are still to be run.
fn missing(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statements = Vec::new();
    for table in &TABLES {
        let columns = columns(connection, table.name)?;
        if columns.is_empty() {
            statements.push(table.make.to_owned());
        } else if table.name == "salt_returns" && !columns.contains("extra") {
            statements.push("ALTER TABLE salt_returns ADD COLUMN extra TEXT".to_owned());
        }
        for (name, on) in table.indexes {
            let made = columns.is_empty() && table.make.contains(name);
            if !made && !exists(connection, name)? {
                statements.push(format!("CREATE INDEX {name} ON {on}"));
            }
        }
    }
    Ok(statements)
}

fn exists(connection: &Connection, index: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM sqlite_master WHERE type = 'index' AND lower(name) = ?1")?
        .exists([index])
}

/// The names of a table's columns in lower case; empty if there is no such table.
pub fn columns(connection: &Connection, table: &str) -> rusqlite::Result<BTreeSet<String>> {
    let mut statement = connection.prepare_cached("SELECT lower(name) FROM pragma_table_info(?1)")?;
    statement.query_map([table], |row| row.get(0))?.collect()
}

fn check(database: &Database) -> Result<()> {
    for table in &TABLES {
        let have = database.read(|connection| columns(connection, table.name))?;
        let lacking: Vec<_> = table.columns.iter().filter(|name| !have.contains(**name)).copied().collect();
        if !have.is_empty() && !lacking.is_empty() {
            return Err(Error::fatal(format!(
                "`sqlite3.database`: the table `{}` of `{}` lacks the columns `{}`; hint: add them, or rename the table so \
                 that a new one is made",
                table.name,
                database.path().display(),
                lacking.join("`, `")
            )));
        }
    }
    Ok(())
}
