//! The values that go into and come out of the spool. Times are milliseconds since 1970, sizes are payload bytes.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

/// Names a sink inside one spool; stable across restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct SinkId(pub i64);

/// The three kinds of record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A job's load.
    Load,
    /// One minion's return.
    Return,
    /// An event of the bus.
    Event,
}

impl Kind {
    pub(super) fn code(self) -> i64 {
        match self {
            Self::Load => 0,
            Self::Return => 1,
            Self::Event => 2,
        }
    }

    pub(super) fn from_code(code: i64) -> Option<Self> {
        match code {
            0 => Some(Self::Load),
            1 => Some(Self::Return),
            2 => Some(Self::Event),
            _ => None,
        }
    }
}

/// One plugin with one resolved configuration, to be registered.
#[derive(Clone)]
pub struct NewSink {
    /// Name of the plugin.
    pub plugin: String,
    /// Hash of the resolved configuration; with `plugin` the identity of the sink.
    pub key: String,
    /// The resolved options as JSON text. Secret: never logged.
    pub options: String,
    /// What an operator sees in place of the key.
    pub label: Option<String>,
    /// Facts of the manifest at that time, as JSON text.
    pub facts: String,
}

/// A registered sink.
#[derive(Clone, PartialEq, Eq)]
pub struct SinkRow {
    /// Its number.
    pub id: SinkId,
    /// Name of the plugin.
    pub plugin: String,
    /// Hash of the resolved configuration.
    pub key: String,
    /// The resolved options as JSON text. Secret.
    pub options: String,
    /// What an operator sees.
    pub label: Option<String>,
    /// Facts of the manifest as JSON text.
    pub facts: String,
    /// When it was first seen.
    pub created_ms: u64,
}

impl std::fmt::Debug for NewSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewSink")
            .field("plugin", &self.plugin)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SinkRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut s = f.debug_struct("SinkRow");
        s.field("id", &self.id).field("plugin", &self.plugin).field("key", &self.key).finish_non_exhaustive()
    }
}

/// One record for one sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewItem {
    /// Its lane.
    pub sink: SinkId,
    /// Its kind.
    pub kind: Kind,
    /// Job id, or empty.
    pub jid: String,
    /// Minion id, or empty.
    pub minion: String,
    /// When it was taken in.
    pub arrived_ms: u64,
    /// The record, opaque to the spool.
    pub body: Vec<u8>,
}

/// What makes a repeated frame known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameId {
    /// When the shim was called; the same in a repetition. It only orders the table, so that looking up and
    /// forgetting stay cheap.
    pub at_ms: u64,
    /// Random, the same in a repetition.
    pub uid: [u8; 16],
}

/// All records of one request: taken together or not at all.
#[derive(Debug, Clone, Default)]
pub struct NewFrame {
    /// Identity of the request, if it has one.
    pub id: Option<FrameId>,
    /// Its records, one for each sink and record; may be empty.
    pub items: Vec<NewItem>,
}

/// The answer to an append: everything in it is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// True if the frame was taken before; then nothing was added now and `seqs` is empty.
    pub duplicate: bool,
    /// One number for each item, ascending.
    pub seqs: Vec<u64>,
}

/// An item as the lane gives it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its number: ascending in order of acceptance, never used twice.
    pub seq: u64,
    /// Its lane.
    pub sink: SinkId,
    /// Its kind.
    pub kind: Kind,
    /// Job id, or empty.
    pub jid: String,
    /// Minion id, or empty.
    pub minion: String,
    /// When it was taken in.
    pub arrived_ms: u64,
    /// Since when patience counts: `arrived_ms`, or when an operator put it back.
    pub since_ms: u64,
    /// How often it was retried.
    pub attempts: u32,
    /// Not to be given out before this; 0 if it was never retried.
    pub not_before_ms: u64,
    /// Why it was retried last.
    pub error: Option<String>,
    /// The record.
    pub body: Vec<u8>,
}

/// How much a batch may hold.
#[derive(Debug, Clone, Copy)]
pub struct BatchLimits {
    /// Most items; at least 1.
    pub max_items: usize,
    /// Most payload bytes; the first item is given even if it alone is larger.
    pub max_bytes: u64,
}

/// Why an item died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeadClass {
    /// The plugin said that it will never take it.
    Rejected,
    /// Patience ran out.
    Expired,
    /// It did not come back from the disk as it was written, or its sink was lost.
    Damaged,
}

impl DeadClass {
    /// `rejected`, `expired` or `damaged`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Damaged => "damaged",
        }
    }

    /// The reverse of `as_str`.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        [Self::Rejected, Self::Expired, Self::Damaged].into_iter().find(|class| class.as_str() == text)
    }

    pub(super) fn code(self) -> i64 {
        match self {
            Self::Rejected => 0,
            Self::Expired => 1,
            Self::Damaged => 2,
        }
    }

    pub(super) fn from_code(code: i64) -> Self {
        match code {
            0 => Self::Rejected,
            1 => Self::Expired,
            _ => Self::Damaged,
        }
    }
}

