//! What a message looks like.
//!
//! - To this machine's log: `<PRI>TAG: JSON`, as syslog(3) sends it, without the time. The sandbox knows no time zone, and
//!   rsyslog, journald, syslog-ng and busybox all take the time of receipt where a message has none.
//! - To a server: RFC 5424, with the time at which the host took the return. The JSON is ASCII (other characters as its
//!   escapes), so no byte order mark is needed, which many receivers leave in the text.

use std::borrow::Cow;

use returner_sdk::prelude::*;
use returner_sdk::{json, time::Date};

use crate::options::{Settings, word};
use crate::shorten::shorten;

/// A message that is ready to be sent.
pub(crate) struct Message {
    pub(crate) text: String,
    /// Whether the return was too long for it.
    pub(crate) is_cut: bool,
}

impl Settings {
    /// The message of a return in at most `max` bytes, or why there is none.
    pub(crate) fn message(&self, ret: &JobReturn, max: usize) -> Result<Message> {
        let header = self.header(ret);
        let room = max.saturating_sub(header.len());
        let document = self.escaped(&ret.document);
        if document.len() <= room {
            return Ok(Message { text: header + &document, is_cut: false });
        }
        let short = shorten(&ret.document, room, |text| self.escaped(text).into_owned()).ok_or_else(|| {
            Error::reject(format!(
                "not even the keys of the return fit into a message of {max} bytes; hint: raise `max_message`"
            ))
        })?;
        Ok(Message { text: header + &short, is_cut: true })
    }

    fn header(&self, ret: &JobReturn) -> String {
        let Self { priority, tag, hostname, with_job_id, .. } = self;
        let jid = word(&ret.jid, 128);
        if !self.for_server {
            let id = if *with_job_id { format!("[{jid}]") } else { String::new() };
            return format!("<{priority}>{tag}{id}: ");
        }
        let time = Date::from_ms(ret.arrived_ms).rfc3339();
        let id = if *with_job_id { jid.as_str() } else { "-" };
        let kind = word(&ret.fun, 32);
        format!("<{priority}>1 {time} {hostname} {tag} {id} {kind} - ")
    }

    fn escaped<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.for_server { json::escape(text, |c| !c.is_ascii()) } else { Cow::Borrowed(text) }
    }
}

#[cfg(test)]
mod tests {
    use crate::options::Options;

    use super::*;

    fn ret() -> JobReturn {
        JobReturn {
            jid: "20261201033139637056".into(),
            minion: "m1".into(),
            resource_id: None,
            fun: "test.echo".into(),
            fun_args: "[]".into(),
            value: "\"å\"".into(),
            document: r#"{"jid": "20261201033139637056", "id": "m1", "fun": "test.echo", "return": "å"}"#
                .into(),
            success: None,
            retcode: None,
            trimmed: false,
            arrived_ms: 1_796_096_499_637,
        }
    }

    fn text(options: Options, ret: &JobReturn) -> String {
        let context = Context { id: "web 1".into(), role: "master".into(), ..Context::default() };
        let (settings, _) = options.settings(&context).unwrap();
        settings.message(ret, settings.max).unwrap().text
    }

    #[test]
    fn the_local_log_gets_what_syslog_sends_without_the_time() {
        let mut options = Options { facility: "local0".into(), ..Options::default() };
        assert_eq!(text(options.clone(), &ret()), format!("<134>salt-master: {}", ret().document));
        options.options = vec!["LOG_PID".into(), "LOG_CONS".into()];
        options.tag = Some("jobs".into());
        assert_eq!(text(options, &ret()), format!("<134>jobs[20261201033139637056]: {}", ret().document));
    }

    #[test]
    fn a_server_gets_rfc_5424_in_ascii() {
        let mut options =
            Options { transport: "udp".into(), server: Some("loghost".into()), ..Options::default() };
        let json = ret().document.replace('å', "\\u00e5");
        assert_eq!(
            text(options.clone(), &ret()),
            format!("<14>1 2026-12-01T03:41:39.637000Z web_1 salt-master - test.echo - {json}")
        );
        options.options = vec!["pid".into()];
        options.hostname = Some("loud".into());
        let odd = JobReturn { fun: "a b,".repeat(20), ..ret() };
        assert_eq!(
            text(options, &odd),
            format!(
                "<14>1 2026-12-01T03:41:39.637000Z loud salt-master 20261201033139637056 {} - {json}",
                "a_b,".repeat(8)
            )
        );
    }
}
