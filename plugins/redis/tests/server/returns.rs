//! Returns and loads: the first return stands, loads meet by the rule, and everything that grows has a time to live.

use returner_redis::Options;
use returner_sdk::prelude::*;
use returnerd_tests::redis::Redis;

use crate::support::*;

const JID: &str = "20261201033139637056";
const LATER: &str = "20261201033140000000";

#[test]
fn a_return_is_stored_once_as_salt_stores_it_and_the_first_stands() {
    let Some(place) = Place::fresh() else { return };
    block(async {
        let mut db = place.open().await;
        let first = ret(JID, "m1", "test.ping", "true");
        let again = ret(JID, "m1", "test.ping", "false");
        let other = ret(JID, "m2", "test.ping", "null");
        assert!(stored(&db.deliver(vec![first.clone(), again.clone(), other]).await.unwrap()));
        assert!(stored(&db.deliver(vec![again]).await.unwrap()));

        assert_eq!(place.cli(&["HGET", &format!("ret:{JID}"), "m1"]), first.document);
        assert_eq!(place.cli(&["HLEN", &format!("ret:{JID}")]), "2");
        assert_eq!(place.cli(&["GET", "m1:test.ping"]), JID);
        assert_eq!(place.cli(&["SCARD", "minions"]), "2");
        let mut back = db.get_returns(JID.into()).await.unwrap();
        back.sort_by(|a, b| a.minion.cmp(&b.minion));
        assert_eq!((back.len(), &back[0].document), (2, &first.document));
    });
}

