//! `check`: every fault that can be found without a job failing first, each with its fix.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::{CliError, Output, print_json, print_line};
use crate::config::Config;
use crate::observe::chain;
use crate::plugin::engine::Host;
use crate::plugin::file::PluginFile;
use crate::plugin::registry::check_identity;
use crate::policy::http::settings::Settings;
use crate::policy::own::refuse_own;
use crate::policy::{Policy, allow_line, parse_allow};
use crate::salt::config_files::SaltConfig;
use crate::salt::frame::Role;
use crate::salt::options::{Asked, resolve};
use crate::salt::shim;
use crate::trust::foreign;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Do not compile the plugins; quicker, but a plugin that does not link is not found.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Fault,
    Warning,
    Good,
}

#[derive(Default)]
struct Report {
    findings: Vec<(Level, String)>,
}

impl Report {
    fn fault(&mut self, text: impl Into<String>) {
        self.findings.push((Level::Fault, text.into()));
    }

    fn warn(&mut self, text: impl Into<String>) {
        self.findings.push((Level::Warning, text.into()));
    }

    fn good(&mut self, text: impl Into<String>) {
        self.findings.push((Level::Good, text.into()));
    }
}

pub(super) fn run(arguments: &Arguments, path: &Path) -> Result<(), CliError> {
    let mut report = Report::default();
    match Config::load(path) {
        Ok(config) => {
            report.good(format!("configuration `{}`", path.display()));
            directories(&config, &mut report);
            let plugins = plugins(&config, arguments.quick, &mut report);
            settings(&config, &plugins, &mut report);
            for role in [Role::Master, Role::Minion] {
                salt(&config, role, &plugins, &mut report);
            }
        }
        Err(error) => report.fault(chain(&error)),
    }
    let faults = report.findings.iter().filter(|(level, _)| *level == Level::Fault).count();
    if arguments.output.json {
        let texts =
            |wanted| report.findings.iter().filter(|(l, _)| *l == wanted).map(|(_, t)| t).collect::<Vec<_>>();
        print_json(&json!({
            "faults": texts(Level::Fault), "warnings": texts(Level::Warning), "good": texts(Level::Good),
        }));
    } else {
        for (level, text) in &report.findings {
            let mark = match level {
                Level::Fault => "fault  ",
                Level::Warning => "warning",
                Level::Good => "ok     ",
            };
            print_line(&format!("{mark} {text}"));
        }
        print_line(&format!("check: {faults} faults"));
    }
    if faults > 0 { Err(CliError::Reported) } else { Ok(()) }
}

fn directories(config: &Config, report: &mut Report) {
    let private =
        [config.state_dir.clone(), crate::daemon::spool_dir(config), crate::daemon::cache_dir(config)];
    for path in private.iter().chain([&config.plugins_dir, &config.inbox]) {
        match std::fs::metadata(path) {
            Err(error) => {
                report.fault(format!("`{}`: {error}; hint: `returnerd init` makes it", path.display()))
            }
            Ok(metadata) if !metadata.is_dir() => {
                report.fault(format!("`{}` is not a directory", path.display()))
            }
            Ok(metadata) => {
                let mode = metadata.mode() & 0o7777;
                // Salt's user writes into the inbox by its group.
                let found = match *path == config.inbox {
                    true => (mode & 0o002 != 0).then(|| {
                        format!("can be written to by others (mode {mode:o}); hint: `chmod o-w` it")
                    }),
                    false => foreign(&metadata),
                };
                if let Some(how) = found {
                    report.fault(format!("`{}` {how}", path.display()));
                }
            }
        }
    }
    if !config.intake.group.is_empty()
        && nix::unistd::Group::from_name(&config.intake.group).ok().flatten().is_none()
    {
        report.fault(format!(
            "there is no group `{}`; hint: `intake.group` names the group of the socket",
            config.intake.group
        ));
    }
    if std::os::unix::net::UnixStream::connect(&config.socket).is_ok() {
        report.good(format!("a daemon listens on `{}`", config.socket.display()));
    } else {
        report.warn(format!("no daemon listens on `{}`", config.socket.display()));
    }
}

fn plugins(config: &Config, quick: bool, report: &mut Report) -> Vec<PluginFile> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&config.plugins_dir)
        .map(|entries| entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect())
        .unwrap_or_default();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "wasm"));
    paths.sort();
    let host = if quick {
        None
    } else {
        let cache = crate::daemon::cache_dir(config);
        match Host::new(cache.is_dir().then_some(cache.as_path())) {
            Ok(host) => Some(host),
            Err(error) => {
                report.fault(chain(&error));
                None
            }
        }
    };
    let mut files: Vec<PluginFile> = Vec::new();
    for path in &paths {
        let file = match PluginFile::read(path) {
            Ok(file) => file,
            Err(error) => {
                report.fault(chain(&error));
                continue;
            }
        };
        if let Err(error) = check_identity(config, &file) {
            report.fault(chain(&error));
            continue;
        }
        if let Some(Err(error)) = host.as_ref().map(|host| host.compile(&file)) {
            report.fault(format!("`{}`: {}", path.display(), chain(&error)));
            continue;
        }
        let taken = files
            .iter()
            .find(|other| other.manifest.names().any(|name| file.manifest.names().any(|own| own == name)));
        if let Some(other) = taken {
            report.fault(format!("`{}` claims a name of `{}`", path.display(), other.path.display()));
            continue;
        }
        report.good(format!(
            "plugin `{}` {} ({})",
            file.manifest.name,
            file.manifest.version,
            file.interfaces.names().join(", ")
        ));
        files.push(file);
    }
    if files.is_empty() {
        report.warn(format!("no plugin in `{}`", config.plugins_dir.display()));
    }
    files
}

