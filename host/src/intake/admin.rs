//! What the command line asks of the daemon. Arguments and results are JSON.
//!
//! Invariant: no option value, token or payload is in a result, except in those that exist to show a record (`jobs_show`, `dead_show`,
//! `dead_export`).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rmpv::Value;
use serde_json::{Value as Json, json};

use super::Intake;
use super::handle::HandleError;
use crate::dispatch::health::State;
use crate::dispatch::query;
use crate::dispatch::sink::Sink;
use crate::item::Record;
use crate::salt::json;
use crate::spool::{Condition, DeadFilter, DeadRow};

/// Dead letters in one answer, unless the caller limits it more.
const MAX_LETTERS: usize = 10_000;

impl Intake {
    pub(super) async fn admin(&self, command: &str, args: &Value) -> Result<Value, HandleError> {
        let args = json::to_tree(args).map_err(|error| HandleError::Admin(crate::observe::chain(&error)))?;
        let result = match command {
            "status" => self.status().await?,
            "jobs_list" => self.jobs_list(&args).await?,
            "jobs_show" => self.jobs_show(&args).await?,
            "verdict" => self.verdict(&args).await?,
            "plugin_restart" => self.plugin_restart(&args).await?,
            "rescan" => {
                let _ = self.rescan.send(()).await;
                json!({})
            }
            "dead_list" => {
                json!(self.letters(&args).await?.iter().map(|row| self.letter(row)).collect::<Vec<_>>())
            }
            "dead_show" => self.dead_show(&args).await?,
            "dead_export" => self.dead_export(&args).await?,
            "dead_retry" => {
                let count = self.dispatch().shared().spool.dead_retry(self.filter(&args)?).await?;
                for sink in self.dispatch().sinks() {
                    sink.wake.notify_one();
                }
                json!({ "count": count })
            }
            "dead_drop" => {
                json!({ "count": self.dispatch().shared().spool.dead_drop(self.filter(&args)?).await? })
            }
            other => return Err(HandleError::Admin(format!("unknown command `{other}`"))),
        };
        Ok(json::from_tree(result))
    }

    async fn status(&self) -> Result<Json, HandleError> {
        let shared = self.dispatch().shared();
        let config = self.config();
        let stats = shared.spool.stats().await?;
        let state = shared.spool.state();
        let now = crate::spool::now_ms();
        let mut stuck = Vec::new();
        let mut sinks = Vec::new();
        for sink in self.dispatch().sinks() {
            let lane = stats.lanes.iter().find(|lane| lane.sink == sink.id);
            let waiting = lane.map_or(0, |lane| lane.depth);
            let oldest_s = lane.and_then(|lane| lane.oldest_ms).map(|at| now.saturating_sub(at) / 1_000);
            let condition = sink.health.state();
            let error = sink.health.last_error();
            let broken = matches!(condition, State::Faulty | State::Quarantined) && waiting > 0;
            if broken || oldest_s.is_some_and(|age| age > config.delivery.stuck_after.as_secs()) {
                stuck.push(format!(
                    "`{}` is {} with {waiting} records, the oldest for {} s: {}",
                    sink.label,
                    condition.name(),
                    oldest_s.unwrap_or(0),
                    error.as_ref().map_or("no error is known", |(text, _)| text)
                ));
            }
            let (refusals, refused) = sink.pool.refusals();
            let (lines, bytes) = sink.pool.log_dropped();
            sinks.push(json!({
                "sink": sink.label, "plugin": sink.plugin, "state": condition.name(),
                "waiting": waiting, "bytes": lane.map_or(0, |lane| lane.bytes), "oldest_s": oldest_s,
                "last_error": error.as_ref().map(|(text, _)| text),
                "last_error_s": error.as_ref().map(|(_, at)| age(*at)),
                "last_stored_s": sink.health.last_stored().map(age),
                "counts": sink.health.counts(), "refusals": refusals, "refused": refused,
                "close_error": sink.pool.close_error(), "log_dropped": { "lines": lines, "bytes": bytes },
                "strikes": sink.health.strikes(),
                "options": sink.pool.options().shown(),
            }));
        }
        let condition = match &state.condition {
            Condition::Healthy => "healthy".to_owned(),
            Condition::Degraded { reason, .. } => {
                stuck.push(format!("the spool takes nothing at the moment: {reason}"));
                format!("degraded: {reason}")
            }
        };
        if stats.totals.bytes + stats.totals.dead_bytes >= config.spool.max_size {
            stuck.push("the spool is full".into());
        }
        stuck.extend(state.dead_trouble.clone());
        stuck.extend(shared.registry.directory_error());
        let plugins: Vec<Json> = shared
            .registry
            .plugins()
            .iter()
            .map(|plugin| {
                json!({
                    "name": plugin.name(), "version": plugin.manifest.version, "path": plugin.path,
                    "interfaces": plugin.interfaces.names().join(","), "sha256": plugin.sha256,
                    "generation": plugin.generation, "loaded_s": age(plugin.loaded_at),
                })
            })
            .collect();
        let broken: Vec<Json> = shared
            .registry
            .files()
            .into_iter()
            .filter_map(|file| {
                file.error.map(|error| json!({ "path": file.path, "error": error, "serving": file.serving }))
            })
            .collect();
        Ok(json!({
            "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id(),
            "uptime_s": self.started.elapsed().as_secs(), "resident_kib": resident_kib(),
            "spool": {
                "state": condition, "items": stats.totals.items, "bytes": stats.totals.bytes,
                "max_bytes": config.spool.max_size, "dead": stats.totals.dead, "dead_bytes": stats.totals.dead_bytes,
                "totals": stats.totals, "damages": state.damages,
            },
            "sinks": sinks, "plugins": plugins, "broken": broken, "stuck": stuck,
        }))
    }

