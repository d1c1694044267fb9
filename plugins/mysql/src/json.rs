//! JSON text on its way into a column and back.

use std::borrow::Cow;
use std::fmt::Write as _;

use returner_sdk::serde_json::{self, Value};

/// JSON text with some characters as `\u` escapes. Such characters stand only inside JSON's texts, so any reader of
/// JSON sees the same document.
pub(crate) fn escape(text: &str, must: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&must) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        if must(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// A text as JSON.
pub(crate) fn string(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// A stored text as a JSON document; none if it is not JSON by any reading. Salt itself writes `NaN` and `Infinity`
/// bare, and some versions of it stored a document as a JSON text of itself.
pub(crate) fn document(stored: String) -> Option<String> {
    if is_json(&stored) {
        if !stored.trim_start().starts_with('"') {
            return Some(stored);
        }
        let inner = serde_json::from_str::<String>(&stored).ok();
        return Some(inner.filter(|inner| is_object(inner)).unwrap_or(stored));
    }
    let quoted = quote_constants(&stored);
    is_json(&quoted).then_some(quoted)
}

/// Whether a text is a JSON object.
pub(crate) fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && is_json(text)
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

fn quote_constants(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let (mut rest, mut inside) = (text, false);
    while let Some(c) = rest.chars().next() {
        let constant =
            ["NaN", "-Infinity", "Infinity"].into_iter().find(|word| !inside && rest.starts_with(word));
        let taken = match constant {
            Some(word) => {
                out.push('"');
                out.push_str(word);
                out.push('"');
                word.len()
            }
            None => {
                let escaped =
                    if inside && c == '\\' { rest[1..].chars().next().map_or(0, char::len_utf8) } else { 0 };
                inside ^= c == '"';
                let taken = c.len_utf8() + escaped;
                out.push_str(&rest[..taken]);
                taken
            }
        };
        rest = &rest[taken..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_salt_wrote_is_read() {
        assert_eq!(document(r#"{"a": 1}"#.into()).as_deref(), Some(r#"{"a": 1}"#));
        assert_eq!(document(r#""{\"a\": 1}""#.into()).as_deref(), Some(r#"{"a": 1}"#));
        assert_eq!(document(r#""{}""#.into()).as_deref(), Some("{}"));
        assert_eq!(document(r#""text""#.into()).as_deref(), Some(r#""text""#));
        assert_eq!(document("{'a': 1}".into()), None);
        let bare = r#"{"x": NaN, "y": [-Infinity, Infinity], "z": "a \"NaN\" \\"}"#;
        let quoted = r#"{"x": "NaN", "y": ["-Infinity", "Infinity"], "z": "a \"NaN\" \\"}"#;
        assert_eq!(document(bare.into()).as_deref(), Some(quoted));
    }

    #[test]
    fn deep_documents_are_read() {
        let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
        assert_eq!(document(deep.clone()), Some(deep));
    }
}
