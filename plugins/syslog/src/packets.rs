//! Messages to a server by UDP, one in a packet. Whether one arrives nobody says.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use returner_sdk::prelude::*;

use crate::options::Server;

/// The server's name is looked up again after this long, since nothing else would tell that it has moved.
const LOOK_UP_AGAIN: Duration = Duration::from_secs(60);

/// `EMSGSIZE`.
const TOO_LONG: i32 = if cfg!(target_arch = "wasm32") { 35 } else { 90 };

/// A socket and where it sends to.
pub(crate) struct Packets {
    server: Server,
    socket: UdpSocket,
    address: SocketAddr,
    looked_up: Instant,
}

impl Packets {
    /// Looks the server up.
    pub(crate) fn open(server: Server) -> Result<Self> {
        let address = returner_sdk::resolve(&server.host, server.port).map(|found| found.into_iter().next());
        let address = address.ok().flatten().ok_or_else(|| {
            Error::retry(format!("cannot find the server `{}` (option `server`)", server.host))
        })?;
        let any = match address {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = UdpSocket::bind(any)
            .map_err(|error| Error::retry(format!("cannot make a UDP socket for {server}: {error}")))?;
        Ok(Self { server, socket, address, looked_up: Instant::now() })
    }

    /// Looks the server up again if that was long ago.
    pub(crate) fn renew(&mut self) -> Result<()> {
        if self.looked_up.elapsed() > LOOK_UP_AGAIN {
            *self = Self::open(self.server.clone())?;
        }
        Ok(())
    }

    /// Sends one message. None if it is too long for the way there.
    pub(crate) fn send(&self, message: &str) -> Result<Option<()>> {
        match self.socket.send_to(message.as_bytes(), self.address) {
            Ok(_) => Ok(Some(())),
            Err(error) if error.raw_os_error() == Some(TOO_LONG) => Ok(None),
            Err(error) => Err(Error::retry(format!("cannot send to {}: {error}", self.server))),
        }
    }
}
