//! Reading manifests, and what they wish for.

use serde_json::json;

use super::*;
use crate::salt::frame::Role;
use crate::salt::options::{Asked, Layers, resolve};

const MYSQL: &str = r#"
name = "mysql"
aliases = ["mariadb"]
version = "0.1.0"
summary = "Stores returns, loads and events in MySQL or MariaDB"
reach = ["tcp://{host}:{port}"]

[[option]]
name = "host"
type = "text"
default = "salt"

[[option]]
name = "port"
type = "integer"
default = 3306

[[option]]
name = "pass"
type = "text"
secret = true
required = true

[batch]
max_items = 100
"#;

fn with(reach: &str, options: &str) -> Result<Manifest, ManifestError> {
    let head = "name = \"x\"\nversion = \"1.0.0\"\nsummary = \"s\"\n";
    Manifest::parse(&format!("{head}reach = [{reach}]\n{options}"))
}

fn option(name: &str, kind: &str, more: &str) -> String {
    format!("[[option]]\nname = \"{name}\"\ntype = \"{kind}\"\n{more}\n")
}

fn message(result: Result<Manifest, ManifestError>) -> String {
    result.map(|_| ()).unwrap_err().to_string()
}

fn wishes(manifest: &Manifest, opts: serde_json::Value) -> (Vec<(String, Origin)>, Vec<String>) {
    let layers = Layers { opts: opts.as_object().unwrap().clone(), ..Layers::default() };
    let asked = Asked {
        layers: &layers,
        ret_config: None,
        ret_kwargs: None,
        role: Role::Master,
        fallback: None,
        salt: None,
    };
    let (wishes, problems) = manifest.expand(&resolve(manifest, &asked).unwrap());
    (wishes.into_iter().map(|wish| (wish.to_string(), wish.origin)).collect(), problems)
}

fn one(text: &str, origin: Origin) -> (Vec<(String, Origin)>, Vec<String>) {
    (vec![(text.to_owned(), origin)], vec![])
}

