//! What a dependency has counted, on stripes, so that tasks that succeed at the same time do not
//! take a cache line from each other.
//!
//! As little as possible is counted on the way to a success (a call begun, a call that succeeded);
//! what follows from the rest is worked out when somebody looks.

use mamparo_core::call::pipeline::Refusal;
use mamparo_core::limits::COUNTER_STRIPES_MAX;
use mamparo_core::sync::atomic::{AtomicU64, Ordering};
use mamparo_core::sync::{Apart, thread_number};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// Calls begun.
    Calls,
    /// Calls that gave a value.
    Succeeded,
    /// Calls that gave up after at least one attempt.
    GaveUp,
    /// Calls that were dropped or panicked on the way.
    Abandoned,
    /// Calls that were dropped before their first attempt; they are among the abandoned.
    NeverAttempted,
    /// Attempts after the first.
    Retries,
    /// Attempts sent beside one that took long.
    Hedges,
    /// Calls whose retry the budget did not allow; they are among those that gave up.
    BudgetSpent,
    /// Times that the circuit opened.
    Openings,
    /// Calls refused.
    Refused(Refusal),
}

impl Count {
    const PLAIN: usize = 9;
    const ALL: usize = Self::PLAIN + Refusal::ALL.len();

    const fn place(self) -> usize {
        match self {
            Self::Calls => 0,
            Self::Succeeded => 1,
            Self::GaveUp => 2,
            Self::Abandoned => 3,
            Self::NeverAttempted => 4,
            Self::Retries => 5,
            Self::Hedges => 6,
            Self::BudgetSpent => 7,
            Self::Openings => 8,
            Self::Refused(reason) => Self::PLAIN + reason.index(),
        }
    }
}

/// The counts that one thread adds to. Whoever holds on to one may move to another thread: then two
/// threads share it for a while, and nothing is lost.
#[derive(Default)]
pub(crate) struct Stripe([AtomicU64; Count::ALL]);

impl Stripe {
    #[inline]
    pub(crate) fn add(&self, count: Count) {
        self.0[count.place()].fetch_add(1, Ordering::Relaxed);
    }
}

/// All counts of one dependency.
pub(crate) struct Counters {
    first: Apart<Stripe>,
    /// One less than a power of two of them.
    others: Box<[Apart<Stripe>]>,
}

impl Counters {
    pub(crate) fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let stripes = threads.next_power_of_two().min(COUNTER_STRIPES_MAX);
        Self { first: Apart::default(), others: (1..stripes).map(|_| Apart::default()).collect() }
    }

    /// The calling thread's stripe.
    #[inline]
    pub(crate) fn stripe(&self) -> &Stripe {
        let number = thread_number() & self.others.len();
        self.others.get(number.wrapping_sub(1)).map_or(&self.first.0, |Apart(stripe)| stripe)
    }

    pub(crate) fn add(&self, count: Count) {
        self.stripe().add(count);
    }

    pub(crate) fn get(&self, count: Count) -> u64 {
        let of_stripe =
            |Apart(stripe): &Apart<Stripe>| stripe.0[count.place()].load(Ordering::Relaxed);
        self.others.iter().map(of_stripe).fold(of_stripe(&self.first), u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_count_is_lost_and_each_has_its_place() {
        let counters = Counters::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        counters.add(Count::Calls);
                        counters.add(Count::Refused(Refusal::Shed));
                    }
                });
            }
        });
        counters.add(Count::Openings);
        assert_eq!(counters.get(Count::Calls), 4_000);
        assert_eq!(counters.get(Count::Refused(Refusal::Shed)), 4_000);
        assert_eq!(counters.get(Count::Openings), 1);
        assert_eq!(counters.get(Count::Succeeded), 0);
        let places: Vec<usize> =
            Refusal::ALL.iter().map(|reason| Count::Refused(*reason).place()).collect();
        assert_eq!(places, (Count::PLAIN..Count::ALL).collect::<Vec<_>>());
    }
}
