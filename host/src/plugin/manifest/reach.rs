//! Templates of what a plugin wants to reach, and the wishes that come of them.
//!
//! A template is `scheme://rest` with options in braces: `tcp://{host}:{port}`, `https://{indexer}:8088`,
//! `dir://{database|parent}`, or `{url}` alone for an option that holds a whole `http://` or `https://` address. An
//! option that is a list gives one wish for each of its items; one that holds `name:port` or an address such as
//! `mongodb://user:pass@a:27017,b:27017/salt` brings its own names and ports. A template that ends in ` if OPTION=VALUE`
//! counts only where the option has that value: `unix://{socket} if transport=local`.

use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{ManifestError, OptionSpec, ensure, invalid, nearest};
use crate::salt::options::Resolved;

/// No template needs more; a list may be longer by mistake.
const MAX_WISHES: usize = 256;

/// What kind of access is wished for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WishKind {
    /// A TCP connection.
    Tcp,
    /// UDP packets.
    Udp,
    /// HTTP requests.
    Http,
    /// HTTPS requests.
    Https,
    /// A directory to read and write.
    Directory,
    /// A file or directory to read.
    Read,
    /// Messages to a unix socket.
    Unix,
}

const SCHEMES: [(&str, WishKind); 7] = [
    ("tcp", WishKind::Tcp),
    ("udp", WishKind::Udp),
    ("http", WishKind::Http),
    ("https", WishKind::Https),
    ("dir", WishKind::Directory),
    ("read", WishKind::Read),
    ("unix", WishKind::Unix),
];

impl WishKind {
    /// The scheme in a template: `tcp`, `dir`, ….
    pub fn as_str(self) -> &'static str {
        SCHEMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    fn from_text(text: &str) -> Option<WishKind> {
        SCHEMES.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind)
    }

    fn is_path(self) -> bool {
        matches!(self, WishKind::Directory | WishKind::Read | WishKind::Unix)
    }

    fn usual_port(self) -> Option<u16> {
        match self {
            WishKind::Http => Some(80),
            WishKind::Https => Some(443),
            _ => None,
        }
    }
}

/// A host, by name or address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name in lower case, without a dot at its end.
    Name(String),
    /// An address.
    Address(IpAddr),
}

/// What is to be reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A port of a host.
    Net {
        /// The host.
        host: Host,
        /// The port, never 0.
        port: u16,
    },
    /// An absolute path.
    Path(PathBuf),
}

/// Who decided on the host or path of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// It is an option's value that somebody wrote into Salt's configuration or gave with the job.
    Administrator,
    /// It is an option's default.
    Default,
    /// It stands in the manifest, wholly or in part.
    Literal,
}

/// One thing that a plugin wants to reach.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wish {
    /// The kind of access.
    pub kind: WishKind,
    /// To what.
    pub target: Target,
    /// Who decided on the host or path; the port does not count.
    pub origin: Origin,
}

/// As in a grant: `tcp://db1:3306`, `tcp://[::1]:3306`, `dir:///var/lib/salt`.
impl std::fmt::Display for Wish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = self.kind.as_str();
        match &self.target {
            Target::Net { host: Host::Name(name), port } => write!(f, "{scheme}://{name}:{port}"),
            Target::Net { host: Host::Address(IpAddr::V6(ip)), port } => {
                write!(f, "{scheme}://[{ip}]:{port}")
            }
            Target::Net { host: Host::Address(IpAddr::V4(ip)), port } => write!(f, "{scheme}://{ip}:{port}"),
            Target::Path(path) => write!(f, "{scheme}://{}", path.display()),
        }
    }
}

/// A grant as an operator writes it: a template without options.
impl std::str::FromStr for Wish {
    type Err = ManifestError;

    fn from_str(text: &str) -> Result<Wish, ManifestError> {
        let place = format!("reach `{text}`");
        let template = Template::parse(text, &[])?;
        let kind = template.kind.ok_or_else(|| invalid(&place, "it is not like `tcp://host:port`".into()))?;
        let port = template.port.as_deref().map(literal);
        template
            .wish(kind, &literal(&template.place), port.as_deref(), Origin::Literal)
            .map_err(|why| invalid(&place, why))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Option { name: String, parent: bool },
}

/// A template that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    /// None for `{url}` alone.
    kind: Option<WishKind>,
    place: Vec<Piece>,
    port: Option<Vec<Piece>>,
    condition: Option<Condition>,
}

/// An option and the value that it must have.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Condition {
    option: String,
    value: String,
}

impl Condition {
    fn parse(text: &str, place: &str, options: &[OptionSpec]) -> Result<Condition, ManifestError> {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| invalid(place, format!("`{text}` is not like `OPTION=VALUE`")))?;
        let option = known_option(name, place, options)?;
        let possible = option.choices.is_empty()
            || option.choices.iter().any(|choice| option_texts(choice).iter().any(|text| text == value));
        ensure(possible, place, || format!("`{value}` is none of the choices of `{name}`"))?;
        Ok(Condition { option: name.to_owned(), value: value.to_owned() })
    }

    fn holds(&self, resolved: &Resolved) -> bool {
        resolved.values.get(&self.option).is_some_and(|value| option_texts(value).contains(&self.value))
    }
}

