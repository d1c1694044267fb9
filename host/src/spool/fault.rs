//! Places in the writer where tests look at the files or let the disk fail. Not part of the program.

use std::sync::Mutex;

use super::shared::lock;

type Hook = Box<dyn FnMut(&'static str) -> Result<(), rusqlite::Error> + Send>;

/// What a test wants to happen at each step.
#[derive(Default)]
pub(super) struct Fault(Mutex<Option<Hook>>);

impl Fault {
    pub(super) fn set(&self, hook: impl FnMut(&'static str) -> Result<(), rusqlite::Error> + Send + 'static) {
        *lock(&self.0) = Some(Box::new(hook));
    }

    pub(super) fn clear(&self) {
        *lock(&self.0) = None;
    }

    pub(super) fn at(&self, step: &'static str) -> Result<(), rusqlite::Error> {
        lock(&self.0).as_mut().map_or(Ok(()), |hook| hook(step))
    }
}
