//! Salt's order, as it was measured, and what we do otherwise on purpose.

use serde_json::json;

use super::*;

fn manifest(name: &str, prefix: &str, options: &[(&str, &str, &str)]) -> Manifest {
    let mut text =
        format!("name = \"{name}\"\nversion = \"1.0.0\"\nsummary = \"s\"\nprefix = \"{prefix}\"\n");
    for (name, kind, more) in options {
        text += &format!("[[option]]\nname = \"{name}\"\ntype = \"{kind}\"\n{more}\n");
    }
    Manifest::parse(&text).unwrap()
}

fn mysql() -> Manifest {
    manifest(
        "mysql",
        "mysql",
        &[
            ("host", "text", "default = \"D\""),
            ("user", "text", "default = \"D\""),
            ("pass", "text", "default = \"D\"\nsecret = true"),
            ("db", "text", "default = \"D\""),
            ("port", "integer", "default = 3306"),
            ("ssl_ca", "file", ""),
        ],
    )
}

fn object(value: &serde_json::Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap()
}

/// Resolves with `layers` as `{opts, grains, pillar, master}`.
fn try_with(
    manifest: &Manifest,
    layers: serde_json::Value,
    ret_config: Option<&str>,
    ret_kwargs: Option<serde_json::Value>,
) -> Result<Resolved, OptionsError> {
    let layer = |name: &str| layers.get(name).map(object);
    let layers = Layers {
        opts: layer("opts").unwrap_or_default(),
        grains: layer("grains").unwrap_or_default(),
        pillar: layer("pillar").unwrap_or_default(),
        master: layer("master"),
    };
    let kwargs = ret_kwargs.as_ref().map(object);
    resolve(
        manifest,
        &Asked {
            layers: &layers,
            ret_config,
            ret_kwargs: kwargs.as_ref(),
            role: Role::Minion,
            fallback: None,
            salt: None,
        },
    )
}

fn with(manifest: &Manifest, layers: serde_json::Value) -> Resolved {
    try_with(manifest, layers, None, None).unwrap()
}

fn values(resolved: &Resolved) -> Value {
    Value::Object(resolved.values.clone())
}

fn measured() -> Value {
    json!({"opts": {
        "mysql": {"host": "n1", "port": 0, "user": ""},
        "mysql.host": "flat", "mysql.db": "flatdb", "mysql.user": "flatuser",
        "alternative.mysql": {"port": false, "db": "altnested"},
        "alternative.mysql.host": "altflat",
    }})
}

#[test]
fn a_setting_of_salts_own_comes_after_what_was_written_for_the_plugin() {
    let manifest = manifest(
        "cache",
        "cache",
        &[
            ("directory", "text", "from_salt = \"{cachedir}/jobs\"\ndefault = \"/d\""),
            ("hash", "text", "from_salt = \"hash_type\"\ndefault = \"sha256\""),
        ],
    );
    let found = |opts: Value, fallback: Value, salt: Value| {
        let (fallback, salt) = (object(&fallback), object(&salt));
        let layers = Layers { opts: object(&opts), ..Layers::default() };
        let asked = Asked {
            layers: &layers,
            ret_config: None,
            ret_kwargs: None,
            role: Role::Master,
            fallback: Some(&fallback),
            salt: Some(&salt),
        };
        resolve(&manifest, &asked).unwrap()
    };
    let salt = || json!({"cachedir": "/c", "hash_type": "md5"});
    let resolved = found(json!({}), json!({}), salt());
    assert_eq!(values(&resolved), json!({"directory": "/c/jobs", "hash": "md5"}));
    assert_eq!(resolved.origins["directory"].shown, "`cachedir` in the master config");
    assert!(!resolved.is_written("directory"));
    let resolved = found(json!({}), json!({"directory": "/toml"}), salt());
    assert!(resolved.values["directory"] == "/toml" && resolved.is_written("directory"));
    let resolved = found(json!({"cache.directory": "/o"}), json!({"directory": "/toml"}), salt());
    assert!(resolved.values["directory"] == "/o" && resolved.is_written("directory"));
    let resolved = found(json!({}), json!({}), json!({}));
    assert_eq!(values(&resolved), json!({"directory": "/d", "hash": "sha256"}));
}

#[test]
fn the_measured_example_without_profile() {
    let resolved = with(&mysql(), measured());
    assert_eq!(values(&resolved), json!({"host": "n1", "user": "D", "pass": "D", "db": "flatdb", "port": 0}));
    assert_eq!(resolved.origins["host"].shown, "`mysql:host` in the minion config");
    assert_eq!(resolved.origins["db"].key, "mysql.db");
    assert!(resolved.is_written("host") && !resolved.is_written("user") && !resolved.is_written("ssl_ca"));
}

