//! What is fuzzed. Each takes any bytes, panics where a promise is broken, and gives a text that tells how it went.

use returnerd::observe::chain;
use returnerd::plugin::manifest::Manifest;
use returnerd::salt::frame::{Request, Role, body_of_file};
use returnerd::salt::json;
use returnerd::salt::options::{Asked, Layers, resolve};
use serde_json::{Map, Value};

/// See the module.
pub type Target = fn(&[u8]) -> String;

/// All, by the names of their corpora.
pub const ALL: &[(&str, Target)] =
    &[("frame", frame), ("json", msgpack_to_json), ("manifest", manifest), ("options", options)];

/// A frame of the socket or of an inbox file. What was read and is written again reads the same.
fn frame(bytes: &[u8]) -> String {
    let _ = body_of_file(bytes, 1 << 20);
    match Request::from_body(bytes) {
        Err(error) => chain(&error),
        Ok(request) => {
            let again = Request::from_body(&request.to_body())
                .expect("a request that was read can be written and read");
            assert_eq!(again.op.name(), request.op.name());
            assert_eq!(again.op.jid(), request.op.jid());
            request.op.name().to_owned()
        }
    }
}

/// Any msgpack becomes JSON that reads back, or is refused.
fn msgpack_to_json(bytes: &[u8]) -> String {
    let value = match json::decode(bytes) {
        Ok(value) => value,
        Err(error) => return chain(&error),
    };
    match json::to_json(&value) {
        Err(error) => chain(&error),
        Ok(text) => {
            json::parse(&text).expect("what was written is JSON");
            text.chars().map(|c| if c.is_alphanumeric() { 'x' } else { c }).take(20).collect()
        }
    }
}

/// A manifest that was read gives wishes without a panic, whatever the options.
fn manifest(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return "not text".into() };
    match Manifest::parse(text) {
        Err(error) => chain(&error),
        Ok(manifest) => {
            let layers = Layers { opts: filled(&manifest), ..Layers::default() };
            let asked = Asked {
                layers: &layers,
                ret_config: None,
                ret_kwargs: None,
                role: Role::Master,
                fallback: None,
                salt: None,
            };
            match resolve(&manifest, &asked) {
                Err(error) => chain(&error),
                Ok(resolved) => {
                    let (wishes, problems) = manifest.expand(&resolved);
                    for wish in &wishes {
                        let text = wish.to_string();
                        assert!(
                            !text.contains(char::is_control)
                                || text.starts_with("dir")
                                || text.starts_with("read"),
                            "{text:?}"
                        );
                    }
                    format!("{} wishes, {problems:?}", wishes.len())
                }
            }
        }
    }
}

/// A text for every option, so that templates are filled.
fn filled(manifest: &Manifest) -> Map<String, Value> {
    let value = |at: usize| Value::from(["/srv/data/file", "db.example.com:1", "8", "true", "[::1]"][at % 5]);
    let options = manifest.options.iter().enumerate();
    options.map(|(at, option)| (format!("{}.{}", manifest.prefix, option.attr), value(at))).collect()
}

/// Option look-up in layers that anybody may have written, for the manifests that come with returnerd.
fn options(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return "not text".into() };
    let Ok(Value::Object(all)) = json::parse(text) else { return "not an object".into() };
    let map = |name: &str| all.get(name).and_then(Value::as_object).cloned();
    let layers = Layers {
        opts: map("opts").unwrap_or_default(),
        grains: map("grains").unwrap_or_default(),
        pillar: map("pillar").unwrap_or_default(),
        master: map("master"),
    };
    let (kwargs, fallback, salt) = (map("ret_kwargs"), map("fallback"), map("salt"));
    let mut outcome = String::new();
    for text in [
        include_str!("../../../plugins/mysql/manifest.toml"),
        include_str!("../../../plugins/redis/manifest.toml"),
        include_str!("../../../plugins/sqlite3/manifest.toml"),
    ] {
        let manifest = Manifest::parse(text).expect("it is ours");
        let asked = Asked {
            layers: &layers,
            ret_config: all.get("ret_config").and_then(Value::as_str),
            ret_kwargs: kwargs.as_ref(),
            role: Role::Minion,
            fallback: fallback.as_ref(),
            salt: salt.as_ref(),
        };
        let told = match resolve(&manifest, &asked) {
            Err(error) => chain(&error),
            Ok(resolved) => {
                let again = resolve(&manifest, &asked).expect("the same again");
                assert_eq!(again.key, resolved.key, "the key is of the values");
                let (wishes, problems) = manifest.expand(&resolved);
                format!("{} {} {problems:?} {:?}", resolved.values.len(), wishes.len(), resolved.warnings)
            }
        };
        outcome.push_str(&told);
    }
    outcome
}
