//! Forgets rows of a service's database that have served: inbox, idempotency keys, and what is known of
//! messages that waited in their broker's own queue.
//!
//! A service starts one beside its relay and its consumers; any number of them may work on one database.
//! The outbox's history is the [relay's](crate::relay) to forget, failed messages are the
//! [sweeper's](crate::sweeper).

use mamparo_call::clock;
pub use mamparo_core::message::housekeeping::Policy;
use mamparo_core::message::housekeeping::{Housekeeping, Matter, Step};
use mamparo_store::{Backend, Store, StoreError, idempotency, inbox, retries};
use tokio_util::sync::CancellationToken;

use crate::observe;

/// A housekeeper of one database.
#[derive(Debug)]
pub struct Housekeeper<DB: Backend> {
    store: Store<DB>,
    policy: Policy,
}

impl<DB: Backend> Housekeeper<DB> {
    /// A housekeeper on the connections for background work. The default policy keeps the inbox for 7 days,
    /// idempotency keys for a day longer than their answers, and rows about retries for 7 days; it asks each
    /// table once an hour, and deletes 1,000 rows at a time.
    #[must_use]
    pub fn new(store: &Store<DB>, policy: Policy) -> Self {
        Self { store: store.background(), policy }
    }

    /// Works until `cancel`; a batch that is on its way then is let go, and deletes all of its rows or none.
    /// What fails is reported and tried again with backoff.
    pub async fn run(self, cancel: CancellationToken) {
        let mut housekeeping = Housekeeping::new(self.policy, clock::now());
        let mut rng = clock::entropy();
        let work = async {
            loop {
                match housekeeping.ask(clock::now()) {
                    Step::Wait(until) => clock::sleep_until(until).await,
                    Step::Forget(matter) => {
                        let forgotten = self.forget(matter).await;
                        observe::forgotten(matter, &forgotten);
                        housekeeping.tell(clock::now(), forgotten.ok(), &mut rng);
                    }
                }
            }
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = work => {}
        }
    }

    /// One batch.
    async fn forget(&self, matter: Matter) -> Result<u64, StoreError> {
        let store = &self.store;
        let before = store.time(clock::wall()).minus(self.policy.keep(matter));
        let max = self.policy.batch();
        match matter {
            Matter::Inbox => inbox::forget(store, before, max).await,
            Matter::Keys => idempotency::forget(store, before, max).await,
            Matter::Retries => retries::forget(store, before, max).await,
        }
    }
}
