//! Messages to unix sockets of this machine, such as the local log.
//!
//! Inside the sandbox the host sends them, to paths that the manifest wishes for by `unix://{option}` and that were
//! granted. Natively they are sent by this process, each over a connection of its own, for tests.

use crate::Error;
pub use crate::bindings::unix_datagrams::Error as SendError;

/// Sends one message: as one datagram, or, to a socket of streams, with a NUL at its end.
///
/// # Errors
/// As in `unix-datagrams.wit`; [`explained`] makes one into an error of the plugin.
pub fn send(path: &str, message: &[u8]) -> Result<(), SendError> {
    #[cfg(target_arch = "wasm32")]
    return crate::bindings::unix_datagrams::send(path, message);
    #[cfg(not(target_arch = "wasm32"))]
    native::send(path, message)
}

/// What an error means, for the operator: something that can be mended on the machine, so try again.
pub fn explained(path: &str, error: SendError) -> Error {
    let why = match error {
        SendError::NotGranted => format!(
            "is not granted; hint: the log has the line for returnerd.toml, `allow = [\"unix://{path}\"]`"
        ),
        SendError::Absent => "is not there".to_owned(),
        SendError::Refused => {
            "takes no connection; hint: is the program behind it running, and may the daemon's user write to the socket?"
                .to_owned()
        }
        SendError::TooLong => "does not take so long a message".to_owned(),
        SendError::Busy => "takes nothing at present, as its queue is full".to_owned(),
        SendError::Limit => "is one more than the sockets that an instance may have".to_owned(),
        SendError::Io => "cannot be used".to_owned(),
    };
    Error::retry(format!("the socket `{path}` {why}"))
}

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use std::io::{self, ErrorKind, Write};
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::SendError;

    /// Linux' `EPROTOTYPE`: the socket is of another type.
    const OTHER_TYPE: i32 = 91;
    /// Linux' `EMSGSIZE`.
    const TOO_LONG: i32 = 90;

    pub(super) fn send(path: &str, message: &[u8]) -> Result<(), SendError> {
        let sent = UnixDatagram::unbound().and_then(|socket| socket.send_to(message, path));
        match sent {
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(OTHER_TYPE) => UnixStream::connect(path)
                .and_then(|mut stream| stream.write_all(&[message, &[0]].concat()))
                .map_err(reason),
            Err(error) => Err(reason(error)),
        }
    }

    fn reason(error: io::Error) -> SendError {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => SendError::Absent,
            ErrorKind::ConnectionRefused | ErrorKind::BrokenPipe | ErrorKind::PermissionDenied => {
                SendError::Refused
            }
            _ if error.raw_os_error() == Some(TOO_LONG) => SendError::TooLong,
            _ => SendError::Io,
        }
    }
}
