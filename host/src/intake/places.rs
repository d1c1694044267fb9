//! The places for connections, and who makes room where there is none.
//!
//! Shims keep their connection between requests. Where all places are taken and another client comes, the one that has been silent for
//! longest since its answer is told to go. Invariants: no client is told to go before it has been answered; one that speaks just then is
//! heard, and the next one is told instead; nobody is told to go for a client that has a place.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The places. Only one task may wait for one at a time.
#[derive(Clone, Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    order: Arc<Mutex<Order>>,
}

#[derive(Debug, Default)]
struct Order {
    /// Those that have been answered and say nothing since, with what tells each to go; the longest silence first.
    silent: BTreeMap<u64, oneshot::Sender<()>>,
    /// The number of the next silence.
    next: u64,
    /// Somebody waits for a place and nobody was there to be told.
    wanted: bool,
}

impl Order {
    fn make_room(&mut self) {
        while let Some((_, tell)) = self.silent.pop_first() {
            if tell.send(()).is_ok() {
                self.wanted = false;
                return;
            }
        }
        self.wanted = true;
    }
}

impl Places {
    /// So many places, at least one.
    pub fn new(most: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(most.max(1))), order: Arc::default() }
    }

    fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, once there is one.
    pub async fn take(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = self.free.clone().try_acquire_owned() {
            return Some(place);
        }
        self.order().make_room();
        let place = self.free.clone().acquire_owned().await.ok();
        self.order().wanted = false;
        place
    }

    /// A client that is being answered begins to be silent.
    pub fn silent(&self) -> Silence {
        let (tell, told) = oneshot::channel();
        let mut order = self.order();
        let number = order.next;
        order.next += 1;
        order.silent.insert(number, tell);
        if order.wanted {
            order.make_room();
        }
        drop(order);
        Silence { number, told, places: self.clone() }
    }
}

/// The silence of a client that has been answered; over when dropped.
#[derive(Debug)]
pub struct Silence {
    number: u64,
    told: oneshot::Receiver<()>,
    places: Places,
}

impl Silence {
    /// Waits until the client is to make room.
    pub async fn told_to_go(&mut self) {
        if (&mut self.told).await.is_err() {
            // Nobody can tell any more.
            std::future::pending::<()>().await;
        }
    }

    /// The client speaks again. Was it told to go, another one is told instead.
    pub fn broken(mut self) {
        if self.told.try_recv().is_ok() {
            self.places.order().make_room();
        }
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        self.places.order().silent.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Whether a client is told to go.
    async fn is_told(silence: &mut Silence) -> bool {
        tokio::time::timeout(Duration::ZERO, silence.told_to_go()).await.is_ok()
    }

    /// Begins to wait for a place, where there is none.
    async fn begin(wait: &mut (impl Future + Unpin)) {
        assert!(tokio::time::timeout(Duration::ZERO, wait).await.is_err(), "there is no place");
    }

    #[tokio::test]
    async fn the_longest_silence_makes_room() {
        let places = Places::new(2);
        let (taken, _other) = (places.take().await, places.take().await);
        let (mut first, mut second) = (places.silent(), places.silent());
        let mut wait = std::pin::pin!(places.take());
        begin(&mut wait).await;
        assert!(is_told(&mut first).await && !is_told(&mut second).await);
        drop((first, taken));
        assert!(wait.await.is_some());
        assert!(!is_told(&mut second).await);
    }

    #[tokio::test]
    async fn one_that_speaks_just_then_is_heard_and_the_next_is_told() {
        let places = Places::new(1);
        let _taken = places.take().await;
        let (first, mut second) = (places.silent(), places.silent());
        let mut wait = std::pin::pin!(places.take());
        begin(&mut wait).await;
        assert!(!is_told(&mut second).await);
        first.broken();
        assert!(is_told(&mut second).await);
    }

    #[tokio::test]
    async fn where_nobody_has_been_answered_the_first_that_is_makes_room() {
        let places = Places::new(1);
        let taken = places.take().await;
        let mut wait = std::pin::pin!(places.take());
        begin(&mut wait).await;
        let (mut first, mut second) = (places.silent(), places.silent());
        assert!(is_told(&mut first).await && !is_told(&mut second).await);
        drop(taken);
        assert!(wait.await.is_some());
    }

    #[tokio::test]
    async fn nobody_is_told_for_one_that_has_found_a_place() {
        let places = Places::new(1);
        let taken = places.take().await;
        let mut wait = std::pin::pin!(places.take());
        begin(&mut wait).await;
        drop(taken);
        assert!(wait.await.is_some());
        assert!(!is_told(&mut places.silent()).await);
    }

    #[tokio::test]
    async fn one_that_has_gone_is_not_told() {
        let places = Places::new(1);
        let _taken = places.take().await;
        let (gone, mut second) = (places.silent(), places.silent());
        drop(gone);
        let mut wait = std::pin::pin!(places.take());
        begin(&mut wait).await;
        assert!(is_told(&mut second).await);
    }
}
