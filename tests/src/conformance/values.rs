//! Characters and values that one system or another cannot hold.

use rmpv::Value as Msgpack;
use serde_json::{Value, json};

use super::Lab;
use crate::records::{jid, published, ret};

/// Letters of two and three bytes, an emoji of four, one made of several, and what must be escaped somewhere.
const WIDE: &str = "mäuse 日本 🚀 👩‍👩‍👧 ñ \" \\ ' % ` \u{2028} \u{feff}";

pub(super) fn wide_characters_come_back_in_every_field(lab: &mut Lab) {
    let (minion, fun) = ("mäuse-日本-🚀", "tëst.🚀日本");
    let mut load = published(&jid(200));
    load["fun"] = json!(fun);
    load["arg"] = json!([WIDE, { WIDE: WIDE }]);
    load["user"] = json!("sudo_müller 🦀");
    load["tgt"] = json!("日本*🚀");
    load["metadata"] = json!({ WIDE: WIDE });
    lab.tell_load(load.clone(), &[minion]);
    let mut sent = ret(&jid(200), minion, json!({ WIDE: [WIDE, "\u{10ffff}", "\t\r\n\u{1}\u{7f}"] }));
    sent["fun"] = json!(fun);
    sent["fun_args"] = json!([WIDE, { WIDE: WIDE }]);
    sent["out"] = json!("🚀");
    lab.tell_return(sent.clone());
    lab.settle();
    let stored = lab.load_of(&jid(200));
    for key in ["fun", "arg", "user", "tgt", "metadata"] {
        assert_eq!(stored[key], load[key], "`{key}` of {stored}");
    }
    assert_eq!(stored["Minions"], json!([minion]));
    let returns = lab.returns_of(&jid(200));
    for key in ["id", "fun", "fun_args", "return", "out"] {
        assert_eq!(returns[minion][key], sent[key], "`{key}` of {returns}");
    }
    let latest = lab.ask("get_fun", json!({ "fun": fun }));
    assert_eq!(latest[minion]["jid"], json!(jid(200)), "{latest}");
    let known = lab.ask("get_minions", json!({}));
    assert!(known.as_array().unwrap().contains(&json!(minion)), "{known}");
}

/// A value as Salt packs it, and the JSON that the contract makes of it.
fn lacking() -> Vec<(&'static str, Msgpack, Value)> {
    let text = |text: &str| Msgpack::from(text);
    let date = |text: &str| Msgpack::Ext(78, text.as_bytes().to_vec());
    vec![
        ("not a number", Msgpack::F64(f64::NAN), json!("NaN")),
        ("infinity", Msgpack::F64(f64::INFINITY), json!("Infinity")),
        ("negative infinity", Msgpack::F64(f64::NEG_INFINITY), json!("-Infinity")),
        ("bytes", Msgpack::Binary(vec![0xff, 0xfe, 0x00]), json!({"__bytes__": "//4A"})),
        ("bytes that are text", Msgpack::Binary("å".into()), json!("å")),
        ("a set", Msgpack::Array(vec![text("a"), text("b")]), json!(["a", "b"])),
        ("nul", text("a\0b"), json!("a\\u0000b")),
        ("what nul becomes", text("a\\u0000b"), json!("a\\u0000b")),
        ("a date", date("20260105T09:30:15.000000"), json!("2026-01-05T09:30:15")),
        ("a time", date("20260105T09:30:15.250000"), json!("2026-01-05T09:30:15.250000")),
        (
            "keys",
            Msgpack::Map(vec![
                (Msgpack::from(1), text("int")),
                (Msgpack::Nil, text("nil")),
                (Msgpack::Boolean(true), text("bool")),
                (Msgpack::F64(1.5), text("float")),
                (text("nul \0"), text("key")),
                (text(""), text("empty")),
            ]),
            json!({"1": "int", "null": "nil", "true": "bool", "1.5": "float", "nul \\u0000": "key", "": "empty"}),
        ),
        ("the largest", Msgpack::from(u64::MAX), json!(u64::MAX)),
        ("the smallest", Msgpack::from(i64::MIN), json!(i64::MIN)),
        ("a large float", Msgpack::F64(1e300), json!(1e300)),
        ("a whole float", Msgpack::F64(2.0), json!(2.0)),
        ("a large whole float", Msgpack::F64(1e16), json!(1e16)),
        ("a small float", Msgpack::F64(5e-324), json!(5e-324)),
        ("a long float", Msgpack::F64(0.1 + 0.2), json!(0.1 + 0.2)),
        (
            "deep",
            (0..500).fold(Msgpack::from(1), |inner, _| Msgpack::Array(vec![inner])),
            (0..500).fold(json!(1), |inner, _| json!([inner])),
        ),
        ("text like json", text("{\"a\": NaN}"), json!("{\"a\": NaN}")),
        ("nothing", Msgpack::Nil, Value::Null),
    ]
}

pub(super) fn values_that_json_lacks_come_back_by_the_rules_of_the_contract(lab: &mut Lab) {
    let all: Vec<(Msgpack, Msgpack)> =
        lacking().into_iter().map(|(name, value, _)| (name.into(), value)).collect();
    let ret = |jid: String, minion: &str, value: Msgpack| {
        Msgpack::Map(vec![
            ("jid".into(), jid.into()),
            ("id".into(), minion.into()),
            ("fun".into(), "test.values".into()),
            ("fun_args".into(), Msgpack::Array(vec![value.clone()])),
            ("return".into(), value),
            ("success".into(), true.into()),
            ("retcode".into(), 0.into()),
        ])
    };
    lab.tell_return_of_any(ret(jid(210), "m1", Msgpack::Map(all)));
    // Each alone, too: at the top a value may be treated otherwise.
    for (number, (_, value, _)) in (0..).zip(lacking()) {
        lab.tell_return_of_any(ret(jid(211), &format!("v{number:02}"), value));
    }
    lab.settle();
    let together = lab.returns_of(&jid(210));
    let alone = lab.returns_of(&jid(211));
    for (number, (name, _, wanted)) in (0..).zip(lacking()) {
        let minion = format!("v{number:02}");
        for (place, found) in [
            ("within", &together["m1"]["return"][name]),
            ("as an argument", &together["m1"]["fun_args"][0][name]),
            ("alone", &alone[&minion]["return"]),
        ] {
            assert!(same(found, &wanted), "{name} {place}: {found} in place of {wanted}");
        }
    }
}

/// Whether values are equal, where a whole number may be an integer or a float: what is told apart is compared between plugins.
fn same(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Number(a), Value::Number(b)) => a == b || (b.is_f64() && a.as_f64() == b.as_f64()),
        _ => found == wanted,
    }
}
