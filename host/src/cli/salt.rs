//! `salt install`: the shims that make Salt's returner names lead to the daemon.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::{CliError, print_line};
use crate::config::Config;
use crate::observe::chain;
use crate::plugin::file::PluginFile;
use crate::salt::shim;

/// What a master uses whose `master_job_cache` is not set. A shim of this name changes masters whose administrator chose nothing.
const DEFAULT_JOB_CACHE: &str = "local_cache";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Write one shim for each plugin and each of its other names.
    Install(InstallArguments),
}

#[derive(Debug, Args)]
pub(super) struct InstallArguments {
    /// Where to; the default is `salt.returner_dir` of the configuration. For a fleet, name `_returners` in the master's file roots.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Only these plugins. `local_cache`, Salt's default job cache, is installed only if it is named.
    #[arg(value_name = "PLUGIN")]
    plugins: Vec<String>,
}

pub(super) fn run(command: &Command, config: &Config) -> Result<(), CliError> {
    let Command::Install(arguments) = command;
    let directory = arguments.dir.as_ref().unwrap_or(&config.salt.returner_dir);
    std::fs::create_dir_all(directory).map_err(CliError::file("make", directory))?;
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&config.plugins_dir)
        .map_err(CliError::file("read", &config.plugins_dir))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "wasm"))
        .collect();
    paths.sort();
    let mut built_ins = Vec::new();
    let mut count = 0;
    let mut left_out = false;
    let mut failed = false;
    for path in &paths {
        let file = match PluginFile::read(path) {
            Ok(file) => file,
            Err(error) => {
                eprintln!("warning: left out: {}", chain(&error));
                failed = true;
                continue;
            }
        };
        let named = file.manifest.names().any(|name| arguments.plugins.iter().any(|plugin| plugin == name));
        if !named && !arguments.plugins.is_empty() {
            continue;
        }
        if !named && file.manifest.names().any(|name| name == DEFAULT_JOB_CACHE) {
            eprintln!(
                "note: left out `{DEFAULT_JOB_CACHE}`, which would take the place of Salt's own default job cache; \
                 hint: to install it, name it: `returnerd salt install {DEFAULT_JOB_CACHE}`"
            );
            left_out = true;
            continue;
        }
        for name in file.manifest.names() {
            let text = shim::render(name, &file.manifest, file.interfaces, config);
            let target = directory.join(format!("{name}.py"));
            refuse_foreign(&target)?;
            write(&target, &text)?;
            print_line(&format!("wrote {}", target.display()));
            count += 1;
            built_ins.extend(shim::built_in_stems(name).iter().copied().filter(|stem| *stem != name));
        }
    }
    if count == 0 && !left_out {
        let what = if arguments.plugins.is_empty() {
            "no plugin is".to_owned()
        } else {
            format!("none of `{}` is", arguments.plugins.join("`, `"))
        };
        return Err(CliError::Text(format!("{what} in `{}`", config.plugins_dir.display())));
    }
    if count > 0 {
        tell_salt(directory, built_ins);
    }
    if failed { Err(CliError::Reported) } else { Ok(()) }
}

/// Says what Salt's configuration needs to find the shims.
fn tell_salt(directory: &Path, mut built_ins: Vec<&str>) {
    print_line("");
    print_line("Salt finds them with these lines in its master or minion configuration, after a restart:");
    print_line(&format!("returner_dirs:\n  - {}", directory.display()));
    built_ins.sort_unstable();
    built_ins.dedup();
    if !built_ins.is_empty() {
        print_line("and leaves its own returners of these names alone with:");
        print_line("disable_returners:");
        for stem in built_ins {
            print_line(&format!("  - {stem}"));
        }
    }
}

/// A file that is not ours is somebody's work.
fn refuse_foreign(path: &Path) -> Result<(), CliError> {
    match std::fs::read_to_string(path) {
        Ok(text) if !shim::is_shim(&text) => Err(CliError::Text(format!(
            "`{}` is there already and is not returnerd's; hint: move it away, or use another `--dir`",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Salt may read the directory at any moment, so a file appears whole.
fn write(path: &Path, text: &str) -> Result<(), CliError> {
    let temporary = path.with_extension("py.new");
    std::fs::write(&temporary, text).map_err(CliError::file("write", &temporary))?;
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o644))
        .map_err(CliError::file("write", &temporary))?;
    std::fs::rename(&temporary, path).map_err(CliError::file("write", path))
}