/// What became of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// Stored outside; it leaves the spool.
    Delivered {
        /// The item.
        seq: u64,
    },
    /// To be tried again.
    Retry {
        /// The item.
        seq: u64,
        /// Not before this.
        not_before_ms: u64,
        /// Why.
        error: String,
    },
    /// Never to be tried again; it becomes a dead letter.
    Dead {
        /// The item.
        seq: u64,
        /// Why; for an expired item the last error is kept beside it.
        reason: String,
        /// In which way.
        class: DeadClass,
    },
}

impl Settlement {
    /// The item it is about.
    #[must_use]
    pub fn seq(&self) -> u64 {
        match self {
            Self::Delivered { seq } | Self::Retry { seq, .. } | Self::Dead { seq, .. } => *seq,
        }
    }
}

/// The answer to a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Committed. Only if the machine itself ends within about a second are the items given out again.
    Committed,
    /// The disk does not take it now. It is kept in memory and tried again; until then the items are not given
    /// out. Only a crash in that time gives them out again.
    Deferred,
}

/// What to do when dead letters reach their limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeadPolicy {
    /// The item stays in its lane, held back, and the state says so.
    Refuse,
    /// The oldest dead letters are written to a dated file in this directory, then removed.
    Export(PathBuf),
}

/// Bounds of the spool.
#[derive(Debug, Clone)]
pub struct Limits {
    /// High-water mark on payload bytes, dead letters included; past it appends are refused.
    pub max_bytes: u64,
    /// Largest single item.
    pub max_item_bytes: u64,
    /// Bound on dead letters.
    pub max_dead_bytes: u64,
    /// What happens at that bound.
    pub dead_policy: DeadPolicy,
    /// Bytes of appends that may wait for the writer; further producers wait for room.
    pub max_waiting_bytes: u64,
    /// Settlements kept in memory while the disk takes none; past it the lanes pause.
    pub max_owed: usize,
    /// Size of a file kept so that there is room to settle on a full disk; 0 for none. At least `log_bytes`, which is what
    /// copying the log into the database may need.
    pub reserve_bytes: u64,
    /// Size of the write-ahead log (about) at which it is copied into the database.
    pub log_bytes: u64,
    /// How often a disk that failed is tried.
    pub probe_every: Duration,
    /// How long frame ids are known.
    pub frame_ids_for: Duration,
    /// A database up to this size is checked in full before use after an unclean stop; a larger one in the background.
    pub check_at_once_bytes: u64,
    /// How long an item is held back whose dead letter was refused.
    pub dead_hold: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_bytes: 4 << 30,
            max_item_bytes: 64 << 20,
            max_dead_bytes: 512 << 20,
            dead_policy: DeadPolicy::Refuse,
            max_waiting_bytes: 64 << 20,
            max_owed: 100_000,
            reserve_bytes: 16 << 20,
            log_bytes: 12 << 20,
            probe_every: Duration::from_millis(500),
            frame_ids_for: Duration::from_secs(24 * 3600),
            check_at_once_bytes: 32 << 20,
            dead_hold: Duration::from_secs(60),
        }
    }
}

/// Whether the spool takes items.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Condition {
    /// All is well.
    Healthy,
    /// The disk takes no writes; appends are refused, the writer goes on probing.
    Degraded {
        /// What the disk said.
        reason: String,
        /// Since when.
        since_ms: u64,
    },
}

/// State of the spool as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SpoolState {
    /// Whether it takes items.
    pub condition: Condition,
    /// Set while dead letters are refused for lack of room or because an export fails.
    pub dead_trouble: Option<String>,
    /// Settlements kept in memory.
    pub owed: usize,
    /// What was found and done when damage was met while running, newest last.
    pub damages: Vec<Damage>,
}

/// What was done with a damaged database.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// How it was noticed.
    pub reason: String,
    /// Where the damaged files are now.
    pub set_aside: Vec<PathBuf>,
    /// Sinks brought over.
    pub sinks: u64,
    /// Items brought over.
    pub items: u64,
    /// Dead letters brought over.
    pub dead: u64,
    /// Items made dead letters because their sink was lost.
    pub orphans: u64,
    /// Records that were found but whose content was not what had been written.
    pub unreadable: u64,
    /// Pages that could not be read at all or made no sense.
    pub bad_pages: u64,
    /// True if freed pages could not be told apart, so that items already delivered may have come back.
    pub may_repeat: bool,
    /// Set if the rescue ended early, and why.
    pub incomplete: Option<String>,
}

/// What `open` found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Recovery {
    /// True if the last stop was clean.
    pub clean: bool,
    /// True if there was no database before.
    pub created: bool,
    /// Items found.
    pub items: u64,
    /// Payload bytes of them.
    pub bytes: u64,
    /// Dead letters found.
    pub dead: u64,
    /// Set if the database was damaged.
    pub damage: Option<Damage>,
    /// Set if the disk did not let the database be opened; the writer goes on trying.
    pub unavailable: Option<String>,
}

