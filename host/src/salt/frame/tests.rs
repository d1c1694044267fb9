//! Requests and answers both ways, and what is said about those that are wrong.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn object(value: serde_json::Value) -> Map<String, serde_json::Value> {
    value.as_object().unwrap().clone()
}

fn envelope() -> Envelope {
    Envelope {
        layers: Layers {
            opts: object(json!({"mysql": {"host": "db", "port": 3306}})),
            grains: object(json!({})),
            pillar: object(json!({"mysql.pass": "hush"})),
            master: Some(object(json!({"mysql.db": "salt"}))),
        }
        .into(),
        ret_config: Some("alternative".into()),
        ret_kwargs: Some(object(json!({"db": "x"}))),
        salt: object(json!({"keep_jobs_seconds": 86400})).into(),
        ..Envelope::new("mysql", "m1", Role::Minion)
    }
}

fn every_op() -> Vec<Op> {
    let jid = || "20261201033051370966".to_owned();
    vec![
        Op::Return { ret: Value::Map(vec![pair("jid", jid()), pair("bytes", Value::Binary(vec![255]))]) },
        Op::Load { jid: jid(), load: Value::Map(vec![]), minions: Value::Nil },
        Op::Minions { jid: jid(), minions: Value::Array(vec!["m1".into()]), syndic_id: Some("s".into()) },
        Op::EndTime { jid: jid(), endtime: "2026, Dec 01 03:31:39.897742".into() },
        Op::Events { events: vec![SentEvent { tag: "t".into(), data: Value::Map(vec![]) }] },
        Op::GetLoad { jid: jid() },
        Op::GetJid { jid: jid() },
        Op::GetJids,
        Op::GetJidsFilter { count: 5, filter_find_job: true },
        Op::GetFun { fun: "test.ping".into() },
        Op::GetMinions,
        Op::GetEndTime { jid: jid() },
        Op::CleanOldJobs,
        Op::Ping,
    ]
}

fn body_with(change: impl Fn(&mut Vec<(Value, Value)>)) -> Vec<u8> {
    let request = Request { envelope: envelope(), op: Op::GetLoad { jid: "j".into() } };
    let Value::Map(mut entries) = json::decode(&request.to_body()).unwrap() else { unreachable!() };
    change(&mut entries);
    json::encode(&Value::Map(entries))
}

fn set(entries: &mut [(Value, Value)], key: &str, value: Value) {
    entries.iter_mut().find(|(name, _)| name.as_str() == Some(key)).unwrap().1 = value;
}

#[test]
fn every_request_reads_back_as_it_was() {
    for op in every_op() {
        let request = Request { envelope: envelope(), op };
        assert_eq!(Request::from_body(&request.to_body()).unwrap(), request);
    }
    let admin = Op::Admin { command: "status".into(), args: Value::Map(vec![pair("verbose", true)]) };
    let request = Request { envelope: Envelope::default(), op: admin };
    assert_eq!(Request::from_body(&request.to_body()).unwrap(), request);
}

#[test]
fn every_answer_reads_back_as_it_was() {
    let mut answers = vec![Answer::Done(Value::Nil), Answer::Done(Value::Array(vec!["m1".into()]))];
    for (code, name) in Code::ALL {
        assert_eq!(code.as_str(), name);
        answers.push(Answer::Failed { code, error: "why; hint: how".into() });
    }
    for answer in answers {
        assert_eq!(Answer::from_body(&answer.to_body()).unwrap(), answer);
    }
    assert_eq!(Code::from_text("from the future"), Code::Internal);
}

#[test]
fn a_jid_that_became_a_number_is_text_again() {
    let body = body_with(|entries| set(entries, "jid", Value::from(20_261_201_u64)));
    assert_eq!(Request::from_body(&body).unwrap().op, Op::GetLoad { jid: "20261201".into() });
}

#[test]
fn unknown_keys_are_passed_over() {
    let body = body_with(|entries| entries.push(pair("later", 1)));
    assert!(Request::from_body(&body).is_ok());
}

