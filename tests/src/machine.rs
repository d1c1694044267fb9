//! What a measurement ran on: figures of different machines do not compare.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Lines of a description, each with `#` before it: processor, memory, kernel, and the disk under `place`.
pub fn describe(place: &Path) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = field("/proc/cpuinfo", "model name");
    let memory: u64 = field("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut text = String::new();
    let _ = writeln!(text, "# cpu: {cores} cores, {model}");
    let _ = writeln!(text, "# memory: {} MiB", memory / 1024);
    let _ = writeln!(text, "# kernel: Linux {}", kernel.trim());
    let _ = writeln!(text, "# disk: {}", disk(place));
    text
}

fn field(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().trim_start_matches(['\t', ':', ' ']).to_owned()
}

/// The file system that a path lies on, its device, and whether that turns.
fn disk(place: &Path) -> String {
    let place = place.canonicalize().unwrap_or_else(|_| place.to_path_buf());
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mount = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.next()?, words.next()?))
        })
        .filter(|(_, point, _)| place.starts_with(point))
        .max_by_key(|(_, point, _)| point.len());
    let Some((device, _, kind)) = mount else { return "unknown".to_owned() };
    let name = device.trim_start_matches("/dev/");
    // A partition has no queue of its own; its disk's name is its own without the number.
    let whole = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let turns = [name, whole]
        .into_iter()
        .find_map(|name| fs::read_to_string(format!("/sys/block/{name}/queue/rotational")).ok());
    let turns = match turns.as_deref().map(str::trim) {
        Some("0") => ", not rotational",
        Some("1") => ", rotational (or says so)",
        _ => "",
    };
    format!("{kind} on {device}{turns}")
}
