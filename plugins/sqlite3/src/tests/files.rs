//! The file itself: who shares it, what is refused, and what each refusal says.

use std::process::Command;

use rusqlite::TransactionBehavior;

use super::*;

const JID: &str = "20261201033139637056";

#[test]
fn tables_that_are_there_are_widened_and_opening_again_changes_nothing() {
    let file = shared(DOCUMENTED);
    drop(open(&file.path));
    let schema =
        "SELECT group_concat(name, ' ' ORDER BY name) FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'";
    let made = file.text(schema);
    assert_eq!(
        made,
        "jids salt_events salt_events_alter_time salt_events_tag salt_returns salt_returns_date salt_returns_fun \
         salt_returns_jid_id"
    );
    // The index of an existing table may not be unique: it may hold duplicates, and Salt writes them.
    assert_eq!(
        file.text("SELECT sql FROM sqlite_master WHERE name = 'salt_returns_jid_id'").find("UNIQUE"),
        None
    );
    let version = file.text("SELECT schema_version || '' FROM pragma_schema_version");
    drop(open(&file.path));
    assert_eq!(file.text("SELECT schema_version || '' FROM pragma_schema_version"), version);
}

#[test]
fn new_tables_have_a_unique_key() {
    let file = shared("");
    drop(open(&file.path));
    assert!(file.text("SELECT sql FROM sqlite_master WHERE name = 'salt_returns_jid_id'").contains("UNIQUE"));
}

#[test]
fn a_table_without_a_needed_column_is_named() {
    let file = shared("CREATE TABLE salt_returns (jid TEXT, id TEXT, date TEXT, fun TEXT, extra TEXT);");
    let why = fatal(try_open(&file.path));
    assert!(why.contains("`salt_returns`") && why.contains("`fun_args`, `full_ret`, `success`"), "{why}");
}

#[test]
fn a_lock_that_is_held_too_long_means_try_again_and_nothing_half_stored() {
    let mut file = shared("");
    let mut store = open(&file.path);
    let transaction = file.native.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let batch = vec![ret(JID, "m1", "1"), ret(JID, "m2", "2")];
    let Err(Error::Retry { why, .. }) = run(store.deliver(batch.clone())) else { panic!("not a retry") };
    assert!(why.contains("locked by another program") && why.contains("0.1 s"), "{why}");
    transaction.commit().unwrap();
    assert_eq!(file.count("salt_returns"), 0);
    assert_eq!(run(store.deliver(batch)).unwrap(), [Verdict::Stored, Verdict::Stored]);

    // A reader that stays keeps only the commit from happening.
    let mut statement = file.native.prepare("SELECT id FROM salt_returns").unwrap();
    let mut rows = statement.query([]).unwrap();
    rows.next().unwrap();
    assert!(matches!(run(store.deliver(vec![ret(JID, "m3", "3")])), Err(Error::Retry { .. })));
    drop(rows);
    drop(statement);
    assert_eq!(file.count("salt_returns"), 2);
}

#[test]
fn a_locked_file_can_still_be_opened_later() {
    let mut file = shared("");
    let transaction = file.native.transaction_with_behavior(TransactionBehavior::Exclusive).unwrap();
    assert!(matches!(try_open(&file.path), Err(Error::Retry { .. })));
    transaction.rollback().unwrap();
    open(&file.path);
}

#[test]
fn a_wrong_path_names_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "just text, and enough of it").unwrap();
    for (path, part) in [
        (Path::new("salt.db"), "absolute"),
        (&dir.path().join("none/salt.db"), "hint: make `"),
        (&file.join("salt.db"), "directory"),
        (dir.path(), "is a directory"),
        (&file, "not an SQLite database"),
    ] {
        let why = fatal(try_open(path));
        assert!(why.contains("`sqlite3.database`") && why.contains(part), "{why}");
    }
    let why = fatal(run(Store::open(options(&dir.path().join("a"), -1.0), &Context::default())));
    assert!(why.contains("`sqlite3.timeout`"), "{why}");
}

#[test]
fn a_file_in_wal_mode_is_refused_with_the_way_out() {
    let file = shared("PRAGMA journal_mode = WAL; CREATE TABLE other (a);");
    let why = fatal(try_open(&file.path));
    assert!(why.contains("PRAGMA journal_mode=DELETE"), "{why}");
    file.native.execute_batch("PRAGMA journal_mode = DELETE").unwrap();
    open(&file.path);
}

#[test]
fn a_damaged_file_is_fatal_and_names_itself() {
    let file = shared("");
    let mut store = open(&file.path);
    run(store.deliver((0..50).map(|n| ret(JID, &format!("m{n}"), "1")).collect())).unwrap();
    drop(store);
    let mut bytes = std::fs::read(&file.path).unwrap();
    bytes[4096..].fill(0xa5);
    std::fs::write(&file.path, bytes).unwrap();
    let result =
        try_open(&file.path).and_then(|mut store| run(store.deliver(vec![ret("1", "m", "1")])).map(drop));
    let Err(Error::Fatal(why)) = result else { panic!("{result:?}") };
    assert!(why.contains("damaged") && why.contains("salt.db"), "{why}");
}

#[test]
fn the_options_have_salts_names_and_a_default() {
    let read: Options = returner_sdk::serde_json::from_str(r#"{"database": "/a/b"}"#).unwrap();
    assert_eq!((read.database.as_str(), read.timeout), ("/a/b", 5.0));
}

/// Salt's own reader is Python's module with these statements.
#[test]
fn pythons_reader_sees_whole_batches_while_we_write() {
    let file = shared(DOCUMENTED);
    let mut store = run(Store::open(options(&file.path, 30.0), &Context::default())).unwrap();
    let script = r#"
import json, sqlite3, sys
seen = 0
while seen < 2000:
    connection = sqlite3.connect(sys.argv[1], timeout=30)
    rows = connection.execute("SELECT id, full_ret FROM salt_returns WHERE jid = ?", (sys.argv[2],)).fetchall()
    connection.close()
    assert len(rows) % 100 == 0, len(rows)
    assert len(rows) >= seen
    assert all(json.loads(value) == {"of": minion} for minion, value in rows)
    seen = len(rows)
"#;
    let mut python = Command::new("python3").arg("-c").arg(script).arg(&file.path).arg(JID).spawn().unwrap();
    for batch in 0..20 {
        let returns = (0..100).map(|n| {
            let minion = format!("m{batch}-{n}");
            ret(JID, &minion, &format!(r#"{{"of": "{minion}"}}"#))
        });
        run(store.deliver(returns.collect())).unwrap();
    }
    assert!(python.wait().unwrap().success());
    assert_eq!(file.text("PRAGMA integrity_check"), "ok");
}
