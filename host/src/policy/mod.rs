//! What a plugin may reach. Owns the rule that joins a plugin's wishes with the operator's grants, and the checks that are
//! made at run time: addresses, names, sockets, directories, file locks, unix sockets.
//!
//! Invariants: nothing is reachable that is not in a [`Policy`]; a wish that the administrator's own options spell out is
//! granted as it is, every other only by a line of `allow`; every refusal names the line that would allow it.

pub mod directories;
pub mod egress;
pub mod file_locks;
pub mod http;
pub mod names;
pub mod own;
pub mod sockets;
mod tcp;
pub mod unix_datagrams;

use std::path::PathBuf;

use self::egress::{Endpoint, Protocol};
use self::http::rules::Origin as WebOrigin;
use crate::config::Mode;
use crate::plugin::manifest::{Host, Origin, Target, Wish, WishKind};

/// Why a line of `allow` cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{line}` in `allow` of `[plugin.{plugin}]` is not understood: {why}; hint: write such as \"tcp://db.example.com:3306\" or \"dir:///srv/data\""
)]
pub struct AllowError {
    /// The line.
    pub line: String,
    /// The plugin's name.
    pub plugin: String,
    /// What is wrong.
    pub why: String,
}

/// What one sink may reach.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// What is granted.
    pub grants: Vec<Wish>,
    /// Wishes that were not granted.
    pub refused: Vec<Wish>,
    /// Whether refusals are only logged.
    pub observe: bool,
}

impl Policy {
    /// Joins the wishes of a plugin's manifest, made concrete by its options, with the operator's lines.
    pub fn new(plugin: &str, wishes: Vec<Wish>, allow: &[String], mode: Mode) -> Result<Self, AllowError> {
        let mut grants = parse_allow(plugin, allow)?;
        let mut refused = Vec::new();
        for wish in wishes {
            if grants.iter().any(|grant| grant.kind == wish.kind && grant.target == wish.target) {
                continue;
            }
            if wish.origin == Origin::Administrator { grants.push(wish) } else { refused.push(wish) }
        }
        Ok(Self { grants, refused, observe: mode == Mode::Observe })
    }

    /// The directories to open for the plugin: the path, which is the same inside, and whether it may write.
    pub fn directories(&self) -> Vec<(PathBuf, bool)> {
        self.grants
            .iter()
            .filter_map(|grant| match (&grant.kind, &grant.target) {
                (WishKind::Directory, Target::Path(path)) => Some((path.clone(), true)),
                (WishKind::Read, Target::Path(path)) => Some((path.clone(), false)),
                _ => None,
            })
            .collect()
    }

    /// The unix sockets that messages may be sent to.
    pub fn unix_sockets(&self) -> Vec<PathBuf> {
        self.grants
            .iter()
            .filter_map(|grant| match (&grant.kind, &grant.target) {
                (WishKind::Unix, Target::Path(path)) => Some(path.clone()),
                _ => None,
            })
            .collect()
    }

    /// The hosts and ports that sockets may reach.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.grants
            .iter()
            .filter_map(|grant| {
                let protocol = match grant.kind {
                    WishKind::Tcp => Protocol::Tcp,
                    WishKind::Udp => Protocol::Udp,
                    _ => return None,
                };
                let Target::Net { host, port } = &grant.target else { return None };
                let host = match host {
                    Host::Name(name) => name.clone(),
                    Host::Address(address) => address.to_string(),
                };
                Some(Endpoint { protocol, host, port: *port })
            })
            .collect()
    }

    /// The servers that HTTP requests may go to.
    pub fn web(&self) -> Vec<WebOrigin> {
        let origin = |grant: &Wish| match (grant.kind, &grant.target) {
            (WishKind::Http, Target::Net { host, port }) => Some(WebOrigin::new(false, host, *port)),
            (WishKind::Https, Target::Net { host, port }) => Some(WebOrigin::new(true, host, *port)),
            _ => None,
        };
        self.grants.iter().filter_map(origin).collect()
    }
}

/// The operator's lines as grants.
pub fn parse_allow(plugin: &str, allow: &[String]) -> Result<Vec<Wish>, AllowError> {
    let parse = |line: &String| {
        line.parse::<Wish>().map_err(|why| AllowError {
            line: line.clone(),
            plugin: plugin.to_owned(),
            why: why.to_string(),
        })
    };
    allow.iter().map(parse).collect()
}

/// The line of returnerd.toml that would grant a wish.
pub fn allow_line(plugin: &str, wish: &Wish) -> String {
    format!("`allow = [\"{wish}\"]` in `[plugin.{plugin}]` of returnerd.toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(text: &str, origin: Origin) -> Wish {
        Wish { origin, ..text.parse().unwrap() }
    }

    #[test]
    fn what_the_administrator_wrote_is_granted_and_a_default_only_by_a_line() {
        let wishes = vec![
            wish("tcp://db.example.com:3306", Origin::Administrator),
            wish("tcp://salt:3306", Origin::Default),
            wish("udp://metrics.example.com:8125", Origin::Literal),
        ];
        let policy = Policy::new("p", wishes.clone(), &[], Mode::Enforce).unwrap();
        assert_eq!(policy.endpoints().len(), 1);
        assert_eq!(policy.refused.len(), 2);
        let allow = ["tcp://salt:3306".to_owned(), "udp://metrics.example.com:8125".to_owned()];
        let policy = Policy::new("p", wishes, &allow, Mode::Enforce).unwrap();
        assert_eq!(policy.endpoints().len(), 3);
        assert!(policy.refused.is_empty());
    }

    #[test]
    fn a_unix_socket_is_granted_as_a_directory_is_and_is_none() {
        let wishes =
            vec![wish("unix:///dev/log", Origin::Default), wish("unix:///run/log", Origin::Administrator)];
        let policy = Policy::new("p", wishes.clone(), &[], Mode::Enforce).unwrap();
        assert_eq!(policy.unix_sockets(), [PathBuf::from("/run/log")]);
        assert!(policy.directories().is_empty());
        assert_eq!(
            allow_line("p", &policy.refused[0]),
            "`allow = [\"unix:///dev/log\"]` in `[plugin.p]` of returnerd.toml"
        );
        let policy = Policy::new("p", wishes, &["unix:///dev/log".to_owned()], Mode::Enforce).unwrap();
        assert_eq!(policy.unix_sockets().len(), 2);
    }

    #[test]
    fn a_line_that_is_not_understood_is_named() {
        let error = Policy::new("p", vec![], &["salt:3306".to_owned()], Mode::Enforce).unwrap_err();
        assert!(error.to_string().contains("`salt:3306` in `allow` of `[plugin.p]`"), "{error}");
    }
}
