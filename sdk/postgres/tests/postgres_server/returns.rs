//! Returns and events: one row for each key, and what does not fit into a table.

use returner_sdk::prelude::*;

use crate::support::*;

const JID: &str = "20261201033139637056";

#[test]
fn a_return_is_stored_once_and_the_first_stands() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            let first = ret(JID, "m1", "test.ping", "true");
            let again = ret(JID, "m1", "test.ping", "false");
            let other = JobReturn { success: Some(false), ..ret(JID, "m2", "test.ping", "null") };
            let unknown = JobReturn { success: None, ..ret(JID, "m3", "test.ping", "null") };
            assert!(stored(&db.deliver(vec![first.clone(), again.clone(), other]).await.unwrap()));
            assert!(stored(&db.deliver(vec![again, unknown]).await.unwrap()));

            let rows = place.sql(
                "SELECT id, fun, return, success, extract(epoch FROM alter_time)::bigint FROM salt_returns ORDER BY id",
            );
            let at = ARRIVED / 1000;
            let wanted = format!(
                "m1|test.ping|true|true|{at}\nm2|test.ping|null|false|{at}\nm3|test.ping|null||{at}\n"
            );
            assert_eq!(rows, wanted);
            let mut back = db.get_returns(JID.into()).await.unwrap();
            back.sort_by(|a, b| a.minion.cmp(&b.minion));
            assert_eq!(json(&back[0].document), json(&first.document));
            if place.flavour == Flavour::Text {
                assert_eq!(back[0].document, first.document);
            }
            let outcomes: Vec<_> = back.iter().map(|ret| ret.success).collect();
            assert_eq!(outcomes, [Some(true), Some(false), None]);
            db.close().await;
        });
    }
}

#[test]
fn a_resource_has_a_row_of_its_own() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            let resource = JobReturn { resource_id: Some("m1/eth0".into()), ..ret(JID, "m1", "net.up", "1") };
            db.deliver(vec![ret(JID, "m1", "net.up", "0"), resource]).await.unwrap();
            assert_eq!(place.sql("SELECT id FROM salt_returns ORDER BY id"), "m1\nm1/eth0\n");
        });
    }
}

#[test]
fn ids_that_differ_in_case_are_kept_apart() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            let batch = vec![ret(JID, "Web1", "f", "1"), ret(JID, "web1", "f", "2")];
            assert!(stored(&db.deliver(batch).await.unwrap()));
            assert_eq!(place.sql("SELECT COUNT(*) FROM salt_returns"), "2\n");
        });
    }
}

#[test]
fn an_id_that_the_column_takes_for_another_is_rejected_and_not_passed_over() {
    let Some(place) = Place::documented(Flavour::Text) else { return };
    place.sql(
        "CREATE COLLATION folding (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
         ALTER TABLE salt_returns ALTER COLUMN id TYPE varchar(255) COLLATE folding, ADD UNIQUE (id, jid)",
    );
    block(async {
        let mut db = place.open().await;
        for _ in 0..2 {
            let batch = vec![ret(JID, "Web1", "f", "1"), ret(JID, "web1", "f", "2")];
            let verdicts = db.deliver(batch).await.unwrap();
            assert_eq!(verdicts[0], Verdict::Stored);
            assert!(why(&verdicts[1]).contains("duplicate key"), "{verdicts:?}");
        }
    });
}

#[test]
fn a_function_name_wider_than_the_column_is_whole_in_the_document_and_found() {
    let long = "acme_inventory_extension.collect_hardware_and_software_report";
    let twin = "acme_inventory_extension.collect_hardware_and_software_totals";
    let several = "acme_inventory_extension.collect_hardware_and_software,test.ping";
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            let mut compound = ret("20261201033139637003", "m1", several, "3");
            let list = "[\"acme_inventory_extension.collect_hardware_and_software\", \"test.ping\"]";
            compound.document = compound.document.replace(&format!("\"{several}\""), list);
            let returns = vec![
                ret("20261201033139637001", "m1", long, "1"),
                ret("20261201033139637002", "m1", twin, "2"),
                compound,
            ];
            assert!(stored(&db.deliver(returns).await.unwrap()));
            for (fun, value) in [(long, 1), (twin, 2), (several, 3)] {
                let found = db.get_fun(fun.into()).await.unwrap();
                assert_eq!(found.len(), 1, "{fun}");
                assert_eq!(json(&found[0].document)["return"], value);
            }
        });
    }
}

#[test]
fn an_id_wider_than_the_column_is_rejected_and_takes_no_other_along() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            let batch = vec![ret(JID, "m1", "f", "1"), ret(JID, &"m".repeat(256), "f", "4")];
            let verdicts = db.deliver(batch).await.unwrap();
            assert_eq!(verdicts[0], Verdict::Stored);
            assert!(why(&verdicts[1]).contains("`id`") && why(&verdicts[1]).contains("256 characters"));
            assert_eq!(place.sql("SELECT id FROM salt_returns"), "m1\n");
        });
    }
}

