//! One suite for every plugin that keeps jobs: the same calls through the daemon must have the same answers from each.
//!
//! Each store is used by two daemons. One hands over, the other only asks: it remembers nothing of its own, so that whatever it
//! answers came from the store. All answers are written down, so that those of different plugins can be compared.

mod answers;
mod compare;
mod durable;
mod merging;
mod scale;
mod stores;
mod values;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use rmpv::Value as Msgpack;
use serde::Deserialize;
use serde_json::{Value, json};

pub use self::compare::{DIFFERENCES, Difference, compare};
pub use self::stores::{PLUGINS, Server, Store, copy_of, store};
use crate::client::{Client, encode, frame, to_json};
use crate::daemon::Daemon;
use crate::records::settled;

/// A daemon that tries again so quickly that no test waits for it.
const QUICK: &str = "[delivery]\nfirst_retry = \"50ms\"\nlongest_retry = \"300ms\"\n";

/// One behaviour that all stores share.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// What it is about.
    pub name: &'static str,
    run: fn(&mut Lab),
}

macro_rules! cases {
    ($($part:ident: $($name:ident),+;)+) => {
        &[$($(Case { name: stringify!($name), run: $part::$name }),+),+]
    };
}

/// Cases whose answers are compared between plugins, in their order.
pub const ANSWERS: &[Case] = cases! {
    answers: nothing_is_answered_with_nothing_of_the_right_type,
        a_job_comes_back_with_its_load_its_returns_and_in_every_list,
        many_minions_answer_one_job,
        a_job_of_several_functions_is_one_job,
        a_resource_answers_under_its_own_id,
        the_latest_return_of_a_function_is_the_one_of_the_newest_job,
        a_limited_list_has_the_newest_jobs_without_the_probes_of_salt;
    merging: the_first_return_of_a_minion_stands,
        the_first_published_load_stands_with_all_minions_and_the_end_time,
        a_return_without_a_load_has_a_stub_that_a_published_load_replaces;
    values: wide_characters_come_back_in_every_field,
        values_that_json_lacks_come_back_by_the_rules_of_the_contract;
};

/// Cases that take time, or the server away, in their order.
pub const DURABLE: &[Case] = cases! {
    durable: jobs_are_stored_that_will_be_old,
        ten_mebibytes_come_back_whole,
        what_was_stored_before_and_after_a_restart_is_there,
        what_is_accepted_while_the_store_is_away_arrives_once,
        old_jobs_go_and_young_ones_stay;
    scale: the_newest_of_100_000_jobs_are_listed_within_a_second;
};

/// An answer that was given.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    /// The case, the operation and its keys.
    pub call: String,
    /// The answer, with the JSON texts in it read.
    pub answer: Value,
}

/// A store with its two daemons.
#[derive(Debug)]
pub struct Lab {
    store: Box<dyn Store>,
    writer: Daemon,
    reader: Daemon,
    case: &'static str,
    given: Vec<Given>,
    /// When the jobs were stored that will be old.
    sown: Option<Instant>,
}

impl Lab {
    /// The lab of a plugin with a new store; none where its server is not installed.
    pub fn new(plugin: &str) -> Option<Self> {
        let store = store(plugin)?;
        let daemon = || Daemon::builder().plugins(&[plugin]).tables(QUICK).start();
        Some(Self { store, writer: daemon(), reader: daemon(), case: "", given: Vec::new(), sown: None })
    }

    /// Runs cases and gives the answers. The first that fails ends it, with its name.
    pub fn run(&mut self, cases: &[Case]) -> Vec<Given> {
        let plugin = self.plugin();
        for case in cases {
            let began = Instant::now();
            self.case = case.name;
            if let Err(cause) = catch_unwind(AssertUnwindSafe(|| (case.run)(self))) {
                let text = cause.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("no text");
                let (writer, reader) = (self.writer.tail(), self.reader.tail());
                panic!(
                    "`{plugin}` fails the case `{}`: {text}\nthe daemon that hands over: {writer}\n\
                     the daemon that asks: {reader}",
                    case.name
                );
            }
            println!("{plugin}: {} in {:.2?}", case.name, began.elapsed());
        }
        std::mem::take(&mut self.given)
    }