/// The tables of plugins in returnerd.toml.
fn settings(config: &Config, plugins: &[PluginFile], report: &mut Report) {
    for (name, settings) in &config.plugin {
        if let Err(error) = parse_allow(name, &settings.allow) {
            report.fault(chain(&error));
        }
        let http = Settings::load(name, &settings.http)
            .and_then(|http| http.tls().map(|_| http))
            .and_then(|http| http.proxy().map(|_| ()));
        if let Err(error) = http {
            report.fault(chain(&error));
        }
        if !plugins.iter().any(|plugin| plugin.manifest.name == *name) {
            report.warn(format!("`[plugin.{name}]` is for a plugin that is not in the plugins directory"));
        }
    }
}

/// What Salt's configuration names, and whether it would work.
fn salt(config: &Config, role: Role, plugins: &[PluginFile], report: &mut Report) {
    let salt = match SaltConfig::load_if_there(&config.salt.config_dir, role) {
        Ok(salt) => salt,
        Err(error) => return report.fault(chain(&error)),
    };
    let Some(path) = &salt.path else { return };
    let uses: &[(&str, Need)] = match role {
        Role::Master => &[
            ("master_job_cache", Need::Jobs),
            ("ext_job_cache", Need::Returns),
            ("event_return", Need::Events),
            ("schedule_returner", Need::Returns),
        ],
        Role::Minion => &[
            ("return", Need::Returns),
            ("ext_job_cache", Need::Returns),
            ("schedule_returner", Need::Returns),
        ],
    };
    for (key, need) in uses {
        for name in salt.names(key) {
            let place = format!("`{key}: {name}` in `{}`", path.display());
            let Some(plugin) = plugins.iter().find(|plugin| plugin.manifest.names().any(|own| own == name))
            else {
                report.warn(format!("{place} names no plugin of returnerd, so Salt's own returner is meant, if it still has one"));
                continue;
            };
            let has = plugin.interfaces;
            let (fits, lacks) = match need {
                Need::Returns => (has.returns, "takes no returns"),
                Need::Events => (has.events, "takes no events"),
                Need::Jobs => (
                    has.jobs,
                    "only takes returns and cannot be a job cache, so every job would fail; hint: name a store such as `sqlite3` there and the notifier in `ext_job_cache`",
                ),
            };
            if !fits {
                report.fault(format!("{place}: the plugin `{}` {lacks}", plugin.manifest.name));
                continue;
            }
            options(config, role, &salt, &place, plugin, report);
            shim_file(&salt, &place, &name, report);
        }
    }
}

#[derive(Clone, Copy)]
enum Need {
    Returns,
    Jobs,
    Events,
}

fn options(
    config: &Config,
    role: Role,
    salt: &SaltConfig,
    place: &str,
    plugin: &PluginFile,
    report: &mut Report,
) {
    let settings = config.plugin(&plugin.manifest.name);
    let layers = salt.layers(plugin.manifest.prefix.rsplit('.').next().unwrap_or(&plugin.manifest.name));
    let fallback = crate::config::json_options(&settings.options);
    let asked = Asked {
        layers: &layers,
        ret_config: None,
        ret_kwargs: None,
        role,
        fallback: Some(&fallback),
        salt: Some(&salt.opts),
    };
    match resolve(&plugin.manifest, &asked) {
        Err(error) => report.fault(format!("{place}: {}", chain(&error))),
        Ok(resolved) => {
            for warning in &resolved.warnings {
                report.warn(format!("{place}: {warning}"));
            }
            let (wishes, problems) = plugin.manifest.expand(&resolved);
            for problem in problems {
                report.fault(format!("{place}: {problem}"));
            }
            match Policy::new(&plugin.manifest.name, wishes, &settings.allow, settings.mode) {
                Ok(policy) => {
                    for (path, _) in policy.directories() {
                        if let Err(error) = refuse_own(&plugin.manifest.name, &path, config) {
                            report.fault(format!("{place}: {}", chain(&error)));
                        }
                    }
                    for wish in &policy.refused {
                        report.fault(format!(
                            "{place}: the plugin wishes to reach `{wish}`, which is not granted; hint: {} would allow it",
                            allow_line(&plugin.manifest.name, wish)
                        ));
                    }
                    report.good(format!("{place}: options and grants fit"));
                }
                Err(error) => report.fault(chain(&error)),
            }
        }
    }
}

/// Whether Salt would find our shim under the name.
fn shim_file(salt: &SaltConfig, place: &str, name: &str, report: &mut Report) {
    let directories = salt.names("returner_dirs");
    let found = directories
        .iter()
        .map(|directory| Path::new(directory).join(format!("{name}.py")))
        .find(|path| path.is_file());
    match found {
        None => report.fault(format!(
            "{place}: no directory of `returner_dirs` has `{name}.py`; hint: `returnerd salt install` writes it and says what to put into Salt's configuration"
        )),
        Some(path) => match std::fs::read_to_string(&path) {
            Ok(text) if !shim::is_shim(&text) => {
                report.fault(format!("{place}: `{}` is not returnerd's shim", path.display()));
            }
            Ok(text) if !shim::is_current(&text) => {
                report.fault(format!("{place}: `{}` is of another version; hint: run `returnerd salt install` and restart Salt", path.display()));
            }
            Ok(_) => report.good(format!("shim `{}`", path.display())),
            Err(error) => report.fault(format!("cannot read `{}`: {error}", path.display())),
        },
    }
}
