//! Name look-up for plugins: `wasi:sockets/ip-name-lookup` with our own rule in place of "everything or nothing".
//!
//! Invariant: a name is looked up only if it is granted, and what it resolves to is told to the sink's [`Egress`] before the
//! plugin sees it.

use std::io;
use std::net::IpAddr;

use wasmtime::component::{HasData, Resource, ResourceTable};
use wasmtime_wasi::p2::bindings::sockets::ip_name_lookup::{
    Host, HostResolveAddressStream, ResolveAddressStream,
};
use wasmtime_wasi::p2::bindings::sockets::network::{self, ErrorCode, HostNetwork, IpAddress, Network};
use wasmtime_wasi::p2::{DynPollable, Pollable, SocketError, subscribe};

use super::egress::Egress;

/// Look-ups of a sink at once and their time limit are the resolver's own; a name longer than this is none.
const MAX_NAME: usize = 253;

/// What the look-up needs of a store.
pub struct Names<'a> {
    /// The sink's check.
    pub egress: &'a Egress,
    /// The store's table.
    pub table: &'a mut ResourceTable,
}

/// Ties [`Names`] to a linker.
pub struct HasNames;

impl HasData for HasNames {
    type Data<'a> = Names<'a>;
}

/// A look-up under way or done.
struct Lookup {
    task: Option<tokio::task::JoinHandle<Result<Vec<IpAddr>, ErrorCode>>>,
    answer: Result<std::vec::IntoIter<IpAddr>, ErrorCode>,
}

#[wasmtime_wasi::async_trait]
impl Pollable for Lookup {
    async fn ready(&mut self) {
        if let Some(task) = self.task.as_mut() {
            let result = task.await.unwrap_or(Err(ErrorCode::Unknown));
            self.task = None;
            self.answer = result.map(Vec::into_iter);
        }
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// The look-up's interface stands on this one; it is as wasmtime-wasi has it.
impl network::Host for Names<'_> {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn network_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        let error = self.table.get(&error)?;
        Ok(error.downcast_ref::<std::io::Error>().map(ErrorCode::from))
    }
}

impl HostNetwork for Names<'_> {
    fn drop(&mut self, network: Resource<Network>) -> wasmtime::Result<()> {
        self.table.delete(network)?;
        Ok(())
    }
}

impl Host for Names<'_> {
    fn resolve_addresses(
        &mut self,
        network: Resource<Network>,
        name: String,
    ) -> Result<Resource<ResolveAddressStream>, SocketError> {
        self.table.get(&network)?;
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let lookup = if let Ok(address) = bare.parse::<IpAddr>() {
            Lookup { task: None, answer: Ok(vec![address].into_iter()) }
        } else if name.is_empty() || name.len() > MAX_NAME {
            return Err(ErrorCode::InvalidArgument.into());
        } else if !self.egress.may_resolve(&name) {
            return Err(ErrorCode::AccessDenied.into());
        } else {
            let task = tokio::spawn(look_up(self.egress.clone(), name, system));
            Lookup { task: Some(task), answer: Err(ErrorCode::WouldBlock) }
        };
        // The interface's resource type belongs to wasmtime-wasi and cannot be made here; a handle is only an index into the
        // table, so ours goes under that type and comes back in the functions below.
        let own = self.table.push(lookup)?;
        Ok(Resource::new_own(own.rep()))
    }
}

/// The system's answer for a name.
async fn system(name: String) -> io::Result<Vec<IpAddr>> {
    Ok(tokio::net::lookup_host((name.as_str(), 0)).await?.map(|address| address.ip()).collect())
}

/// Looks a granted name up by `find` and notes the answer before anybody sees it.
async fn look_up<F: Future<Output = io::Result<Vec<IpAddr>>>>(
    egress: Egress,
    name: String,
    find: impl FnOnce(String) -> F,
) -> Result<Vec<IpAddr>, ErrorCode> {
    let found = find(name.clone()).await.map_err(|error| {
        tracing::debug!(name, %error, "a name could not be resolved");
        ErrorCode::NameUnresolvable
    })?;
    let addresses: Vec<IpAddr> = found.iter().map(IpAddr::to_canonical).collect();
    egress.resolved(&name, &addresses);
    Ok(addresses)
}

fn lookup(stream: &Resource<ResolveAddressStream>) -> Resource<Lookup> {
    Resource::new_borrow(stream.rep())
}

impl HostResolveAddressStream for Names<'_> {
    fn resolve_next_address(
        &mut self,
        stream: Resource<ResolveAddressStream>,
    ) -> Result<Option<IpAddress>, SocketError> {
        let lookup = self.table.get_mut(&lookup(&stream))?;
        if lookup.task.is_some() {
            return Err(ErrorCode::WouldBlock.into());
        }
        match &mut lookup.answer {
            Ok(addresses) => Ok(addresses.next().map(IpAddress::from)),
            Err(code) => Err((*code).into()),
        }
    }

    fn subscribe(
        &mut self,
        stream: Resource<ResolveAddressStream>,
    ) -> wasmtime::Result<Resource<DynPollable>> {
        subscribe(self.table, lookup(&stream))
    }

    fn drop(&mut self, stream: Resource<ResolveAddressStream>) -> wasmtime::Result<()> {
        self.table.delete(Resource::<Lookup>::new_own(stream.rep()))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use wasmtime_wasi::sockets::SocketAddrUse;

    use super::*;
    use crate::policy::egress::{Endpoint, Protocol};

    fn egress() -> Egress {
        let endpoint = Endpoint { protocol: Protocol::Tcp, host: "db.example.com".into(), port: 80 };
        Egress::new("t", vec![endpoint], false)
    }

    async fn answered(egress: &Egress, answer: &str) -> Vec<IpAddr> {
        let answer = answer.parse::<IpAddr>().unwrap();
        look_up(egress.clone(), "db.example.com".into(), async |_| Ok(vec![answer])).await.unwrap()
    }

    fn connects(egress: &Egress, address: &str) -> bool {
        egress.check(SocketAddr::new(address.parse().unwrap(), 80), SocketAddrUse::TcpConnect)
    }

    #[tokio::test]
    async fn an_answer_that_changes_between_look_up_and_connect_leads_nowhere() {
        let egress = egress();
        answered(&egress, "192.0.2.7").await;
        assert!(connects(&egress, "192.0.2.7"));
        // The attacker's server now answers with the cloud's metadata service, then with another host inside.
        for inside in ["169.254.169.254", "127.0.0.1", "::ffff:127.0.0.1"] {
            answered(&egress, inside).await;
            assert!(!connects(&egress, inside), "{inside}");
            assert!(!connects(&egress, "192.0.2.7"), "the old answer is gone");
        }
        assert!(!connects(&egress, "10.0.0.1"), "only what the host itself was answered is reached");
        answered(&egress, "192.0.2.8").await;
        assert!(connects(&egress, "192.0.2.8"));
    }

    #[tokio::test]
    async fn a_failed_look_up_keeps_the_last_answer() {
        let egress = egress();
        answered(&egress, "192.0.2.7").await;
        let failed =
            look_up(egress.clone(), "db.example.com".into(), async |_| Err(io::Error::other("away")));
        assert!(failed.await.is_err());
        assert!(connects(&egress, "192.0.2.7"));
    }
}
