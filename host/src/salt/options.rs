//! Options of a returner, found in Salt's own order.
//!
//! Salt looks for an option under several keys in several places; the first place that has a key wins, and nothing
//! is merged. In order: `ret_kwargs`; an option `profile`; with `ret_config` the map `<ret_config>.<prefix>` and the
//! key `<ret_config>.<prefix>.<attr>`, unless what they hold is false, zero or empty; the map `<prefix>`; the key
//! `<prefix>.<attr>`; `[plugin.NAME.options]` of returnerd.toml, by the option's name; for an option `from_salt` the setting of Salt's
//! own that it names; the default. Each key is looked up in the config, the grains, the pillar, and the master's
//! config in the pillar. None and empty text count as not set; false and zero are values.
//!
//! Two things differ from Salt on purpose: an entry of the wrong shape is passed over instead of raising an error,
//! and an attribute missing from a `profile` leaves what was found before.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::frame::{Envelope, Role};
use crate::plugin::manifest::{Manifest, OptionSpec, OptionType, nearest};

mod coerce;
pub mod own;
#[cfg(test)]
mod tests;

pub use coerce::coerce;
pub(crate) use coerce::plain;
use coerce::{found, is_truthy, is_unset};

/// The sources of options: top-level entries of Salt's dictionaries, as the shim sends them.
// Also `Eq`, with which `Arc`s of the same one are equal at once.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Layers {
    /// The config of the minion or master.
    pub opts: Map<String, Value>,
    /// The grains.
    pub grains: Map<String, Value>,
    /// The pillar.
    pub pillar: Map<String, Value>,
    /// The master's config in the pillar, with `pillar_opts`.
    pub master: Option<Map<String, Value>>,
}

/// One of the places where an option can stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// The config of the minion or master.
    Opts,
    /// The grains.
    Grains,
    /// The pillar.
    Pillar,
    /// The master's config in the pillar.
    PillarMaster,
    /// Given with the job.
    Kwargs,
    /// `[plugin.NAME.options]` of returnerd.toml.
    Daemon,
    /// A setting of Salt's own in its config.
    Salt,
    /// The manifest's default.
    Default,
}

impl Layer {
    fn named(self, role: Role) -> String {
        match self {
            Layer::Opts | Layer::Salt => format!("the {role} config"),
            Layer::Grains => "the grains".into(),
            Layer::Pillar => "the pillar".into(),
            Layer::PillarMaster => "the master config in the pillar".into(),
            Layer::Kwargs => "the job's `ret_kwargs`".into(),
            Layer::Daemon => "returnerd.toml".into(),
            Layer::Default => "the manifest's default".into(),
        }
    }
}

impl Layers {
    fn all(&self) -> impl Iterator<Item = (Layer, &Map<String, Value>)> {
        [(Layer::Opts, &self.opts), (Layer::Grains, &self.grains), (Layer::Pillar, &self.pillar)]
            .into_iter()
            .chain(self.master.as_ref().map(|master| (Layer::PillarMaster, master)))
    }

    fn find(&self, key: &str) -> Option<(Layer, &Value)> {
        self.all().find_map(|(layer, map)| map.get(key).map(|value| (layer, value)))
    }
}

/// Where the value of an option comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The place.
    pub layer: Layer,
    /// The key there, with a map's keys after a colon: `mysql.port` or `mysql:port`.
    pub key: String,
    /// The place for people: "`mysql.port` in the minion config".
    pub shown: String,
}

/// What is asked for.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// The sources.
    pub layers: &'a Layers,
    /// The profile named with the job.
    pub ret_config: Option<&'a str>,
    /// The overrides given with the job.
    pub ret_kwargs: Option<&'a Map<String, Value>>,
    /// Whose config `opts` is.
    pub role: Role,
    /// What is used where Salt's configuration has nothing, by the options' names.
    pub fallback: Option<&'a Map<String, Value>>,
    /// Salt's own settings, those of [`own`] and any others.
    pub salt: Option<&'a Map<String, Value>>,
}

impl<'a> From<&'a Envelope> for Asked<'a> {
    fn from(envelope: &'a Envelope) -> Asked<'a> {
        Asked {
            layers: &envelope.layers,
            ret_config: envelope.ret_config.as_deref().filter(|name| !name.is_empty()),
            ret_kwargs: envelope.ret_kwargs.as_ref(),
            role: envelope.role,
            fallback: None,
            salt: Some(&envelope.salt),
        }
    }
}

