//! How many jobs a store is asked for at once when a long list is made.
//!
//! A page that takes longer than an answer may is lost, and the list with it. How long a job takes is up to the store: from a microsecond
//! in a database to a millisecond and more where each job is some files, or the machine is busy. So a list begins with small pages and
//! lets them grow while they come quickly.
//!
//! Invariant: a page takes at most twice as many jobs as one that came in a quarter of the time there is, or it is a first page.

use std::time::Duration;

/// Jobs of the first page, and at least of every other.
const FIRST: u32 = 500;

/// Jobs of the largest page: with loads of some kilobytes they fit into the memory of a plugin.
const MOST: u32 = 5_000;

/// The size of a list's next page. See the module.
#[derive(Debug)]
pub(super) struct PageSize(u32);

impl Default for PageSize {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl PageSize {
    /// In jobs.
    pub(super) fn jobs(&self) -> u32 {
        self.0
    }

    /// Notes how long the last page took, of the time that it might have taken.
    pub(super) fn learn(&mut self, took: Duration, within: Duration) {
        if took <= within / 4 {
            self.0 = (self.0 * 2).min(MOST);
        } else if took > within / 2 {
            self.0 = (self.0 / 2).max(FIRST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(4);

    /// The sizes of so many pages of a store that takes so long for a job.
    fn sizes(per_job: Duration, pages: usize) -> Vec<u32> {
        let mut size = PageSize::default();
        let mut sizes = Vec::new();
        for _ in 0..pages {
            sizes.push(size.jobs());
            size.learn(per_job * size.jobs(), WITHIN);
        }
        sizes
    }

    #[test]
    fn pages_of_a_quick_store_grow_to_the_largest() {
        assert_eq!(sizes(Duration::from_micros(5), 6), [500, 1_000, 2_000, 4_000, 5_000, 5_000]);
    }

    #[test]
    fn pages_of_a_slow_store_come_in_half_the_time_there_is() {
        for per_job in [200, 500, 1_000, 2_000, 4_000].map(Duration::from_micros) {
            let sizes = sizes(per_job, 20);
            assert!(sizes.iter().all(|&size| per_job * size <= WITHIN / 2), "{per_job:?}: {sizes:?}");
        }
    }

    #[test]
    fn a_store_that_becomes_slow_is_asked_for_less() {
        let mut size = PageSize(MOST);
        size.learn(Duration::from_secs(3), WITHIN);
        assert_eq!(size.jobs(), MOST / 2);
        for _ in 0..9 {
            size.learn(Duration::from_secs(3), WITHIN);
        }
        assert_eq!(size.jobs(), FIRST);
    }
}