impl std::fmt::Display for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Template {
    pub(super) fn parse(text: &str, options: &[OptionSpec]) -> Result<Template, ManifestError> {
        let place = format!("reach `{text}`");
        let (body, condition) = match text.rsplit_once(" if ") {
            Some((body, condition)) => (body, Some(Condition::parse(condition, &place, options)?)),
            None => (text, None),
        };
        let Some((scheme, rest)) = body.split_once("://") else {
            let pieces = pieces(body, &place, options)?;
            ensure(matches!(pieces[..], [Piece::Option { parent: false, .. }]), &place, || {
                "it is neither like `tcp://{host}:{port}` nor one option in braces".into()
            })?;
            return Ok(Template { text: text.to_owned(), kind: None, place: pieces, port: None, condition });
        };
        let kind = WishKind::from_text(scheme).ok_or_else(|| {
            let known = SCHEMES.map(|(name, _)| name).join("`, `");
            invalid(&place, format!("the scheme `{scheme}` is none of `{known}`"))
        })?;
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !kind.is_path() && !port.contains(']') => (host, Some(port)),
            _ => (rest, None),
        };
        let template = Template {
            text: text.to_owned(),
            kind: Some(kind),
            place: pieces(host, &place, options)?,
            port: port.map(|port| pieces(port, &place, options)).transpose()?,
            condition,
        };
        ensure(!template.place.is_empty(), &place, || "it names nothing".into())?;
        let wholly_literal = template.place.iter().chain(template.port.iter().flatten());
        if wholly_literal.clone().all(|piece| matches!(piece, Piece::Text(_))) {
            let port = template.port.as_deref().map(literal);
            template
                .wish(kind, &literal(&template.place), port.as_deref(), Origin::Literal)
                .map_err(|why| invalid(&place, why))?;
        }
        Ok(template)
    }

    /// The wishes, or why a value makes none. Empty if an option is not set or the condition does not hold.
    pub(super) fn expand(&self, resolved: &Resolved) -> Vec<Result<Wish, String>> {
        if self.condition.as_ref().is_some_and(|condition| !condition.holds(resolved)) {
            return Vec::new();
        }
        let origin = self.origin(resolved);
        let ports = match &self.port {
            None => vec![None],
            Some(pieces) => values(pieces, resolved).into_iter().map(Some).collect(),
        };
        let mut found = Vec::new();
        for place in values(&self.place, resolved) {
            for port in &ports {
                match self.kind {
                    Some(kind) if kind.is_path() => found.push(self.wish(kind, &place, None, origin)),
                    Some(kind) => found.extend(
                        addresses(&place)
                            .into_iter()
                            .map(|host| self.wish(kind, host, port.as_deref(), origin)),
                    ),
                    None => found.push(self.url(&place, origin)),
                }
            }
        }
        found.truncate(MAX_WISHES);
        found
    }

    /// A host or path that is only partly an option's is the manifest's: `{name}.example.com` leads where the
    /// manifest says.
    fn origin(&self, resolved: &Resolved) -> Origin {
        let mut origin = Origin::Administrator;
        for piece in &self.place {
            match piece {
                Piece::Text(_) => return Origin::Literal,
                Piece::Option { name, .. } if !resolved.is_written(name) => origin = Origin::Default,
                Piece::Option { .. } => {}
            }
        }
        origin
    }

    fn url(&self, text: &str, origin: Origin) -> Result<Wish, String> {
        let kind = text.split_once("://").and_then(|(scheme, _)| WishKind::from_text(scheme));
        match (kind, addresses(text)[..].first()) {
            (Some(kind @ (WishKind::Http | WishKind::Https)), Some(host)) => {
                self.wish(kind, host, None, origin)
            }
            // The value may hold a password, so it is not shown.
            _ => Err(format!("reach `{self}`: the value does not begin with `http://` or `https://`")),
        }
    }

    fn wish(&self, kind: WishKind, place: &str, port: Option<&str>, origin: Origin) -> Result<Wish, String> {
        let target = if kind.is_path() {
            let path = Path::new(place);
            let plain = path.is_absolute() && path.components().all(|c| c != std::path::Component::ParentDir);
            plain.then(|| Target::Path(path.to_owned()))
        } else {
            net(place, port, kind.usual_port())
        };
        let target = target.ok_or_else(|| match kind.is_path() {
            true => format!("reach `{self}`: `{place}` is not an absolute path without `..`"),
            false => {
                format!("reach `{self}`: `{place}` with port `{}` is no host and port", port.unwrap_or(""))
            }
        })?;
        Ok(Wish { kind, target, origin })
    }
}

