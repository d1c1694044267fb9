//! The tables: what is there, what fits into them, and how missing ones are made.
//!
//! Tables made from Salt's documentation are used as they are. Where returnerd makes a table, ids compare byte by
//! byte, all of Unicode fits, and there are only those indexes that its own queries use.

use std::borrow::Cow;
use std::collections::BTreeMap;

use returner_sdk::json;

use crate::connect::Db;
use crate::fault::Fault;

pub(crate) const JIDS: &str = "jids";
pub(crate) const RETURNS: &str = "salt_returns";
pub(crate) const EVENTS: &str = "salt_events";

const CREATE_JIDS: &str = "CREATE TABLE IF NOT EXISTS `jids` (
    `jid` varchar(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `load` longtext NOT NULL,
    PRIMARY KEY (`jid`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 ROW_FORMAT=DYNAMIC";

const CREATE_RETURNS: &str = "CREATE TABLE IF NOT EXISTS `salt_returns` (
    `fun` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    `jid` varchar(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `return` longtext NOT NULL,
    `id` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    `success` varchar(10) NOT NULL,
    `full_ret` longtext NOT NULL,
    `alter_time` timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (`jid`, `id`),
    KEY `id` (`id`),
    KEY `fun` (`fun`, `id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 ROW_FORMAT=DYNAMIC";

const CREATE_EVENTS: &str = "CREATE TABLE IF NOT EXISTS `salt_events` (
    `id` bigint NOT NULL AUTO_INCREMENT,
    `tag` varchar(1024) NOT NULL,
    `data` longtext NOT NULL,
    `alter_time` timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
    `master_id` varchar(255) NOT NULL,
    PRIMARY KEY (`id`),
    KEY `tag` (`tag`(191))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 ROW_FORMAT=DYNAMIC";

/// What the tables of this database can hold.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    columns: BTreeMap<(String, String), Column>,
    /// Whether the server itself keeps one row for each (jid, id).
    pub(crate) returns_have_key: bool,
}

/// Which characters a column takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Repertoire {
    /// All of Unicode.
    #[default]
    All,
    /// Those of up to three bytes in UTF-8 (MySQL's `utf8`).
    ThreeBytes,
    /// A national set, of which only ASCII is certain.
    Ascii,
}

/// What one column can hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct Column {
    max_chars: Option<usize>,
    max_bytes: Option<usize>,
    pub(crate) repertoire: Repertoire,
    /// Whether texts that differ only in case or accents are the same to the server.
    pub(crate) folds: bool,
}

impl Schema {
    /// Looks at the tables and creates missing ones.
    pub(crate) async fn prepare(db: &mut Db) -> Result<Self, Fault> {
        let mut schema = Self::read(db).await?;
        let mut created = false;
        for (table, sql) in [(JIDS, CREATE_JIDS), (RETURNS, CREATE_RETURNS), (EVENTS, CREATE_EVENTS)] {
            if !schema.columns.keys().any(|(name, _)| name == table) {
                db.exec(sql).await?;
                created = true;
            }
        }
        if created {
            schema = Self::read(db).await?;
        }
        if !unique_on(db, JIDS, &["jid"]).await? {
            return Err(Fault::Later(
                "the table `jids` has no unique key on `jid`; hint: ALTER TABLE `jids` ADD UNIQUE KEY (`jid`)".into(),
            ));
        }
        schema.returns_have_key = unique_on(db, RETURNS, &["id", "jid"]).await?;
        if !schema.returns_have_key {
            db.note_once("no key", || {
                "the table `salt_returns` has no unique key on (`jid`, `id`), so storing takes a lock and a look-up \
                 more for each batch; hint: see \"Old tables\" in the plugin's README"
                    .into()
            });
        }
        Ok(schema)
    }

    async fn read(db: &mut Db) -> Result<Self, Fault> {
        let rows = db
            .rows::<7>(
                "SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, CHARACTER_MAXIMUM_LENGTH, CHARACTER_OCTET_LENGTH, \
                 CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.COLUMNS \
                 WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ('jids', 'salt_returns', 'salt_events')",
            )
            .await?;
        let mut columns = BTreeMap::new();
        for [table, column, kind, chars, bytes, charset, collation] in rows {
            let number = |text: Option<String>| text.and_then(|text| text.parse().ok());
            let counted = kind.is_some_and(|kind| kind.ends_with("char"));
            let described = Column {
                max_chars: number(chars).filter(|_| counted),
                max_bytes: number(bytes).filter(|_| !counted),
                repertoire: match charset.as_deref() {
                    None | Some("utf8mb4" | "binary") => Repertoire::All,
                    Some("utf8" | "utf8mb3") => Repertoire::ThreeBytes,
                    Some(_) => Repertoire::Ascii,
                },
                folds: collation.is_some_and(|name| !name.ends_with("_bin") && name != "binary"),
            };
            columns.insert((table.unwrap_or_default(), column.unwrap_or_default()), described);
        }
        Ok(Self { columns, returns_have_key: false })
    }

    /// One column; one without limits if the table has none of this name, as the server then tells what is wrong.
    pub(crate) fn column(&self, table: &str, column: &str) -> Column {
        self.columns.get(&(table.to_owned(), column.to_owned())).cloned().unwrap_or_default()
    }
}

async fn unique_on(db: &mut Db, table: &str, columns: &[&str]) -> Result<bool, Fault> {
    let rows = db
        .rows::<2>(format!(
            "SELECT INDEX_NAME, GROUP_CONCAT(COLUMN_NAME ORDER BY COLUMN_NAME) FROM information_schema.STATISTICS \
             WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}' AND NON_UNIQUE = 0 \
             GROUP BY INDEX_NAME HAVING COUNT(SUB_PART) = 0"
        ))
        .await?;
    let wanted = columns.join(",");
    Ok(rows.into_iter().any(|[_, names]| names.is_some_and(|names| names.eq_ignore_ascii_case(&wanted))))
}

impl Column {
    /// JSON text in this column's characters: what it lacks is written as JSON escapes, so nothing is lost.
    pub(crate) fn json<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.repertoire {
            Repertoire::All => Cow::Borrowed(text),
            Repertoire::ThreeBytes => json::escape(text, |c| c > '\u{ffff}'),
            Repertoire::Ascii => json::escape(text, |c| !c.is_ascii()),
        }
    }

    /// Why a text does not fit, or none if it does.
    pub(crate) fn too_long(&self, name: &str, text: &str) -> Option<String> {
        if let Some(max) = self.max_bytes
            && text.len() > max
        {
            return Some(format!(
                "{} bytes do not fit into the column `{name}`, which takes {max}; hint: make it a LONGTEXT",
                text.len()
            ));
        }
        if let Some(max) = self.max_chars
            && text.len() > max
        {
            let chars = text.chars().count();
            if chars > max {
                return Some(format!(
                    "{chars} characters do not fit into the column `{name}`, which takes {max}"
                ));
            }
        }
        None
    }

    /// A text changed to what the column takes, or none if it fits as it is.
    pub(crate) fn cut(&self, text: &str) -> Option<String> {
        let allowed = |c: char| match self.repertoire {
            Repertoire::All => true,
            Repertoire::ThreeBytes => c <= '\u{ffff}',
            Repertoire::Ascii => c.is_ascii(),
        };
        if self.too_long("", text).is_none() && text.chars().all(allowed) {
            return None;
        }
        let mut cut: String = text
            .chars()
            .map(|c| if allowed(c) { c } else { '?' })
            .take(self.max_chars.unwrap_or(usize::MAX))
            .collect();
        if let Some(max) = self.max_bytes {
            while cut.len() > max {
                cut.pop();
            }
        }
        Some(cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_column_cuts_by_characters_and_replaces_what_it_lacks() {
        let old = Column { max_chars: Some(4), repertoire: Repertoire::ThreeBytes, ..Column::default() };
        assert_eq!(old.cut("日本国民").as_deref(), None);
        assert_eq!(old.cut("日本🚀民x").as_deref(), Some("日本?民"));
        assert_eq!(old.json(r#"{"a": "日🚀"}"#), r#"{"a": "日\ud83d\ude80"}"#);
    }

    #[test]
    fn text_over_the_limit_is_named_with_its_size() {
        let text = Column { max_bytes: Some(5), ..Column::default() };
        let why = text.too_long("return", "äää").unwrap();
        assert!(why.contains("6 bytes") && why.contains("`return`") && why.contains('5'), "{why}");
        assert_eq!(Column::default().too_long("return", "äää"), None);
    }
}
