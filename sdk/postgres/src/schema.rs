//! The tables: what is there, what fits into them, and how missing ones are made.
//!
//! Tables made from Salt's documentation are used as they are. Where a plugin makes a table, ids compare byte by byte
//! and there are only those indexes that its own queries use, and the one on an event's tag.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use returner_sdk::json;

use crate::connect::Db;
use crate::fault::Fault;

pub(crate) const JIDS: &str = "jids";
pub(crate) const RETURNS: &str = "salt_returns";
pub(crate) const EVENTS: &str = "salt_events";

/// The first half of all our advisory locks.
const LOCK: i32 = 0x7265_7472;

/// What a column's values are to SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Kind {
    /// Text of some sort, or a type that takes text.
    #[default]
    Text,
    /// `json` or `jsonb`.
    Json(&'static str),
    /// `boolean`.
    Boolean,
    /// A whole number of less than 64 bits.
    ShortInteger,
}

/// What one column can hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct Column {
    pub(crate) kind: Kind,
    max_chars: Option<usize>,
    /// Whether only ASCII is certain to fit.
    ascii: bool,
    /// Whether texts that differ are the same to the server.
    folds: bool,
}

/// What the tables of this database can hold.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    columns: BTreeMap<&'static str, Vec<(String, Column)>>,
    /// The columns of unique keys, sorted and joined by commas.
    keys: BTreeSet<(&'static str, String)>,
}

impl Schema {
    /// Looks at the tables and creates missing ones.
    pub(crate) async fn prepare(db: &mut Db, document: &str) -> Result<Self, Fault> {
        let mut schema = Self::read(db).await?;
        let missing: Vec<&str> =
            [JIDS, RETURNS, EVENTS].into_iter().filter(|table| !schema.columns.contains_key(table)).collect();
        if !missing.is_empty() {
            // One statement text is one transaction. Alone `IF NOT EXISTS` does not keep two sessions apart.
            let mut sql = format!("SELECT pg_advisory_xact_lock({LOCK}, 0);");
            for table in missing {
                sql.push_str(&creation(table, document));
            }
            db.exec(&sql).await?;
            schema = Self::read(db).await?;
        }
        if !schema.has_key(JIDS, &["jid"]) {
            return Err(Fault::Later(
                "the table `jids` has no unique key on `jid`; hint: ALTER TABLE jids ADD PRIMARY KEY (jid)"
                    .into(),
            ));
        }
        for (table, key) in [(RETURNS, &["id", "jid"][..]), (EVENTS, &["id"][..])] {
            if !schema.has_key(table, key) {
                let kind = if table == RETURNS { "no key" } else { "no key of events" };
                let key = key.join(", ");
                db.note_once(kind, || {
                    format!(
                        "the table `{table}` has no unique key on ({key}), so storing takes a lock and two round trips more \
                         for each batch; hint: see \"Old tables\" in the plugin's README"
                    )
                });
            }
        }
        Ok(schema)
    }

    async fn read(db: &Db) -> Result<Self, Fault> {
        let mut schema = Self::default();
        // Whether a collation folds is told since version 12, by a column that older ones do not have.
        let columns = db
            .rows::<5>(
                "SELECT t.name, a.attname::text, y.typname::text, a.atttypmod::text, \
                 (y.typname = 'citext' OR coalesce(to_jsonb(k) ->> 'collisdeterministic' = 'false', false))::text \
                 FROM unnest(ARRAY['jids', 'salt_returns', 'salt_events']) AS t (name) \
                 JOIN pg_attribute a ON a.attrelid = to_regclass(t.name) AND a.attnum > 0 AND NOT a.attisdropped \
                 JOIN pg_type y ON y.oid = a.atttypid LEFT JOIN pg_collation k ON k.oid = a.attcollation \
                 ORDER BY a.attnum",
                &[],
            )
            .await?;
        // With another encoding the server converts what it can; SQL_ASCII takes any bytes.
        let ascii = !matches!(db.encoding.as_str(), "UTF8" | "SQL_ASCII");
        for row in columns {
            let [Some(table), Some(name), Some(kind), modifier, folds] = row else { continue };
            let Some(table) = known(&table) else { continue };
            let modifier: Option<usize> = modifier.and_then(|text| text.parse().ok());
            let column = Column {
                kind: match kind.as_str() {
                    "json" => Kind::Json("json"),
                    "jsonb" => Kind::Json("jsonb"),
                    "bool" => Kind::Boolean,
                    "int2" | "int4" => Kind::ShortInteger,
                    _ => Kind::Text,
                },
                // The modifier counts its own four bytes.
                max_chars: modifier.filter(|_| kind == "varchar").and_then(|length| length.checked_sub(4)),
                ascii,
                folds: folds.is_some_and(|folds| folds == "true"),
            };
            schema.columns.entry(table).or_default().push((name, column));
        }
        let keys = db
            .rows::<2>(
                "SELECT t.name, (SELECT string_agg(a.attname::text, ',' ORDER BY a.attname) FROM pg_attribute a \
                 WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)) \
                 FROM unnest(ARRAY['jids', 'salt_returns', 'salt_events']) AS t (name) \
                 JOIN pg_index i ON i.indrelid = to_regclass(t.name) \
                 WHERE i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL",
                &[],
            )
            .await?;
        for row in keys {
            if let [Some(table), Some(columns)] = row
                && let Some(table) = known(&table)
            {
                schema.keys.insert((table, columns));
            }
        }
        Ok(schema)
    }

