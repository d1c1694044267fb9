//! msgpack to `rmpv::Value` and back, without recursion.
//!
//! `rmpv` itself recurses once per level and trusts the lengths it reads. Here depth, the number of values and every
//! length are checked before anything is built, so that the memory taken stays in proportion to the input.

use rmp::Marker;
use rmpv::Value;

use super::{JsonError, MAX_MSGPACK_DEPTH, MAX_VALUES};

/// Reads exactly one value.
pub fn decode(bytes: &[u8]) -> Result<Value, JsonError> {
    let (value, used) = decode_prefix(bytes)?;
    if used < bytes.len() { Err(JsonError::Trailing { extra: bytes.len() - used }) } else { Ok(value) }
}

/// Reads one value and gives the number of bytes it took.
pub fn decode_prefix(bytes: &[u8]) -> Result<(Value, usize), JsonError> {
    let mut input = Input { bytes, at: 0, values: 0 };
    Ok((input.value()?, input.at))
}

/// A value of a map.
#[derive(Clone, Debug, PartialEq)]
pub enum Part<'a> {
    /// Its bytes, of which nothing is known but where they end.
    Raw(&'a [u8]),
    /// Itself.
    Read(Value),
}

/// Reads a map, but not the values of the keys `raw`. None if it is no map.
pub fn decode_parts<'a>(bytes: &'a [u8], raw: &[&str]) -> Result<Option<Vec<(Value, Part<'a>)>>, JsonError> {
    let mut input = Input { bytes, at: 0, values: 0 };
    let Head::Map(count) = input.head()? else { return Ok(None) };
    // Every value takes at least one byte, so a length beyond that is a lie.
    if count.saturating_mul(2) > input.left() {
        return Err(JsonError::Truncated);
    }
    let mut entries = Vec::with_capacity(count.min(1_024));
    for _ in 0..count {
        let key = input.value()?;
        let is_raw = raw.iter().any(|name| key.as_slice() == Some(name.as_bytes()));
        let part = if is_raw { Part::Raw(input.skip()?) } else { Part::Read(input.value()?) };
        entries.push((key, part));
    }
    match input.left() {
        0 => Ok(Some(entries)),
        extra => Err(JsonError::Trailing { extra }),
    }
}

enum Head {
    Leaf(Value),
    Array(usize),
    Map(usize),
}

enum Open {
    Array { items: Vec<Value>, left: usize },
    Map { entries: Vec<(Value, Value)>, key: Option<Value>, left: usize },
}

impl Open {
    fn new(head: Head, bytes_left: usize) -> Result<Open, JsonError> {
        // Every value takes at least one byte, so a length beyond that is a lie; do not reserve by it.
        let fits = |values: usize| if values > bytes_left { Err(JsonError::Truncated) } else { Ok(()) };
        Ok(match head {
            Head::Map(left) => {
                fits(left.saturating_mul(2))?;
                Open::Map { entries: Vec::with_capacity(left.min(1_024)), key: None, left }
            }
            Head::Array(left) => {
                fits(left)?;
                Open::Array { items: Vec::with_capacity(left.min(1_024)), left }
            }
            Head::Leaf(value) => Open::Array { items: vec![value], left: 0 },
        })
    }

    /// Adds a value and says whether the container is now complete.
    fn add(&mut self, value: Value) -> bool {
        match self {
            Open::Array { items, left } => {
                items.push(value);
                *left -= 1;
                *left == 0
            }
            Open::Map { entries, key, left } => match key.take() {
                None => {
                    *key = Some(value);
                    false
                }
                Some(name) => {
                    entries.push((name, value));
                    *left -= 1;
                    *left == 0
                }
            },
        }
    }

    fn close(self) -> Value {
        match self {
            Open::Array { items, .. } => Value::Array(items),
            Open::Map { entries, .. } => Value::Map(entries),
        }
    }
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Values that were read or passed over.
    values: usize,
}

