//! How figures are printed, and the arithmetic on times.

use std::time::Duration;

/// Whether a variable of the environment, names with commas between, has this one; without it, or if it is empty, all are wanted.
pub(crate) fn chosen(variable: &str, name: &str) -> bool {
    let names = std::env::var(variable).unwrap_or_default();
    names.is_empty() || names.split(',').any(|one| one == name)
}

/// One figure.
pub(crate) fn figure(name: &str, value: f64, unit: &str) {
    println!("{name} {value:.3} {unit}");
}

/// A line of a table for people: the first cell to the left, all others to the right.
pub(crate) fn row(cells: &[&str]) {
    let mut line = format!("# {:<26}", cells.first().unwrap_or(&""));
    for cell in cells.iter().skip(1) {
        line.push_str(&format!("{cell:>16}"));
    }
    println!("{line}");
}

/// The value below which `part` of the times lie; sorts them.
pub(crate) fn quantile(times: &mut [f64], part: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let at = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
    times.get(at).copied().unwrap_or(0.0)
}

/// Counts what was done while the clock ran.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Rate {
    done: usize,
    busy: Duration,
}

impl Rate {
    pub(crate) fn add(&mut self, done: usize, took: Duration) {
        self.done += done;
        self.busy += took;
    }

    /// Per second.
    pub(crate) fn per_second(&self) -> f64 {
        self.done as f64 / self.busy.as_secs_f64().max(1e-9)
    }
}
