//! The budget of retries and hedges, in every interleaving of a few calls.
#![cfg(loom)]
#![expect(clippy::expect_used, reason = "helpers of tests end the test")]

mod model;

use mamparo_core::call::retry_budget::{RetryBudget, RetryBudgetConfig};
use mamparo_core::sync::Arc;

use model::{Part, check, check_within, together};

fn budget(ratio: f64, reserve: u32) -> Arc<RetryBudget> {
    Arc::new(RetryBudget::new(RetryBudgetConfig { ratio, reserve }))
}

/// Asks for one; answers with the tokens that were granted and kept.
fn withdraws() -> Part<RetryBudget, u64> {
    Box::new(|budget| u64::from(budget.withdraw().is_some()))
}

/// Pays in for one first attempt and keeps nothing.
fn deposits() -> Part<RetryBudget, u64> {
    Box::new(|budget| {
        budget.deposit();
        0
    })
}

/// Is granted a retry and never sends it.
fn gives_back() -> Part<RetryBudget, u64> {
    Box::new(|budget| {
        budget.withdraw().into_iter().for_each(|paid| budget.give_back(paid));
        0
    })
}

#[test]
fn three_that_ask_for_two_tokens_are_granted_exactly_two() {
    check_within(3, || {
        let budget = budget(0.1, 2);
        let granted: u64 =
            together(&budget, vec![withdraws(), withdraws(), withdraws()]).iter().sum();
        assert_eq!((granted, budget.left()), (2, 0));
    });
}

#[test]
fn what_is_paid_in_and_taken_out_at_once_adds_up() {
    check(|| {
        let budget = budget(0.5, 0);
        let parts = vec![deposits(), deposits(), withdraws(), withdraws()];
        let granted: u64 = together(&budget, parts).iter().sum();
        assert_eq!(granted + budget.left(), 1, "two halves make one, and it is in one place");
    });
}

#[test]
fn a_token_that_comes_back_is_there_once() {
    check(|| {
        let budget = budget(0.0, 1);
        let granted: u64 =
            together(&budget, vec![gives_back(), gives_back(), withdraws()]).iter().sum();
        assert_eq!(granted + budget.left(), 1);
    });
}

#[test]
fn a_full_budget_stays_within_its_reserve() {
    check(|| {
        let budget = budget(1.0, 1);
        let parts = vec![deposits(), gives_back(), deposits()];
        together(&budget, parts);
        assert_eq!(budget.left(), 1);
        assert!(budget.withdraw().is_some() && budget.withdraw().is_none());
    });
}
