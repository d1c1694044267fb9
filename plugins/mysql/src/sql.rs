//! Statements as text: quoting, and inserts of many rows under the server's packet limit.
//!
//! Text statements need one round trip for any number of rows and no statement kept at the server. Quoting relies on
//! the session's SQL mode and character set, which `connect` sets.

use memchr::memchr3_iter;
use returner_sdk::Verdict;

use crate::connect::Db;
use crate::fault::{Fault, text};

/// What a packet holds beside a statement's rows.
const PACKET_OVERHEAD: usize = 1024;

/// Appends a quoted text.
pub(crate) fn quote(out: &mut String, value: &str) {
    out.reserve(value.len() + 2);
    out.push('\'');
    let mut written = 0;
    for at in memchr3_iter(b'\'', b'\\', 0, value.as_bytes()) {
        out.push_str(&value[written..at]);
        out.push_str(match value.as_bytes()[at] {
            b'\'' => "\\'",
            b'\\' => "\\\\",
            _ => "\\0",
        });
        written = at + 1;
    }
    out.push_str(&value[written..]);
    out.push('\'');
}

/// A quoted text.
pub(crate) fn quoted(value: &str) -> String {
    let mut out = String::new();
    quote(&mut out, value);
    out
}

/// A list for `IN`; it must not be empty.
pub(crate) fn list<'a>(values: impl IntoIterator<Item = &'a str>) -> String {
    let mut out = String::from("(");
    for value in values {
        if out.len() > 1 {
            out.push(',');
        }
        quote(&mut out, value);
    }
    out.push(')');
    out
}

/// A moment as SQL, from milliseconds since 1970. One that a TIMESTAMP cannot hold is now.
pub(crate) fn moment(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 86_400..=2_147_397_247 => format!("FROM_UNIXTIME({seconds})"),
        _ => "CURRENT_TIMESTAMP".to_owned(),
    }
}

/// One row of an insert.
pub(crate) struct InsertRow {
    /// Which record it is, among the verdicts.
    pub(crate) index: usize,
    /// The row in parentheses.
    pub(crate) values: String,
}

/// Inserts rows with as few statements as the packet limit allows; gives how many rows the server added or changed.
///
/// Rows that the server refuses for their values, and rows over the packet limit, get their verdict here; all others
/// keep theirs.
pub(crate) async fn insert(
    db: &mut Db,
    head: &str,
    rows: &[InsertRow],
    tail: &str,
    verdicts: &mut [Verdict],
) -> Result<u64, Fault> {
    let fixed = head.len() + tail.len() + PACKET_OVERHEAD;
    let limit = db.max_packet.saturating_sub(fixed);
    let aim = (db.max_packet / 2).saturating_sub(fixed);
    let mut affected = 0;
    let mut at = 0;
    while let Some(first) = rows.get(at) {
        if first.values.len() > limit {
            verdicts[first.index] = Verdict::Reject(format!(
                "a row of {} bytes is over the server's limit of {}; hint: raise `max_allowed_packet` at the server",
                first.values.len(),
                db.max_packet
            ));
            at += 1;
            continue;
        }
        let mut size = first.values.len();
        let mut end = at + 1;
        while let Some(next) = rows.get(end)
            && size + next.values.len() < aim
        {
            size += next.values.len() + 1;
            end += 1;
        }
        affected += insert_or_split(db, head, &rows[at..end], tail, verdicts).await?;
        at = end;
    }
    Ok(affected)
}

async fn insert_or_split(
    db: &mut Db,
    head: &str,
    rows: &[InsertRow],
    tail: &str,
    verdicts: &mut [Verdict],
) -> Result<u64, Fault> {
    let mut affected = 0;
    let mut parts = vec![rows];
    while let Some(part) = parts.pop() {
        let mut sql = String::with_capacity(
            head.len() + tail.len() + part.iter().map(|row| row.values.len() + 1).sum::<usize>(),
        );
        sql.push_str(head);
        for (position, row) in part.iter().enumerate() {
            if position > 0 {
                sql.push(',');
            }
            sql.push_str(&row.values);
        }
        sql.push_str(tail);
        match db.exec(&sql).await {
            Ok(rows) => affected += rows,
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
    Ok(affected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_leaves_no_way_out() {
        assert_eq!(quoted(r"a'b\c"), r"'a\'b\\c'");
        assert_eq!(quoted("\0'"), r"'\0\''");
        assert_eq!(quoted(r#"{"a": "日本\n"}"#), r#"'{"a": "日本\\n"}'"#);
        assert_eq!(list(["a", "b'"]), r"('a','b\'')");
    }

    #[test]
    fn a_moment_that_no_timestamp_holds_is_now() {
        assert_eq!(moment(1_796_096_499_123), "FROM_UNIXTIME(1796096499)");
        assert_eq!(moment(0), "CURRENT_TIMESTAMP");
        assert_eq!(moment(u64::MAX), "CURRENT_TIMESTAMP");
    }
}