impl<'a> Input<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn count(&mut self) -> Result<(), JsonError> {
        self.values += 1;
        if self.values > MAX_VALUES { Err(JsonError::TooMany) } else { Ok(()) }
    }

    /// One value with all that is in it.
    fn value(&mut self) -> Result<Value, JsonError> {
        let mut open: Vec<Open> = Vec::new();
        loop {
            self.count()?;
            let mut done = match self.head()? {
                Head::Leaf(value) => value,
                Head::Array(0) => Value::Array(Vec::new()),
                Head::Map(0) => Value::Map(Vec::new()),
                head => {
                    if open.len() >= MAX_MSGPACK_DEPTH {
                        return Err(JsonError::TooDeep { limit: MAX_MSGPACK_DEPTH });
                    }
                    open.push(Open::new(head, self.left())?);
                    continue;
                }
            };
            // Hand the value to the container it stands in; that may end the container, and so on upwards.
            loop {
                let Some(container) = open.last_mut() else { return Ok(done) };
                if !container.add(done) {
                    break;
                }
                match open.pop() {
                    Some(container) => done = container.close(),
                    None => return Err(JsonError::Truncated),
                }
            }
        }
    }

    /// The bytes of one value with all that is in it.
    fn skip(&mut self) -> Result<&'a [u8], JsonError> {
        let begin = self.at;
        let mut left = 1_usize;
        while left > 0 {
            left -= 1;
            self.count()?;
            let at = self.at;
            let [first] = self.array()?;
            let (values, bytes) = match Marker::from_u8(first) {
                Marker::FixArray(len) => (len.into(), 0),
                Marker::Array16 => (self.len16()?, 0),
                Marker::Array32 => (self.len32()?, 0),
                Marker::FixMap(len) => (2 * usize::from(len), 0),
                Marker::Map16 => (2 * self.len16()?, 0),
                Marker::Map32 => (self.len32()?.saturating_mul(2), 0),
                Marker::Null | Marker::True | Marker::False | Marker::FixPos(_) | Marker::FixNeg(_) => (0, 0),
                Marker::U8 | Marker::I8 => (0, 1),
                Marker::U16 | Marker::I16 => (0, 2),
                Marker::U32 | Marker::I32 | Marker::F32 => (0, 4),
                Marker::U64 | Marker::I64 | Marker::F64 => (0, 8),
                Marker::FixStr(len) => (0, len.into()),
                Marker::Str8 | Marker::Bin8 => (0, self.len8()?),
                Marker::Str16 | Marker::Bin16 => (0, self.len16()?),
                Marker::Str32 | Marker::Bin32 => (0, self.len32()?),
                // An extension has a byte more, its kind.
                Marker::FixExt1 => (0, 2),
                Marker::FixExt2 => (0, 3),
                Marker::FixExt4 => (0, 5),
                Marker::FixExt8 => (0, 9),
                Marker::FixExt16 => (0, 17),
                Marker::Ext8 => (0, self.len8()?.saturating_add(1)),
                Marker::Ext16 => (0, self.len16()?.saturating_add(1)),
                Marker::Ext32 => (0, self.len32()?.saturating_add(1)),
                Marker::Reserved => return Err(JsonError::Reserved { at }),
            };
            self.take(bytes)?;
            left = left.saturating_add(values);
            // Every value takes at least a byte.
            if left > self.left() {
                return Err(JsonError::Truncated);
            }
        }
        self.bytes.get(begin..self.at).ok_or(JsonError::Truncated)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], JsonError> {
        let end = self.at.checked_add(count).ok_or(JsonError::Truncated)?;
        let part = self.bytes.get(self.at..end).ok_or(JsonError::Truncated)?;
        self.at = end;
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], JsonError> {
        self.take(N)?.try_into().map_err(|_| JsonError::Truncated)
    }

    fn len8(&mut self) -> Result<usize, JsonError> {
        Ok(usize::from(u8::from_be_bytes(self.array()?)))
    }

    fn len16(&mut self) -> Result<usize, JsonError> {
        Ok(usize::from(u16::from_be_bytes(self.array()?)))
    }

    fn len32(&mut self) -> Result<usize, JsonError> {
        usize::try_from(u32::from_be_bytes(self.array()?)).map_err(|_| JsonError::Truncated)
    }

    fn head(&mut self) -> Result<Head, JsonError> {
        let start = self.at;
        let [first] = self.array()?;
        let leaf = match Marker::from_u8(first) {
            Marker::FixArray(len) => return Ok(Head::Array(len.into())),
            Marker::Array16 => return Ok(Head::Array(self.len16()?)),
            Marker::Array32 => return Ok(Head::Array(self.len32()?)),
            Marker::FixMap(len) => return Ok(Head::Map(len.into())),
            Marker::Map16 => return Ok(Head::Map(self.len16()?)),
            Marker::Map32 => return Ok(Head::Map(self.len32()?)),
            Marker::Null => Value::Nil,
            Marker::True => Value::Boolean(true),
            Marker::False => Value::Boolean(false),
            Marker::FixPos(number) => Value::from(number),
            Marker::FixNeg(number) => Value::from(number),
            Marker::U8 => Value::from(u8::from_be_bytes(self.array()?)),
            Marker::U16 => Value::from(u16::from_be_bytes(self.array()?)),
            Marker::U32 => Value::from(u32::from_be_bytes(self.array()?)),
            Marker::U64 => Value::from(u64::from_be_bytes(self.array()?)),
            Marker::I8 => Value::from(i8::from_be_bytes(self.array()?)),
            Marker::I16 => Value::from(i16::from_be_bytes(self.array()?)),
            Marker::I32 => Value::from(i32::from_be_bytes(self.array()?)),
            Marker::I64 => Value::from(i64::from_be_bytes(self.array()?)),
            Marker::F32 => Value::F32(f32::from_be_bytes(self.array()?)),
            Marker::F64 => Value::F64(f64::from_be_bytes(self.array()?)),
            Marker::FixStr(len) => self.text(start, len.into())?,
            Marker::Str8 => self.len8().and_then(|len| self.text(start, len))?,
            Marker::Str16 => self.len16().and_then(|len| self.text(start, len))?,
            Marker::Str32 => self.len32().and_then(|len| self.text(start, len))?,
            Marker::Bin8 => self.len8().and_then(|len| self.binary(len))?,
            Marker::Bin16 => self.len16().and_then(|len| self.binary(len))?,
            Marker::Bin32 => self.len32().and_then(|len| self.binary(len))?,
            Marker::FixExt1 => self.ext(1)?,
            Marker::FixExt2 => self.ext(2)?,
            Marker::FixExt4 => self.ext(4)?,
            Marker::FixExt8 => self.ext(8)?,
            Marker::FixExt16 => self.ext(16)?,
            Marker::Ext8 => self.len8().and_then(|len| self.ext(len))?,
            Marker::Ext16 => self.len16().and_then(|len| self.ext(len))?,
            Marker::Ext32 => self.len32().and_then(|len| self.ext(len))?,
            Marker::Reserved => return Err(JsonError::Reserved { at: start }),
        };
        Ok(Head::Leaf(leaf))
    }

    fn text(&mut self, start: usize, len: usize) -> Result<Value, JsonError> {
        let bytes = self.take(len)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Value::from(text)),
            // Only `rmpv`'s own reader can build text that is not UTF-8.
            Err(_) => {
                let mut whole = self.bytes.get(start..self.at).ok_or(JsonError::Truncated)?;
                rmpv::decode::read_value(&mut whole).map_err(|_| JsonError::Truncated)
            }
        }
    }

    fn binary(&mut self, len: usize) -> Result<Value, JsonError> {
        Ok(Value::Binary(self.take(len)?.to_vec()))
    }

    fn ext(&mut self, len: usize) -> Result<Value, JsonError> {
        let [kind] = self.array()?;
        Ok(Value::Ext(i8::from_be_bytes([kind]), self.take(len)?.to_vec()))
    }
}

