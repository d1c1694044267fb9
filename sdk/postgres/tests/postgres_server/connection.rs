//! Log-in, and connections that go away.

use std::time::{Duration, Instant};

use returner_sdk::prelude::*;
use returner_sdk::{Config, Failure, Session};
use returner_sdk_postgres::{Jsonb, Options, Store};
use returnerd_tests::postgresql::PostgreSql;
use returnerd_tests::wait::wait_for;

use crate::support::*;

fn jid(number: u32) -> String {
    format!("202612010331396370{number:02}")
}

#[test]
fn a_refused_log_in_names_option_and_server() {
    for flavour in [Flavour::Jsonb, Flavour::Text] {
        let Some(place) = Place::fresh(flavour) else { return };
        let option = if flavour == Flavour::Jsonb { "`pass`" } else { "`passwd`" };
        block(async {
            let wrong = Options { pass: Some("Tr0ub4dor".into()), ..place.options() };
            let why = retry(Db::open(flavour, wrong).await);
            assert!(why.contains("`salt`") && why.contains(option) && why.contains("hint:"), "{why}");
            let at = format!("127.0.0.1:{}", place.server.port());
            assert!(why.contains(&at) && !why.contains("Tr0ub4dor"), "{why}");

            let none = Options { pass: Some("none".into()), ..place.options() };
            let why = retry(Db::open(flavour, none).await);
            assert!(why.contains("wants a password") && why.contains(option), "{why}");

            let why = retry(Db::open(flavour, Options { db: "nowhere".into(), ..place.options() }).await);
            assert!(why.contains("`nowhere` (option `db`)"), "{why}");

            let why = retry(Db::open(flavour, options(1)).await);
            assert!(why.contains("`127.0.0.1:1`") && why.contains("efused"), "{why}");
        });
    }
}

#[test]
fn a_user_without_the_right_to_create_is_told_so() {
    for flavour in [Flavour::Jsonb, Flavour::Text] {
        let Some(place) = Place::fresh(flavour) else { return };
        let name = &place.name;
        place.sql(&format!(
            "CREATE ROLE r_{name} LOGIN PASSWORD 'x'; REVOKE CREATE ON SCHEMA public FROM PUBLIC"
        ));
        block(async {
            let user = Options { user: Some(format!("r_{name}")), pass: Some("x".into()), ..place.options() };
            let why = retry(Db::open(flavour, user.clone()).await);
            assert!(why.contains("permission denied") && why.contains("hint:"), "{why}");
            drop(place.open().await);
            place.sql(&format!(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON jids, salt_returns, salt_events TO r_{name}"
            ));
            let mut db = Db::open(flavour, user).await.unwrap();
            assert!(stored(&db.deliver(vec![ret(&jid(1), "m1", "f", "1")]).await.unwrap()));
        });
    }
}

#[test]
fn a_table_without_the_key_of_jobs_says_what_to_alter() {
    let Some(place) = Place::documented(Flavour::Jsonb) else { return };
    place.sql("ALTER TABLE jids DROP CONSTRAINT jids_pkey");
    let why = block(async { retry(Db::open(place.flavour, place.options()).await) });
    assert!(why.contains("`jids`") && why.contains("hint: ALTER TABLE jids ADD PRIMARY KEY"), "{why}");
}

#[test]
fn tables_that_are_replaced_meanwhile_are_looked_at_again() {
    for place in Place::all() {
        block(async {
            let mut db = place.open().await;
            assert!(stored(&db.deliver(vec![ret(&jid(1), "m1", "f", "1")]).await.unwrap()));
            place.sql("DROP TABLE salt_returns");
            assert!(stored(&db.deliver(vec![ret(&jid(2), "m1", "f", "1")]).await.unwrap()));
            place.sql("ALTER TABLE salt_returns DROP CONSTRAINT salt_returns_pkey");
            assert!(stored(&db.deliver(vec![ret(&jid(2), "m1", "f", "1")]).await.unwrap()));
            assert_eq!(place.sql("SELECT count(*) FROM salt_returns"), "1\n");
        });
    }
}

