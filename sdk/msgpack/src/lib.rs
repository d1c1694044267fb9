//! From Salt's msgpack to JSON text, by the table at the top of `wit/0.1.0/types.wit`, and back. The host reads Salt's frames with
//! it; plugins whose stores hold Salt's own msgpack have it as `returner_sdk::msgpack`.
//!
//! Invariants: nothing here recurses with the depth of its input, so a hostile frame cannot overflow the stack; what
//! comes out is always JSON that any reader accepts, with no key twice in one object; it is at most `MAX_DEPTH` deep.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

#[cfg(test)]
mod tests;
mod text;
mod wire;

use text::{clean_text, date_time, float_text, quote, without_nul, write_binary, write_bytes, write_float};

pub use rmpv::Value;
pub use wire::{Part, decode, decode_parts, decode_prefix, encode};

/// How deep JSON text may be nested.
pub const MAX_DEPTH: usize = 1_000;

/// How deep msgpack may be nested: a little more, since a frame wraps what becomes JSON.
pub const MAX_MSGPACK_DEPTH: usize = 1_016;

/// How many values one piece of msgpack may hold. In memory a value takes about 40 bytes, on the wire perhaps one.
pub const MAX_VALUES: usize = 8_000_000;

/// What Salt puts in place of a value that made an event too large.
const TRIMMED: &str = "VALUE_TRIMMED";

/// Maps and constants that stand in map keys or constants: each level doubles the backslashes, so few are allowed.
const MAX_EMBEDDED: usize = 3;

/// The key that marks bytes in JSON.
const BYTES: &str = "__bytes__";

const DATE_TIME: i8 = 78;
const CONSTANT: i8 = 79;

/// Why bytes are no msgpack, or have no JSON.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The bytes end inside a value.
    #[error("the msgpack ends in the middle of a value")]
    Truncated,
    /// Something follows the value.
    #[error("{extra} bytes follow the msgpack value")]
    Trailing {
        /// How many bytes are left.
        extra: usize,
    },
    /// The byte `C1`, which msgpack does not use.
    #[error("byte {at} of the msgpack is 0xc1, which has no meaning")]
    Reserved {
        /// Offset from the start.
        at: usize,
    },
    /// More levels than allowed.
    #[error("the value is nested more than {limit} levels deep")]
    TooDeep {
        /// The number of levels allowed.
        limit: usize,
    },
    /// More than `MAX_VALUES`.
    #[error("the msgpack holds more than {MAX_VALUES} values")]
    TooMany,
    /// Maps in keys of maps in keys of maps.
    #[error("a map key holds other map keys more than {MAX_EMBEDDED} levels deep")]
    Embedded,
    /// Text that should be JSON and is not.
    #[error("the text is not JSON")]
    NotJson(#[source] serde_json::Error),
}

/// The JSON text of a value.
pub fn to_json(value: &Value) -> Result<String, JsonError> {
    let mut out = String::new();
    write(&mut out, value, 0, 0, None)?;
    Ok(out)
}

/// The JSON text of a map, and where in it the value of the top-level key `part` stands.
pub fn to_json_with_part(value: &Value, part: &str) -> Result<(String, Option<Range<usize>>), JsonError> {
    let mut out = String::new();
    let range = write(&mut out, value, 0, 0, Some(part))?;
    Ok((out, range))
}

/// The same as a tree, for values that the host looks into (configuration).
pub fn to_tree(value: &Value) -> Result<serde_json::Value, JsonError> {
    parse(&to_json(value)?)
}

/// Reads JSON text of at most `MAX_DEPTH` levels.
pub fn parse(text: &str) -> Result<serde_json::Value, JsonError> {
    check_depth(text)?;
    let mut reader = serde_json::Deserializer::from_str(text);
    reader.disable_recursion_limit();
    let value = serde::Deserialize::deserialize(&mut reader).map_err(JsonError::NotJson)?;
    reader.end().map_err(JsonError::NotJson)?;
    Ok(value)
}

