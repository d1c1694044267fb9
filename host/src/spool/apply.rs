//! What each command does inside the writer's transaction.
//!
//! Invariants: nothing here changes shared state; what changed is gathered in `Delta` and takes effect only after the
//! commit. A command that is refused (`Ok(Err(..))`) has changed nothing; an `Err` makes the caller roll back.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension};

use super::dead;
use super::disk::{from_i64, time_i64, to_i64};
use super::error::SpoolError;
use super::schema::{self, SEQ_BLOCK, record_sum};
use super::shared::Command;
use super::types::*;

/// Longest error or reason kept with an item.
const MAX_TEXT: usize = 4096;

/// So many new frame ids make the next step of forgetting old ones. A step costs more than storing a record, though it find nothing.
const FORGET_AFTER: u64 = 64;

/// What a command came to.
pub(super) enum Outcome {
    Appended(Appended),
    Settled,
    Sink(SinkId),
    Count(u64),
}

/// Changes of one transaction.
#[derive(Default)]
pub(super) struct Delta {
    pub(super) lanes: BTreeMap<i64, (i64, i64)>,
    pub(super) dead: (i64, i64),
    pub(super) errors: BTreeMap<i64, (String, u64)>,
    pub(super) sinks: Vec<SinkRow>,
    /// Counters only.
    pub(super) counts: Totals,
    pub(super) dead_trouble: Option<Option<String>>,
    /// Bytes written, for the check-point.
    pub(super) written: u64,
    /// Frame ids that are new since old ones were forgotten.
    pub(super) new_ids: u64,
}

/// One transaction of the writer.
pub(super) struct Tx<'a> {
    pub(super) conn: &'a Connection,
    pub(super) sinks: &'a [SinkRow],
    pub(super) totals: Totals,
    pub(super) limits: &'a Limits,
    pub(super) now: u64,
    pub(super) next_seq: i64,
    pub(super) floor: i64,
    pub(super) delta: Delta,
    #[cfg(test)]
    pub(super) fault: &'a super::fault::Fault,
}

type Step<T> = Result<Result<T, SpoolError>, rusqlite::Error>;

