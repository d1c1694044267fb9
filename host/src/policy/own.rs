//! The daemon's own files and directories, which no plugin may be given.
//!
//! Invariant: a directory is judged by where it really is, links followed; one that holds something of the daemon's is as bad
//! as one that lies in it. Whoever wrote the option or the line of `allow`, it is refused.

use std::path::{Path, PathBuf};

use crate::config::Config;

/// A directory that cannot be given to a plugin.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{}` cannot be given to the plugin `{plugin}`, as {why} returnerd's own `{}`; hint: name a directory that holds nothing else, such as `{}`",
    directory.display(), own.display(), instead.display()
)]
pub struct OwnError {
    /// The plugin.
    pub plugin: String,
    /// What it would have been given.
    pub directory: PathBuf,
    /// How the two lie to each other.
    pub why: &'static str,
    /// What is the daemon's.
    pub own: PathBuf,
    /// Where the plugin's files may be.
    pub instead: PathBuf,
}

/// Refuses a directory or file that is the daemon's own, lies in it or holds it. What is not there cannot be opened anyway.
pub fn refuse_own(plugin: &str, directory: &Path, config: &Config) -> Result<(), OwnError> {
    let Ok(real) = directory.canonicalize() else { return Ok(()) };
    for own in own(config) {
        let why = if real.starts_with(&own.real) {
            "it is or lies in"
        } else if own.real.starts_with(&real) {
            "it holds"
        } else {
            continue;
        };
        return Err(OwnError {
            plugin: plugin.to_owned(),
            directory: directory.to_owned(),
            why,
            own: own.shown,
            instead: config.state_dir.join("data").join(plugin),
        });
    }
    Ok(())
}

struct Own {
    shown: PathBuf,
    real: PathBuf,
}

/// What is the daemon's. The state directory itself is not in the list: a plugin's data may lie below it.
fn own(config: &Config) -> impl Iterator<Item = Own> {
    let state = ["spool", "cache", "dead", "node"].map(|part| config.state_dir.join(part));
    let others =
        [&config.plugins_dir, &config.inbox, &config.socket, &config.path, &config.salt.returner_dir];
    state.into_iter().chain(others.into_iter().cloned()).map(|shown| {
        // What is not there yet is judged by where it would be.
        let real = shown.canonicalize().or_else(|_| {
            let parent = shown.parent().unwrap_or(Path::new("/")).canonicalize()?;
            Ok::<_, std::io::Error>(parent.join(shown.file_name().unwrap_or_default()))
        });
        Own { real: real.unwrap_or_else(|_| shown.clone()), shown }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(root: &Path) -> Config {
        let text = format!(
            "state_dir = {:?}\nplugins_dir = {:?}\nsocket = {:?}\ninbox = {:?}",
            root.join("state"),
            root.join("plugins"),
            root.join("run/s"),
            root.join("state/inbox")
        );
        Config::parse(&text, &root.join("etc/returnerd.toml")).unwrap()
    }

    #[test]
    fn what_is_holds_or_lies_in_the_daemons_own_is_refused() {
        let root = tempfile::tempdir().unwrap();
        for directory in ["state/spool/below", "state/data/p", "plugins", "run", "etc", "other"] {
            std::fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        std::os::unix::fs::symlink(root.path().join("state/spool"), root.path().join("other/link")).unwrap();
        let config = config(root.path());
        let given = |path: &str| refuse_own("p", &root.path().join(path), &config);
        for path in [
            "",
            "state",
            "state/spool",
            "state/spool/below",
            "plugins",
            "run",
            "etc",
            "other/link",
            "state/data/../spool",
        ] {
            let error = given(path).expect_err(path).to_string();
            assert!(error.contains("returnerd's own") && error.contains("state/data/p"), "{error}");
        }
        assert!(refuse_own("p", Path::new("/"), &config).is_err());
        for path in ["state/data", "state/data/p", "other", "not there"] {
            assert!(given(path).is_ok(), "{path}");
        }
    }
}
