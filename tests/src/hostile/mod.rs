//! Hostile plugins and situations against one daemon, with a well-behaved sink beside them.
//!
//! Each case is checked for three things: the daemon's process stays the same, the neighbour's deliveries go on, and the
//! reason is visible in `returnerd status --json`. Under load, several producers also hand returns to a store, and none of
//! those acknowledged may be missing from it at the end.

mod cases;
mod files;
mod lab;
mod load;
mod neighbour;
mod web;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use lab::Lab;

/// Runs a case and gives the reason that the operator sees, or what did not hold.
type Run = Box<dyn Fn(&Lab) -> Result<String, String>>;

/// One hostile plugin or situation.
pub struct Case {
    name: &'static str,
    run: Run,
}

impl Case {
    fn new(name: &'static str, run: impl Fn(&Lab) -> Result<String, String> + 'static) -> Self {
        Self { name, run: Box::new(run) }
    }
}

/// What a run found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outcome {
    /// Cases in which all three held.
    pub passed: u32,
    /// The others.
    pub failed: u32,
    /// The longest time from a return's acknowledgement to its delivery by the neighbour.
    pub slowest: Duration,
    /// Under load: acknowledged returns of the store, and how many of them it has.
    pub stored: Option<(usize, usize)>,
}

impl Outcome {
    /// Whether everything held.
    pub fn is_good(&self) -> bool {
        self.failed == 0 && self.stored.is_none_or(|(acknowledged, found)| acknowledged == found)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((acknowledged, found)) = self.stored {
            writeln!(
                out,
                "under load: {acknowledged} returns acknowledged, {} of them lost",
                acknowledged - found
            )?;
        }
        write!(
            out,
            "hostile: {} passed, {} failed, slowest neighbour delivery {} ms",
            self.passed,
            self.failed,
            self.slowest.as_millis()
        )
    }
}

/// Runs every case whose name contains `filter`.
pub fn hostile(filter: &str, under_load: bool) -> Outcome {
    let mut lab = Lab::start();
    let load = under_load.then(|| load::Load::start(&lab));
    let mut outcome = Outcome::default();
    for case in cases::all()
        .into_iter()
        .chain(web::all())
        .chain(files::all())
        .filter(|case| case.name.contains(filter))
    {
        let began = Instant::now();
        let before = lab.neighbour.delivered();
        let result = catch_unwind(AssertUnwindSafe(|| (case.run)(&lab)))
            .unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                Err(text.unwrap_or_else(|| "it panicked".into()))
            })
            .and_then(|reason| {
                lab.must_be_the_same()?;
                lab.neighbour.must_go_on(before)?;
                Ok(reason)
            });
        let took = began.elapsed().as_millis();
        match result {
            Ok(reason) => {
                outcome.passed += 1;
                println!("ok      {:<52} {took:>5} ms  {}", case.name, lab::cut(&reason, 150));
            }
            Err(why) => {
                outcome.failed += 1;
                println!("FAILED  {:<52} {took:>5} ms  {why}", case.name);
            }
        }
    }
    outcome.stored = load.map(|load| load.finish(&lab));
    outcome.slowest = lab.neighbour.finish();
    outcome
}
