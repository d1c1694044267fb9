//! What a server understands of the messages.

use returner_sdk::Returner;
use returner_sdk::serde_json::{Value, json};
use returner_syslog::Options;
use returnerd_tests::rsyslog::{Logged, Rsyslog};

use crate::support::*;

fn parsed(text: &str) -> Value {
    returner_sdk::serde_json::from_str(text).unwrap()
}

#[test]
fn every_transport_brings_the_return_with_its_facility_level_and_tag() {
    if !available() {
        return;
    }
    let rsyslog = Rsyslog::start();
    let value = "two\nlines, \t a tab, \u{7f}, å, \u{1f680} and \"quotes\"";
    block(async {
        for (number, (transport, input)) in WAYS.into_iter().enumerate() {
            let mut log = open(Options {
                facility: "local3".into(),
                level: "LOG_WARNING".into(),
                tag: Some("salt.jobs".into()),
                options: vec!["LOG_PID".into()],
                ..options(&rsyslog, transport)
            })
            .await
            .unwrap();
            let ret = ret(number, value);
            assert!(stored(&log.deliver(vec![ret.clone()]).await.unwrap()));
            let Logged { input: came, priority, hostname, program, process, kind, version, time, .. } =
                rsyslog.wait_for(number + 1).pop().unwrap();
            let last = rsyslog.logged().pop().unwrap();
            assert_eq!((came.as_str(), priority.as_str()), (input, "local3.warning"), "{last:?}");
            assert_eq!((program.as_str(), process), ("salt.jobs", jid(number)), "{last:?}");
            if transport == "local" {
                assert_eq!((kind.as_str(), version.as_str()), ("-", "0"), "{last:?}");
                assert_eq!(last.text, ret.document);
            } else {
                assert_eq!((kind.as_str(), version.as_str()), ("test.echo", "1"), "{last:?}");
                assert_eq!(hostname, "web1.example.com");
                assert_eq!(time, "2026-12-01T03:31:39.000000+00:00");
                assert!(last.text.is_ascii());
                assert_eq!(parsed(&last.text), parsed(&ret.document));
            }
        }
    });
}

#[test]
fn without_options_the_program_is_salts_and_there_is_no_process() {
    if !available() {
        return;
    }
    let rsyslog = Rsyslog::start();
    block(async {
        for (number, (transport, _)) in WAYS.into_iter().enumerate() {
            let mut log = open(options(&rsyslog, transport)).await.unwrap();
            log.deliver(vec![ret(number, "x")]).await.unwrap();
            let last = rsyslog.wait_for(number + 1).pop().unwrap();
            assert_eq!((last.program.as_str(), last.process.as_str()), ("salt-minion", "-"), "{last:?}");
            assert_eq!(last.priority, "user.info");
        }
    });
}

#[test]
fn a_thousand_messages_arrive_whole_and_in_order() {
    if !available() {
        return;
    }
    block(async {
        for (transport, framing) in [
            ("local", "octet-counting"),
            ("udp", "octet-counting"),
            ("tcp", "octet-counting"),
            ("tcp", "newline"),
            ("tls", "octet-counting"),
        ] {
            let rsyslog = Rsyslog::start();
            let mut log =
                open(Options { framing: framing.into(), ..options(&rsyslog, transport) }).await.unwrap();
            for batch in 0..20 {
                let returns =
                    (batch * 50..(batch + 1) * 50).map(|n| ret(n, &"v".repeat(n % 1_500))).collect();
                assert!(stored(&log.deliver(returns).await.unwrap()));
                if transport == "udp" {
                    // Nothing else keeps the receiver's buffer from running over.
                    rsyslog.wait_for((batch + 1) * 50);
                }
            }
            let logged = rsyslog.wait_for(1_000);
            for (number, message) in logged.iter().enumerate() {
                assert_eq!(message.json()["jid"], jid(number), "{transport}");
                assert_eq!(message.json()["return"].as_str().unwrap().len(), number % 1_500, "{transport}");
            }
        }
    });
}

#[test]
fn a_long_return_is_shortened_visibly_and_stays_json() {
    if !available() {
        return;
    }
    let rsyslog = Rsyslog::start();
    let value = "long å ".repeat(10_000);
    block(async {
        let mut count = 0;
        for (transport, _) in WAYS {
            for max in [None, Some(480), Some(20_000)] {
                let mut log =
                    open(Options { max_message: max, ..options(&rsyslog, transport) }).await.unwrap();
                let returns = vec![ret(count, &value), ret(count + 1, "short")];
                let whole = returns[0].value.len();
                assert!(stored(&log.deliver(returns).await.unwrap()));
                let logged = rsyslog.wait_for(count + 2);
                let [long, short] = &logged[count..] else { panic!("{logged:?}") };
                let json = long.json();
                assert_eq!(
                    (&json["jid"], &json["id"], &json["retcode"]),
                    (&json!(jid(count)), &json!("m1"), &json!(0))
                );
                assert_eq!(json["return"]["__cut__"], whole, "{transport}");
                assert!(json["return"]["begin"].as_str().unwrap().starts_with("\"long å"), "{json}");
                let most = max.unwrap_or(if transport == "udp" { 2_048 } else { 8_096 });
                let length = u64::try_from(long.text.len()).unwrap();
                assert!(length < most && length > most - 120, "{transport}: {length} of {most}");
                assert_eq!(short.json()["return"], "short");
                count += 2;
            }
        }
    });
}

#[test]
fn a_message_over_the_systems_limit_is_shortened_further() {
    if !available() {
        return;
    }
    let rsyslog = Rsyslog::start();
    block(async {
        // Linux takes about 208 KiB for a unix datagram unless told otherwise, and no UDP packet has 65,507 bytes of IPv6.
        let mut log =
            open(Options { max_message: Some(256 << 10), ..options(&rsyslog, "local") }).await.unwrap();
        let value = "x".repeat(300_000);
        assert!(stored(&log.deliver(vec![ret(0, &value)]).await.unwrap()));
        assert!(rsyslog.wait_for(1)[0].text.contains("\"__cut__\": 300002"));
    });
}

#[test]
fn a_return_that_comes_twice_is_logged_once() {
    if !available() {
        return;
    }
    let rsyslog = Rsyslog::start();
    block(async {
        for (number, (transport, _)) in WAYS.into_iter().enumerate() {
            let mut log = open(options(&rsyslog, transport)).await.unwrap();
            let twice = vec![ret(number, "first"), ret(number, "second")];
            assert!(stored(&log.deliver(twice.clone()).await.unwrap()));
            assert!(stored(&log.deliver(twice).await.unwrap()));
            assert_eq!(rsyslog.wait_for(number + 1).pop().unwrap().json()["return"], "first");
        }
        assert_eq!(rsyslog.logged().len(), WAYS.len());
    });
}
