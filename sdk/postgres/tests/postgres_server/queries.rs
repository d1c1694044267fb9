//! Loads and the questions about jobs.

use std::time::{Duration, Instant};

use returner_sdk::prelude::*;

use crate::support::*;

const JID: &str = "20261201033139637056";

fn listed(loads: &[StoredLoad]) -> Vec<&str> {
    loads.iter().map(|load| load.jid.as_str()).collect()
}

#[test]
fn a_published_load_replaces_a_stub_and_is_kept_itself() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            let stub = JobLoad {
                kind: LoadKind::Stub,
                minions: vec!["m2".into()],
                document: r#"{"fun": "test.ping", "tgt": "m2"}"#.into(),
                ..load(JID, "test.ping")
            };
            let published = JobLoad { minions: vec!["m1".into()], ..load(JID, "test.ping") };
            let poorer = JobLoad { document: r#"{"fun": "x"}"#.into(), ..load(JID, "x") };
            let end = JobLoad {
                kind: LoadKind::Addition,
                end_time: Some("2026, Dec 01 03:31:40.000000".into()),
                ..stub.clone()
            };
            for load in [stub, published, poorer, end] {
                assert!(stored(&db.save_loads(vec![load]).await.unwrap()));
            }
            let document = json(&db.get_load(JID.into()).await.unwrap().unwrap().document);
            let wanted = json(
                r#"{"fun": "test.ping", "arg": [], "tgt": "*", "tgt_type": "glob", "user": "ops",
                    "Minions": ["m1", "m2"], "EndTime": "2026, Dec 01 03:31:40.000000"}"#,
            );
            assert_eq!(document, wanted);
            assert!(db.get_load("20270101000000000000".into()).await.unwrap().is_none());
        });
    }
}

#[test]
fn a_load_that_does_not_fit_takes_no_other_along() {
    let Some(place) = Place::documented(Flavour::Text) else { return };
    block(async {
        let mut db = place.open().await;
        let long = load("20261201033139637001_4711", "f");
        let verdicts = db.save_loads(vec![load("20261201033139637002", "🚀"), long]).await.unwrap();
        assert!(why(&verdicts[1]).contains("`jid`") && why(&verdicts[1]).contains("hint: ALTER TABLE"));
        assert_eq!(verdicts[0], Verdict::Stored);
        let back = db.get_load("20261201033139637002".into()).await.unwrap().unwrap();
        assert_eq!(json(&back.document)["fun"], "🚀");
    });
}

#[test]
fn a_change_that_the_server_refuses_takes_no_other_along() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            let jid = |n: u32| format!("2026120103313963700{n}");
            let stubs = (0..8).map(|n| JobLoad { kind: LoadKind::Stub, ..load(&jid(n), "f") }).collect();
            assert!(stored(&db.save_loads(stubs).await.unwrap()));
            place.sql("ALTER TABLE jids ADD CONSTRAINT house_rule CHECK (load::text NOT LIKE '%\"bad\"%')");
            let change = |n: u32| load(&jid(n), if n == 5 { "bad" } else { "good" });
            let verdicts = db.save_loads((0..8).map(change).collect()).await.unwrap();
            for (n, verdict) in verdicts.iter().enumerate() {
                assert_eq!(*verdict == Verdict::Stored, n != 5, "{n}: {verdict:?}");
            }
            let fun = async |db: &mut Db, n| {
                json(&db.get_load(jid(n)).await.unwrap().unwrap().document)["fun"].clone()
            };
            assert_eq!((fun(&mut db, 4).await, fun(&mut db, 5).await), ("good".into(), "f".into()));
        });
    }
}

#[test]
fn jobs_are_listed_newest_first_by_pages_and_without_functions() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            let funs = ["test.ping", "saltutil.find_job", "state.apply", "saltutil_find_job", "test.ping"];
            let loads =
                funs.iter().zip(1..).map(|(fun, n)| load(&format!("2026120103313963700{n}"), fun)).collect();
            db.save_loads(loads).await.unwrap();

            let newest = db.get_jids(filter(2)).await.unwrap();
            assert_eq!(listed(&newest), ["20261201033139637005", "20261201033139637004"]);
            let before = Some("20261201033139637004".to_owned());
            let next = db.get_jids(JidsFilter { before, ..filter(2) }).await.unwrap();
            assert_eq!(listed(&next), ["20261201033139637003", "20261201033139637002"]);
            let without_funs = vec!["saltutil.find_job".to_owned()];
            let rest = db.get_jids(JidsFilter { without_funs, ..filter(10) }).await.unwrap();
            assert_eq!(rest.len(), 4);
            assert!(!listed(&rest).contains(&"20261201033139637002"));
        });
    }
}

#[test]
fn an_unreadable_load_hides_no_other() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            let unreadable = if place.flavour == Flavour::Text { "half a docu" } else { "[1]" };
            place.sql(&format!(
                r#"INSERT INTO jids VALUES ('20261201033139637001', '"{{}}"'), ('20261201033139637002', '{unreadable}'),
                   ('20261201033139637003', '"{{\"fun\": \"test.ping\"}}"')"#
            ));
            db.save_loads(vec![load("20261201033139637004", "test.ping")]).await.unwrap();
            let all = db.get_jids(filter(10)).await.unwrap();
            let documents: Vec<_> = all.iter().skip(1).map(|load| load.document.as_str()).collect();
            assert_eq!((documents[0], documents[2]), (r#"{"fun": "test.ping"}"#, "{}"));
            assert!(documents[1].contains("unreadable"), "{documents:?}");
            // A published load may still come.
            assert!(stored(&db.save_loads(vec![load("20261201033139637002", "test.ping")]).await.unwrap()));
            let healed = db.get_load("20261201033139637002".into()).await.unwrap().unwrap();
            assert_eq!(json(&healed.document)["user"], "ops");
        });
    }
}

