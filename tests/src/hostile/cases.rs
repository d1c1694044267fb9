//! Cases of the guest `hostile`: each is a sink of its own, made by its options.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixDatagram;

use serde_json::{Value, json};

use super::Case;
use super::lab::Lab;

/// What is handed over.
#[derive(Clone, Copy)]
enum Give {
    Return,
    Load,
    Event,
}

const RETURN: Give = Give::Return;

/// A case whose reason is the sink's last error.
fn error(name: &'static str, give: Give, mode: &'static str, words: &'static [&'static str]) -> Case {
    Case::new(name, move |lab| {
        hand_over(lab, give, &json!({ "hostile.mode": mode }))?;
        lab.wait_for(words, |lab| text(lab, mode, "last_error"))
    })
}

/// A case whose reason is what the sink was refused; `target` is where it wants to go.
fn refused(
    name: &'static str,
    mode: &'static str,
    target: &'static str,
    words: &'static [&'static str],
) -> Case {
    Case::new(name, move |lab| {
        hand_over(lab, RETURN, &json!({ "hostile.mode": mode, "hostile.target": target }))?;
        lab.wait_for(&[], |lab| text(lab, mode, "last_error"))?;
        lab.wait_for(words, |lab| text(lab, mode, "refused"))
    })
}

fn hand_over(lab: &Lab, give: Give, options: &Value) -> Result<(), String> {
    let jid = lab.jid();
    let answer = match give {
        Give::Return => lab.give("hostile", options),
        Give::Load => {
            let load = json!({ "jid": jid, "fun": "test.ping", "tgt": "*", "tgt_type": "glob", "arg": [], "user": "root" });
            lab.client(options).load("hostile", &jid, load, &["m1"])
        }
        Give::Event => lab
            .client(options)
            .events("hostile", json!([{ "tag": "a/b", "data": { "_stamp": "2026-12-01T03:31:39.637001" } }])),
    };
    if answer.ok { Ok(()) } else { Err(format!("it was not taken: {}", answer.error)) }
}

/// A field of the sink with this mode; the whole of the sink's status where the word ESCAPED is in it.
fn text(lab: &Lab, mode: &str, field: &str) -> String {
    let sink = lab.sink(mode);
    if sink.to_string().contains("ESCAPED") {
        return sink.to_string();
    }
    sink[field].as_str().unwrap_or_default().to_owned()
}

const CPU: &[&str] = &["used up its time on the processor", "cpu_per_call"];

