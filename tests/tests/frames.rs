//! Frames that no shim would send: each is answered with what is wrong with it, and disturbs nobody else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod support;

use returnerd_tests::client::{Answer, Client, encode, frame, from_json};
use returnerd_tests::daemon::Daemon;
use returnerd_tests::wait::{wait_for, wait_for_value};
use rmpv::Value as Msgpack;
use serde_json::{Value, json};
use support::*;

/// A daemon, and a client that is connected all the while and must not notice anything.
struct Lab {
    daemon: Daemon,
    file: SqliteFile,
    bystander: Client,
    served: u32,
}

impl Lab {
    fn new() -> Self {
        let daemon = quick(&["sqlite3"]).tables("[intake]\nmax_frame = \"1 MiB\"\n").start();
        let file = SqliteFile::of(&daemon);
        let bystander = client(&daemon, &[file.opts()]);
        let mut lab = Self { daemon, file, bystander, served: 0 };
        lab.serves_others();
        lab
    }

    /// Both the client that was there before and a new one are served.
    fn serves_others(&mut self) {
        let mut new = client(&self.daemon, &[self.file.opts()]);
        for client in [&mut self.bystander, &mut new] {
            client.return_("sqlite3", ret(&jid(self.served), "m1", self.served)).done();
            self.served += 1;
        }
    }

    /// What a client of its own gets for these bytes, after which it says no more.
    fn answer(&mut self, bytes: &[u8]) -> Option<Answer> {
        let mut client = self.daemon.client();
        // The daemon may hang up before all has been sent.
        let _ = client.send_bytes(bytes);
        client.finish();
        let answer = client.read_answer().unwrap();
        self.serves_others();
        answer
    }

    /// The error for these bytes. The connection is closed after it.
    fn error(&mut self, bytes: &[u8]) -> String {
        let answer = self.answer(bytes).expect("the daemon says why");
        assert!(!answer.ok);
        assert_eq!(answer.code, "bad_request", "{answer:?}");
        answer.error
    }

    /// The error for a whole frame with a request whose keys are changed: null removes one.
    fn error_with(&mut self, op: &str, changes: Value) -> String {
        let mut request = valid(op);
        for (key, value) in changes.as_object().unwrap() {
            request.retain(|(name, _)| name.as_str() != Some(key));
            if !value.is_null() {
                request.push((key.as_str().into(), from_json(value)));
            }
        }
        self.error(&frame(&encode(&Msgpack::Map(request))))
    }

    fn end(mut self) {
        settled(&self.daemon);
        assert_eq!(self.file.returns().len(), self.served as usize);
        assert_eq!(dead(&self.daemon), Vec::<Value>::new());
        self.daemon.stop();
    }
}

/// A request that would be taken.
fn valid(op: &str) -> Vec<(Msgpack, Msgpack)> {
    let Msgpack::Map(mut entries) = from_json(&json!({
        "v": 1, "op": op, "returner": "sqlite3", "id": "m1", "role": "minion", "at": 1.5e9,
        "layers": {"opts": {}, "grains": {}, "pillar": {}}, "salt": {}, "jid": jid(9), "ret": ret(&jid(9), "m1", 1),
        "load": {"fun": "test.ping"}, "events": [], "fun": "test.ping", "count": 1, "filter_find_job": true,
    })) else {
        unreachable!()
    };
    entries.push(("uid".into(), Msgpack::Binary(vec![7; 16])));
    entries
}

