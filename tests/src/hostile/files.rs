//! Cases of files that are no good plugins, and of guests in WAT that act when they are instantiated.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::json;

use super::Case;
use super::lab::Lab;
use crate::env;

/// A case of a file whose bytes are made by `bytes`; the words are in the reason why it is not loaded.
fn unloadable(
    name: &'static str,
    file: &'static str,
    bytes: impl Fn() -> Vec<u8> + 'static,
    words: &'static [&'static str],
) -> Case {
    Case::new(name, move |lab| {
        let path = put(lab, file, &bytes());
        let result = lab.broken(&format!("/{file}.wasm"), words);
        fs::remove_file(path).unwrap();
        result
    })
}

/// Puts a file into the plugins directory as an administrator should.
fn put(lab: &Lab, name: &str, bytes: &[u8]) -> PathBuf {
    let made = lab.daemon.root().join("made.wasm");
    fs::write(&made, bytes).unwrap();
    fs::set_permissions(&made, fs::Permissions::from_mode(0o644)).unwrap();
    lab.daemon.drop_plugin_file(name, &made);
    lab.daemon.plugins_dir().join(format!("{name}.wasm"))
}

/// A case of a component whose core module is this text; it acts when it is instantiated.
fn starting(
    name: &'static str,
    plugin: &'static str,
    module: &'static str,
    words: &'static [&'static str],
) -> Case {
    Case::new(name, move |lab| {
        let path = put(lab, plugin, &component(plugin, module, ""));
        lab.wait_for(&["served"], |lab| {
            let status = lab.status();
            let mut plugins = status["plugins"].as_array().into_iter().flatten();
            let served = plugins.any(|row| row["name"] == plugin);
            if served { "served".into() } else { status["broken"].to_string() }
        })?;
        let answer = lab.give(plugin, &json!({}));
        if !answer.ok {
            return Err(answer.error);
        }
        let result = lab.wait_for(words, |lab| {
            let status = lab.status();
            let mut sinks = status["sinks"].as_array().into_iter().flatten();
            let sink = sinks.find(|sink| sink["plugin"] == plugin).cloned().unwrap_or_default();
            sink["last_error"].as_str().unwrap_or_default().to_owned()
        });
        fs::remove_file(path).unwrap();
        result
    })
}