/// All cases.
pub fn all() -> Vec<Case> {
    let mut cases = vec![
        error("endless loop in a call", RETURN, "deliver-loop", CPU),
        error("endless loop in open", RETURN, "open-loop", CPU),
        error("endless loop in save-loads", Give::Load, "loads-loop", CPU),
        error("endless loop of bulk memory instructions", RETURN, "deliver-bulk", CPU),
        error(
            "memory exhaustion",
            RETURN,
            "deliver-memory",
            &["bytes of memory and its limit is", "raise `memory`"],
        ),
        error("memory exhaustion in open", RETURN, "open-memory", &["crashed in `open`", "bytes of memory"]),
        error("socket exhaustion", RETURN, "deliver-sockets", &["sockets: "]),
        error("deep recursion", RETURN, "deliver-recursion", &["crashed in `returns.deliver`: wasm trap"]),
        error("trap in open", RETURN, "open-trap", &["crashed in `open`"]),
        error("trap in deliver", RETURN, "deliver-trap", &["crashed in `returns.deliver`"]),
        error("trap in save-loads", Give::Load, "loads-trap", &["crashed in `jobs.save-loads`"]),
        error("trap in events", Give::Event, "events-trap", &["crashed in `events.deliver`"]),
        error(
            "sleep for ever in a call",
            RETURN,
            "deliver-sleep",
            &["did not answer `returns.deliver` within"],
        ),
        error("sleep for ever in open", RETURN, "open-sleep", &["did not answer `open` within"]),
        error("too many verdicts", RETURN, "deliver-toomany", &["with 2 verdicts for 1 records"]),
        error("too few verdicts", RETURN, "deliver-toofew", &["with 0 verdicts for 1 records"]),
        error("a million verdicts", RETURN, "deliver-manyverdicts", &["with 1048576 verdicts for 1 records"]),
        error("a verdict that is not text", RETURN, "deliver-nottext", &["utf-8"]),
        error("an answer outside of the memory", RETURN, "deliver-outside", &["out of bounds"]),
        error(
            "environment, arguments and input are empty",
            RETURN,
            "deliver-env",
            &["environment 0 arguments 0 input 0"],
        ),
        refused(
            "connect to an ungranted address",
            "deliver-connect",
            "192.0.2.1:80",
            &["tcp://192.0.2.1:80", "[plugin.hostile]", "allow = "],
        ),
        refused(
            "look-up of an ungranted name",
            "deliver-resolve",
            "salt.example.com",
            &["salt.example.com", "[plugin.hostile]"],
        ),
        refused("bind to an address", "deliver-bind", "127.0.0.1:0", &["plugins cannot serve"]),
        refused("bind to a UDP port", "deliver-udpbind", "0.0.0.0:5353", &["plugins cannot serve"]),
        refused("listen on any address", "deliver-listen", "", &["plugins cannot serve"]),
    ];
    cases.extend([
        Case::new("connect to a server of this machine", |lab| {
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            server.set_nonblocking(true).unwrap();
            let target = server.local_addr().unwrap().to_string();
            hand_over(lab, RETURN, &json!({ "hostile.mode": "deliver-connect", "hostile.target": target }))?;
            let reason = lab.wait_for(&[target.as_str(), "allow"], |lab| named(lab, &target, "refused"))?;
            if server.accept().is_ok() { Err("ESCAPED: it connected".into()) } else { Ok(reason) }
        }),
        Case::new("UDP packet to a server of this machine", |lab| {
            let server = UdpSocket::bind("127.0.0.1:0").unwrap();
            server.set_nonblocking(true).unwrap();
            let target = server.local_addr().unwrap().to_string();
            hand_over(lab, RETURN, &json!({ "hostile.mode": "deliver-udpsend", "hostile.target": target }))?;
            let reason = lab.wait_for(&["udp://", target.as_str(), "allow"], |lab| named(lab, &target, "refused"))?;
            if server.recv(&mut [0; 8]).is_ok() { Err("ESCAPED: it came".into()) } else { Ok(reason) }
        }),
        Case::new("message to an ungranted unix socket", |lab| {
            let path = lab.daemon.root().join("log.socket");
            let log = UnixDatagram::bind(&path).unwrap();
            log.set_nonblocking(true).unwrap();
            hand_over(lab, RETURN, &json!({ "hostile.mode": "deliver-unix", "hostile.target": path }))?;
            let line = format!("allow = [\"unix://{}\"]", path.display());
            let reason = lab.wait_for(&[line.as_str(), "[plugin.hostile]"], |lab| text(lab, "deliver-unix", "refused"))?;
            if log.recv(&mut [0; 8]).is_ok() { Err("ESCAPED: it came".into()) } else { Ok(reason) }
        }),
        Case::new("the daemon's own socket as a plugin's unix socket", |lab| {
            let socket = lab.daemon.socket();
            hand_over(lab, RETURN, &json!({ "hostile.mode": "deliver-unixsocket", "hostile.socket": socket }))?;
            lab.wait_for(&["returnerd's own", "the socket of another program"], |lab| {
                text(lab, "deliver-unixsocket", "last_error")
            })
        }),
        granted("granted name that resolves to loopback", "0x7f.1", &["127.0.0.1", "special"]),
        granted("granted name that resolves to the metadata service", "2852039166", &["169.254.169.254", "special"]),
        Case::new("connect to loopback as an IPv6 address", |lab| {
            let options = json!({ "hostile.mode": "deliver-connect", "hostile.target": "[::ffff:127.0.0.1]:22" });
            hand_over(lab, RETURN, &options)?;
            lab.wait_for(&["connect: "], |lab| named(lab, "[::ffff:127.0.0.1]:22", "last_error"))
        }),
        Case::new("path escape by `..`, link and absolute path", |lab| {
            let target = lab.daemon.root().join("outside");
            fs::write(&target, "not for plugins").unwrap();
            fs::write(lab.directory.join("file"), "x").unwrap();
            std::os::unix::fs::symlink(&target, lab.directory.join("link")).unwrap();
            std::os::unix::fs::symlink("..", lab.directory.join("way_up")).unwrap();
            hand_over(
                lab,
                RETURN,
                &json!({ "hostile.mode": "deliver-escape", "hostile.directory": lab.directory, "hostile.target": target }),
            )?;
            lab.wait_for(&["ways out are closed"], |lab| text(lab, "deliver-escape", "last_error"))
        }),
        Case::new("path without any grant", |lab| {
            hand_over(lab, RETURN, &json!({ "hostile.mode": "deliver-path", "hostile.target": "/etc/hostname" }))?;
            lab.wait_for(&["path: "], |lab| text(lab, "deliver-path", "last_error"))
        }),
        in_directory("file exhaustion", "deliver-files", &["open files, sockets and streams"]),
        in_directory("handle exhaustion", "deliver-handles", &["open files, sockets and streams"]),
        own("the daemon's state as a plugin's directory", |lab| lab.daemon.root().join("state")),
        own("the spool as a plugin's directory", |lab| lab.daemon.root().join("state/spool")),
        own("the plugins directory as a plugin's directory", |lab| lab.daemon.plugins_dir().to_owned()),
        own("a directory above the daemon's state", |lab| lab.daemon.root().to_owned()),
        own("a link to the daemon's state", |lab| {
            let link = lab.daemon.root().join("data/state_by_link");
            let _ = std::os::unix::fs::symlink(lab.daemon.root().join("state"), &link);
            link
        }),
        Case::new("trap in close", |lab| closing(lab, "close-trap", "crashed in `close`")),
        Case::new("sleep for ever in close", |lab| closing(lab, "close-sleep", "did not answer `close`")),
        Case::new("flood of log lines", |lab| flood(lab, "deliver-log")),
        Case::new("flood of output without a line's end", |lab| flood(lab, "deliver-output")),
        Case::new("huge text in a failure", |lab| {
            hand_over(lab, RETURN, &json!({ "hostile.mode": "deliver-huge" }))?;
            let reason = lab.wait_for(&["harm harm"], |lab| text(lab, "deliver-huge", "last_error"))?;
            if reason.len() > 10_000 { Err(format!("{} bytes are shown", reason.len())) } else { Ok(reason) }
        }),
        Case::new("huge text in a verdict", |lab| {
            hand_over(lab, RETURN, &json!({ "hostile.mode": "deliver-hugereject" }))?;
            lab.wait_for(&["1"], |lab| lab.sink("deliver-hugereject")["counts"]["rejected"].to_string())?;
            let letters = lab.daemon.cli(&["dead", "list", "--json"]).success();
            if letters.len() > 20_000 { Err(format!("{} bytes are listed", letters.len())) } else { Ok("rejected".into()) }
        }),
        Case::new("quarantine after strikes, and its end", quarantine),
        Case::new("one record that crashes the plugin, among good ones", poison),
    ]);
    cases
}

