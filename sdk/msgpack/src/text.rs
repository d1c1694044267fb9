//! Texts, bytes, floats and times as they stand in JSON.
//!
//! Invariant: what is written is a JSON text that any reader accepts; a NUL, which PostgreSQL cannot store, never is in it, not even
//! escaped.

use std::borrow::Cow;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// How many bytes are looked at at once. A loop of that length without an exit becomes a few instructions on vectors.
const CHUNK: usize = 16;

/// Shortest text that reads back equal. Rust's own always has a point or an exponent.
pub(crate) fn float_text(number: f64) -> Cow<'static, str> {
    match number {
        n if n.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        n => format!("{n:?}").into(),
    }
}

pub(crate) fn write_float(out: &mut String, number: f64) {
    if number.is_finite() {
        let _ = write!(out, "{number:?}");
    } else {
        quote(out, &float_text(number));
    }
}

pub(crate) fn write_binary(out: &mut String, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => quote(out, text),
        Err(_) => write_bytes(out, bytes),
    }
}

pub(crate) fn write_bytes(out: &mut String, bytes: &[u8]) {
    out.push_str("{\"__bytes__\": \"");
    BASE64.encode_string(bytes, out);
    out.push_str("\"}");
}

/// A JSON string as Python writes it with `ensure_ascii=False`, with NUL spelled out.
pub(crate) fn quote(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    loop {
        let (plain, special) = rest.split_at(plain(rest.as_bytes()));
        out.push_str(plain);
        let Some(&byte) = special.as_bytes().first() else { break };
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            0 => out.push_str("\\\\u0000"),
            _ => {
                let _ = write!(out, "\\u{byte:04x}");
            }
        }
        // What is special is one byte long.
        rest = &special[1..];
    }
    out.push('"');
}

/// How many bytes stand before the first that cannot stand in a JSON string as it is.
fn plain(bytes: &[u8]) -> usize {
    let is_special = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    let chunks = bytes.chunks_exact(CHUNK);
    let clean =
        chunks.take_while(|chunk| !chunk.iter().fold(false, |any, byte| any | is_special(*byte))).count();
    let at = clean * CHUNK;
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|byte| is_special(*byte)).unwrap_or(rest.len())
}

pub(crate) fn without_nul(text: &str) -> Cow<'_, str> {
    if text.as_bytes().contains(&0) { text.replace('\0', "\\u0000").into() } else { text.into() }
}

/// Text with NUL and lone surrogates spelled out; none if it is not UTF-8 otherwise.
pub(crate) fn clean_text(bytes: &[u8]) -> Option<Cow<'_, str>> {
    let mut out = String::new();
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(text) if out.is_empty() => return Some(without_nul(text)),
            Ok(text) => {
                out.push_str(&without_nul(text));
                return Some(out.into());
            }
            Err(error) => {
                let (good, bad) = rest.split_at(error.valid_up_to());
                let [0xed, second @ 0xa0..=0xbf, third @ 0x80..=0xbf, ..] = bad else { return None };
                out.push_str(&without_nul(std::str::from_utf8(good).ok()?));
                let code = 0xd000 | (u32::from(*second & 0x3f) << 6) | u32::from(*third & 0x3f);
                let _ = write!(out, "\\u{code:04x}");
                rest = bad.get(3..)?;
            }
        }
    }
}

/// `20260105T09:30:15.000000` as ISO 8601.
pub(crate) fn date_time(bytes: &[u8]) -> Option<String> {
    const SHAPE: &[u8] = b"dddddddd-dd-dd-dd-dddddd";
    let fits = |(byte, shape): (&u8, &u8)| byte.is_ascii_digit() == (*shape == b'd');
    let text = std::str::from_utf8(bytes).ok()?;
    let marks = (bytes.get(8)?, bytes.get(11)?, bytes.get(14)?, bytes.get(17)?);
    if bytes.len() != SHAPE.len()
        || !bytes.iter().zip(SHAPE).all(fits)
        || marks != (&b'T', &b':', &b':', &b'.')
    {
        return None;
    }
    let fraction = if &text[18..] == "000000" { "" } else { &text[17..] };
    Some(format!("{}-{}-{}{}{fraction}", &text[..4], &text[4..6], &text[6..8], &text[8..17]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_special_is_escaped_wherever_it_stands() {
        // Shorter than a chunk, at its edges, and in later ones.
        for before in 0..2 * CHUNK + 2 {
            for (special, escaped) in
                [("\"", "\\\""), ("\\", "\\\\"), ("\n", "\\n"), ("\u{1}", "\\u0001"), ("\0", "\\\\u0000")]
            {
                for after in [0, 1, CHUNK] {
                    let (before, after) =
                        ("ä".repeat(before / 2) + &"b".repeat(before % 2), "c".repeat(after));
                    let mut out = String::new();
                    quote(&mut out, &format!("{before}{special}{after}{special}"));
                    assert_eq!(out, format!("\"{before}{escaped}{after}{escaped}\""));
                }
            }
        }
    }

    #[test]
    fn what_is_not_special_stands_as_it_is() {
        let text: String =
            (0x20..0x500).filter_map(char::from_u32).filter(|c| !['"', '\\'].contains(c)).collect();
        let mut out = String::new();
        quote(&mut out, &text);
        assert_eq!(out, format!("\"{text}\""));
    }
}
