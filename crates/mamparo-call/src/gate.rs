//! What stands in front of one dependency: its policies, and those who wait for a slot.
//!
//! The policies are shared by reference and need no lock here. The one lock of this file guards
//! the wakers of the queue, which a call that need not wait never sees.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use mamparo_core::call::breaker::{self, Breaker, Change};
use mamparo_core::call::bulkhead::{Bulkhead, Standing, Ticket};
use mamparo_core::call::deadline::AttemptLimit;
use mamparo_core::call::pipeline::{Event, Misfit, Phase, Pipeline, Policies, Told};
use mamparo_core::call::plan::Plan;
use mamparo_core::rng::Rng;
use mamparo_core::time::Moment;

use crate::counters::Stripe;
use crate::detached::{Background, Spawner};
use crate::explain::Explanation;
use crate::observe::Observer;
use crate::snapshot::Snapshot;
use crate::{clock, observe};

type OnChange = Arc<dyn Fn(&Change) + Send + Sync>;

/// What a user hands in.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    /// Called on each change of a breaker, outside of any lock.
    pub(crate) on_change: Option<OnChange>,
    /// Runs what goes on in the background.
    pub(crate) spawner: Option<Spawner>,
}

/// Plan, policies and counters of one dependency.
pub(crate) struct Gate {
    pub(crate) plan: Plan,
    /// The dependency's name for errors, made once.
    pub(crate) name: Arc<str>,
    pub(crate) observer: Observer,
    pub(crate) policies: Policies,
    /// Where detached attempts go on.
    pub(crate) background: Option<Background>,
    hooks: Hooks,
    /// Who waits for which ticket; at most as many as the queue is long.
    wakers: Mutex<BTreeMap<Ticket, Waker>>,
    /// Held while the gauge of the breaker is set.
    showing: Mutex<()>,
}

impl Gate {
    pub(crate) fn new(plan: Plan, hooks: Hooks) -> Self {
        let observer = Observer::new(&plan);
        Self::observed(plan, hooks, observer)
    }

    /// One of many that count under the same name.
    pub(crate) fn keyed(plan: Plan, hooks: Hooks) -> Self {
        let observer = Observer::keyed(&plan);
        Self::observed(plan, hooks, observer)
    }

    fn observed(plan: Plan, hooks: Hooks, observer: Observer) -> Self {
        let background = hooks.spawner.clone().zip(plan.detached);
        Self {
            name: Arc::from(plan.dependency.as_str()),
            observer,
            policies: Policies::new(&plan, clock::entropy().next_u64()),
            background: background.map(|(spawner, max)| Background::new(spawner, max)),
            hooks,
            wakers: Mutex::default(),
            showing: Mutex::default(),
            plan,
        }
    }

    /// Begins a call. `Ok` when its first attempt begins and that is all.
    #[inline(always)]
    pub(crate) fn start(
        &self,
        pipeline: &mut Pipeline,
        now: Moment,
        rng: &mut impl Rng,
    ) -> Result<AttemptLimit, Result<Told, Misfit>> {
        pipeline
            .start(now, &self.policies, rng)
            .map_err(|aside| self.aside(Phase::New, Event::Start, pipeline, aside))
    }

    /// Ends a call with the value of attempt `number`.
    #[inline(always)]
    pub(crate) fn succeed(
        &self,
        pipeline: &mut Pipeline,
        now: Moment,
        number: u32,
        stripe: &Stripe,
    ) -> Result<(), Misfit> {
        match pipeline.succeed(now, number, &self.policies) {
            Ok(()) => {
                self.observer.succeeded(stripe);
                Ok(())
            }
            Err(aside) => {
                let event = Event::Succeeded { number };
                self.aside(Phase::Attempting, event, pipeline, aside).map(|_| ())
            }
        }
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
        let told = pipeline.tell(now, event, &self.policies, rng);
        self.aside(before, event, pipeline, told)
    }

    #[cold]
    fn aside(
        &self,
        before: Phase,
        event: Event,
        pipeline: &Pipeline,
        mut told: Result<Told, Misfit>,
    ) -> Result<Told, Misfit> {
        if let Ok(told) = &mut told {
            if told.concerns_others() {
                self.pass_on(told);
            }
            self.observer.told(&self.plan, before, event, pipeline.attempts(), told);
        }
        told
    }

    /// What others have to hear of it.
    fn pass_on(&self, told: &mut Told) {
        for ticket in std::mem::take(&mut told.wake) {
            // The lock is free again before the waker runs.
            let waker = lock(&self.wakers).remove(&ticket);
            waker.into_iter().for_each(Waker::wake);
        }
        if let Some(change) = &told.change {
            self.changed(change);
        }
        if let Some(change) = &told.shed {
            self.observer.shed_changed(&self.plan, change);
        }
        if told.limit.is_some()
            && let Some(adaptive) = &self.policies.adaptive
        {
            self.observer.show_limit(adaptive.limit());
        }
    }

