//! Finds what the tests need: the daemon, the built plugins, the Salt environments.
//!
//! Whatever is missing panics with the `make` target that makes it; no test passes by not running.

use std::env;
use std::path::{Path, PathBuf};

/// The directory of the running program's profile, such as `target/debug`.
fn profile_dir() -> PathBuf {
    let program = env::current_exe().expect("the running program has no path");
    let dir = program.parent().expect("a program lies in a directory");
    if dir.ends_with("deps") {
        dir.parent().expect("`deps` has a parent").to_path_buf()
    } else {
        dir.to_path_buf()
    }
}

/// The cargo target directory: the one this program was built into.
pub fn target_dir() -> PathBuf {
    profile_dir().parent().expect("a profile lies in a target directory").to_path_buf()
}

fn from_env(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn must_exist(path: PathBuf, what: &str, target: &str) -> PathBuf {
    assert!(
        path.exists(),
        "{what} is missing: `{}` does not exist; hint: run `make {target}`",
        path.display()
    );
    path
}

/// The `returnerd` binary: `RETURNERD_BIN`, else beside the running test.
pub fn returnerd() -> PathBuf {
    must_exist(
        from_env("RETURNERD_BIN").unwrap_or_else(|| profile_dir().join("returnerd")),
        "the daemon's binary",
        "build",
    )
}

/// The directory of built plugins: `RETURNERD_PLUGINS`, else `plugins` in the target directory.
pub fn plugins_dir() -> PathBuf {
    must_exist(
        from_env("RETURNERD_PLUGINS").unwrap_or_else(|| target_dir().join("plugins")),
        "the directory of built plugins",
        "plugins",
    )
}

/// One built plugin, by the name of its returner: `sqlite3`.
pub fn plugin(name: &str) -> PathBuf {
    must_exist(plugins_dir().join(format!("{name}.wasm")), &format!("the plugin `{name}`"), "plugins")
}

/// The cache directory of `make setup`: `RETURNERD_CACHE`, else `~/.cache/returnerd`.
pub fn cache_dir() -> PathBuf {
    from_env("RETURNERD_CACHE").unwrap_or_else(|| {
        let home = from_env("HOME").expect("neither `RETURNERD_CACHE` nor `HOME` is set");
        home.join(".cache/returnerd")
    })
}

/// The `bin` directory of the virtual environment with this release of Salt.
pub fn salt_bin(version: &str) -> PathBuf {
    let bin = cache_dir().join(format!("salt-{version}")).join("bin");
    must_exist(bin.join("salt-master"), &format!("Salt {version}"), "setup");
    bin
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("`tests` lies in the repository").to_path_buf()
}

/// One built guest that only tests use, by its name: `probe`.
pub fn guest(name: &str) -> PathBuf {
    must_exist(
        target_dir().join("guests").join(format!("{name}.wasm")),
        &format!("the guest `{name}`"),
        "plugins",
    )
}
