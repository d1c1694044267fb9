//! The generated types of `wit/`, one module for each interface a plugin may export.
//!
//! Each module is a world with a single interface; `export!` names those that a plugin has, and the linker
//! merges their descriptions into the plugin's own world.
#![allow(unsafe_code, missing_docs, clippy::all, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// `lifecycle`, and the home of the types that all interfaces share.
pub mod lifecycle {
    wit_bindgen::generate!({
        path: "../../wit/0.1.0",
        world: "part-lifecycle",
        pub_export_macro: true,
        export_macro_name: "export_lifecycle",
        default_bindings_module: "returner_sdk::bindings::lifecycle",
        additional_derives: [PartialEq],
        generate_all,
    });
}

/// `returns`.
pub mod returns {
    wit_bindgen::generate!({
        path: "../../wit/0.1.0",
        world: "part-returns",
        pub_export_macro: true,
        export_macro_name: "export_returns",
        default_bindings_module: "returner_sdk::bindings::returns",
        with: { "salt:returner/types@0.1.0": super::lifecycle::salt::returner::types },
    });
}

/// `jobs`.
pub mod jobs {
    wit_bindgen::generate!({
        path: "../../wit/0.1.0",
        world: "part-jobs",
        pub_export_macro: true,
        export_macro_name: "export_jobs",
        default_bindings_module: "returner_sdk::bindings::jobs",
        additional_derives: [PartialEq],
        with: { "salt:returner/types@0.1.0": super::lifecycle::salt::returner::types },
    });
}

/// `events`.
pub mod events {
    wit_bindgen::generate!({
        path: "../../wit/0.1.0",
        world: "part-events",
        pub_export_macro: true,
        export_macro_name: "export_events",
        default_bindings_module: "returner_sdk::bindings::events",
        with: { "salt:returner/types@0.1.0": super::lifecycle::salt::returner::types },
    });
}

/// `file-locks`, which a plugin imports.
#[cfg(feature = "file-locks")]
pub mod file_locks {
    wit_bindgen::generate!({ path: "../../wit/0.1.0", world: "part-file-locks" });
    pub use salt::returner::file_locks::*;
}

/// `unix-datagrams`, which a plugin imports; see [`crate::unix`].
#[cfg(feature = "unix-datagrams")]
pub mod unix_datagrams {
    wit_bindgen::generate!({ path: "../../wit/0.1.0", world: "part-unix-datagrams" });
    pub use salt::returner::unix_datagrams::*;
}
