//! The returner `slack`: tells a channel of each return, as Salt's own returner of that name does.
//!
//! Invariants: a return is answered `stored` only after Slack took its message, and its file where it has one, or if
//! the options keep it back; messages go out one after another; while Slack asks for a pause it is not asked anything.
//! Slack has no key that would make a message come once: what was sent is remembered as long as the instance lives.

mod api;
mod message;
mod options;

pub use options::Options;

use std::collections::HashMap;
use std::time::Duration;

use returner_sdk::prelude::*;
use returner_sdk::serde_json::json;
use returner_sdk_notify::deliver::{Deadline, Done, Memory, one_after_another};
use returner_sdk_notify::web::mendable;

use api::{Answer, Fault, Refusal};
use message::Message;
use options::Settings;

/// A call takes at most this long; the host's limit is 60 s.
const CALL: Duration = Duration::from_secs(45);

/// Messages whose file is still to come that are remembered.
const MOST_OPEN: usize = 100;

/// An instance.
pub struct Slack {
    settings: Settings,
    memory: Memory,
    /// Messages that went out and whose file did not, by the key of the return.
    open: HashMap<String, Posted>,
    /// Slack does not take `as_user` from this app.
    no_as_user: bool,
}

/// Where a message is.
#[derive(Debug, Clone)]
struct Posted {
    channel: String,
    ts: String,
}

impl Returner for Slack {
    type Options = Options;
    const REOPEN: bool = false;

    async fn open(options: Options, _: &Context) -> Result<Self> {
        let (memory, open) = (Memory::default(), HashMap::new());
        Ok(Self { settings: options.settings()?, memory, open, no_as_user: false })
    }

    async fn deliver(&mut self, returns: Vec<JobReturn>) -> Result<Vec<Verdict>> {
        let deadline = Deadline::after(CALL);
        one_after_another(&returns, async |ret| self.tell(ret, deadline).await).await
    }
}

impl Slack {
    async fn tell(&mut self, ret: &JobReturn, deadline: Deadline) -> Result<Done> {
        let key = format!("{}/{}/{}", ret.jid, ret.minion, ret.resource_id.as_deref().unwrap_or_default());
        if self.memory.knows(&key) {
            return Ok(Done::Nothing);
        }
        let Some(message) = Message::of(ret, &self.settings) else { return Ok(Done::Nothing) };
        self.memory.must_not_pause()?;
        let sent = match &self.settings.files_url {
            Some(_) if !message.fits(self.settings.max_text) => {
                self.post_with_file(ret, &key, &message, deadline).await
            }
            _ => self.post(&message, &whole_of(ret, ""), deadline).await.map(drop),
        };
        sent.map_err(|fault| self.error(fault))?;
        self.memory.note(key);
        Ok(Done::Sent)
    }

    /// Posts a message; `place` says where the whole is if it must be cut.
    async fn post(&mut self, message: &Message, place: &str, deadline: Deadline) -> Result<Answer, Fault> {
        let text = message.to_slack(self.settings.max_text, place);
        loop {
            let mut arguments = vec![
                ("channel", self.settings.channel.as_str()),
                ("text", &text),
                ("unfurl_links", "false"),
                ("unfurl_media", "false"),
            ];
            if let Some(username) = &self.settings.username {
                arguments.push(("username", username));
            }
            let as_user = self.settings.as_user.filter(|_| !self.no_as_user);
            if let Some(as_user) = as_user {
                arguments.push(("as_user", if as_user { "true" } else { "false" }));
            }
            match api::call(&self.settings, deadline, "chat.postMessage", &arguments).await {
                // Salt's returner demands the option, so it stands in every configuration, also where the app is of the new kind.
                Err(Fault::Refused(refusal))
                    if refusal.code == "as_user_not_supported" && as_user.is_some() =>
                {
                    eprintln!("Slack does not take `as_user` from this app, so it is left out");
                    self.no_as_user = true;
                }
                other => return other,
            }
        }
    }

    /// Sends what does not fit as a file in the thread of a message that tells of it. The file goes first, where nobody sees it
    /// yet, so that a workspace that takes none still gets the message.
    async fn post_with_file(
        &mut self,
        ret: &JobReturn,
        key: &str,
        message: &Message,
        deadline: Deadline,
    ) -> Result<(), Fault> {
        let file = match self.upload(ret, message, deadline).await {
            Ok(file) => file,
            Err(Fault::Refused(refusal)) if refusal.is_of_files() => {
                if self.open.remove(key).is_some() {
                    eprintln!("{}", no_file(&refusal));
                    return Ok(());
                }
                let place = whole_of(ret, &format!("; {}", no_file(&refusal)));
                return self.post(message, &place, deadline).await.map(drop);
            }
            Err(fault) => return Err(fault),
        };
        let posted = match self.open.get(key) {
            Some(posted) => posted.clone(),
            None => {
                let answer = self.post(message, "all of it is in the file in the thread", deadline).await?;
                Posted { channel: answer.channel, ts: answer.ts }
            }
        };
        // Should the last step fail, the next try must not post again.
        if self.open.len() >= MOST_OPEN {
            self.open.clear();
        }
        self.open.insert(key.to_owned(), posted.clone());
        let files = json!([{ "id": file, "title": title(ret) }]).to_string();
        let arguments =
            [("files", files.as_str()), ("channel_id", &posted.channel), ("thread_ts", &posted.ts)];
        api::call(&self.settings, deadline, "files.completeUploadExternal", &arguments).await?;
        self.open.remove(key);
        Ok(())
    }

    /// Sends a file to Slack, where it is not yet seen; gives its id.
    async fn upload(&self, ret: &JobReturn, message: &Message, deadline: Deadline) -> Result<String, Fault> {
        let text = message.plain();
        let (name, length) = (format!("{}.txt", title(ret)), text.len().to_string());
        let arguments = [("filename", name.as_str()), ("length", &length), ("snippet_type", "text")];
        let answer = api::call(&self.settings, deadline, "files.getUploadURLExternal", &arguments).await?;
        let server = self.settings.files_url.as_deref().unwrap_or_default();
        if !answer.upload_url.strip_prefix(server).is_some_and(|path| path.starts_with('/')) {
            // Its path is a secret of sorts; the server is what matters.
            let other: Vec<&str> = answer.upload_url.splitn(4, '/').take(3).collect();
            return Err(Fault::Other(mendable(format!(
                "Slack wants files at `{}`, which is not the option `files_url`; hint: write that there",
                other.join("/")
            ))));
        }
        api::upload(&answer.upload_url, deadline, text).await?;
        Ok(answer.file_id)
    }

    fn error(&mut self, fault: Fault) -> Error {
        match fault {
            Fault::Busy(error) => {
                self.memory.heed(&error);
                error
            }
            Fault::Refused(refusal) => refusal.error(&self.settings),
            Fault::Other(error) => error,
        }
    }
}

/// Where the whole of a return is that was cut.
fn whole_of(ret: &JobReturn, more: &str) -> String {
    format!("`salt-run jobs.lookup_jid {}` may show all{more}", ret.jid)
}

fn no_file(refusal: &Refusal) -> String {
    let hint = match refusal.code.as_str() {
        "missing_scope" => " (the app needs the scope `files:write`)",
        _ => "",
    };
    format!("Slack took no file: `{}`{hint}", refusal.code)
}

/// The name of a return's file.
fn title(ret: &JobReturn) -> String {
    let id = ret.stored_id();
    let name: String = format!("{}-{id}", ret.jid)
        .chars()
        .map(|c| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' })
        .collect();
    name.chars().take(100).collect()
}

returner_sdk::export!(Slack: returns, "manifest.toml");
