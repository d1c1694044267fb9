//! TCP for plugins: `wasi:sockets/tcp` for connections that go out.
//!
//! wasmtime-wasi's own leaves Nagle's algorithm on, WASI has no function that turns it off, and drivers that do so natively do it in vain:
//! the last piece of a batch then waits up to 40 ms for an acknowledgement. So the sockets are made here, with `TCP_NODELAY`.
//!
//! The interface is WASI's, and so is the type that stands for a socket in its functions; in the store's table lies a [`Tcp`].
//!
//! Invariants: nothing is connected to that the sink's egress does not allow, and nothing listens; a task of a socket ends with it; what
//! one socket holds in memory is one read and one write of at most [`stream::PIECE`] bytes.

mod options;
mod stream;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::net::{TcpSocket as Unconnected, TcpStream};
use wasmtime::component::Resource;
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddressFamily, IpSocketAddress, Network};
use wasmtime_wasi::p2::bindings::sockets::tcp::{self, HostTcpSocket, ShutdownType};
use wasmtime_wasi::p2::{
    DynInputStream, DynOutputStream, DynPollable, Pollable, SocketResult, TcpSocket, subscribe,
};
use wasmtime_wasi::sockets::SocketAddrUse;

use self::stream::{Reader, Sending, Task, Writer};
use super::sockets::Sockets;

/// A socket of a plugin.
pub(super) struct Tcp {
    family: IpAddressFamily,
    state: State,
}

enum State {
    /// Made, and perhaps given options.
    New(Unconnected),
    /// Being connected.
    Connecting(Task<TcpStream>),
    /// That has ended, and the plugin has not asked how.
    Tried(io::Result<TcpStream>),
    /// Connected; the plugin has the streams.
    Connected { stream: Arc<TcpStream>, sending: Arc<Sending> },
    /// Could not be connected.
    Failed,
}

impl Tcp {
    pub(super) fn new(family: IpAddressFamily) -> io::Result<Self> {
        let socket = match family {
            IpAddressFamily::Ipv4 => Unconnected::new_v4()?,
            IpAddressFamily::Ipv6 => Unconnected::new_v6()?,
        };
        Ok(Self { family, state: State::New(socket) })
    }

    /// Whether an address is one host's, of this socket's family.
    fn fits(&self, address: SocketAddr) -> bool {
        let family = match (self.family, address.ip()) {
            (IpAddressFamily::Ipv4, IpAddr::V4(_)) => true,
            // The notations of IPv4 addresses within IPv6 ones are left to sockets of the other family.
            (IpAddressFamily::Ipv6, IpAddr::V6(ip)) => ip.to_ipv4().is_none() || ip.is_loopback(),
            _ => false,
        };
        let one_host = match address.ip().to_canonical() {
            IpAddr::V4(ip) => !ip.is_multicast() && !ip.is_broadcast() && !ip.is_unspecified(),
            IpAddr::V6(ip) => !ip.is_multicast() && !ip.is_unspecified(),
        };
        family && one_host && address.port() != 0
    }

    /// Ready when the connection is made or has failed; at once if none is being made.
    fn poll_connected(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let State::Connecting(task) = &mut self.state {
            let Poll::Ready(result) = task.poll(context) else { return Poll::Pending };
            self.state = State::Tried(result);
        }
        Poll::Ready(())
    }

    fn start_connect(&mut self, address: SocketAddr) -> Result<(), ErrorCode> {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::New(socket) => {
                self.state = State::Connecting(Task::spawn(socket.connect(address)));
                Ok(())
            }
            State::Connecting(task) => {
                self.state = State::Connecting(task);
                Err(ErrorCode::ConcurrencyConflict)
            }
            other => {
                self.state = other;
                Err(ErrorCode::InvalidState)
            }
        }
    }

    fn finish_connect(&mut self) -> SocketResult<(DynInputStream, DynOutputStream)> {
        if self.poll_connected(&mut Context::from_waker(Waker::noop())).is_pending() {
            return Err(ErrorCode::WouldBlock.into());
        }
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Tried(Ok(stream)) => {
                stream.set_nodelay(true)?;
                let (stream, sending) = (Arc::new(stream), Arc::default());
                self.state = State::Connected { stream: Arc::clone(&stream), sending: Arc::clone(&sending) };
                let reader = Box::new(Reader::new(Arc::clone(&stream)));
                Ok((reader, Box::new(Writer::new(stream, sending))))
            }
            State::Tried(Err(error)) => Err(error.into()),
            other => {
                self.state = other;
                Err(ErrorCode::NotInProgress.into())
            }
        }
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Tcp {
    async fn ready(&mut self) {
        poll_fn(|context| self.poll_connected(context)).await;
    }
}

