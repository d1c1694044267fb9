//! JSON text on its way into an outside system and back.
//!
//! Documents may be nested up to 1,000 levels, which is more than serde_json reads by itself: use [`parse`] and
//! [`is_json`]. Text is spaced as Python's `json.dumps` does it, so that queries on the text which were written for
//! Salt's own returners keep working.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Deserializer, Serializer, Value};

/// A text as JSON.
pub fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// An object of keys and JSON values, in their order.
pub fn object<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::from("{");
    for (index, (key, value)) in fields.into_iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let _ = write!(text, "{comma}{}: {value}", quoted(key));
    }
    text.push('}');
    text
}

/// A value as text.
pub fn to_text(value: &Value) -> String {
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, PythonSpacing);
    match serde::Serialize::serialize(value, &mut serializer) {
        Ok(()) => String::from_utf8(out).unwrap_or_default(),
        Err(_) => String::new(),
    }
}

/// A text as a value; none if it is no JSON.
pub fn parse(text: &str) -> Option<Value> {
    whole(text)
}

/// Whether a text is JSON.
pub fn is_json(text: &str) -> bool {
    whole::<serde::de::IgnoredAny>(text).is_some()
}

/// Whether a text is a JSON object.
pub fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && is_json(text)
}

/// JSON text with some characters as `\u` escapes. Such characters must be ones that stand only inside JSON's texts; then any
/// reader of JSON sees the same document.
pub fn escape(text: &str, must: impl Fn(char) -> bool) -> Cow<'_, str> {
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

/// A stored text as a JSON document; none if it is not JSON by any reading. Salt itself writes `NaN` and `Infinity`
/// bare, and some versions of it stored a document as a JSON text of itself.
pub fn document(stored: String) -> Option<String> {
    let text = if is_json(&stored) { stored } else { repaired(&stored)? };
    if !text.trim_start().starts_with('"') {
        return Some(text);
    }
    let inner = serde_json::from_str::<String>(&text).ok().and_then(document);
    Some(inner.filter(|inner| is_object(inner)).unwrap_or(text))
}

/// The text if it is JSON, with Python's names for special numbers in quotes where those are all that is wrong; else none.
pub fn repaired(text: &str) -> Option<String> {
    if is_json(text) {
        return Some(text.to_owned());
    }
    let quoted = quote_constants(text);
    is_json(&quoted).then_some(quoted)
}

/// A stored load as the text of an object; none if nobody can read it.
pub fn load(stored: String) -> Option<String> {
    document(stored).filter(|text| is_object(text))
}

fn whole<'de, T: Deserialize<'de>>(text: &'de str) -> Option<T> {
    let mut deserializer = Deserializer::from_str(text);
    deserializer.disable_recursion_limit();
    let value = T::deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(value)
}

/// Quotes `NaN`, `Infinity` and `-Infinity` outside of texts, as the host does it.
fn quote_constants(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let (mut rest, mut inside) = (text, false);
    while let Some(c) = rest.chars().next() {
        let constant =
            ["NaN", "-Infinity", "Infinity"].into_iter().find(|word| !inside && rest.starts_with(word));
        let taken = match constant {
            Some(word) => {
                let _ = write!(out, "\"{word}\"");
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

struct PythonSpacing;

impl serde_json::ser::Formatter for PythonSpacing {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }
    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }
    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
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
        let named = r#"{"x": "NaN", "y": ["-Infinity", "Infinity"], "z": "a \"NaN\" \\"}"#;
        assert_eq!(document(bare.into()).as_deref(), Some(named));
    }

    #[test]
    fn a_load_that_was_encoded_twice_is_decoded() {
        assert_eq!(load(r#""{\"fun\": \"f\"}""#.into()).as_deref(), Some(r#"{"fun": "f"}"#));
        assert_eq!(load(r#""{\"fun\": NaN}""#.into()).as_deref(), Some(r#"{"fun": "NaN"}"#));
        assert_eq!(load("[1]".into()), None);
        assert_eq!(load("{'fun': 'f'}".into()), None);
    }

    #[test]
    fn deep_documents_are_read_and_written() {
        let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
        assert_eq!(document(deep.clone()), Some(deep.clone()));
        assert_eq!(to_text(&parse(&deep).unwrap()), deep);
    }

    #[test]
    fn text_is_spaced_as_python_does_it() {
        let value = parse(r#"{"a":[1,2.0],"ä":{}}"#).unwrap();
        assert_eq!(to_text(&value), r#"{"a": [1, 2.0], "ä": {}}"#);
        assert_eq!(object([("a", "1"), ("b\"", "[]")]), r#"{"a": 1, "b\"": []}"#);
        assert_eq!(escape("\"a🚀\"", |c| c > '\u{ffff}'), r#""a\ud83d\ude80""#);
    }
}
