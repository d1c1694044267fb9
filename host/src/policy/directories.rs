//! The directories that a plugin is given, under the paths that they have outside.
//!
//! Invariant: where a plugin may write, every call that touches files ends before the host goes on with the plugin. A call that were left
//! to another thread could end after the instance was given up, and so after its locks (`super::file_locks`), and would change a file that
//! somebody else holds by then.

use std::io;
use std::path::PathBuf;

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use wasmtime_wasi::{FsPerms, WasiCtxBuilder};

use super::file_locks::LockDirs;

/// Why an instance cannot be given its surroundings.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot open the directory `{path}` for the plugin; hint: it must exist and the daemon's user must have access"
)]
pub struct DirectoryError {
    /// The directory.
    pub path: String,
    /// The reason.
    pub source: io::Error,
}

/// Gives a plugin these directories, each with whether it may write there; what it can lock is the result.
pub(crate) fn give(
    builder: &mut WasiCtxBuilder,
    directories: Vec<(PathBuf, bool)>,
) -> Result<LockDirs, DirectoryError> {
    let mut locks = LockDirs::default();
    // A directory keeps what is set at the moment it is added.
    builder.allow_blocking_current_thread(directories.iter().any(|(_, write)| *write));
    for (path, write) in directories {
        let error = |source: io::Error| DirectoryError { path: path.display().to_string(), source };
        let directory = Dir::open_ambient_dir(&path, ambient_authority()).map_err(error)?;
        let guest = path.display().to_string();
        let perms = if write { FsPerms::ReadWrite } else { FsPerms::ReadOnly };
        builder
            .preopened_dir(&path, &guest, perms)
            .map_err(|source| error(io::Error::other(source.to_string())))?;
        if write {
            locks.add(guest, directory);
        }
    }
    Ok(locks)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use wasmtime::component::{Resource, ResourceTable};
    use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemCtxView};
    use wasmtime_wasi::p2::bindings::filesystem::preopens::Host as _;
    use wasmtime_wasi::p2::bindings::filesystem::types::{
        DescriptorFlags, HostDescriptor as _, OpenFlags, PathFlags,
    };

    use super::*;

    #[test]
    fn what_a_plugin_does_with_files_is_done_within_its_call() {
        let granted = tempfile::tempdir().unwrap();
        let mut builder = WasiCtxBuilder::new();
        give(&mut builder, vec![(granted.path().to_owned(), true)]).unwrap();
        let (mut wasi, mut table) = (builder.build(), ResourceTable::new());

        // What wanted the only thread for such work would wait for ever, since somebody has it.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        let (release, taken) = mpsc::channel::<()>();
        runtime.spawn_blocking(move || taken.recv());
        let call = async {
            let mut view = WasiFilesystemCtxView { ctx: wasi.filesystem(), table: &mut table };
            let (root, _) = view.get_directories().unwrap().remove(0);
            let again = |of: &Resource<Descriptor>| Resource::new_borrow(of.rep());
            view.create_directory_at(again(&root), "job".to_owned()).await.unwrap();
            let write = DescriptorFlags::READ | DescriptorFlags::WRITE;
            let file = view
                .open_at(again(&root), PathFlags::empty(), "job/load".to_owned(), OpenFlags::CREATE, write)
                .await
                .unwrap();
            view.write(again(&file), b"content".to_vec(), 0).await.unwrap();
            view.sync(file).await.unwrap();
            let job = (again(&root), "job".to_owned());
            view.rename_at(job.0, job.1, again(&root), "moved".to_owned()).await.unwrap();
            view.stat_at(root, PathFlags::empty(), "moved/load".to_owned()).await.unwrap().size
        };
        let size = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), call).await });
        drop(release);
        assert_eq!(size.ok(), Some(7), "a call waits for another thread");
    }
}
