//! The manifest: what a plugin is called, which options it takes, and what it wants to reach.
//!
//! It is TOML, embedded in the plugin. Reading is strict: a key that is not known is refused, so that a misspelt
//! `required` cannot pass unseen. A manifest that was read is consistent: names are unique, defaults and choices fit
//! their types, and templates name options that exist.

use serde::{Deserialize, Serialize};
use serde_json::Value;

mod reach;
#[cfg(test)]
mod tests;

pub use reach::{Host, Origin, Target, Template, Wish, WishKind};

use crate::salt::options::{Resolved, coerce, own};

/// What a plugin says of itself.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The name by which Salt calls it: `[a-z0-9_]+`.
    pub name: String,
    /// Other names by which Salt may call it.
    pub aliases: Vec<String>,
    /// The plugin's version, such as `1.2.0`.
    pub version: String,
    /// One line for lists.
    pub summary: String,
    /// What stands before an option in Salt's configuration: `mysql`, `returner.pgjsonb`.
    pub prefix: String,
    /// The options, in the order of the manifest.
    pub options: Vec<OptionSpec>,
    /// What the plugin wants to reach.
    pub reach: Vec<Template>,
    /// How much it wants at once.
    pub batch: Batch,
    /// How many instances of it may run.
    pub instance: Instance,
}

/// One option of a plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptionSpec {
    /// The plugin's own name for it, also the one that `ret_kwargs` uses: `[a-z0-9_]+`.
    pub name: String,
    /// What Salt's configuration calls it, after the prefix; the name if left out.
    #[serde(default)]
    pub attr: String,
    /// The type of its value.
    #[serde(rename = "type")]
    pub kind: OptionType,
    /// The value if nobody sets one.
    #[serde(default)]
    pub default: Option<Value>,
    /// Whether the plugin cannot work without it.
    #[serde(default)]
    pub required: bool,
    /// Whether its value must not be shown.
    #[serde(default)]
    pub secret: bool,
    /// One line for people.
    #[serde(default)]
    pub doc: String,
    /// The only values allowed, if not empty.
    #[serde(default)]
    pub choices: Vec<Value>,
    /// The setting of Salt's own, such as `keep_jobs_seconds`, whose value it takes where nobody writes the option; in a text such as
    /// `{cachedir}/jobs` it stands in braces. What such a value names is granted only by a line of `allow`, like a default.
    #[serde(default)]
    pub from_salt: Option<String>,
}

/// The type of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptionType {
    /// Text.
    Text,
    /// A whole number of 64 bits.
    Integer,
    /// A number, whole or not.
    Number,
    /// True or false.
    Boolean,
    /// A list of anything.
    List,
    /// A map of anything.
    Map,
    /// The path of a file whose text the host gives to the plugin.
    File,
}

impl OptionSpec {
    /// One line for people: the key in Salt's configuration, type, default and meaning.
    pub fn line(&self, prefix: &str) -> String {
        let mut line = format!("{prefix}.{}: {}", self.attr, self.kind.described());
        match (&self.default, self.required) {
            (_, true) => line.push_str(", required"),
            (Some(_), _) if self.secret => line.push_str(", has a default"),
            (Some(default), _) => {
                line.push_str(&format!(", default `{}`", crate::salt::options::plain(default)))
            }
            (None, false) => {}
        }
        if let Some(setting) = &self.from_salt {
            line.push_str(&format!(", else Salt's `{setting}`"));
        }
        if self.secret {
            line.push_str(", secret");
        }
        if !self.doc.is_empty() {
            line.push_str(&format!(". {}", self.doc));
        }
        line
    }
}

impl OptionType {
    /// The type with its article, for messages.
    pub fn described(self) -> &'static str {
        match self {
            OptionType::Text => "text",
            OptionType::Integer => "a whole number",
            OptionType::Number => "a number",
            OptionType::Boolean => "true or false",
            OptionType::List => "a list",
            OptionType::Map => "a map",
            OptionType::File => "the path of a file",
        }
    }
}

/// How much a plugin wants at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Batch {
    /// At most this many records in one call.
    pub max_items: u32,
    /// At most this many bytes of documents in one call, as far as one record is not more. A return's value, which stands within its
    /// document, counts once.
    pub max_bytes: u64,
    /// A record waits at most this many milliseconds for others.
    pub max_age_ms: u32,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch { max_items: 500, max_bytes: 4 << 20, max_age_ms: 200 }
    }
}

/// How many instances may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Instance {
    /// At most this many per sink; one for a plugin that must be alone, such as on a file.
    pub max: Option<u32>,
}

