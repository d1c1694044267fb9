//! Reads the records of a database file page by page, without SQLite: for a file whose trees cannot be trusted.
//!
//! Every page that looks like a leaf is taken apart, whichever tree it belongs to; each record carries a checksum, so
//! what comes out is what was written, or is counted as unreadable. Pages in the write-ahead log stand before those of the
//! file. Freed pages are left out as long as the list of them can be read, because they still hold what was delivered.
//! Nothing here trusts a number of the file: every offset is checked, every chain is bounded.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::schema::PAGE;

const WAL_HEADER: u64 = 32;
const FRAME_HEADER: u64 = 24;

/// A value of a record.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Null,
    Int(i64),
    Text(&'a [u8]),
    Blob(&'a [u8]),
    Other,
}

impl<'a> Value<'a> {
    pub(super) fn int(self) -> Option<i64> {
        if let Self::Int(v) = self { Some(v) } else { None }
    }

    pub(super) fn text(self) -> Option<&'a str> {
        if let Self::Text(v) = self { std::str::from_utf8(v).ok() } else { None }
    }

    pub(super) fn blob(self) -> Option<&'a [u8]> {
        if let Self::Blob(v) = self { Some(v) } else { None }
    }

    pub(super) fn is_null(self) -> bool {
        matches!(self, Self::Null)
    }
}

/// What a write-ahead log holds.
#[derive(Debug, Default)]
pub(super) struct Wal {
    file: Option<File>,
    /// Offset of the newest content of a page.
    pages: HashMap<u32, u64>,
    /// Pages of the database after the last commit; 0 if there is none.
    size: u32,
    /// True if committed frames follow one that is not what was written: SQLite would silently leave them out.
    pub(super) broken: bool,
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes)
}

fn be16(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_be_bytes) as usize
}

fn wal_sum(big: bool, mut s: (u32, u32), bytes: &[u8]) -> (u32, u32) {
    let (pairs, _) = bytes.as_chunks::<8>();
    for p in pairs {
        let (a, b) = ([p[0], p[1], p[2], p[3]], [p[4], p[5], p[6], p[7]]);
        let (a, b) = if big {
            (u32::from_be_bytes(a), u32::from_be_bytes(b))
        } else {
            (u32::from_le_bytes(a), u32::from_le_bytes(b))
        };
        s.0 = s.0.wrapping_add(a).wrapping_add(s.1);
        s.1 = s.1.wrapping_add(b).wrapping_add(s.0);
    }
    s
}

impl Wal {
    /// Reads the log beside a database; none, an empty one and one that cannot be read hold nothing.
    ///
    /// A crash leaves at most one transaction unfinished, the last: so a commit after a bad frame, with frames of a
    /// further transaction behind it, is a sign that the disk changed what was on it.
    pub(super) fn read(path: &Path) -> Self {
        let mut wal = Self::default();
        let Ok(file) = File::open(path) else { return wal };
        let Ok(len) = file.metadata().map(|m| m.len()) else { return wal };
        let mut reader = io::BufReader::with_capacity(1 << 20, &file);
        let mut header = [0; WAL_HEADER as usize];
        if len < WAL_HEADER || reader.read_exact(&mut header).is_err() {
            return wal;
        }
        let big = be32(&header, 0) & 1 == 1;
        let start = wal_sum(big, (0, 0), &header[..24]);
        let header_good =
            start == (be32(&header, 24), be32(&header, 28)) && be32(&header, 0) | 1 == 0x377f_0683;
        let mut salts = (be32(&header, 16), be32(&header, 20));
        let mut chain = start;
        let mut bad = !header_good;
        let mut commits_after_bad = 0;
        let mut pending = Vec::new();
        let mut frame = vec![0; FRAME_HEADER as usize + PAGE];
        let mut at = WAL_HEADER;
        while at + frame.len() as u64 <= len && reader.read_exact(&mut frame).is_ok() {
            let (head, page) = frame.split_at(FRAME_HEADER as usize);
            if at == WAL_HEADER && !header_good {
                salts = (be32(head, 8), be32(head, 12));
            }
            let same = (be32(head, 8), be32(head, 12)) == salts;
            let noted = (be32(head, 16), be32(head, 20));
            let sum = wal_sum(big, wal_sum(big, chain, &head[..8]), page);
            if !same && sum != noted {
                // Older frames from before the log was begun again, or one whose salt was hit.
                if bad || !wal.more_follow(&file, at, len, salts) {
                    break;
                }
                bad = true;
            } else if sum != noted {
                bad = true;
            }
            // Each frame's sum continues the one before it as noted there: a bad frame spoils only itself and the next.
            chain = noted;
            pending.push((be32(head, 0), at + FRAME_HEADER));
            let size = be32(head, 4);
            if size != 0 {
                commits_after_bad += u32::from(bad);
                wal.size = size;
                wal.pages.extend(pending.drain(..));
            } else if bad && commits_after_bad > 0 {
                wal.broken = true;
            }
            at += frame.len() as u64;
        }
        wal.broken |= commits_after_bad > 1 || (!header_good && !wal.pages.is_empty());
        wal.file = Some(file);
        wal
    }