#[test]
fn cut_and_oversized_frames_are_named_as_such() {
    let mut lab = Lab::new();
    let whole = frame(&encode(&Msgpack::Map(valid("return"))));
    for length in [1, 3, 4, 5, whole.len() - 1] {
        let error = lab.error(&whole[..length]);
        assert!(error.contains(&format!("ends after {length} of ")), "{error}");
    }
    // Only its length is needed to refuse it.
    for length in [(1_u32 << 20) + 1, u32::MAX] {
        let error = lab.error(&length.to_be_bytes());
        assert!(error.contains(&length.to_string()) && error.contains("1048576"), "{error}");
        assert!(error.contains("hint: "), "{error}");
    }
    // Somebody speaks HTTP to the socket: the first four letters are a length.
    let error = lab.error(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(error.contains("allowed are 1048576"), "{error}");
    // The largest that is allowed is taken.
    let mut client = client(&lab.daemon, &[lab.file.opts()]);
    client.return_("sqlite3", ret(&jid(1_000), "m1", "x".repeat((1 << 20) - 2_000))).done();
    lab.served += 1;
    let too_large =
        client.request("return", "sqlite3", json!({"ret": ret(&jid(1_001), "m1", "x".repeat(1 << 20))}));
    let error = lab.error(&frame(&encode(&too_large)));
    assert!(error.contains("allowed are 1048576"), "{error}");
    lab.end();
}

#[test]
fn what_is_no_msgpack_map_is_named_as_such() {
    let mut lab = Lab::new();
    let mut deep = vec![0x91; 100_000];
    deep.push(0xc0);
    let mut trailing = encode(&Msgpack::Map(valid("ping")));
    trailing.push(0xc0);
    for (payload, word) in [
        (b"".to_vec(), "msgpack"),
        (b"\xc1".to_vec(), "msgpack"),
        // A text that says it is four gigabytes long, and such a list.
        (b"\xdb\xff\xff\xff\xffabc".to_vec(), "msgpack"),
        (b"\xdd\xff\xff\xff\xff\x01".to_vec(), "msgpack"),
        (deep, "msgpack"),
        (trailing, "msgpack"),
        (b"\x93\x01\x02\x03".to_vec(), "not a map"),
        (b"{\"v\": 1}".to_vec(), ""),
    ] {
        let error = lab.error(&frame(&payload));
        assert!(error.contains(word), "{:?} gave `{error}`", &payload[..payload.len().min(16)]);
    }
    lab.end();
}

#[test]
fn an_unknown_version_operation_or_type_is_named() {
    let mut lab = Lab::new();
    let error = lab.error_with("return", json!({"v": 2}));
    assert!(error.contains("version 2") && error.contains("salt install"), "{error}");
    let error = lab.error_with("return", json!({"v": "one"}));
    assert!(error.contains("`v`"), "{error}");
    let error = lab.error_with("format_disk", json!({}));
    assert!(error.contains("`format_disk`"), "{error}");
    for (op, changes, key) in [
        ("return", json!({"v": null}), "`v`"),
        ("return", json!({"op": 7}), "`op`"),
        ("return", json!({"op": null}), "`op`"),
        ("return", json!({"returner": null}), "`returner`"),
        ("return", json!({"returner": ["sqlite3"]}), "`returner`"),
        ("return", json!({"uid": "text"}), "`uid`"),
        ("return", json!({"uid": null}), "`uid`"),
        ("return", json!({"role": "king"}), "`role`"),
        ("return", json!({"at": "noon"}), "`at`"),
        ("return", json!({"layers": []}), "`layers`"),
        ("return", json!({"layers": {"opts": 1}}), "`opts`"),
        ("return", json!({"ret": null}), "`ret`"),
        ("return", json!({"ret_kwargs": "port=1"}), "`ret_kwargs`"),
        ("load", json!({"jid": null}), "`jid`"),
        ("load", json!({"jid": {}}), "`jid`"),
        ("events", json!({"events": {}}), "`events`"),
        ("events", json!({"events": [{"tag": 1, "data": {}}]}), "`tag`"),
        ("get_jids_filter", json!({"count": "all"}), "`count`"),
        ("get_jid", json!({"jid": null}), "`jid`"),
    ] {
        let error = lab.error_with(op, changes.clone());
        assert!(error.contains(key), "`{op}` with {changes} gave `{error}`");
    }
    lab.end();
}

#[test]
fn a_request_that_is_understood_and_refused_leaves_the_connection_usable() {
    let mut lab = Lab::new();
    let mut client = client(&lab.daemon, &[lab.file.opts()]);
    let answer = client.return_("sqlit3", ret(&jid(1), "m1", 1));
    assert_eq!(answer.code, "unknown_returner", "{answer:?}");
    assert!(answer.error.contains("the nearest is `sqlite3`"), "{answer:?}");
    for (bad, word) in [
        (json!("text"), "not a map"),
        (json!({"jid": jid(1), "return": 1}), "`id`"),
        (json!({"id": "m1", "return": 1}), "`jid`"),
        (json!({"id": ["m1"], "jid": jid(1), "return": 1}), "`id`"),
    ] {
        let answer = client.return_("sqlite3", bad);
        assert_eq!(answer.code, "bad_request", "{answer:?}");
        assert!(answer.error.contains(word), "{answer:?}");
    }
    client.return_("sqlite3", ret(&jid(2_000), "m1", 1)).done();
    lab.served += 1;
    let mut unset = lab.daemon.client();
    let answer = unset.return_("sqlite3", ret(&jid(1), "m1", 1));
    assert_eq!(answer.code, "options", "{answer:?}");
    assert!(answer.error.contains("`sqlite3.database`"), "{answer:?}");
    let mut wrong =
        lab.daemon.client().with_opts(joined(&[lab.file.opts(), json!({"sqlite3.timeout": "soon"})]));
    let answer = wrong.return_("sqlite3", ret(&jid(1), "m1", 1));
    assert_eq!(answer.code, "options", "{answer:?}");
    assert!(answer.error.contains("sqlite3.timeout"), "{answer:?}");
    lab.end();
}

#[test]
fn clients_that_say_nothing_stop_halfway_or_go_away_hold_up_nobody() {
    let mut lab = Lab::new();
    let whole = frame(&encode(&Msgpack::Map(valid("return"))));
    let silent: Vec<Client> = (0..50).map(|_| lab.daemon.client()).collect();
    let halfway: Vec<Client> = (0..50)
        .map(|_| {
            let mut client = lab.daemon.client();
            client.send_bytes(&whole[..whole.len() / 2]).unwrap();
            client
        })
        .collect();
    // These have asked for something and do not stay for the answer.
    for number in 0..50 {
        let mut client = client(&lab.daemon, &[lab.file.opts()]);
        let request =
            client.request("return", "sqlite3", json!({"ret": ret(&jid(3_000 + number), "m1", number)}));
        client.send_frame(&encode(&request)).unwrap();
    }
    lab.serves_others();
    // What was sent whole is taken, whether its sender waited or not.
    let expected = lab.served as usize + 50;
    wait_for("the returns of those that went away", LIMIT, || {
        settled(&lab.daemon);
        lab.file.returns().len() == expected
    });
    lab.daemon.stop();
    drop((silent, halfway));
}

#[test]
fn where_no_place_is_left_the_client_that_was_silent_longest_makes_room() {
    let daemon = quick(&[]).tables("[intake]\nmax_connections = 3\n").start();
    // Not answered yet: a request may be on its way.
    let mut fresh = daemon.client();
    let answered = |client: &mut Client| {
        let ping = encode(&client.request("ping", "", json!({})));
        client.send_frame(&ping).is_ok() && client.read_answer().is_ok_and(|answer| answer.is_some())
    };
    // The look whether the daemon is up takes a place until the daemon has seen its end, so at first one of these may have to go.
    let mut kept = wait_for_value("two more clients with a place", LIMIT, String::new, || {
        let mut clients = [daemon.client(), daemon.client()];
        (0..4).all(|turn| answered(&mut clients[turn % 2])).then_some(clients)
    });
    let mut waiting = daemon.client();
    waiting.query("ping", "", json!({})).done();
    assert_eq!(kept[0].read_answer().unwrap(), None, "the first of the two is closed");
    kept[1].query("ping", "", json!({})).done();
    fresh.query("ping", "", json!({})).done();
    waiting.query("ping", "", json!({})).done();
}
