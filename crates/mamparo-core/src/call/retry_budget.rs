//! How many retries and hedges a dependency gets at all, whoever asks for them.
//!
//! Attempts limit one call; a budget limits the sum. Without one, three attempts make three times
//! the load of a dependency that is down, and three such layers make 27 times. One [`RetryBudget`]
//! stands in front of one dependency, and all calls of it share it, for retries *and* hedges.
//!
//! It is a token bucket that traffic fills and time does not. Each first attempt pays in `ratio` of
//! a token, each retry and each hedge takes a whole one, and the bucket holds no more whole tokens
//! than the `reserve`, with which it starts. So however fast the calls come, since the start
//!
//! > retries + hedges sent ≤ `reserve` + `ratio` × first attempts
//!
//! and less than one more than that in any stretch, for the part of a token that it began with.
//!
//! Finagle, Linkerd and `tower` add a floor by time (10 a second) and let tokens expire after 10 s.
//! A floor by time is no share of anything: at one call a second it permits ten times the load. Here
//! an idle service earns nothing, so nothing has to expire, and the hot path needs no clock: while
//! the bucket is full, a first attempt reads one number and writes none. What lets a service with
//! little traffic retry is the reserve, which is spent once and earned again.
//!
//! A retry takes its token when it is *scheduled*: a crowd that waits is a load that is on its way
//! (C32). If it is never sent (the caller leaves, the circuit opens, the deadline comes), the token
//! goes back. A hedge takes its token when it is sent, because most hedges never are (C21).
//!
//! ```
//! use mamparo_core::call::retry_budget::{RetryBudget, RetryBudgetConfig};
//!
//! let budget = RetryBudget::new(RetryBudgetConfig { ratio: 0.5, reserve: 0 });
//! budget.deposit(); // a first attempt is made
//! assert!(budget.withdraw().is_none());
//! budget.deposit();
//! let scheduled = budget.withdraw().expect("two first attempts pay for one retry");
//! budget.give_back(scheduled); // the caller left before it was sent
//! assert_eq!(budget.left(), 1);
//! ```

use std::fmt;

use crate::call::mistake::Mistakes;
use crate::sync::atomic::{AtomicU64, Ordering};

/// One retry or hedge, in the unit in which the bucket counts: thousandths of a token, so that
/// every share in whole per mille is exact.
const TOKEN: u64 = 1_000;

/// How much is granted. Default: 20 % of the first attempts, with a reserve of 20.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryBudgetConfig {
    /// Retries and hedges for each first attempt, from 0 to 1, kept in whole per mille. Default
    /// 0.2. Shares multiply along a chain: a dead end behind three layers gets 1.1³ = 1.33 times the
    /// load at 0.1, and 1.73 times at 0.2.
    pub ratio: f64,
    /// Most retries that can be saved up, and what a new budget starts with. Default 20: as many
    /// as the default bulkhead has calls in flight, so that each of them can be repeated once when
    /// the dependency restarts and cuts them all. With 0 the budget starts empty and saves up one.
    pub reserve: u32,
}

impl Default for RetryBudgetConfig {
    fn default() -> Self {
        Self { ratio: 0.2, reserve: 20 }
    }
}

impl RetryBudgetConfig {
    /// What can't be meant.
    pub(crate) fn check(&self, mistakes: &mut Mistakes) {
        let Self { ratio, reserve: _ } = self;
        mistakes.unless((0.0..=1.0).contains(ratio), "retry.budget", || {
            format!("is {ratio}, must be from 0 to 1: a share of first attempts")
        });
    }
}

impl fmt::Display for RetryBudgetConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ratio, reserve } = self;
        write!(f, "{} % of first attempts, {reserve} saved up", ratio * 100.0)
    }
}

/// The token of one retry or hedge that was granted. Dropping it is spending it; one that was not
/// sent after all goes back by [`RetryBudget::give_back`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a token that is not kept can't be given back when the retry is not sent"]
pub struct Withdrawal(());

/// The budget of one dependency.
#[derive(Debug)]
pub struct RetryBudget {
    /// In thousandths of a token, at most `capacity`.
    balance: AtomicU64,
    /// The whole tokens that can be saved up, and almost one more: a part of a token that were cut
    /// off here each time would make 2.94 % of 3 % where every token is spent at once.
    capacity: u64,
    /// What a first attempt pays in, in thousandths of a token.
    deposit: u64,
}

impl RetryBudget {
    /// A budget with its whole reserve. A ratio that is no number counts as 0, one above 1 as 1.
    #[must_use]
    pub fn new(config: RetryBudgetConfig) -> Self {
        let reserve = u64::from(config.reserve) * TOKEN;
        Self {
            balance: AtomicU64::new(reserve),
            capacity: reserve.max(TOKEN) + (TOKEN - 1),
            // A cast of NaN is 0.
            deposit: (config.ratio.clamp(0.0, 1.0) * TOKEN as f64).round() as u64,
        }
    }

    /// A first attempt is made. Reads one number and writes none while the budget is full.
    pub fn deposit(&self) {
        self.pay_in(self.deposit);
    }

    /// Asks for one retry or hedge; `None` when there is no token left.
    pub fn withdraw(&self) -> Option<Withdrawal> {
        let mut balance = self.balance.load(Ordering::Relaxed);
        loop {
            let less = balance.checked_sub(TOKEN)?;
            match self.exchange(balance, less) {
                Ok(()) => return Some(Withdrawal(())),
                Err(present) => balance = present,
            }
        }
    }

    /// Takes back the token of a retry that was scheduled and never sent; by value, so once.
    pub fn give_back(&self, _unspent: Withdrawal) {
        self.pay_in(TOKEN);
    }

    /// Whole retries that could be granted now.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.balance.load(Ordering::Relaxed) / TOKEN
    }

    /// Most retries that can be saved up.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity / TOKEN
    }

    fn pay_in(&self, amount: u64) {
        let mut balance = self.balance.load(Ordering::Relaxed);
        while balance < self.capacity {
            match self.exchange(balance, balance.saturating_add(amount).min(self.capacity)) {
                Ok(()) => return,
                Err(present) => balance = present,
            }
        }
    }

    /// The balance guards nothing but itself, so its own order of changes is all that is needed.
    fn exchange(&self, from: u64, to: u64) -> Result<(), u64> {
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        self.balance.compare_exchange_weak(from, to, success, failure).map(|_| ())
    }
}
