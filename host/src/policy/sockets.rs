//! How many sockets an instance may have: `wasi:sockets`' two functions that make one, with a limit. Those for TCP are ours (`tcp`).
//!
//! Invariant: sockets are counted where they live, in the store's table, so a count can never drift from what is open.

use wasmtime::component::{HasData, Resource, ResourceTable};
use wasmtime_wasi::p2::bindings::sockets::network::{self, ErrorCode, HostNetwork, IpAddressFamily, Network};
use wasmtime_wasi::p2::bindings::sockets::{tcp_create_socket, udp_create_socket};
use wasmtime_wasi::p2::{SocketError, SocketResult, TcpSocket, UdpSocket};
use wasmtime_wasi::sockets::WasiSocketsCtxView;

use super::egress::Egress;
use super::tcp::Tcp;

/// What making a socket needs of a store.
pub struct Sockets<'a> {
    /// WASI's own.
    pub wasi: WasiSocketsCtxView<'a>,
    /// Which addresses may be connected to.
    pub egress: &'a Egress,
    /// At most this many at once.
    pub most: usize,
}

/// Ties [`Sockets`] to a linker.
pub struct HasSockets;

impl HasData for HasSockets {
    type Data<'a> = Sockets<'a>;
}

impl Sockets<'_> {
    fn room(&mut self) -> SocketResult<()> {
        if count(self.wasi.table) < self.most { Ok(()) } else { Err(ErrorCode::NewSocketLimit.into()) }
    }
}

fn count(table: &mut ResourceTable) -> usize {
    table.iter_mut().filter(|entry| entry.is::<Tcp>() || entry.is::<UdpSocket>()).count()
}

/// The two interfaces stand on this one.
impl network::Host for Sockets<'_> {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<ErrorCode> {
        network::Host::convert_error_code(&mut self.wasi, error)
    }

    fn network_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        network::Host::network_error_code(&mut self.wasi, error)
    }
}

impl HostNetwork for Sockets<'_> {
    fn drop(&mut self, network: Resource<Network>) -> wasmtime::Result<()> {
        HostNetwork::drop(&mut self.wasi, network)
    }
}

impl tcp_create_socket::Host for Sockets<'_> {
    fn create_tcp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<TcpSocket>> {
        self.room()?;
        let socket = self.wasi.table.push(Tcp::new(family)?)?;
        Ok(Resource::new_own(socket.rep()))
    }
}

impl udp_create_socket::Host for Sockets<'_> {
    async fn create_udp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<UdpSocket>> {
        self.room()?;
        udp_create_socket::Host::create_udp_socket(&mut self.wasi, family).await
    }
}