/// Why a text is no manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It is not TOML.
    #[error("the manifest is not TOML")]
    Toml(#[source] Box<toml::de::Error>),
    /// A key has a value of the wrong type, or is missing.
    #[error("{place} of the manifest cannot be read")]
    Shape {
        /// Which part.
        place: String,
        /// What is wrong.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// A key means nothing.
    #[error("{place} of the manifest has the unknown key `{key}`{}", hint(.nearest))]
    UnknownKey {
        /// Which part.
        place: String,
        /// The key.
        key: String,
        /// The known key that is most alike.
        nearest: Option<String>,
    },
    /// A value makes no sense.
    #[error("{place} of the manifest: {why}")]
    Invalid {
        /// Which part.
        place: String,
        /// What is wrong.
        why: String,
    },
}

fn hint(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("; hint: did you mean `{name}`?")).unwrap_or_default()
}

const KEYS: [&str; 9] =
    ["name", "aliases", "version", "summary", "prefix", "option", "reach", "batch", "instance"];
const OPTION_KEYS: [&str; 9] =
    ["name", "attr", "type", "default", "required", "secret", "doc", "choices", "from_salt"];
const BATCH_KEYS: [&str; 3] = ["max_items", "max_bytes", "max_age_ms"];
const INSTANCE_KEYS: [&str; 1] = ["max"];

#[derive(Deserialize)]
struct Raw {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    version: String,
    summary: String,
    prefix: Option<String>,
    #[serde(default, rename = "option")]
    options: Vec<toml::Value>,
    #[serde(default)]
    reach: Vec<String>,
    #[serde(default)]
    batch: Batch,
    #[serde(default)]
    instance: Instance,
}

impl Manifest {
    /// Reads and checks a manifest.
    pub fn parse(text: &str) -> Result<Manifest, ManifestError> {
        let table: toml::Table = text.parse().map_err(|error| ManifestError::Toml(Box::new(error)))?;
        check_keys("the top level", &table, &KEYS)?;
        for (key, known) in [("batch", &BATCH_KEYS[..]), ("instance", &INSTANCE_KEYS[..])] {
            if let Some(part) = table.get(key).and_then(toml::Value::as_table) {
                check_keys(&format!("`[{key}]`"), part, known)?;
            }
        }
        let shape = |place: &str| {
            let place = place.to_owned();
            move |error| ManifestError::Shape { place, source: Box::new(error) }
        };
        let raw: Raw = toml::Value::Table(table).try_into().map_err(shape("the top level"))?;

        let mut options = Vec::new();
        for (at, value) in raw.options.into_iter().enumerate() {
            let name = value.get("name").and_then(toml::Value::as_str).map(|name| format!("option `{name}`"));
            let place = name.unwrap_or_else(|| format!("option {}", at + 1));
            if let Some(part) = value.as_table() {
                check_keys(&place, part, &OPTION_KEYS)?;
            }
            options.push(check_option(value.try_into().map_err(shape(&place))?)?);
        }
        let reach = raw.reach.iter().map(|text| Template::parse(text, &options)).collect::<Result<_, _>>()?;
        let manifest = Manifest {
            prefix: raw.prefix.unwrap_or_else(|| raw.name.clone()),
            name: raw.name,
            aliases: raw.aliases,
            version: raw.version,
            summary: raw.summary,
            options,
            reach,
            batch: raw.batch,
            instance: raw.instance,
        };
        manifest.check()?;
        Ok(manifest)
    }

