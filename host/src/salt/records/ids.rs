//! Job ids and event ids.
//!
//! A job id is 20 digits `YYYYMMDDHHMMSSffffff` in UTC, or these with a suffix such as `_1462`. An event id is 41 bits
//! of milliseconds since 2020, 10 bits of node and 12 bits of sequence.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

const DIGITS: usize = 20;
const MS_PER_DAY: u64 = 86_400_000;
/// Start of the year 10000, which no job id can tell.
const END_MS: u64 = 253_402_300_800_000;
/// 2020-01-01T00:00:00Z.
const EVENT_EPOCH_MS: u64 = 1_577_836_800_000;
const SEQUENCE_BITS: u32 = 12;
const NODE_BITS: u32 = 10;
const MS_BITS: u32 = 41;

/// What makes ids in one process.
#[derive(Debug)]
pub struct Ids {
    /// For events.
    pub events: EventIds,
    /// For returns that come without a job id.
    pub jids: FreshJids,
}

impl Ids {
    /// With the number of this node, of which the lowest 10 bits count.
    pub fn new(node: u16) -> Ids {
        Ids { events: EventIds::new(node), jids: FreshJids::default() }
    }
}

/// Ids of events: unique over nodes, strictly growing within a process, below 2^63.
#[derive(Debug)]
pub struct EventIds {
    node: u64,
    /// Milliseconds and sequence of the last id, without the node.
    last: AtomicU64,
}

impl EventIds {
    /// With the number of this node, of which the lowest 10 bits count.
    pub fn new(node: u16) -> EventIds {
        EventIds { node: u64::from(node) & ((1 << NODE_BITS) - 1), last: AtomicU64::new(0) }
    }

    /// The next id.
    pub fn next(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.next_at(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
    }

    /// The next id at that time. If the clock has stepped back, or more than 4,096 are made in one millisecond, it
    /// is dated a little ahead.
    fn next_at(&self, now_ms: u64) -> u64 {
        let ms = now_ms.saturating_sub(EVENT_EPOCH_MS) & ((1 << MS_BITS) - 1);
        let now = ms << SEQUENCE_BITS;
        let step = |last: u64| Some(now.max(last + 1));
        let last =
            self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).unwrap_or_else(|last| last);
        let stamp = now.max(last + 1);
        let (ms, sequence) = (stamp >> SEQUENCE_BITS, stamp & ((1 << SEQUENCE_BITS) - 1));
        (ms << (NODE_BITS + SEQUENCE_BITS)) | (self.node << SEQUENCE_BITS) | sequence
    }
}

/// Job ids for returns that have none: the same for a repeated request, different for different ones.
#[derive(Debug, Default)]
pub struct FreshJids(Mutex<Given>);

#[derive(Debug, Default)]
struct Given {
    by_uid: HashMap<[u8; 16], u64>,
    taken: HashSet<u64>,
    order: VecDeque<[u8; 16]>,
}

impl FreshJids {
    /// How many are remembered.
    const KEPT: usize = 4_096;

    /// The job id for the request with that `uid`, made at `at` seconds since 1970. It is made of the time, so a
    /// repetition after a restart has the same one too, unless two requests fell on one microsecond.
    pub fn fresh(&self, uid: [u8; 16], at: f64) -> String {
        let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(us) = given.by_uid.get(&uid) {
            return jid_from_us(*us);
        }
        let mut us = micros(at);
        while !given.taken.insert(us) {
            us += 1;
        }
        given.by_uid.insert(uid, us);
        given.order.push_back(uid);
        if given.order.len() > Self::KEPT
            && let Some(oldest) = given.order.pop_front()
            && let Some(us) = given.by_uid.remove(&oldest)
        {
            given.taken.remove(&us);
        }
        jid_from_us(us)
    }
}

// A float cast saturates, and times before 1970 become 1970.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

/// The words that stand where a job id is not known: at a start-up state, and where a job is not to be stored.
pub(super) fn is_placeholder(jid: &str) -> bool {
    jid == "req" || jid == "nocache"
}

/// The job id of a moment in milliseconds since 1970 (UTC); at most the end of the year 9999.
pub fn jid_from_ms(ms: u64) -> String {
    jid_from_us(ms.saturating_mul(1_000))
}

fn jid_from_us(us: u64) -> String {
    let us = us.min(END_MS * 1_000 - 1);
    let (ms, micros) = (us / 1_000, us % 1_000_000);
    let (year, month, day) = date(ms / MS_PER_DAY);
    let second = ms % MS_PER_DAY / 1_000;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}{micros:06}")
}

