//! The returner `slack_webhook`: tells the channel of an incoming webhook of each return and event, as Salt's own returner of that
//! name does.
//!
//! Invariants: a record is answered `stored` only after Slack took its message, or if it is one that is never sent; the webhook's
//! path, which is a secret, stands in no error; while Slack asks for a pause it is not asked anything. What was sent is
//! remembered as long as the instance lives, since Slack has no key that would make a message come once.

mod options;
mod report;

pub use options::Options;

use std::time::Duration;

use returner_sdk::http::{Request, Response};
use returner_sdk::prelude::*;
use returner_sdk::serde_json::Value;
use returner_sdk_notify::deliver::{Deadline, Done, Memory, one_after_another};
use returner_sdk_notify::web::{self, Unsent, mendable};

use options::Settings;

/// A call takes at most this long; the host's limit is 60 s.
const CALL: Duration = Duration::from_secs(45);

/// An instance.
pub struct Webhook {
    settings: Settings,
    memory: Memory,
}

impl Returner for Webhook {
    type Options = Options;
    const REOPEN: bool = false;

    async fn open(options: Options, _: &Context) -> Result<Self> {
        Ok(Self { settings: options.settings()?, memory: Memory::default() })
    }

    async fn deliver(&mut self, returns: Vec<JobReturn>) -> Result<Vec<Verdict>> {
        let deadline = Deadline::after(CALL);
        one_after_another(&returns, async |ret| {
            let resource = ret.resource_id.as_deref().unwrap_or_default();
            let key = format!("{}/{}/{resource}", ret.jid, ret.minion);
            self.tell(key, deadline, |settings| report::of_return(ret, settings)).await
        })
        .await
    }
}

impl EventReturner for Webhook {
    async fn deliver_events(&mut self, events: Vec<Event>) -> Result<Vec<Verdict>> {
        let deadline = Deadline::after(CALL);
        one_after_another(&events, async |event| {
            let key = format!("event {}", event.id);
            self.tell(key, deadline, |settings| report::of_event(event, settings)).await
        })
        .await
    }
}

impl Webhook {
    async fn tell(
        &mut self,
        key: String,
        deadline: Deadline,
        payload: impl FnOnce(&Settings) -> Option<Value>,
    ) -> Result<Done> {
        if self.memory.knows(&key) {
            return Ok(Done::Nothing);
        }
        let Some(payload) = payload(&self.settings) else { return Ok(Done::Nothing) };
        self.memory.must_not_pause()?;
        let request = Request::post(&self.settings.url).form([("payload", payload.to_string().as_str())]);
        let response = match web::send(request, deadline, "Slack").await {
            Ok(response) => response,
            Err(Unsent::Busy(error)) => {
                self.memory.heed(&error);
                return Err(error);
            }
            Err(Unsent::Other(error)) => return Err(error),
        };
        must_be_taken(response)?;
        self.memory.note(key);
        Ok(Done::Sent)
    }
}

/// Slack answers `ok`, or a code as plain text, most of them with a status of 4xx.
fn must_be_taken(response: Response) -> Result<()> {
    let text = response.text().trim().to_owned();
    let hint = match text.as_str() {
        "ok" if response.is_success() => return Ok(()),
        "invalid_payload" | "no_text" | "too_many_attachments" | "msg_too_long" | "invalid_blocks" => {
            return Err(Error::Reject(format!("Slack refuses the message: `{text}`")));
        }
        "no_service" | "no_service_id" | "no_active_hooks" | "invalid_token" | "no_team"
        | "team_disabled" => {
            "the webhook of the option `webhook` is gone or mistyped; hint: make a new one in the app's settings"
        }
        "channel_is_archived" | "channel_not_found" | "user_not_found" => {
            "the channel of the webhook (option `webhook`) is gone; hint: make one for another channel"
        }
        "action_prohibited" | "posting_to_general_channel_denied" => {
            "the workspace does not let the webhook (option `webhook`) post there; hint: ask its administrator"
        }
        _ => {
            let response = web::must_be_proper(response, "api_url")?;
            let status = response.status;
            return Err(mendable(format!(
                "the server of `api_url` answered with status {status}, but not with `ok` as Slack does"
            )));
        }
    };
    Err(mendable(format!("Slack says `{text}`: {hint}")))
}

returner_sdk::export!(Webhook: returns, events, "manifest.toml");
