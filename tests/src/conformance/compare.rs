//! That all plugins answer alike: what differs is listed here, with its reason.

use serde_json::Value;

use super::Given;

/// Where a plugin answers otherwise than the rest, and why that is right.
#[derive(Debug)]
pub struct Difference {
    /// The plugin.
    pub plugin: &'static str,
    /// How the call begins: the case, the operation.
    pub call: &'static str,
    /// Whether two values differ in just this way.
    pub holds: fn(&Value, &Value) -> bool,
    /// The reason.
    pub reason: &'static str,
}

/// All differences that are known and right.
pub const DIFFERENCES: &[Difference] = &[Difference {
    plugin: "pgjsonb",
    call: "values_that_json_lacks_come_back_by_the_rules_of_the_contract get_jid",
    holds: |a, b| a.is_number() && a.as_f64() == b.as_f64(),
    reason: "`jsonb` keeps numbers as decimals, so that 1e16 comes back as 10000000000000000",
}];

/// What the answers of a plugin differ in from those of another, beyond the known: a line for each. Notes the known that were met.
pub fn compare(
    plugin: &str,
    answers: &[Given],
    other: &str,
    wanted: &[Given],
    met: &mut [bool],
) -> Vec<String> {
    let mut lines = Vec::new();
    let calls = |all: &[Given]| all.iter().map(|given| given.call.clone()).collect::<Vec<_>>();
    assert_eq!(calls(answers), calls(wanted), "`{plugin}` and `{other}` were not called alike");
    for (answer, wanted) in answers.iter().zip(wanted) {
        let mut places = Vec::new();
        differ(&answer.answer, &wanted.answer, String::new(), &mut places);
        for (place, found, wanted) in places {
            let known = |difference: &Difference| {
                [plugin, other].contains(&difference.plugin)
                    && answer.call.starts_with(difference.call)
                    && (difference.holds)(&found, &wanted)
            };
            match DIFFERENCES.iter().position(known) {
                Some(at) => met[at] = true,
                None => lines.push(format!(
                    "{}: `{place}` is {} with `{plugin}` and {} with `{other}`",
                    answer.call,
                    shortened(&found),
                    shortened(&wanted)
                )),
            }
        }
    }
    lines
}

/// The places at which two values differ, in value or type, with both.
fn differ(a: &Value, b: &Value, place: String, places: &mut Vec<(String, Value, Value)>) {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            for key in keys {
                let missing = Value::String("(absent)".to_owned());
                let of = |map: &serde_json::Map<String, Value>| map.get(key).unwrap_or(&missing).clone();
                differ(&of(a), &of(b), format!("{place}.{key}"), places);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (number, (a, b)) in a.iter().zip(b).enumerate() {
                differ(a, b, format!("{place}[{number}]"), places);
            }
        }
        _ if a == b => {}
        _ => places.push((place, a.clone(), b.clone())),
    }
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 200 { text } else { text.chars().take(200).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_in_type_is_one_and_the_order_of_keys_is_none() {
        let places = |a: Value, b: Value| {
            let mut places = Vec::new();
            differ(&a, &b, String::new(), &mut places);
            places.into_iter().map(|(place, _, _)| place).collect::<Vec<_>>()
        };
        assert_eq!(places(json!({"a": 1, "b": [true]}), json!({"b": [true], "a": 1})), Vec::<String>::new());
        assert_eq!(places(json!({"a": [1, 2]}), json!({"a": [1, 2.0], "c": null})), [".a[1]", ".c"]);
    }
}
