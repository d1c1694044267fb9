//! What the README says of writing a plugin is true: its blocks make one, and it works.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use returnerd_tests::env;
use returnerd_tests::proc::{Scratch, run};
use serde_json::{Value, json};
use support::*;

/// The first time, what the crate depends on is built too.
const BUILD_LIMIT: Duration = Duration::from_secs(600);

const MANIFEST: &str = r#"
[package]
name = "json_lines"
version = "0.1.0"
edition = "2024"

[lib]
crate-type = ["cdylib"]

[dependencies]
returner-sdk = { path = "SDK" }
serde = { version = "1", features = ["derive"] }

[workspace]
"#;

/// The blocks of a language in the README.
fn blocks(readme: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    readme.split(&begin).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn the_returner_of_the_readme_has_at_most_25_lines_and_delivers() {
    let readme = fs::read_to_string(env::repository().join("README.md")).unwrap();
    let code = blocks(&readme, "rust");
    let [code] = code.as_slice() else { panic!("the README has {} Rust blocks", code.len()) };
    let lines_of_code = code.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines_of_code <= 25, "the returner of the README has {lines_of_code} lines");
    let settings = blocks(&readme, "toml");
    let block = |word: &str| settings.iter().find(|block| block.contains(word)).expect(word);

    let scratch = Scratch::new();
    let sdk = env::repository().join("sdk/rust");
    scratch.write("Cargo.toml", &MANIFEST.replace("SDK", sdk.to_str().unwrap()));
    scratch.write("src/lib.rs", code);
    scratch.write("manifest.toml", block("reach ="));
    scratch.write(".cargo/config.toml", block("wasm32-wasip2"));
    // The versions that everything else is built with, so that nothing is fetched.
    fs::copy(env::repository().join("Cargo.lock"), scratch.path().join("Cargo.lock")).unwrap();
    let target = env::target_dir();
    let mut build = Command::new("bash");
    build
        .current_dir(scratch.path())
        .env("CARGO_TARGET_DIR", &target)
        .env("WASM_ENV", env::cache_dir().join("wasm.env"))
        // These would replace what the README's configuration says.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .arg("-c")
        .arg(
            "wasm_args=(); if [ -f \"$WASM_ENV\" ]; then . \"$WASM_ENV\"; fi; \
             cargo build --offline --release --target wasm32-wasip2 \"${wasm_args[@]}\"",
        );
    run(&mut build, BUILD_LIMIT).success();

    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let daemon = quick(&[]).start();
    daemon.drop_plugin_file("json_lines", &target.join("wasm32-wasip2/release/json_lines.wasm"));
    status_when(&daemon, "the plugin to be loaded", |status| status["plugins"][0]["name"] == "json_lines");
    let mut client = client(&daemon, &[json!({"json_lines.host": "127.0.0.1", "json_lines.port": port})]);
    let sent: BTreeSet<String> = (0..20).map(jid).collect();
    for jid in &sent {
        client.return_("json_lines", ret(jid, "m1", "grüße\n🦀")).done();
    }
    let status = settled(&daemon);
    assert_eq!(sink(&status, "json_lines")["counts"]["stored"], 20, "{status:#}");

    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let received: BTreeSet<String> = BufReader::new(stream)
        .lines()
        .take(20)
        .map(|line| {
            let document: Value = serde_json::from_str(&line.unwrap()).unwrap();
            assert_eq!(document["return"], "grüße\n🦀");
            document["jid"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(received, sent);
}

#[test]
fn each_plugins_table_of_options_is_that_of_its_manifest() {
    for readme in returnerd_tests::options_table::readmes() {
        let path = readme.path.display();
        assert!(readme.text == readme.wanted, "{path} is out of date; hint: run `make docs`");
    }
}
