//! Salt's own configuration files, for the command line: what the shim would find in `__opts__`.
//!
//! Only what matters here is read: the main file and the `.d` directory beside it, later keys over earlier ones. Nothing is rendered,
//! and `sdb://` values stay as they are.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::frame::Role;
use super::options::Layers;

/// Why Salt's configuration cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SaltConfigError {
    /// A file.
    #[error("cannot read Salt's configuration `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Its YAML.
    #[error("Salt's configuration `{}` is not valid YAML", path.display())]
    Yaml {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: serde_yaml_ng::Error,
    },
}

/// A master's or minion's configuration.
#[derive(Debug, Clone, Default)]
pub struct SaltConfig {
    /// The main file, if it is there.
    pub path: Option<PathBuf>,
    /// All top-level keys.
    pub opts: Map<String, Value>,
    role: Role,
    minion_id: Option<String>,
}

impl SaltConfig {
    /// Reads the configuration of a role below a directory; empty if there is none.
    pub fn load_if_there(directory: &Path, role: Role) -> Result<Self, SaltConfigError> {
        let main = directory.join(role.as_str());
        let mut config = Self { role, ..Self::default() };
        if !main.is_file() {
            return Ok(config);
        }
        config.merge(&main)?;
        config.path = Some(main);
        let mut extra: Vec<PathBuf> = std::fs::read_dir(directory.join(format!("{role}.d")))
            .map(|entries| entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect())
            .unwrap_or_default();
        extra.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
        extra.sort();
        for path in extra {
            config.merge(&path)?;
        }
        if role == Role::Minion {
            config.minion_id =
                std::fs::read_to_string(directory.join("minion_id")).ok().map(|id| id.trim().to_owned());
        }
        Ok(config)
    }

    fn merge(&mut self, path: &Path) -> Result<(), SaltConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SaltConfigError::Read { path: path.to_owned(), source })?;
        let value: Option<Value> = serde_yaml_ng::from_str(&text)
            .map_err(|source| SaltConfigError::Yaml { path: path.to_owned(), source })?;
        if let Some(Value::Object(map)) = value {
            self.opts.extend(map);
        }
        Ok(())
    }

    /// The id as Salt makes it.
    pub fn id(&self) -> String {
        if let Some(id) = self.opts.get("id").and_then(Value::as_str) {
            return id.to_owned();
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map_or_else(|_| "localhost".into(), |name| name.trim().to_owned());
        match self.role {
            Role::Master => format!("{host}_master"),
            Role::Minion => self.minion_id.clone().unwrap_or(host),
        }
    }

    /// The sources of options for a returner, as the shim sends them. Grains and pillar are not known here.
    pub fn layers(&self, returner: &str) -> Layers {
        let concerns = |key: &str| key.split('.').any(|part| part == returner);
        let opts =
            self.opts.iter().filter(|(key, _)| concerns(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
        Layers { opts, ..Layers::default() }
    }

    /// The returners that a key names: text, comma-separated text or a list.
    pub fn names(&self, key: &str) -> Vec<String> {
        match self.opts.get(key) {
            Some(Value::String(text)) => {
                text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
            }
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_file_and_its_directory_are_joined() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        std::fs::write(
            path.join("master"),
            "id: boss\nmysql.host: db1\next_job_cache: mysql\nevent_return: [a, b]\n",
        )
        .unwrap();
        std::fs::create_dir(path.join("master.d")).unwrap();
        std::fs::write(
            path.join("master.d/db.conf"),
            "mysql:\n  host: db2\nalternative.mysql.db: x\nother: 1\n",
        )
        .unwrap();
        std::fs::write(path.join("master.d/empty.conf"), "# nothing\n").unwrap();
        let config = SaltConfig::load_if_there(path, Role::Master).unwrap();
        assert_eq!(config.id(), "boss");
        assert_eq!(config.names("ext_job_cache"), ["mysql"]);
        assert_eq!(config.names("event_return"), ["a", "b"]);
        let keys: Vec<_> = config.layers("mysql").opts.keys().cloned().collect();
        assert_eq!(keys, ["mysql.host", "mysql", "alternative.mysql.db"]);
        assert!(SaltConfig::load_if_there(path, Role::Minion).unwrap().opts.is_empty());
    }

    #[test]
    fn invalid_yaml_names_the_file() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("minion"), "a: [1").unwrap();
        let error = SaltConfig::load_if_there(directory.path(), Role::Minion).unwrap_err();
        assert!(error.to_string().contains("minion` is not valid YAML"), "{error}");
    }
}
