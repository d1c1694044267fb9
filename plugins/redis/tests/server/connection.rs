//! Log-in, TLS, a server that refuses, and connections that go away.

use std::time::{Duration, Instant};

use returner_redis::{Db, Options};
use returner_sdk::prelude::*;
use returner_sdk::{Config, Failure, Session};
use returnerd_tests::certificates::Authority;
use returnerd_tests::redis::Redis;

use crate::support::*;

const JID: &str = "20261201033139637056";

fn retry<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(Error::Retry { why, .. }) => why,
        other => panic!("no retry: {other:?}"),
    }
}

async fn refused(options: Options) -> String {
    retry(open(options).await.map(|_| ()))
}

fn one() -> Vec<JobReturn> {
    vec![ret(JID, "m1", "f", "1")]
}

#[test]
fn a_refused_log_in_names_option_and_server() {
    if !available() {
        return;
    }
    let server = Redis::start_with_password("right");
    let base = options(server.port());
    let password = |text: &str| Some(text.to_owned());
    block(async {
        let mut db = open(Options { password: password("right"), ..base.clone() }).await.unwrap();
        assert!(stored(&db.deliver(one()).await.unwrap()));

        let why = refused(Options { password: password("Tr0ub4dor"), ..base.clone() }).await;
        assert!(
            why.contains("`password`") && why.contains("WRONGPASS") && !why.contains("Tr0ub4dor"),
            "{why}"
        );
        assert!(why.contains(&format!("127.0.0.1:{}", server.port())) && why.contains("hint:"), "{why}");
        let why = refused(base.clone()).await;
        assert!(why.contains("NOAUTH") && why.contains("set `password`"), "{why}");

        server.cli(&["ACL", "SETUSER", "salt", "on", ">x", "~*", "+@all"]);
        let user = |name: &str, text: &str| Options {
            username: Some(name.into()),
            password: password(text),
            ..base.clone()
        };
        assert_eq!(open(user("salt", "x")).await.unwrap().get_minions().await.unwrap(), ["m1"]);
        assert!(refused(user("salt", "y")).await.contains("`salt`"));

        // A user with exactly the rights of the README.
        let rights = "+select +script|load +evalsha +ping +get +set +mget +pexpire +persist +exists +pttl +unlink +del \
                      +hsetnx +hget +hgetall +hexists +hkeys +hdel +sadd +srem +sismember +smembers +zadd +zrem +zscore \
                      +zrangebyscore +zrevrangebylex +scan";
        let mut words = vec!["ACL", "SETUSER", "least", "on", ">x", "~*"];
        words.extend(rights.split_whitespace());
        server.cli(&words);
        let mut db = open(user("least", "x")).await.unwrap();
        assert!(stored(&db.save_loads(vec![load(JID, "f")]).await.unwrap()));
        assert!(stored(&db.deliver(one()).await.unwrap()));
        assert_eq!(db.get_jids(filter(5)).await.unwrap().len(), 1);
        assert_eq!(db.get_fun("f".into()).await.unwrap().len(), 1);
        assert_eq!(db.get_returns(JID.into()).await.unwrap().len(), 1);
        let all = PurgeRequest { cutoff_ms: now_ms(), cutoff_jid: "3".into(), archive: false, limit: 10 };
        assert_eq!(db.purge(all).await.unwrap().removed, 2);
        server.cli(&["ACL", "SETUSER", "least", "-zadd"]);
        let why = retry(db.deliver(one()).await);
        assert!(why.contains("commands and keys") && why.contains("127.0.0.1"), "{why}");
    });
}

#[test]
fn a_needless_password_and_a_missing_database_are_explained() {
    let Some(place) = Place::fresh() else { return };
    block(async {
        let why = refused(Options { password: Some("x".into()), ..place.options() }).await;
        assert!(why.contains("remove the option `password`"), "{why}");
        let why = refused(Options { db: "5000".into(), ..place.options() }).await;
        assert!(why.contains("database 5000 (option `db`)"), "{why}");
        let why = refused(options(1)).await;
        assert!(why.contains("`127.0.0.1:1`") && why.contains("efused"), "{why}");
    });
}