    /// Whether the server itself keeps one row for each value of these columns, which must be sorted. Where it takes
    /// different texts for the same it would keep too few, and silently.
    pub(crate) fn has_key(&self, table: &'static str, columns: &[&str]) -> bool {
        self.keys.contains(&(table, columns.join(",")))
            && !columns.iter().any(|name| self.column(table, name).folds)
    }

    /// One column; one without limits if the table has none of this name, as the server then tells what is wrong.
    pub(crate) fn column(&self, table: &str, column: &str) -> Column {
        let columns = self.columns.get(table).map(Vec::as_slice).unwrap_or_default();
        columns.iter().find(|(name, _)| name == column).map(|(_, column)| column.clone()).unwrap_or_default()
    }

    /// The names of a table's columns for SQL.
    pub(crate) fn names(&self, table: &str) -> String {
        let columns = self.columns.get(table).map(Vec::as_slice).unwrap_or_default();
        let quoted = columns.iter().map(|(name, _)| format!("\"{}\"", name.replace('"', "\"\"")));
        quoted.collect::<Vec<_>>().join(", ")
    }
}

/// Holds a table's advisory lock until the transaction ends, against other instances of the plugin.
pub(crate) fn lock(table: &str) -> String {
    format!("SELECT pg_advisory_xact_lock({LOCK}, to_regclass('{table}')::oid::int4)")
}

fn known(table: &str) -> Option<&'static str> {
    [JIDS, RETURNS, EVENTS].into_iter().find(|known| *known == table)
}

fn creation(table: &str, document: &str) -> String {
    match table {
        JIDS => format!(
            "CREATE TABLE IF NOT EXISTS jids (
                jid varchar(255) COLLATE \"C\" PRIMARY KEY,
                load {document} NOT NULL);"
        ),
        RETURNS => format!(
            "CREATE TABLE IF NOT EXISTS salt_returns (
                fun varchar(512) NOT NULL,
                jid varchar(255) COLLATE \"C\" NOT NULL,
                return {document} NOT NULL,
                id varchar(255) COLLATE \"C\" NOT NULL,
                success varchar(10) NOT NULL,
                full_ret {document} NOT NULL,
                alter_time timestamptz NOT NULL DEFAULT now(),
                PRIMARY KEY (jid, id));
            CREATE INDEX IF NOT EXISTS idx_salt_returns_id ON salt_returns (id);
            CREATE INDEX IF NOT EXISTS idx_salt_returns_fun ON salt_returns (fun, id);"
        ),
        _ => format!(
            "CREATE SEQUENCE IF NOT EXISTS seq_salt_events_id;
            CREATE TABLE IF NOT EXISTS salt_events (
                id bigint PRIMARY KEY DEFAULT nextval('seq_salt_events_id'),
                tag varchar(512) NOT NULL,
                data {document} NOT NULL,
                alter_time timestamptz NOT NULL DEFAULT now(),
                master_id varchar(255) NOT NULL);
            CREATE INDEX IF NOT EXISTS idx_salt_events_tag ON salt_events (tag);"
        ),
    }
}

impl Column {
    /// A text expression as the column's type.
    pub(crate) fn cast(&self, expression: &str) -> String {
        match self.kind {
            Kind::Json(name) => format!("{expression}::{name}"),
            Kind::Boolean => format!("nullif({expression}, '')::boolean"),
            // A cast of ours would cut a text that is too long; the server's own refuses it.
            Kind::Text | Kind::ShortInteger => expression.to_owned(),
        }
    }

    /// JSON text in this column's characters: what it may lack is written as JSON escapes, so nothing is lost.
    pub(crate) fn json<'a>(&self, text: &'a str) -> Cow<'a, str> {
        // A `jsonb` holds characters, not escapes: what it lacks it refuses in both forms.
        if self.ascii && self.kind != Kind::Json("jsonb") {
            json::escape(text, |c| !c.is_ascii())
        } else {
            Cow::Borrowed(text)
        }
    }

    /// Why a text does not fit, or none if it does.
    pub(crate) fn too_long(&self, name: &str, text: &str) -> Option<String> {
        let max = self.max_chars.filter(|&max| text.len() > max)?;
        let chars = text.chars().count();
        (chars > max).then(|| {
            format!(
                "{chars} characters do not fit into the column `{name}`, which takes {max}; \
                 hint: ALTER TABLE … ALTER COLUMN {name} TYPE varchar(255)"
            )
        })
    }

    /// A text changed to what the column takes, or none if it fits as it is.
    pub(crate) fn cut(&self, text: &str) -> Option<String> {
        let allowed = |c: char| c.is_ascii() || !self.ascii;
        if self.too_long("", text).is_none() && text.chars().all(allowed) {
            return None;
        }
        let max = self.max_chars.unwrap_or(usize::MAX);
        Some(text.chars().map(|c| if allowed(c) { c } else { '?' }).take(max).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_column_cuts_by_characters_and_replaces_what_it_lacks() {
        let old = Column { max_chars: Some(4), ..Column::default() };
        assert_eq!(old.cut("日本国民"), None);
        assert_eq!(old.cut("日本国民x").as_deref(), Some("日本国民"));
        let latin = Column { ascii: true, ..Column::default() };
        assert_eq!(latin.cut("a日").as_deref(), Some("a?"));
        assert_eq!(latin.json(r#"{"a": "日🚀"}"#), r#"{"a": "\u65e5\ud83d\ude80"}"#);
    }

    #[test]
    fn a_text_over_the_limit_is_named_with_its_length() {
        let column = Column { max_chars: Some(2), ..Column::default() };
        let why = column.too_long("jid", "äää").unwrap();
        assert!(why.contains("3 characters") && why.contains("`jid`") && why.contains("takes 2"), "{why}");
        assert_eq!(column.too_long("jid", "ää"), None);
    }
}