/// The moment of a job id, with or without a suffix, in milliseconds since 1970 (UTC).
pub fn ms_from_jid(jid: &str) -> Option<u64> {
    if !looks_like_jid(jid) {
        return None;
    }
    let part = |from: usize, len: usize| jid.get(from..from + len)?.parse::<u64>().ok();
    let (year, month, day) = (part(0, 4)?, part(4, 2)?, part(6, 2)?);
    let (hour, minute, second, micros) = (part(8, 2)?, part(10, 2)?, part(12, 2)?, part(14, 6)?);
    if year < 1970 || !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let days = days(year, month, day);
    if date(days) != (year, month, day) {
        return None;
    }
    Some(days * MS_PER_DAY + ((hour * 60 + minute) * 60 + second) * 1_000 + micros / 1_000)
}

/// Whether the text is 20 digits, perhaps with a suffix after `_`.
pub fn looks_like_jid(text: &str) -> bool {
    let (digits, suffix) = text.as_bytes().split_at_checked(DIGITS).unwrap_or((&[], b"x"));
    digits.iter().all(u8::is_ascii_digit)
        && (suffix.is_empty() || (suffix.len() > 1 && suffix.starts_with(b"_")))
}

/// Year, month and day of a number of days since 1970. Counting from March puts the leap day at the year's end.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// The reverse of `date`, for years from 1970 on; wrong for dates that do not exist.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let (era, year_of_era) = (year / 400, year % 400);
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted + 2) / 5 + day.saturating_sub(1);
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).saturating_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jid_tells_its_moment() {
        for (jid, ms) in [
            ("19700101000000000000", 0),
            ("20000229235959999000", 951_868_799_999),
            ("20261201033051370000", 1_796_095_851_370),
            ("99991231235959999000", END_MS - 1),
        ] {
            assert_eq!(jid_from_ms(ms), jid);
            assert_eq!(ms_from_jid(jid), Some(ms));
            assert_eq!(ms_from_jid(&format!("{jid}_1462")), Some(ms));
        }
        assert_eq!(jid_from_ms(u64::MAX), "99991231235959999999");
        for day in 0..200_000 {
            let (year, month, day_of_month) = date(day);
            assert_eq!(days(year, month, day_of_month), day);
        }
    }

    #[test]
    fn what_is_no_jid_is_told() {
        for text in [
            "",
            "req",
            "2026120103305137096",
            "202612010330513709661",
            "2026120103305137096x",
            "20261201033051370966_",
        ] {
            assert!(!looks_like_jid(text), "{text}");
        }
        for text in
            ["20261301033051370966", "20260230033051370966", "20260101243051370966", "19691231235959000000"]
        {
            assert!(looks_like_jid(text) && ms_from_jid(text).is_none(), "{text}");
        }
        assert!(!looks_like_jid("２０２６１２０１０３３０５１３７０９６６"));
    }

    #[test]
    fn event_ids_grow_even_if_the_clock_steps_back() {
        let ids = EventIds::new(1_023);
        let now = EVENT_EPOCH_MS + 1_000;
        let mut last = 0;
        for at in [now, now, now - 500, 0, now + 1].into_iter().chain(std::iter::repeat_n(now, 10_000)) {
            let id = ids.next_at(at);
            assert!(id > last && id < 1 << 63);
            assert_eq!(id >> SEQUENCE_BITS & 0x3ff, 1_023);
            last = id;
        }
        assert!(EventIds::new(u16::MAX).next_at(u64::MAX) < 1 << 63);
        assert_ne!(EventIds::new(1).next_at(now), EventIds::new(2).next_at(now));
    }

    #[test]
    fn event_ids_are_unique_over_threads() {
        let ids = EventIds::new(1);
        let seen = Mutex::new(HashSet::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mine: Vec<u64> = (0..5_000).map(|_| ids.next()).collect();
                    assert!(mine.is_sorted());
                    seen.lock().unwrap().extend(mine);
                });
            }
        });
        assert_eq!(seen.lock().unwrap().len(), 20_000);
    }

    #[test]
    fn a_fresh_jid_is_the_same_for_a_repeated_request_only() {
        let at = 1_796_095_851.370_966;
        let jids = FreshJids::default();
        assert_eq!(jids.fresh([1; 16], at), "20261201033051370966");
        assert_eq!(jids.fresh([2; 16], at), "20261201033051370967");
        assert_eq!(jids.fresh([1; 16], at), "20261201033051370966");
        assert_eq!(FreshJids::default().fresh([1; 16], at), "20261201033051370966");
        let many: HashSet<String> =
            (0..10_000u128).map(|n| jids.fresh(n.to_be_bytes(), at + n as f64)).collect();
        assert_eq!(many.len(), 10_000);
        assert!(jids.0.lock().unwrap().taken.len() <= FreshJids::KEPT);
    }
}
