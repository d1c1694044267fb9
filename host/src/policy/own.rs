//! The daemon's own files and directories, which no plugin may be given.
//!
//! Invariant: a path is judged by where it really is, links followed; a directory that holds something of the daemon's is as bad
//! as one that lies in it. Whoever wrote the option or the line of `allow`, it is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::Config;
use crate::plugin::manifest::{Target, Wish, WishKind};

/// A directory, file or socket that cannot be given to a plugin.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{}` cannot be given to the plugin `{plugin}`, as {why} returnerd's own `{}`; hint: name {instead}",
    path.display(), own.display()
)]
pub struct OwnError {
    /// The plugin.
    pub plugin: String,
    /// What it would have been given.
    pub path: PathBuf,
    /// How the two lie to each other.
    pub why: &'static str,
    /// What is the daemon's.
    pub own: PathBuf,
    /// What may be given.
    pub instead: String,
}

/// Refuses a path that is the daemon's own, lies in it or holds it. What is not there cannot be opened anyway.
pub fn refuse_own(plugin: &str, wish: &Wish, config: &Config) -> Result<(), OwnError> {
    let Target::Path(path) = &wish.target else { return Ok(()) };
    let places = OwnPlaces::of(config);
    let Some((why, own)) = places.conflict(path) else { return Ok(()) };
    let instead = match wish.kind {
        WishKind::Unix => "the socket of another program, such as `/dev/log`".to_owned(),
        _ => {
            let data = config.state_dir.join("data").join(plugin);
            format!("a directory that holds nothing else, such as `{}`", data.display())
        }
    };
    Err(OwnError { plugin: plugin.to_owned(), path: path.to_owned(), why, own: own.to_owned(), instead })
}

/// What is the daemon's, for paths that are looked at when they are used.
#[derive(Debug, Clone, Default)]
pub struct OwnPlaces(Arc<[Own]>);

#[derive(Debug)]
struct Own {
    shown: PathBuf,
    real: PathBuf,
}

impl OwnPlaces {
    /// The places of a configuration. The state directory itself is not among them: a plugin's data may lie below it.
    pub fn of(config: &Config) -> Self {
        let state = ["spool", "cache", "dead", "node"].map(|part| config.state_dir.join(part));
        let others =
            [&config.plugins_dir, &config.inbox, &config.socket, &config.path, &config.salt.returner_dir];
        let all = state.into_iter().chain(others.into_iter().cloned()).map(|shown| {
            // What is not there yet is judged by where it would be.
            let real = shown.canonicalize().or_else(|_| {
                let parent = shown.parent().unwrap_or(Path::new("/")).canonicalize()?;
                Ok::<_, std::io::Error>(parent.join(shown.file_name().unwrap_or_default()))
            });
            Own { real: real.unwrap_or_else(|_| shown.clone()), shown }
        });
        Self(all.collect())
    }

    /// How a path lies to something of the daemon's, and to what.
    pub fn conflict(&self, path: &Path) -> Option<(&'static str, &Path)> {
        let real = path.canonicalize().ok()?;
        self.0.iter().find_map(|own| {
            if real.starts_with(&own.real) {
                Some(("it is or lies in", own.shown.as_path()))
            } else if own.real.starts_with(&real) {
                Some(("it holds", own.shown.as_path()))
            } else {
                None
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::manifest::Origin;

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
        let given_as = |kind: WishKind, path: &Path| {
            let target = Target::Path(path.to_owned());
            refuse_own("p", &Wish { kind, target, origin: Origin::Administrator }, &config)
        };
        let given = |path: &str| given_as(WishKind::Directory, &root.path().join(path));
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
        assert!(given_as(WishKind::Directory, Path::new("/")).is_err());
        for path in ["state/data", "state/data/p", "other", "not there"] {
            assert!(given(path).is_ok(), "{path}");
        }
        std::fs::write(root.path().join("run/s"), "").unwrap();
        std::os::unix::fs::symlink(root.path().join("run/s"), root.path().join("other/log")).unwrap();
        for path in ["run/s", "other/log"] {
            let error = given_as(WishKind::Unix, &root.path().join(path)).expect_err(path).to_string();
            assert!(error.contains("run/s`; hint: name the socket of another program"), "{error}");
        }
    }
}