#[test]
fn another_version_names_both() {
    let error = Request::from_body(&body_with(|entries| set(entries, "v", Value::from(7)))).unwrap_err();
    assert!(
        error.to_string().starts_with("the frame has protocol version 7, this program speaks 1"),
        "{error}"
    );
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    for key in ["v", "op", "returner", "uid", "id", "role", "at", "layers", "salt", "jid"] {
        let without = body_with(|entries| entries.retain(|(name, _)| name.as_str() != Some(key)));
        let error = Request::from_body(&without).unwrap_err();
        assert!(matches!(error, FrameError::Missing { key: found } if found == key), "{key}: {error}");
        let wrong = body_with(|entries| set(entries, key, Value::Array(vec![])));
        let error = Request::from_body(&wrong).unwrap_err();
        assert!(matches!(error, FrameError::WrongType { key: found, .. } if found == key), "{key}: {error}");
    }
    let body = body_with(|entries| set(entries, "ret_kwargs", Value::from("host=x")));
    let error = Request::from_body(&body).unwrap_err();
    assert_eq!(error.to_string(), "`ret_kwargs` of the frame is text, expected a map");
    let body = body_with(|entries| set(entries, "uid", Value::Binary(vec![1; 15])));
    assert!(matches!(Request::from_body(&body), Err(FrameError::WrongType { key: "uid", .. })));
    let body = body_with(|entries| set(entries, "op", Value::from("get_everything")));
    assert!(matches!(Request::from_body(&body), Err(FrameError::UnknownOp { op }) if op == "get_everything"));
}

#[test]
fn what_is_no_map_of_msgpack_is_refused() {
    assert!(matches!(Request::from_body(b""), Err(FrameError::Msgpack(JsonError::Truncated))));
    assert!(matches!(Request::from_body(b"GET / HTTP/1.1"), Err(FrameError::Msgpack(_))));
    assert!(matches!(Request::from_body(&[0xc0]), Err(FrameError::NotAMap { found: "nil" })));
    let mut body = body_with(|_| {});
    body.push(0);
    assert!(matches!(Request::from_body(&body), Err(FrameError::Msgpack(JsonError::Trailing { extra: 1 }))));
    let deep = json::JsonError::TooDeep { limit: json::MAX_MSGPACK_DEPTH }.to_string();
    let error = Request::from_body(&vec![0x91; 100_000]).unwrap_err();
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), deep);
}

#[test]
fn options_do_not_show_in_debug_output() {
    let text = format!("{:?}", envelope());
    assert!(text.contains("m1") && !text.contains("hush") && !text.contains("db"), "{text}");
}

#[tokio::test]
async fn frames_follow_each_other_on_a_stream() {
    let mut wire = Vec::new();
    write_frame(&mut wire, b"one", MAX_FRAME).await.unwrap();
    write_frame(&mut wire, b"", MAX_FRAME).await.unwrap();
    let mut reader = wire.as_slice();
    assert_eq!(read_frame(&mut reader, MAX_FRAME).await.unwrap().as_deref(), Some(b"one".as_slice()));
    assert_eq!(read_frame(&mut reader, MAX_FRAME).await.unwrap().as_deref(), Some(b"".as_slice()));
    assert_eq!(read_frame(&mut reader, MAX_FRAME).await.unwrap(), None);
}

#[tokio::test]
async fn cut_and_oversized_frames_are_errors() {
    let cut = |bytes: &'static [u8]| async move { read_frame(&mut &bytes[..], 10).await.unwrap_err() };
    assert!(matches!(cut(&[0, 0]).await, FrameError::Cut { got: 2, expected: 4 }));
    assert!(matches!(cut(&[0, 0, 0, 3, 1]).await, FrameError::Cut { got: 5, expected: 7 }));
    assert!(matches!(cut(&[0, 0, 0, 11]).await, FrameError::TooLong { length: 11, limit: 10 }));
    assert!(matches!(cut(&[255; 4]).await, FrameError::TooLong { length: 4_294_967_295, limit: 10 }));
    let error = write_frame(&mut Vec::new(), &[0; 11], 10).await.unwrap_err();
    assert!(matches!(error, FrameError::TooLong { length: 11, limit: 10 }) && error.is_bad_request());
}

#[test]
fn a_file_holds_exactly_one_frame() {
    let mut file = with_length(b"body", 10).unwrap();
    assert_eq!(body_of_file(&file, 10).unwrap(), b"body");
    assert!(matches!(body_of_file(&file, 3), Err(FrameError::TooLong { length: 4, limit: 3 })));
    assert!(matches!(body_of_file(&file[..6], 10), Err(FrameError::Cut { got: 6, expected: 8 })));
    assert!(matches!(body_of_file(&[], 10), Err(FrameError::Cut { got: 0, expected: 4 })));
    file.push(0);
    assert!(matches!(body_of_file(&file, 10), Err(FrameError::Trailing { extra: 1 })));
}

proptest! {
    #[test]
    fn any_bytes_are_a_request_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Request::from_body(&bytes);
        let _ = Answer::from_body(&bytes);
    }

    #[test]
    fn a_damaged_request_is_a_request_or_an_error(at in 0usize..300, byte in any::<u8>()) {
        let mut body = Request { envelope: envelope(), op: every_op().remove(0) }.to_body();
        let at = at % body.len();
        body[at] = byte;
        let _ = Request::from_body(&body);
    }
}