#[test]
fn tls_is_verified_and_never_given_up() {
    if !available() {
        return;
    }
    let server = Redis::start_with_tls(&["localhost", "127.0.0.1"], "no");
    let elsewhere = Redis::start_with_tls(&["db.example.test"], "no");
    let strict = Redis::start_with_tls(&["127.0.0.1"], "yes");
    let (port, authority) = server.tls();
    let ca = |authority: &Authority| Some(authority.pem().to_owned());
    let base = Options { ssl_ca_certs: ca(authority), ..options(port) };
    block(async {
        for host in ["127.0.0.1", "localhost"] {
            let mut db = open(Options { host: host.into(), ..base.clone() }).await.unwrap();
            assert!(stored(
                &db.deliver(vec![ret(JID, host, "f", &format!("\"{}\"", "x".repeat(1 << 20)))])
                    .await
                    .unwrap()
            ));
            assert!(db.get_returns(JID.into()).await.unwrap().iter().any(|ret| ret.minion == host));
        }
        let why = refused(Options { ssl_ca_certs: ca(&Authority::new()), ..base.clone() }).await;
        assert!(why.contains("`ssl_ca_certs`") && why.contains("certificate"), "{why}");
        let why = refused(Options { ssl_ca_certs: None, ssl: Some(true), ..base.clone() }).await;
        assert!(why.contains("certificate"), "{why}");
        // A plain-text server, and plain text to one that wants TLS.
        let why = refused(Options { port: server.port(), ..base.clone() }).await;
        assert!(why.contains("nothing is sent") && why.contains("`tls-port`"), "{why}");
        let why = refused(options(port)).await;
        assert!(why.contains("`ssl`"), "{why}");

        let (port, authority) = elsewhere.tls();
        let other = Options { ssl_ca_certs: ca(authority), ..options(port) };
        assert!(refused(other.clone()).await.contains("not valid for"));
        assert!(open(Options { ssl_check_hostname: false, ..other.clone() }).await.is_ok());
        let wrong =
            Options { ssl_ca_certs: ca(&Authority::new()), ssl_check_hostname: false, ..other.clone() };
        assert!(refused(wrong.clone()).await.contains("certificate"));
        assert!(open(Options { ssl_cert_reqs: "none".into(), ..wrong }).await.is_ok());

        let (port, authority) = strict.tls();
        let bare = Options { ssl_ca_certs: ca(authority), ..options(port) };
        assert!(refused(bare.clone()).await.contains("ertificate"));
        let client = authority.sign(&["salt"]);
        let with = Options { ssl_certfile: Some(client.cert), ssl_keyfile: Some(client.key), ..bare };
        assert_eq!(open(with).await.err(), None);
    });
}

#[test]
fn a_full_server_and_a_replica_mean_retry_with_the_reason() {
    if !available() {
        return;
    }
    let mut server = Redis::start(&["--maxmemory-policy", "noeviction"]);
    block(async {
        let mut db = open(options(server.port())).await.unwrap();
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        let why = retry(db.deliver(one()).await);
        assert!(why.contains("OOM") && why.contains("`maxmemory`"), "{why}");
        let why = retry(db.save_loads(vec![load(JID, "f")]).await);
        assert!(why.contains("OOM"), "{why}");
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        assert!(stored(&db.deliver(one()).await.unwrap()));

        server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
        let why = retry(db.deliver(vec![ret(JID, "m2", "f", "1")]).await);
        assert!(why.contains("READONLY") && why.contains("primary"), "{why}");
        server.cli(&["REPLICAOF", "NO", "ONE"]);

        // A script that the server was told to forget costs no call.
        server.cli(&["SCRIPT", "FLUSH"]);
        assert!(stored(&db.deliver(vec![ret(JID, "m2", "f", "1")]).await.unwrap()));
        server.stop();
        assert!(retry(db.get_minions().await).contains("127.0.0.1"));
    });
}

#[test]
fn a_node_of_a_cluster_is_told_so() {
    if !available() {
        return;
    }
    let server = Redis::start(&["--cluster-enabled", "yes"]);
    let why = block(refused(options(server.port())));
    assert!(why.contains("Redis Cluster"), "{why}");
}

#[test]
fn a_restarted_server_costs_no_call_and_keeps_what_was_stored() {
    if !available() {
        return;
    }
    let mut server = Redis::start(&[]);
    block(async {
        let mut db = open(options(server.port())).await.unwrap();
        assert!(stored(&db.deliver(one()).await.unwrap()));
        server.restart();
        assert!(stored(&db.deliver(vec![ret(JID, "m2", "f", "1")]).await.unwrap()));
        // A connection that the server closed for idleness, or an operator killed.
        server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        assert_eq!(db.get_returns(JID.into()).await.unwrap().len(), 2);
        server.kill();
        server.restart();
        assert_eq!(db.get_returns(JID.into()).await.unwrap().len(), 2);
    });
}

#[test]
fn a_server_that_is_away_means_retry_and_its_return_is_noticed() {
    if !available() {
        return;
    }
    let mut server = Redis::start(&[]);
    let session = Session::<Db>::new();
    let config = Config {
        options: format!(r#"{{"host": "127.0.0.1", "port": {}}}"#, server.port()),
        sink: "redis".into(),
        id: "m".into(),
        role: "master".into(),
    };
    session.open(config).unwrap();
    let deliver = || session.call(async |db: &mut Db| db.deliver(one()).await);
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
    let server = Redis::start(&[]);
    server.freeze(true);
    let began = Instant::now();
    let why = block(refused(options(server.port())));
    server.freeze(false);
    assert!(why.contains("did not answer within 10 s"), "{why}");
    assert!(began.elapsed() < Duration::from_secs(13));
}

#[test]
#[ignore = "takes a minute"]
fn a_server_that_stops_answering_is_given_up_in_time_and_asked_anew() {
    if !available() {
        return;
    }
    let server = Redis::start(&[]);
    block(async {
        let mut db = open(options(server.port())).await.unwrap();
        server.freeze(true);
        let began = Instant::now();
        let why = retry(db.deliver(one()).await);
        server.freeze(false);
        assert!(why.contains("did not answer within 60 s"), "{why}");
        assert!(began.elapsed() < Duration::from_secs(65));
        // The late reply to the old connection is not taken for one to this.
        assert_eq!(db.get_minions().await.unwrap(), ["m1"]);
    });
}
