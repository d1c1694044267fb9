//! Questions: lists without walking through all keys, and what Salt's own returner wrote.

use returner_redis::Options;
use returner_sdk::prelude::*;

use crate::support::*;

fn jid(number: usize) -> String {
    format!("20261201{number:012}")
}

#[test]
fn lists_go_by_the_index_and_not_through_all_keys() {
    if !available() {
        return;
    }
    let server = returnerd_tests::redis::Redis::start(&["--appendfsync", "no"]);
    block(async {
        let mut db = open(options(server.port())).await.unwrap();
        for page in 0..10 {
            let loads = (0..1000).map(|at| {
                let number = page * 1000 + at;
                load(&jid(number), if number % 2 == 0 { "test.ping" } else { "saltutil.find_job" })
            });
            assert!(stored(&db.save_loads(loads.collect()).await.unwrap()));
        }
        // The first list of a day looks once for what Salt's own returner wrote.
        assert_eq!(db.get_jids(filter(1)).await.unwrap()[0].jid, jid(9999));
        server.cli(&["CONFIG", "RESETSTAT"]);

        let newest: Vec<String> =
            db.get_jids(filter(3)).await.unwrap().into_iter().map(|job| job.jid).collect();
        assert_eq!(newest, [jid(9999), jid(9998), jid(9997)]);
        let before = JidsFilter { before: Some(jid(5000)), ..filter(2) };
        let page: Vec<String> = db.get_jids(before).await.unwrap().into_iter().map(|job| job.jid).collect();
        assert_eq!(page, [jid(4999), jid(4998)]);
        let without = JidsFilter { without_funs: vec!["saltutil.find_job".into()], ..filter(700) };
        let pings = db.get_jids(without).await.unwrap();
        assert_eq!((pings.len(), &pings[699].jid), (700, &jid(8600)));
        assert_eq!(db.get_jids(filter(20_000)).await.unwrap().len(), 10_000);

        let mut other = open(options(server.port())).await.unwrap();
        assert_eq!(other.get_jids(filter(1)).await.unwrap().len(), 1);
        let stats = server.cli(&["INFO", "commandstats"]);
        for walk in ["cmdstat_keys", "cmdstat_scan", "cmdstat_sscan"] {
            assert!(!stats.contains(walk), "{stats}");
        }
    });
}

#[test]
fn each_minions_latest_return_of_a_function_is_found() {
    let Some(place) = Place::fresh() else { return };
    block(async {
        let mut db = place.open().await;
        let batch = vec![
            ret(&jid(1), "m1", "f", "1"),
            ret(&jid(3), "m1", "f", "3"),
            ret(&jid(2), "m1", "f", "2"),
            ret(&jid(2), "m2", "f", "2"),
            ret(&jid(4), "m2", "g", "4"),
        ];
        db.deliver(batch).await.unwrap();
        let mut found = db.get_fun("f".into()).await.unwrap();
        found.sort_by(|a, b| a.minion.cmp(&b.minion));
        let found: Vec<_> = found.iter().map(|ret| (ret.minion.as_str(), ret.jid.as_str())).collect();
        assert_eq!(found, [("m1", jid(3).as_str()), ("m2", &jid(2))]);
        assert!(db.get_fun("h".into()).await.unwrap().is_empty());
        let mut minions = db.get_minions().await.unwrap();
        minions.sort();
        assert_eq!(minions, ["m1", "m2"]);
        assert!(db.get_returns(jid(9)).await.unwrap().is_empty());
    });
}

