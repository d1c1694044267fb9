//! What is said of a return, and how Slack wants it written.
//!
//! Invariants: a message is one block of code whose fences always stand, since nothing in it can be taken for a fence and it is cut
//! before they are put on; it is never longer than `max_text` as Slack counts it, at the worst.

use returner_sdk::JobReturn;
use returner_sdk_notify::slack::{FENCE, escaped, size};
use returner_sdk_notify::states::StateRun;
use returner_sdk_notify::text::{self, Lines};
use returner_sdk_notify::{FIND_JOB, python, yaml};

use crate::options::Settings;

/// State ids in a summary.
const MOST_IDS: usize = 20;

/// A return as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    lines: Lines,
    /// What a cut text says before the return.
    summary: Option<String>,
}

impl Message {
    /// What is to be said of a return; none if the options keep it back.
    pub(crate) fn of(ret: &JobReturn, settings: &Settings) -> Option<Self> {
        if ret.fun == FIND_JOB {
            return None;
        }
        let value = text::parsed(&ret.value);
        let run = StateRun::of(&value);
        let only = match &run {
            Some(run) if settings.changes => {
                Some(run.only(|state| state.changed || state.result != Some(true))?)
            }
            Some(run) if settings.only_show_failed => Some(run.only(|state| state.failed())?),
            None if settings.only_show_failed && ret.success == Some(true) => return None,
            _ => None,
        };
        let shown = only.as_ref().unwrap_or(&value);
        let shown = if settings.yaml_format { yaml(shown) } else { python::pretty(shown) };
        let summary = run.as_ref().map(summary);
        let mut lines = Lines::new(ret, shown);
        if only.is_some() {
            lines.summary.clone_from(&summary);
        }
        Some(Self { lines, summary })
    }

    /// The text without anything of Slack's.
    pub(crate) fn plain(&self) -> String {
        self.lines.whole()
    }

    /// Whether it fits into one message.
    pub(crate) fn fits(&self, max: usize) -> bool {
        size(&self.lines.whole()) <= room(max)
    }

    /// The text as Slack takes it, of at most `max` characters. `place` says where the whole of a cut one is.
    pub(crate) fn to_slack(&self, max: usize, place: &str) -> String {
        let lines = match self.fits(max) {
            true => self.lines.clone(),
            false => Lines { summary: self.summary.clone(), ..self.lines.clone() },
        };
        format!("{FENCE}{}{FENCE}", escaped(&lines.within(room(max), size, place)))
    }
}

fn summary(run: &StateRun<'_>) -> String {
    let mut text = run.counts().to_string();
    let ids = |failed: bool| {
        let states =
            run.states.iter().filter(move |s| if failed { s.failed() } else { s.changed && !s.failed() });
        text::names(states.map(|state| state.id), MOST_IDS)
    };
    for (what, ids) in [("failed", ids(true)), ("changed", ids(false))] {
        if !ids.is_empty() {
            text.push_str(&format!("; {what}: {ids}"));
        }
    }
    text
}

fn room(max: usize) -> usize {
    max.saturating_sub(2 * FENCE.len())
}

#[cfg(test)]
mod tests {
    use returner_sdk::serde_json::{Value, json};

    use super::*;
    use crate::options::Options;

    fn settings(change: impl FnOnce(&mut Options)) -> Settings {
        let mut options = Options { api_key: Some("xoxb-1".into()), ..Options::default() };
        change(&mut options);
        options.settings().unwrap()
    }

    fn ret(value: &Value) -> JobReturn {
        JobReturn {
            jid: "20261201033139637056".into(),
            minion: "m1".into(),
            resource_id: None,
            fun: "state.apply".into(),
            fun_args: r#"["web", {"a": true}]"#.into(),
            value: value.to_string(),
            document: "{}".into(),
            success: None,
            retcode: None,
            trimmed: false,
            arrived_ms: 0,
        }
    }

    /// Ten states: eight unchanged, one changed, one failed.
    fn run() -> Value {
        let state = |number: u32| {
            let changes = if number == 4 { json!({"diff": "new"}) } else { json!({}) };
            let state =
                json!({"result": number != 7, "changes": changes, "__run_num__": number, "comment": "c"});
            (format!("cmd_|-id{number}_|-n{number}_|-run"), state)
        };
        (0..10).map(state).collect::<returner_sdk::serde_json::Map<_, _>>().into()
    }