/// The socket in the table that WASI's type stands for.
fn ours(socket: &Resource<TcpSocket>) -> Resource<Tcp> {
    Resource::new_borrow(socket.rep())
}

impl Sockets<'_> {
    fn tcp(&mut self, socket: &Resource<TcpSocket>) -> SocketResult<&mut Tcp> {
        Ok(self.wasi.table.get_mut(&ours(socket))?)
    }
}

impl tcp::Host for Sockets<'_> {}

impl HostTcpSocket for Sockets<'_> {
    async fn start_bind(
        &mut self,
        socket: Resource<TcpSocket>,
        _network: Resource<Network>,
        address: IpSocketAddress,
    ) -> SocketResult<()> {
        self.tcp(&socket)?;
        // What passes is "any address, any port", which the system does by itself when it connects.
        if self.egress.check(address.into(), SocketAddrUse::TcpBind) {
            Ok(())
        } else {
            Err(ErrorCode::AccessDenied.into())
        }
    }

    fn finish_bind(&mut self, socket: Resource<TcpSocket>) -> SocketResult<()> {
        self.tcp(&socket)?;
        Ok(())
    }

    fn start_connect(
        &mut self,
        socket: Resource<TcpSocket>,
        network: Resource<Network>,
        address: IpSocketAddress,
    ) -> SocketResult<()> {
        // Who has no network may use none.
        self.wasi.table.get(&network)?;
        let address = SocketAddr::from(address);
        if !self.tcp(&socket)?.fits(address) {
            return Err(ErrorCode::InvalidArgument.into());
        }
        if !self.egress.check(address, SocketAddrUse::TcpConnect) {
            return Err(ErrorCode::AccessDenied.into());
        }
        Ok(self.tcp(&socket)?.start_connect(address)?)
    }

    fn finish_connect(
        &mut self,
        socket: Resource<TcpSocket>,
    ) -> SocketResult<(Resource<DynInputStream>, Resource<DynOutputStream>)> {
        let (input, output) = self.tcp(&socket)?.finish_connect()?;
        let socket = ours(&socket);
        let input = self.wasi.table.push_child(input, &socket)?;
        let output = self.wasi.table.push_child(output, &socket)?;
        Ok((input, output))
    }

    async fn start_listen(&mut self, socket: Resource<TcpSocket>) -> SocketResult<()> {
        let any: SocketAddr = match self.tcp(&socket)?.family {
            IpAddressFamily::Ipv4 => ([0; 4], 0).into(),
            IpAddressFamily::Ipv6 => ([0; 16], 0).into(),
        };
        // It refuses that of everybody, and counts and logs it.
        self.egress.check(any, SocketAddrUse::TcpListen);
        Err(ErrorCode::AccessDenied.into())
    }

    fn finish_listen(&mut self, _socket: Resource<TcpSocket>) -> SocketResult<()> {
        Err(ErrorCode::NotInProgress.into())
    }

    fn accept(
        &mut self,
        _socket: Resource<TcpSocket>,
    ) -> SocketResult<(Resource<TcpSocket>, Resource<DynInputStream>, Resource<DynOutputStream>)> {
        Err(ErrorCode::InvalidState.into())
    }

    fn local_address(&mut self, socket: Resource<TcpSocket>) -> SocketResult<IpSocketAddress> {
        match &self.tcp(&socket)?.state {
            State::Connected { stream, .. } => Ok(stream.local_addr()?.into()),
            _ => Err(ErrorCode::InvalidState.into()),
        }
    }

    fn remote_address(&mut self, socket: Resource<TcpSocket>) -> SocketResult<IpSocketAddress> {
        match &self.tcp(&socket)?.state {
            State::Connected { stream, .. } => Ok(stream.peer_addr()?.into()),
            _ => Err(ErrorCode::InvalidState.into()),
        }
    }

    fn is_listening(&mut self, _socket: Resource<TcpSocket>) -> wasmtime::Result<bool> {
        Ok(false)
    }

    fn address_family(&mut self, socket: Resource<TcpSocket>) -> wasmtime::Result<IpAddressFamily> {
        Ok(self.wasi.table.get(&ours(&socket))?.family)
    }

    fn set_listen_backlog_size(&mut self, _socket: Resource<TcpSocket>, _value: u64) -> SocketResult<()> {
        // wasi-libc does this before it listens and ends the guest if it fails; the refusal should come from listening.
        Ok(())
    }

    fn keep_alive_enabled(&mut self, socket: Resource<TcpSocket>) -> SocketResult<bool> {
        self.tcp(&socket)?.keep_alive()
    }

    fn set_keep_alive_enabled(&mut self, socket: Resource<TcpSocket>, value: bool) -> SocketResult<()> {
        self.tcp(&socket)?.set_keep_alive(value)
    }

    fn keep_alive_idle_time(&mut self, socket: Resource<TcpSocket>) -> SocketResult<u64> {
        self.tcp(&socket)?.keep_alive_idle()
    }

    fn set_keep_alive_idle_time(&mut self, socket: Resource<TcpSocket>, value: u64) -> SocketResult<()> {
        self.tcp(&socket)?.set_keep_alive_idle(value)
    }

    fn keep_alive_interval(&mut self, socket: Resource<TcpSocket>) -> SocketResult<u64> {
        self.tcp(&socket)?.keep_alive_interval()
    }

    fn set_keep_alive_interval(&mut self, socket: Resource<TcpSocket>, value: u64) -> SocketResult<()> {
        self.tcp(&socket)?.set_keep_alive_interval(value)
    }

    fn keep_alive_count(&mut self, socket: Resource<TcpSocket>) -> SocketResult<u32> {
        self.tcp(&socket)?.keep_alive_count()
    }

    fn set_keep_alive_count(&mut self, socket: Resource<TcpSocket>, value: u32) -> SocketResult<()> {
        self.tcp(&socket)?.set_keep_alive_count(value)
    }

    fn hop_limit(&mut self, socket: Resource<TcpSocket>) -> SocketResult<u8> {
        self.tcp(&socket)?.hop_limit()
    }

    fn set_hop_limit(&mut self, socket: Resource<TcpSocket>, value: u8) -> SocketResult<()> {
        self.tcp(&socket)?.set_hop_limit(value)
    }

    fn receive_buffer_size(&mut self, socket: Resource<TcpSocket>) -> SocketResult<u64> {
        self.tcp(&socket)?.receive_buffer()
    }

    fn set_receive_buffer_size(&mut self, socket: Resource<TcpSocket>, value: u64) -> SocketResult<()> {
        self.tcp(&socket)?.set_receive_buffer(value)
    }

    fn send_buffer_size(&mut self, socket: Resource<TcpSocket>) -> SocketResult<u64> {
        self.tcp(&socket)?.send_buffer()
    }

    fn set_send_buffer_size(&mut self, socket: Resource<TcpSocket>, value: u64) -> SocketResult<()> {
        self.tcp(&socket)?.set_send_buffer(value)
    }

    fn subscribe(&mut self, socket: Resource<TcpSocket>) -> wasmtime::Result<Resource<DynPollable>> {
        subscribe(self.wasi.table, ours(&socket))
    }

    fn shutdown(&mut self, socket: Resource<TcpSocket>, what: ShutdownType) -> SocketResult<()> {
        let State::Connected { stream, sending } = &self.tcp(&socket)?.state else {
            return Err(ErrorCode::InvalidState.into());
        };
        if !matches!(what, ShutdownType::Send) {
            stream::end_reading(stream)?;
        }
        if !matches!(what, ShutdownType::Receive) {
            sending.end(stream)?;
        }
        Ok(())
    }

    fn drop(&mut self, socket: Resource<TcpSocket>) -> wasmtime::Result<()> {
        self.wasi.table.delete(Resource::<Tcp>::new_own(socket.rep()))?;
        Ok(())
    }
}
