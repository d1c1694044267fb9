//! Log-in, TLS, and connections that go away.

use std::time::{Duration, Instant};

use returner_mysql::{Db, Options};
use returner_sdk::prelude::*;
use returner_sdk::{Config, Failure, Session};
use returnerd_tests::mariadb::{Certificates, MariaDb};
use returnerd_tests::proc::Scratch;

use crate::support::*;

fn retry(result: Result<Db>) -> String {
    match result.err() {
        Some(Error::Retry { why, .. }) => why,
        other => panic!("no retry: {other:?}"),
    }
}

#[test]
fn a_refused_log_in_names_option_and_server() {
    let Some(place) = Place::fresh() else { return };
    block(async {
        let wrong = Options { pass: Some("Tr0ub4dor".into()), ..place.options() };
        let why = retry(open(wrong).await);
        assert!(why.contains("`salt`") && why.contains("1045") && why.contains("hint:"), "{why}");
        assert!(
            why.contains(&format!("127.0.0.1:{}", place.server.port())) && !why.contains("Tr0ub4dor"),
            "{why}"
        );

        let why = retry(open(Options { db: "nowhere".into(), ..place.options() }).await);
        assert!(why.contains("`nowhere` (option `db`)"), "{why}");

        let why = retry(open(options(1)).await);
        assert!(why.contains("`127.0.0.1:1`") && why.contains("efused"), "{why}");
    });
}

#[test]
fn a_user_without_the_right_to_create_is_told_so() {
    let Some(place) = Place::fresh() else { return };
    let name = &place.name;
    place.sql(&format!(
        "CREATE USER r_{name}@'%' IDENTIFIED BY 'x'; GRANT SELECT, INSERT ON {name}.* TO r_{name}@'%'"
    ));
    block(async {
        let user = Options { user: Some(format!("r_{name}")), pass: Some("x".into()), ..place.options() };
        let why = retry(open(user.clone()).await);
        assert!(why.contains("CREATE command denied"), "{why}");
        place.sql(returnerd_tests::mariadb::DOCUMENTED_TABLES);
        assert!(open(user).await.is_ok());
    });
}

#[test]
fn tls_is_verified_and_never_given_up() {
    if !available() {
        return;
    }
    let (server, certificates) = MariaDb::start_with_tls(&[]);
    server.root("CREATE USER strict@'%' IDENTIFIED BY 'x' REQUIRE X509; GRANT ALL ON salt.* TO strict@'%'");
    let plain = MariaDb::start(&["--skip-ssl"]);
    let scratch = Scratch::new();
    let stranger = Certificates::make(scratch.path(), "localhost", "127.0.0.1");
    let ca = Some(certificates.text("ca.pem"));
    let base = Options { ssl_ca: ca.clone(), ..options(server.port()) };
    block(async {
        for host in ["127.0.0.1", "localhost"] {
            let mut db = open(Options { host: host.into(), ..base.clone() }).await.unwrap();
            assert!(stored(&db.deliver(vec![ret("20261201033139637056", host, "f", "1")]).await.unwrap()));
        }

        let wrong_ca = Options { ssl_ca: Some(stranger.text("ca.pem")), ..base.clone() };
        let why = retry(open(wrong_ca).await);
        assert!(why.contains("`ssl_ca`") && why.contains("certificate"), "{why}");

        let public_roots = Options { ssl_ca: None, ssl_mode: Some("verify_identity".into()), ..base.clone() };
        let why = retry(open(public_roots).await);
        assert!(why.contains("certificate"), "{why}");

        let why = retry(open(Options { port: plain.port(), ..base.clone() }).await);
        assert!(why.contains("offers no TLS"), "{why}");

        let strict = Options { user: Some("strict".into()), pass: Some("x".into()), ..base.clone() };
        assert!(retry(open(strict.clone()).await).contains("1045"));
        let with_certificate = Options {
            ssl_cert: Some(certificates.text("client.pem")),
            ssl_key: Some(certificates.text("client.key")),
            ..strict
        };
        assert!(open(with_certificate).await.is_ok());
    });
}

#[test]
fn a_certificate_for_another_host_is_refused() {
    if !available() {
        return;
    }
    let (server, certificates) = MariaDb::start_with_tls_for("db.example.test", "192.0.2.1", &[]);
    let options = Options { ssl_ca: Some(certificates.text("ca.pem")), ..options(server.port()) };
    let why = block(async { retry(open(options).await) });
    assert!(why.contains("not valid for"), "{why}");
}

#[test]
fn a_restarted_server_costs_no_call() {
    if !available() {
        return;
    }
    let mut server = MariaDb::start(&[]);
    block(async {
        let mut db = open(options(server.port())).await.unwrap();
        assert!(stored(&db.deliver(vec![ret("20261201033139637001", "m1", "f", "1")]).await.unwrap()));
        server.restart();
        assert!(stored(&db.deliver(vec![ret("20261201033139637002", "m1", "f", "1")]).await.unwrap()));
        // A connection that the server closed for idleness, or an operator killed.
        server.root("SELECT CONCAT('KILL ', id) FROM information_schema.processlist WHERE user = 'salt' LIMIT 1 INTO @k; EXECUTE IMMEDIATE @k");
        assert_eq!(db.get_minions().await.unwrap(), ["m1"]);
        server.kill();
        server.restart();
        assert_eq!(db.get_returns("20261201033139637002".into()).await.unwrap().len(), 1);
    });
}

#[test]
fn a_server_that_is_away_means_retry_and_its_return_is_noticed() {
    if !available() {
        return;
    }
    let mut server = MariaDb::start(&[]);
    let session = Session::<Db>::new();
    let config = Config {
        options: format!(r#"{{"host": "127.0.0.1", "port": {}}}"#, server.port()),
        sink: "mysql".into(),
        id: "m".into(),
        role: "master".into(),
    };
    session.open(config).unwrap();
    let deliver = || {
        session.call(async |db: &mut Db| db.deliver(vec![ret("20261201033139637001", "m1", "f", "1")]).await)
    };
    server.kill();
    for _ in 0..2 {
        assert!(matches!(deliver(), Err(Failure::Retry(info)) if info.why.contains("127.0.0.1")));
    }
    server.restart();
    assert!(stored(&deliver().unwrap()));
    session.close();
}

#[test]
fn a_server_that_does_not_answer_is_given_up_in_time() {
    if !available() {
        return;
    }
    let server = MariaDb::start(&[]);
    server.freeze(true);
    let began = Instant::now();
    let why = block(async { retry(open(options(server.port())).await) });
    server.freeze(false);
    assert!(why.contains("did not answer within 10 s"), "{why}");
    assert!(began.elapsed() < Duration::from_secs(13));
}
