//! The tables of options in the plugins' READMEs, made from their manifests.

use std::fs;
use std::path::{Path, PathBuf};

use crate::env;

const HEAD: &str = "| option | default | required | secret | meaning |\n|---|---|---|---|---|\n";

/// One plugin's README.
#[derive(Debug)]
pub struct Readme {
    /// Where it is.
    pub path: PathBuf,
    /// What it says.
    pub text: String,
    /// What it should say.
    pub wanted: String,
}

/// The READMEs of all plugins.
pub fn readmes() -> Vec<Readme> {
    let plugins = fs::read_dir(env::repository().join("plugins")).unwrap();
    let mut dirs: Vec<PathBuf> = plugins.map(|entry| entry.unwrap().path()).collect();
    dirs.retain(|dir| dir.join("manifest.toml").exists());
    dirs.sort();
    dirs.iter().map(|dir| readme(dir)).collect()
}

fn readme(dir: &Path) -> Readme {
    let path = dir.join("README.md");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let manifest = fs::read_to_string(dir.join("manifest.toml")).unwrap();
    let table = table(&manifest.parse().unwrap());
    let begin = text.find(HEAD).unwrap_or_else(|| panic!("{} has no table of options", path.display()));
    let length: usize =
        text[begin..].split_inclusive('\n').take_while(|line| line.starts_with('|')).map(str::len).sum();
    let wanted = format!("{}{table}{}", &text[..begin], &text[begin + length..]);
    Readme { path, text, wanted }
}

/// The table of a manifest's options, each under the name that follows the prefix in Salt's configuration.
fn table(manifest: &toml::Table) -> String {
    let yes = |option: &toml::Value, key: &str| match option.get(key).and_then(toml::Value::as_bool) {
        Some(true) => "yes",
        _ => "no",
    };
    let cell = |text: &str| text.replace('|', "\\|");
    let options = manifest.get("option").and_then(toml::Value::as_array);
    let rows = options.into_iter().flatten().map(|option| {
        let text = |key: &str| option.get(key).and_then(toml::Value::as_str);
        let name = text("attr").or(text("name")).expect("an option has a name");
        let default = match option.get("default") {
            None => "–".to_owned(),
            Some(toml::Value::String(text)) => format!("`{}`", cell(text)),
            Some(other) => format!("`{}`", cell(&other.to_string())),
        };
        let default = match text("from_salt") {
            Some(setting) => format!("Salt's `{setting}`, else {default}"),
            None => default,
        };
        let file = if text("type") == Some("file") { "File: " } else { "" };
        let (required, secret) = (yes(option, "required"), yes(option, "secret"));
        format!(
            "| `{name}` | {default} | {required} | {secret} | {file}{} |\n",
            cell(text("doc").unwrap_or_default())
        )
    });
    HEAD.to_owned() + &rows.collect::<String>()
}
