//! The same directory under Salt's own functions: each reads what the other wrote, and Salt's cleaner runs over ours.

use std::fs;
use std::time::Duration;

use returner_sdk::prelude::*;
use serde_json::{Value, json};

use crate::support::*;

const DAY: Duration = Duration::from_secs(86_400);

fn salts_load(jid: &str, fun: &str) -> Value {
    json!({
        "cmd": "publish", "tgt": "*", "fun": fun, "arg": ["one", {"__kwarg__": true, "two": 2}], "tgt_type": "glob", "ret": "",
        "jid": jid, "kwargs": {"show_jid": false, "delimiter": ":"}, "user": "root"
    })
}

#[test]
fn what_salt_wrote_is_read() {
    for release in RELEASES {
        let cache = Cache::new();
        let odd = json!({"$pairs": [
            ["text", "ä🚀"], ["bytes", {"$bytes": [255, 0]}], ["utf8", {"$bytes": [97]}], [5, [1, 2.5, null]],
            ["5", true], ["nan", {"$float": "nan"}], ["when", {"$time": [2026, 1, 5, 9, 30, 15]}], ["nul", "a\u{0}b"]
        ]});
        let (_, errors) = cache.salt(
            release,
            json!([
                ["prep_jid", [], {"passed_jid": jid(1)}],
                ["save_load", [jid(1), salts_load(&jid(1), "test.arg"), ["m2", "m1"]], {}],
                ["save_minions", [jid(1), ["m9"]], {"syndic_id": "syndic-a"}],
                ["returner", [{"jid": jid(1), "id": "m1", "return": odd, "retcode": 2, "success": false, "out": "nested", "fun": "test.arg"}], {}],
                ["returner", [{"jid": jid(1), "id": "m2", "return": {"return": 5}}], {}],
                ["update_endtime", [jid(1), "2026, Dec 01 03:31:41.000000"], {}],
                // A job that a syndic began.
                ["prep_jid", [], {"passed_jid": jid(2)}],
                ["save_minions", [jid(2), ["m7", "m5"]], {"syndic_id": "syndic-a"}],
                // A return whose job Salt does not know becomes the load.
                ["prep_jid", [], {"passed_jid": jid(3)}],
                ["save_load", [jid(3), {"jid": jid(3), "id": "m1", "return": true, "fun": "test.ping", "cmd": "_return"}], {}],
                ["prep_jid", [], {"passed_jid": jid(4), "nocache": true}]
            ]),
        );
        assert!(errors.is_empty(), "{errors:?}");
        let mut store = cache.open();
        let mut expected = salts_load(&jid(1), "test.arg");
        expected["Minions"] = json!(["m1", "m2", "m9"]);
        expected["EndTime"] = json!("2026, Dec 01 03:31:41.000000");
        assert_eq!(load(&mut store, &jid(1)).unwrap(), expected);
        let found = returns(&mut store, &jid(1));
        assert_eq!(
            found["m1"],
            json!({
                "jid": jid(1), "id": "m1", "fun": "test.arg", "fun_args": expected["arg"], "retcode": 2, "success": false, "out": "nested",
                "return": {
                    "text": "ä🚀", "bytes": {"__bytes__": "/wA="}, "utf8": "a", "5 (int)": [1, 2.5, null], "5": true,
                    "nan": "NaN", "when": "2026-01-05T09:30:15", "nul": "a\\u0000b"
                }
            })
        );
        assert_eq!(found["m2"]["return"], json!({"return": 5}));
        assert_eq!(load(&mut store, &jid(2)).unwrap()["Minions"], json!(["m5", "m7"]));
        assert_eq!(jids(&mut store, filter(10, None, &[])), [jid(3), jid(1)]);
        assert_eq!(run(store.get_minions()).unwrap(), ["m1", "m2"]);
        let latest = run(store.get_fun("test.arg".into())).unwrap();
        assert_eq!(latest.len(), 2);
        // Salt's first return stays, its load stays, and the true load replaces what it made of a return.
        deliver(&mut store, vec![ret(&jid(1), "m2", json!("second")), ret(&jid(4), "m1", json!("unwanted"))]);
        save(
            &mut store,
            vec![published(&jid(1), "other.fun", &["m8"]), published(&jid(3), "test.ping", &["m1"])],
        );
        assert_eq!(returns(&mut store, &jid(1))["m2"]["return"], json!({"return": 5}));
        assert_eq!(load(&mut store, &jid(1)).unwrap()["fun"], "test.arg");
        assert_eq!(load(&mut store, &jid(3)).unwrap()["user"], "ops");
        assert!(returns(&mut store, &jid(4)).is_empty());
        // What Salt writes later is seen.
        cache.salt(release, json!([
            ["prep_jid", [], {"passed_jid": jid(9)}], ["save_load", [jid(9), salts_load(&jid(9), "f"), ["m1"]], {}]
        ]));
        assert_eq!(jids(&mut store, filter(1, None, &[])), [jid(9)]);
    }
}

