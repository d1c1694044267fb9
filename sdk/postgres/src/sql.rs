//! Inserts of many rows in one statement: each column travels as one array of texts.
//!
//! Where a table lacks the unique key, an advisory lock keeps other instances out between looking for the keys and
//! inserting the missing rows.

use std::borrow::Cow;

use returner_sdk::Verdict;

use crate::connect::{Db, Param, many};
use crate::fault::{Fault, text};
use crate::schema::{Schema, lock};

/// The latest moment that is written as it is, in milliseconds: the end of the year 9999.
const LATEST_MS: u64 = 253_402_300_799_000;

/// A moment for the column `alter_time`, from milliseconds since 1970. One that is no sensible time is now.
pub(crate) fn moment(ms: u64) -> String {
    if (86_400_000..=LATEST_MS).contains(&ms) { ms.to_string() } else { String::new() }
}

/// How a record's texts become a column's values.
enum Value {
    /// The text, as the column's type.
    Column,
    /// A whole number.
    Number,
    /// What `moment` gives.
    Moment,
}

/// What is inserted where.
pub(crate) struct Insert {
    table: &'static str,
    has_key: bool,
    statement: String,
}

/// One row of an insert.
pub(crate) struct Row<'a> {
    /// Which record it is, among the verdicts.
    pub(crate) index: usize,
    /// A text for each column.
    pub(crate) texts: Vec<Cow<'a, str>>,
}

impl Insert {
    /// Into these columns, with one row for each value of the key's columns, which must be sorted.
    pub(crate) fn new(
        schema: &Schema,
        table: &'static str,
        key: &'static [&'static str],
        columns: &[&'static str],
    ) -> Self {
        let value = |name: &str| match (table, name) {
            (_, "alter_time") => Value::Moment,
            (crate::schema::EVENTS, "id") => Value::Number,
            _ => Value::Column,
        };
        let quoted = |name: &&str| format!("\"{name}\"");
        let names = columns.iter().map(quoted).collect::<Vec<_>>().join(", ");
        let values: Vec<String> = columns
            .iter()
            .map(|name| match value(name) {
                Value::Column => schema.column(table, name).cast(&format!("u.\"{name}\"")),
                Value::Number => format!("u.\"{name}\"::bigint"),
                Value::Moment => {
                    format!("coalesce(to_timestamp(nullif(u.\"{name}\", '')::bigint / 1000.0), now())")
                }
            })
            .collect();
        let arrays: Vec<String> = (1..=columns.len()).map(|number| format!("${number}")).collect();
        let mut statement = format!(
            "INSERT INTO {table} ({names}) SELECT {} FROM unnest({}) AS u ({names})",
            values.join(", "),
            arrays.join(", ")
        );
        let has_key = schema.has_key(table, key);
        if has_key {
            // With the key named, a row that breaks another rule of the table is refused and not passed over.
            statement.push_str(&format!(
                " ON CONFLICT ({}) DO NOTHING",
                key.iter().map(quoted).collect::<Vec<_>>().join(", ")
            ));
        } else {
            let same: Vec<String> = key
                .iter()
                .map(|name| match value(name) {
                    Value::Number => format!("r.\"{name}\" = u.\"{name}\"::bigint"),
                    // The first part is for the index, the second where the column takes different texts for the same.
                    _ => format!(
                        "r.\"{name}\" = u.\"{name}\" AND r.\"{name}\"::text COLLATE \"C\" = u.\"{name}\""
                    ),
                })
                .collect();
            statement.push_str(&format!(
                " WHERE NOT EXISTS (SELECT 1 FROM {table} r WHERE {})",
                same.join(" AND ")
            ));
        }
        Self { table, has_key, statement }
    }

    /// Inserts the rows whose key is free; gives how many these were. No two rows may have the same key.
    ///
    /// Rows that the server refuses for their values get their verdict here; all others keep theirs.
    pub(crate) async fn run(
        &self,
        db: &Db,
        rows: &[Row<'_>],
        verdicts: &mut [Verdict],
    ) -> Result<u64, Fault> {
        let mut added = 0;
        let mut parts = vec![rows];
        while let Some(part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            match self.part(db, part).await {
                Ok(rows) => added += rows,
                Err(Fault::Data(error)) => match part {
                    [row] => {
                        verdicts[row.index] =
                            Verdict::Reject(format!("the server refuses the row: {}", text(&error)))
                    }
                    _ => {
                        let (left, right) = part.split_at(part.len() / 2);
                        parts.extend([right, left]);
                    }
                },
                Err(fault) => return Err(fault),
            }
        }
        Ok(added)
    }

    async fn part(&self, db: &Db, rows: &[Row<'_>]) -> Result<u64, Fault> {
        let columns = rows.first().map_or(0, |row| row.texts.len());
        let arrays: Vec<Vec<&str>> =
            (0..columns).map(|column| rows.iter().map(|row| row.texts[column].as_ref()).collect()).collect();
        let params: Vec<Param<'_>> = arrays.iter().map(many).collect();
        if self.has_key {
            return db.change(&self.statement, &params).await;
        }
        // What is there is looked for by a statement that begins when the lock is held.
        db.exec(&format!("BEGIN; {}", lock(self.table))).await?;
        let added = db.change(&self.statement, &params).await;
        let end = if added.is_ok() { "COMMIT" } else { "ROLLBACK" };
        match &added {
            Err(Fault::Lost(_) | Fault::Slow(_)) => {}
            _ => db.exec(end).await?,
        }
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_that_is_no_sensible_time_is_left_to_the_server() {
        assert_eq!(moment(1_796_096_499_123), "1796096499123");
        assert_eq!(moment(0), "");
        assert_eq!(moment(u64::MAX), "");
    }

    #[test]
    fn without_a_known_key_the_statement_looks_for_what_is_there() {
        let insert = Insert::new(&Schema::default(), "salt_returns", &["id", "jid"], &["jid", "id"]);
        assert!(insert.statement.contains("NOT EXISTS") && !insert.statement.contains("ON CONFLICT"));
    }
}
