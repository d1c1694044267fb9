//! Servers that restart, go away, or are not who they should be.

use std::io::Read;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use returner_sdk::Returner;
use returner_syslog::Options;
use returnerd_tests::certificates::Authority;
use returnerd_tests::rsyslog::Rsyslog;

use crate::support::*;

#[test]
fn a_restarted_server_costs_no_call() {
    if !available() {
        return;
    }
    let mut rsyslog = Rsyslog::start();
    block(async {
        let mut count = 0;
        for transport in ["local", "tcp", "tls"] {
            let mut log = open(options(&rsyslog, transport)).await.unwrap();
            for _ in 0..3 {
                assert!(stored(&log.deliver(vec![ret(count, "x")]).await.unwrap()), "{transport}");
                count += 1;
                assert_eq!(rsyslog.wait_for(count).len(), count, "{transport}");
                rsyslog.restart();
            }
        }
    });
}

#[test]
fn a_server_that_is_away_means_retry_and_names_it() {
    if !available() {
        return;
    }
    let mut rsyslog = Rsyslog::start();
    let (local, tcp) = (options(&rsyslog, "local"), options(&rsyslog, "tcp"));
    block(async {
        let mut logs = [open(local.clone()).await.unwrap(), open(tcp.clone()).await.unwrap()];
        for (number, log) in logs.iter_mut().enumerate() {
            log.deliver(vec![ret(number, "x")]).await.unwrap();
        }
        rsyslog.stop();
        let [local_log, tcp_log] = &mut logs;
        let why = retry(local_log.deliver(vec![ret(2, "x")]).await);
        assert!(why.contains(&format!("the socket `{}`", local.socket)), "{why}");
        let why = retry(tcp_log.deliver(vec![ret(3, "x")]).await);
        assert!(why.contains(&format!("`127.0.0.1:{}`", rsyslog.port())) && why.contains("efused"), "{why}");
        let why = retry(open(tcp.clone()).await);
        assert!(why.contains("option"), "{why}");
        rsyslog.restart();
        assert!(stored(&local_log.deliver(vec![ret(2, "x")]).await.unwrap()));
        assert!(stored(&tcp_log.deliver(vec![ret(3, "x")]).await.unwrap()));
        assert_eq!(rsyslog.wait_for(4).len(), 4);
    });
    let nowhere = Options { socket: "/nowhere/log".into(), ..Options::default() };
    let why = block(async { retry(open(nowhere).await.unwrap().deliver(vec![ret(1, "x")]).await) });
    assert!(why.contains("the socket `/nowhere/log` is not there"), "{why}");
}

#[test]
fn a_server_that_closes_right_after_a_batch_has_not_taken_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let mut first = [0; 8];
        // The first connection ends with the batch unread, the second one after a part of it.
        drop(listener.accept().unwrap());
        listener.accept().unwrap().0.read_exact(&mut first).unwrap();
    });
    let options = Options {
        transport: "tcp".into(),
        server: Some("127.0.0.1".into()),
        port: Some(port),
        ..Options::default()
    };
    let why = block(async {
        let mut log = open(options).await.unwrap();
        retry(log.deliver(vec![ret(1, &"x".repeat(5_000))]).await)
    });
    assert!(why.contains("connect"), "{why}");
    server.join().unwrap();
}

#[test]
fn tls_is_verified_and_never_given_up() {
    if !available() {
        return;
    }
    let rsyslog = Rsyslog::start();
    let base = options(&rsyslog, "tls");
    block(async {
        let by_name = Options { server: Some("localhost".into()), ..base.clone() };
        for (number, options) in [base.clone(), by_name].into_iter().enumerate() {
            let mut log = open(options).await.unwrap();
            assert!(stored(&log.deliver(vec![ret(number, "x")]).await.unwrap()));
            assert_eq!(rsyslog.wait_for(number + 1).len(), number + 1);
        }

        let why = retry(open(Options { ssl_ca: Some(Authority::new().pem().into()), ..base.clone() }).await);
        assert!(why.contains("`ssl_ca`") && why.contains("certificate"), "{why}");
        let why = retry(open(Options { ssl_ca: None, ..base.clone() }).await);
        assert!(why.contains("`ssl_ca`") && why.contains("certificate"), "{why}");

        let began = Instant::now();
        let why = retry(open(Options { port: Some(rsyslog.port()), ..base.clone() }).await);
        assert!(why.contains(&format!("127.0.0.1:{}", rsyslog.port())), "{why}");
        assert!(began.elapsed() < Duration::from_secs(13), "{why}");
    });
    // The server of the last case took the beginning of TLS for a message.
    let returns = rsyslog.logged().iter().filter(|message| message.text.contains("jid")).count();
    assert_eq!(returns, 2, "nothing went out in plain");
}

#[test]
fn a_certificate_for_another_host_is_refused_unless_only_the_authority_counts() {
    if !available() {
        return;
    }
    let rsyslog = Rsyslog::start_for(&["log.example.com"], false);
    let base = options(&rsyslog, "tls");
    block(async {
        let why = retry(open(base.clone()).await);
        assert!(why.contains("not valid for"), "{why}");
        let mut log = open(Options { ssl_mode: "verify_ca".into(), ..base }).await.unwrap();
        assert!(stored(&log.deliver(vec![ret(1, "x")]).await.unwrap()));
        rsyslog.wait_for(1);
    });
}

#[test]
fn a_server_may_want_a_certificate() {
    if !available() {
        return;
    }
    let rsyslog = Rsyslog::start_for(&["127.0.0.1"], true);
    let base = options(&rsyslog, "tls");
    let identity = rsyslog.authority().sign(&["m1"]);
    let stranger = Authority::new().sign(&["m1"]);
    block(async {
        for (cert, key) in [(None, None), (Some(stranger.cert), Some(stranger.key))] {
            let options = Options { ssl_cert: cert, ssl_key: key, ..base.clone() };
            let result = match open(options).await {
                Ok(mut log) => log.deliver(vec![ret(0, "x")]).await,
                Err(error) => Err(error),
            };
            let why = retry(result);
            assert!(why.contains("127.0.0.1"), "{why}");
        }
        let own = Options { ssl_cert: Some(identity.cert), ssl_key: Some(identity.key), ..base };
        let mut log = open(own).await.unwrap();
        assert!(stored(&log.deliver(vec![ret(1, "x")]).await.unwrap()));
        rsyslog.wait_for(1);
    });
}
