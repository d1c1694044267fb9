//! The returner `syslog`: each return as one message to this machine's log or to a syslog server.
//!
//! Invariants: a message is one line of JSON with the whole return; what is too long is shortened visibly and stays JSON; a
//! return that was sent is not sent again by the same instance. A log has no keys, so across instances and after a failure
//! in the midst of a batch a return may be logged twice.

mod message;
mod names;
mod options;
mod packets;
mod shorten;
mod stream;

pub use options::Options;

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use returner_sdk::prelude::*;
use returner_sdk::tokio::time::sleep;
use returner_sdk::unix::{self, SendError};

use message::Message;
use options::{Settings, Way};
use packets::Packets;
use stream::Connection;

/// Keys of returns that an instance remembers. Salt's own repeats come within seconds.
const REMEMBERED: usize = 10_000;

/// A message is never made shorter than this for a socket that does not take it.
const LEAST: usize = 480;

/// UDP packets in a row, and the pause after them: nothing else keeps the receiver's buffer, which commonly has room for some
/// ninety, from running over.
const AT_ONCE: usize = 20;
/// See [`AT_ONCE`].
const BREATH: Duration = Duration::from_millis(2);

/// An open log.
pub struct Syslog {
    settings: Settings,
    line: Line,
    sent: Sent,
    noted: bool,
}

enum Line {
    /// To this socket; the host keeps it open.
    Local(String),
    Udp(Packets),
    Stream(Connection),
}

impl Returner for Syslog {
    type Options = Options;

    async fn open(options: Options, context: &Context) -> Result<Self> {
        let (settings, way) = options.settings(context)?;
        let line = match way {
            Way::Local { socket } => Line::Local(socket),
            Way::Udp(server) => Line::Udp(Packets::open(server)?),
            Way::Stream { server, framing, tls } => {
                Line::Stream(Connection::open(server, framing, tls).await?)
            }
        };
        Ok(Self { settings, line, sent: Sent::default(), noted: false })
    }

    async fn deliver(&mut self, returns: Vec<JobReturn>) -> Result<Vec<Verdict>> {
        let mut verdicts = vec![Verdict::Stored; returns.len()];
        // What is to be sent, by its place in the batch; a key that comes twice in it is sent once.
        let mut batch: Vec<(usize, Message)> = Vec::new();
        let mut keys = HashSet::new();
        for (at, ret) in returns.iter().enumerate() {
            if self.sent.has(ret) || keys.contains(&key(ret)) {
                continue;
            }
            match self.settings.message(ret, self.settings.max) {
                Ok(message) => {
                    keys.insert(key(ret));
                    batch.push((at, message));
                }
                Err(error) => verdicts[at] = Err(error).into(),
            }
        }
        if let Line::Stream(connection) = &mut self.line {
            let texts: Vec<String> = batch.iter().map(|(_, message)| message.text.clone()).collect();
            if !texts.is_empty() {
                connection.send(&texts).await?;
            }
        } else {
            self.send_each(&returns, &mut batch, &mut verdicts).await?;
        }
        for (at, message) in batch {
            if verdicts[at] == Verdict::Stored {
                self.sent.note(&returns[at]);
                self.tell(&message);
            }
        }
        Ok(verdicts)
    }

    async fn close(self) {
        if let Line::Stream(connection) = self.line {
            connection.close().await;
        }
    }
}

impl Syslog {
    /// Sends one message after the other until one fails. With none sent the whole call fails, so that the host pauses.
    async fn send_each(
        &mut self,
        returns: &[JobReturn],
        batch: &mut [(usize, Message)],
        verdicts: &mut [Verdict],
    ) -> Result<()> {
        if let Line::Udp(packets) = &mut self.line {
            packets.renew()?;
        }
        let mut failed: Option<Error> = None;
        for (number, (at, message)) in batch.iter_mut().enumerate() {
            if failed.is_none() {
                if matches!(self.line, Line::Udp(_)) && number % AT_ONCE == AT_ONCE - 1 {
                    sleep(BREATH).await;
                }
                match self.send_one(&returns[*at], message) {
                    Ok(()) => continue,
                    Err(error @ Error::Reject(_)) => {
                        verdicts[*at] = Err(error).into();
                        continue;
                    }
                    Err(error) if number == 0 => return Err(error),
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = &failed {
                verdicts[*at] = Err(error.clone()).into();
            }
        }
        Ok(())
    }

    /// Sends one message, shortened until it passes: the limits on the way may be lower than `max_message`.
    fn send_one(&self, ret: &JobReturn, message: &mut Message) -> Result<()> {
        loop {
            let sent = match &self.line {
                Line::Local(socket) => match unix::send(socket, message.text.as_bytes()) {
                    Ok(()) => Some(()),
                    Err(SendError::TooLong) => None,
                    Err(error) => return Err(unix::explained(socket, error)),
                },
                Line::Udp(packets) => packets.send(&message.text)?,
                Line::Stream(_) => Some(()),
            };
            if sent.is_some() {
                return Ok(());
            }
            let shorter = message.text.len() / 2;
            if shorter < LEAST {
                return Err(Error::retry(format!("a message of {} bytes is too long", message.text.len())));
            }
            *message = self.settings.message(ret, shorter)?;
        }
    }

    fn tell(&mut self, message: &Message) {
        if message.is_cut && !std::mem::replace(&mut self.noted, true) {
            eprintln!(
                "returns longer than {} bytes are shortened, with `__cut__` in their place; hint: `max_message` sets the limit, \
                 which must not be above that of the receiver",
                self.settings.max
            );
        }
        if self.settings.print {
            eprintln!("{}", message.text);
        }
    }
}

fn key(ret: &JobReturn) -> (String, String) {
    (ret.jid.clone(), ret.stored_id().to_owned())
}

/// The keys of what was sent last.
#[derive(Default)]
struct Sent {
    keys: HashSet<(String, String)>,
    order: VecDeque<(String, String)>,
}

impl Sent {
    fn has(&self, ret: &JobReturn) -> bool {
        self.keys.contains(&key(ret))
    }

    fn note(&mut self, ret: &JobReturn) {
        self.keys.insert(key(ret));
        self.order.push_back(key(ret));
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
        }
    }
}

returner_sdk::export!(Syslog: returns, "manifest.toml");
