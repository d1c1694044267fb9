//! The text that Salt's notifiers send of a return, and how it is cut where a message has a limit.
//!
//! Invariants: what fits is the same text as Salt's, to the letter; what does not fit says how much is missing and how to get
//! it, and a cut is never inside a character.

use returner_sdk::JobReturn;
use returner_sdk::json;
use returner_sdk::serde_json::Value;

use crate::python;

/// The parts of a return's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lines {
    /// The minion, or the resource that answered.
    pub id: String,
    /// The function.
    pub fun: String,
    /// The arguments as Python shows them.
    pub args: String,
    /// The job.
    pub jid: String,
    /// What is said before the value, such as the counts of a state run. Salt's texts have no such line.
    pub summary: Option<String>,
    /// The value, already as text.
    pub value: String,
}

impl Lines {
    /// A return, with its value as text.
    pub fn new(ret: &JobReturn, value: String) -> Self {
        Self {
            id: ret.stored_id().to_owned(),
            fun: ret.fun.clone(),
            args: python::repr(&parsed(&ret.fun_args)),
            jid: ret.jid.clone(),
            summary: None,
            value,
        }
    }

    /// The whole text. Each line ends in CR and LF.
    pub fn whole(&self) -> String {
        self.with(&self.args, &self.value)
    }

    /// The text with at most `room` units, as `measure` counts them; that is told where something is missing. `place` says where the
    /// whole is to be found.
    pub fn within(&self, room: usize, measure: impl Fn(&str) -> usize, place: &str) -> String {
        let whole = self.whole();
        if measure(&whole) <= room {
            return whole;
        }
        let args = cut(&self.args, room / 8, &measure);
        let args = if args.len() < self.args.len() { format!("{args}…") } else { self.args.clone() };
        let all = self.value.chars().count();
        let note = |shown: usize| format!("\r\n[{} of {all} characters are left out; {place}]", all - shown);
        let frame = measure(&self.with(&args, &note(0)));
        let shown = cut(&self.value, room.saturating_sub(frame), &measure);
        // A whole line less is better to read than half a line more.
        let shown = match shown.rfind('\n') {
            Some(end) if shown.len() - end < 200 && end > shown.len() / 2 => {
                shown[..end].trim_end_matches('\r')
            }
            _ => shown,
        };
        let note = if shown.len() < self.value.len() { note(shown.chars().count()) } else { String::new() };
        let text = self.with(&args, &format!("{shown}{note}"));
        // Only ids and function names without end could still be too long.
        cut(&text, room, &measure).to_owned()
    }

    fn with(&self, args: &str, value: &str) -> String {
        let Self { id, fun, jid, summary, .. } = self;
        let summary = summary.as_ref().map(|text| format!("summary: {text}\r\n")).unwrap_or_default();
        format!(
            "id: {id}\r\nfunction: {fun}\r\nfunction args: {args}\r\njid: {jid}\r\n{summary}return: {value}\r\n"
        )
    }
}

/// JSON as a value. What is none is shown as the text it is.
pub fn parsed(text: &str) -> Value {
    json::parse(text).unwrap_or_else(|| Value::String(text.to_owned()))
}

/// The longest beginning of a text that measures at most `room`. `measure` must grow with the text, and by what it gives for the
/// parts.
pub fn cut(text: &str, room: usize, measure: impl Fn(&str) -> usize) -> &str {
    let mut left = room;
    for (at, c) in text.char_indices() {
        let size = measure(c.encode_utf8(&mut [0; 4]));
        if size > left {
            return &text[..at];
        }
        left -= size;
    }
    text
}

/// A list of names in one line, with how many are left out beyond `most`.
pub fn names<'a>(names: impl IntoIterator<Item = &'a str>, most: usize) -> String {
    let all: Vec<&str> = names.into_iter().collect();
    let shown = all[..all.len().min(most)].join(", ");
    if all.len() > most { format!("{shown} and {} more", all.len() - most) } else { shown }
}

/// A title with the keys of a return's document in braces filled in: `{id} | Succeeded`. What is no key stays as it is.
pub fn expand(title: &str, document: &Value) -> String {
    let mut out = String::with_capacity(title.len() + 32);
    let mut rest = title;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        let found = after.split_once('}').and_then(|(key, after)| Some((document.get(key)?, after)));
        match found {
            Some((value, after)) => {
                match value {
                    Value::String(text) => out.push_str(text),
                    other => out.push_str(&python::repr(other)),
                }
                rest = after;
            }
            None => {
                out.push('{');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use returner_sdk::serde_json::json as value;

    use super::*;

    fn lines(text: impl Into<String>) -> Lines {
        let args = "['a', True]".to_owned();
        let (id, fun, jid) = ("m1".to_owned(), "test.echo".to_owned(), "20261201033139637056".to_owned());
        Lines { id, fun, args, jid, summary: None, value: text.into() }
    }

    fn count(text: &str) -> usize {
        text.chars().count()
    }

    #[test]
    fn a_text_is_salts_to_the_letter() {
        assert_eq!(
            lines("True").whole(),
            "id: m1\r\nfunction: test.echo\r\nfunction args: ['a', True]\r\njid: 20261201033139637056\r\nreturn: True\r\n"
        );
        assert_eq!(lines("True").within(1_000, count, "nowhere"), lines("True").whole());
    }

    #[test]
    fn a_cut_text_says_what_is_missing_and_where_the_rest_is() {
        let long = "ü".repeat(5_000);
        for room in [200, 333, 1_000] {
            let text = lines(&long).within(room, count, "see `x`");
            assert!(count(&text) <= room && count(&text) + 20 > room, "{} of {room}", count(&text));
            let shown = text.matches('ü').count();
            assert!(
                text.ends_with(&format!(
                    "\r\n[{} of 5000 characters are left out; see `x`]\r\n",
                    5_000 - shown
                ))
            );
        }
        let lined = lines("a line of the text\n".repeat(500)).within(1_000, count, "see");
        assert!(lined.contains("text\r\n["), "it ends at a line: {lined}");
    }

    #[test]
    fn arguments_without_end_leave_room_for_the_return() {
        let mut lines = lines("r".repeat(1_000));
        lines.args = "a".repeat(10_000);
        let text = lines.within(1_000, count, "see");
        assert!(
            count(&text) <= 1_000 && text.contains("a…\r\njid: ") && text.contains("return: rrr"),
            "{text}"
        );
        lines.value = "True".into();
        assert!(lines.within(1_000, count, "see").ends_with("return: True\r\n"));
    }

    #[test]
    fn titles_are_filled_in_and_unknown_keys_stay() {
        let document = value!({"id": "m1", "retcode": 2, "fun": "a.b", "ok": true});
        assert_eq!(expand("{id} | {fun} {retcode} {ok}", &document), "m1 | a.b 2 True");
        assert_eq!(expand("{host} {id} {", &document), "{host} m1 {");
        assert_eq!(expand("{{id}}", &document), "{m1}");
    }

    #[test]
    fn names_beyond_a_number_are_counted() {
        assert_eq!(names(["a", "b"], 2), "a, b");
        assert_eq!(names(["a", "b", "c", "d"], 2), "a, b and 2 more");
    }
}
