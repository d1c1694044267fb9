//! Talking to the running daemon.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::config::Config;
use crate::salt::frame::{self, Answer, Envelope, FrameError, Op, Request};
use crate::salt::json::{self, JsonError};

/// Why the daemon gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It is not there.
    #[error("cannot reach the daemon on `{}`; hint: start it with `returnerd serve`, and run this as a user who may use the socket", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The conversation broke.
    #[error("the daemon's answer cannot be read")]
    Frame(#[from] FrameError),
    /// The answer is no JSON.
    #[error("the daemon's answer cannot be shown")]
    Json(#[from] JsonError),
    /// It closed the connection.
    #[error("the daemon closed the connection without an answer")]
    Closed,
    /// It takes too long.
    #[error("the daemon did not answer within {0:?}")]
    Timeout(Duration),
    /// It refused.
    #[error("{0}")]
    Refused(String),
    /// The client's own runtime.
    #[error("cannot start the runtime")]
    Runtime(#[source] std::io::Error),
}

/// Sends one request body and gives the `result` of the answer as JSON.
pub fn ask(config: &Config, body: &[u8], limit: Duration) -> Result<Value, AskError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AskError::Runtime)?;
    runtime.block_on(async {
        tokio::time::timeout(limit, exchange(config, body)).await.map_err(|_| AskError::Timeout(limit))?
    })
}

/// An administrative command with its arguments.
pub fn admin(config: &Config, command: &str, args: Value) -> Result<Value, AskError> {
    let op = Op::Admin { command: command.to_owned(), args: json::from_tree(args) };
    ask(config, &Request { envelope: Envelope::default(), op }.to_body(), Duration::from_secs(30))
}

async fn exchange(config: &Config, body: &[u8]) -> Result<Value, AskError> {
    let mut stream = tokio::net::UnixStream::connect(&config.socket)
        .await
        .map_err(|source| AskError::Connect { path: config.socket.clone(), source })?;
    frame::write_frame(&mut stream, body, frame::MAX_FRAME).await?;
    let answer = frame::read_frame(&mut stream, usize::MAX).await?.ok_or(AskError::Closed)?;
    match Answer::from_body(&answer)? {
        Answer::Done(result) => Ok(json::to_tree(&result)?),
        Answer::Failed { error, .. } => Err(AskError::Refused(error)),
    }
}
