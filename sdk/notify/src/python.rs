//! Values as Python shows them, since Salt's notifiers write what `repr` and `pprint.pformat` give.
//!
//! Invariants: [`pretty`] is at most [`WIDTH`] columns wide where a value can be broken; time and stack grow with the value's size
//! and depth only.

use returner_sdk::serde_json::{Map, Number, Value};

/// Columns of a line, as `pprint` has them.
pub const WIDTH: usize = 80;

/// A value as `repr` gives it: `{'a': True, 'b': [None, 1.5]}`.
pub fn repr(value: &Value) -> String {
    let mut out = Line { text: String::new(), left: usize::MAX };
    out.value(value, false);
    out.text
}

/// A value as `pprint.pformat` gives it: keys in their order, broken into lines.
pub fn pretty(value: &Value) -> String {
    let mut out = Pretty { text: String::new() };
    out.value(value, 0, 0, 0);
    out.text
}

/// A text as `repr` gives it, in single quotes unless it holds such and no double ones.
pub fn repr_text(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => out.push_str(&match u32::from(c) {
                code @ ..0x100 => format!("\\x{code:02x}"),
                code @ ..0x1_0000 => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
        }
    }
    out.push(quote);
    out
}

/// The blocks that Python's `isprintable` denies: controls, formats, spaces other than the usual one, private use. Code points that
/// no version of Unicode has assigned yet count as printable here.
fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            '\u{a0}' | '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{1680}' | '\u{180e}'
                | '\u{2000}'..='\u{200f}' | '\u{2028}'..='\u{202f}' | '\u{205f}'..='\u{206f}' | '\u{3000}'
                | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
                | '\u{f0000}'..
        )
}

fn number(number: &Number) -> String {
    match number.as_f64().filter(|_| number.is_f64()) {
        None => number.to_string(),
        Some(float) => {
            // The shortest digits and the exponent; Python writes the latter from 1e16 and below 1e-4.
            let scientific = format!("{float:e}");
            let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
            let exponent: i32 = exponent.parse().unwrap_or(0);
            if (-4..16).contains(&exponent) {
                let plain = float.to_string();
                if plain.contains('.') { plain } else { plain + ".0" }
            } else {
                let sign = if exponent < 0 { '-' } else { '+' };
                format!("{digits}e{sign}{:02}", exponent.abs())
            }
        }
    }
}

/// The entries in the order in which `pprint` shows them.
fn sorted(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    entries
}

/// One line that ends early once it is too long.
struct Line {
    text: String,
    left: usize,
}

impl Line {
    /// Whether there is room for more.
    fn push(&mut self, text: &str) -> bool {
        let length = text.chars().count();
        let fits = length <= self.left;
        self.left = self.left.saturating_sub(length);
        if fits {
            self.text.push_str(text);
        }
        fits
    }

    fn value(&mut self, value: &Value, sort: bool) -> bool {
        match value {
            Value::Null => self.push("None"),
            Value::Bool(true) => self.push("True"),
            Value::Bool(false) => self.push("False"),
            Value::Number(n) => self.push(&number(n)),
            // Its representation is no shorter than itself.
            Value::String(text) if text.len() / 4 > self.left => false,
            Value::String(text) => self.push(&repr_text(text)),
            Value::Array(items) => {
                let mut fits = self.push("[");
                for (at, item) in items.iter().enumerate() {
                    fits = fits && (at == 0 || self.push(", ")) && self.value(item, sort);
                    if !fits {
                        return false;
                    }
                }
                fits && self.push("]")
            }
            Value::Object(map) => {
                let entries = if sort { sorted(map) } else { map.iter().collect() };
                let mut fits = self.push("{");
                for (at, (key, value)) in entries.into_iter().enumerate() {
                    fits = fits && (at == 0 || self.push(", ")) && self.push(&repr_text(key));
                    fits = fits && self.push(": ") && self.value(value, sort);
                    if !fits {
                        return false;
                    }
                }
                fits && self.push("}")
            }
        }
    }
}

/// Many lines, by the rules of `pprint`: what fits into the rest of a line stands on it, else a container has a line for each of its
/// entries and a text one for each of its lines, broken further at white space. `indent` is the column, `allowance` what must
/// follow on the last line.
struct Pretty {
    text: String,
}