    fn more_follow(&self, file: &File, at: u64, len: u64, salts: (u32, u32)) -> bool {
        let next = at + FRAME_HEADER + PAGE as u64;
        let mut head = [0; FRAME_HEADER as usize];
        next + FRAME_HEADER <= len
            && file.read_exact_at(&mut head, next).is_ok()
            && (be32(&head, 8), be32(&head, 12)) == salts
    }
}

/// A damaged database: its file with its log.
pub(super) struct Pages {
    file: File,
    wal: Wal,
    count: u32,
    free: HashSet<u32>,
    /// True if the list of freed pages could be followed to its end.
    pub(super) free_known: bool,
    /// Pages that could not be read.
    pub(super) unreadable: u64,
}

impl Pages {
    pub(super) fn open(db: &Path, wal: &Path) -> io::Result<Self> {
        let file = File::open(db)?;
        let in_file = u32::try_from(file.metadata()?.len().div_ceil(PAGE as u64)).unwrap_or(u32::MAX);
        let wal = Wal::read(wal);
        let in_wal = wal.pages.keys().max().copied().unwrap_or(0);
        let mut count = in_file.max(in_wal.min(in_file.saturating_add(1 << 20)));
        if wal.size > 0 && !wal.broken {
            count = count.min(wal.size);
        }
        let mut pages = Self { file, wal, count, free: HashSet::new(), free_known: false, unreadable: 0 };
        pages.free_known = pages.read_free_list();
        Ok(pages)
    }

    pub(super) fn is_free(&self, number: u32) -> bool {
        self.free.contains(&number)
    }

