//! `make bench-check`: instructions of what is done for every return, against `host/benches/instructions.txt`.
//!
//! Instructions do not depend on what else the machine does, so a change of a few percent shows. Without arguments this program runs
//! itself under valgrind's callgrind, once for each figure, and compares; with the name of a figure it does that work once.
//! Only one function is counted: [`figures::counted`], or the spool's `transact`, which runs in a thread of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement ends where a part fails"
)]

mod figures;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use figures::{FIGURES, Figure};

/// What a figure may differ by, as a part of it.
const TOLERANCE: f64 = 0.02;
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [name, times] = arguments.as_slice()
        && let Some(figure) = FIGURES.iter().find(|figure| figure.name == name)
    {
        (figure.run)(times.parse().unwrap());
        return ExitCode::SUCCESS;
    }
    let found: BTreeMap<&str, u64> = FIGURES.iter().map(|figure| (figure.name, measure(figure))).collect();
    if std::env::var_os("RENEW").is_some_and(|value| !value.is_empty()) {
        std::fs::write(KEPT, text(&found)).unwrap();
        println!("renewed {KEPT}");
        return ExitCode::SUCCESS;
    }
    compare(&found)
}

/// The instructions of one repetition: what twice as many repetitions take more.
fn measure(figure: &Figure) -> u64 {
    let (once, twice) = (callgrind(figure, figure.times), callgrind(figure, 2 * figure.times));
    let each = (twice - once) / u64::from(figure.times);
    println!("{} {each} instructions", figure.name);
    each
}

/// Runs this program under callgrind and gives what it counted.
fn callgrind(figure: &Figure, times: u32) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={}", figure.function))
        .arg(std::env::current_exe().unwrap())
        .args([figure.name, &times.to_string()])
        .stdin(Stdio::null())
        .output()
        .expect("valgrind starts; hint: `make bench-check` installs it");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} failed under valgrind:\n{text}", figure.name);
    let counted = text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    match counted {
        Some(0) | None => panic!("nothing was counted in `{}`:\n{text}", figure.function),
        Some(counted) => counted,
    }
}

fn text(found: &BTreeMap<&str, u64>) -> String {
    let mut text =
        format!("# Instructions by callgrind; `make bench-check RENEW=1` writes this.\n# {}\n", compiler());
    for (name, count) in found {
        let _ = writeln!(text, "{name} {count}");
    }
    text
}

/// Another compiler, or its other version, makes other instructions.
fn compiler() -> String {
    let output =
        Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("--version").output();
    output.map_or_else(
        |_| "unknown compiler".into(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

fn compare(found: &BTreeMap<&str, u64>) -> ExitCode {
    let kept = std::fs::read_to_string(Path::new(KEPT)).unwrap_or_default();
    let before: BTreeMap<&str, u64> = kept
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' ').and_then(|(name, count)| Some((name, count.parse().ok()?))))
        .collect();
    let mut more = 0;
    for (name, &count) in found {
        let Some(&known) = before.get(name) else {
            println!("{name} is new; hint: `make bench-check RENEW=1` keeps it");
            more += 1;
            continue;
        };
        #[allow(clippy::cast_precision_loss)]
        let change = count as f64 / known as f64 - 1.0;
        if change > TOLERANCE {
            println!("{name} takes {:.1} % more instructions: {count}, not {known}", change * 100.0);
            more += 1;
        } else if change < -TOLERANCE {
            println!(
                "{name} takes {:.1} % fewer instructions: {count}, not {known}; hint: `make bench-check RENEW=1` keeps the gain",
                -change * 100.0
            );
        }
    }
    if more == 0 {
        println!("no figure takes more than {:.0} % more instructions than before", TOLERANCE * 100.0);
        return ExitCode::SUCCESS;
    }
    if !kept.contains(&compiler()) {
        println!("the figures were kept with another compiler than {}", compiler());
    }
    println!("hint: find what was added, or keep the new figures with `make bench-check RENEW=1`");
    ExitCode::FAILURE
}
