//! Loads: `.load.p`, the expected minions beside it, and the end of the job.
//!
//! Loads meet by the SDK's `merge_load`. A stub has its mark in `.load.p`, and so has what Salt makes of a return whose job it does not
//! know: that is the return itself. Salt wants a `jid` in every load, or its list of jobs ends with an error, and a `.minions.p` beside it,
//! or `get_load` does.
//!
//! Invariant: a `.minions.p` that is there is Salt's to change; minions that it lacks stand in a list of ours, as a syndic's would, since
//! Salt puts all lists together.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use returner_sdk::msgpack::{self, Value as Msgpack};
use returner_sdk::serde_json::{Map, Value};
use returner_sdk::{Error, JobLoad, LoadKind, Result, StoredLoad, Verdict, json, merge_load, stored_load};

use crate::index;
use crate::lock::Lock;
use crate::stage::{ROUNDS, Stage};
use crate::tree::{self, ENDTIME, LOAD, MINIONS, Tree, jid_name, optional};

/// What `.minions.p` lacks.
const OUR_MINIONS: &str = ".minions.returnerd.p";

const STUB: &str = "__stub__";
const MINIONS_KEY: &str = "Minions";
const END_KEY: &str = "EndTime";

/// What the files of a job say.
#[derive(Debug, Default)]
struct Stored {
    load: Option<Load>,
    minions: BTreeSet<String>,
    has_list: bool,
    end_time: Option<String>,
}

#[derive(Debug)]
enum Load {
    Readable(Map<String, Value>),
    Unreadable,
}

/// Saves loads.
pub async fn save(tree: &Tree, loads: &[JobLoad]) -> Result<Vec<Verdict>> {
    let mut stage = Stage::new(tree)?;
    let lock = Lock::take(tree).await?;
    let mut made = Vec::new();
    let verdicts = loads
        .iter()
        .map(|load| {
            let saved = save_one(tree, &mut stage, load);
            if let Ok(true) = saved {
                made.push((load.jid.as_str(), fun_of(&load.document)));
            }
            saved.map(|_| ()).into()
        })
        .collect();
    stage.finish()?;
    index::note(tree, &lock, made.iter().map(|(jid, fun)| (*jid, fun.as_str())));
    Ok(verdicts)
}

/// Says whether the job is new.
fn save_one(tree: &Tree, stage: &mut Stage<'_>, incoming: &JobLoad) -> Result<bool> {
    let jid = &incoming.jid;
    jid_name(jid)?;
    stage.in_time()?;
    let made = stage.job(jid)?;
    for _ in 0..ROUNDS {
        // Even in a directory just made: Salt may have put its files there since.
        let stored = read(&tree.job(jid))?;
        let Some(merged) = merged(&stored, incoming)? else { return Ok(made) };
        if !stored.has_list && stage.add(jid, MINIONS, &encode_names(&merged.minions))? {
            // Salt wants one beside a load, though it be empty.
        } else if !merged.minions.is_subset(&stored.minions) {
            stage.replace(jid, OUR_MINIONS, &encode_names(&merged.minions))?;
        }
        if let Some(end) = merged.end_time.filter(|end| stored.end_time.as_ref() != Some(end)) {
            stage.replace(jid, ENDTIME, end.as_bytes())?;
        }
        let (Some(Load::Readable(new)), old) = (merged.load, &stored.load) else { return Ok(made) };
        if matches!(old, Some(Load::Readable(old)) if *old == new) {
            return Ok(made);
        }
        let content = encode(new)?;
        // Salt, which knows no lock, may publish the job at this moment: less than that does not replace it.
        if old.is_none() && incoming.kind != LoadKind::Published {
            if stage.add(jid, LOAD, &content)? {
                return Ok(made);
            }
        } else {
            stage.replace(jid, LOAD, &content)?;
            return Ok(made);
        }
    }
    Err(Error::retry(format!("other writers keep changing the load of job {jid}")))
}

/// What is to stand in the files; none if they can stay as they are.
fn merged(stored: &Stored, incoming: &JobLoad) -> Result<Option<Stored>> {
    let mut incoming = incoming.clone();
    let existing = match &stored.load {
        Some(Load::Readable(load)) => Some(with_extras(load.clone(), stored)),
        Some(Load::Unreadable) => Some(with_extras(Map::from_iter([(STUB.into(), true.into())]), stored)),
        None => {
            // There is no load that the rule could speak of, but what lies beside it must stay.
            incoming.minions.extend(stored.minions.iter().cloned());
            incoming.end_time = incoming.end_time.max(stored.end_time.clone());
            None
        }
    };
    let existing = existing.map(|existing| json::to_text(&Value::Object(existing)));
    let Some(text) = merge_load(existing.as_deref(), &incoming) else { return Ok(None) };
    let Some(Value::Object(mut load)) = json::parse(&text) else {
        return Err(Error::reject(format!("the load of job {} is no JSON object", incoming.jid)));
    };
    let minions = match load.shift_remove(MINIONS_KEY) {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => BTreeSet::new(),
    };
    let end_time = match load.shift_remove(END_KEY) {
        Some(Value::String(end)) => Some(end),
        _ => None,
    };
    // Something that is only added, to a job without a load, makes none.
    let says_nothing = load.keys().all(|key| key == STUB);
    if !says_nothing && !load.contains_key("jid") {
        load.insert("jid".into(), incoming.jid.as_str().into());
    }
    let load = (!says_nothing).then_some(Load::Readable(load));
    Ok(Some(Stored { load, minions, has_list: true, end_time }))
}