/// Reads JSON text into what the same value would be in a frame. Marked values (`__bytes__`) stay as they are.
pub fn from_json(text: &str) -> Result<Value, JsonError> {
    Ok(from_tree(parse(text)?))
}

/// Makes bytes again of what stands for bytes: `{"__bytes__": "<base64>"}`, and `"__bytes__:<base64>"` as a key. What only looks like
/// it stays as it is.
pub fn with_bytes(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(with_bytes).collect()),
        Value::Map(entries) => match marked(&entries) {
            Some(bytes) => Value::Binary(bytes),
            None => Value::Map(
                entries.into_iter().map(|(key, value)| (key_with_bytes(key), with_bytes(value))).collect(),
            ),
        },
        leaf => leaf,
    }
}

fn marked(entries: &[(Value, Value)]) -> Option<Vec<u8>> {
    match entries {
        [(key, value)] if key.as_str() == Some(BYTES) => BASE64.decode(value.as_str()?).ok(),
        _ => None,
    }
}

fn key_with_bytes(key: Value) -> Value {
    let encoded =
        key.as_str().and_then(|text| text.strip_prefix(BYTES)).and_then(|rest| rest.strip_prefix(':'));
    match encoded.and_then(|encoded| BASE64.decode(encoded).ok()) {
        Some(bytes) => Value::Binary(bytes),
        None => key,
    }
}

/// A JSON tree as msgpack. An integer outside 64 bits has become a float when the text was read.
pub fn from_tree(tree: serde_json::Value) -> Value {
    match tree {
        serde_json::Value::Null => Value::Nil,
        serde_json::Value::Bool(flag) => Value::Boolean(flag),
        serde_json::Value::Number(number) => from_number(&number),
        serde_json::Value::String(text) => Value::String(text.into()),
        serde_json::Value::Array(items) => Value::Array(items.into_iter().map(from_tree).collect()),
        serde_json::Value::Object(map) => from_map(map),
    }
}

// Separate so that `from_tree`, which recurses, has a small stack frame.
#[inline(never)]
fn from_map(map: serde_json::Map<String, serde_json::Value>) -> Value {
    Value::Map(map.into_iter().map(|(key, value)| (Value::String(key.into()), from_tree(value))).collect())
}

#[inline(never)]
fn from_number(number: &serde_json::Number) -> Value {
    match (number.as_u64(), number.as_i64(), number.as_f64()) {
        (Some(n), _, _) => Value::from(n),
        (_, Some(n), _) => Value::from(n),
        (_, _, Some(n)) => Value::F64(n),
        (None, None, None) => Value::Nil,
    }
}

/// JSON text of a tree, spaced as Python spaces it.
pub fn tree_to_text(tree: serde_json::Value) -> Result<String, JsonError> {
    to_json(&from_tree(tree))
}

/// Whether the value, or any value in it, is Salt's mark for one that was too large.
pub fn is_trimmed(value: &Value) -> bool {
    let mut todo = vec![value];
    while let Some(value) = todo.pop() {
        match value {
            Value::String(text) if text.as_str() == Some(TRIMMED) => return true,
            Value::Array(items) => todo.extend(items),
            Value::Map(entries) => todo.extend(entries.iter().map(|(_, value)| value)),
            _ => {}
        }
    }
    false
}

/// The text of a text or UTF-8 binary value, by the rules for text; none for other values.
pub fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => clean_text(text.as_bytes()),
        Value::Binary(bytes) => std::str::from_utf8(bytes).ok().map(without_nul),
        _ => None,
    }
}

fn check_depth(text: &str) -> Result<(), JsonError> {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(JsonError::TooDeep { limit: MAX_DEPTH });
                }
            }
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

enum Open<'a> {
    Array(std::slice::Iter<'a, Value>),
    Map(Keyed<'a>),
}

/// The entries of a map by their keys as text, each once, in order.
enum Keyed<'a> {
    /// All keys are texts that can stay as they are.
    Plain(std::slice::Iter<'a, (Value, Value)>),
    Mixed(std::vec::IntoIter<(Cow<'a, str>, &'a Value)>),
}

impl<'a> Iterator for Keyed<'a> {
    type Item = (Cow<'a, str>, &'a Value);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Plain(entries) => {
                entries.next().map(|(key, value)| (key.as_str().unwrap_or_default().into(), value))
            }
            Self::Mixed(entries) => entries.next(),
        }
    }
}