/// A host and its port: the one it brings, else the template's, else the usual one.
fn net(place: &str, port: Option<&str>, usual: Option<u16>) -> Option<Target> {
    let (host, own_port) = if let Ok(ip) = place.parse::<Ipv6Addr>() {
        (Host::Address(ip.into()), None)
    } else if let Some(rest) = place.strip_prefix('[') {
        let (ip, after) = rest.split_once(']')?;
        let own = if after.is_empty() { None } else { Some(after.strip_prefix(':')?) };
        (Host::Address(ip.parse::<Ipv6Addr>().ok()?.into()), own)
    } else {
        let (name, own) = place.split_once(':').map_or((place, None), |(name, port)| (name, Some(port)));
        (name_or_address(name)?, own)
    };
    let port = match own_port.or(port) {
        Some(text) => text.trim().parse().ok()?,
        None => usual?,
    };
    (port != 0).then_some(Target::Net { host, port })
}

fn name_or_address(text: &str) -> Option<Host> {
    if let Ok(ip) = text.parse() {
        return Some(Host::Address(ip));
    }
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (!name.is_empty() && name.len() <= 253 && name.bytes().all(good) && !name.starts_with('.'))
        .then_some(Host::Name(name))
}

/// The `host:port` parts of a value that may be a whole address.
fn addresses(value: &str) -> Vec<&str> {
    let rest = value.split_once("://").map_or(value, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    hosts.split(',').map(str::trim).filter(|host| !host.is_empty()).collect()
}

fn literal(pieces: &[Piece]) -> String {
    let texts = pieces.iter().map(|piece| match piece {
        Piece::Text(text) => text.as_str(),
        Piece::Option { .. } => "",
    });
    texts.collect()
}

fn pieces(text: &str, place: &str, options: &[OptionSpec]) -> Result<Vec<Piece>, ManifestError> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (inside, after) =
            after.split_once('}').ok_or_else(|| invalid(place, "a `{` has no `}`".into()))?;
        let (name, filter) =
            inside.split_once('|').map_or((inside, None), |(name, filter)| (name, Some(filter)));
        known_option(name, place, options)?;
        ensure(matches!(filter, None | Some("parent")), place, || {
            format!("`{}` is no filter; hint: the only one is `parent`", filter.unwrap_or_default())
        })?;
        if !before.is_empty() {
            found.push(Piece::Text(before.to_owned()));
        }
        found.push(Piece::Option { name: name.to_owned(), parent: filter.is_some() });
        rest = after;
    }
    ensure(!rest.contains('}'), place, || "a `}` has no `{`".into())?;
    if !rest.is_empty() {
        found.push(Piece::Text(rest.to_owned()));
    }
    Ok(found)
}

fn known_option<'a>(
    name: &str,
    place: &str,
    options: &'a [OptionSpec],
) -> Result<&'a OptionSpec, ManifestError> {
    options.iter().find(|option| option.name == name).ok_or_else(|| {
        let near = nearest(name, options.iter().map(|option| option.name.as_str()));
        let hint = near.map(|near| format!("; hint: did you mean `{near}`?")).unwrap_or_default();
        invalid(place, format!("there is no option `{name}`{hint}"))
    })
}

/// All texts the pieces can become; none if an option is not set.
fn values(pieces: &[Piece], resolved: &Resolved) -> Vec<String> {
    let mut texts = vec![String::new()];
    for piece in pieces {
        let choices = match piece {
            Piece::Text(text) => vec![text.clone()],
            Piece::Option { name, parent } => {
                let found = resolved.values.get(name).map(option_texts).unwrap_or_default();
                if *parent { found.iter().filter_map(|path| parent_of(path)).collect() } else { found }
            }
        };
        texts = texts
            .iter()
            .flat_map(|text| choices.iter().map(move |choice| format!("{text}{choice}")))
            .take(MAX_WISHES)
            .collect();
    }
    texts
}

fn option_texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) if !text.is_empty() => vec![text.clone()],
        Value::Number(number) => vec![number.to_string()],
        Value::Array(items) => items.iter().flat_map(item_text).collect(),
        _ => Vec::new(),
    }
}

/// Lists of nodes are written as `name:port` or, as in redis, as maps with `host` and `port`.
fn item_text(item: &Value) -> Option<String> {
    let text = |value: &Value| match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let Value::Object(map) = item else { return text(item) };
    let host = map.get("host").and_then(text)?;
    let host = if host.parse::<Ipv6Addr>().is_ok() { format!("[{host}]") } else { host };
    Some(map.get("port").and_then(text).map_or(host.clone(), |port| format!("{host}:{port}")))
}

fn parent_of(path: &str) -> Option<String> {
    Path::new(path).parent().and_then(Path::to_str).filter(|parent| !parent.is_empty()).map(str::to_owned)
}