    /// The one sink that is meant: named, or the only one that stores jobs.
    fn store(&self, args: &Json) -> Result<Arc<Sink>, HandleError> {
        let dispatch = self.dispatch();
        let candidates = match args["returner"].as_str() {
            Some(name) => {
                let plugin = self.plugin(name.split('#').next().unwrap_or(name))?;
                if name.contains('#') { dispatch.named(name) } else { dispatch.named(plugin.name()) }
            }
            None => {
                let stores = |sink: &Arc<Sink>| {
                    dispatch.shared().registry.find(&sink.plugin).is_some_and(|plugin| plugin.interfaces.jobs)
                };
                dispatch.sinks().into_iter().filter(stores).collect()
            }
        };
        let labels = candidates.iter().map(|sink| format!("`{}`", sink.label)).collect::<Vec<_>>().join(", ");
        match candidates.as_slice() {
            [sink] => Ok(sink.clone()),
            [] => Err(HandleError::Admin(
                "no sink is known that stores jobs; hint: it becomes known with the first return, load or question that Salt sends"
                    .into(),
            )),
            [first, ..] if args["returner"].as_str() == Some(&first.label) => Ok(first.clone()),
            _ => Err(HandleError::Admin(format!("several sinks fit: {labels}; hint: name one with `--returner`"))),
        }
    }

    async fn jobs_list(&self, args: &Json) -> Result<Json, HandleError> {
        let sink = self.store(args)?;
        let count = args["count"].as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or(20);
        let shared = self.dispatch().shared().clone();
        let list = async move { query::list(&shared, &sink, Some(count), true).await };
        let jobs = self.dispatch().answer(list).await?;
        Ok(jobs.into_iter().map(|(jid, load)| json!({ "jid": jid, "load": parsed(&load) })).collect())
    }

    async fn jobs_show(&self, args: &Json) -> Result<Json, HandleError> {
        let sink = self.store(args)?;
        let jid = args["jid"].as_str().unwrap_or_default().to_owned();
        let (shared, wanted) = (self.dispatch().shared().clone(), jid.clone());
        let load = async move {
            let load = query::get_load(&shared, &sink, &wanted).await?;
            Ok((load, query::get_jid(&shared, &sink, &wanted).await?))
        };
        let (load, returns) = self.dispatch().answer(load).await?;
        let returns: serde_json::Map<_, _> =
            returns.into_iter().map(|(minion, text)| (minion, parsed(&text))).collect();
        Ok(json!({ "jid": jid, "load": load.as_deref().map(parsed), "returns": returns }))
    }