#[test]
fn a_manifest_is_read_with_its_defaults() {
    let manifest = Manifest::parse(MYSQL).unwrap();
    assert_eq!(manifest.names().collect::<Vec<_>>(), ["mysql", "mariadb"]);
    assert_eq!((manifest.prefix.as_str(), manifest.batch.max_items), ("mysql", 100));
    assert_eq!(manifest.batch.max_bytes, Batch::default().max_bytes);
    let pass = manifest.option("pass").unwrap();
    assert!(pass.secret && pass.required && pass.attr == "pass" && pass.default.is_none());
    assert_eq!(manifest.option("port").unwrap().default, Some(json!(3306)));
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_known_one() {
    for (text, says) in [
        (
            format!("sumary = \"s\"\n{MYSQL}"),
            "the top level of the manifest has the unknown key `sumary`; hint: did you mean `summary`?",
        ),
        (
            format!("{MYSQL}max_item = 1"),
            "`[batch]` of the manifest has the unknown key `max_item`; hint: did you mean `max_items`?",
        ),
        (
            MYSQL.replace("required", "requierd"),
            "option `pass` of the manifest has the unknown key `requierd`; hint: did you mean `required`?",
        ),
        (
            format!("{MYSQL}[instance]\nzzzzzzzz = 1"),
            "`[instance]` of the manifest has the unknown key `zzzzzzzz`",
        ),
    ] {
        assert_eq!(message(Manifest::parse(&text)), says);
    }
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let cases = [
        (MYSQL.replace("\"mariadb\"", "\"mysql\""), "the name `mysql` stands twice"),
        (MYSQL.replace("\"mariadb\"", "\"Maria-DB\""), "the name `Maria-DB` is not made of"),
        (
            MYSQL.replace("default = 3306", "default = \"3306\""),
            "option `port` of the manifest: the default is not a whole number",
        ),
        (
            MYSQL.replace("default = 3306", "default = 3306\nchoices = [1, 2]"),
            "the default is none of the choices",
        ),
        (MYSQL.replace("required = true", "required = true\ndefault = \"x\""), "it is required, so"),
        (MYSQL.replace("\"pass\"", "\"host\""), "the name `host` stands twice"),
        (MYSQL.replace("0.1.0", "one"), "the version `one` is not like"),
        (format!("prefix = \"returner..x\"\n{MYSQL}"), "the prefix `returner..x`"),
        (MYSQL.replace("{port}", "{prot}"), "there is no option `prot`; hint: did you mean `port`?"),
        (MYSQL.replace("max_items = 100", "max_items = 0"), "cannot be 0"),
        (
            MYSQL.replace("default = 3306", "from_salt = \"publish_port\""),
            "`from_salt` is `publish_port`, which is no setting of Salt's that can be taken; hint: there are \
             `keep_jobs_seconds` and `archive_jobs`",
        ),
    ];
    for (text, says) in cases {
        let message = message(Manifest::parse(&text));
        assert!(message.contains(says), "{message}");
    }
    assert!(matches!(Manifest::parse("name = "), Err(ManifestError::Toml(_))));
    assert!(matches!(Manifest::parse("name = \"x\""), Err(ManifestError::Shape { .. })));
    let kind = MYSQL.replace("\"integer\"", "\"number of doors\"");
    assert!(
        matches!(Manifest::parse(&kind), Err(ManifestError::Shape { place, .. }) if place == "option `port`")
    );
}

#[test]
fn templates_are_checked() {
    let host = option("host", "text", "");
    for (reach, says) in [
        ("\"ftp://{host}\"", "the scheme `ftp` is none of"),
        ("\"tcp://{host\"", "a `{` has no `}`"),
        ("\"tcp://host}:1\"", "a `}` has no `{`"),
        ("\"dir://{host|child}\"", "`child` is no filter"),
        ("\"tcp://db\"", "is no host and port"),
        ("\"https://bad host\"", "is no host and port"),
        ("\"dir://var\"", "is not an absolute path"),
        ("\"just text\"", "it is neither like"),
        ("\"https://\"", "it names nothing"),
    ] {
        let message = message(with(reach, &host));
        assert!(message.contains(says), "{reach}: {message}");
    }
}

#[test]
fn a_wish_belongs_to_who_wrote_the_host() {
    let manifest = Manifest::parse(MYSQL).unwrap();
    assert_eq!(wishes(&manifest, json!({"mysql": {"pass": "p"}})), one("tcp://salt:3306", Origin::Default));
    let written = json!({"mysql": {"pass": "p", "host": "DB1.example.test."}});
    assert_eq!(wishes(&manifest, written), one("tcp://db1.example.test:3306", Origin::Administrator));
    let port_only = json!({"mysql": {"pass": "p", "port": 1}});
    assert_eq!(wishes(&manifest, port_only), one("tcp://salt:1", Origin::Default));
}

#[test]
fn addresses_of_both_families_are_understood() {
    let manifest = Manifest::parse(MYSQL).unwrap();
    for (host, wish) in [
        ("::1", "tcp://[::1]:3306"),
        ("[2001:DB8::5]", "tcp://[2001:db8::5]:3306"),
        ("[::1]:99", "tcp://[::1]:99"),
        ("127.0.0.1", "tcp://127.0.0.1:3306"),
        ("db:3307", "tcp://db:3307"),
    ] {
        let opts = json!({"mysql": {"pass": "p", "host": host}});
        assert_eq!(wishes(&manifest, opts), one(wish, Origin::Administrator));
    }
    for host in ["a b", "db:0", "db:x", "[::1", "::1]", "a/../b:1", "{port}"] {
        let (wishes, problems) = wishes(&manifest, json!({"mysql": {"pass": "p", "host": host}}));
        assert!(wishes.len() + problems.len() == 1, "{host}: {wishes:?}");
        assert_eq!(problems.len(), usize::from(host != "a/../b:1"), "{host}: {wishes:?}");
    }
}

#[test]
fn a_wish_of_an_option_that_is_not_set_is_left_out() {
    let options = option("uri", "text", "") + &option("path", "file", "");
    let manifest = with("\"{uri}\", \"read://{path}\", \"https://api.example.test\"", &options).unwrap();
    assert_eq!(wishes(&manifest, json!({})), one("https://api.example.test:443", Origin::Literal));
}

#[test]
fn a_host_that_is_partly_literal_is_the_manifests() {
    let manifest = with("\"https://{team}.example.test:8088\"", &option("team", "text", "")).unwrap();
    assert_eq!(
        wishes(&manifest, json!({"x.team": "ops"})),
        one("https://ops.example.test:8088", Origin::Literal)
    );
}

#[test]
fn whole_addresses_and_lists_are_taken_apart() {
    let options = option("url", "text", "") + &option("nodes", "list", "") + &option("uri", "text", "");
    let manifest = with("\"{url}\", \"tcp://{nodes}:6379\", \"tcp://{uri}:27017\"", &options).unwrap();
    let opts = json!({"x": {
        "url": "http://u:p@salt:5984/db",
        "nodes": ["a:1", "b", {"host": "::1", "port": 7}],
        "uri": "mongodb://u:p@db1:27017,db2:27018/salt?replicaSet=rs0",
    }});
    let (found, problems) = wishes(&manifest, opts);
    let texts: Vec<&str> = found.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "http://salt:5984",
            "tcp://a:1",
            "tcp://b:6379",
            "tcp://[::1]:7",
            "tcp://db1:27017",
            "tcp://db2:27018"
        ]
    );
    assert!(problems.is_empty() && found.iter().all(|(_, origin)| *origin == Origin::Administrator));
    let (found, problems) = wishes(&manifest, json!({"x.url": "gopher://secret@host"}));
    assert!(found.is_empty() && problems.len() == 1 && !problems[0].contains("secret"));
}

#[test]
fn a_directory_may_be_that_of_a_file() {
    let options = option("database", "text", "default = \"/var/lib/salt/salt.db\"");
    let manifest = with("\"dir://{database|parent}\", \"read:///etc/ssl\"", &options).unwrap();
    let (found, _) = wishes(&manifest, json!({}));
    assert_eq!(
        found,
        [
            ("dir:///var/lib/salt".to_owned(), Origin::Default),
            ("read:///etc/ssl".to_owned(), Origin::Literal)
        ]
    );
    let (found, problems) = wishes(&manifest, json!({"x.database": "/srv/../etc/x.db"}));
    assert_eq!((found.len(), problems.len()), (1, 1));
    let (found, problems) = wishes(&manifest, json!({"x.database": "salt.db"}));
    assert_eq!((found.len(), problems.len()), (1, 0));
}

#[test]
fn nearest_is_near() {
    let known = ["host", "port", "database"];
    assert_eq!(nearest("hots", known), Some("host"));
    assert_eq!(nearest("databse", known), Some("database"));
    assert_eq!(nearest("quarrel", known), None);
}
