//! Returns: one directory for each minion in that of the job, with the file `return.p`.
//!
//! `return.p` holds Salt's own keys (`return`, `retcode`, `success`) first and after them the rest of the record, which Salt hands on
//! as it is; the outputter lies in `out.p`, as Salt has it. The first return is the one whose directory was there first.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use returner_sdk::msgpack::{self, Value};
use returner_sdk::rows::first_of_each;
use returner_sdk::{Error, JobReturn, Result, StoredReturn, Verdict, json, tokio};

use crate::index;
use crate::lock::Lock;
use crate::stage::{self, ROUNDS, Stage};
use crate::tree::{self, LOAD, NOCACHE, OUT, RETURN, Tree, at, is_missing, jid_name, minion_name, optional};

/// Salt's own keys, in its order.
const SALTS: [&str; 3] = ["return", "retcode", "success"];

/// How long another writer may take between making a minion's directory and the file in it.
const OTHERS_TAKE: Duration = Duration::from_millis(20);

struct Staged {
    index: usize,
    directory: PathBuf,
}

/// Stores a batch.
pub async fn store(tree: &Tree, returns: &[JobReturn]) -> Result<Vec<Verdict>> {
    let mut stage = Stage::new(tree)?;
    let mut verdicts = vec![Verdict::Stored; returns.len()];
    let (firsts, repeats) = first_of_each(returns.iter().map(|ret| (ret.jid.as_str(), ret.stored_id())));
    let mut staged = Vec::new();
    for &index in firsts.values() {
        match prepare(tree, &stage, &returns[index]) {
            Ok(Some(directory)) => staged.push(Staged { index, directory }),
            Ok(None) => {}
            Err(error) => verdicts[index] = Err(error).into(),
        }
    }
    let mut made = Vec::new();
    for Staged { index, directory } in staged {
        let ret = &returns[index];
        match place(tree, &mut stage, ret, &directory).await {
            Ok(true) => made.push(index),
            Ok(false) => {}
            Err(error) => verdicts[index] = Err(error).into(),
        }
    }
    stage.finish()?;
    // What repeats a record of the same batch fares as that did.
    for (index, first) in repeats {
        verdicts[index] = verdicts[first].clone();
    }
    if !made.is_empty()
        && let Ok(lock) = Lock::take(tree).await
    {
        index::note(
            tree,
            &lock,
            made.iter().map(|&index| (returns[index].jid.as_str(), returns[index].fun.as_str())),
        );
    }
    Ok(verdicts)
}

/// Writes the return apart; none if it is there already or not wanted.
fn prepare(tree: &Tree, stage: &Stage<'_>, ret: &JobReturn) -> Result<Option<PathBuf>> {
    jid_name(&ret.jid)?;
    minion_name(ret.stored_id())?;
    stage.in_time()?;
    let job = tree.job(&ret.jid);
    if is_there(&job.join(ret.stored_id()))? || job.join(NOCACHE).exists() {
        return Ok(None);
    }
    let (record, out) = encode(ret)?;
    let directory = stage.directory()?;
    if let Some(out) = out {
        stage::write(&directory.join(OUT), &out)?;
    }
    stage::write(&directory.join(RETURN), &record)?;
    Ok(Some(directory))
}

/// Whether a minion's directory holds a return. An empty file is what a crash left of one.
fn is_there(directory: &Path) -> Result<bool> {
    let path = directory.join(RETURN);
    Ok(optional(&path, fs::metadata(&path))?.is_some_and(|file| file.len() > 0))
}

fn encode(ret: &JobReturn) -> Result<(Vec<u8>, Option<Vec<u8>>)> {
    let record =
        msgpack::from_json(&ret.document).map_err(|error| Error::reject(format!("the record: {error}")))?;
    let Value::Map(mut entries) = msgpack::with_bytes(record) else {
        return Err(Error::reject("the record is no object"));
    };
    let take = |entries: &mut Vec<(Value, Value)>, key: &str| {
        let at = entries.iter().position(|(name, _)| name.as_str() == Some(key))?;
        Some(entries.remove(at))
    };
    let out = take(&mut entries, "out").map(|(_, out)| msgpack::encode(&out));
    let mut ordered: Vec<_> = SALTS.iter().filter_map(|key| take(&mut entries, key)).collect();
    ordered.extend(entries);
    Ok((msgpack::encode(&Value::Map(ordered)), out))
}