/// The msgpack of a value.
pub fn encode(value: &Value) -> Vec<u8> {
    enum Step<'a> {
        Items(std::slice::Iter<'a, Value>),
        Entries(std::slice::Iter<'a, (Value, Value)>, Option<&'a Value>),
    }
    let mut out = Vec::new();
    let mut open: Vec<Step<'_>> = Vec::new();
    let mut next = Some(value);
    loop {
        match next.take() {
            Some(Value::Array(items)) => {
                array_head(&mut out, items.len());
                open.push(Step::Items(items.iter()));
            }
            Some(Value::Map(entries)) => {
                map_head(&mut out, entries.len());
                open.push(Step::Entries(entries.iter(), None));
            }
            Some(leaf) => write_leaf(&mut out, leaf),
            None => {}
        }
        let Some(step) = open.last_mut() else { return out };
        next = match step {
            Step::Items(items) => items.next(),
            Step::Entries(entries, pending) => pending.take().or_else(|| {
                entries.next().map(|(key, value)| {
                    *pending = Some(value);
                    key
                })
            }),
        };
        if next.is_none() {
            open.pop();
        }
    }
}

fn length(len: usize) -> u32 {
    // A frame is far below 4 GiB; a longer one is refused by its size before it is sent.
    u32::try_from(len).unwrap_or(u32::MAX)
}

// Writing into a `Vec` cannot fail.
fn array_head(out: &mut Vec<u8>, len: usize) {
    let _ = rmp::encode::write_array_len(out, length(len));
}

fn map_head(out: &mut Vec<u8>, len: usize) {
    let _ = rmp::encode::write_map_len(out, length(len));
}

fn write_leaf(out: &mut Vec<u8>, value: &Value) {
    match value {
        // `rmpv` would write text that is not UTF-8 as binary.
        Value::String(text) => {
            let _ = rmp::encode::write_str_len(out, length(text.as_bytes().len()));
            out.extend_from_slice(text.as_bytes());
        }
        other => {
            let _ = rmpv::encode::write_value(out, other);
        }
    }
}
