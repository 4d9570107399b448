//! One clock for all hosts: the database's.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mamparo_core::message::clock::{Offset, Sample};
use mamparo_core::time::WallTime;

use crate::{Backend, Now, Store, StoreError};

/// How often [`Clock::follow`] measures. Clocks of machines drift by some 50 ppm: 3 ms a minute.
pub const MEASURE_EVERY: Duration = Duration::from_secs(60);

/// Looks of one measurement; the quickest counts.
const LOOKS: usize = 3;

/// The database's clock as this host sees it: the host's own, put right by the difference that was
/// measured last. Reading it asks nobody. Leases, due times and retentions that several hosts judge
/// must be in its time. Cheap to clone; clones share the measurement, and the store with them.
///
/// On SQLite all processes are on one machine and have its clock, so the difference is nothing.
pub struct Clock<DB: Backend> {
    store: Store<DB>,
    local: fn() -> WallTime,
}

impl<DB: Backend> Store<DB> {
    /// The database's clock, measured now. `local` is the host's own (`mamparo_call::clock::wall`).
    ///
    /// # Errors
    /// What the database said.
    pub async fn clock(&self, local: fn() -> WallTime) -> Result<Clock<DB>, StoreError> {
        let clock = Clock { store: self.background(), local };
        clock.measure().await?;
        Ok(clock)
    }

    /// The database's time when the host's clock shows `local`, by what a [`Clock`] of this store has
    /// measured last; `local` itself before that.
    #[must_use]
    pub fn time(&self, local: WallTime) -> WallTime {
        self.offset().apply(local)
    }

    fn offset(&self) -> Offset {
        let millis = self.offset_millis.load(Ordering::Relaxed);
        Offset { millis, error: Duration::ZERO }
    }
}

impl<DB: Backend> Clock<DB> {
    /// The database's time, to within half a round trip and a minute's drift.
    #[must_use]
    pub fn now(&self) -> WallTime {
        self.store.time((self.local)())
    }

    /// Measures how far the host's clock is off, by three looks, and keeps that.
    ///
    /// # Errors
    /// What the database said; what was measured before stays then.
    pub async fn measure(&self) -> Result<Offset, StoreError> {
        let operation = "look at the database's clock";
        let mut conn = self.store.read_connection(operation).await?;
        let mut looks = Vec::with_capacity(LOOKS);
        for _ in 0..LOOKS {
            let asked = (self.local)();
            let said = DB::read_clock(&mut conn).await.map_err(StoreError::during(operation))?;
            let Some(said) = said else { return Ok(Offset::default()) };
            looks.push(Sample { asked, said, answered: (self.local)() });
        }
        // A host whose clock stepped back during each of the looks keeps what it knew.
        let offset = Offset::best(&looks).unwrap_or_else(|| self.store.offset());
        self.store.offset_millis.store(offset.millis, Ordering::Relaxed);
        Ok(offset)
    }

    /// Measures again every minute ([`MEASURE_EVERY`]), for ever, and hands what came of it to
    /// `report`. To be run by a task of the service; may be dropped at any time.
    pub async fn follow(&self, mut report: impl FnMut(Result<Offset, StoreError>) + Send) {
        loop {
            tokio::time::sleep(MEASURE_EVERY).await;
            report(self.measure().await);
        }
    }
}

impl<DB: Backend> Now for Clock<DB> {
    fn now(&self) -> WallTime {
        Self::now(self)
    }
}

impl<DB: Backend> Now for &Clock<DB> {
    fn now(&self) -> WallTime {
        Clock::now(self)
    }
}

impl<DB: Backend> Clone for Clock<DB> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), local: self.local }
    }
}

impl<DB: Backend> std::fmt::Debug for Clock<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clock").field("offset", &self.store.offset()).finish_non_exhaustive()
    }
}