/// Options as a plugin gets them.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Resolved {
    /// The options that have a value, by name, in the order of the manifest. Of type `file` the path stands here.
    pub values: Map<String, Value>,
    /// Where each value comes from, by name.
    pub origins: BTreeMap<String, Origin>,
    /// What the operator should know: unknown keys, entries of the wrong shape. Without values.
    pub warnings: Vec<String>,
    /// The same for the same plugin with the same values: SHA-256 in hex.
    pub key: String,
    secrets: Vec<String>,
    files: Vec<String>,
}

/// Without secrets.
impl std::fmt::Debug for Resolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolved")
            .field("values", &self.shown())
            .field("warnings", &self.warnings)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Resolved {
    /// The values with `********` in place of secrets.
    pub fn shown(&self) -> Map<String, Value> {
        let mut shown = self.values.clone();
        for name in &self.secrets {
            if let Some(value) = shown.get_mut(name) {
                *value = Value::from("********");
            }
        }
        shown
    }

    /// The options whose values must not be shown.
    pub fn secret_names(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().map(String::as_str)
    }

    /// Whether somebody wrote the option's value for this plugin, so that it is neither the manifest's default nor a setting of Salt's
    /// own.
    pub fn is_written(&self, name: &str) -> bool {
        self.origins.get(name).is_some_and(|origin| !matches!(origin.layer, Layer::Default | Layer::Salt))
    }
}