/// Writes `value`, which stands `depth` levels down, and gives the place of the top-level key `part`.
fn write(
    out: &mut String,
    value: &Value,
    depth: usize,
    embedded: usize,
    part: Option<&str>,
) -> Result<Option<Range<usize>>, JsonError> {
    let mut open: Vec<(Open<'_>, bool)> = Vec::new();
    let mut next = Some(value);
    let mut part_start = None;
    let mut part_range = None;
    loop {
        if let Some(value) = next.take() {
            let level = depth + open.len();
            match value {
                Value::Array(items) => {
                    check_level(level)?;
                    out.push('[');
                    open.push((Open::Array(items.iter()), true));
                }
                Value::Map(entries) => {
                    check_level(level)?;
                    out.push('{');
                    open.push((Open::Map(keyed(entries, level, embedded)?), true));
                }
                leaf => write_leaf(out, leaf, level, embedded)?,
            }
        }
        if open.len() == 1
            && let Some(start) = part_start.take()
        {
            part_range = Some(start..out.len());
        }
        let top = open.len() == 1;
        let Some((container, first)) = open.last_mut() else { return Ok(part_range) };
        let comma = if std::mem::take(first) { "" } else { ", " };
        match container {
            Open::Array(items) => match items.next() {
                Some(item) => {
                    out.push_str(comma);
                    next = Some(item);
                }
                None => {
                    out.push(']');
                    open.pop();
                }
            },
            Open::Map(entries) => match entries.next() {
                Some((key, value)) => {
                    out.push_str(comma);
                    quote(out, &key);
                    out.push_str(": ");
                    if top && part.is_some_and(|part| part == key) {
                        part_start = Some(out.len());
                    }
                    next = Some(value);
                }
                None => {
                    out.push('}');
                    open.pop();
                }
            },
        }
    }
}

fn check_level(level: usize) -> Result<(), JsonError> {
    if level < MAX_DEPTH { Ok(()) } else { Err(JsonError::TooDeep { limit: MAX_DEPTH }) }
}

fn write_leaf(out: &mut String, value: &Value, level: usize, embedded: usize) -> Result<(), JsonError> {
    match value {
        Value::Nil => out.push_str("null"),
        Value::Boolean(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Integer(number) => {
            let _ = write!(out, "{number}");
        }
        Value::F32(number) => write_float(out, f64::from(*number)),
        Value::F64(number) => write_float(out, *number),
        Value::String(text) => match text.as_str().map(Cow::Borrowed).or_else(|| clean_text(text.as_bytes()))
        {
            Some(text) => quote(out, &text),
            None => write_bytes(out, text.as_bytes()),
        },
        Value::Binary(bytes) => write_binary(out, bytes),
        Value::Ext(CONSTANT, bytes) => match constant(bytes) {
            Some(_) if embedded >= MAX_EMBEDDED => return Err(JsonError::Embedded),
            Some(pair) => write(out, &pair, level, embedded + 1, None).map(|_| ())?,
            None => write_binary(out, bytes),
        },
        Value::Ext(DATE_TIME, bytes) => match date_time(bytes) {
            Some(text) => quote(out, &text),
            None => write_binary(out, bytes),
        },
        Value::Ext(_, bytes) => write_binary(out, bytes),
        // Containers are written by `write`.
        Value::Array(_) | Value::Map(_) => {}
    }
    Ok(())
}

fn constant(bytes: &[u8]) -> Option<Value> {
    decode(bytes).ok().filter(Value::is_array)
}

fn keyed<'a>(entries: &'a [(Value, Value)], level: usize, embedded: usize) -> Result<Keyed<'a>, JsonError> {
    if entries.iter().all(|(key, _)| plain_key(key).is_some()) && all_differ(entries) {
        return Ok(Keyed::Plain(entries.iter()));
    }
    mixed_keys(entries, level, embedded).map(|entries| Keyed::Mixed(entries.into_iter()))
}