impl Pretty {
    fn value(&mut self, value: &Value, indent: usize, allowance: usize, level: usize) {
        let room = WIDTH.saturating_sub(indent + allowance);
        let mut line = Line { text: String::new(), left: room };
        if line.value(value, true) {
            self.text.push_str(&line.text);
            return;
        }
        match value {
            Value::Array(items) if !items.is_empty() => {
                self.text.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        self.next_line(indent + 1);
                    }
                    let after = if at + 1 == items.len() { allowance + 1 } else { 1 };
                    self.value(item, indent + 1, after, level + 1);
                }
                self.text.push(']');
            }
            Value::Object(map) if !map.is_empty() => {
                self.text.push('{');
                let entries = sorted(map);
                let last = entries.len() - 1;
                for (at, (key, value)) in entries.into_iter().enumerate() {
                    if at > 0 {
                        self.next_line(indent + 1);
                    }
                    let key = repr_text(key);
                    let column = indent + 1 + key.chars().count() + 2;
                    self.text.push_str(&key);
                    self.text.push_str(": ");
                    self.value(value, column, if at == last { allowance + 1 } else { 1 }, level + 1);
                }
                self.text.push('}');
            }
            Value::String(text) => self.long_text(text, indent, allowance, level),
            other => self.text.push_str(&repr(other)),
        }
    }

    fn next_line(&mut self, indent: usize) {
        self.text.push_str(",\n");
        self.text.extend(std::iter::repeat_n(' ', indent));
    }

    fn long_text(&mut self, text: &str, indent: usize, allowance: usize, level: usize) {
        let bracket = usize::from(level == 0);
        let (indent, allowance) = (indent + bracket, allowance + bracket);
        let room = WIDTH.saturating_sub(indent);
        let mut chunks = Vec::new();
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        for (at, line) in lines.iter().enumerate() {
            let is_last = at + 1 == lines.len();
            let whole = repr_text(line);
            if whole.chars().count() <= room.saturating_sub(if is_last { allowance } else { 0 }) {
                chunks.push(whole);
                continue;
            }
            let words = words(line);
            let mut current = String::new();
            for (number, word) in words.iter().enumerate() {
                let ends = is_last && number + 1 == words.len();
                let room = room.saturating_sub(if ends { allowance } else { 0 });
                if !current.is_empty() && repr_text(&format!("{current}{word}")).chars().count() > room {
                    chunks.push(repr_text(&current));
                    current.clear();
                }
                current.push_str(word);
            }
            chunks.push(repr_text(&current));
        }
        let inside = chunks.len() > 1 && level == 0;
        self.text.push_str(if inside { "(" } else { "" });
        let gap = format!("\n{}", " ".repeat(indent));
        self.text.push_str(&chunks.join(&gap));
        self.text.push_str(if inside { ")" } else { "" });
    }
}

/// A line as words, each with the white space behind it.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut start, mut in_space) = (0, false);
    for (at, c) in line.char_indices() {
        if in_space && !c.is_whitespace() {
            words.push(&line[start..at]);
            start = at;
        }
        in_space = c.is_whitespace();
    }
    words.push(&line[start..]);
    words
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use returner_sdk::json;
    use returner_sdk::serde_json::json as value;

    use super::*;

    #[test]
    fn values_look_as_in_python() {
        let all = value!({"a": true, "b": [null, 1, 1.0, 1.5e300, 1e16, 1e-5, 0.0001], "it's": "say \"hi\"\n\u{7}"});
        assert_eq!(
            repr(&all),
            "{'a': True, 'b': [None, 1, 1.0, 1.5e+300, 1e+16, 1e-05, 0.0001], \"it's\": 'say \"hi\"\\n\\x07'}"
        );
        assert_eq!(repr_text("it's \"both\" ü🚀\u{200b}"), "'it\\'s \"both\" ü🚀\\u200b'");
    }

    #[test]
    fn pretty_values_are_what_pprint_gives() {
        let words = "lorem ipsum dolor sit amet ".repeat(12);
        let cases = [
            value!({"b": 1, "a": {"z": [1, 2, 3], "y": "short"}}),
            value!([]),
            value!({}),
            value!(words),
            value!(format!("first line\nsecond line\n{words}\nlast")),
            value!("x".repeat(300)),
            value!({"key": words, "other": ["a".repeat(50), "b".repeat(50), {"deep": words}]}),
            value!({"pkg_|-nginx_|-nginx_|-installed": {
                "result": false, "changes": {}, "comment": "The package could not be installed: no space left on device",
                "__run_num__": 3, "duration": 12.5, "start_time": "12:00:00.000001", "name": "nginx", "__sls__": "web"}}),
            value!((0..60).collect::<Vec<_>>()),
            value!([["a".repeat(30), "b".repeat(30), "c".repeat(30)], "d".repeat(79), "e e ".repeat(30)]),
            value!({"it's": "tab\there and a \"quote\" and more text than one line can hold, so it is broken", "n": null}),
            value!({"trailing": format!("{}\n", "word ".repeat(20))}),
        ];
        for case in cases {
            assert_eq!(pretty(&case), pformat(&case), "{case}");
        }
    }

    fn pformat(value: &Value) -> String {
        const SCRIPT: &str =
            "import json, pprint, sys; sys.stdout.write(pprint.pformat(json.loads(sys.stdin.read())))";
        let python = returnerd_tests::env::salt_bin("3008.4").join("python");
        let mut child = Command::new(python)
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), value.to_string().as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    }

    #[test]
    fn deep_and_large_values_take_no_time() {
        let deep = json::parse(&format!("{}1{}", "[".repeat(1000), "]".repeat(1000))).unwrap();
        assert!(pretty(&deep).len() >= 2001);
        let large = Value::Array(vec![value!({"a": "x".repeat(1000)}); 5_000]);
        assert!(pretty(&large).len() > 5_000_000);
    }
}
