//! Finding a server's addresses.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// The addresses of a host. Inside the sandbox tokio cannot do this itself, since it would need a thread, so give
/// these to a driver that takes addresses. Never empty.
pub fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(addresses)
}
