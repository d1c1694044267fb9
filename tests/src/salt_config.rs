//! The configuration files of a Salt lab.
//!
//! They are written as JSON, which is YAML too: an option given by a test replaces the lab's own instead of standing
//! there twice, which Salt would refuse. `root_dir` is put before absolute paths that do not start with it, so all
//! of a process's paths lie under its own.

use std::path::Path;

use serde_json::{Map, Value, json};

/// A map of Salt options.
pub type Options = Map<String, Value>;

/// The master's id, as it stands in the jobs of runners.
pub const MASTER_ID: &str = "lab_master";

/// The ports of one master.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    /// Where minions subscribe.
    pub publish: u16,
    /// Where minions send returns.
    pub ret: u16,
}

fn common(root: &Path, returners: &Path, user: &str, log: &str) -> Value {
    json!({
        "root_dir": root,
        "user": user,
        "sock_dir": root.join("s"),
        "log_file": root.join("log"),
        "log_level": "error",
        "log_level_logfile": log,
        "returner_dirs": [returners],
        // Looking up names and hardware takes seconds and tells no test anything; without the cache each worker of a
        // master does it several times at start.
        "enable_fqdns_grains": false,
        "enable_gpu_grains": false,
        "grains_cache": true,
    })
}

/// The options of a master that lives in `root`.
pub fn master(
    root: &Path,
    srv: &Path,
    returners: &Path,
    user: &str,
    ports: Ports,
    extra: &Options,
) -> String {
    let mut options = common(root, returners, user, "debug");
    merge(
        &mut options,
        &json!({
            "pidfile": root.join("pid"),
            // Salt would look up the machine's name and add `_master`.
            "id": MASTER_ID,
            "interface": "127.0.0.1",
            "publish_port": ports.publish,
            "ret_port": ports.ret,
            "worker_threads": 2,
            "auto_accept": true,
            "file_roots": {"base": [srv]},
            "pillar_roots": {"base": [srv.join("pillar")]},
            "loop_interval": 5,
            "timeout": 20,
            "gather_job_timeout": 10,
            "job_cache_store_endtime": true,
        }),
    );
    finish(options, extra)
}

/// The options of a minion that lives in `root`.
pub fn minion(root: &Path, id: &str, returners: &Path, user: &str, ports: Ports, extra: &Options) -> String {
    let mut options = common(root, returners, user, "debug");
    merge(
        &mut options,
        &json!({
            "pidfile": root.join("pid"),
            "id": id,
            "master": "127.0.0.1",
            "master_port": ports.ret,
            "publish_port": ports.publish,
            "acceptance_wait_time": 1,
            "random_reauth_delay": 1,
            "recon_default": 100,
            "recon_max": 500,
            "recon_randomize": false,
            "mine_enabled": false,
        }),
    );
    finish(options, extra)
}

fn merge(options: &mut Value, more: &Value) {
    if let (Value::Object(options), Value::Object(more)) = (options, more) {
        options.extend(more.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
}

fn finish(mut options: Value, extra: &Options) -> String {
    if let Value::Object(options) = &mut options {
        options.extend(extra.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    serde_json::to_string_pretty(&options).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_the_test_replaces_the_labs_own() {
        let extra = json!({"worker_threads": 3, "mysql.host": "127.0.0.1"});
        let text = master(
            Path::new("/l/m"),
            Path::new("/l/srv"),
            Path::new("/l/ret"),
            "me",
            Ports { publish: 1, ret: 2 },
            extra.as_object().unwrap(),
        );
        assert_eq!(text.matches("worker_threads").count(), 1);
        let options: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(options["worker_threads"], 3);
        assert_eq!(options["mysql.host"], "127.0.0.1");
        assert_eq!(options["sock_dir"], "/l/m/s");
    }
}
