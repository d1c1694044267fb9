//! The Salt side: one Python file, the same for every plugin but for its header.
//!
//! Invariant: what `render` writes is recognised by `is_shim`, and by `is_current` as long as the program is the same.

use crate::config::Config;
use crate::plugin::file::Interfaces;
use crate::plugin::manifest::Manifest;

/// The file as it stands in the repository, with a header for tests.
const SOURCE: &str = include_str!("shim.py");

/// Between these lines stands the header that is written anew for each plugin.
const HEADER_BEGINS: &str = "# --- set by `returnerd salt install` ---";
/// See [`HEADER_BEGINS`].
const HEADER_ENDS: &str = "# --- end of what is set ---";

/// Salt's own files for a name, where their stem is another (Salt finds a returner by its file first).
const BUILT_IN_STEMS: &[(&str, &[&str])] = &[
    ("appoptics", &["appoptics_return"]),
    ("carbon", &["carbon_return"]),
    ("cassandra_cql", &["cassandra_cql_return"]),
    ("couchbase", &["couchbase_return"]),
    ("couchdb", &["couchdb_return"]),
    ("elasticsearch", &["elasticsearch_return"]),
    ("etcd", &["etcd_return"]),
    ("highstate", &["highstate_return"]),
    ("influxdb", &["influxdb_return"]),
    ("kafka", &["kafka_return"]),
    ("librato", &["librato_return"]),
    ("mattermost", &["mattermost_returner"]),
    ("memcache", &["memcache_return"]),
    ("mongo", &["mongo_future_return"]),
    ("nagios_nrdp", &["nagios_nrdp_return"]),
    ("pushover", &["pushover_returner"]),
    ("redis", &["redis_return"]),
    ("sentry", &["sentry_return"]),
    ("slack", &["slack_returner"]),
    ("slack_webhook", &["slack_webhook_return"]),
    ("sms", &["sms_return"]),
    ("smtp", &["smtp_return"]),
    ("sqlite3", &["sqlite3_return"]),
    ("syslog", &["syslog_return"]),
    ("telegram", &["telegram_return"]),
    ("xmpp", &["xmpp_return"]),
    ("zabbix", &["zabbix_return"]),
];

/// The stems of Salt's own files that serve a name.
pub fn built_in_stems(name: &str) -> &'static [&'static str] {
    BUILT_IN_STEMS.iter().find(|(known, _)| *known == name).map_or(&[], |(_, stems)| stems)
}

/// Whether a file is a shim of ours, of whatever version.
pub fn is_shim(text: &str) -> bool {
    text.contains(HEADER_BEGINS) && text.contains(HEADER_ENDS)
}

/// Whether a shim is of this program's version, apart from its header.
pub fn is_current(text: &str) -> bool {
    match (split(text), split(SOURCE)) {
        (Some((before, _, after)), Some((source_before, _, source_after))) => {
            before == source_before && after == source_after
        }
        _ => false,
    }
}

/// The shim for one name of a plugin.
pub fn render(name: &str, manifest: &Manifest, interfaces: Interfaces, config: &Config) -> String {
    let Some((before, _, after)) = split(SOURCE) else { return SOURCE.to_owned() };
    // Options may stand under the plugin's name, its other names, and the last part of its prefix.
    let mut others: Vec<&str> =
        manifest.names().chain(manifest.prefix.rsplit('.').take(1)).filter(|other| *other != name).collect();
    others.dedup();
    let header = format!(
        "VIRTUALNAME = {}\nOTHER_NAMES = {}\nSOCKET = {}\nINBOX = {}\nINTERFACES = {}\nTIMEOUT = 5.0\nINBOX_MAX_BYTES = 1 << 30\nRETURNERD_VERSION = {}\n",
        python_text(name),
        python_tuple(&others),
        python_text(&config.socket.display().to_string()),
        python_text(&config.inbox.display().to_string()),
        python_tuple(&interfaces.names()),
        python_text(env!("CARGO_PKG_VERSION")),
    );
    format!("{before}{HEADER_BEGINS}\n{header}{HEADER_ENDS}{after}")
}

fn split(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(HEADER_BEGINS)?;
    let (header, after) = rest.split_once(HEADER_ENDS)?;
    Some((before, header, after))
}

/// A Python string literal. JSON's escapes are a part of Python's.
fn python_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn python_tuple(texts: &[&str]) -> String {
    let items: Vec<String> = texts.iter().map(|text| format!("{},", python_text(text))).collect();
    format!("({})", items.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered() -> String {
        let manifest = Manifest::parse(
            "name = \"redis\"\naliases = [\"redis_return\"]\nversion = \"1.0.0\"\nsummary = \"s\"\nprefix = \"redis\"\n",
        )
        .unwrap();
        let config = Config::parse("socket = \"/run/r'\\\"d.sock\"", std::path::Path::new("/x")).unwrap();
        render("redis_return", &manifest, Interfaces { returns: true, jobs: true, events: false }, &config)
    }

    #[test]
    fn a_rendered_shim_is_recognised_and_current() {
        let text = rendered();
        assert!(is_shim(&text) && is_current(&text));
        assert!(!is_current(&text.replacen("def returner(", "def returner_(", 1)));
        assert!(!is_shim("def returner(ret): pass"));
    }

    #[test]
    fn the_header_names_the_plugin_and_quotes_what_it_must() {
        let text = rendered();
        for line in [
            "VIRTUALNAME = \"redis_return\"",
            "OTHER_NAMES = (\"redis\",)",
            "INTERFACES = (\"returns\", \"jobs\",)",
            r#"SOCKET = "/run/r'\"d.sock""#,
        ] {
            assert!(text.contains(line), "{line}\n{}", &text[..2000]);
        }
    }
}
