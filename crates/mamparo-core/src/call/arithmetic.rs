//! Do the numbers of a policy fit together? Sums that people get wrong in their heads.

use std::fmt;
use std::time::Duration;

use crate::backoff::Backoff;

/// The longest that a call can take: all attempts run into their timeout, all waits are the longest.
#[must_use]
pub fn worst_case(attempts: u32, attempt_timeout: Duration, backoff: &Backoff) -> Duration {
    attempt_timeout.saturating_mul(attempts).saturating_add(backoff.worst_total(attempts))
}

/// Why attempts and waits don't fit a budget, with all numbers. `Display` is the explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoesNotFit {
    /// Attempts, the first included.
    pub attempts: u32,
    /// Longest time of one attempt.
    pub attempt_timeout: Duration,
    /// Longest sum of the waits between them.
    pub waits: Duration,
    /// What all of it takes at worst.
    pub worst: Duration,
    /// What it may take.
    pub budget: Duration,
}

impl DoesNotFit {
    /// The timeout with which the same attempts and waits would fit, if any.
    #[must_use]
    pub fn fitting_timeout(&self) -> Option<Duration> {
        let left = self.budget.checked_sub(self.waits)?.checked_div(self.attempts)?;
        // Whole milliseconds, as people write them.
        let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        (millis > 0).then(|| Duration::from_millis(millis))
    }
}

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempts, attempt_timeout, waits, worst, budget } = self;
        write!(f, "{attempts} × {attempt_timeout:?} + {waits:?} of waits = {worst:?} ")?;
        write!(f, "does not fit {budget:?}; ")?;
        match self.fitting_timeout() {
            Some(timeout) => write!(f, "an attempt timeout of {timeout:?} or fewer attempts would"),
            None => write!(f, "shorter waits or fewer attempts would"),
        }
    }
}

impl std::error::Error for DoesNotFit {}

/// Do attempts × timeout + the longest waits fit `budget`? Answers with the worst case.
///
/// # Errors
/// [`DoesNotFit`] explains with numbers, and says what would fit.
pub fn fits(
    attempts: u32,
    attempt_timeout: Duration,
    backoff: &Backoff,
    budget: Duration,
) -> Result<Duration, DoesNotFit> {
    let worst = worst_case(attempts, attempt_timeout, backoff);
    if worst <= budget {
        return Ok(worst);
    }
    let waits = backoff.worst_total(attempts);
    Err(DoesNotFit { attempts, attempt_timeout, waits, worst, budget })
}

/// Calls that the last dependency of a chain gets for one call of the first, when every layer
/// retries: the product of the attempts.
#[must_use]
pub fn amplification(attempts_by_layer: &[u32]) -> u64 {
    attempts_by_layer.iter().fold(1, |calls: u64, n| calls.saturating_mul(u64::from(*n)))
}

/// The longest that a message can be under way through a retry queue before it is dead:
/// attempts × handler time + (attempts − 1) × delay.
#[must_use]
pub fn retry_queue_worst(attempts: u32, handler: Duration, delay: Duration) -> Duration {
    let waits = delay.saturating_mul(attempts.saturating_sub(1));
    handler.saturating_mul(attempts).saturating_add(waits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn three_times_two_seconds_do_not_fit_three_and_the_text_says_what_would() {
        let backoff = Backoff::default();
        let budget = millis(3_000);
        let error = fits(3, millis(2_000), &backoff, budget).expect_err("6 s do not fit");
        assert_eq!(
            error.to_string(),
            "3 × 2s + 300ms of waits = 6.3s does not fit 3s; an attempt timeout of 900ms or fewer \
             attempts would"
        );
        assert_eq!(fits(3, millis(700), &backoff, budget), Ok(millis(2_400)));
        assert_eq!(fits(3, millis(900), &backoff, budget), Ok(budget));
        assert_eq!(fits(1, millis(2_000), &backoff, budget), Ok(millis(2_000)));
    }

    #[test]
    fn a_budget_that_the_waits_alone_exceed_asks_for_shorter_waits() {
        let error = fits(3, millis(1), &Backoff::default(), millis(200)).expect_err("300 ms");
        assert_eq!(error.fitting_timeout(), None);
        assert!(error.to_string().ends_with("shorter waits or fewer attempts would"));
    }

    #[test]
    fn layers_multiply() {
        assert_eq!(amplification(&[3, 3, 3]), 27);
        assert_eq!(amplification(&[1, 3, 1]), 3);
        assert_eq!(amplification(&[]), 1);
        assert_eq!(amplification(&[u32::MAX; 5]), u64::MAX);
    }

    #[test]
    fn a_retry_queue_of_five_times_thirty_seconds_stays_under_the_reservation() {
        let worst = retry_queue_worst(5, millis(3_000), millis(30_000));
        assert_eq!(worst, millis(135_000));
        assert!(worst < Duration::from_secs(15 * 60));
        assert_eq!(retry_queue_worst(0, millis(1), millis(1)), Duration::ZERO);
    }
}