impl Tx<'_> {
    pub(super) fn apply(&mut self, command: &Command) -> Step<Outcome> {
        self.step("command")?;
        match command {
            Command::Append { frame, .. } => Ok(self.append(frame)?.map(Outcome::Appended)),
            Command::Settle { list, .. } => {
                for settlement in list {
                    self.settle(settlement)?;
                }
                Ok(Ok(Outcome::Settled))
            }
            Command::Sink { new, .. } => Ok(Ok(Outcome::Sink(self.sink(new)?))),
            Command::Revive { ids, .. } => self.each(ids, Self::revive),
            Command::Discard { ids, .. } => self.each(ids, Self::discard),
            Command::Damaged { .. } | Command::Close { .. } => Ok(Err(SpoolError::Closed)),
        }
    }

    fn each(&mut self, ids: &[i64], f: fn(&mut Self, i64) -> Result<bool, rusqlite::Error>) -> Step<Outcome> {
        let mut done = 0;
        for id in ids {
            done += u64::from(f(self, *id)?);
        }
        Ok(Ok(Outcome::Count(done)))
    }

    /// A place where tests let the disk fail or the process end.
    #[cfg(test)]
    pub(super) fn step(&self, at: &'static str) -> Result<(), rusqlite::Error> {
        self.fault.at(at)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "the test build has a body")]
    #[inline]
    pub(super) fn step(&self, _at: &'static str) -> Result<(), rusqlite::Error> {
        Ok(())
    }

    fn held_bytes(&self) -> u64 {
        let change = self.delta.lanes.values().map(|l| l.1).sum::<i64>() + self.delta.dead.1;
        (self.totals.bytes + self.totals.dead_bytes).saturating_add_signed(change)
    }

    fn dead_bytes(&self) -> u64 {
        self.totals.dead_bytes.saturating_add_signed(self.delta.dead.1)
    }

    fn known_sink(&self, id: SinkId) -> bool {
        self.sinks.iter().chain(&self.delta.sinks).any(|s| s.id == id)
    }

    fn lane(&mut self, sink: i64, items: i64, bytes: i64) {
        let lane = self.delta.lanes.entry(sink).or_default();
        lane.0 += items;
        lane.1 += bytes;
    }

    fn append(&mut self, frame: &NewFrame) -> Step<Appended> {
        let mut bytes = 0;
        for item in &frame.items {
            let size = item.body.len() as u64;
            if !self.known_sink(item.sink) {
                return Ok(Err(SpoolError::UnknownSink(item.sink.0)));
            }
            if size > self.limits.max_item_bytes {
                return Ok(Err(SpoolError::TooLarge { size, limit: self.limits.max_item_bytes }));
            }
            bytes += size;
        }
        if let Some(id) = frame.id {
            let mut known = self.conn.prepare_cached("SELECT 1 FROM frames WHERE at_ms = ?1 AND uid = ?2")?;
            if known.exists((time_i64(id.at_ms), id.uid))? {
                self.delta.counts.duplicates += 1;
                return Ok(Ok(Appended { duplicate: true, seqs: Vec::new() }));
            }
        }
        let held = self.held_bytes();
        if held + bytes > self.limits.max_bytes && !frame.items.is_empty() {
            self.delta.counts.refused_full += 1;
            let items = self.totals.items + self.totals.dead;
            let items = items.saturating_add_signed(self.delta.lanes.values().map(|l| l.0).sum());
            return Ok(Err(SpoolError::Full { bytes: held, max_bytes: self.limits.max_bytes, items }));
        }
        if let Some(id) = frame.id {
            self.conn.prepare_cached("INSERT INTO frames VALUES (?1, ?2, ?3)")?.execute((
                time_i64(id.at_ms),
                id.uid,
                time_i64(self.now),
            ))?;
            self.delta.new_ids += 1;
        }
        let mut seqs = Vec::with_capacity(frame.items.len());
        let mut insert = self.conn.prepare_cached(schema::INSERT_ITEM)?;
        for item in &frame.items {
            self.step("item")?;
            let seq = self.number()?;
            let (sink, kind, arrived) = (item.sink.0, item.kind.code(), time_i64(item.arrived_ms));
            let sum =
                record_sum(seq, sink, kind, item.jid.as_bytes(), item.minion.as_bytes(), arrived, &item.body);
            let size = i64::try_from(item.body.len()).unwrap_or(i64::MAX);
            insert.execute((seq, sink, kind, &item.jid, &item.minion, arrived, size, sum, &item.body))?;
            self.lane(sink, 1, size);
            seqs.push(from_i64(seq));
        }
        self.delta.counts.accepted += seqs.len() as u64;
        self.delta.written += bytes + 256 * seqs.len() as u64;
        Ok(Ok(Appended { duplicate: false, seqs }))
    }

    /// The next number. Blocks of them are noted before they are used.
    fn number(&mut self) -> Result<i64, rusqlite::Error> {
        if self.next_seq >= self.floor {
            self.floor = self.next_seq + SEQ_BLOCK;
            self.conn.execute("UPDATE meta SET v = ?1 WHERE k = 'floor'", [self.floor])?;
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        Ok(seq)
    }

    fn sink(&mut self, new: &NewSink) -> Result<SinkId, rusqlite::Error> {
        let mut all = self.sinks.iter().chain(&self.delta.sinks);
        if let Some(row) = all.find(|s| s.plugin == new.plugin && s.key == new.key) {
            return Ok(row.id);
        }
        let highest = self.sinks.iter().chain(&self.delta.sinks).map(|s| s.id.0).max().unwrap_or(0);
        let row = SinkRow {
            id: SinkId(highest + 1),
            plugin: new.plugin.clone(),
            key: new.key.clone(),
            options: new.options.clone(),
            label: new.label.clone(),
            facts: new.facts.clone(),
            created_ms: self.now,
        };
        schema::insert_sink(self.conn, &row)?;
        let id = row.id;
        self.delta.sinks.push(row);
        Ok(id)
    }

    /// A number that is no longer there was settled before: that is no error.
    pub(super) fn settle(&mut self, settlement: &Settlement) -> Result<(), rusqlite::Error> {
        self.step("settlement")?;
        self.delta.written += 256;
        let Ok(seq) = to_i64(settlement.seq(), "seq") else { return Ok(()) };
        match settlement {
            Settlement::Delivered { .. } => self.delivered(seq),
            Settlement::Retry { not_before_ms, error, .. } => {
                if let Some(sink) = self.hold(seq, *not_before_ms, error)? {
                    self.delta.counts.retried += 1;
                    self.delta.errors.insert(sink, (cut(error).to_owned(), self.now));
                }
                Ok(())
            }
            Settlement::Dead { reason, class, .. } => self.bury(seq, cut(reason), *class),
        }
    }

    fn delivered(&mut self, seq: i64) -> Result<(), rusqlite::Error> {
        let gone: Option<(i64, i64)> = self
            .conn
            .prepare_cached("DELETE FROM items WHERE seq = ?1 RETURNING sink, size")?
            .query_row([seq], |r| Ok((r.get(0)?, r.get(1)?)))
            .optional()?;
        if let Some((sink, size)) = gone {
            self.lane(sink, -1, -size);
            self.delta.counts.delivered += 1;
            return Ok(());
        }
        // It may have expired while it was being delivered.
        let expired: Option<i64> = self
            .conn
            .prepare_cached("DELETE FROM dead WHERE seq = ?1 AND class = ?2 RETURNING size")?
            .query_row([seq, DeadClass::Expired.code()], |r| r.get(0))
            .optional()?;
        if let Some(size) = expired {
            self.delta.dead.0 -= 1;
            self.delta.dead.1 -= size;
            self.delta.counts.delivered += 1;
        }
        Ok(())
    }

    /// Notes a failed attempt; gives the sink if the item is there.
    fn hold(&mut self, seq: i64, not_before_ms: u64, error: &str) -> Result<Option<i64>, rusqlite::Error> {
        self.conn
            .prepare_cached(
                "UPDATE items SET attempts = attempts + 1, not_before_ms = ?2, error = ?3 WHERE seq = ?1 RETURNING sink",
            )?
            .query_row((seq, time_i64(not_before_ms.max(1)), cut(error)), |r| r.get(0))
            .optional()
    }

    fn bury(&mut self, seq: i64, reason: &str, class: DeadClass) -> Result<(), rusqlite::Error> {
        let found: Option<(i64, i64)> = self
            .conn
            .prepare_cached("SELECT sink, size FROM items WHERE seq = ?1")?
            .query_row([seq], |r| Ok((r.get(0)?, r.get(1)?)))
            .optional()?;
        let Some((sink, size)) = found else { return Ok(()) };
        if let Err(why) = self.dead_room(from_i64(size))? {
            let until =
                self.now.saturating_add(u64::try_from(self.limits.dead_hold.as_millis()).unwrap_or(u64::MAX));
            self.hold(seq, until, &format!("{reason} (kept in its lane: {why})"))?;
            self.delta.errors.insert(sink, (format!("{why}; item was to die: {reason}"), self.now));
            self.delta.dead_trouble = Some(Some(why));
            return Ok(());
        }
        self.conn
            .prepare_cached(
                "INSERT INTO dead SELECT seq, sink, kind, jid, minion, arrived_ms, size, attempts, error, ?2, ?3, ?4, \
                 sum, body FROM items WHERE seq = ?1",
            )?
            .execute((seq, reason, class.code(), time_i64(self.now)))?;
        self.step("between the two tables")?;
        self.conn.prepare_cached("DELETE FROM items WHERE seq = ?1")?.execute([seq])?;
        self.lane(sink, -1, -size);
        self.delta.dead.0 += 1;
        self.delta.dead.1 += size;
        self.delta.written += from_i64(size);
        self.delta.errors.insert(sink, (reason.to_owned(), self.now));
        self.delta.dead_trouble = Some(None);
        let counts = &mut self.delta.counts;
        match class {
            DeadClass::Rejected => counts.rejected += 1,
            DeadClass::Expired => counts.expired += 1,
            DeadClass::Damaged => counts.damaged += 1,
        }
        Ok(())
    }

    /// Makes room for one dead letter, or says why there is none.
    fn dead_room(&mut self, size: u64) -> Result<Result<(), String>, rusqlite::Error> {
        let max = self.limits.max_dead_bytes;
        if self.dead_bytes() + size <= max {
            return Ok(Ok(()));
        }
        let dir = match &self.limits.dead_policy {
            DeadPolicy::Refuse => {
                return Ok(Err(format!(
                    "dead letters hold {} of {max} bytes; hint: `returnerd dead export` and `dead drop`",
                    self.dead_bytes()
                )));
            }
            DeadPolicy::Export(dir) => dir,
        };
        // More than is needed now, so that files are few.
        let target = (max / 5 * 4).min(max.saturating_sub(size));
        let excess = self.dead_bytes().saturating_sub(target);
        match dead::export_oldest(self.conn, dir, excess, self.now)? {
            Ok((count, bytes)) => {
                self.step("after the export")?;
                self.delta.dead.0 -= i64::try_from(count).unwrap_or(i64::MAX);
                self.delta.dead.1 -= i64::try_from(bytes).unwrap_or(i64::MAX);
                self.delta.counts.exported += count;
                Ok(Ok(()))
            }
            Err(err) => {
                let cause = std::error::Error::source(&err).map(|c| format!(": {c}")).unwrap_or_default();
                Ok(Err(format!("dead letters are at their limit and cannot be exported: {err}{cause}")))
            }
        }
    }

    /// Back into its lane, as if it were new; patience starts again.
    fn revive(&mut self, seq: i64) -> Result<bool, rusqlite::Error> {
        let found: Option<(i64, i64)> = self
            .conn
            .prepare_cached("SELECT sink, size FROM dead WHERE seq = ?1")?
            .query_row([seq], |r| Ok((r.get(0)?, r.get(1)?)))
            .optional()?;
        let Some((sink, size)) = found else { return Ok(false) };
        if self.sinks.iter().any(|s| s.id.0 == sink && s.key.starts_with(super::LOST)) {
            return Ok(false);
        }
        self.conn
            .prepare_cached(
                "INSERT INTO items(seq, sink, kind, jid, minion, arrived_ms, since_ms, size, attempts, not_before_ms, \
                 error, sum, body) SELECT seq, sink, kind, jid, minion, arrived_ms, ?2, size, 0, 0, error, sum, body \
                 FROM dead WHERE seq = ?1",
            )?
            .execute((seq, time_i64(self.now)))?;
        self.step("between the two tables")?;
        self.discard_row(seq, size)?;
        self.lane(sink, 1, size);
        self.delta.counts.revived += 1;
        self.delta.written += from_i64(size);
        Ok(true)
    }

    fn discard(&mut self, seq: i64) -> Result<bool, rusqlite::Error> {
        let found: Option<i64> = self
            .conn
            .prepare_cached("SELECT size FROM dead WHERE seq = ?1")?
            .query_row([seq], |r| r.get(0))
            .optional()?;
        let Some(size) = found else { return Ok(false) };
        self.discard_row(seq, size)?;
        self.delta.counts.dropped += 1;
        Ok(true)
    }

    fn discard_row(&mut self, seq: i64, size: i64) -> Result<(), rusqlite::Error> {
        self.conn.prepare_cached("DELETE FROM dead WHERE seq = ?1")?.execute([seq])?;
        self.delta.dead.0 -= 1;
        self.delta.dead.1 -= size;
        self.delta.dead_trouble = Some(None);
        Ok(())
    }

    /// Writes what goes with the rest, and now and then forgets frame ids that are too old: more than have come.
    pub(super) fn finish(&mut self) -> Result<(), rusqlite::Error> {
        for (sink, (error, at)) in &self.delta.errors {
            self.conn.prepare_cached("INSERT OR REPLACE INTO sink_errors VALUES (?1, ?2, ?3)")?.execute((
                sink,
                error,
                time_i64(*at),
            ))?;
        }
        if self.delta.new_ids >= FORGET_AFTER {
            schema::forget_frames(self.conn, self.limits, self.now, 2 * self.delta.new_ids)?;
            self.delta.new_ids = 0;
        }
        self.step("commit")
    }
}

/// The start of a text, cut at a character.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or(text)
}