#[test]
fn what_salts_own_returner_wrote_is_read_listed_and_left_alone() {
    let Some(place) = Place::fresh() else { return };
    let job = jid(7);
    let document = format!(r#"{{"jid": "{job}", "id": "old1", "fun": "test.ping", "return": true}}"#);
    place.cli(&["HSET", &format!("ret:{job}"), "old1", &document]);
    place.cli(&["EXPIRE", &format!("ret:{job}"), "86400"]);
    place.cli(&["SET", "old1:test.ping", &job, "EX", "86400"]);
    place.cli(&["SADD", "minions", "old1"]);
    place.cli(&["SETEX", &format!("load:{job}"), "86400", r#"{"fun": "test.ping", "tgt": "*", "x": NaN}"#]);
    // What only looks alike.
    place.cli(&["SET", "retired:2026", "x"]);
    block(async {
        let mut db = place.open().await;
        db.save_loads(vec![load(&jid(8), "test.ping")]).await.unwrap();
        assert_eq!(json(&db.get_load(job.clone()).await.unwrap().unwrap().document)["x"], "NaN");
        assert_eq!(db.get_returns(job.clone()).await.unwrap()[0].document, document);
        assert_eq!(db.get_fun("test.ping".into()).await.unwrap()[0].document, document);
        assert_eq!(db.get_minions().await.unwrap(), ["old1"]);
        let jobs: Vec<String> =
            db.get_jids(filter(10)).await.unwrap().into_iter().map(|job| job.jid).collect();
        assert_eq!(jobs, [jid(8), job.clone()]);
        assert_eq!(place.cli(&["ZCARD", "returnerd:last"]), "2");
        // A return of ours for the same minion does not replace it.
        db.deliver(vec![ret(&job, "old1", "test.ping", "false")]).await.unwrap();
        assert_eq!(db.get_returns(job.clone()).await.unwrap()[0].document, document);
    });
}

#[test]
fn taking_in_and_removing_very_many_jobs_never_holds_the_server_up() {
    if !available() {
        return;
    }
    let server = returnerd_tests::redis::Redis::start(&["--appendfsync", "no"]);
    let fill = "for n = 1, 100000 do local jid = string.format('20251201%012d', n) \
                redis.call('SET', 'load:' .. jid, '{\"fun\": \"f\"}') \
                redis.call('HSET', 'ret:' .. jid, 'm1', '{}') end";
    server.cli(&["EVAL", fill, "0"]);
    server.cli(&["CONFIG", "RESETSTAT"]);
    block(async {
        let mut db = open(options(server.port())).await.unwrap();
        // As often as the search goes on in the next call.
        while server.cli(&["GET", "returnerd:imported"]) != "done" {
            db.get_jids(filter(5)).await.unwrap();
        }
        assert_eq!(server.cli(&["ZCARD", "returnerd:jids"]), "100000");
        let request = PurgeRequest {
            cutoff_ms: ARRIVED,
            cutoff_jid: "20261201033139000000".into(),
            archive: false,
            limit: 20_000,
        };
        let purged = db.purge(request).await.unwrap();
        assert_eq!((purged.removed, purged.more), (20_000, true));
    });
    // The mean: on a busy machine a single command may be held up by others.
    let stats = server.cli(&["INFO", "commandstats"]);
    for command in ["evalsha", "scan"] {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:"))).unwrap();
        let mean = line.split("usec_per_call=").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        assert!(mean.parse::<f64>().unwrap() < 20_000.0, "{line}");
        println!("{line}");
    }
    assert!(!stats.contains("cmdstat_keys"), "{stats}");
}

#[test]
fn what_has_expired_leaves_index_and_minions() {
    let Some(place) = Place::fresh() else { return };
    block(async {
        // Jobs of long ago, stored now: they are there until their time is over.
        let short = Options { keep_jobs_seconds: 1.0, ..place.options() };
        let mut db = open(short.clone()).await.unwrap();
        db.save_loads(vec![load(&jid(1), "f"), load(&jid(2), "f")]).await.unwrap();
        db.deliver(vec![ret(&jid(1), "m1", "f", "1"), ret(&jid(3), "m2", "f", "1")]).await.unwrap();
        assert_eq!(place.cli(&["ZCARD", "returnerd:last"]), "3");
        returnerd_tests::wait::wait_for("the keys to expire", std::time::Duration::from_secs(10), || {
            place.cli(&["EXISTS", &format!("ret:{}", jid(1)), &format!("load:{}", jid(2))]) == "0"
        });
        let mut later = open(short).await.unwrap();
        assert!(later.get_jids(filter(10)).await.unwrap().is_empty());
        for set in ["returnerd:last", "returnerd:jids", "returnerd:minions"] {
            assert_eq!(place.cli(&["ZCARD", set]), "0", "{set}");
        }
        assert_eq!(place.cli(&["SCARD", "minions"]), "0");
        // Only the mark of the search is left, and it goes too.
        assert!(place.ttl("returnerd:imported") > 0);
    });
}
