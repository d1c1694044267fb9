//! The host's side of `wit/`, generated.
#![allow(missing_docs)]

wasmtime::component::bindgen!({
    path: "../wit/0.1.0",
    world: "complete",
    imports: { "salt:returner/unix-datagrams.send": async | trappable, default: trappable },
    exports: { default: async },
    with: { "salt:returner/file-locks.file": crate::policy::file_locks::LockFile },
});

pub(crate) use exports::salt::returner::{events, jobs, lifecycle, returns};
pub(crate) use salt::returner::types;