#[test]
fn a_role_that_asks_for_less_safety_does_not_get_it() {
    for place in Place::all() {
        let name = &place.name;
        place.sql(&format!(
            "ALTER ROLE salt IN DATABASE {name} SET default_transaction_isolation = 'serializable';
             ALTER ROLE salt IN DATABASE {name} SET synchronous_commit = off;
             CREATE TABLE seen AS SELECT '' AS isolation, '' AS commit LIMIT 0; GRANT ALL ON seen TO salt;
             CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES
                 (current_setting('transaction_isolation'), current_setting('synchronous_commit')); RETURN NEW; END $$"
        ));
        block(async {
            let mut db = place.open().await;
            place.sql(
                "CREATE TRIGGER look BEFORE INSERT ON salt_returns FOR EACH ROW EXECUTE FUNCTION look()",
            );
            assert!(stored(&db.deliver(vec![ret(&jid(1), "m1", "f", "1")]).await.unwrap()));
        });
        assert_eq!(place.sql("SELECT * FROM seen"), "read committed|on\n");
    }
}

#[test]
fn a_restarted_server_costs_no_call() {
    if !available() {
        return;
    }
    let mut server = PostgreSql::start(&[]);
    block(async {
        let mut db = Db::open(Flavour::Jsonb, options(server.port())).await.unwrap();
        assert!(stored(&db.deliver(vec![ret(&jid(1), "m1", "f", "1")]).await.unwrap()));
        server.restart();
        assert!(stored(&db.deliver(vec![ret(&jid(2), "m1", "f", "1")]).await.unwrap()));
        server.end_sessions();
        assert_eq!(db.get_minions().await.unwrap(), ["m1"]);
        server.kill();
        server.restart();
        assert_eq!(db.get_returns(jid(2)).await.unwrap().len(), 1);
    });
}

#[test]
fn a_server_that_is_away_means_retry_and_its_return_is_noticed() {
    if !available() {
        return;
    }
    let mut server = PostgreSql::start(&[]);
    let session = Session::<Store<Jsonb>>::new();
    let config = Config {
        options: format!(r#"{{"host": "127.0.0.1", "port": {}}}"#, server.port()),
        sink: "pgjsonb".into(),
        id: "m".into(),
        role: "master".into(),
    };
    session.open(config).unwrap();
    let deliver =
        || session.call(async |db: &mut Store<Jsonb>| db.deliver(vec![ret(&jid(1), "m1", "f", "1")]).await);
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
    let server = PostgreSql::start(&[]);
    server.freeze(true);
    let began = Instant::now();
    let quick = Options { connect_timeout: 2, ..options(server.port()) };
    let why = block(async { retry(Db::open(Flavour::Jsonb, quick).await) });
    server.freeze(false);
    assert!(why.contains("did not answer within 2 s"), "{why}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
#[ignore = "waits for over a minute"]
fn an_open_connection_that_falls_silent_is_given_up_in_time() {
    if !available() {
        return;
    }
    let server = PostgreSql::start(&[]);
    let batch = || vec![ret(&jid(1), "m1", "f", "1")];
    let silent = async |db: &mut Db| {
        server.freeze(true);
        let began = Instant::now();
        let answer = db.deliver(batch()).await;
        server.freeze(false);
        match answer {
            Err(Error::Retry { why, .. }) => (why, began.elapsed().as_secs()),
            other => panic!("{other:?}"),
        }
    };
    block(async {
        let quick = Options { connect_timeout: 2, ..options(server.port()) };
        let mut db = Db::open(Flavour::Jsonb, quick.clone()).await.unwrap();
        assert!(stored(&db.deliver(batch()).await.unwrap()));
        std::thread::sleep(Duration::from_secs(61));
        let (why, seconds) = silent(&mut db).await;
        assert!(why.contains("within 2 s") && seconds < 9, "{why} after {seconds} s");

        let mut db = Db::open(Flavour::Jsonb, quick).await.unwrap();
        let (why, seconds) = silent(&mut db).await;
        assert!(why.contains("within 50 s") && seconds < 52, "{why} after {seconds} s");
    });
}

#[test]
fn a_lock_that_somebody_holds_means_retry_in_time() {
    let Some(place) = Place::fresh(Flavour::Jsonb) else { return };
    block(async { drop(place.open().await) });
    std::thread::scope(|scope| {
        scope.spawn(|| place.sql("BEGIN; LOCK TABLE salt_returns; SELECT pg_sleep(13); COMMIT"));
        let held = "SELECT count(*) FROM pg_locks WHERE relation = 'salt_returns'::regclass AND granted \
                    AND mode = 'AccessExclusiveLock'";
        wait_for("the lock", Duration::from_secs(10), || place.sql(held) == "1\n");
        let began = Instant::now();
        let answer = block(async { place.open().await.deliver(vec![ret(&jid(1), "m1", "f", "1")]).await });
        assert!(
            matches!(&answer, Err(Error::Retry { why, .. }) if why.contains("lock timeout")),
            "{answer:?}"
        );
        assert!(began.elapsed() < Duration::from_secs(13));
    });
}
