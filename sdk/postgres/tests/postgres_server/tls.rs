//! TLS in libpq's modes.

use returner_sdk::prelude::*;
use returner_sdk_postgres::Options;
use returnerd_tests::certificates::Authority;
use returnerd_tests::postgresql::PostgreSql;

use crate::support::*;

const JID: &str = "20261201033139637056";

fn mode(port: u16, sslmode: &str) -> Options {
    Options { sslmode: Some(sslmode.into()), ..options(port) }
}

async fn open(options: Options) -> Result<Db> {
    Db::open(Flavour::Jsonb, options).await
}

/// Whether the one session of the user `salt` is encrypted.
fn encrypted(server: &PostgreSql) -> bool {
    let sessions =
        "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'salt'";
    server.sql("postgres", sessions) == "t\n"
}

/// Opens with these options, says whether that is encrypted, and closes.
fn encrypts(server: &PostgreSql, options: Options) -> bool {
    block(async {
        let mut db = open(options).await.unwrap();
        assert!(stored(&db.deliver(vec![ret(JID, "m1", "f", "1")]).await.unwrap()));
        let encrypted = encrypted(server);
        server.end_sessions();
        encrypted
    })
}

#[test]
fn a_server_is_verified_as_the_mode_says() {
    if !available() {
        return;
    }
    let authority = Authority::new();
    let server = PostgreSql::start_with_tls(&authority, &["localhost", "127.0.0.1"]);
    let elsewhere = PostgreSql::start_with_tls(&authority, &["db.example.test"]);
    let ca = || Some(authority.pem().to_owned());
    let wrong_ca = || Some(Authority::new().pem().to_owned());
    block(async {
        for host in ["127.0.0.1", "localhost"] {
            let full = Options { host: host.into(), sslrootcert: ca(), ..mode(server.port(), "verify-full") };
            assert!(open(full).await.is_ok(), "{host}");
        }
        // The one is the default with an authority.
        for sslmode in [Some("verify-full"), None] {
            let sslmode = sslmode.map(str::to_owned);
            let options = Options { sslrootcert: ca(), sslmode, ..options(elsewhere.port()) };
            let why = retry(open(options).await);
            assert!(why.contains("not valid for name") && why.contains("`sslmode`"), "{why}");
        }
        assert!(open(Options { sslrootcert: ca(), ..mode(elsewhere.port(), "verify-ca") }).await.is_ok());
        for sslmode in ["require", "verify-ca", "verify-full"] {
            let why = retry(open(Options { sslrootcert: wrong_ca(), ..mode(server.port(), sslmode) }).await);
            assert!(
                why.contains("certificate: BadSignature") && why.contains("`sslrootcert`"),
                "{sslmode}: {why}"
            );
        }
        let why = retry(open(mode(server.port(), "verify-full")).await);
        assert!(why.contains("UnknownIssuer"), "{why}");
        assert!(open(mode(elsewhere.port(), "require")).await.is_ok());
    });
}

#[test]
fn the_modes_encrypt_as_libpq_does() {
    if !available() {
        return;
    }
    let server = PostgreSql::start_with_tls(&Authority::new(), &["localhost"]);
    let port = server.port();
    for (sslmode, wanted) in [("disable", false), ("allow", false), ("prefer", true), ("require", true)] {
        assert_eq!(encrypts(&server, mode(port, sslmode)), wanted, "{sslmode}");
    }
    assert!(encrypts(&server, options(port)), "by default");
    // Authorities that did not sign it: TLS was only a wish.
    let wrong_ca = Some(Authority::new().pem().to_owned());
    assert!(!encrypts(&server, Options { sslrootcert: wrong_ca, ..mode(port, "prefer") }));

    // A server that wants one or the other.
    let rule = |kind: &str| format!("local all postgres trust\n{kind} all all 127.0.0.1/32 scram-sha-256\n");
    server.access(&rule("hostssl"));
    server.reload();
    assert!(encrypts(&server, mode(port, "allow")));
    let why = block(async { retry(open(mode(port, "disable")).await) });
    assert!(why.contains("pg_hba.conf") && why.contains("`sslmode`"), "{why}");
    server.access(&rule("hostnossl"));
    server.reload();
    assert!(!encrypts(&server, mode(port, "prefer")));
    let why = block(async { retry(open(mode(port, "require")).await) });
    assert!(why.contains("pg_hba.conf"), "{why}");
}

#[test]
fn a_server_without_tls_is_refused_where_it_was_asked_for() {
    if !available() {
        return;
    }
    let server = PostgreSql::start(&[]);
    let port = server.port();
    block(async {
        for sslmode in ["require", "verify-full"] {
            let why = retry(open(mode(port, sslmode)).await);
            assert!(why.contains("offers no TLS") && why.contains("`sslmode`"), "{why}");
        }
    });
    assert_eq!(server.sql("postgres", "SELECT count(*) FROM pg_stat_activity WHERE usename = 'salt'"), "0\n");
    for sslmode in ["disable", "allow", "prefer"] {
        assert!(!encrypts(&server, mode(port, sslmode)), "{sslmode}");
    }
}

#[test]
fn a_client_logs_in_with_a_certificate() {
    if !available() {
        return;
    }
    let authority = Authority::new();
    let server = PostgreSql::start_with_tls(&authority, &["127.0.0.1"]);
    server.access(
        "local all postgres trust\nhostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n",
    );
    server.reload();
    let client = authority.sign(&["salt"]);
    block(async {
        let why = retry(open(mode(server.port(), "require")).await);
        assert!(why.contains("certificate"), "{why}");
        // A certificate alone asks for TLS.
        let with = Options { sslcert: Some(client.cert), sslkey: Some(client.key), ..options(server.port()) };
        assert!(open(with).await.is_ok());
    });
}
