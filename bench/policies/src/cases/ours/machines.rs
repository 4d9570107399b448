//! The machines of core alone, on a clock of their own: what a policy costs before there is a future.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mamparo_call::clock;
use mamparo_core::call::breaker::Breaker;
use mamparo_core::call::bulkhead::{Bulkhead, Entry};
use mamparo_core::call::rate_limit::{Answer, KeyedRateLimit, RateLimit};
use mamparo_core::call::retry_budget::{RetryBudget, RetryBudgetConfig};
use mamparo_core::outcome::Health;
use mamparo_core::time::Moment;

use super::super::{KEYS, Object, key_of};
use super::{breaker, bulkhead, modes, rate};
use crate::case::{Case, Expect, shared};
use crate::work::Down;

/// Objects whose memory is of interest, made and measured by the counting program.
pub(in crate::cases) const OBJECTS: &[Object] = &[
    ("breaker.failures", || size_of_mode(FAILURES)),
    ("breaker.calls", || size_of_mode(CALLS)),
    ("breaker.time", || size_of_mode(TIME)),
];

/// Places in the list of modes.
const FAILURES: usize = 1;
const CALLS: usize = 2;
const TIME: usize = 3;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = breakers();
    cases.extend(windows());
    cases.extend(limits());
    cases
}

/// Time as a row tells it: some nanoseconds a call, for ever on.
struct Ticks {
    now: AtomicU64,
    each: u64,
}

impl Ticks {
    const fn of(each: u64) -> Self {
        Self { now: AtomicU64::new(1_000_000_000), each }
    }

    /// The next moment. Not one atomic step, which would cost as much as a policy: two tasks may be
    /// told the same.
    fn next(&self) -> Moment {
        let now = self.now.load(Relaxed) + self.each;
        self.now.store(now, Relaxed);
        Moment::from_nanos(now)
    }
}

/// A microsecond a call.
fn ticks() -> &'static Ticks {
    shared(Ticks::of(1_000))
}

/// The inline size of a breaker. What it allocates is counted while it is made, so it is not freed.
fn size_of_mode(mode: usize) -> usize {
    let breaker = Breaker::new(modes()[mode]);
    let size = size_of_val(&breaker);
    std::mem::forget(breaker);
    size
}

/// One call that succeeds at `now`.
fn succeed(breaker: &Breaker, now: Moment) -> Result<bool, Down> {
    let admission = breaker.ask(now).admission.map_err(|_| Down)?;
    Ok(breaker.tell(now, admission, Health::Good).change.is_some())
}

fn breakers() -> Vec<Case> {
    let names = [
        "mamparo.machine.breaker.consecutive",
        "mamparo.machine.breaker.failures",
        "mamparo.machine.breaker.calls",
        "mamparo.machine.breaker.time",
        "mamparo.machine.breaker.slow",
    ];
    let mut cases: Vec<Case> = names
        .into_iter()
        .zip(modes())
        .map(|(name, config)| {
            let (breaker, ticks) = (shared(Breaker::new(config)), ticks());
            Case::calls(name, Expect::Value, move |_| async move { succeed(breaker, ticks.next()) })
        })
        .collect();
    let (open, ticks) = (shared(Breaker::new(breaker())), ticks());
    open.force_open(ticks.next());
    cases.push(Case::calls("mamparo.machine.open", Expect::Error, move |_| async move {
        open.ask(ticks.next()).admission
    }));
    cases
}

/// A window of 10 s that holds so many calls at any time: the calls come that much apart.
fn windows() -> Vec<Case> {
    let window = |name, calls: u64| {
        let ticks = shared(Ticks::of(10_000_000_000 / calls));
        let breaker = shared(Breaker::new(modes()[TIME]));
        for _ in 0..calls {
            succeed(breaker, ticks.next()).ok();
        }
        Case::calls(name, Expect::Value, move |_| async move { succeed(breaker, ticks.next()) })
    };
    vec![window("mamparo.window.100", 100), window("mamparo.window.30000", 30_000)]
}

fn limits() -> Vec<Case> {
    let ticks = ticks();
    let bulkhead = shared(Bulkhead::new(bulkhead()));
    let direct = shared(RateLimit::new(rate()));
    let keyed = shared(filled(ticks.next()));
    // Those that are held against governor read the clock, as it does.
    let clocked = shared(RateLimit::new(rate()));
    let clocked_keyed = shared(filled(clock::now()));
    let budget = shared(RetryBudget::new(RetryBudgetConfig::default()));
    vec![
        Case::calls("mamparo.machine.bulkhead", Expect::Value, move |_| async move {
            let now = ticks.next();
            match bulkhead.ask(now, Moment::FAR_FUTURE) {
                Entry::Granted(slot) => Ok(bulkhead.release(now, slot)),
                _ => Err(Down),
            }
        }),
        Case::calls("mamparo.machine.rate_limit", Expect::Value, move |_| async move {
            allowed(direct.ask(ticks.next()))
        }),
        Case::calls("mamparo.machine.rate_limit.keyed.10000", Expect::Value, move |n| async move {
            allowed(keyed.ask(ticks.next(), &key_of(n)))
        }),
        Case::calls("mamparo.rate_limit", Expect::Value, move |_| async move {
            allowed(clocked.ask(clock::now()))
        }),
        Case::calls("mamparo.rate_limit.keyed.10000", Expect::Value, move |n| async move {
            allowed(clocked_keyed.ask(clock::now(), &key_of(n)))
        }),
        Case::calls("mamparo.machine.retry_budget", Expect::Value, move |_| async move {
            budget.deposit();
            Ok::<_, Down>(())
        }),
    ]
}

/// A limit that has seen all keys.
fn filled(now: Moment) -> KeyedRateLimit<u64> {
    let keyed = KeyedRateLimit::new(rate(), 1).with_keys_max(2 * KEYS as usize);
    for key in 0..KEYS {
        keyed.ask(now, &key);
    }
    keyed
}

fn allowed(answer: Answer) -> Result<u32, Down> {
    match answer {
        Answer::Allowed { remaining, .. } => Ok(remaining),
        Answer::NotUntil { .. } => Err(Down),
    }
}