    /// All names by which Salt may call the plugin.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.aliases).map(String::as_str)
    }

    /// The option of that name.
    pub fn option(&self, name: &str) -> Option<&OptionSpec> {
        self.options.iter().find(|option| option.name == name)
    }

    /// The templates of what the plugin wants to reach, as they are written.
    pub fn reach_texts(&self) -> Vec<String> {
        self.reach.iter().map(Template::to_string).collect()
    }

    /// What the plugin wants to reach with these options. A wish whose options are not set is left out.
    pub fn wishes(&self, resolved: &Resolved) -> Vec<Wish> {
        self.expand(resolved).0
    }

    /// The wishes, and a message for each that the options make nonsense of.
    pub fn expand(&self, resolved: &Resolved) -> (Vec<Wish>, Vec<String>) {
        let (mut wishes, mut problems) = (Vec::new(), Vec::new());
        for found in self.reach.iter().flat_map(|template| template.expand(resolved)) {
            match found {
                Ok(wish) if !wishes.contains(&wish) => wishes.push(wish),
                Ok(_) => {}
                Err(problem) => problems.push(problem),
            }
        }
        (wishes, problems)
    }

    fn check(&self) -> Result<(), ManifestError> {
        for name in self.names() {
            ensure(is_name(name), "the top level", || {
                format!("the name `{name}` is not made of a-z, 0-9 and _")
            })?;
        }
        unique(self.names(), "the top level", "name")?;
        unique(self.options.iter().map(|option| option.name.as_str()), "`[[option]]`", "name")?;
        unique(self.options.iter().map(|option| option.attr.as_str()), "`[[option]]`", "attr")?;
        let prefix = &self.prefix;
        ensure(prefix.split('.').all(is_name), "the top level", || {
            format!("the prefix `{prefix}` is not made of names (a-z, 0-9 and _) joined by dots")
        })?;
        let core = self.version.split(['-', '+']).next().unwrap_or_default();
        let numbers = core.split('.').filter(|part| part.parse::<u32>().is_ok()).count();
        ensure(numbers == 3 && core.split('.').count() == 3, "the top level", || {
            format!("the version `{}` is not like `1.2.3`", self.version)
        })?;
        let Batch { max_items, max_bytes, .. } = self.batch;
        ensure(max_items > 0 && max_bytes > 0, "`[batch]`", || {
            "`max_items` and `max_bytes` cannot be 0".into()
        })?;
        ensure(self.instance.max != Some(0), "`[instance]`", || "`max` cannot be 0".into())
    }
}

fn check_option(mut option: OptionSpec) -> Result<OptionSpec, ManifestError> {
    let place = format!("option `{}`", option.name);
    ensure(is_name(&option.name), &place, || "the name is not made of a-z, 0-9 and _".into())?;
    if option.attr.is_empty() {
        option.attr = option.name.clone();
    }
    ensure(option.attr.split('.').all(is_name), &place, || {
        format!("the attr `{}` is not made of names (a-z, 0-9 and _) joined by dots", option.attr)
    })?;
    ensure(!(option.required && option.default.is_some()), &place, || {
        "it is required, so its default would never be used".into()
    })?;
    if let Some(setting) = &option.from_salt {
        ensure(own::is_known(setting), &place, || {
            let names = own::NAMES.map(|name| format!("`{name}`")).join(", ");
            format!(
                "`from_salt` is `{setting}`, which is no setting of Salt's that can be taken; hint: there are {names}"
            )
        })?;
    }
    let kind = option.kind;
    let misfit = |what: &str| format!("the {what} is not {}", kind.described());
    for choice in &mut option.choices {
        *choice = exactly(kind, choice).ok_or_else(|| invalid(&place, misfit("choice")))?;
    }
    if let Some(default) = &mut option.default {
        *default = exactly(kind, default).ok_or_else(|| invalid(&place, misfit("default")))?;
        ensure(option.choices.is_empty() || option.choices.contains(default), &place, || {
            "the default is none of the choices".into()
        })?;
    }
    Ok(option)
}

/// A value that has the type already; a manifest must not rely on what is forgiven to configuration files.
fn exactly(kind: OptionType, value: &Value) -> Option<Value> {
    coerce(kind, value).filter(|coerced| coerced == value || (coerced.is_number() && value.is_number()))
}

fn check_keys(place: &str, table: &toml::Table, known: &[&str]) -> Result<(), ManifestError> {
    match table.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => Err(ManifestError::UnknownKey {
            place: place.to_owned(),
            key: key.clone(),
            nearest: nearest(key, known.iter().copied()).map(str::to_owned),
        }),
    }
}

fn unique<'a>(names: impl Iterator<Item = &'a str>, place: &str, what: &str) -> Result<(), ManifestError> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        ensure(seen.insert(name), place, || format!("the {what} `{name}` stands twice"))?;
    }
    Ok(())
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

fn ensure(good: bool, place: &str, why: impl FnOnce() -> String) -> Result<(), ManifestError> {
    if good { Ok(()) } else { Err(invalid(place, why())) }
}

fn invalid(place: &str, why: String) -> ManifestError {
    ManifestError::Invalid { place: place.to_owned(), why }
}

/// The known name that is most alike, if one is so alike that it may have been meant.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(1) + 1;
    let distances = known.into_iter().map(|other| (distance(name, other), other));
    distances
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// How many characters must be changed, added or removed.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, a) in from.chars().take(64).enumerate() {
        let mut above_left = at;
        let mut left = at + 1;
        for (cell, b) in row.iter_mut().skip(1).zip(&to) {
            let best = (above_left + usize::from(a != *b)).min(*cell + 1).min(left + 1);
            above_left = std::mem::replace(cell, best);
            left = best;
        }
        if let Some(first) = row.first_mut() {
            *first = at + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}
