//! `plugin inspect`: what a plugin says of itself, and its wishes against its grants. Nothing of the plugin is run.
//!
//! Invariant: no option's value is shown but the hosts, ports and paths that come of it.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::{CliError, Output, print_json, print_line};
use crate::config::{self, Config};
use crate::observe::chain;
use crate::plugin::file::PluginFile;
use crate::plugin::manifest::{Origin, Target, Wish};
use crate::policy::own::refuse_own;
use crate::policy::{Policy, allow_line};
use crate::salt::config_files::SaltConfig;
use crate::salt::frame::Role;
use crate::salt::options::{Asked, Layers, resolve};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The `.wasm` file.
    file: PathBuf,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments, config: &Path) -> Result<(), CliError> {
    let file = PluginFile::read(&arguments.file)?;
    let manifest = &file.manifest;
    // Grants are shown as far as there is a configuration.
    let config = Config::load(config).ok();
    let settings = config.as_ref().map(|config| config.plugin(&manifest.name)).unwrap_or_default();
    let wishes = config.as_ref().map(|config| wishes(&file, config, &settings)).unwrap_or_default();
    if arguments.output.json {
        print_json(&json!({
            "name": manifest.name, "version": manifest.version, "summary": manifest.summary,
            "aliases": manifest.aliases, "interfaces": file.interfaces.names(), "sha256": file.sha256,
            "size": file.bytes.len(), "imports": file.imports, "options": manifest.options,
            "reach": manifest.reach_texts(), "allow": settings.allow, "wishes": wishes,
        }));
        return Ok(());
    }
    print_line(&format!("{} {}: {}", manifest.name, manifest.version, manifest.summary));
    if !manifest.aliases.is_empty() {
        print_line(&format!("also called {}", manifest.aliases.join(", ")));
    }
    print_line(&format!("interfaces: {}", file.interfaces.names().join(", ")));
    print_line(&format!("sha256: {}", file.sha256));
    print_line(&format!("size: {} bytes", file.bytes.len()));
    list("options:", manifest.options.iter().map(|option| option.line(&manifest.prefix)));
    list("wishes to reach:", manifest.reach_texts());
    list("granted by returnerd.toml, beside what the administrator's own options name:", settings.allow);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    list(
        "with the options that are set now:",
        wishes.iter().map(|wish| format!("{}: {}", text(&wish["wish"]), text(&wish["why"]))),
    );
    list("imports:", &file.imports);
    Ok(())
}

fn list(title: &str, lines: impl IntoIterator<Item = impl std::fmt::Display>) {
    print_line(title);
    let mut none = true;
    for line in lines {
        none = false;
        print_line(&format!("  {line}"));
    }
    if none {
        print_line("  nothing");
    }
}

/// Each wish that the options of Salt's configuration files and of returnerd.toml make, whether it is granted, and why.
fn wishes(file: &PluginFile, config: &Config, settings: &config::Plugin) -> Vec<Value> {
    let manifest = &file.manifest;
    let fallback = config::json_options(&settings.options);
    let mut rows: Vec<Value> = Vec::new();
    for role in [Role::Master, Role::Minion] {
        let salt = SaltConfig::load_if_there(&config.salt.config_dir, role).ok();
        let salt = salt.filter(|salt| salt.path.is_some());
        let layers = match &salt {
            Some(salt) => salt.layers(manifest.prefix.rsplit('.').next().unwrap_or(&manifest.name)),
            // One look without Salt's files shows what defaults and returnerd.toml make.
            None if role == Role::Master => Layers::default(),
            None => continue,
        };
        let asked = Asked {
            layers: &layers,
            ret_config: None,
            ret_kwargs: None,
            role,
            fallback: Some(&fallback),
            salt: salt.as_ref().map(|salt| &salt.opts),
        };
        let Ok(resolved) = resolve(manifest, &asked) else { continue };
        let (found, _) = manifest.expand(&resolved);
        let own = |wish: &Wish| match &wish.target {
            Target::Path(path) => refuse_own(&manifest.name, path, config).err(),
            Target::Net { .. } => None,
        };
        for wish in found {
            let alone = Policy::new(&manifest.name, vec![wish.clone()], &settings.allow, settings.mode);
            let (granted, why) = match alone {
                Err(error) => (false, chain(&error)),
                Ok(policy) => match own(&wish) {
                    Some(error) => (false, chain(&error)),
                    None if !policy.refused.is_empty() => (
                        false,
                        format!("not granted; hint: {} would allow it", allow_line(&manifest.name, &wish)),
                    ),
                    None if wish.origin == Origin::Administrator => (
                        true,
                        format!("granted, as the {role} config or returnerd.toml names it as an option"),
                    ),
                    None => (true, "granted by `allow` in returnerd.toml".to_owned()),
                },
            };
            let row = json!({ "wish": wish.to_string(), "granted": granted, "why": why });
            if !rows.iter().any(|known| known["wish"] == row["wish"] && known["granted"] == row["granted"]) {
                rows.push(row);
            }
        }
    }
    rows
}
