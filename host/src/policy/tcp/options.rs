//! Options of a socket, by WASI's rules: a value of zero is wrong, one that is too large is cut to the largest.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::socket::sockopt;
use nix::sys::socket::{GetSockOpt, SetSockOpt, getsockopt, setsockopt};
use wasmtime_wasi::p2::SocketResult;
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddressFamily};

use super::{State, Tcp};

const SECOND: u64 = 1_000_000_000;

/// Linux's largest time and number for keep-alive.
const MOST_SECONDS: u64 = 32_767;
const MOST_PROBES: u32 = 127;

/// A buffer is at most as large as Linux lets it be; this only keeps the number in range.
const MOST_BUFFER: u64 = 1 << 30;

impl Tcp {
    fn fd(&self) -> SocketResult<BorrowedFd<'_>> {
        match &self.state {
            State::New(socket) => Ok(socket.as_fd()),
            State::Tried(Ok(stream)) => Ok(stream.as_fd()),
            State::Connected { stream, .. } => Ok(stream.as_fd()),
            _ => Err(ErrorCode::InvalidState.into()),
        }
    }

    fn get<O: GetSockOpt>(&self, option: O) -> SocketResult<O::Val> {
        Ok(getsockopt(&self.fd()?, option).map_err(std::io::Error::from)?)
    }

    fn set<O: SetSockOpt>(&self, option: O, value: &O::Val) -> SocketResult<()> {
        Ok(setsockopt(&self.fd()?, option, value).map_err(std::io::Error::from)?)
    }

    pub(super) fn keep_alive(&self) -> SocketResult<bool> {
        self.get(sockopt::KeepAlive)
    }

    pub(super) fn set_keep_alive(&self, value: bool) -> SocketResult<()> {
        self.set(sockopt::KeepAlive, &value)
    }

    pub(super) fn keep_alive_idle(&self) -> SocketResult<u64> {
        Ok(u64::from(self.get(sockopt::TcpKeepIdle)?) * SECOND)
    }

    pub(super) fn set_keep_alive_idle(&self, nanoseconds: u64) -> SocketResult<()> {
        self.set(sockopt::TcpKeepIdle, &seconds(nanoseconds)?)
    }

    pub(super) fn keep_alive_interval(&self) -> SocketResult<u64> {
        Ok(u64::from(self.get(sockopt::TcpKeepInterval)?) * SECOND)
    }

    pub(super) fn set_keep_alive_interval(&self, nanoseconds: u64) -> SocketResult<()> {
        self.set(sockopt::TcpKeepInterval, &seconds(nanoseconds)?)
    }

    pub(super) fn keep_alive_count(&self) -> SocketResult<u32> {
        self.get(sockopt::TcpKeepCount)
    }

    pub(super) fn set_keep_alive_count(&self, value: u32) -> SocketResult<()> {
        self.set(sockopt::TcpKeepCount, &not_zero(value)?.min(MOST_PROBES))
    }

    pub(super) fn hop_limit(&self) -> SocketResult<u8> {
        let limit = match self.family {
            IpAddressFamily::Ipv4 => self.get(sockopt::Ipv4Ttl)?,
            IpAddressFamily::Ipv6 => self.get(sockopt::Ipv6Ttl)?,
        };
        Ok(u8::try_from(limit).unwrap_or(u8::MAX))
    }

    pub(super) fn set_hop_limit(&self, value: u8) -> SocketResult<()> {
        let limit = i32::from(not_zero(value)?);
        match self.family {
            IpAddressFamily::Ipv4 => self.set(sockopt::Ipv4Ttl, &limit),
            IpAddressFamily::Ipv6 => self.set(sockopt::Ipv6Ttl, &limit),
        }
    }

    // Linux takes twice what it is asked for, for its own use, and tells that.

    pub(super) fn receive_buffer(&self) -> SocketResult<u64> {
        Ok(self.get(sockopt::RcvBuf)? as u64 / 2)
    }

    pub(super) fn set_receive_buffer(&self, value: u64) -> SocketResult<()> {
        self.set(sockopt::RcvBuf, &(not_zero(value)?.min(MOST_BUFFER) as usize))
    }

    pub(super) fn send_buffer(&self) -> SocketResult<u64> {
        Ok(self.get(sockopt::SndBuf)? as u64 / 2)
    }

    pub(super) fn set_send_buffer(&self, value: u64) -> SocketResult<()> {
        self.set(sockopt::SndBuf, &(not_zero(value)?.min(MOST_BUFFER) as usize))
    }
}

fn not_zero<N: PartialEq + Default>(value: N) -> SocketResult<N> {
    if value == N::default() { Err(ErrorCode::InvalidArgument.into()) } else { Ok(value) }
}

/// Whole seconds of a time that is not zero, rounded up.
fn seconds(nanoseconds: u64) -> SocketResult<u32> {
    let seconds = not_zero(nanoseconds)?.div_ceil(SECOND).min(MOST_SECONDS);
    Ok(u32::try_from(seconds).unwrap_or(u32::MAX))
}
