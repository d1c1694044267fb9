//! Every plugin that keeps jobs behaves alike, through the daemon and against the real server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

use returnerd_tests::conformance::{ANSWERS, DIFFERENCES, DURABLE, Given, Lab, PLUGINS, compare};

fn all_cases(plugin: &str) {
    if let Some(mut lab) = Lab::new(plugin) {
        lab.run(ANSWERS);
        lab.run(DURABLE);
    }
}

#[test]
fn all_give_the_same_answers_to_the_same_calls() {
    let answers: Vec<(&str, Vec<Given>)> =
        PLUGINS.into_iter().filter_map(|plugin| Some((plugin, Lab::new(plugin)?.run(ANSWERS)))).collect();
    let (first, wanted) = &answers[0];
    let mut met = vec![false; DIFFERENCES.len()];
    let lines: Vec<String> = answers[1..]
        .iter()
        .flat_map(|(plugin, given)| compare(plugin, given, first, wanted, &mut met))
        .collect();
    assert!(lines.is_empty(), "{} differences:\n{}", lines.len(), lines.join("\n"));
    // A plugin that was not tried cannot show its own.
    let stale: Vec<_> = DIFFERENCES.iter().zip(met).filter(|(_, met)| !met).map(|(known, _)| known).collect();
    assert!(stale.is_empty() || answers.len() < PLUGINS.len(), "these are no more: {stale:#?}");
}

#[test]
fn mysql_keeps_jobs_as_all_do() {
    all_cases("mysql");
}

#[test]
fn sqlite3_keeps_jobs_as_all_do() {
    all_cases("sqlite3");
}

#[test]
fn pgjsonb_keeps_jobs_as_all_do() {
    all_cases("pgjsonb");
}

#[test]
fn postgres_keeps_jobs_as_all_do() {
    all_cases("postgres");
}

#[test]
fn redis_keeps_jobs_as_all_do() {
    all_cases("redis");
}

#[test]
fn local_cache_keeps_jobs_as_all_do() {
    all_cases("local_cache");
}