#[test]
fn what_is_written_here_salt_reads() {
    for release in RELEASES {
        let cache = Cache::new();
        let mut store = cache.open();
        save(
            &mut store,
            vec![
                published(&jid(1), "test.echo", &["m2", "m1"]),
                stub(&jid(2), "saltutil.find_job"),
                addition(&jid(1), &["m3"], Some("2026, Dec 01 03:31:41.000000")),
            ],
        );
        save(&mut store, vec![addition(&jid(3), &["m3"], None)]);
        let document = json!({
            "jid": jid(1), "id": "m1", "fun": "test.echo", "fun_args": ["x"], "retcode": 2, "success": false, "out": "nested",
            "return": {"deep": [1, 1.5, null, "ä🚀"], "bytes": {"__bytes__": "/wA="}}
        });
        deliver(
            &mut store,
            vec![ret_of(&document), ret(&jid(1), "m2", json!(true)), ret(&jid(2), "m1", json!({}))],
        );
        let (answers, errors) = cache.salt(
            release,
            json!([
                ["get_load", [jid(1)], {}], ["get_jid", [jid(1)], {}], ["get_jids", [], {}], ["get_jids_filter", [10], {}],
                ["get_endtime", [jid(1)], {}], ["get_load", [jid(2)], {}], ["get_load", [jid(3)], {}], ["get_jid", [jid(8)], {}],
                // A repeated return is a duplicate for Salt too; its load is ours.
                ["prep_jid", [], {"passed_jid": jid(1)}],
                ["returner", [{"jid": jid(1), "id": "m2", "return": "second"}], {}],
                ["get_jid", [jid(1)], {}]
            ]),
        );
        let mut expected: Value =
            serde_json::from_str(&published(&jid(1), "test.echo", &[]).document).unwrap();
        expected["Minions"] = json!(["m1", "m2", "m3"]);
        assert_eq!(answers[0], expected);
        let mut record = document.clone();
        record["return"]["bytes"] = json!({"$bytes": [255, 0]});
        assert_eq!(answers[1]["m1"], record);
        assert_eq!((&answers[1]["m2"]["return"], &answers[1]["m2"]["retcode"]), (&json!(true), &json!(0)));
        assert_eq!(answers[2].as_object().unwrap().keys().collect::<Vec<_>>().len(), 2);
        assert_eq!(answers[2][jid(1)]["Function"], "test.echo");
        assert_eq!(answers[2][jid(1)]["EndTime"], "2026, Dec 01 03:31:41.000000");
        assert_eq!(answers[3].as_array().unwrap().len(), 1);
        assert_eq!(answers[4], "2026, Dec 01 03:31:41.000000");
        assert_eq!(answers[5]["fun"], "saltutil.find_job");
        assert_eq!((&answers[6], &answers[7]), (&json!({}), &json!({})));
        assert_eq!(answers[9], json!(false));
        assert_eq!(answers[10]["m2"]["return"], json!(true));
        assert!(
            errors.iter().all(|error| error.as_str().unwrap().contains("Duplicate return")),
            "{errors:?}"
        );
    }
}

#[test]
fn every_hash_of_salts_names_the_same_directories() {
    for hash in ["md5", "sha1", "sha224", "sha384", "sha512"] {
        let cache = Cache::new();
        cache.salt_with("3008.4", json!([
            ["prep_jid", [], {"passed_jid": jid(1)}], ["save_load", [jid(1), salts_load(&jid(1), "f"), ["m1"]], {}]
        ]), json!({ "hash_type": hash }));
        let options = json!({ "directory": cache.jobs(), "hash_type": hash });
        let context = Context::default();
        let open = returner_local_cache::Store::open(serde_json::from_value(options).unwrap(), &context);
        let mut store = run(open).unwrap();
        assert_eq!(load(&mut store, &jid(1)).unwrap()["fun"], "f", "{hash}");
        assert_eq!(jids(&mut store, filter(10, None, &[])), [jid(1)]);
    }
}

#[test]
fn salts_cleaner_leaves_the_index_and_fresh_jobs_alone() {
    // Both begin with `e7`, as the issue that reported the loss of the second has them.
    let (old, fresh) = ("20260110080000000001", "20260112093000000145");
    for release in RELEASES {
        let cache = Cache::new();
        let mut store = cache.open();
        save(&mut store, vec![published(old, "f", &["m1"]), published(fresh, "f", &["m1"])]);
        deliver(
            &mut store,
            vec![ret(old, "m1", json!(1)), ret(fresh, "m1", json!(1)), ret(&jid(1), "m1", json!(1))],
        );
        assert_eq!(jids(&mut store, filter(10, None, &[])), [fresh, old]);
        set_age(&cache.job(old).join("jid"), 2 * DAY);
        let (_, errors) = cache.salt(release, json!([["clean_old_jobs", [], {}], ["get_jids", [], {}]]));
        assert!(errors.is_empty(), "{errors:?}");
        assert!(!cache.job(old).exists() && cache.job(fresh).exists() && cache.job(&jid(1)).exists());
        let work = cache.jobs().join(".returnerd/work");
        assert!(work.join("names").exists());
        assert_eq!(jids(&mut store, filter(10, None, &[])), [fresh]);

        // After a day in which nobody used the plugin, Salt takes the index for an old job: it comes back.
        set_age(&work.join("jid"), 2 * DAY);
        let (_, errors) = cache.salt(release, json!([["clean_old_jobs", [], {}]]));
        assert!(errors.is_empty() && !work.exists(), "{errors:?}");
        assert_eq!(jids(&mut store, filter(10, None, &[])), [fresh]);
        deliver(&mut store, vec![ret(fresh, "m2", json!(1))]);
        fs::remove_dir_all(cache.jobs().join(".returnerd")).unwrap();
        deliver(&mut store, vec![ret(fresh, "m3", json!(1))]);
        save(&mut store, vec![published(&jid(2), "f", &["m1"])]);
        assert_eq!(jids(&mut cache.open(), filter(10, None, &[])), [jid(2).as_str(), fresh]);
        assert_eq!(returns(&mut store, fresh).len(), 3);
    }
}
