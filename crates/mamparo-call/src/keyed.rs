//! One set of policies for each host, route or tenant, in bounded memory.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use mamparo_core::call::plan::Plan;
use mamparo_core::keyed::{Dispensable, Keep, Keyed};
use mamparo_core::rng::Rng;
use mamparo_core::time::Moment;

use crate::gate::{Gate, Hooks};
use crate::{Dependency, clock};

/// A family of dependencies that share a plan, one for each key.
///
/// Each key has a breaker, a bulkhead, limits and budgets of its own, so that one sick host or one
/// greedy tenant does not shut the others out. At most `keys_max` are kept. A key that is called at the
/// moment, or whose circuit is held by an order, stays; those that have nothing to remember leave by
/// themselves as others come, open circuits last. When every place is in use, further keys share one
/// set of policies ([`Dependencies::overflowed`]).
///
/// All keys count under the dependency's one name. There is no `circuit_breaker_state` for them: a
/// gauge for each of ten thousand keys helps nobody, and one for all would say nothing.
///
/// ```
/// # #[derive(Debug)] struct Down;
/// # impl mamparo_call::Classify for Down {
/// #     fn classify(&self) -> mamparo_call::Failure { mamparo_call::Failure::TRANSIENT }
/// # }
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use mamparo_call::{Dependencies, Dependency, Repeatable};
///
/// let hosts: Dependencies<String> =
///     Dependency::builder("partners").bulkhead(10, 0).build_keyed(1_000).unwrap();
/// let answer = hosts
///     .of("api.example.com")
///     .call(Repeatable::Idempotent, |_| async { Ok::<_, Down>(7) })
///     .await;
/// assert_eq!(answer.unwrap(), 7);
/// # }
/// ```
pub struct Dependencies<K> {
    plan: Plan,
    hooks: Hooks,
    gates: Keyed<K, Arc<Gate>>,
}

impl<K> fmt::Debug for Dependencies<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dependencies").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl<K: Hash + Eq> Dependencies<K> {
    pub(crate) fn new(plan: Plan, hooks: Hooks, keys_max: usize) -> Self {
        let shared = Arc::new(Gate::keyed(plan.clone(), hooks.clone()));
        let gates = Keyed::new(keys_max, clock::entropy().next_u64(), shared);
        Self { plan, hooks, gates }
    }

    /// The dependency of `key`. Looking up a key that is known allocates nothing.
    #[must_use]
    pub fn of<Q>(&self, key: &Q) -> Dependency
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let make =
            || (key.to_owned(), Arc::new(Gate::keyed(self.plan.clone(), self.hooks.clone())));
        Dependency::from_shared(self.gates.get_or_insert(clock::now(), key, make))
    }

    /// Keys that are kept now.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.gates.keys()
    }

    /// Calls of [`Dependencies::of`] that had to share, because every place was in use.
    #[must_use]
    pub fn overflowed(&self) -> u64 {
        self.gates.overflowed()
    }

    /// The policies' values, the same for all keys.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }
}

/// By its breaker and its bulkhead; limits and budgets begin anew, which costs a key at most one
/// burst.
impl Dispensable for Gate {
    fn keep(&self, now: Moment) -> Keep {
        let bulkhead = self.policies.bulkhead.as_ref().map(|bulkhead| bulkhead.keep(now));
        if bulkhead == Some(Keep::InUse) {
            return Keep::InUse;
        }
        self.policies.breaker.as_ref().map_or(Keep::Idle, |breaker| breaker.keep(now))
    }
}
