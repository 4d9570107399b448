//! Three services in a row, the last one's dependency dead: what each retry policy makes of that.

use mamparo::core::call::retry_budget::{RetryBudget, RetryBudgetConfig};

/// Calls of the first service.
const CALLS: u32 = 10_000;
/// Attempts that each layer makes at most.
const ATTEMPTS: u32 = 3;

/// Calls that reach the dead dependency through `budgets.len()` layers, one budget a layer.
fn reaching(budgets: &[Option<RetryBudget>]) -> u64 {
    let Some((budget, below)) = budgets.split_first() else { return 1 };
    if let Some(budget) = budget {
        budget.deposit();
    }
    let mut reached = reaching(below);
    for _ in 1..ATTEMPTS {
        // A token that is dropped is spent.
        if budget.as_ref().is_some_and(|budget| budget.withdraw().is_none()) {
            break;
        }
        reached += reaching(below);
    }
    reached
}

/// Calls of the dead dependency for each call of the first of three services.
pub(crate) fn amplification(config: Option<RetryBudgetConfig>) -> f64 {
    let budgets: Vec<_> = (0..3).map(|_| config.map(RetryBudget::new)).collect();
    let reached: u64 = (0..CALLS).map(|_| reaching(&budgets)).sum();
    reached as f64 / f64::from(CALLS)
}

/// The table for the page.
pub(crate) fn table() -> String {
    let budget = |ratio| Some(RetryBudgetConfig { ratio, ..RetryBudgetConfig::default() });
    let mut text = String::from(
        "| three layers, three attempts each, everything below dead | calls at the bottom for each at the top |\n|---|---|\n",
    );
    for (name, config) in
        [("no budget", None), ("budget 20 %", budget(0.2)), ("budget 10 %", budget(0.1))]
    {
        text.push_str(&format!("| {name} | {:.2} |\n", amplification(config)));
    }
    text
}
