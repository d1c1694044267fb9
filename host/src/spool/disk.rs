//! What records and files on the disk need: the time, checksums, and steps that make files durable.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::error::SpoolError;
use crate::salt::records::jid_from_ms;

/// Now, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// `YYYYMMDDTHHMMSSZ` of a time in milliseconds since 1970.
pub(super) fn stamp(ms: u64) -> String {
    let jid = jid_from_ms(ms);
    format!("{}T{}Z", jid.get(..8).unwrap_or_default(), jid.get(8..14).unwrap_or_default())
}

/// A checksum over parts. Each step is a bijection of the state, so that no change within one 8-byte word goes
/// unseen; it guards against disks, not against people. The order of bytes is fixed: it is part of the file format.
pub(super) struct Sum(u64);

impl Sum {
    pub(super) fn new(tag: u64) -> Self {
        Self(0x9e37_79b9_7f4a_7c15 ^ tag)
    }

    fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
    }

    pub(super) fn int(mut self, value: i64) -> Self {
        self.word(u64::from_le_bytes(value.to_le_bytes()));
        self
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        if let Some(start) = last.get_mut(..rest.len()) {
            start.copy_from_slice(rest);
        }
        self.word(u64::from_le_bytes(last));
        self
    }

    pub(super) fn end(mut self) -> i64 {
        self.word(0x5370_6f6f_6c31);
        i64::from_le_bytes(self.0.to_le_bytes())
    }
}

pub(super) fn to_i64(value: u64, what: &'static str) -> Result<i64, SpoolError> {
    i64::try_from(value).map_err(|_| SpoolError::OutOfRange(what))
}

/// Times that come from outside are capped rather than refused.
pub(super) fn time_i64(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

/// Numbers that were written by us and are never negative.
pub(super) fn from_i64(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Makes a directory that only its owner can enter; narrows one that exists.
pub(super) fn private_dir(dir: &Path) -> Result<(), SpoolError> {
    if !dir.is_dir() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(SpoolError::io("create directory", dir))?;
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
        .map_err(SpoolError::io("set the mode of directory", dir))
}

/// Opens a file that only its owner can read, creating it if need be.
pub(super) fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_the_utc_date() {
        assert_eq!(stamp(0), "19700101T000000Z");
        assert_eq!(stamp(951_827_696_000), "20000229T123456Z");
        assert_eq!(stamp(1_796_101_496_123), "20261201T050456Z");
    }

    #[test]
    fn every_single_bit_changes_the_checksum() {
        let body: Vec<u8> = (0..37).collect();
        let sum = Sum::new(1).bytes(&body).end();
        for bit in 0..body.len() * 8 {
            let mut other = body.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Sum::new(1).bytes(&other).end(), sum);
        }
        assert_ne!(Sum::new(2).bytes(&body).end(), sum);
    }
}
