//! Making a value of Salt's configuration fit the type of an option. YAML gives numbers and booleans where text was
//! meant and the reverse; what can only mean one thing is accepted.

use serde_json::Value;

use crate::plugin::manifest::OptionType;

/// The value as the type has it, or none if it cannot be.
pub fn coerce(kind: OptionType, value: &Value) -> Option<Value> {
    match kind {
        OptionType::Text | OptionType::File => match value {
            Value::String(_) => Some(value.clone()),
            Value::Number(number) if kind == OptionType::Text => Some(Value::from(number.to_string())),
            _ => None,
        },
        OptionType::Integer => match value {
            Value::Number(number) if !number.is_f64() => Some(value.clone()),
            Value::Number(number) => number.as_f64().and_then(whole),
            Value::String(text) => text.trim().parse::<i64>().ok().map(Value::from),
            _ => None,
        },
        OptionType::Number => match value {
            Value::Number(_) => Some(value.clone()),
            Value::String(text) => match text.trim().parse::<i64>() {
                Ok(number) => Some(Value::from(number)),
                Err(_) => text.trim().parse().ok().and_then(serde_json::Number::from_f64).map(Value::Number),
            },
            _ => None,
        },
        OptionType::Boolean => match value {
            Value::Bool(_) => Some(value.clone()),
            Value::Number(number) => match number.as_i64() {
                Some(0) => Some(false.into()),
                Some(1) => Some(true.into()),
                _ => None,
            },
            Value::String(text) => match text.trim().to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "1" => Some(true.into()),
                "false" | "no" | "off" | "0" => Some(false.into()),
                _ => None,
            },
            _ => None,
        },
        OptionType::List => match value {
            Value::Array(_) => Some(value.clone()),
            Value::String(text) => {
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                Some(parts.map(Value::from).collect::<Vec<_>>().into())
            }
            Value::Number(_) => Some(vec![value.clone()].into()),
            _ => None,
        },
        OptionType::Map => value.is_object().then(|| value.clone()),
    }
}

// Beyond 2^53 a float no longer says which whole number was meant.
#[allow(clippy::cast_possible_truncation)]
fn whole(number: f64) -> Option<Value> {
    (number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0).then(|| Value::from(number as i64))
}

/// Whether the value means that nothing was set. For files that includes the texts `none` and, from YAML, `false`.
pub(super) fn is_unset(kind: OptionType, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => {
            text.is_empty() || (kind == OptionType::File && text.eq_ignore_ascii_case("none"))
        }
        Value::Bool(false) => kind == OptionType::File,
        _ => false,
    }
}

/// Whether Python takes the value as true.
pub(super) fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// What was found, for messages: of a secret only its type.
pub(super) fn found(value: &Value, secret: bool) -> String {
    let kind = match value {
        Value::Null => return "nothing".into(),
        Value::Bool(_) => "the boolean",
        Value::Number(_) => "the number",
        Value::String(_) => "the text",
        Value::Array(_) => return "a list".into(),
        Value::Object(_) => return "a map".into(),
    };
    if secret { format!("{kind} (hidden)") } else { format!("{kind} `{}`", plain(value)) }
}

/// A value as one would write it, cut if it is long.
pub(crate) fn plain(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if text.chars().count() <= 80 { text } else { text.chars().take(80).chain(['…']).collect() }
}

/// What to do about a value that does not fit.
pub(super) fn hint(kind: OptionType, value: &Value) -> &'static str {
    match (kind, value) {
        (OptionType::Text, Value::Bool(_)) => "put the value in quotes",
        (OptionType::Text, _) => "write plain text",
        (OptionType::File, _) => "write an absolute path",
        (OptionType::Integer, _) => "write digits only",
        (OptionType::Number, _) => "write a number",
        (OptionType::Boolean, _) => "write `true` or `false`",
        (OptionType::List, _) => "write a list, or text with commas",
        (OptionType::Map, _) => "write a map of keys and values",
    }
}