impl Recovery {
    /// What an operator should know of it, a line for each; none after a clean start.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(damage) = &self.damage {
            lines.push(damage.line());
        }
        if let Some(reason) = &self.unavailable {
            lines.push(format!("the spool takes nothing yet: {reason}"));
        }
        lines
    }
}

impl Damage {
    /// What was met and what was saved, in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let aside: Vec<String> = self.set_aside.iter().map(|path| format!("`{}`", path.display())).collect();
        let mut line = format!(
            "the spool's database was damaged ({}); {} items, {} dead letters and {} sinks were saved, {} records were \
             unreadable, {} items lost their sink and are dead letters; the damaged files are kept as {}",
            self.reason,
            self.items,
            self.dead,
            self.sinks,
            self.unreadable,
            self.orphans,
            if aside.is_empty() { "nothing".to_owned() } else { aside.join(", ") }
        );
        if self.may_repeat {
            line.push_str("; items that were delivered already may come again");
        }
        if let Some(reason) = &self.incomplete {
            line.push_str(&format!("; the rescue ended early: {reason}"));
        }
        line
    }
}

/// Numbers of one lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LaneStats {
    /// The sink.
    pub sink: SinkId,
    /// Name of the plugin.
    pub plugin: String,
    /// What an operator sees.
    pub label: Option<String>,
    /// Items waiting.
    pub depth: u64,
    /// Payload bytes of them.
    pub bytes: u64,
    /// Of these, items that were retried at least once.
    pub retried: u64,
    /// Arrival of the one that waits longest.
    pub oldest_ms: Option<u64>,
    /// Highest number of attempts among them.
    pub max_attempts: u32,
    /// The last error that made an item be retried or die, and when.
    pub last_error: Option<(String, u64)>,
}

/// Sums that the writer keeps in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Items in all lanes.
    pub items: u64,
    /// Payload bytes of them.
    pub bytes: u64,
    /// Dead letters.
    pub dead: u64,
    /// Payload bytes of them.
    pub dead_bytes: u64,
    /// Since start: items accepted.
    pub accepted: u64,
    /// Since start: frames known already.
    pub duplicates: u64,
    /// Since start: appends refused because of the mark.
    pub refused_full: u64,
    /// Since start: appends refused because of the disk.
    pub refused_disk: u64,
    /// Since start: items delivered.
    pub delivered: u64,
    /// Since start: retries noted.
    pub retried: u64,
    /// Since start: items rejected.
    pub rejected: u64,
    /// Since start: items expired.
    pub expired: u64,
    /// Since start: items found damaged.
    pub damaged: u64,
    /// Since start: dead letters put back.
    pub revived: u64,
    /// Since start: dead letters dropped by an operator.
    pub dropped: u64,
    /// Since start: dead letters exported and removed because of the bound.
    pub exported: u64,
    /// Since start: commits.
    pub commits: u64,
}

/// All numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// By lane, in order of sink id.
    pub lanes: Vec<LaneStats>,
    /// Over all.
    pub totals: Totals,
}

/// Which dead letters are meant; an unset field matches all.
#[derive(Debug, Clone, Default)]
pub struct DeadFilter {
    /// Exactly these.
    pub ids: Option<Vec<u64>>,
    /// Of this sink.
    pub sink: Option<SinkId>,
    /// Of this plugin.
    pub plugin: Option<String>,
    /// Of this class.
    pub class: Option<DeadClass>,
    /// With this text in the reason or the last error.
    pub reason: Option<String>,
    /// Died before this.
    pub before_ms: Option<u64>,
    /// Died at this time or later.
    pub after_ms: Option<u64>,
    /// At most so many, oldest first.
    pub limit: Option<usize>,
}

/// A dead letter without its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadRow {
    /// Its number: the `seq` that it had in its lane.
    pub id: u64,
    /// The sink.
    pub sink: SinkId,
    /// Name of the plugin, if the sink is known.
    pub plugin: Option<String>,
    /// Its kind.
    pub kind: Kind,
    /// Job id, or empty.
    pub jid: String,
    /// Minion id, or empty.
    pub minion: String,
    /// When it was taken in.
    pub arrived_ms: u64,
    /// How often it was retried.
    pub attempts: u32,
    /// The last error before it died.
    pub error: Option<String>,
    /// Why it died.
    pub reason: String,
    /// In which way.
    pub class: DeadClass,
    /// When.
    pub died_ms: u64,
    /// Payload bytes.
    pub size: u64,
}

/// A dead letter with its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// What is known of it.
    pub row: DeadRow,
    /// The record.
    pub body: Vec<u8>,
    /// False if the record is not what was written.
    pub sound: bool,
}

/// What `verify` found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Complaints of SQLite's integrity check; empty if there are none.
    pub problems: Vec<String>,
    /// Records whose checksum was compared.
    pub checked: u64,
    /// Numbers of the items and dead letters that are not what was written (the first hundred).
    pub unreadable: Vec<u64>,
}

impl Verified {
    /// True if nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty() && self.unreadable.is_empty()
    }
}