/// The field of the sink whose options have this target.
fn named(lab: &Lab, target: &str, field: &str) -> String {
    let status = lab.status();
    let mut sinks = status["sinks"].as_array().into_iter().flatten();
    sinks
        .find(|sink| sink["options"]["target"] == target)
        .map(|sink| {
            if sink.to_string().contains("ESCAPED") {
                sink.to_string()
            } else {
                sink[field].as_str().unwrap_or_default().to_owned()
            }
        })
        .unwrap_or_default()
}

/// A name written by the administrator, so that it is granted, which the system's resolver takes for an address of a special
/// range (the old ways of writing IPv4 addresses).
fn granted(name: &'static str, host: &'static str, words: &'static [&'static str]) -> Case {
    Case::new(name, move |lab| {
        let options = json!({ "hostile.mode": "deliver-granted", "hostile.host": host, "hostile.port": 80 });
        hand_over(lab, RETURN, &options)?;
        lab.wait_for(words, |lab| {
            let status = lab.status();
            let mut sinks = status["sinks"].as_array().into_iter().flatten();
            let sink = sinks.find(|sink| sink["options"]["host"] == host).cloned().unwrap_or_default();
            let shown = if sink.to_string().contains("ESCAPED") { sink.to_string() } else { String::new() };
            format!("{shown}{}", sink["refused"].as_str().unwrap_or_default())
        })
    })
}

fn in_directory(name: &'static str, mode: &'static str, words: &'static [&'static str]) -> Case {
    Case::new(name, move |lab| {
        hand_over(lab, RETURN, &json!({ "hostile.mode": mode, "hostile.directory": lab.directory }))?;
        lab.wait_for(words, |lab| text(lab, mode, "last_error"))
    })
}

