//! The policies that all calls of a dependency share, behind one short lock.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use mamparo_core::call::breaker::{Change, Phase};
use mamparo_core::call::bulkhead::{Bulkhead, Standing, Ticket};
use mamparo_core::call::pipeline::{Event, Misfit, Pipeline, Policies, Told};
use mamparo_core::call::plan::Plan;
use mamparo_core::rng::Rng;
use mamparo_core::time::Moment;

use crate::observe::Observer;
use crate::snapshot::Snapshot;
use crate::{clock, observe};

/// Called on each change of a breaker, outside of any lock.
pub(crate) type OnChange = Box<dyn Fn(&Change) + Send + Sync>;

/// Plan, policies and counters of one dependency.
pub(crate) struct Gate {
    pub(crate) plan: Plan,
    pub(crate) observer: Observer,
    success_needs_now: bool,
    on_change: Option<OnChange>,
    shared: Mutex<Shared>,
}

struct Shared {
    policies: Policies,
    /// Who waits for which ticket; at most as many as the queue is long.
    wakers: BTreeMap<Ticket, Waker>,
}

impl Gate {
    pub(crate) fn new(plan: Plan, on_change: Option<OnChange>) -> Self {
        let policies = Policies::new(&plan);
        Self {
            observer: Observer::new(&plan),
            success_needs_now: policies.success_needs_now(),
            on_change,
            shared: Mutex::new(Shared { policies, wakers: BTreeMap::new() }),
            plan,
        }
    }

    pub(crate) const fn success_needs_now(&self) -> bool {
        self.success_needs_now
    }

    /// Tells the machine, wakes whoever got a slot, and reports what changed.
    pub(crate) fn tell(
        &self,
        pipeline: &mut Pipeline,
        now: Moment,
        event: Event,
        rng: &mut impl Rng,
    ) -> Result<Told, Misfit> {
        let before = pipeline.phase();
        let (told, waker, all) = {
            let mut shared = self.lock();
            let told = pipeline.tell(now, event, &mut shared.policies, rng)?;
            let waker = told.wake.and_then(|ticket| shared.wakers.remove(&ticket));
            if let Some(change) = &told.change {
                self.observer.show_breaker(change.to);
            }
            let opened = told.change.is_some_and(|change| change.to == Phase::Open);
            // Nobody stands in line for an open circuit.
            let all = if opened { std::mem::take(&mut shared.wakers) } else { BTreeMap::new() };
            (told, waker, all)
        };
        waker.into_iter().chain(all.into_values()).for_each(Waker::wake);
        self.observer.told(&self.plan, before, event, pipeline.attempts(), &told);
        if let Some(change) = &told.change {
            self.call_hook(change);
        }
        Ok(told)
    }

    /// Completes when `ticket` owns a slot or will get none, or the circuit has opened. Sleeps in between; dropping it
    /// forgets the waker.
    pub(crate) async fn granted(&self, ticket: Ticket) -> Event {
        let _forget = ForgetWaker { gate: self, ticket };
        poll_fn(|cx| {
            let now = clock::now();
            let mut shared = self.lock();
            if shared.policies.breaker.as_ref().is_some_and(|b| b.phase(now) == Phase::Open) {
                return Poll::Ready(Event::CircuitOpened);
            }
            match shared.policies.bulkhead.as_ref().map(|b| b.standing(ticket)) {
                Some(Standing::Granted) => return Poll::Ready(Event::SlotGranted),
                // A newer caller took its place: its wait is over as if its time were.
                Some(Standing::Shed | Standing::Gone) | None => {
                    return Poll::Ready(Event::QueueTimedOut);
                }
                Some(Standing::Waiting) => {}
            }
            shared.wakers.insert(ticket, cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// A hook looks on: its panic must neither end the call nor, while a panicking call unwinds, the
    /// process.
    fn call_hook(&self, change: &Change) {
        if let Some(hook) = &self.on_change
            && std::panic::catch_unwind(AssertUnwindSafe(|| hook(change))).is_err()
        {
            observe::hook_panicked(&self.plan, change);
        }
    }

    pub(crate) fn breaker_state(&self, now: Moment) -> Option<Phase> {
        self.lock().policies.breaker.as_ref().map(|breaker| breaker.phase(now))
    }

    pub(crate) fn snapshot(&self, now: Moment) -> Snapshot {
        let shared = self.lock();
        let breaker = shared.policies.breaker.as_ref();
        let queued = shared.policies.bulkhead.as_ref().map_or(0, Bulkhead::queued);
        let state = breaker.map(|breaker| breaker.phase(now));
        let open = state == Some(Phase::Open);
        let snapshot = Snapshot {
            breaker: state,
            reopens_in: breaker.and_then(|b| b.refuses(now)).filter(|_| open),
            window_failures: breaker.map_or(0, |breaker| breaker.counts(now).failed),
            queued: u64::from(queued),
            ..self.observer.counted(&self.plan)
        };
        drop(shared);
        Snapshot { in_flight: snapshot.in_flight.saturating_sub(snapshot.queued), ..snapshot }
    }

    /// No code of a user runs under this lock, so a poisoned one is still whole.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct ForgetWaker<'a> {
    gate: &'a Gate,
    ticket: Ticket,
}

impl Drop for ForgetWaker<'_> {
    fn drop(&mut self) {
        let waker = self.gate.lock().wakers.remove(&self.ticket);
        // The lock is free by now: what a waker does when it goes is not our code.
        drop(waker);
    }
}