#[test]
fn a_batch_is_one_exchange_and_a_resource_has_a_field_of_its_own() {
    let Some(place) = Place::fresh() else { return };
    block(async {
        let mut db = place.open().await;
        let resource = JobReturn { resource_id: Some("m1/eth0".into()), ..ret(JID, "m1", "net.up", "1") };
        let verdicts = db.deliver(vec![ret(JID, "m1", "net.up", "0"), resource]).await.unwrap();
        assert!(stored(&verdicts));
        assert_eq!(place.cli(&["HEXISTS", &format!("ret:{JID}"), "m1/eth0"]), "1");
        let several = ret(JID, "m2", "test.ping,test.version", r#"{"test.ping": true}"#);
        db.deliver(vec![several]).await.unwrap();
        assert_eq!(db.get_fun("test.ping,test.version".into()).await.unwrap()[0].minion, "m2");
    });
}

#[test]
fn every_key_that_grows_has_a_time_to_live_which_each_return_renews() {
    let Some(place) = Place::fresh() else { return };
    let (hash, load_key) = (format!("ret:{JID}"), format!("load:{JID}"));
    block(async {
        let mut db = open(Options { keep_jobs_seconds: 1000.0, ..place.options() }).await.unwrap();
        db.save_loads(vec![load(JID, "test.ping")]).await.unwrap();
        db.deliver(vec![ret(JID, "m1", "test.ping", "true")]).await.unwrap();
        let keys = [hash.as_str(), &load_key, "m1:test.ping"];
        for key in keys {
            assert!((990..=1000).contains(&place.ttl(key)), "{key}: {}", place.ttl(key));
            place.cli(&["EXPIRE", key, "5"]);
        }
        db.deliver(vec![ret(JID, "m2", "test.ping", "true")]).await.unwrap();
        for key in [&hash, &load_key] {
            assert!(place.ttl(key) > 900, "{key}");
        }
        assert!(place.ttl("m2:test.ping") > 900);
        place.cli(&["EXPIRE", &load_key, "5"]);
        db.save_loads(vec![load(JID, "test.ping")]).await.unwrap();
        assert!(place.ttl(&load_key) > 900);
    });
}

#[test]
fn a_time_to_live_is_only_made_longer() {
    let Some(place) = Place::fresh() else { return };
    let [hash, load_key, pointer] = [format!("ret:{JID}"), format!("load:{JID}"), "m1:f".to_owned()];
    let keeping = |keep_jobs_seconds| Options { keep_jobs_seconds, ..place.options() };
    block(async {
        let mut wanted = 0;
        // As a master and minions with other settings would write by turns.
        for (round, keep) in [500.0, 1000.0, 200.0, 0.0, 500.0].into_iter().enumerate() {
            let mut db = open(keeping(keep)).await.unwrap();
            let minions = vec![format!("r{round}")];
            db.save_loads(vec![JobLoad { minions, ..load(JID, "f") }]).await.unwrap();
            let batch = vec![ret(JID, "m1", "f", "1"), ret(JID, &format!("r{round}"), "f", "1")];
            db.deliver(batch).await.unwrap();
            wanted = match round {
                3.. => -1,
                _ => wanted.max(keep as i64),
            };
            for key in [&hash, &load_key, &pointer] {
                let ttl = place.ttl(key);
                assert!(
                    (wanted - 10..=wanted).contains(&ttl),
                    "round {round}: `{key}` has {ttl}, not {wanted}"
                );
            }
        }
    });
}

#[test]
fn the_pointer_goes_to_the_latest_job_whatever_the_order() {
    let Some(place) = Place::fresh() else { return };
    block(async {
        let mut db = place.open().await;
        db.deliver(vec![ret(LATER, "m1", "f", "2"), ret(JID, "m1", "f", "1")]).await.unwrap();
        assert_eq!(place.cli(&["GET", "m1:f"]), LATER);
        // One to a job that is gone gives way.
        place.cli(&["DEL", &format!("ret:{LATER}")]);
        db.deliver(vec![ret(JID, "m1", "f", "1")]).await.unwrap();
        assert_eq!(place.cli(&["GET", "m1:f"]), JID);
    });
}

#[test]
fn wide_and_hostile_texts_come_back_equal() {
    let Some(place) = Place::fresh() else { return };
    let texts = ["naïve → 日本", "done 🚀 𠀀", "nul \0 end\r\n$5\r\n*1\r\n", "'; \"\\\"\\\\'"];
    block(async {
        let mut db = place.open().await;
        for (number, text) in texts.iter().enumerate() {
            let value = returner_sdk::serde_json::to_string(text).unwrap();
            let jid = format!("2026120103313963705{number}");
            assert!(stored(&db.deliver(vec![ret(&jid, "m1", "cmd.run", &value)]).await.unwrap()));
            let back = db.get_returns(jid).await.unwrap();
            assert_eq!(json(&back[0].document)["return"], *text);
        }
    });
}

#[test]
fn ten_mebibytes_go_in_and_come_back() {
    let Some(place) = Place::fresh() else { return };
    block(async {
        let mut db = place.open().await;
        let huge = ret(JID, "m1", "f", &format!("\"{}\"", "x".repeat(10 << 20)));
        assert!(stored(&db.deliver(vec![huge.clone(), ret(JID, "m2", "f", "1")]).await.unwrap()));
        let back = db.get_returns(JID.into()).await.unwrap();
        assert!(back.iter().any(|ret| ret.document == huge.document));
    });
}

#[test]
fn a_value_over_the_servers_limit_is_rejected_with_its_size() {
    if !available() {
        return;
    }
    let server = Redis::start(&["--proto-max-bulk-len", "1mb"]);
    block(async {
        let mut db = open(options(server.port())).await.unwrap();
        let huge = format!("\"{}\"", "x".repeat(2 << 20));
        let batch = vec![ret(JID, "m1", "f", "1"), ret(JID, "m2", "f", &huge), ret(JID, "m3", "f", "1")];
        let verdicts = db.deliver(batch).await.unwrap();
        assert_eq!((&verdicts[0], &verdicts[2]), (&Verdict::Stored, &Verdict::Stored));
        let Verdict::Reject(why) = &verdicts[1] else { panic!("{verdicts:?}") };
        assert!(why.contains("1048576") && why.contains("`proto-max-bulk-len`"), "{why}");
        let big = JobLoad { document: format!(r#"{{"fun": {huge}}}"#), ..load(LATER, "f") };
        let verdicts = db.save_loads(vec![big, load(JID, "f")]).await.unwrap();
        assert!(matches!(verdicts.as_slice(), [Verdict::Reject(_), Verdict::Stored]), "{verdicts:?}");
    });
}

#[test]
fn a_key_of_another_kind_takes_no_other_record_along() {
    let Some(place) = Place::fresh() else { return };
    place.cli(&["SET", &format!("ret:{JID}"), "somebody's"]);
    place.cli(&["RPUSH", "m2:f", "somebody's"]);
    place.cli(&["RPUSH", &format!("load:{JID}"), "somebody's"]);
    block(async {
        let mut db = place.open().await;
        let batch = vec![ret(JID, "m1", "f", "1"), ret(LATER, "m2", "f", "1"), ret(LATER, "m3", "f", "1")];
        let verdicts = db.deliver(batch).await.unwrap();
        for verdict in &verdicts[..2] {
            assert!(matches!(verdict, Verdict::Reject(why) if why.contains("WRONGTYPE")), "{verdict:?}");
        }
        assert_eq!(verdicts[2], Verdict::Stored);
        // Nothing is left of what was refused.
        assert_eq!(place.cli(&["HKEYS", &format!("ret:{LATER}")]), "m3");
        assert_eq!(place.cli(&["SMEMBERS", "minions"]), "m3");
        let verdicts = db.save_loads(vec![load(JID, "f"), load(LATER, "f")]).await.unwrap();
        assert!(matches!(verdicts.as_slice(), [Verdict::Reject(_), Verdict::Stored]), "{verdicts:?}");
    });
}

#[test]
fn a_published_load_replaces_a_stub_and_is_itself_kept() {
    let Some(place) = Place::fresh() else { return };
    block(async {
        let mut db = place.open().await;
        let stub = JobLoad {
            kind: LoadKind::Stub,
            document: r#"{"fun": "test.ping", "tgt": "m1"}"#.into(),
            minions: vec!["m1".into()],
            ..load(JID, "test.ping")
        };
        let addition = JobLoad {
            kind: LoadKind::Addition,
            document: "{}".into(),
            minions: vec!["m3".into()],
            end_time: Some("2026, Dec 01 03:31:40.000000".into()),
            ..load(JID, "")
        };
        let poorer = JobLoad { document: r#"{"fun": "other", "tgt": "m1"}"#.into(), ..load(JID, "other") };
        for load in [stub, load(JID, "test.ping"), addition.clone(), poorer, addition] {
            assert!(stored(&db.save_loads(vec![load]).await.unwrap()));
        }
        let load = json(&db.get_load(JID.into()).await.unwrap().unwrap().document);
        assert_eq!(
            (&load["tgt"], &load["user"], &load["fun"]),
            (&"*".into(), &"ops".into(), &"test.ping".into())
        );
        assert_eq!(load["Minions"], json(r#"["m1", "m3"]"#));
        assert_eq!(load["EndTime"], "2026, Dec 01 03:31:40.000000");
        assert_eq!(db.get_load(LATER.into()).await.unwrap(), None);
    });
}

#[test]
fn writers_of_the_same_load_lose_nothing() {
    let Some(place) = Place::fresh() else { return };
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let options = place.options();
            std::thread::spawn(move || {
                block(async {
                    let mut db = open(options).await.unwrap();
                    for number in 0..25 {
                        let minions = vec![format!("w{writer}-{number}")];
                        let addition = JobLoad { kind: LoadKind::Addition, minions, ..load(JID, "f") };
                        // What meets too many others is tried again by the host.
                        while !stored(&db.save_loads(vec![addition.clone()]).await.unwrap()) {}
                    }
                });
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    block(async {
        let load = place.open().await.get_load(JID.into()).await.unwrap().unwrap();
        assert_eq!(json(&load.document)["Minions"].as_array().unwrap().len(), 100);
    });
}