    fn text(value: &Value, change: impl FnOnce(&mut Options)) -> Option<String> {
        Message::of(&ret(value), &settings(change)).map(|message| message.to_slack(4_000, "nowhere"))
    }

    #[test]
    fn a_message_is_salts_text_in_a_block_of_code() {
        assert_eq!(
            text(&json!({"b": [true, null], "a": "x < y & z"}), |_| {}).unwrap(),
            "```id: m1\r\nfunction: state.apply\r\nfunction args: ['web', {'a': True}]\r\njid: 20261201033139637056\r\n\
             return: {'a': 'x &lt; y &amp; z', 'b': [True, None]}\r\n```"
        );
        let yaml = text(&json!({"b": ["x"], "a": true}), |options| options.yaml_format = true).unwrap();
        assert!(yaml.contains("return: b:\n- x\na: true\n"), "{yaml}");
    }

    #[test]
    fn each_filter_shows_only_its_states_and_both_together_show_all_of_them() {
        let failed = text(&run(), |options| options.only_show_failed = true).unwrap();
        let count = |text: &str| text.matches("_|-n").count();
        assert_eq!(count(&failed), 1);
        assert!(failed.contains(
            "summary: 10 states: 1 failed, 1 changed, 8 unchanged, in 0.00 s; failed: id7; changed: id4\r\n"
        ));
        let changed = text(&run(), |options| options.changes = true).unwrap();
        assert_eq!(
            (count(&changed), changed.contains("id4_|-"), changed.contains("id7_|-")),
            (2, true, true)
        );
        let both = text(&run(), |options| (options.changes, options.only_show_failed) = (true, true));
        assert_eq!(both.unwrap(), changed);
        assert_eq!(count(&text(&run(), |_| {}).unwrap()), 10);
    }

    #[test]
    fn a_run_without_anything_to_show_says_nothing() {
        let good = json!({"cmd_|-a_|-a_|-run": {"result": true, "changes": {}}});
        assert_eq!(text(&good, |options| options.only_show_failed = true), None);
        assert_eq!(text(&good, |options| options.changes = true), None);
        let test = json!({"cmd_|-a_|-a_|-run": {"result": null, "changes": {}}});
        assert_eq!(text(&test, |options| options.only_show_failed = true), None);
        assert!(text(&test, |options| options.changes = true).is_some());
    }

    #[test]
    fn a_function_without_states_is_shown_unless_it_is_known_to_be_good() {
        let settings = settings(|options| options.only_show_failed = true);
        let with = |success| Message::of(&JobReturn { success, ..ret(&json!("text")) }, &settings).is_some();
        assert_eq!([with(None), with(Some(false)), with(Some(true))], [true, true, false]);
        // A run that could not begin returns a list of texts.
        assert!(text(&json!(["no such sls"]), |options| options.changes = true).is_some());
    }

    #[test]
    fn salts_probes_are_not_told() {
        let probe = JobReturn { fun: "saltutil.find_job".into(), ..ret(&json!({})) };
        assert_eq!(Message::of(&probe, &settings(|_| {})), None);
    }

    #[test]
    fn whatever_a_return_holds_the_fences_stand_and_the_limit_is_kept() {
        let returns = [
            json!("`".repeat(50_000)),
            json!("<&>".repeat(20_000)),
            json!("```\r\n🚀".repeat(10_000)),
            json!({"a```": ["```", "````", "`", "``"]}),
            json!("x".repeat(50_000)),
        ];
        for value in &returns {
            for max in [500, 4_000, 40_000] {
                let text = Message::of(&ret(value), &settings(|_| {})).unwrap().to_slack(max, "see `x`");
                assert!(text.encode_utf16().count() <= max, "{} of {max}", text.encode_utf16().count());
                assert_eq!(text.matches("```").count(), 2, "{}", &text[..200]);
                assert!(text.starts_with("```id: m1\r\n") && text.ends_with("\r\n```"));
            }
        }
    }

    #[test]
    fn a_cut_state_run_keeps_its_summary() {
        let mut value = run();
        value["cmd_|-id0_|-n0_|-run"]["comment"] = json!("x".repeat(50_000));
        let text = text(&value, |_| {}).unwrap();
        assert!(text.contains("failed: id7; changed: id4\r\nreturn: {"), "{text}");
        assert!(text.contains("characters are left out; nowhere]\r\n```"), "{text}");
    }
}