    /// The content of a page; a part beyond the end of the file is zero. None if it is not there.
    pub(super) fn page(&mut self, number: u32) -> Option<Vec<u8>> {
        if number == 0 || number > self.count {
            return None;
        }
        let mut page = vec![0; PAGE];
        let (file, at) = match (self.wal.pages.get(&number), &self.wal.file) {
            (Some(at), Some(file)) => (file, *at),
            _ => (&self.file, u64::from(number - 1) * PAGE as u64),
        };
        let mut done = 0;
        while let Some(rest) = page.get_mut(done..).filter(|r| !r.is_empty()) {
            match file.read_at(rest, at + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.unreadable += 1;
                    return None;
                }
            }
        }
        (done > 0).then_some(page)
    }

    fn read_free_list(&mut self) -> bool {
        let Some(first) = self.page(1) else { return false };
        if !first.starts_with(b"SQLite format 3\0") {
            return false;
        }
        let (mut trunk, total) = (be32(&first, 32), be32(&first, 36));
        let mut seen = 0;
        while trunk != 0 {
            let Some(page) = self.page(trunk).filter(|_| seen <= total) else { return false };
            let leaves = be32(&page, 4) as usize;
            if leaves > PAGE / 4 - 2 || !self.free.insert(trunk) {
                return false;
            }
            for i in 0..leaves {
                let leaf = be32(&page, 8 + 4 * i);
                if leaf == 0 || leaf > self.count || !self.free.insert(leaf) {
                    return false;
                }
            }
            seen += 1 + be32(&page, 4);
            trunk = be32(&page, 0);
        }
        seen == total
    }

    /// Calls `found` with the row number (0 in a tree without) and the payload of every cell of every leaf.
    /// `stop` ends it. Gives how many leaves made no sense in part.
    pub(super) fn cells<E>(
        &mut self,
        mut found: impl FnMut(i64, &[u8]) -> Result<bool, E>,
    ) -> Result<(u64, u64), E> {
        let (mut bad_pages, mut bad_cells) = (0, 0);
        for number in 2..=self.count {
            if self.is_free(number) {
                continue;
            }
            let Some(page) = self.page(number) else { continue };
            let table = match page.first() {
                Some(0x0d) => true,
                Some(0x0a) => false,
                _ => continue,
            };
            let cells = be16(&page, 3);
            let mut odd = cells > PAGE / 6;
            for i in 0..cells.min(PAGE / 6) {
                let at = be16(&page, 8 + 2 * i);
                match self.cell(&page, at, table) {
                    Some((rowid, payload)) => bad_cells += u64::from(!found(rowid, &payload)?),
                    None => odd = true,
                }
            }
            bad_pages += u64::from(odd);
        }
        Ok((bad_pages, bad_cells))
    }

    fn cell(&mut self, page: &[u8], at: usize, table: bool) -> Option<(i64, Vec<u8>)> {
        let mut at = at;
        let size = usize::try_from(varint(page, &mut at)?).ok()?;
        let rowid = if table { varint(page, &mut at)?.cast_signed() } else { 0 };
        let largest = if table { PAGE - 35 } else { (PAGE - 12) * 64 / 255 - 23 };
        if size <= largest {
            return Some((rowid, page.get(at..at.checked_add(size)?)?.to_vec()));
        }
        if !table || size as u64 > u64::from(self.count) * PAGE as u64 {
            return None;
        }
        let least = (PAGE - 12) * 32 / 255 - 23;
        let kept = least + (size - least) % (PAGE - 4);
        let kept = if kept <= largest { kept } else { least };
        let mut payload = page.get(at..at.checked_add(kept)?)?.to_vec();
        let mut next = be32(page.get(at + kept..at + kept + 4)?, 0);
        while payload.len() < size {
            let more = self.page(next)?;
            let part = (size - payload.len()).min(PAGE - 4);
            payload.extend_from_slice(more.get(4..4 + part)?);
            next = be32(&more, 0);
        }
        Some((rowid, payload))
    }
}

fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0u64;
    for i in 0..9 {
        let byte = *bytes.get(*at)?;
        *at += 1;
        if i == 8 {
            return Some(value << 8 | u64::from(byte));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The values of a record, or nothing if it makes no sense or has other than `columns` columns.
pub(super) fn record(payload: &[u8], columns: usize) -> Option<Vec<Value<'_>>> {
    let mut at = 0;
    let header = usize::try_from(varint(payload, &mut at)?).ok()?;
    let mut body = header;
    let mut values = Vec::with_capacity(columns);
    while at < header {
        let kind = varint(payload, &mut at)?;
        let size = match kind {
            0 | 8 | 9 => 0,
            1..=4 => usize::try_from(kind).ok()?,
            5 => 6,
            6 | 7 => 8,
            12.. => usize::try_from((kind - 12) / 2).ok()?,
            _ => return None,
        };
        let bytes = payload.get(body..body.checked_add(size)?)?;
        body += size;
        values.push(match kind {
            0 => Value::Null,
            8 => Value::Int(0),
            9 => Value::Int(1),
            7 => Value::Other,
            1..=6 => {
                let negative = bytes.first().is_some_and(|b| b & 0x80 != 0);
                let seed = if negative { -1 } else { 0 };
                Value::Int(bytes.iter().fold(seed, |v, b| v << 8 | i64::from(*b)))
            }
            _ if kind % 2 == 1 => Value::Text(bytes),
            _ => Value::Blob(bytes),
        });
        if values.len() > columns {
            return None;
        }
    }
    (at == header && values.len() == columns).then_some(values)
}
