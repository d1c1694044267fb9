//! Every kind of value that Salt was seen to send, hostile input, and the promise that the result is JSON.

use proptest::prelude::*;

use super::*;

fn text_value(text: &str) -> Value {
    Value::from(text)
}

fn bin(bytes: &[u8]) -> Value {
    Value::Binary(bytes.to_vec())
}

/// msgpack text that need not be UTF-8.
fn raw_text(bytes: &[u8]) -> Value {
    let mut body = vec![0xd9, u8::try_from(bytes.len()).unwrap()];
    body.extend_from_slice(bytes);
    decode(&body).unwrap()
}

fn map(entries: Vec<(Value, Value)>) -> Value {
    Value::Map(entries)
}

fn nested(levels: usize) -> Vec<u8> {
    let mut bytes = vec![0x91; levels];
    bytes.push(0xc0);
    bytes
}

#[test]
fn every_type_of_the_table_has_its_json() {
    let constant = encode(&Value::Array(vec![text_value("NAME"), Value::from(3)]));
    let table = [
        (Value::Nil, "null"),
        (Value::Boolean(true), "true"),
        (Value::from(u64::MAX), "18446744073709551615"),
        (Value::from(i64::MIN), "-9223372036854775808"),
        (text_value("18446744073709551616"), r#""18446744073709551616""#),
        (Value::F64(1.0), "1.0"),
        (Value::F64(-0.0), "-0.0"),
        (Value::F64(0.1), "0.1"),
        (Value::F64(1e16), "1e16"),
        (Value::F64(5e-324), "5e-324"),
        (Value::F64(f64::NAN), r#""NaN""#),
        (Value::F64(f64::INFINITY), r#""Infinity""#),
        (Value::F64(f64::NEG_INFINITY), r#""-Infinity""#),
        (text_value("naïve → 日本 🚀"), r#""naïve → 日本 🚀""#),
        (
            text_value("q\" b\\ n\n t\t r\r \u{8}\u{c} \u{1b}\u{7f}"),
            "\"q\\\" b\\\\ n\\n t\\t r\\r \\b\\f \\u001b\u{7f}\"",
        ),
        (text_value("a\0b"), r#""a\\u0000b""#),
        (raw_text(b"x\xed\xb2\x80y\0"), r#""x\\udc80y\\u0000""#),
        (raw_text(b"\xed\xa0\xbd\xed\xb8\x80"), r#""\\ud83d\\ude00""#),
        (raw_text(b"\xff\xfe"), r#"{"__bytes__": "//4="}"#),
        (raw_text(b"\xed\xb2"), r#"{"__bytes__": "7bI="}"#),
        (bin(b"caf\xc3\xa9"), r#""café""#),
        (bin(b"\0\x01"), r#""\\u0000\u0001""#),
        (bin(b"\xff"), r#"{"__bytes__": "/w=="}"#),
        (Value::Array(vec![]), "[]"),
        (Value::Array(vec![Value::from(1), text_value("a")]), r#"[1, "a"]"#),
        (map(vec![]), "{}"),
        (
            map(vec![(text_value("b"), Value::from(1)), (text_value("a"), Value::Nil)]),
            r#"{"b": 1, "a": null}"#,
        ),
        (Value::Ext(78, b"20260105T09:30:15.000000".to_vec()), r#""2026-01-05T09:30:15""#),
        (Value::Ext(78, b"20260105T09:30:15.000120".to_vec()), r#""2026-01-05T09:30:15.000120""#),
        (Value::Ext(78, b"20260105x09:30:15.000120".to_vec()), r#""20260105x09:30:15.000120""#),
        (Value::Ext(78, b"\xff".to_vec()), r#"{"__bytes__": "/w=="}"#),
        (Value::Ext(79, constant), r#"["NAME", 3]"#),
        (Value::Ext(79, b"\x92\xc0".to_vec()), r#"{"__bytes__": "ksA="}"#),
        (Value::Ext(5, b"plain".to_vec()), r#""plain""#),
        (Value::Ext(-1, b"\xfe".to_vec()), r#"{"__bytes__": "/g=="}"#),
    ];
    for (value, json) in table {
        assert_eq!(to_json(&value).unwrap(), json, "{value:?}");
        parse(json).unwrap();
    }
}

#[test]
fn the_parts_of_a_map_are_read_or_are_their_bytes() {
    let one_of_each = Value::Array(vec![
        Value::Nil,
        Value::Boolean(true),
        Value::from(1),
        Value::from(-1),
        Value::from(200),
        Value::from(-100),
        Value::from(60_000),
        Value::from(-30_000),
        Value::from(u32::MAX),
        Value::from(i32::MIN),
        Value::from(u64::MAX),
        Value::from(i64::MIN),
        Value::F32(1.5),
        Value::F64(1.5),
        text_value("short"),
        text_value(&"a".repeat(100)),
        text_value(&"b".repeat(300)),
        text_value(&"c".repeat(70_000)),
        bin(&[0; 10]),
        bin(&[0; 300]),
        bin(&[0; 70_000]),
        Value::Ext(1, vec![0]),
        Value::Ext(1, vec![0; 2]),
        Value::Ext(1, vec![0; 3]),
        Value::Ext(1, vec![0; 4]),
        Value::Ext(1, vec![0; 8]),
        Value::Ext(1, vec![0; 16]),
        Value::Ext(1, vec![0; 300]),
        Value::Ext(1, vec![0; 70_000]),
        Value::Array(vec![Value::Nil; 20]),
        Value::Array(vec![Value::Nil; 70_000]),
        map((0..20).map(|n| (Value::from(n), Value::Nil)).collect()),
        map((0..70_000).map(|n| (Value::from(n), map(vec![]))).collect()),
    ]);
    let values = [one_of_each, Value::Nil, map(vec![(text_value("k"), Value::from(1))])];
    let keys = || ["raw", "read"].into_iter().cycle();
    let whole: Vec<_> = keys()
        .zip(values.iter().cycle())
        .map(|(key, value)| (text_value(key), value.clone()))
        .take(6)
        .collect();
    let bytes = encode(&map(whole.clone()));
    let found = decode_parts(&bytes, &["raw"]).unwrap().unwrap();
    let read: Vec<_> = found
        .into_iter()
        .zip(keys())
        .map(|((key, part), name)| match part {
            Part::Raw(bytes) if name == "raw" => (key, decode(bytes).unwrap()),
            Part::Read(value) if name == "read" => (key, value),
            other => panic!("`{name}` is {other:?}"),
        })
        .collect();
    assert_eq!(read, whole);
    assert!(matches!(decode_parts(&[0x90], &["raw"]), Ok(None)));
}

#[test]
fn what_is_no_msgpack_has_no_parts() {
    let bytes = encode(&map(vec![(text_value("k"), Value::Array(vec![Value::from(1), text_value("abc")]))]));
    for raw in [&["k"][..], &[]] {
        for end in 0..bytes.len() {
            assert!(matches!(decode_parts(&bytes[..end], raw), Err(JsonError::Truncated)), "cut at {end}");
        }
        let longer = [&bytes[..], &[0xc0]].concat();
        assert!(matches!(decode_parts(&longer, raw), Err(JsonError::Trailing { extra: 1 })));
        assert!(matches!(decode_parts(&[0x81, 0xa1, b'k', 0xc1], raw), Err(JsonError::Reserved { at: 3 })));
        // Lengths that are lies.
        assert!(matches!(decode_parts(&[0xdf, 0xff, 0xff, 0xff, 0xff], raw), Err(JsonError::Truncated)));
        let lie = [0x81, 0xa1, b'k', 0xdd, 0xff, 0xff, 0xff, 0xff];
        assert!(matches!(decode_parts(&lie, raw), Err(JsonError::Truncated)));
    }
    // As many levels as one likes, but not to be read.
    let deep = [&[0x81, 0xa1, b'k'][..], &nested(100_000)].concat();
    assert!(decode_parts(&deep, &["k"]).is_ok());
    assert!(matches!(decode_parts(&deep, &[]), Err(JsonError::TooDeep { .. })));
}

#[test]
fn both_sides_of_salt_give_the_same_text() {
    // What a returner on the minion is given (as the shim packs it), what one on the master is given, and the JSON.
    let date = || Value::Ext(78, b"20260105T09:30:15.000000".to_vec());
    let list = || Value::Array(vec![text_value("v1"), text_value("v2")]);
    let rows = [
        ("UTF-8 bytes", bin(b"ok"), text_value("ok"), r#""ok""#),
        ("other bytes", bin(b"\x80"), bin(b"\x80"), r#"{"__bytes__": "gA=="}"#),
        (
            "keys of bytes",
            map(vec![(bin(b"k"), Value::Nil)]),
            map(vec![(text_value("k"), Value::Nil)]),
            r#"{"k": null}"#,
        ),
        ("set, tuple", list(), list(), r#"["v1", "v2"]"#),
        ("datetime", date(), date(), r#""2026-01-05T09:30:15""#),
        (
            "oversized int",
            text_value("-9223372036854775809"),
            text_value("-9223372036854775809"),
            r#""-9223372036854775809""#,
        ),
        ("nan", Value::F64(f64::NAN), Value::F64(f64::NAN), r#""NaN""#),
        ("NUL", text_value("\0"), text_value("\0"), r#""\\u0000""#),
        (
            "int key",
            map(vec![(Value::from(1), Value::Nil)]),
            map(vec![(Value::from(1), Value::Nil)]),
            r#"{"1": null}"#,
        ),
    ];
    for (name, minion, master, json) in rows {
        assert_eq!(to_json(&minion).unwrap(), json, "{name} on the minion");
        assert_eq!(to_json(&master).unwrap(), json, "{name} on the master");
    }
    let surrogate = raw_text(b"\xed\xb3\xbf");
    assert_eq!(to_json(&surrogate).unwrap(), r#""\\udcff""#);
}

#[test]
fn keys_of_every_type_become_text() {
    let keys = vec![
        (Value::Nil, "null"),
        (Value::Boolean(true), "true"),
        (Value::from(1), "1"),
        (Value::F64(1.5), "1.5"),
        (Value::F64(2.0), "2.0"),
        (Value::F64(f64::NAN), "NaN"),
        (bin(b"utf"), "utf"),
        (bin(b"\xff"), "__bytes__:/w=="),
        (raw_text(b"\xfe"), "__bytes__:/g=="),
        (text_value("z\0"), "z\\u0000"),
        (Value::Array(vec![Value::from(1), text_value("a")]), r#"[1, "a"]"#),
        (map(vec![(text_value("k"), Value::Nil)]), r#"{"k": null}"#),
        (Value::Ext(78, b"20260105T09:30:15.000000".to_vec()), "2026-01-05T09:30:15"),
    ];
    let value = map(keys.iter().map(|(key, _)| (key.clone(), Value::Nil)).collect());
    let tree = to_tree(&value).unwrap();
    let found: Vec<&String> = tree.as_object().unwrap().keys().collect();
    assert_eq!(found, keys.iter().map(|(_, text)| *text).collect::<Vec<_>>());
}

#[test]
fn keys_that_look_alike_are_told_apart() {
    let value = map(vec![
        (Value::from(1), Value::from(10)),
        (text_value("1"), Value::from(20)),
        (text_value("1 (int)"), Value::from(30)),
        (Value::Boolean(true), Value::from(40)),
        (text_value("true"), Value::from(50)),
        (bin(b"true"), Value::from(60)),
    ]);
    assert_eq!(
        to_json(&value).unwrap(),
        r#"{"1 (int) (int)": 10, "1": 20, "1 (int)": 30, "true (bool)": 40, "true": 50, "true (bytes)": 60}"#
    );
}

#[test]
fn of_equal_keys_the_last_value_stands_at_the_first_place() {
    let twice = |key: Value| {
        map(vec![(key.clone(), Value::from(1)), (text_value("b"), Value::Nil), (key, Value::from(2))])
    };
    assert_eq!(to_json(&twice(text_value("a"))).unwrap(), r#"{"a": 2, "b": null}"#);
    assert_eq!(to_json(&twice(Value::from(7))).unwrap(), r#"{"7": 2, "b": null}"#);
    let many = map((0..40).map(|n| (text_value(&format!("k{}", n % 20)), Value::from(n))).collect());
    assert_eq!(to_tree(&many).unwrap().as_object().unwrap().len(), 20);
}

#[test]
fn the_place_of_a_part_is_that_of_its_value() {
    let value = map(vec![
        (text_value("return"), map(vec![(text_value("return"), Value::Array(vec![Value::from(1)]))])),
        (text_value("id"), text_value("m1")),
    ]);
    let (json, range) = to_json_with_part(&value, "return").unwrap();
    assert_eq!(&json[range.unwrap()], r#"{"return": [1]}"#);
    let (json, range) = to_json_with_part(&value, "id").unwrap();
    assert_eq!(&json[range.unwrap()], r#""m1""#);
    assert_eq!(to_json_with_part(&value, "x").unwrap().1, None);
}

#[test]
fn deep_values_are_kept_to_the_limit_and_refused_beyond() {
    for levels in [600, 1_000] {
        let value = decode(&nested(levels)).unwrap();
        let json = to_json(&value).unwrap();
        assert_eq!(encode(&value), nested(levels));
        assert_eq!(from_json(&json).unwrap(), value);
        assert_eq!(json, tree_to_text(parse(&json).unwrap()).unwrap());
    }
    let value = decode(&nested(1_001)).unwrap();
    assert!(matches!(to_json(&value), Err(JsonError::TooDeep { limit: MAX_DEPTH })));
    assert!(matches!(decode(&nested(100_000)), Err(JsonError::TooDeep { limit: MAX_MSGPACK_DEPTH })));
    assert!(matches!(parse(&"[".repeat(100_000)), Err(JsonError::TooDeep { .. })));
    assert!(matches!(parse(&"{\"[\":".repeat(1_001)), Err(JsonError::TooDeep { .. })));
    assert!(parse(&format!("\"{}\"", "[\\\"{".repeat(5_000))).is_ok());
}

#[test]
fn maps_in_keys_do_not_grow_without_bound() {
    let mut key = text_value("\"");
    for _ in 0..40 {
        key = map(vec![(key, Value::Nil)]);
    }
    assert!(matches!(to_json(&key), Err(JsonError::Embedded)));
    let mut pair = Value::Array(vec![Value::Nil]);
    for _ in 0..40 {
        pair = Value::Array(vec![Value::Ext(79, encode(&pair))]);
    }
    assert!(matches!(to_json(&pair), Err(JsonError::Embedded)));
}

#[test]
fn broken_msgpack_is_told_apart() {
    assert!(matches!(decode(&[]), Err(JsonError::Truncated)));
    assert!(matches!(decode(&[0x92, 0xc0]), Err(JsonError::Truncated)));
    assert!(matches!(decode(&[0xc0, 0xc0]), Err(JsonError::Trailing { extra: 1 })));
    assert!(matches!(decode(&[0x91, 0xc1]), Err(JsonError::Reserved { at: 1 })));
    // Lengths of 4 GiB that are not there.
    for head in [0xdd, 0xdf, 0xdb, 0xc6, 0xc9] {
        assert!(matches!(decode(&[head, 0xff, 0xff, 0xff, 0xff, 0]), Err(JsonError::Truncated)));
    }
    assert_eq!(decode_prefix(&[0x01, 0x02]).unwrap(), (Value::from(1), 1));
}

#[test]
fn too_many_values_are_refused() {
    let len = u32::try_from(MAX_VALUES).unwrap();
    let mut bytes = vec![0xdd];
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.resize(5 + MAX_VALUES, 0xc0);
    assert!(matches!(decode(&bytes), Err(JsonError::TooMany)));
}

#[test]
fn the_mark_of_a_trimmed_value_is_found_at_any_depth() {
    let trimmed = map(vec![(text_value("a"), Value::Array(vec![text_value("VALUE_TRIMMED")]))]);
    assert!(is_trimmed(&trimmed));
    assert!(is_trimmed(&text_value("VALUE_TRIMMED")));
    assert!(!is_trimmed(&text_value("the text VALUE_TRIMMED")));
    assert!(!is_trimmed(&map(vec![(text_value("VALUE_TRIMMED"), Value::Nil)])));
}

#[test]
fn json_that_is_not_json_is_an_error() {
    for text in ["", "{", "[1,]", "nul", "{} x", "NaN"] {
        assert!(matches!(parse(text), Err(JsonError::NotJson(_))), "{text}");
    }
    assert_eq!(from_json(r#"{"a": [1, -2, 1.5, null, "x"]}"#).unwrap().as_map().unwrap().len(), 1);
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::Boolean),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::F64),
        any::<f32>().prop_map(Value::F32),
        "[a-c0-2\\x00\"\\\\ ]{0,3}".prop_map(|text| Value::from(text.as_str())),
        proptest::collection::vec(any::<u8>(), 0..6).prop_map(Value::Binary),
        proptest::collection::vec(any::<u8>(), 0..6).prop_map(|bytes| raw_text(&bytes)),
        (any::<i8>(), proptest::collection::vec(any::<u8>(), 0..6))
            .prop_map(|(kind, bytes)| Value::Ext(kind, bytes)),
    ];
    leaf.prop_recursive(4, 64, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            proptest::collection::vec((inner.clone(), inner), 0..6).prop_map(Value::Map),
        ]
    })
}

/// As `serde_json` takes the last of equal keys silently, count them in the text.
fn entries(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => items.iter().map(entries).sum(),
        serde_json::Value::Object(map) => map.len() + map.values().map(entries).sum::<usize>(),
        _ => 0,
    }
}

#[test]
fn bytes_come_back_and_what_only_looks_like_them_stays() {
    let bytes = Value::Binary(vec![0xff, 0]);
    let value = Value::Map(vec![
        (bytes.clone(), Value::Array(vec![bytes.clone()])),
        (Value::from("a"), Value::Map(vec![(Value::from("b"), bytes)])),
    ]);
    assert_eq!(with_bytes(from_json(&to_json(&value).unwrap()).unwrap()), value);
    for text in [
        r#"{"__bytes__": 5}"#,
        r#"{"__bytes__": "%"}"#,
        r#"{"__bytes__": "", "x": 1}"#,
        r#"{"__bytes__:%": 1}"#,
    ] {
        let value = from_json(text).unwrap();
        assert_eq!(with_bytes(value.clone()), value);
    }
}

proptest! {
    #[test]
    fn any_bytes_give_json_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok((value, used)) = decode_prefix(&bytes) {
            prop_assert!(used <= bytes.len());
            if let Ok(json) = to_json(&value) {
                prop_assert!(parse(&json).is_ok(), "{json}");
                prop_assert!(!json.contains('\0'));
            }
        }
    }

    #[test]
    fn any_value_gives_json_without_repeated_keys(value in any_value()) {
        match to_json(&value) {
            Ok(json) => {
                let tree = parse(&json).unwrap();
                let again = tree_to_text(tree.clone()).unwrap();
                prop_assert_eq!(entries(&tree), entries(&parse(&again).unwrap()));
                prop_assert_eq!(json.matches("\": ").count() >= entries(&tree), true);
                prop_assert_eq!(&again, &json);
            }
            Err(error) => prop_assert!(matches!(error, JsonError::Embedded), "{error}"),
        }
    }

    #[test]
    fn what_is_encoded_reads_back(value in any_value()) {
        let bytes = encode(&value);
        prop_assert_eq!(encode(&decode(&bytes).unwrap()), bytes);
    }

    #[test]
    fn floats_read_back_equal(number in any::<f64>().prop_filter("finite", |n| n.is_finite())) {
        let json = to_json(&Value::F64(number)).unwrap();
        prop_assert!(json.contains(['.', 'e']));
        prop_assert_eq!(json.parse::<f64>().unwrap().to_bits(), number.to_bits());
    }
}

#[test]
fn every_character_is_escaped_wherever_it_stands() {
    for character in
        ['"', '\\', '\n', '\r', '\t', '\u{8}', '\u{c}', '\u{1}', '\u{1f}', '\u{7f}', 'å', '\u{1f600}']
    {
        for length in 0..40 {
            let text = format!("{}{character}{}å{character}", "x".repeat(length), "y".repeat(40 - length));
            let json = to_json(&Value::from(text.as_str())).unwrap();
            assert_eq!(json, serde_json::to_string(&text).unwrap());
        }
    }
}
