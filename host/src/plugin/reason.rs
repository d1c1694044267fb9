//! What a plugin says, as it may be shown: its reasons and its log lines.
//!
//! Invariants: no value of an option marked secret is in it, nothing that steers a terminal, and a reason is not endless.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::bindings::types::{Failure, RetryInfo, Verdict};
use super::limits::MAX_REASON;

/// A shorter secret would make every text unreadable, and is none.
const SHORTEST: usize = 4;

/// A line of a secret of several lines, such as a key, is hidden by itself if it has so many bytes.
const SHORTEST_LINE: usize = 16;

/// The secrets of one sink.
#[derive(Clone, Default)]
pub struct Secrets {
    values: Arc<[String]>,
}

impl Secrets {
    /// The values of these options, as the plugin gets them.
    pub fn new<'a>(options: &Map<String, Value>, names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut values = Vec::new();
        for name in names {
            let text = match options.get(name) {
                Some(Value::String(text)) => text.clone(),
                Some(Value::Null) | None => continue,
                Some(other) => other.to_string(),
            };
            if text.contains('\n') {
                values.extend(
                    text.lines().map(str::trim).filter(|line| line.len() >= SHORTEST_LINE).map(str::to_owned),
                );
            }
            values.push(text);
        }
        values.retain(|text| text.trim().len() >= SHORTEST);
        // The longest first: one may be a part of another.
        values.sort_by_key(|text| std::cmp::Reverse(text.len()));
        Self { values: values.into() }
    }

    /// The text with `********` in place of secrets.
    pub fn hide(&self, mut text: String) -> String {
        for secret in self.values.iter() {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), "********");
            }
        }
        text
    }

    /// A reason as it can be shown.
    pub fn reason(&self, why: String) -> String {
        let why = self.hide(why);
        let mut end = why.len().min(MAX_REASON);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        let (cut, plain) = (end < why.len(), |c: char| !c.is_control() || c == '\n' || c == '\t');
        if !cut && why.chars().all(plain) {
            return why;
        }
        let mut text: String = why[..end].chars().map(|c| if plain(c) { c } else { '\u{fffd}' }).collect();
        if cut {
            text.push('…');
        }
        text
    }

    pub(super) fn verdict(&self, verdict: Verdict) -> Verdict {
        match verdict {
            Verdict::Stored => Verdict::Stored,
            Verdict::Retry(info) => Verdict::Retry(RetryInfo { why: self.reason(info.why), ..info }),
            Verdict::Reject(why) => Verdict::Reject(self.reason(why)),
        }
    }

    pub(super) fn failure(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Retry(info) => Failure::Retry(RetryInfo { why: self.reason(info.why), ..info }),
            Failure::Reject(why) => Failure::Reject(self.reason(why)),
            Failure::Fatal(why) => Failure::Fatal(self.reason(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(value: Value) -> Secrets {
        let options = Map::from_iter([("pass".to_owned(), value), ("host".to_owned(), Value::from("db1"))]);
        Secrets::new(&options, ["pass", "token"])
    }

    #[test]
    fn secrets_are_hidden_also_where_a_text_is_cut() {
        let secrets = secrets(Value::from("hunter22"));
        assert_eq!(secrets.reason("no entry for hunter22 on db1".into()), "no entry for ******** on db1");
        let before = "x".repeat(MAX_REASON - 4);
        assert!(!secrets.reason(format!("{before}hunter22 and more")).contains("hunt"));
    }

    #[test]
    fn every_line_of_a_key_is_hidden() {
        let secrets = secrets(Value::from("-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nab\n"));
        assert_eq!(secrets.hide("bad line MIIEvQIBADANBgkqhkiG9w0, ab".into()), "bad line ********, ab");
    }

    #[test]
    fn short_and_empty_values_hide_nothing() {
        for value in [Value::from(""), Value::from("a"), Value::Null] {
            assert_eq!(secrets(value).hide("a banana".into()), "a banana");
        }
    }

    #[test]
    fn a_reason_is_cut_and_cannot_steer_a_terminal() {
        let secrets = Secrets::default();
        assert_eq!(secrets.reason("no route\nto host".into()), "no route\nto host");
        assert_eq!(secrets.reason("a\u{1b}[2Jb".into()), "a\u{fffd}[2Jb");
        let long = secrets.reason("ü".repeat(MAX_REASON));
        assert!(long.len() <= MAX_REASON + '…'.len_utf8() && long.ends_with("ü…"), "{}", long.len());
    }
}