    fn plugin(&self) -> &'static str {
        self.store.plugin()
    }

    /// A client of the daemon that hands over.
    fn writer(&self) -> Client {
        self.writer.client().with_opts(self.store.opts())
    }

    /// A client of the daemon that asks.
    fn reader(&self) -> Client {
        self.reader.client().with_opts(self.store.opts())
    }

    /// Hands something over.
    fn tell(&self, op: &str, keys: Value) {
        self.writer().query(op, self.plugin(), keys).done();
    }

    /// Hands a return over.
    fn tell_return(&self, ret: Value) {
        self.tell("return", json!({ "ret": ret }));
    }

    /// Hands a load over.
    fn tell_load(&self, load: Value, minions: &[&str]) {
        self.tell("load", json!({ "jid": load["jid"].clone(), "load": load, "minions": minions }));
    }

    /// Hands a return over that is no JSON.
    fn tell_return_of_any(&self, ret: Msgpack) {
        let mut client = self.writer();
        let mut request = client.request("return", self.plugin(), json!({}));
        if let Msgpack::Map(entries) = &mut request {
            entries.push(("ret".into(), ret));
        }
        client.ask(&request).done();
    }

    /// Waits until all that was handed over is stored; nothing may have become a dead letter.
    fn settle(&self) {
        let status = settled(&self.writer);
        let dead = self.writer.cli(&["dead", "list", "--json"]).json();
        assert_eq!(dead, json!([]), "{status:#}");
    }

    /// The store's answer, written down.
    fn ask(&mut self, op: &str, keys: Value) -> Value {
        let answer = self.look(op, keys.clone());
        self.given.push(Given { call: format!("{} {op} {keys}", self.case), answer: answer.clone() });
        answer
    }

    /// The store's answer.
    fn look(&self, op: &str, keys: Value) -> Value {
        documents(to_json(&self.reader().query(op, self.plugin(), keys).done()))
    }

    /// The load of a job.
    fn load_of(&mut self, jid: &str) -> Value {
        self.ask("get_load", json!({ "jid": jid }))
    }

    /// The returns of a job.
    fn returns_of(&mut self, jid: &str) -> Value {
        self.ask("get_jid", json!({ "jid": jid }))
    }

    /// Takes the store away: its server, or with files the daemon that hands over.
    fn take_away(&mut self) {
        match self.store.server() {
            Some(server) => server.stop(),
            None => self.writer.stop(),
        }
    }

    /// Gives it back.
    fn give_back(&mut self) {
        match self.store.server() {
            Some(server) => server.restart(),
            None => {
                self.writer.start();
            }
        }
    }

    /// Sends a request that was made before, to the socket, or to the inbox where no daemon runs, as Salt's side does.
    fn send(&self, request: &Msgpack, number: u64) {
        if self.writer.pid().is_some() {
            self.writer().ask(request).done();
            return;
        }
        let (inbox, name) = (self.writer.inbox(), format!("{number:016}-{:032x}.frame", fastrand::u128(..)));
        let temporary = inbox.join(format!(".tmp-{name}"));
        std::fs::write(&temporary, frame(&encode(request))).unwrap();
        std::fs::rename(temporary, inbox.join(name)).unwrap();
    }
}

/// An answer with the JSON texts in it read: the order of their keys says nothing.
fn documents(answer: Value) -> Value {
    match answer {
        Value::String(text) if text.starts_with('{') => {
            let mut reader = serde_json::Deserializer::from_str(&text);
            // Values may be nested deeper than the reader takes by itself.
            reader.disable_recursion_limit();
            Value::deserialize(&mut reader).unwrap_or_else(|error| panic!("not JSON: {error}: {text}"))
        }
        Value::Array(list) => list.into_iter().map(documents).collect(),
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, documents(value))).collect(),
        other => other,
    }
}
