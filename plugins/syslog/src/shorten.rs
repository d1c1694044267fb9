//! What becomes of a document that is longer than a message may be.
//!
//! Invariants: the result is JSON with the same keys in the same order; what is cut is an object with the key `__cut__`, which
//! has the size of the whole; as much of `return` is kept as fits, other values only give way where that is not enough.

use std::fmt;

use returner_sdk::json::quoted;
use serde::Deserializer;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

/// The document in at most `room` bytes as `escape` leaves them, or none if even its keys do not fit.
pub(crate) fn shorten(document: &str, room: usize, escape: impl Fn(&str) -> String) -> Option<String> {
    let fields = fields(document)?;
    let mut kept: Vec<(String, String)> =
        fields.iter().map(|(key, value)| (escape(&quoted(key)), escape(value))).collect();
    let replace = |kept: &mut Vec<(String, String)>, at: usize, begin: &str| {
        let begin = if begin.is_empty() { String::new() } else { format!(", \"begin\": {begin}") };
        kept[at].1 = format!("{{\"__cut__\": {}{begin}}}", fields[at].1.len());
    };
    let value = fields.iter().position(|(key, _)| key == "return");
    // `return` gives way first, then the longest of the others.
    let mut order: Vec<usize> = (0..fields.len()).filter(|&at| Some(at) != value).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(kept[at].1.len()));
    for at in value.into_iter().chain(order) {
        if length(&kept) <= room {
            break;
        }
        if fields[at].1.len() > "{\"__cut__\": 1}".len() {
            replace(&mut kept, at, "");
        }
    }
    if length(&kept) > room {
        return None;
    }
    if let Some(at) = value {
        let whole = escape(fields[at].1);
        let spare = room - length(&kept) + kept[at].1.len();
        let mark = kept[at].1.len() + ", \"begin\": ".len();
        if whole.len() <= spare {
            // Others were the long ones.
            kept[at].1 = whole;
        } else {
            let begin = beginning(fields[at].1, spare.saturating_sub(mark), &escape);
            if begin.len() > "\"\"".len() {
                replace(&mut kept, at, &begin);
            }
        }
    }
    Some(text(&kept))
}

fn length(fields: &[(String, String)]) -> usize {
    // Two braces; a colon and a space in each; a comma and a space between.
    let inside: usize = fields.iter().map(|(key, value)| key.len() + value.len() + 4).sum();
    inside.max(2)
}

fn text(fields: &[(String, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(key, value)| format!("{key}: {value}")).collect();
    format!("{{{}}}", fields.join(", "))
}

/// As much of a text, in quotes, as has `most` bytes.
fn beginning(text: &str, most: usize, escape: impl Fn(&str) -> String) -> String {
    let mut out = String::from("\"");
    let mut one = [0; 4];
    for c in text.chars() {
        let quoted = escape(&quoted(c.encode_utf8(&mut one)));
        let inner = &quoted[1..quoted.len() - 1];
        if out.len() + inner.len() + 1 > most {
            break;
        }
        out.push_str(inner);
    }
    out.push('"');
    out
}

/// The keys of an object, each with its value as text.
fn fields(document: &str) -> Option<Vec<(String, &str)>> {
    struct Fields;

    impl<'de> Visitor<'de> for Fields {
        type Value = Vec<(String, &'de str)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut fields = Vec::new();
            while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                fields.push((key, value.get()));
            }
            Ok(fields)
        }
    }

    serde_json::Deserializer::from_str(document).deserialize_map(Fields).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    fn ascii(text: &str) -> String {
        returner_sdk::json::escape(text, |c| !c.is_ascii()).into_owned()
    }

    #[test]
    fn a_long_return_is_cut_to_what_fits_and_says_how_long_it_was() {
        let value = "\\\"å\u{1f680}x".repeat(1_000);
        let document = json!({ "jid": "1", "id": "m", "return": value, "retcode": 0 }).to_string();
        let whole = Value::from(value.as_str()).to_string();
        for room in [100, 101, 102, 103, 104, 105, 480, 8_096] {
            for escape in [ascii, str::to_owned] {
                let text = shorten(&document, room, escape).unwrap();
                assert!(text.len() <= room && text.len() + 12 >= room, "{} of {room}", text.len());
                let short = parsed(&text);
                assert_eq!((&short["jid"], &short["retcode"]), (&json!("1"), &json!(0)));
                assert_eq!(short["return"]["__cut__"], json!(whole.len()));
                assert!(whole.starts_with(short["return"]["begin"].as_str().unwrap()));
            }
        }
    }

    #[test]
    fn other_values_give_way_only_where_they_must() {
        let arguments = "a".repeat(2_000);
        let document = json!({ "jid": "1", "id": "m", "fun_args": [arguments], "return": "r".repeat(2_000) })
            .to_string();
        let short = parsed(&shorten(&document, 3_000, str::to_owned).unwrap());
        assert_eq!(short["fun_args"][0], arguments);
        let short = parsed(&shorten(&document, 500, str::to_owned).unwrap());
        assert_eq!(short["fun_args"], json!({ "__cut__": 2_004 }));
        assert_eq!((&short["jid"], &short["id"]), (&json!("1"), &json!("m")));
        assert!(short["return"]["begin"].as_str().unwrap().starts_with("\"rrr"));
        let short = parsed(&shorten(&document, 95, str::to_owned).unwrap());
        assert_eq!(short["return"], json!({ "__cut__": 2_002 }));
        assert_eq!(shorten(&document, 20, str::to_owned), None);
    }

    #[test]
    fn a_short_return_beside_a_long_argument_stays_whole() {
        let document =
            json!({ "jid": "1", "fun_args": ["a".repeat(2_000)], "return": "r".repeat(50) }).to_string();
        let short = parsed(&shorten(&document, 200, str::to_owned).unwrap());
        assert_eq!(short, json!({ "jid": "1", "fun_args": { "__cut__": 2_004 }, "return": "r".repeat(50) }));
    }

    #[test]
    fn a_document_of_great_depth_is_shortened_too() {
        let deep = format!("{}{}", "[".repeat(900), "]".repeat(900));
        let document = format!("{{\"jid\": \"1\", \"return\": {deep}}}");
        let short = parsed(&shorten(&document, 300, str::to_owned).unwrap());
        assert_eq!(short["return"]["__cut__"], json!(1_800));
    }
}