fn plain_key(key: &Value) -> Option<&str> {
    key.as_str().filter(|text| key.is_str() && !text.as_bytes().contains(&0))
}

fn all_differ(entries: &[(Value, Value)]) -> bool {
    let mut keys = entries.iter().map(|(key, _)| key.as_slice());
    if entries.len() <= 8 {
        return keys
            .enumerate()
            .all(|(at, key)| entries.iter().take(at).all(|(other, _)| other.as_slice() != key));
    }
    let mut seen = HashSet::with_capacity(entries.len());
    keys.all(|key| seen.insert(key))
}

/// The general case. Of equal keys the last value stands at the first place, as in Python; a key that only looks
/// like another has its type added.
fn mixed_keys<'a>(
    entries: &'a [(Value, Value)],
    level: usize,
    embedded: usize,
) -> Result<Vec<(Cow<'a, str>, &'a Value)>, JsonError> {
    let mut keys: Vec<(Cow<'a, str>, &'static str, &'a Value)> = Vec::with_capacity(entries.len());
    let mut places: HashMap<(Cow<'a, str>, &'static str), usize> = HashMap::new();
    for (key, value) in entries {
        let (text, kind) = match plain_key(key) {
            Some(text) => (text.into(), ""),
            None => odd_key(key, level, embedded)?,
        };
        match places.entry((text.clone(), kind)) {
            std::collections::hash_map::Entry::Occupied(place) => {
                if let Some(entry) = keys.get_mut(*place.get()) {
                    entry.2 = value;
                }
            }
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(keys.len());
                keys.push((text, kind, value));
            }
        }
    }
    let mut taken: HashSet<Cow<'a, str>> =
        keys.iter().filter(|(_, kind, _)| kind.is_empty()).map(|(text, _, _)| text.clone()).collect();
    let unique = keys.into_iter().map(|(mut text, kind, value)| {
        if !kind.is_empty() {
            while taken.contains(&text) {
                text = format!("{text} ({kind})").into();
            }
            taken.insert(text.clone());
        }
        (text, value)
    });
    Ok(unique.collect())
}

/// The text and the type of a key that is not plain text.
fn odd_key(key: &Value, level: usize, embedded: usize) -> Result<(Cow<'_, str>, &'static str), JsonError> {
    Ok(match key {
        Value::Nil => ("null".into(), "null"),
        Value::Boolean(flag) => (if *flag { "true" } else { "false" }.into(), "bool"),
        Value::Integer(number) => (number.to_string().into(), "int"),
        Value::F32(number) => (float_text(f64::from(*number)), "float"),
        Value::F64(number) => (float_text(*number), "float"),
        Value::String(text) => {
            (clean_text(text.as_bytes()).unwrap_or_else(|| key_bytes(text.as_bytes())), "str")
        }
        Value::Binary(bytes) | Value::Ext(_, bytes) => match (key, date_time(bytes)) {
            (Value::Ext(DATE_TIME, _), Some(text)) => (text.into(), "datetime"),
            (Value::Ext(CONSTANT, _), _) if constant(bytes).is_some() => {
                (composite_key(key, level, embedded)?, "constant")
            }
            _ => (std::str::from_utf8(bytes).map_or_else(|_| key_bytes(bytes), without_nul), "bytes"),
        },
        Value::Array(_) => (composite_key(key, level, embedded)?, "list"),
        Value::Map(_) => (composite_key(key, level, embedded)?, "map"),
    })
}

fn key_bytes(bytes: &[u8]) -> Cow<'static, str> {
    format!("__bytes__:{}", BASE64.encode(bytes)).into()
}

fn composite_key(key: &Value, level: usize, embedded: usize) -> Result<Cow<'static, str>, JsonError> {
    if embedded >= MAX_EMBEDDED {
        return Err(JsonError::Embedded);
    }
    let mut out = String::new();
    write(&mut out, key, level + 1, embedded + 1, None)?;
    Ok(out.into())
}
