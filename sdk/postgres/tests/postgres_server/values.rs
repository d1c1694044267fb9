//! Values that a server or `jsonb` might refuse or change.

use returner_sdk::prelude::*;
use returnerd_tests::postgresql::PostgreSql;

use crate::support::*;

const JID: &str = "20261201033139637056";

/// Stores a value in each kind of place; gives the place and what came back.
fn round_trip(value: &str) -> Vec<(Place, String)> {
    let mut all = Vec::new();
    for place in Place::all() {
        let back = block(async {
            let mut db = place.open().await;
            let verdicts = db.deliver(vec![ret(JID, "m1", "cmd.run", value)]).await.unwrap();
            assert!(stored(&verdicts), "{verdicts:?} for {value:.100}");
            db.get_returns(JID.into()).await.unwrap().remove(0).document
        });
        all.push((place, back));
    }
    all
}

#[test]
fn hostile_and_wide_texts_come_back_equal() {
    let texts = [
        r"'; DROP TABLE jids; -- \",
        "naïve → 日本",
        "done 🚀 𠀀",
        r"nul \u0000 end \udc80",
        "\u{1a}\n\t%_$1 $$",
        "\"\\\"\\\\'",
        "\u{ffff}\u{fdd0}",
    ];
    let value = returner_sdk::serde_json::to_string(&texts).unwrap();
    for (place, back) in round_trip(&value) {
        assert_eq!(json(&back)["return"], json(&value));
        assert_eq!(json(&place.sql("SELECT return FROM salt_returns")), json(&value));
    }
}

#[test]
fn all_numbers_that_the_host_sends_come_back_as_large() {
    let numbers = "[1e308, -1.7976931348623157e308, 5e-324, 1e16, 1.0, 0.1, -0.0, 9223372036854775807, \
                   18446744073709551615, -9223372036854775808]";
    for (place, back) in round_trip(numbers) {
        let document = json(&back);
        let back: Vec<f64> =
            document["return"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
        let sent: Vec<f64> = json(numbers).as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
        assert_eq!(back, sent);
        let sent = json(numbers);
        for index in 7..10 {
            assert_eq!(document["return"][index], sent[index], "{:?}", place.flavour);
        }
    }
}

#[test]
fn the_deepest_nesting_of_the_contract_is_stored() {
    // The value stands in a document, which is one level more.
    let deep = format!("{}1{}", "[".repeat(999), "]".repeat(999));
    for (_, back) in round_trip(&deep) {
        assert_eq!(json(&back)["return"], json(&deep));
    }
}

#[test]
fn ten_mebibytes_come_back_equal() {
    let text = "0123456789abcde🚀".repeat((10 << 20) / 19);
    for (_, back) in round_trip(&format!("\"{text}\"")) {
        assert!(json(&back)["return"] == text.as_str());
    }
}

#[test]
fn text_keeps_the_order_of_keys_and_jsonb_does_not() {
    let value = r#"{"b": 1, "a": 2}"#;
    for (place, back) in round_trip(value) {
        assert_eq!(back.contains(value), place.flavour == Flavour::Text, "{back}");
        assert_eq!(json(&back)["return"], json(value));
    }
}

#[test]
fn what_jsonb_refuses_is_rejected_with_its_reason_and_takes_no_other_along() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            let values = ["1", r#""a \u0000 b""#, "2", "\"half", "3", "1e999999"];
            let batch = values.iter().enumerate().map(|(n, v)| ret(JID, &format!("m{n}"), "f", v)).collect();
            let verdicts = db.deliver(batch).await.unwrap();
            let refused: Vec<usize> = (0..values.len()).filter(|&n| verdicts[n] != Verdict::Stored).collect();
            match place.flavour {
                Flavour::Text => assert_eq!(refused, [0; 0]),
                Flavour::Jsonb => {
                    assert_eq!(refused, [1, 3, 5]);
                    assert!(why(&verdicts[1]).contains("\\u0000"), "{verdicts:?}");
                    assert!(why(&verdicts[3]).contains("json"), "{verdicts:?}");
                }
            }
            let load = |n: usize| JobLoad {
                document: format!(r#"{{"fun": "f", "arg": [{}]}}"#, values[n]),
                ..load(&format!("2026120103313963700{n}"), "f")
            };
            let verdicts = db.save_loads(vec![load(0), load(1), load(2)]).await.unwrap();
            assert_eq!(verdicts[1] == Verdict::Stored, place.flavour == Flavour::Text, "{verdicts:?}");
            assert!(verdicts[0] == Verdict::Stored && verdicts[2] == Verdict::Stored);
        });
    }
}

#[test]
fn a_raw_nul_in_a_name_is_rejected_and_takes_no_other_along() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            let batch = vec![ret(JID, "m1", "f", "1"), ret(JID, "m\0", "f", "1"), ret(JID, "m3", "f", "1")];
            let verdicts = db.deliver(batch).await.unwrap();
            assert!(why(&verdicts[1]).contains("0x00"), "{verdicts:?}");
            assert!(verdicts[0] == Verdict::Stored && verdicts[2] == Verdict::Stored);
        });
    }
}

#[test]
fn a_database_that_lacks_a_character_takes_it_as_an_escape_in_text() {
    if !available() {
        return;
    }
    let server = PostgreSql::start_encoded("LATIN1");
    let value = "\"naïve 日本 🚀\"";
    block(async {
        let mut db = Db::open(Flavour::Text, options(server.port())).await.unwrap();
        let batch = vec![ret(JID, "m1", "f", value), ret(JID, "m2", "f.🚀", "1")];
        assert!(stored(&db.deliver(batch).await.unwrap()));
        let back = db.get_returns(JID.into()).await.unwrap();
        assert_eq!(json(&back[0].document)["return"], json(value));
        assert_eq!(json(&back[1].document)["fun"], "f.🚀");
        assert_eq!(json(&db.get_fun("f.🚀".into()).await.unwrap()[0].document)["return"], 1);
        assert!(stored(&db.save_loads(vec![load(JID, "f.🚀")]).await.unwrap()));
        assert_eq!(json(&db.get_load(JID.into()).await.unwrap().unwrap().document)["fun"], "f.🚀");
    });
    server.sql("salt", "DROP TABLE jids, salt_returns, salt_events");
    block(async {
        let mut db = Db::open(Flavour::Jsonb, options(server.port())).await.unwrap();
        let verdicts =
            db.deliver(vec![ret(JID, "m1", "f", value), ret(JID, "m2", "f", "\"ï\"")]).await.unwrap();
        assert!(why(&verdicts[0]).contains("LATIN1"), "{verdicts:?}");
        assert_eq!(verdicts[1], Verdict::Stored);
    });
}