#[test]
fn the_measured_example_with_profile() {
    let resolved = try_with(&mysql(), measured(), Some("alternative"), None).unwrap();
    assert_eq!(
        values(&resolved),
        json!({"host": "altflat", "user": "D", "pass": "D", "db": "altnested", "port": 0})
    );
}

#[test]
fn the_measured_example_with_overrides() {
    let kwargs = json!({"port": null, "zzz": 1});
    let resolved = try_with(&mysql(), measured(), Some("alternative"), Some(kwargs)).unwrap();
    assert_eq!(values(&resolved), json!({"host": "altflat", "user": "D", "pass": "D", "db": "altnested"}));
    assert_eq!(resolved.warnings, ["the job's `ret_kwargs` have the unknown key `zzz`"]);
}

#[test]
fn of_the_same_key_in_several_places_the_first_wins() {
    let all = [("opts", "a"), ("grains", "b"), ("pillar", "c"), ("master", "d")];
    for skipped in 0..all.len() {
        for nested in [true, false] {
            let entry = |host: &str| {
                if nested { json!({"mysql": {"host": host}}) } else { json!({"mysql.host": host}) }
            };
            let layers: Map<String, Value> =
                all[skipped..].iter().map(|(layer, host)| ((*layer).to_owned(), entry(host))).collect();
            let resolved = with(&mysql(), Value::Object(layers));
            assert_eq!(resolved.values["host"], all[skipped].1);
        }
    }
}

#[test]
fn maps_are_not_merged_over_places() {
    let resolved = with(
        &mysql(),
        json!({
            "opts": {"mysql": {"host": "a"}},
            "pillar": {"mysql": {"host": "b", "user": "hidden"}, "mysql.db": "flat"},
        }),
    );
    assert_eq!((&resolved.values["host"], &resolved.values["user"]), (&json!("a"), &json!("D")));
    assert_eq!(resolved.values["db"], "flat");
    assert_eq!(resolved.origins["db"].shown, "`mysql.db` in the pillar");
}

#[test]
fn false_zero_and_empty_are_values_and_none_is_not() {
    let manifest = manifest(
        "x",
        "x",
        &[
            ("flag", "boolean", "default = true"),
            ("count", "integer", "default = 5"),
            ("list", "list", "default = [1]"),
            ("map", "map", "default = {a = 1}"),
            ("text", "text", "default = \"D\""),
        ],
    );
    let set = with(
        &manifest,
        json!({"opts": {"x": {"flag": false, "count": 0, "list": [], "map": {}, "text": ""}}}),
    );
    assert_eq!(values(&set), json!({"flag": false, "count": 0, "list": [], "map": {}, "text": "D"}));
    let none =
        with(&manifest, json!({"opts": {"x": {"flag": null, "count": null, "list": null, "map": null}}}));
    assert_eq!(values(&none), json!({"flag": true, "count": 5, "list": [1], "map": {"a": 1}, "text": "D"}));
    // A profile cannot turn anything off.
    let profile = json!({"opts": {"p.x": {"flag": false, "count": 0}, "x.count": 7}});
    assert_eq!(try_with(&manifest, profile, Some("p"), None).unwrap().values["count"], 7);
    // The job's own overrides can.
    let kwargs = Some(json!({"flag": false, "count": 0, "text": ""}));
    let resolved = try_with(&manifest, json!({}), None, kwargs).unwrap();
    assert_eq!(
        values(&resolved),
        json!({"flag": false, "count": 0, "list": [1], "map": {"a": 1}, "text": ""})
    );
    assert_eq!(resolved.origins["count"].shown, "`count` in the job's `ret_kwargs`");
}

#[test]
fn an_entry_of_the_wrong_shape_is_passed_over() {
    let layers = json!({"grains": {"mysql": true}, "pillar": {"mysql": {"host": "p"}}});
    let resolved = with(&mysql(), layers);
    assert_eq!(resolved.values["host"], "p");
    assert_eq!(resolved.warnings, ["`mysql` in the grains is not a map of options and is passed over"]);
}

#[test]
fn the_prefix_may_differ_from_the_name_and_is_the_same_for_an_alias() {
    let pgjsonb = manifest("pgjsonb", "returner.pgjsonb", &[("host", "text", "")]);
    assert_eq!(with(&pgjsonb, json!({"opts": {"returner.pgjsonb.host": "a"}})).values["host"], "a");
    assert_eq!(with(&pgjsonb, json!({"opts": {"returner.pgjsonb": {"host": "b"}}})).values["host"], "b");
    assert!(with(&pgjsonb, json!({"opts": {"pgjsonb.host": "c"}})).values.is_empty());
    let redis = manifest("redis", "redis", &[("nodes", "list", "attr = \"cluster.startup_nodes\"")]);
    for opts in
        [json!({"redis.cluster.startup_nodes": ["a"]}), json!({"redis": {"cluster.startup_nodes": ["a"]}})]
    {
        let resolved = with(&redis, json!({"opts": opts}));
        assert_eq!((&resolved.values["nodes"], resolved.warnings.len()), (&json!(["a"]), 0));
    }
}