fn with_extras(mut load: Map<String, Value>, stored: &Stored) -> Map<String, Value> {
    if !stored.minions.is_empty() {
        load.insert(MINIONS_KEY.into(), stored.minions.iter().map(String::as_str).collect());
    }
    if let Some(end) = &stored.end_time {
        load.insert(END_KEY.into(), end.as_str().into());
    }
    load
}

fn encode_names(names: &BTreeSet<String>) -> Vec<u8> {
    msgpack::encode(&Msgpack::Array(names.iter().map(|name| Msgpack::from(name.as_str())).collect()))
}

fn encode(load: Map<String, Value>) -> Result<Vec<u8>> {
    Ok(msgpack::encode(&msgpack::with_bytes(msgpack::from_tree(Value::Object(load)))))
}

/// Reads the files of a job; nothing if it is missing.
fn read(job: &Path) -> Result<Stored> {
    let mut stored = Stored::default();
    for name in tree::names(job)?.unwrap_or_default() {
        let path = job.join(&name);
        let is_minions = name == MINIONS || (name.starts_with(".minions.") && name.ends_with(".p"));
        if !is_minions && name != LOAD && name != ENDTIME {
            continue;
        }
        let Some(bytes) = optional(&path, fs::read(&path))? else { continue };
        if name == ENDTIME {
            let end = String::from_utf8_lossy(&bytes).trim_matches('\n').to_owned();
            stored.end_time = Some(end).filter(|end| !end.is_empty());
        } else if name == LOAD {
            stored.load = Some(decode(&path, &bytes));
        } else {
            stored.has_list |= name == MINIONS;
            match msgpack::decode(&bytes) {
                Ok(Msgpack::Array(names)) => {
                    stored
                        .minions
                        .extend(names.iter().filter_map(msgpack::text).map(|name| name.into_owned()));
                }
                Ok(Msgpack::Nil) => {}
                _ => eprintln!("the file `{}` holds no list of minions", path.display()),
            }
        }
    }
    Ok(stored)
}

fn decode(path: &Path, bytes: &[u8]) -> Load {
    let decoded = msgpack::decode(bytes).and_then(|value| msgpack::to_tree(&value));
    match decoded {
        Ok(Value::Object(mut load)) => {
            if load.contains_key("return") && load.contains_key("id") {
                load.insert(STUB.into(), true.into());
            }
            Load::Readable(load)
        }
        Ok(_) => {
            eprintln!("the file `{}` holds no load", path.display());
            Load::Unreadable
        }
        Err(why) => {
            eprintln!("the file `{}` is not readable: {why}", path.display());
            Load::Unreadable
        }
    }
}

/// The load of a job.
pub fn get(tree: &Tree, jid: &str) -> Result<Option<StoredLoad>> {
    if jid_name(jid).is_err() {
        return Ok(None);
    }
    let stored = read(&tree.job(jid))?;
    // Of a job that a syndic began there may be the list of minions alone.
    if stored.load.is_none() && stored.minions.is_empty() {
        return Ok(None);
    }
    Ok(Some(shown(jid, stored)))
}

/// The load of a job for a list, with its function; none if there is no file of it.
pub fn listed(tree: &Tree, jid: &str) -> Result<Option<(StoredLoad, String)>> {
    let stored = read(&tree.job(jid))?;
    let fun = match &stored.load {
        None => return Ok(None),
        Some(Load::Readable(load)) => fun(load),
        Some(Load::Unreadable) => String::new(),
    };
    Ok(Some((shown(jid, stored), fun)))
}

fn shown(jid: &str, stored: Stored) -> StoredLoad {
    let load = match &stored.load {
        Some(Load::Readable(load)) => load.clone(),
        Some(Load::Unreadable) => return stored_load(jid.to_owned(), String::new()),
        None => Map::from_iter([("jid".into(), jid.into())]),
    };
    let mut document = with_extras(load, &stored);
    document.shift_remove(STUB);
    StoredLoad { jid: jid.to_owned(), document: json::to_text(&Value::Object(document)) }
}

/// The function of a job, of several their names joined by commas; empty if it has none.
fn fun(load: &Map<String, Value>) -> String {
    match load.get("fun") {
        Some(Value::String(fun)) => fun.clone(),
        Some(Value::Array(funs)) => funs.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        _ => String::new(),
    }
}

fn fun_of(document: &str) -> String {
    match json::parse(document) {
        Some(Value::Object(load)) => fun(&load),
        _ => String::new(),
    }
}

/// The function of a job by its load alone; none if there is none, or none that can be read.
pub fn function(tree: &Tree, jid: &str) -> Result<Option<String>> {
    let path = tree.job(jid).join(LOAD);
    let Some(bytes) = optional(&path, fs::read(&path))? else { return Ok(None) };
    match decode(&path, &bytes) {
        Load::Readable(load) => Ok(Some(fun(&load))),
        Load::Unreadable => Ok(None),
    }
}

/// The job's id as its load or one of its returns says it.
pub fn jid_inside(job: &Path) -> Result<Option<String>> {
    let jid = |path: &Path| -> Option<String> {
        let value = msgpack::decode(&fs::read(path).ok()?).ok()?;
        let jid = crate::returns::get(value.as_map()?, "jid")?;
        msgpack::text(jid).map(|jid| jid.into_owned())
    };
    if let Some(jid) = jid(&job.join(LOAD)) {
        return Ok(Some(jid));
    }
    let names = tree::names(job)?;
    Ok(names.unwrap_or_default().iter().find_map(|name| jid(&job.join(name).join(tree::RETURN))))
}
