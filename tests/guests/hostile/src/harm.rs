//! The kinds of harm. Each returns only if the host has withstood it, with a fatal error that tells what the host said.

use std::fs;
use std::hint::black_box;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use returner_sdk::prelude::*;

use crate::Options;

/// Does one kind of harm where `count` verdicts are expected.
pub fn verdicts(harm: &str, options: &Options, count: usize) -> Result<Vec<Verdict>> {
    let target = options.target.as_deref().unwrap_or_default();
    match harm {
        "loop" => endless(),
        "bulk" => bulk(),
        "memory" => memory(),
        "trap" => trap(),
        "recursion" => Err(Error::fatal(format!("ESCAPED: {}", recursion(1)))),
        "sleep" => loop {
            std::thread::sleep(Duration::from_secs(3_600));
        },
        "log" => {
            for line in 0..1_000_000 {
                println!("noise {line}");
            }
            Ok(vec![Verdict::Stored; count])
        }
        "output" => {
            let mut out = io::stderr().lock();
            for _ in 0..100_000 {
                // Without the end of a line.
                out.write_all(&[b'x'; 4096])?;
            }
            Ok(vec![Verdict::Stored; count])
        }
        "files" => files(options),
        "sockets" => sockets(),
        "handles" => handles(options),
        "connect" => said("connect", TcpStream::connect(target)),
        "granted" => {
            let host = options.host.as_deref().unwrap_or_default();
            let addresses = returner_sdk::resolve(host, options.port)
                .map_err(|error| Error::fatal(format!("resolve: {error}")))?;
            said(&format!("connect to {addresses:?}"), TcpStream::connect(&addresses[..]))
        }
        "resolve" => said("resolve", returner_sdk::resolve(target, 80)),
        "listen" => said("listen", TcpListener::bind("0.0.0.0:0")),
        "bind" => said("bind", TcpListener::bind(target)),
        "udpbind" => said("udp bind", UdpSocket::bind(target)),
        "udpsend" => {
            let socket =
                UdpSocket::bind("0.0.0.0:0").map_err(|error| Error::fatal(format!("udp bind: {error}")))?;
            said("udp send", socket.send_to(b"harm", target))
        }
        "unix" => unix(target),
        "unixsocket" => unix(options.socket.as_deref().unwrap_or_default()),
        "path" => said("path", fs::read(target)),
        "escape" => escape(options),
        "env" => Err(Error::fatal(format!(
            "environment {} arguments {} input {}",
            std::env::vars_os().count(),
            std::env::args_os().count(),
            io::copy(&mut io::stdin(), &mut io::sink())?,
        ))),
        "toomany" => Ok(vec![Verdict::Stored; count + 1]),
        "toofew" => Ok(Vec::new()),
        "nottext" => Ok(vec![Verdict::Reject(not_text()); count]),
        "outside" => outside(),
        "huge" => Err(Error::fatal("harm ".repeat(2 << 20))),
        "hugereject" => Ok(vec![Verdict::Reject("harm ".repeat(2 << 20)); count]),
        "manyverdicts" => Ok(vec![Verdict::Stored; 1 << 20]),
        "secret" => {
            let told = format!("the token is {}", options.token.as_deref().unwrap_or_default());
            println!("{told}");
            Err(Error::Fatal(told))
        }
        "secretreject" => {
            let told = format!("the token is {}", options.token.as_deref().unwrap_or_default());
            Ok(vec![Verdict::Reject(told); count])
        }
        other => Err(Error::fatal(format!("no such harm: `{other}`"))),
    }
}

/// What the host said, as a fatal error; success is an escape.
fn said<T>(what: &str, result: io::Result<T>) -> Result<Vec<Verdict>> {
    match result {
        Ok(_) => Err(Error::fatal(format!("ESCAPED: {what}"))),
        Err(error) => Err(Error::fatal(format!("{what}: {error}"))),
    }
}

/// Sends to a unix socket.
fn unix(path: &str) -> Result<Vec<Verdict>> {
    match returner_sdk::unix::send(path, b"<14>harm: harm") {
        Ok(()) => Err(Error::fatal("ESCAPED: unix socket")),
        Err(error) => Err(Error::fatal(format!("unix socket: {error:?}"))),
    }
}

fn endless() -> ! {
    let mut number = 0_u64;
    loop {
        number = black_box(number.wrapping_add(1));
    }
}

/// Fills and copies memory by single instructions.
fn bulk() -> ! {
    let mut from = vec![0_u8; 12 << 20];
    let mut to = vec![0_u8; 12 << 20];
    let mut byte = 0_u8;
    loop {
        from.fill(black_box(byte));
        to.copy_from_slice(&from);
        byte = byte.wrapping_add(black_box(to[1]) | 1);
    }
}