/// Moves a minion's directory into that of its job, unless there is one; says whether the job is new.
async fn place(tree: &Tree, stage: &mut Stage<'_>, ret: &JobReturn, directory: &Path) -> Result<bool> {
    let target = tree.job(&ret.jid).join(ret.stored_id());
    let mut made = false;
    for _ in 0..ROUNDS {
        made |= stage.job(&ret.jid)?;
        // Made first as Salt makes it, so that it is either ours or Salt's: no empty one of Salt's may be replaced.
        let placed = fs::create_dir(&target).and_then(|()| fs::rename(directory, &target));
        match placed {
            Ok(()) => {
                stage.changed(&ret.jid);
                return Ok(made);
            }
            Err(error) if stage::is_taken(&error) => {
                if is_there(&target)? {
                    return Ok(made);
                }
                // Salt makes the directory first. If it does not go on, it was stopped in between.
                tokio::time::sleep(OTHERS_TAKE).await;
                if is_there(&target)? {
                    return Ok(made);
                }
                for file in [OUT, RETURN] {
                    let path = directory.join(file);
                    if path.exists() {
                        fs::rename(&path, target.join(file)).map_err(at(&target))?;
                    }
                }
                stage.changed(&ret.jid);
                return Ok(made);
            }
            Err(error) if is_missing(&error) && !target.exists() => {}
            Err(error) => return Err(at(&target)(error)),
        }
    }
    Err(Error::retry(format!("`{}`: others keep removing the directory", target.display())))
}

/// All returns of a job.
pub fn of_job(tree: &Tree, jid: &str) -> Result<Vec<StoredReturn>> {
    if jid_name(jid).is_err() {
        return Ok(Vec::new());
    }
    let job = tree.job(jid);
    let mut load = None;
    let mut returns = Vec::new();
    let mut minions = tree::names(&job)?.unwrap_or_default();
    minions.sort();
    for minion in minions {
        returns.extend(read(&job, jid, &minion, &mut load)?);
    }
    Ok(returns)
}

/// One return of a job, if it is there. The load is read when it is needed for the first time.
pub fn read(job: &Path, jid: &str, minion: &str, load: &mut Option<Value>) -> Result<Option<StoredReturn>> {
    if minion.starts_with('.') {
        return Ok(None);
    }
    let directory = job.join(minion);
    let path = directory.join(RETURN);
    let Some(bytes) = optional(&path, fs::read(&path))? else { return Ok(None) };
    let document = match document(&directory, job, jid, minion, &bytes, load) {
        Ok(document) => document,
        Err(why) => {
            eprintln!("the file `{}` is not readable: {why}", path.display());
            let why = format!("the stored return is unreadable: {why}");
            json::object([
                ("jid", json::quoted(jid).as_str()),
                ("id", json::quoted(minion).as_str()),
                ("return", json::quoted(&why).as_str()),
            ])
        }
    };
    Ok(Some(StoredReturn { jid: jid.to_owned(), minion: minion.to_owned(), document, success: None }))
}

fn document(
    directory: &Path,
    job: &Path,
    jid: &str,
    minion: &str,
    bytes: &[u8],
    load: &mut Option<Value>,
) -> Result<String, msgpack::JsonError> {
    let mut entries = match msgpack::decode(bytes)? {
        Value::Map(entries) if get(&entries, "return").is_some() => entries,
        // So did Salt before it kept return codes.
        value => vec![(Value::from("return"), value)],
    };
    let mut front = Vec::new();
    for (key, text) in [("jid", jid), ("id", minion)] {
        if get(&entries, key).is_none() {
            front.push((Value::from(key), Value::from(text)));
        }
    }
    // Salt keeps the function with the job alone.
    if get(&entries, "fun").is_none() {
        let load = load.get_or_insert_with(|| {
            let bytes = fs::read(job.join(LOAD)).unwrap_or_default();
            msgpack::decode(&bytes).unwrap_or(Value::Nil)
        });
        let load = load.as_map().map(Vec::as_slice).unwrap_or_default();
        for (key, known) in [("fun", "fun"), ("fun_args", "arg")] {
            if let (None, Some(value)) = (get(&entries, key), get(load, known)) {
                front.push((Value::from(key), value.clone()));
            }
        }
    }
    let out = fs::read(directory.join(OUT)).ok().and_then(|bytes| msgpack::decode(&bytes).ok());
    entries.extend(out.map(|out| (Value::from("out"), out)));
    front.extend(entries);
    msgpack::to_json(&Value::Map(front))
}

/// The value of a key.
pub fn get<'a>(entries: &'a [(Value, Value)], key: &str) -> Option<&'a Value> {
    entries
        .iter()
        .find(|(name, _)| msgpack::text(name).is_some_and(|name| name == key))
        .map(|(_, value)| value)
}