#[test]
fn a_row_that_the_server_refuses_takes_no_other_along() {
    for place in Place::all() {
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
fn an_event_delivered_twice_is_stored_once_beside_salts_own() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            place.sql(
                "SET ROLE salt; INSERT INTO salt_events (tag, data, master_id) VALUES ('own', '{}', 'x')",
            );
            let ids: Vec<String> = (0..80).map(|n| format!("\"minion-{n:02}.example.test\"")).collect();
            let presence = format!(r#"{{"_stamp": "x", "present": [{}]}}"#, ids.join(", "));
            let batch = vec![
                event(1 << 62, "salt/presence/present", &presence),
                event(7 << 41, "salt/auth", r#"{"id": "🚀"}"#),
            ];
            assert!(stored(&db.deliver_events(batch.clone()).await.unwrap()));
            let twice = vec![batch[0].clone(), batch[1].clone(), batch[0].clone()];
            assert!(stored(&db.deliver_events(twice).await.unwrap()));
            let rows = place.sql("SELECT id, tag, master_id FROM salt_events ORDER BY id");
            let wanted = "1|own|x\n15393162788864|salt/auth|master1\n\
                          4611686018427387904|salt/presence/present|master1\n";
            assert_eq!(rows, wanted);
            assert_eq!(
                place.sql("SELECT data FROM salt_events WHERE id = 1::bigint << 62").trim_end(),
                presence
            );
            assert_eq!(json(&place.sql("SELECT data FROM salt_events WHERE tag = 'salt/auth'"))["id"], "🚀");
        });
    }
}

#[test]
fn a_tag_wider_than_the_column_stays_whole_in_the_data() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            let tag = format!("salt/custom/{}", "x".repeat(600));
            assert!(stored(&db.deliver_events(vec![event(1, &tag, r#"{"a": 1}"#)]).await.unwrap()));
            assert_eq!(json(&place.sql("SELECT data FROM salt_events"))["__tag__"], tag.as_str());
        });
    }
}

#[test]
fn a_table_whose_event_ids_are_too_small_says_what_to_alter() {
    let Some(place) = Place::documented(Flavour::Text) else { return };
    place.sql("ALTER TABLE salt_events ALTER COLUMN id TYPE int");
    block(async {
        let mut db = place.open().await;
        match db.deliver_events(vec![event(1 << 60, "t", "{}")]).await {
            Err(Error::Retry { why, .. }) => assert!(why.contains("TYPE bigint"), "{why}"),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_boolean_outcome_and_a_document_of_another_type_are_written_as_the_column_wants_them() {
    let Some(place) = Place::documented(Flavour::Text) else { return };
    place.sql(
        "ALTER TABLE salt_returns ALTER COLUMN success DROP NOT NULL, ALTER COLUMN success TYPE boolean USING NULL,
         ALTER COLUMN full_ret TYPE json USING full_ret::json, ALTER COLUMN return TYPE jsonb USING return::jsonb",
    );
    block(async {
        let mut db = place.open().await;
        let unknown = JobReturn { success: None, ..ret(JID, "m2", "test.ping", "[1]") };
        assert!(stored(&db.deliver(vec![ret(JID, "m1", "test.ping", "true"), unknown]).await.unwrap()));
        assert_eq!(place.sql("SELECT id, success FROM salt_returns ORDER BY id"), "m1|t\nm2|\n");
        let mut back = db.get_returns(JID.into()).await.unwrap();
        back.sort_by(|a, b| a.minion.cmp(&b.minion));
        assert_eq!((back[0].success, back[1].success), (Some(true), None));
        place.sql("UPDATE salt_returns SET success = false; ALTER TABLE salt_returns ALTER COLUMN success SET NOT NULL");
        let unknown = JobReturn { success: None, ..ret(JID, "m3", "test.ping", "[1]") };
        assert!(stored(&place.open().await.deliver(vec![unknown]).await.unwrap()));
        assert_eq!(place.sql("SELECT success FROM salt_returns WHERE id = 'm3'"), "f\n");
    });
}

#[test]
fn a_partition_or_a_value_that_somebody_else_must_add_is_waited_for() {
    let Some(place) = Place::fresh(Flavour::Jsonb) else { return };
    block(async { drop(place.open().await) });
    place.sql(
        "ALTER TABLE salt_returns RENAME TO before;
         SET ROLE salt; CREATE TABLE salt_returns (LIKE before INCLUDING DEFAULTS) PARTITION BY RANGE (alter_time);
         ALTER TABLE salt_returns ADD COLUMN site text NOT NULL",
    );
    let mends = [
        (
            "found for row",
            "CREATE TABLE part PARTITION OF salt_returns FOR VALUES FROM ('2026-12-01') TO ('2026-12-02')",
        ),
        ("\"site\"", "ALTER TABLE salt_returns ALTER COLUMN site SET DEFAULT 'here'"),
    ];
    let batch = || vec![ret(JID, "m1", "f", "1"), ret(JID, "m2", "f", "1")];
    for (reason, mend) in mends {
        match block(async { place.open().await.deliver(batch()).await }) {
            Err(Error::Retry { why, .. }) => assert!(why.contains(reason), "{why}"),
            other => panic!("{other:?}"),
        }
        place.sql(&format!("SET ROLE salt; {mend}"));
    }
    for _ in 0..2 {
        assert!(stored(&block(async { place.open().await.deliver(batch()).await.unwrap() })));
    }
    assert_eq!(place.sql("SELECT count(*) FROM salt_returns"), "2\n");
}