/// A directory of the daemon's own, written by the administrator.
fn own(name: &'static str, path: impl Fn(&Lab) -> std::path::PathBuf + 'static) -> Case {
    Case::new(name, move |lab| {
        let path = path(lab);
        let options = json!({ "hostile.mode": "deliver-own", "hostile.directory": path });
        hand_over(lab, RETURN, &options)?;
        lab.wait_for(&["returnerd's own", "hint: "], |lab| {
            let status = lab.status();
            let mut sinks = status["sinks"].as_array().into_iter().flatten();
            let sink =
                sinks.find(|sink| sink["options"]["directory"] == json!(path)).cloned().unwrap_or_default();
            sink["last_error"].as_str().unwrap_or_default().to_owned()
        })
    })
}

fn closing(lab: &Lab, mode: &'static str, word: &str) -> Result<String, String> {
    hand_over(lab, RETURN, &json!({ "hostile.mode": mode }))?;
    lab.wait_for(&["1"], |lab| lab.sink(mode)["counts"]["stored"].to_string())?;
    lab.daemon.cli(&["plugin", "restart", "hostile"]).success();
    lab.wait_for(&[word], |lab| text(lab, mode, "close_error"))
}

fn flood(lab: &Lab, mode: &'static str) -> Result<String, String> {
    let before = lab.daemon.log().len();
    hand_over(lab, RETURN, &json!({ "hostile.mode": mode }))?;
    lab.wait_for(&["bytes left out"], |lab| {
        let dropped = &lab.sink(mode)["log_dropped"];
        if dropped["bytes"].as_u64().unwrap_or(0) > 100_000 {
            format!("{} bytes left out", dropped["bytes"])
        } else {
            dropped.to_string()
        }
    })
    .and_then(|reason| {
        let grown = lab.daemon.log().len() - before;
        if grown > 4 << 20 { Err(format!("the log grew by {grown} bytes")) } else { Ok(reason) }
    })
}

/// Two strikes, then nothing until the operator says so; the items wait.
fn quarantine(lab: &Lab) -> Result<String, String> {
    let mode = "deliver-trap";
    hand_over(lab, RETURN, &json!({ "hostile.mode": mode }))?;
    let reason = lab.wait_for(&["quarantined", "crashed"], |lab| {
        let sink = lab.sink(mode);
        format!(
            "{}: {}",
            sink["state"].as_str().unwrap_or_default(),
            sink["last_error"].as_str().unwrap_or_default()
        )
    })?;
    let sink = lab.sink(mode);
    let (crashes, waiting) =
        (sink["counts"]["crashes"].as_u64().unwrap_or(0), sink["waiting"].as_u64().unwrap_or(0));
    if waiting == 0 {
        return Err("its items do not wait".into());
    }
    lab.daemon.cli(&["plugin", "restart", "hostile"]).success();
    lab.wait_for(&["again"], |lab| {
        let now = lab.sink(mode)["counts"]["crashes"].as_u64().unwrap_or(0);
        if now > crashes { "again".into() } else { format!("{now} crashes") }
    })?;
    Ok(reason)
}

/// With the record first in the lane, and in the midst of a batch.
fn poison(lab: &Lab) -> Result<String, String> {
    for (port, place) in [(1, 0), (2, 20), (3, 150)] {
        let mut client = lab.client(&json!({ "hostile.mode": "poison", "hostile.port": port }));
        for number in 0..200 {
            let fun = if number == place { "test.poison" } else { "test.ping" };
            let ret = json!({ "jid": lab.jid(), "id": "m1", "fun": fun, "return": true, "retcode": 0 });
            client.return_("hostile", ret).done();
        }
    }
    let mut reason = String::new();
    for port in 1..=3 {
        reason = lab.wait_for(&["199 stored, 1 waits", "crashed in `returns.deliver`"], |lab| {
            let status = lab.status();
            let mut sinks = status["sinks"].as_array().into_iter().flatten();
            let options =
                |sink: &&Value| sink["options"]["mode"] == "poison" && sink["options"]["port"] == port;
            let sink = sinks.find(options).cloned().unwrap_or_default();
            format!("{} stored, {} waits: {}", sink["counts"]["stored"], sink["waiting"], sink["last_error"])
        })?;
    }
    Ok(reason)
}