fn memory() -> ! {
    let mut kept = Vec::new();
    loop {
        kept.push(black_box(vec![1_u8; 1 << 20]));
    }
}

/// Ends as a bug in a plugin ends.
pub fn trap() -> ! {
    std::process::abort()
}

#[allow(unconditional_recursion)]
fn recursion(depth: u64) -> u64 {
    let room = black_box([depth; 32]);
    recursion(depth + 1) + black_box(room)[7]
}

/// Opens files until the host refuses, and keeps them.
fn files(options: &Options) -> Result<Vec<Verdict>> {
    let path = Path::new(options.directory.as_deref().unwrap_or_default()).join("file");
    fs::write(&path, "x").map_err(Error::fatal)?;
    let mut kept = Vec::new();
    for number in 0..100_000 {
        match fs::File::open(&path) {
            Ok(file) => kept.push(file),
            Err(error) => return Err(Error::fatal(format!("after {number} files: {error}"))),
        }
    }
    Err(Error::fatal("ESCAPED: any number of files"))
}

/// Makes sockets until the host refuses, and keeps them.
fn sockets() -> Result<Vec<Verdict>> {
    let mut kept = Vec::new();
    for number in 0..100_000 {
        match UdpSocket::bind("0.0.0.0:0") {
            Ok(socket) => kept.push(socket),
            Err(error) => return Err(Error::fatal(format!("after {number} sockets: {error}"))),
        }
    }
    Err(Error::fatal("ESCAPED: any number of sockets"))
}

/// Makes handles of directory listings, which cost the host no file of their own, until the host refuses.
fn handles(options: &Options) -> Result<Vec<Verdict>> {
    let directory = options.directory.as_deref().unwrap_or_default();
    let mut kept = Vec::new();
    for number in 0..100_000 {
        match fs::read_dir(directory) {
            Ok(listing) => kept.push(listing),
            Err(error) => return Err(Error::fatal(format!("after {number} handles: {error}"))),
        }
    }
    Err(Error::fatal("ESCAPED: any number of handles"))
}

/// Tries every way out of the granted directory that there is, to read `target` and to write beside it.
fn escape(options: &Options) -> Result<Vec<Verdict>> {
    let directory = options.directory.as_deref().unwrap_or_default();
    let target = options.target.as_deref().unwrap_or_default();
    let up = "../".repeat(20);
    let mut tried = Vec::new();
    for path in [
        target.to_owned(),
        format!("{directory}/{up}{target}"),
        format!("{directory}/../{}", Path::new(target).file_name().unwrap_or_default().to_string_lossy()),
        format!("{directory}/link"),
        format!("{directory}/link/"),
        format!("{directory}/way_up/{}", Path::new(target).file_name().unwrap_or_default().to_string_lossy()),
        format!("{directory}/./{up}etc/passwd"),
        "/etc/passwd".to_owned(),
        "/proc/self/environ".to_owned(),
    ] {
        if fs::read(&path).is_ok() {
            return Err(Error::fatal(format!("ESCAPED: read {path}")));
        }
        if fs::OpenOptions::new().append(true).create(true).open(format!("{path}.new")).is_ok() {
            // Inside the directory a new file is fine.
            if !path.starts_with(&format!("{directory}/link")) {
                return Err(Error::fatal(format!("ESCAPED: wrote {path}.new")));
            }
        }
        tried.push(path);
    }
    for (from, to) in [("file", target), ("link", "copy")] {
        let to = if to == target { target.to_owned() } else { format!("{directory}/{to}") };
        if fs::rename(format!("{directory}/{from}"), &to).is_ok() && to == target {
            return Err(Error::fatal("ESCAPED: renamed out"));
        }
        if fs::hard_link(target, format!("{directory}/hard")).is_ok() {
            return Err(Error::fatal("ESCAPED: linked in"));
        }
    }
    Err(Error::fatal(format!("{} ways out are closed", tried.len())))
}

#[allow(unsafe_code)]
fn not_text() -> String {
    // SAFETY: not sound, on purpose; it is only handed to the host.
    unsafe { String::from_utf8_unchecked(vec![0xff, 0xfe, 0x80]) }
}

/// A text that lies outside the memory.
#[allow(unsafe_code)]
fn outside() -> Result<Vec<Verdict>> {
    // SAFETY: not sound, on purpose; the host must see it before anything reads it.
    let text = unsafe { String::from_raw_parts(0xffff_0000_usize as *mut u8, 0x7fff_0000, 0x7fff_0000) };
    Err(Error::Fatal(text))
}
