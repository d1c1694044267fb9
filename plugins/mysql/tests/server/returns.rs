//! Returns and events: one row for each key, and what does not fit into a table.

use returner_sdk::prelude::*;
use returnerd_tests::mariadb::MariaDb;

use crate::support::*;

const JID: &str = "20261201033139637056";

fn why(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Reject(why) => why,
        other => panic!("not rejected: {other:?}"),
    }
}

#[test]
fn a_return_is_stored_once_and_the_first_stands() {
    for place in Place::both() {
        block(async {
            let mut db = place.open().await;
            let first = ret(JID, "m1", "test.ping", "true");
            let again = ret(JID, "m1", "test.ping", "false");
            let other = JobReturn { success: Some(false), ..ret(JID, "m2", "test.ping", "null") };
            let unknown = JobReturn { success: None, ..ret(JID, "m3", "test.ping", "null") };
            assert!(stored(&db.deliver(vec![first.clone(), again.clone(), other]).await.unwrap()));
            assert!(stored(&db.deliver(vec![again, unknown]).await.unwrap()));

            let rows = place.sql(
                "SELECT id, fun, `return`, success, UNIX_TIMESTAMP(alter_time) FROM salt_returns ORDER BY id",
            );
            let at = ARRIVED / 1000;
            let wanted = format!(
                "m1\ttest.ping\ttrue\t1\t{at}\nm2\ttest.ping\tnull\t0\t{at}\nm3\ttest.ping\tnull\t\t{at}\n"
            );
            assert_eq!(rows, wanted);
            let mut back = db.get_returns(JID.into()).await.unwrap();
            back.sort_by(|a, b| a.minion.cmp(&b.minion));
            assert_eq!(back[0].document, first.document);
            let outcomes: Vec<_> = back.iter().map(|ret| ret.success).collect();
            assert_eq!(outcomes, [Some(true), Some(false), None]);
        });
    }
}

#[test]
fn a_resource_has_a_row_of_its_own() {
    for place in Place::both() {
        block(async {
            let mut db = place.open().await;
            let resource = JobReturn { resource_id: Some("m1/eth0".into()), ..ret(JID, "m1", "net.up", "1") };
            db.deliver(vec![ret(JID, "m1", "net.up", "0"), resource]).await.unwrap();
            assert_eq!(place.sql("SELECT id FROM salt_returns ORDER BY id"), "m1\nm1/eth0\n");
        });
    }
}

#[test]
fn hostile_and_wide_texts_come_back_equal() {
    let texts =
        [r"'; DROP TABLE jids; -- \", "naïve → 日本", "done 🚀 𠀀", "nul \0 end\u{1a}\n\t%_", "\"\\\"\\\\'"];
    for place in Place::both() {
        block(async {
            let mut db = place.open().await;
            for (number, text) in texts.iter().enumerate() {
                let value = returner_sdk::serde_json::to_string(text).unwrap();
                let jid = format!("2026120103313963705{number}");
                assert!(stored(&db.deliver(vec![ret(&jid, "m1", "cmd.run", &value)]).await.unwrap()));
                let back = db.get_returns(jid.clone()).await.unwrap();
                assert_eq!(json(&back[0].document)["return"], *text);
                let value = place.sql(&format!("SELECT `return` FROM salt_returns WHERE jid = '{jid}'"));
                assert_eq!(json(&value), *text);
            }
        });
    }
}

#[test]
fn a_function_name_wider_than_the_column_is_whole_in_the_document_and_found() {
    let long = "acme_inventory_extension.collect_hardware_and_software_report";
    let twin = "acme_inventory_extension.collect_hardware_and_software_totals";
    for place in Place::both() {
        block(async {
            let mut db = place.open().await;
            let returns = vec![
                ret("20261201033139637001", "m1", long, "1"),
                ret("20261201033139637002", "m1", twin, "2"),
            ];
            assert!(stored(&db.deliver(returns).await.unwrap()));
            for (fun, value) in [(long, 1), (twin, 2)] {
                let found = db.get_fun(fun.into()).await.unwrap();
                assert_eq!(found.len(), 1, "{fun}");
                assert_eq!(json(&found[0].document)["return"], value);
            }
        });
    }
}

#[test]
fn a_value_wider_than_the_column_is_rejected_with_its_size() {
    let Some(place) = Place::documented() else { return };
    block(async {
        let mut db = place.open().await;
        let huge = format!("\"{}\"", "x".repeat(17 << 20));
        let batch = vec![
            ret(JID, "m1", "f", "1"),
            ret(JID, "m2", "f", &huge),
            ret(JID, "m3", "f", "3"),
            ret(JID, &"m".repeat(256), "f", "4"),
        ];
        let verdicts = db.deliver(batch).await.unwrap();
        assert_eq!((&verdicts[0], &verdicts[2]), (&Verdict::Stored, &Verdict::Stored));
        let text = why(&verdicts[1]);
        assert!(
            text.contains("17825794 bytes") && text.contains("16777215") && text.contains("hint:"),
            "{text}"
        );
        assert!(why(&verdicts[3]).contains("`id`"));
        assert_eq!(place.sql("SELECT id FROM salt_returns ORDER BY id"), "m1\nm3\n");
    });
}

