//! The options of the manifest, checked.

use returner_sdk::given;
use returner_sdk::prelude::*;
use returner_sdk_notify::web::server;

/// The options as the host hands them over.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Options {
    /// The path after `services/`.
    pub webhook: Option<String>,
    /// The title of what went well.
    pub success_title: Option<String>,
    /// The title of what failed.
    pub failure_title: Option<String>,
    /// The address of a picture.
    pub author_icon: Option<String>,
    /// Whether states are named.
    pub show_tasks: bool,
    /// The server.
    pub api_url: Option<String>,
}

/// Options that were checked.
#[derive(Clone)]
pub(crate) struct Settings {
    /// The whole address, which is a secret.
    pub(crate) url: String,
    pub(crate) success_title: String,
    pub(crate) failure_title: String,
    pub(crate) author_icon: Option<String>,
    pub(crate) show_tasks: bool,
}

impl Options {
    /// Checks them. An error is fatal and names the option.
    pub(crate) fn settings(self) -> Result<Settings> {
        let webhook = given(self.webhook).unwrap_or_default();
        let webhook = webhook.trim().trim_matches('/');
        if webhook.is_empty() {
            return Err(Error::fatal("the option `webhook` is empty; hint: put the webhook's path there"));
        }
        let is_path = |byte: u8| byte.is_ascii_graphic() && !b"?#".contains(&byte);
        if webhook.contains("://") || !webhook.bytes().all(is_path) {
            return Err(Error::fatal(
                "the option `webhook` is not the path of a webhook; hint: put there only what follows `/services/` in its address",
            ));
        }
        let server =
            server("api_url", &given(self.api_url).unwrap_or_else(|| "https://hooks.slack.com".into()))?;
        Ok(Settings {
            url: format!("{server}/services/{webhook}"),
            success_title: given(self.success_title).unwrap_or_else(|| "{id} | Succeeded".into()),
            failure_title: given(self.failure_title).unwrap_or_else(|| "{id} | Failed".into()),
            author_icon: given(self.author_icon),
            show_tasks: self.show_tasks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_path_of_a_webhook_is_one() {
        let with = |webhook: &str| Options { webhook: Some(webhook.into()), ..Options::default() }.settings();
        assert_eq!(with("/T0/B0/x/").unwrap().url, "https://hooks.slack.com/services/T0/B0/x");
        for bad in ["", "none", "https://hooks.slack.com/services/T0/B0/x", "T0/B0/x?y", "T0 B0"] {
            let Err(Error::Fatal(why)) = with(bad) else { panic!("{bad}") };
            assert!(why.contains("`webhook`") && !why.contains("T0"), "{why}");
        }
    }
}