#[test]
fn rows_that_salt_wrote_are_read() {
    for flavour in [Flavour::Text, Flavour::Jsonb] {
        let Some(place) = Place::documented(flavour) else { return };
        let nan = if flavour == Flavour::Text { "NaN" } else { "\"NaN\"" };
        place.sql(&format!(
            r#"INSERT INTO salt_returns (fun, jid, return, id, success, full_ret) VALUES
               ('test.ping', '{JID}', 'true', 'm1', 'true', '{{"id": "m1", "jid": "{JID}", "return": {nan}}}'),
               ('test.ping', '{JID}', 'true', 'm1', 'true', '{{"id": "m1", "jid": "{JID}", "return": {nan}}}'),
               ('test.ping', '{JID}', 'true', 'm2', 'False', '[1, 2]')"#
        ));
        if flavour == Flavour::Text {
            // The documented table leaves the document free to be none.
            place.sql(&format!(
                "INSERT INTO salt_returns (fun, jid, return, id, success) VALUES ('f', '{JID}', '7', 'm3', '')"
            ));
        }
        block(async {
            let mut db = place.open().await;
            let before = place.sql("SELECT COUNT(*) FROM salt_returns");
            // The master's late repetition adds nothing to the duplicates.
            assert!(stored(&db.deliver(vec![ret(JID, "m1", "test.ping", "true")]).await.unwrap()));
            assert_eq!(place.sql("SELECT COUNT(*) FROM salt_returns"), before);
            let mut back = db.get_returns(JID.into()).await.unwrap();
            back.sort_by(|a, b| a.minion.cmp(&b.minion));
            assert_eq!(json(&back[0].document)["return"], "NaN");
            assert_eq!((back[1].document.as_str(), back[1].success), ("[1, 2]", Some(false)));
            if flavour == Flavour::Text {
                assert_eq!(back[2].document, "7");
            }
        });
    }
}

/// Salt's own statements, as its returners have them, on tables that the plugin made and filled.
#[test]
fn salts_own_queries_work_on_our_tables() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            assert!(stored(&db.save_loads(vec![load(JID, "test.ping")]).await.unwrap()));
            assert!(stored(&db.deliver(vec![ret(JID, "m1", "test.ping", "true")]).await.unwrap()));
        });
        let document = r#"{"a": 1}"#;
        place.sql(&format!(
            "SET ROLE salt;
             INSERT INTO jids (jid, load) VALUES ('20261201033139637057', '{document}');
             INSERT INTO salt_returns (fun, jid, return, id, success, full_ret) VALUES
                 ('f', '20261201033139637057', '1', 'm2', 'true', '{document}');
             INSERT INTO salt_events (tag, data, master_id) VALUES ('t', '{document}', 'master')"
        ));
        assert_eq!(place.sql("SELECT jid FROM jids WHERE jid LIKE '2026%' ORDER BY jid").lines().count(), 2);
        assert_eq!(place.sql(&format!("SELECT id FROM salt_returns WHERE jid = '{JID}'")), "m1\n");
        assert_eq!(place.sql("SELECT DISTINCT id FROM salt_returns ORDER BY id"), "m1\nm2\n");
        assert_eq!(place.sql("SELECT id FROM salt_events"), "1\n");
    }
}

#[test]
fn the_latest_return_of_a_function_is_found_for_each_minion() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            let returns = vec![
                ret("20261201033139637002", "m1", "test.version", "2"),
                ret("20261201033139637001", "m1", "test.version", "1"),
                ret("20261201033139637003", "m1", "test.ping", "3"),
                ret("20261201033139637001", "m2", "test.version", "4"),
            ];
            db.deliver(returns).await.unwrap();
            let mut found = db.get_fun("test.version".into()).await.unwrap();
            found.sort_by(|a, b| a.minion.cmp(&b.minion));
            let values: Vec<_> = found.iter().map(|ret| json(&ret.document)["return"].clone()).collect();
            assert_eq!(values, [2, 4]);
            assert!(db.get_fun("test.none".into()).await.unwrap().is_empty());
            let mut minions = db.get_minions().await.unwrap();
            minions.sort();
            assert_eq!(minions, ["m1", "m2"]);
        });
    }
}

#[test]
fn twenty_thousand_jobs_are_listed_with_a_limit_at_once() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            for thousand in 0..20 {
                let jid = |n| format!("202612{:02}0331396{n:05}", thousand + 1);
                let fun = |n: u32| if n.is_multiple_of(2) { "saltutil.find_job" } else { "test.ping" };
                let loads = (0..1000u32).map(|n| load(&jid(n), fun(n))).collect();
                assert!(stored(&db.save_loads(loads).await.unwrap()));
            }
            let began = Instant::now();
            let without_funs = vec!["saltutil.find_job".to_owned()];
            let found = db.get_jids(JidsFilter { without_funs, ..filter(100) }).await.unwrap();
            let took = began.elapsed();
            assert_eq!(found.len(), 100);
            assert_eq!(found[0].jid, "20261220033139600999");
            assert_eq!(found[99].jid, "20261220033139600801");
            assert!(took < Duration::from_secs(1), "{took:?}");
        });
    }
}
