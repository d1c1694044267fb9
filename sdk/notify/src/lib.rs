//! What plugins share that tell people of returns: Slack today, other chats and mail alike.
//!
//! [`text`] writes a return as Salt's own notifiers do and cuts it where a message has a limit, [`python`] and [`yaml`] are the two
//! ways a value is shown, [`states`] reads state runs, and [`deliver`] sends one message after another and remembers which
//! were sent, since nobody wants to read the same message twice. [`web`] asks services over HTTP, [`slack`] has what both of
//! Slack's plugins need.
//!
//! A text is never cut without saying so: a cut text says how much is missing and where the whole is.

pub mod deliver;
pub mod python;
pub mod slack;
pub mod states;
pub mod text;
pub mod web;

use returner_sdk::serde_json::Value;

/// The function that Salt probes running jobs with. Where a notifier is the `ext_job_cache` its returns come too, and no person
/// wants to read them.
pub const FIND_JOB: &str = "saltutil.find_job";

/// A value as YAML in blocks.
pub fn yaml(value: &Value) -> String {
    // What YAML cannot say, JSON can.
    serde_yaml_ng::to_string(value).unwrap_or_else(|_| returner_sdk::json::to_text(value))
}
