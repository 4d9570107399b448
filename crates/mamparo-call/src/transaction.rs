//! The plain loop for a database transaction that the database rolled back.

use std::future::Future;
use std::time::Duration;

use mamparo_core::call::deadline::too_near;
use mamparo_core::call::retry::{Decision, FailedAttempt, Retry};
use mamparo_core::outcome::{Kind, Repeatable};

use crate::{Classify, Context, clock, observe};

/// Runs the whole transaction again when it failed in a way that is known to have left nothing
/// behind: a deadlock, a serialization failure, a busy database.
///
/// [`Retry::TRANSACTION`] is meant for this: 3 attempts, base 50 ms. An outcome that nobody knows
/// (the connection broke during the commit) is never repeated here. Waits end before the deadline
/// of the current [`Context`]. `what` names the transaction in logs and metrics.
///
/// # Errors
/// The error of the last attempt.
pub async fn retry_in_process<T, E, F, Fut>(
    what: &'static str,
    retry: Retry,
    mut transaction: F,
) -> Result<T, E>
where
    E: Classify,
    F: FnMut(u32) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let mut rng = None;
    let (mut attempt, mut waited) = (1, Duration::ZERO);
    loop {
        let error = match transaction(attempt).await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let failure = error.classify();
        let repeatable = match failure.kind {
            // Rolled back as a whole, so once more is still once.
            Kind::Transient | Kind::Permanent | Kind::Neutral => Repeatable::Idempotent,
            Kind::Unknown => Repeatable::Unsafe,
        };
        let now = clock::now();
        let left = Context::current_deadline().map(|deadline| now.until(deadline));
        let rng = rng.get_or_insert_with(clock::entropy);
        let failed = FailedAttempt { number: attempt, waited, failure, repeatable, left };
        // No budget: the only load is on our own database, which has just finished the transaction.
        match retry.ask(&failed, None, rng) {
            Decision::GiveUp(_) => return Err(error),
            Decision::Again { after, paid: _ } => {
                observe::transaction_repeated(what, attempt, after);
                clock::sleep_until(now.plus(after)).await;
                // A busy runtime wakes nobody to the millisecond.
                let deadline = Context::current_deadline();
                if deadline.is_some() && too_near(clock::now(), deadline) {
                    return Err(error);
                }
                (attempt, waited) = (attempt + 1, after);
            }
        }
    }
}