#[test]
fn the_packet_limit_splits_statements_and_rejects_only_what_is_over_it() {
    if !available() {
        return;
    }
    let server = MariaDb::start(&["--max-allowed-packet=1M"]);
    block(async {
        let mut db = open(options(server.port())).await.unwrap();
        let mut batch: Vec<JobReturn> = (0..30)
            .map(|n| ret(JID, &format!("m{n:02}"), "f", &format!("\"{}\"", "x".repeat(100_000))))
            .collect();
        batch[7] = ret(JID, "m07", "f", &format!("\"{}\"", "y".repeat(2 << 20)));
        let verdicts = db.deliver(batch).await.unwrap();
        for (number, verdict) in verdicts.iter().enumerate() {
            assert_eq!(*verdict == Verdict::Stored, number != 7, "{number}: {verdict:?}");
        }
        let text = why(&verdicts[7]);
        assert!(text.contains("1048576") && text.contains("hint: raise `max_allowed_packet`"), "{text}");
        assert_eq!(db.get_returns(JID.into()).await.unwrap().len(), 29);
        // Just under the limit passes.
        let fits = format!("\"{}\"", "z".repeat(520_000));
        assert!(stored(&db.deliver(vec![ret(JID, "m99", "f", &fits)]).await.unwrap()));
    });
}

#[test]
fn a_row_that_the_server_refuses_takes_no_other_along() {
    for place in Place::both() {
        block(async {
            drop(place.open().await);
            place.sql("ALTER TABLE salt_returns ADD CONSTRAINT house_rule CHECK (id NOT LIKE 'bad%')");
            let mut db = place.open().await;
            let batch: Vec<JobReturn> = (0..100)
                .map(|n| ret(JID, &format!("{}{n}", if n % 33 == 5 { "bad" } else { "m" }), "f", "1"))
                .collect();
            let verdicts = db.deliver(batch).await.unwrap();
            for (number, verdict) in verdicts.iter().enumerate() {
                assert_eq!(*verdict == Verdict::Stored, number % 33 != 5, "{number}: {verdict:?}");
            }
            assert!(why(&verdicts[5]).contains("house_rule"));
            assert_eq!(place.sql("SELECT COUNT(*) FROM salt_returns"), "97\n");
        });
    }
}

#[test]
fn ids_that_differ_in_case_are_kept_apart_or_rejected() {
    let batch = || vec![ret(JID, "Web1", "f", "1"), ret(JID, "web1", "f", "2")];
    for place in Place::both() {
        block(async {
            let mut db = place.open().await;
            assert!(stored(&db.deliver(batch()).await.unwrap()));
            assert_eq!(place.sql("SELECT COUNT(*) FROM salt_returns"), "2\n");
        });
    }
    let Some(place) = Place::documented() else { return };
    place.sql("ALTER TABLE salt_returns ADD UNIQUE KEY (id, jid)");
    block(async {
        let mut db = place.open().await;
        for _ in 0..2 {
            let verdicts = db.deliver(batch()).await.unwrap();
            assert_eq!(verdicts[0], Verdict::Stored);
            assert!(why(&verdicts[1]).contains("utf8mb4_bin"));
        }
    });
}

#[test]
fn an_event_delivered_twice_is_stored_once() {
    for place in Place::both() {
        block(async {
            let mut db = place.open().await;
            let ids: Vec<String> = (0..80).map(|n| format!("\"minion-{n:02}.example.test\"")).collect();
            let presence = format!(r#"{{"present": [{}], "_stamp": "x"}}"#, ids.join(", "));
            let batch = vec![
                event(1 << 62, "salt/presence/present", &presence),
                event(7, "salt/auth", r#"{"id": "🚀"}"#),
            ];
            assert!(stored(&db.deliver_events(batch.clone()).await.unwrap()));
            assert!(stored(&db.deliver_events(batch).await.unwrap()));
            let rows = place.sql("SELECT id, tag, master_id FROM salt_events ORDER BY id");
            assert_eq!(rows, "7\tsalt/auth\tmaster1\n4611686018427387904\tsalt/presence/present\tmaster1\n");
            assert_eq!(place.sql("SELECT data FROM salt_events WHERE id > 7").trim_end(), presence);
            assert_eq!(json(&place.sql("SELECT data FROM salt_events WHERE id = 7"))["id"], "🚀");
        });
    }
}

#[test]
fn a_tag_wider_than_the_column_stays_whole_in_the_data() {
    let Some(place) = Place::documented() else { return };
    block(async {
        let mut db = place.open().await;
        let tag = format!("salt/custom/{}", "x".repeat(300));
        assert!(stored(&db.deliver_events(vec![event(1, &tag, r#"{"a": 1}"#)]).await.unwrap()));
        assert_eq!(json(&place.sql("SELECT data FROM salt_events"))["__tag__"], tag.as_str());
    });
}
