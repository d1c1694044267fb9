//! Options of frames that were lately read, by their bytes: Salt sends the same ones with every return, and reading them costs as much
//! as reading a small return.
//!
//! Invariant: what is given is what reading the same bytes anew would give; few are kept, and none that is long.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};

use super::super::options::Layers;

/// Readings kept of each part; one is looked at after the other.
const MOST: usize = 16;

/// Longest part that is kept, in bytes.
const LONGEST: usize = 16 << 10;

/// See the module.
#[derive(Default)]
pub struct Seen {
    pub(super) layers: Readings<Layers>,
    pub(super) salt: Readings<Map<String, Value>>,
}

/// What parts of frames were read as, the oldest first.
pub(super) struct Readings<T>(Mutex<Vec<Reading<T>>>);

type Reading<T> = (Box<[u8]>, Arc<T>);

impl<T> Default for Readings<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Readings<T> {
    /// What these bytes are, read if they are new. Without bytes nothing is kept.
    pub(super) fn get<E>(&self, bytes: &[u8], read: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = kept().iter().find(|(known, _)| **known == *bytes) {
            return Ok(known.clone());
        }
        let value = Arc::new(read()?);
        if !bytes.is_empty() && bytes.len() <= LONGEST {
            let mut kept = kept();
            if kept.len() >= MOST {
                kept.remove(0);
            }
            kept.push((bytes.into(), value.clone()));
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(readings: &Readings<u8>, bytes: &[u8], value: u8) -> u8 {
        *readings.get(bytes, || Ok::<_, ()>(value)).unwrap()
    }

    #[test]
    fn equal_bytes_are_read_once_and_others_anew() {
        let readings = Readings::default();
        assert_eq!(get(&readings, b"one", 1), 1);
        assert_eq!(get(&readings, b"two", 2), 2);
        assert_eq!((get(&readings, b"one", 3), get(&readings, b"two", 3)), (1, 2));
    }

    #[test]
    fn what_cannot_be_read_is_not_kept() {
        let readings = Readings::default();
        assert_eq!(readings.get(b"one", || Err::<u8, _>("no")), Err("no"));
        assert_eq!(get(&readings, b"one", 1), 1);
    }

    #[test]
    fn few_and_only_short_ones_are_kept() {
        let readings = Readings::default();
        let long = vec![b'x'; LONGEST + 1];
        assert_eq!((get(&readings, &long, 1), get(&readings, &long, 2)), (1, 2));
        assert_eq!((get(&readings, b"", 1), get(&readings, b"", 2)), (1, 2));
        for number in 0..=MOST {
            get(&readings, &[b'a', u8::try_from(number).unwrap()], 1);
        }
        assert_eq!(readings.0.lock().unwrap().len(), MOST);
        assert_eq!(get(&readings, b"a\0", 2), 2);
    }
}
