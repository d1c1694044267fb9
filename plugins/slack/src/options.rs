//! The options of the manifest, checked.

use returner_sdk::given;
use returner_sdk::prelude::*;
use returner_sdk_notify::web::server;

/// The options as the host hands them over.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct Options {
    /// The channel, by name or id.
    pub channel: Option<String>,
    /// Who the messages come from.
    pub username: Option<String>,
    /// Whether to post as the token's user.
    pub as_user: Option<bool>,
    /// The app's token.
    pub api_key: Option<String>,
    /// Show only states that changed something or failed.
    pub changes: bool,
    /// Show only what failed.
    pub only_show_failed: bool,
    /// Show returns as YAML.
    pub yaml_format: bool,
    /// Characters of one message.
    pub max_text: i64,
    /// The server for files; none cuts what is too long.
    pub files_url: Option<String>,
    /// The server of the Web API.
    pub api_url: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            channel: None,
            username: None,
            as_user: None,
            api_key: None,
            changes: false,
            only_show_failed: false,
            yaml_format: false,
            max_text: 4_000,
            files_url: None,
            api_url: None,
        }
    }
}

/// Options that were checked.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) channel: String,
    pub(crate) username: Option<String>,
    pub(crate) as_user: Option<bool>,
    pub(crate) authorization: String,
    pub(crate) changes: bool,
    pub(crate) only_show_failed: bool,
    pub(crate) yaml_format: bool,
    pub(crate) max_text: usize,
    /// Without a slash at the end.
    pub(crate) files_url: Option<String>,
    /// Without a slash at the end.
    pub(crate) api_url: String,
}

impl Options {
    /// Checks them. An error is fatal and names the option.
    pub(crate) fn settings(self) -> Result<Settings> {
        let api_key = given(self.api_key)
            .filter(|key| !key.trim().is_empty())
            .ok_or_else(|| Error::fatal("the option `api_key` is empty; hint: put the app's token there"))?;
        let api_key = api_key.trim();
        if !api_key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::fatal("the option `api_key` is no token; hint: it looks like `xoxb-…`"));
        }
        let max_text = usize::try_from(self.max_text)
            .ok()
            .filter(|max| (500..=40_000).contains(max))
            .ok_or_else(|| {
                Error::fatal(format!(
                    "the option `max_text` is {}; hint: it may be 500 to 40000",
                    self.max_text
                ))
            })?;
        Ok(Settings {
            channel: given(self.channel).unwrap_or_else(|| "#general".to_owned()),
            username: given(self.username),
            as_user: self.as_user,
            authorization: format!("Bearer {api_key}"),
            changes: self.changes,
            only_show_failed: self.only_show_failed,
            yaml_format: self.yaml_format,
            max_text,
            files_url: given(self.files_url).map(|url| server("files_url", &url)).transpose()?,
            api_url: server(
                "api_url",
                &given(self.api_url).unwrap_or_else(|| "https://slack.com".to_owned()),
            )?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options { api_key: Some("xoxb-1".into()), ..Options::default() }
    }

    #[test]
    fn salts_defaults_hold() {
        let settings = options().settings().unwrap();
        assert_eq!((settings.channel.as_str(), settings.api_url.as_str()), ("#general", "https://slack.com"));
        assert_eq!((settings.max_text, settings.as_user, settings.files_url), (4_000, None, None));
        let url = Some("https://proxy.example/slack/".to_owned());
        assert_eq!(
            Options { api_url: url, ..options() }.settings().unwrap().api_url,
            "https://proxy.example/slack"
        );
    }

    #[test]
    fn what_cannot_work_is_refused_by_name_and_without_the_token() {
        let fatal = |options: Options| match options.settings().err() {
            Some(Error::Fatal(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(fatal(Options::default()).contains("`api_key`"));
        let odd = fatal(Options { api_key: Some("xoxb 1\n2".into()), ..options() });
        assert!(odd.contains("`api_key`") && !odd.contains("xoxb 1"), "{odd}");
        assert!(fatal(Options { max_text: 40_001, ..options() }).contains("`max_text`"));
        assert!(fatal(Options { api_url: Some("slack.com".into()), ..options() }).contains("`api_url`"));
        assert!(fatal(Options { files_url: Some("ftp://x".into()), ..options() }).contains("`files_url`"));
    }
}
