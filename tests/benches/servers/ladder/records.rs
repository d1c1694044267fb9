//! The returns that are handed over: values of 1 KiB, of jobs with a thousand minions, no key twice.

use returner_sdk::JobReturn;
use serde_json::{Value, json};

/// Bytes of the return value.
const SIZE: usize = 1024;
const MINIONS: usize = 1_000;

/// Makes returns.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    made: usize,
}

impl Returns {
    fn key(&mut self) -> (String, String) {
        let at = self.made;
        self.made += 1;
        (format!("20261201{:012}", at / MINIONS), format!("minion-{}.example.com", at % MINIONS))
    }

    /// The next ones, as plugins get them.
    pub(crate) fn next(&mut self, count: usize) -> Vec<JobReturn> {
        let value = format!("\"{}\"", text());
        let make = |(jid, minion): (String, String)| JobReturn {
            document: format!(
                r#"{{"jid": "{jid}", "id": "{minion}", "fun": "cmd.run", "fun_args": ["true"], "return": {value}, "retcode": 0, "success": true}}"#
            ),
            jid,
            minion,
            resource_id: None,
            fun: "cmd.run".into(),
            fun_args: "[\"true\"]".into(),
            value: value.clone(),
            success: Some(true),
            retcode: Some(0),
            trimmed: false,
            arrived_ms: 1_796_095_899_000,
        };
        (0..count).map(|_| make(self.key())).collect()
    }

    /// The next one as Salt has it.
    pub(crate) fn next_of_salt(&mut self) -> Value {
        let (jid, id) = self.key();
        json!({
            "jid": jid, "id": id, "fun": "cmd.run", "fun_args": ["true"], "return": text(), "retcode": 0, "success": true,
        })
    }
}

fn text() -> String {
    "0123456789abcde ".repeat(SIZE / 16)
}