    fn changed(&self, change: &Change) {
        // Nobody stands in line for an open circuit.
        if change.to == breaker::Phase::Open {
            let all = std::mem::take(&mut *lock(&self.wakers));
            all.into_values().for_each(Waker::wake);
        }
        self.show_breaker(change.at);
        let tries_in =
            self.policies.breaker.as_ref().and_then(|breaker| breaker.explain(change.at).tries_in);
        self.observer.breaker_changed(&self.plan, change, tries_in);
        self.call_hook(change);
    }

    /// Carries out what somebody ordered of the breaker; its change is reported like any other. False
    /// where there is no breaker or nothing to change.
    pub(crate) fn order(&self, order: impl FnOnce(&Breaker) -> Option<Change>) -> bool {
        let change = self.policies.breaker.as_ref().and_then(order);
        change.as_ref().is_some_and(|change| {
            self.changed(change);
            true
        })
    }

    /// Shows the state that the breaker has by now. Of two changes on two threads, the later one
    /// must stay on the gauge: whoever comes here last has seen both.
    fn show_breaker(&self, now: Moment) {
        let _one_at_a_time = lock(&self.showing);
        if let Some(breaker) = &self.policies.breaker {
            self.observer.show_breaker(breaker.phase(now));
        }
    }

    /// Completes when `ticket` owns a slot or will get none, or when the circuit has opened. Sleeps in
    /// between; dropping it forgets the waker.
    pub(crate) async fn granted(&self, ticket: Ticket) -> Event {
        let place = InLine { gate: self, ticket };
        poll_fn(|cx| place.poll(cx)).await
    }

    /// A hook looks on: its panic must neither end the call nor, while a panicking call unwinds, the
    /// process.
    fn call_hook(&self, change: &Change) {
        if let Some(hook) = &self.hooks.on_change
            && std::panic::catch_unwind(AssertUnwindSafe(|| hook(change))).is_err()
        {
            observe::hook_panicked(&self.plan, change);
        }
    }

    pub(crate) fn breaker_state(&self, now: Moment) -> Option<breaker::Phase> {
        self.policies.breaker.as_ref().map(|breaker| breaker.phase(now))
    }

    pub(crate) fn explain(&self, now: Moment) -> Explanation {
        Explanation::of(&self.plan, &self.policies, now)
    }

    pub(crate) fn snapshot(&self, now: Moment) -> Snapshot {
        let breaker = self.policies.breaker.as_ref();
        let queued = self.policies.bulkhead.as_ref().map_or(0, Bulkhead::queued);
        let state = breaker.map(|breaker| breaker.phase(now));
        let open = state == Some(breaker::Phase::Open);
        let detached = self.background.as_ref().map_or(0, Background::running);
        Snapshot {
            detached: u64::from(detached),
            breaker: state,
            reopens_in: breaker.and_then(|b| b.refuses(now)).filter(|_| open),
            window_failures: breaker.map_or(0, |breaker| breaker.counts(now).failed),
            ..self.observer.counted(&self.plan, u64::from(queued))
        }
    }
}

/// No code of a user runs under these locks, so a poisoned one is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place in the bulkhead's line. Dropping it forgets the waker, not the ticket.
pub(crate) struct InLine<G: Deref<Target = Gate>> {
    pub(crate) gate: G,
    pub(crate) ticket: Ticket,
}

impl<G: Deref<Target = Gate>> InLine<G> {
    /// Ready when the ticket owns a slot or will get none, or when the circuit has opened.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Event> {
        let policies = &self.gate.policies;
        // The waker first: a grant after the look finds it. Cloned before the lock is taken: a waker's
        // code is not ours.
        let waker = cx.waker().clone();
        let earlier = lock(&self.gate.wakers).insert(self.ticket, waker);
        drop(earlier);
        let breaker = policies.breaker.as_ref();
        if breaker.is_some_and(|breaker| breaker.phase(clock::now()) == breaker::Phase::Open) {
            return Poll::Ready(Event::CircuitOpened);
        }
        match policies.bulkhead.as_ref().map(|bulkhead| bulkhead.standing(self.ticket)) {
            Some(Standing::Granted) => Poll::Ready(Event::SlotGranted),
            // A newer caller took its place: its wait is over as if its time were.
            Some(Standing::Shed | Standing::Gone) | None => Poll::Ready(Event::QueueTimedOut),
            Some(Standing::Waiting) => Poll::Pending,
        }
    }
}

impl<G: Deref<Target = Gate>> Drop for InLine<G> {
    fn drop(&mut self) {
        let waker = lock(&self.gate.wakers).remove(&self.ticket);
        // The lock is free by now: what a waker does when it goes is not our code.
        drop(waker);
    }
}