/// Why the options of a returner cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// A required option has no value.
    #[error(
        "the returner `{returner}` needs the option `{key}`, which is not set; hint: set `{key}` in the {role} config"
    )]
    Missing {
        /// The plugin's name.
        returner: String,
        /// The key to set.
        key: String,
        /// Whose config.
        role: Role,
    },
    /// A value is not of the option's type.
    #[error("{place} is {found}, but the option `{name}` must be {expected}; hint: {hint}")]
    WrongType {
        /// The option.
        name: String,
        /// Where the value stands.
        place: String,
        /// The value, or only its type for a secret.
        found: String,
        /// What it should be.
        expected: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// A value is none of the choices.
    #[error("{place} is {found}, but the option `{name}` must be one of {choices}")]
    NoChoice {
        /// The option.
        name: String,
        /// Where the value stands.
        place: String,
        /// The value, or only its type for a secret.
        found: String,
        /// The choices.
        choices: String,
    },
    /// The file that an option names cannot be read.
    #[error("the file `{path}`, named by {place}, cannot be read")]
    File {
        /// The path.
        path: String,
        /// Where the path stands.
        place: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Finds the options of a plugin.
pub fn resolve(manifest: &Manifest, asked: &Asked<'_>) -> Result<Resolved, OptionsError> {
    let mut search = Search { manifest, asked, warnings: Vec::new() };
    let mut found = search.found_or_default();
    search.apply_profile(&mut found);
    search.apply_kwargs(&mut found);
    search.warn_of_unknown_keys();

    let mut resolved = Resolved {
        values: Map::new(),
        origins: BTreeMap::new(),
        warnings: Vec::new(),
        key: String::new(),
        secrets: Vec::new(),
        files: Vec::new(),
    };
    for (option, found) in manifest.options.iter().zip(found) {
        let Some((value, origin)) = found else {
            if option.required {
                let key = format!("{}.{}", manifest.prefix, option.attr);
                return Err(OptionsError::Missing { returner: manifest.name.clone(), key, role: asked.role });
            }
            continue;
        };
        resolved.values.insert(option.name.clone(), fitted(option, &value, &origin)?);
        resolved.origins.insert(option.name.clone(), origin);
        if option.secret {
            resolved.secrets.push(option.name.clone());
        }
        if option.kind == OptionType::File {
            resolved.files.push(option.name.clone());
        }
    }
    resolved.warnings = search.warnings;
    resolved.key = key(&manifest.name, &resolved.values);
    Ok(resolved)
}

/// The values with the text of each file in place of its path, as a plugin is opened with.
pub fn load_files(
    resolved: &Resolved,
    mut reader: impl FnMut(&std::path::Path) -> std::io::Result<String>,
) -> Result<Map<String, Value>, OptionsError> {
    let mut values = resolved.values.clone();
    for name in &resolved.files {
        let Some(Value::String(path)) = values.get_mut(name) else { continue };
        let text = reader(std::path::Path::new(path.as_str())).map_err(|source| OptionsError::File {
            path: path.clone(),
            place: resolved
                .origins
                .get(name)
                .map_or_else(|| format!("`{name}`"), |origin| origin.shown.clone()),
            source,
        })?;
        *path = text;
    }
    Ok(values)
}

type Found = Option<(Value, Origin)>;

struct Search<'a> {
    manifest: &'a Manifest,
    asked: &'a Asked<'a>,
    warnings: Vec<String>,
}

impl<'a> Search<'a> {
    fn found_or_default(&mut self) -> Vec<Found> {
        let prefix = &self.manifest.prefix;
        let profile = self.asked.ret_config.map(|name| format!("{name}.{prefix}"));
        let profile_map = profile.as_deref().and_then(|key| self.find_map(key));
        let plain_map = self.find_map(prefix);
        let find = |option: &OptionSpec| -> Found {
            let special = profile.as_deref().and_then(|key| self.at(key, profile_map, option));
            let value = match special.filter(|(value, _)| is_truthy(value)) {
                Some(special) => Some(special),
                None => self.at(prefix, plain_map, option),
            };
            let value = value.filter(|(value, _)| !is_unset(option.kind, value));
            let value =
                value.or_else(|| self.fallback(option)).map(|(value, origin)| (value.clone(), origin));
            value.or_else(|| self.own(option)).or_else(|| {
                let shown = Layer::Default.named(self.asked.role);
                let origin = Origin { layer: Layer::Default, key: option.name.clone(), shown };
                option.default.clone().map(|value| (value, origin))
            })
        };
        self.manifest.options.iter().map(find).collect()
    }

    fn fallback(&self, option: &OptionSpec) -> Option<(&'a Value, Origin)> {
        let value = self.asked.fallback?.get(&option.name)?;
        let key = format!("plugin.{}.options.{}", self.manifest.name, option.name);
        Some((value, self.origin(Layer::Daemon, key)))
    }

    /// A setting of Salt's own, for an option that takes it where nobody wrote the option itself.
    fn own(&self, option: &OptionSpec) -> Found {
        let (key, value) = own::find(self.asked.salt?, option.from_salt.as_deref()?)?;
        Some((value, self.origin(Layer::Salt, key.to_owned())))
    }

    /// An option in the map that was found under `key`, or else under `key.attr`.
    fn at(
        &self,
        key: &str,
        map: Option<(Layer, &'a Map<String, Value>)>,
        option: &OptionSpec,
    ) -> Option<(&'a Value, Origin)> {
        let attr = &option.attr;
        if let Some((layer, map)) = map
            && let Some(value) = map.get(attr)
        {
            return Some((value, self.origin(layer, format!("{key}:{attr}"))));
        }
        let flat = format!("{key}.{attr}");
        self.asked.layers.find(&flat).map(|(layer, value)| (value, self.origin(layer, flat)))
    }

    fn origin(&self, layer: Layer, key: String) -> Origin {
        let shown = format!("`{key}` in {}", layer.named(self.asked.role));
        Origin { layer, key, shown }
    }

    fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// The first map under `key`. Anything else there would be an error in Salt.
    fn find_map(&mut self, key: &str) -> Option<(Layer, &'a Map<String, Value>)> {
        for (layer, entries) in self.asked.layers.all() {
            match entries.get(key) {
                Some(Value::Object(map)) => return Some((layer, map)),
                None | Some(Value::Null) => {}
                Some(_) => {
                    let place = layer.named(self.asked.role);
                    self.warn(format!("`{key}` in {place} is not a map of options and is passed over"));
                }
            }
        }
        None
    }

    /// Options that a notifier takes from the map its option `profile` names.
    fn apply_profile(&mut self, found: &mut [Found]) {
        let options = &self.manifest.options;
        let at =
            options.iter().position(|option| option.name == "profile" && option.kind == OptionType::Text);
        let Some(at) = at else { return };
        let Some(Some((Value::String(name), _))) = found.get(at) else { return };
        let name = name.clone();
        let Some((layer, map)) = self.find_map(&name) else {
            self.warn(format!("the option `profile` names `{name}`, but there is no map of that name"));
            return;
        };
        for (place, option) in found.iter_mut().zip(options).filter(|(_, option)| option.name != "profile") {
            let key = format!("{}.{}", self.manifest.prefix, option.attr);
            if let Some(value) = map.get(&key).filter(|value| !is_unset(option.kind, value)) {
                *place = Some((value.clone(), self.origin(layer, format!("{name}:{key}"))));
            }
        }
    }

    fn apply_kwargs(&mut self, found: &mut [Found]) {
        let options = &self.manifest.options;
        for (key, value) in self.asked.ret_kwargs.into_iter().flatten() {
            let at = options.iter().position(|option| option.name == *key);
            let at = at.or_else(|| options.iter().position(|option| option.attr == *key));
            match at.and_then(|at| Some((found.get_mut(at)?, options.get(at)?))) {
                // None takes the option away, default and all, as in Salt. Empty text stays a value here.
                Some((place, option)) => {
                    let gone =
                        value.is_null() || (option.kind == OptionType::File && is_unset(option.kind, value));
                    let origin = self.origin(Layer::Kwargs, key.clone());
                    *place = (!gone).then(|| (value.clone(), origin));
                }
                None => {
                    let names = options.iter().map(|option| option.name.as_str());
                    let hint = did_you_mean(nearest(key, names));
                    self.warn(format!("the job's `ret_kwargs` have the unknown key `{key}`{hint}"));
                }
            }
        }
    }

    fn warn_of_unknown_keys(&mut self) {
        for key in self.asked.fallback.into_iter().flat_map(Map::keys) {
            let names = || self.manifest.options.iter().map(|option| option.name.as_str());
            if names().all(|name| name != key) {
                let (name, hint) = (&self.manifest.name, did_you_mean(nearest(key, names())));
                self.warn(format!(
                    "`plugin.{name}.options.{key}` in returnerd.toml is no option of the returner `{name}`{hint}"
                ));
            }
        }
        let prefix = &self.manifest.prefix;
        let profile = self.asked.ret_config.map(|name| format!("{name}.{prefix}"));
        for base in std::iter::once(prefix).chain(&profile) {
            for (layer, entries) in self.asked.layers.all() {
                let nested = entries.get(base).and_then(Value::as_object);
                for key in nested.into_iter().flat_map(Map::keys) {
                    self.warn_of_unknown(layer, base, ':', key);
                }
                for flat in entries.keys() {
                    if let Some(key) =
                        flat.strip_prefix(base.as_str()).and_then(|rest| rest.strip_prefix('.'))
                    {
                        self.warn_of_unknown(layer, base, '.', key);
                    }
                }
            }
        }
    }

    fn warn_of_unknown(&mut self, layer: Layer, base: &str, joint: char, key: &str) {
        let attrs = || self.manifest.options.iter().map(|option| option.attr.as_str());
        if attrs().all(|attr| attr != key) {
            let near = nearest(key, attrs()).map(|near| format!("{base}{joint}{near}"));
            let hint = did_you_mean(near.as_deref());
            let place = layer.named(self.asked.role);
            let name = &self.manifest.name;
            self.warn(format!("`{base}{joint}{key}` in {place} is no option of the returner `{name}`{hint}"));
        }
    }
}

fn did_you_mean(near: Option<&str>) -> String {
    near.map(|near| format!("; hint: did you mean `{near}`?")).unwrap_or_default()
}

fn fitted(option: &OptionSpec, value: &Value, origin: &Origin) -> Result<Value, OptionsError> {
    let place = || origin.shown.clone();
    let fit = coerce(option.kind, value).ok_or_else(|| OptionsError::WrongType {
        name: option.name.clone(),
        place: place(),
        found: found(value, option.secret),
        expected: option.kind.described(),
        hint: coerce::hint(option.kind, value),
    })?;
    if option.choices.is_empty() || option.choices.contains(&fit) {
        return Ok(fit);
    }
    let choices: Vec<String> =
        option.choices.iter().map(|choice| format!("`{}`", coerce::plain(choice))).collect();
    Err(OptionsError::NoChoice {
        name: option.name.clone(),
        place: place(),
        found: found(value, option.secret),
        choices: choices.join(", "),
    })
}

fn key(name: &str, values: &Map<String, Value>) -> String {
    let mut sorted = Value::Object(values.clone());
    sorted.sort_all_objects();
    let mut hash = Sha256::new();
    hash.update(name.as_bytes());
    hash.update([0]);
    hash.update(sorted.to_string().as_bytes());
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