fn slack() -> Manifest {
    manifest(
        "slack",
        "slack",
        &[("channel", "text", ""), ("api_key", "text", "secret = true"), ("profile", "text", "")],
    )
}

#[test]
fn a_profile_option_fills_in_and_erases_nothing() {
    let opts = json!({"opts": {
        "slack": {"profile": "team", "channel": "#a", "api_key": "kept"},
        "team": {"slack.channel": "#b", "slack.api_key": null},
    }});
    let resolved = with(&slack(), opts);
    assert_eq!((&resolved.values["channel"], &resolved.values["api_key"]), (&json!("#b"), &json!("kept")));
    assert_eq!(resolved.origins["channel"].shown, "`team:slack.channel` in the minion config");
    let lost = with(&slack(), json!({"opts": {"slack": {"profile": "gone"}}}));
    assert_eq!(lost.warnings, ["the option `profile` names `gone`, but there is no map of that name"]);
}

#[test]
fn overrides_of_the_job_stand_over_a_profile() {
    let opts = json!({"opts": {"slack.profile": "team", "team": {"slack.channel": "#b"}}});
    let resolved = try_with(&slack(), opts, None, Some(json!({"channel": "#c"}))).unwrap();
    assert_eq!(resolved.values["channel"], "#c");
}

#[test]
fn values_are_made_to_fit_where_they_can_mean_only_one_thing() {
    use OptionType::{Boolean, File, Integer, List, Map, Number, Text};
    let table = [
        (Integer, json!("3306"), Some(json!(3306))),
        (Integer, json!(3306.0), Some(json!(3306))),
        (Integer, json!(u64::MAX), Some(json!(u64::MAX))),
        (Integer, json!(1.5), None),
        (Integer, json!(true), None),
        (Integer, json!("x"), None),
        (Number, json!("1.5"), Some(json!(1.5))),
        (Number, json!("nan"), None),
        (Text, json!(0), Some(json!("0"))),
        (Text, json!(true), None),
        (Text, json!(["a"]), None),
        (Boolean, json!("True"), Some(json!(true))),
        (Boolean, json!("off"), Some(json!(false))),
        (Boolean, json!(1), Some(json!(true))),
        (Boolean, json!(2), None),
        (Boolean, json!("maybe"), None),
        (List, json!("a:1, b:2"), Some(json!(["a:1", "b:2"]))),
        (List, json!({}), None),
        (Map, json!({"a": 1}), Some(json!({"a": 1}))),
        (Map, json!("a"), None),
        (File, json!("/etc/ca.pem"), Some(json!("/etc/ca.pem"))),
        (File, json!(1), None),
    ];
    for (kind, value, fit) in table {
        assert_eq!(coerce(kind, &value), fit, "{kind:?} {value}");
    }
}

#[test]
fn a_value_that_does_not_fit_is_an_error_with_its_place() {
    let error = try_with(&mysql(), json!({"opts": {"mysql.port": "abc"}}), None, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`mysql.port` in the minion config is the text `abc`, but the option `port` must be a whole number; hint: write digits only"
    );
    let secret = try_with(&mysql(), json!({"opts": {"mysql": {"pass": true}}}), None, None).unwrap_err();
    assert_eq!(
        secret.to_string(),
        "`mysql:pass` in the minion config is the boolean (hidden), but the option `pass` must be text; hint: put the value in quotes"
    );
    let choosy = manifest("x", "x", &[("mode", "text", "choices = [\"text\", \"pickle\"]")]);
    let error = try_with(&choosy, json!({"grains": {"x.mode": "json"}}), None, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`x.mode` in the grains is the text `json`, but the option `mode` must be one of `text`, `pickle`"
    );
}