    /// Where items are that were handed over: waiting, dead, or delivered.
    async fn verdict(&self, args: &Json) -> Result<Json, HandleError> {
        let spool = &self.dispatch().shared().spool;
        let seqs: Vec<u64> = args["seqs"].as_array().into_iter().flatten().filter_map(Json::as_u64).collect();
        let mut verdicts = Vec::new();
        for seq in seqs {
            verdicts.push(match spool.item(seq).await? {
                Some(item) => {
                    let error = item.error.or_else(|| {
                        let sink = self.dispatch().sinks().into_iter().find(|sink| sink.id == item.sink);
                        sink.and_then(|sink| sink.health.fresh_failure(Duration::from_secs(3_600)))
                    });
                    json!({ "seq": seq, "state": "waiting", "error": error })
                }
                None => {
                    let filter = DeadFilter { ids: Some(vec![seq]), ..DeadFilter::default() };
                    match spool.dead_list(filter).await?.first() {
                        Some(row) => json!({ "seq": seq, "state": "dead", "error": row.reason }),
                        None => json!({ "seq": seq, "state": "stored" }),
                    }
                }
            });
        }
        Ok(Json::from(verdicts))
    }

    async fn plugin_restart(&self, args: &Json) -> Result<Json, HandleError> {
        let name = args["name"].as_str().unwrap_or_default();
        let plugin = self.plugin(name)?;
        let sinks = self.dispatch().named(plugin.name());
        for sink in &sinks {
            // An instance in the middle of a call is closed when the call is over.
            let closing = sink.clone();
            tokio::spawn(async move { closing.pool.close().await });
            sink.restarts.send_modify(|count| *count += 1);
            sink.wake.notify_one();
        }
        Ok(json!({ "sinks": sinks.len() }))
    }

    fn filter(&self, args: &Json) -> Result<DeadFilter, HandleError> {
        let mut filter = DeadFilter {
            ids: args["id"].as_u64().map(|id| vec![id]),
            reason: args["reason"].as_str().map(str::to_owned),
            before_ms: args["older_than"].as_u64().map(|s| crate::spool::now_ms().saturating_sub(s * 1_000)),
            limit: args["limit"].as_u64().and_then(|limit| usize::try_from(limit).ok()),
            ..DeadFilter::default()
        };
        if let Some(name) = args["sink"].as_str() {
            match self.dispatch().sinks().into_iter().find(|sink| sink.label == name && (name.contains('#')))
            {
                Some(sink) => filter.sink = Some(sink.id),
                None => filter.plugin = Some(name.to_owned()),
            }
        }
        Ok(filter)
    }

    async fn letters(&self, args: &Json) -> Result<Vec<DeadRow>, HandleError> {
        let mut filter = self.filter(args)?;
        filter.limit = Some(filter.limit.unwrap_or(MAX_LETTERS).min(MAX_LETTERS));
        Ok(self.dispatch().shared().spool.dead_list(filter).await?)
    }

    fn letter(&self, row: &DeadRow) -> Json {
        let label = self
            .dispatch()
            .sinks()
            .into_iter()
            .find(|sink| sink.id == row.sink)
            .map(|sink| sink.label.clone());
        let mut letter = json!(row);
        letter["sink"] = json!(label.or_else(|| row.plugin.clone()));
        letter
    }

    async fn dead_show(&self, args: &Json) -> Result<Json, HandleError> {
        let id = args["id"].as_u64().unwrap_or(0);
        let Some(found) = self.dispatch().shared().spool.dead_show(id).await? else {
            return Err(HandleError::Admin(format!("there is no dead letter {id}")));
        };
        let mut letter = self.letter(&found.row);
        letter["record"] = record_json(&found.body);
        Ok(letter)
    }

    async fn dead_export(&self, args: &Json) -> Result<Json, HandleError> {
        let mut letters = Vec::new();
        for row in self.letters(args).await? {
            if let Some(found) = self.dispatch().shared().spool.dead_show(row.id).await? {
                let mut letter = self.letter(&found.row);
                letter["record"] = record_json(&found.body);
                letters.push(letter);
            }
        }
        Ok(Json::from(letters))
    }
}

fn record_json(body: &[u8]) -> Json {
    match Record::from_bytes(body) {
        Ok(record) => json!(record),
        Err(error) => json!({ "unreadable": crate::observe::chain(&error) }),
    }
}

fn parsed(text: &str) -> Json {
    json::parse(text).unwrap_or_else(|_| Json::from(text))
}

fn age(at: SystemTime) -> u64 {
    at.elapsed().unwrap_or_default().as_secs()
}

/// Resident memory of this process in KiB.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}