/// A component that has the exports of a returner by name, around a core module with a function `f`.
fn component(name: &str, module: &str, more: &str) -> Vec<u8> {
    let manifest =
        format!("name = \\\"{name}\\\"\\nversion = \\\"1.0.0\\\"\\nsummary = \\\"harm\\\"\\n{more}");
    let text = format!(
        r#"(component
            (core module $m {module} (func (export "f")))
            (core instance $i (instantiate $m))
            (func $f (canon lift (core func $i "f")))
            (instance $lifecycle (export "open" (func $f)) (export "close" (func $f)))
            (instance $returns (export "deliver" (func $f)))
            (export "salt:returner/lifecycle@0.1.0" (instance $lifecycle))
            (export "salt:returner/returns@0.1.0" (instance $returns))
            (@custom "returner-manifest" "{manifest}"))"#
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn guest() -> Vec<u8> {
    fs::read(env::guest("hostile")).unwrap()
}

/// The guest with one text in place of another of the same length.
fn patched(from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = guest();
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(from.len()).position(|window| window == from.as_bytes()) {
        bytes[at + found..at + found + to.len()].copy_from_slice(to.as_bytes());
        at += found + to.len();
    }
    assert!(at > 0, "`{from}` is not in the guest");
    bytes
}

/// All cases.
pub fn all() -> Vec<Case> {
    vec![
        starting(
            "endless loop at start",
            "start_loop",
            "(func $s (loop $l (br $l))) (start $s)",
            &["crashed in `start`", "time on the processor"],
        ),
        starting(
            "trap at start",
            "start_trap",
            "(func $s unreachable) (start $s)",
            &["crashed in `start`", "unreachable"],
        ),
        starting(
            "deep recursion at start",
            "start_deep",
            "(func $s call $s) (start $s)",
            &["call stack exhausted"],
        ),
        starting(
            "table exhaustion",
            "start_table",
            "(table $t 1 funcref) (func $s (loop $l (br_if $l (i32.ne (i32.const -1) (table.grow $t (ref.null func) (i32.const 10000)))) unreachable)) (start $s)",
            &["table elements and the limit is"],
        ),
        unloadable(
            "a table that is too large from the start",
            "large_table",
            || component("large_table", "(table 100000000 funcref)", ""),
            &["cannot load", "table"],
        ),
        starting(
            "a memory that is too large from the start",
            "large_memory",
            "(memory 60000)",
            &["crashed in `start`"],
        ),
        starting(
            "memory that grows at start",
            "start_memory",
            "(memory $m 1) (func $s (loop $l (br_if $l (i32.ne (i32.const -1) (memory.grow $m (i32.const 100)))) unreachable)) (start $s)",
            &["bytes of memory and its limit is"],
        ),
        starting(
            "endless bulk instructions at start",
            "start_bulk",
            "(memory 1000) (func $s (loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 65000000)) (br $l))) (start $s)",
            &["time on the processor"],
        ),
        starting("functions of other types than the contract's", "other_types", "", &["crashed in `start`"]),
        unloadable(
            "truncated file",
            "cut_short",
            || {
                let bytes = guest();
                bytes[..bytes.len() / 2].to_vec()
            },
            &["not valid WebAssembly"],
        ),
        unloadable("empty file", "empty", Vec::new, &["not a WebAssembly file"]),
        unloadable(
            "random file",
            "random",
            || std::iter::repeat_with(|| fastrand::u8(..)).take(100_000).collect(),
            &["not a WebAssembly file"],
        ),
        unloadable(
            "random file with a component's first bytes",
            "random_too",
            || {
                [
                    &b"\0asm\x0d\0\x01\0"[..],
                    &std::iter::repeat_with(|| fastrand::u8(..)).take(100_000).collect::<Vec<_>>(),
                ]
                .concat()
            },
            &["not valid WebAssembly"],
        ),
        unloadable(
            "core module",
            "module",
            || wat::parse_str("(module (func (export \"deliver\")))").unwrap(),
            &["core module", "wasm32-wasip2"],
        ),
        unloadable(
            "wrong world",
            "world",
            || {
                wat::parse_str("(component (@custom \"returner-manifest\" \"name = \\\"world\\\"\\nversion = \\\"1.0.0\\\"\\nsummary = \\\"harm\\\"\\n\"))").unwrap()
            },
            &["no returner", "lifecycle"],
        ),
        unloadable(
            "a later version of the contract",
            "hostile_v9",
            || patched("@0.1.0", "@0.9.0"),
            &["this returnerd speaks"],
        ),
        unloadable("no manifest", "none", || wat::parse_str("(component)").unwrap(), &["no manifest"]),
        unloadable(
            "unknown key in the manifest",
            "hostile_key",
            || patched("\nsummary =", "\nsumnary ="),
            &["unknown key `sumnary`", "summary"],
        ),
        unloadable(
            "file of another name than the manifest's",
            "other",
            guest,
            &["says that it is the plugin `hostile`"],
        ),
        unloadable(
            "a manifest that claims another plugin's name as its own other name",
            "thief",
            || component("thief", "", "aliases = [\\\"probe\\\"]\\n"),
            &["claims the name `probe`", "probe.wasm"],
        ),
        unloadable(
            "a manifest that claims another plugin's name",
            "thief",
            || patched("\"hostile\"", "\"sqlite3\""),
            &["says that it is the plugin `sqlite3`"],
        ),
        unloadable(
            "native code with the name of a plugin",
            "native",
            || fs::read("/bin/true").unwrap(),
            &["native code"],
        ),
        Case::new("oversized file", |lab| {
            let path = lab.daemon.plugins_dir().join("large.wasm");
            let file = fs::File::create(&path).unwrap();
            file.set_len(200 << 20).unwrap();
            let result = lab.broken("/large.wasm", &["larger than"]);
            fs::remove_file(path).unwrap();
            result
        }),
        Case::new("a file that others may write", |lab| {
            let path = put(lab, "loose", &component("loose", "", ""));
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
            let result = lab.broken("/loose.wasm", &["can be written to by others", "chmod"]);
            fs::remove_file(path).unwrap();
            result
        }),
        Case::new("a pipe with the name of a plugin", |lab| {
            let path = lab.daemon.plugins_dir().join("pipe.wasm");
            nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o644)).unwrap();
            let result = lab.broken("/pipe.wasm", &["not a regular file"]);
            fs::remove_file(path).unwrap();
            result
        }),
        Case::new("a large plugin that takes long to compile", |lab| {
            let function = format!(
                "(func (param i32) (result i32) {} local.get 0)",
                "(local.set 0 (i32.mul (local.get 0) (i32.add (local.get 0) (i32.const 7))))".repeat(60)
            );
            let path = put(lab, "large_code", &component("large_code", &function.repeat(4_000), ""));
            let began = std::time::Instant::now();
            lab.wait_for(&["large_code"], |lab| lab.status()["plugins"].to_string())?;
            let took = began.elapsed();
            fs::remove_file(path).unwrap();
            Ok(format!("it was compiled within {} ms", took.as_millis()))
        }),
        Case::new("a file replaced while it is loaded", replaced),
        Case::new("a working plugin overwritten with rubbish", |lab| {
            let path = put(lab, "rubbish", &component("rubbish", "", ""));
            lab.wait_for(&["rubbish"], |lab| lab.status()["plugins"].to_string())?;
            fs::write(&path, b"\0asm rubbish").unwrap();
            let reason = lab.broken("/rubbish.wasm", &["not valid"])?;
            let serving = lab.status()["plugins"].to_string().contains("rubbish");
            fs::remove_file(path).unwrap();
            if serving { Ok(reason) } else { Err("the version before does not go on serving".into()) }
        }),
    ]
}

/// Two files that take turns quickly, with halves of files between them. At last the latest is served.
fn replaced(lab: &Lab) -> Result<String, String> {
    let texts = [component("turns", "", ""), component("turns", "(memory 1)", "")];
    let path = lab.daemon.plugins_dir().join("turns.wasm");
    let began = std::time::Instant::now();
    let mut turn = 0;
    while began.elapsed() < std::time::Duration::from_secs(2) {
        turn += 1;
        let bytes = &texts[turn % 2];
        if turn % 5 == 0 {
            fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        } else {
            put(lab, "turns", bytes);
        }
        std::thread::sleep(std::time::Duration::from_millis(fastrand::u64(..30)));
    }
    put(lab, "turns", &component("turns", "(memory 2)", "aliases = [\\\"last_turn\\\"]\\n"));
    lab.wait_for(&["last_turn"], |lab| {
        let hint = lab.give("last_turn", &json!({}));
        if hint.ok { "last_turn".into() } else { hint.error.replace("last_turn", "") }
    })?;
    fs::remove_file(path).unwrap();
    Ok(format!("after {turn} turns the latest is served"))
}