#[test]
fn salts_own_setting_counts_where_nobody_wrote_the_option() {
    let more = "default = 86400\nfrom_salt = \"keep_jobs_seconds\"";
    let redis = manifest("redis", "redis", &[("keep", "number", more)]);
    let resolved = |opts: Value, salt: Value, fallback: Value| {
        let (layers, salt, fallback) =
            (Layers { opts: object(&opts), ..Layers::default() }, object(&salt), object(&fallback));
        let asked = Asked {
            layers: &layers,
            ret_config: None,
            ret_kwargs: None,
            role: Role::Master,
            fallback: Some(&fallback),
            salt: Some(&salt),
        };
        resolve(&redis, &asked).unwrap()
    };
    let salt = json!({"keep_jobs_seconds": 0, "keep_jobs": 3});
    let taken = resolved(json!({}), salt.clone(), json!({}));
    assert_eq!(values(&taken), json!({"keep": 0}));
    assert_eq!(taken.origins["keep"].shown, "`keep_jobs_seconds` in the master config");
    let older = resolved(json!({}), json!({"keep_jobs": 3}), json!({}));
    assert_eq!((values(&older), older.origins["keep"].key.as_str()), (json!({"keep": 10800.0}), "keep_jobs"));
    let written = resolved(json!({"redis.keep": 7}), salt.clone(), json!({}));
    assert_eq!(values(&written), json!({"keep": 7}));
    assert_eq!(values(&resolved(json!({}), salt, json!({"keep": 8}))), json!({"keep": 8}));
    assert_eq!(values(&resolved(json!({}), json!({}), json!({}))), json!({"keep": 86400}));
}

#[test]
fn a_required_option_that_is_missing_is_named_by_its_key() {
    let manifest = manifest("sqlite3", "sqlite3", &[("database", "text", "required = true")]);
    let says = "the returner `sqlite3` needs the option `sqlite3.database`, which is not set; hint: set `sqlite3.database` in the minion config";
    for layers in [json!({}), json!({"opts": {"sqlite3.database": ""}})] {
        assert_eq!(try_with(&manifest, layers, None, None).unwrap_err().to_string(), says);
    }
    let kwargs = Some(json!({"database": null}));
    assert!(try_with(&manifest, json!({"opts": {"sqlite3.database": "/x"}}), None, kwargs).is_err());
}

#[test]
fn unknown_keys_under_the_prefix_are_reported_with_the_nearest() {
    let layers = json!({
        "opts": {"mysql": {"hots": "x", "pass": "p"}, "mysqlish.host": 1, "other.mysql.host": 1, "night.mysql": {"prot": 1}},
        "pillar": {"mysql.usr": "x"},
    });
    let resolved = try_with(&mysql(), layers, Some("night"), Some(json!({"hst": 1}))).unwrap();
    assert_eq!(
        resolved.warnings,
        [
            "the job's `ret_kwargs` have the unknown key `hst`; hint: did you mean `host`?",
            "`mysql:hots` in the minion config is no option of the returner `mysql`; hint: did you mean `mysql:host`?",
            "`mysql.usr` in the pillar is no option of the returner `mysql`; hint: did you mean `mysql.user`?",
            "`night.mysql:prot` in the minion config is no option of the returner `mysql`; hint: did you mean `night.mysql:port`?",
        ]
    );
}

#[test]
fn a_file_is_a_path_until_it_is_loaded() {
    for none in [json!("none"), json!("None"), json!(""), json!(null), json!(false)] {
        assert!(!with(&mysql(), json!({"opts": {"mysql.ssl_ca": none}})).values.contains_key("ssl_ca"));
    }
    let resolved = with(&mysql(), json!({"opts": {"mysql.ssl_ca": "/etc/ca.pem"}}));
    assert_eq!(resolved.values["ssl_ca"], "/etc/ca.pem");
    let loaded = load_files(&resolved, |path| Ok(format!("text of {}", path.display()))).unwrap();
    assert_eq!((&loaded["ssl_ca"], &loaded["host"]), (&json!("text of /etc/ca.pem"), &json!("D")));
    let error = load_files(&resolved, |_| Err(std::io::ErrorKind::NotFound.into())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the file `/etc/ca.pem`, named by `mysql.ssl_ca` in the minion config, cannot be read"
    );
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn the_key_is_that_of_the_values() {
    let key = |name: &str, opts: Value| {
        with(
            &manifest(name, "x", &[("a", "map", ""), ("b", "text", "default = \"D\"")]),
            json!({"opts": opts}),
        )
        .key
    };
    let one = key("one", json!({"x.a": {"p": 1, "q": {"r": 1, "s": 2}}}));
    assert_eq!(one, key("one", json!({"x": {"a": {"q": {"s": 2, "r": 1}, "p": 1}, "b": "D"}})));
    assert_ne!(one, key("two", json!({"x.a": {"p": 1, "q": {"r": 1, "s": 2}}})));
    assert_ne!(one, key("one", json!({"x.a": {"p": 2, "q": {"r": 1, "s": 2}}})));
    assert!(one.len() == 64 && one.bytes().all(|b| b.is_ascii_hexdigit()));
}

#[test]
fn secrets_are_not_shown() {
    let resolved = with(&mysql(), json!({"opts": {"mysql.pass": "hush", "mysql.host": "db"}}));
    assert_eq!(resolved.shown()["pass"], "********");
    assert_eq!(resolved.values["pass"], "hush");
    let debug = format!("{resolved:?}");
    assert!(!debug.contains("hush") && debug.contains("db"), "{debug}");
}
