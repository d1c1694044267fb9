//! The macro that turns an implementation of the traits into a component's exports.

/// Exports a type as a plugin: the interfaces it has, and the manifest that is embedded in the file.
///
/// ```ignore
/// returner_sdk::export!(MyReturner: returns, "manifest.toml");
/// returner_sdk::export!(MyStore: returns, jobs, events, "manifest.toml");
/// ```
///
/// The path is relative to the crate's root. On other targets than wasm the macro makes nothing, so that a plugin's
/// logic can be tested natively.
#[macro_export]
macro_rules! export {
    ($ty:ty : $($interface:ident),+ , $manifest:literal) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code)]
        const _: () = {
            ::std::thread_local! {
                static SESSION: $crate::Session<$ty> = const { $crate::Session::new() };
            }

            struct Component;

            impl $crate::bindings::lifecycle::exports::salt::returner::lifecycle::Guest for Component {
                fn open(
                    config: $crate::bindings::lifecycle::exports::salt::returner::lifecycle::Config,
                ) -> ::std::result::Result<(), $crate::Failure> {
                    SESSION.with(|session| session.open(config))
                }
                fn close() {
                    SESSION.with(|session| session.close());
                }
            }
            $crate::bindings::lifecycle::export_lifecycle!(
                Component with_types_in $crate::bindings::lifecycle
            );

            $( $crate::export!(@ $interface $ty); )+

            const MANIFEST: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $manifest));
            #[used]
            #[unsafe(link_section = "returner-manifest")]
            static EMBEDDED: [u8; MANIFEST.len()] = {
                let mut bytes = [0; MANIFEST.len()];
                let mut at = 0;
                while at < bytes.len() {
                    bytes[at] = MANIFEST[at];
                    at += 1;
                }
                bytes
            };
        };
    };
    (@ returns $ty:ty) => {
        impl $crate::bindings::returns::exports::salt::returner::returns::Guest for Component {
            fn deliver(
                returns: ::std::vec::Vec<$crate::JobReturn>,
            ) -> ::std::result::Result<::std::vec::Vec<$crate::Verdict>, $crate::Failure> {
                SESSION.with(|s| s.call(async |t: &mut $ty| <$ty as $crate::Returner>::deliver(t, returns).await))
            }
        }
        $crate::bindings::returns::export_returns!(Component with_types_in $crate::bindings::returns);
    };
    (@ events $ty:ty) => {
        impl $crate::bindings::events::exports::salt::returner::events::Guest for Component {
            fn deliver(
                events: ::std::vec::Vec<$crate::Event>,
            ) -> ::std::result::Result<::std::vec::Vec<$crate::Verdict>, $crate::Failure> {
                SESSION.with(|s| {
                    s.call(async |t: &mut $ty| <$ty as $crate::EventReturner>::deliver_events(t, events).await)
                })
            }
        }
        $crate::bindings::events::export_events!(Component with_types_in $crate::bindings::events);
    };
    (@ jobs $ty:ty) => {
        impl $crate::bindings::jobs::exports::salt::returner::jobs::Guest for Component {
            fn save_loads(
                loads: ::std::vec::Vec<$crate::JobLoad>,
            ) -> ::std::result::Result<::std::vec::Vec<$crate::Verdict>, $crate::Failure> {
                SESSION.with(|s| s.call(async |t: &mut $ty| <$ty as $crate::JobCache>::save_loads(t, loads).await))
            }
            fn get_load(
                jid: ::std::string::String,
            ) -> ::std::result::Result<::std::option::Option<$crate::StoredLoad>, $crate::Failure> {
                SESSION.with(|s| s.call(async |t: &mut $ty| <$ty as $crate::JobCache>::get_load(t, jid).await))
            }
            fn get_returns(
                jid: ::std::string::String,
            ) -> ::std::result::Result<::std::vec::Vec<$crate::StoredReturn>, $crate::Failure> {
                SESSION.with(|s| s.call(async |t: &mut $ty| <$ty as $crate::JobCache>::get_returns(t, jid).await))
            }
            fn get_jids(
                filter: $crate::JidsFilter,
            ) -> ::std::result::Result<::std::vec::Vec<$crate::StoredLoad>, $crate::Failure> {
                SESSION.with(|s| s.call(async |t: &mut $ty| <$ty as $crate::JobCache>::get_jids(t, filter).await))
            }
            fn get_fun(
                fun: ::std::string::String,
            ) -> ::std::result::Result<::std::vec::Vec<$crate::StoredReturn>, $crate::Failure> {
                SESSION.with(|s| s.call(async |t: &mut $ty| <$ty as $crate::JobCache>::get_fun(t, fun).await))
            }
            fn get_minions()
            -> ::std::result::Result<::std::vec::Vec<::std::string::String>, $crate::Failure> {
                SESSION.with(|s| s.call(async |t: &mut $ty| <$ty as $crate::JobCache>::get_minions(t).await))
            }
            fn purge(
                request: $crate::PurgeRequest,
            ) -> ::std::result::Result<$crate::Purged, $crate::Failure> {
                SESSION.with(|s| s.call(async |t: &mut $ty| <$ty as $crate::JobCache>::purge(t, request).await))
            }
        }
        $crate::bindings::jobs::export_jobs!(Component with_types_in $crate::bindings::jobs);
    };
}
