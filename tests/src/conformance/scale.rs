//! Many jobs.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Lab, copy_of};
use crate::records::published;
use crate::wait::wait_for_value;

const JOBS: u32 = 100_000;
const COUNT: u32 = 50;
const PAGED: u32 = 12_000;
const WITHIN: Duration = Duration::from_secs(1);
const TRIES: usize = 5;

/// The job that the others are copies of.
const TEMPLATE: &str = "20990201000000000000";

pub(super) fn the_newest_of_100_000_jobs_are_listed_within_a_second(lab: &mut Lab) {
    lab.tell_load(published(TEMPLATE), &[]);
    lab.settle();
    let began = Instant::now();
    lab.store.copy_load(TEMPLATE, JOBS);
    println!("{}: {JOBS} jobs were made in {:.2?}", lab.plugin(), began.elapsed());

    let keys = json!({ "count": COUNT, "filter_find_job": true });
    let mut client = lab.reader();
    let mut ask = || client.query("get_jids_filter", lab.plugin(), keys.clone());
    // A store that must look through what others wrote may do so first, and say so.
    let began = Instant::now();
    let first = wait_for_value(
        "the list",
        Duration::from_secs(90),
        || lab.reader.tail(),
        || Some(ask()).filter(|answer| answer.ok),
    );
    println!("{}: the first list came after {:.2?}", lab.plugin(), began.elapsed());
    let listed: Vec<Value> = first.json().as_array().unwrap().iter().map(|pair| pair[0].clone()).collect();
    let wanted: Vec<String> = (JOBS - COUNT + 1..=JOBS).map(|number| copy_of(TEMPLATE, number)).collect();
    assert_eq!(listed, wanted);

    let mut best = Duration::MAX;
    for _ in 0..TRIES {
        let began = Instant::now();
        ask().done();
        best = best.min(began.elapsed());
    }
    println!("{}: the newest {COUNT} of {JOBS} jobs in {best:.2?}", lab.plugin());
    assert!(best < WITHIN, "the newest {COUNT} of {JOBS} jobs took {best:.2?}");

    // So many that the daemon asks for them page by page.
    let began = Instant::now();
    let keys = json!({ "count": PAGED, "filter_find_job": true });
    let paged = client.query("get_jids_filter", lab.plugin(), keys).json();
    println!("{}: the newest {PAGED} in {:.2?}", lab.plugin(), began.elapsed());
    let listed = paged.as_array().unwrap().iter().map(|pair| pair[0].as_str().unwrap().to_owned());
    assert!(listed.eq((JOBS - PAGED + 1..=JOBS).map(|number| copy_of(TEMPLATE, number))), "jobs are missing");
}
