//! The sorted sets by which jobs are listed and removed without walking through all keys, and their upkeep.
//!
//! Invariants: every job and minion that this plugin stored is in them; what Salt's own returner wrote is taken in before
//! a list or a removal, once a day at most; what has expired is taken out, a bounded number of entries at a time.

use std::time::{Duration, Instant};

use returner_sdk::time::jid_ms;

use crate::connect::{Db, now_ms};
use crate::fault::Fault;
use crate::scripts::{IMPORTED, JIDS, LAST, MINIONS, Script};
use crate::wire::{Pipeline, Reply, list, number, text, texts};

/// How often an instance takes out what has expired.
const TRIM_EVERY: Duration = Duration::from_secs(60);
const TRIM_JOBS: u64 = 200;
const TRIM_ROUNDS: u32 = 50;

/// How long jobs of Salt's own returner may stay unlisted, in seconds.
const IMPORT_EVERY: &str = "86400";
/// How long an instance believes that they have been taken in.
const IMPORT_ASK: Duration = Duration::from_secs(60);
/// How long one call looks for them; the next goes on from there, whichever instance it meets.
const IMPORT_FOR: Duration = Duration::from_secs(5);
/// What stands under [`IMPORTED`] when the search has ended; before that it is the place where it goes on.
const DONE: &str = "done";
const IMPORT_STEP: &str = "1000";
/// How many jobs one script takes in, as the server does nothing else meanwhile.
const ADOPT_JOBS: usize = 100;
/// `load:` or `ret:` and a digit; few other keys are alike.
const IMPORT_KEYS: &str = "[lr][oe][at]*:[0-9]*";

/// What an instance knows of its upkeep.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    trimmed: Option<Instant>,
    /// How many jobs at the beginning are old but still there.
    kept: u64,
    imported: Option<Instant>,
}

fn due(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= every)
}

/// Takes out what has expired, if it is time. That it fails is no reason to fail what it was called with.
pub(crate) async fn trim(db: &mut Db) {
    if db.settings.ttl == 0 || !due(db.upkeep.trimmed, TRIM_EVERY) {
        return;
    }
    db.upkeep.trimmed = Some(Instant::now());
    if let Err(fault) = trim_now(db).await {
        eprintln!(
            "what has expired could not be taken out of the sorted sets `{LAST}`, `{JIDS}` and `{MINIONS}`: {fault}"
        );
    }
}

async fn trim_now(db: &mut Db) -> Result<(), Fault> {
    let now = now_ms();
    let (horizon, now) = (now.saturating_sub(db.settings.ttl * 1000).to_string(), now.to_string());
    for _ in 0..TRIM_ROUNDS {
        let (skip, count) = (db.upkeep.kept.to_string(), TRIM_JOBS.to_string());
        let keys = [LAST, JIDS, MINIONS, "minions"];
        let counts = list(db.ask_script(Script::Trim, &keys, &[&horizon, &skip, &count, &now]).await?);
        let [seen, kept] = [0, 1].map(|at| counts.get(at).map_or(0, number));
        if seen < TRIM_JOBS {
            db.upkeep.kept = 0;
            break;
        }
        db.upkeep.kept += kept;
    }
    Ok(())
}

/// Takes in what Salt's own returner wrote, if nobody has done so lately.
pub(crate) async fn import(db: &mut Db) -> Result<(), Fault> {
    if !due(db.upkeep.imported, IMPORT_ASK) {
        return Ok(());
    }
    let mut cursor = match text(db.ask(&["GET", IMPORTED]).await?) {
        Some(mark) if mark == DONE => {
            db.upkeep.imported = Some(Instant::now());
            return Ok(());
        }
        Some(cursor) if cursor.bytes().all(|byte| byte.is_ascii_digit()) => cursor,
        _ => "0".into(),
    };
    let began = Instant::now();
    loop {
        let page = db.ask(&["SCAN", &cursor, "MATCH", IMPORT_KEYS, "COUNT", IMPORT_STEP]).await?;
        let mut page = list(page).into_iter();
        let mut next = || page.next().unwrap_or(Reply::Null);
        cursor = text(next()).unwrap_or_else(|| "0".into());
        let ended = cursor == "0";
        let jobs: Vec<String> = texts(next())
            .iter()
            .filter_map(|key| key.strip_prefix("load:").or_else(|| key.strip_prefix("ret:")))
            .flat_map(|jid| [jid.to_owned(), jid_ms(jid).unwrap_or_default().to_string()])
            .collect();
        let mut pipeline = Pipeline::default();
        for jobs in jobs.chunks(2 * ADOPT_JOBS) {
            adopt(db, &mut pipeline, "0", jobs);
        }
        if ended {
            adopt(db, &mut pipeline, "1", &[]);
        }
        db.ask_all(&pipeline).await?;
        if ended {
            db.ask(&["SET", IMPORTED, DONE, "EX", IMPORT_EVERY]).await?;
            db.upkeep.imported = Some(Instant::now());
            return Ok(());
        }
        if began.elapsed() >= IMPORT_FOR {
            eprintln!(
                "jobs that Salt's own returner wrote are still being looked for; until that is done a list of jobs may lack \
                 some of them"
            );
            db.ask(&["SET", IMPORTED, &cursor, "EX", IMPORT_EVERY]).await?;
            return Ok(());
        }
    }
}

/// Adds the taking in of some jobs, or of all minions, to what will be sent.
fn adopt(db: &Db, pipeline: &mut Pipeline, minions: &str, jobs: &[String]) {
    let (now, keep) = (now_ms().to_string(), (db.settings.ttl * 1000).to_string());
    let mut arguments = vec![now.as_str(), &keep, minions];
    arguments.extend(jobs.iter().map(String::as_str));
    db.call(pipeline, Script::Adopt, &[JIDS, LAST, MINIONS, "minions"], &arguments);
}
