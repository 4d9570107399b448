//! Several limits at once: all of them give, or none.

use std::time::Duration;

use super::{Answer, RateLimit};
use crate::time::Moment;

/// How several limits answered together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllAnswer {
    /// Each has given one request.
    Allowed {
        /// Requests that could follow at once: the least of all limits.
        remaining: u32,
        /// When all buckets will be full again if none follows.
        full_after: Duration,
    },
    /// None has given anything.
    NotUntil {
        /// Which limit asks for the longest wait, by its place among those that were asked.
        by: usize,
        /// That wait, more than zero.
        retry_after: Duration,
    },
}

/// Asks each of `limits` for one request, and takes from all of them or from none.
///
/// All are looked at first, so a refusal takes nothing. A thread that comes in between the look and the
/// taking can still empty a bucket: what was taken from those before it is then put back. The guarantee:
///
/// - never does any limit give more than its bound;
/// - a refusal costs nothing, but for one case: a limit that was taken from, *and* was taken from by
///   another thread before it could be put back, has given its request for nothing. Putting it back
///   could hand out twice what has been refilled meanwhile. It takes two races within some ten
///   nanoseconds, and costs one request of that limit;
/// - for as long, others may find a limit emptier by the request that is about to be put back.
///
/// Ask in one order everywhere, the narrowest limit first: of several threads that want the last request
/// one then gets it, and the limit that is most often lost in a race has nothing before it to put
/// back. With one limit the answer is exact.
pub fn ask_all<const N: usize>(now: Moment, limits: [&RateLimit; N]) -> AllAnswer {
    if let Some(refusal) = refusal(now, &limits) {
        return refusal;
    }
    let nanos = now.nanos();
    let mut taken = [None; N];
    let mut tightest = Together::NOTHING;
    for (by, limit) in limits.into_iter().enumerate() {
        match limit.take(nanos, limit.rate.interval) {
            Ok(one) => {
                taken[by] = Some(one);
                tightest.add(limit.rate.answer(nanos, Ok(one.after)), by);
            }
            Err(wait) => {
                // The last first, so that a limit that stands twice is put back as it was.
                for (limit, one) in limits.iter().zip(taken).rev() {
                    if let Some(one) = one {
                        limit.put_back(one);
                    }
                }
                let retry_after = Duration::from_nanos(wait);
                return AllAnswer::NotUntil { by, retry_after };
            }
        }
    }
    tightest.answer()
}

/// The refusal that the limits would give at `now`, if any would.
pub(super) fn refusal(now: Moment, limits: &[&RateLimit]) -> Option<AllAnswer> {
    let mut together = Together::NOTHING;
    for (by, limit) in limits.iter().enumerate() {
        together.add(limit.peek(now), by);
    }
    together.refused.map(|(by, retry_after)| AllAnswer::NotUntil { by, retry_after })
}

/// The tightest of several answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Together {
    remaining: u32,
    full_after: Duration,
    refused: Option<(usize, Duration)>,
}

impl Together {
    pub(super) const NOTHING: Self =
        Self { remaining: u32::MAX, full_after: Duration::ZERO, refused: None };

    pub(super) fn add(&mut self, answer: Answer, by: usize) {
        match answer {
            Answer::Allowed { remaining, full_after } => {
                self.remaining = self.remaining.min(remaining);
                self.full_after = self.full_after.max(full_after);
            }
            Answer::NotUntil { retry_after } => {
                if self.refused.is_none_or(|(_, longest)| retry_after > longest) {
                    self.refused = Some((by, retry_after));
                }
            }
        }
    }

    /// Adds the limits behind the first one.
    pub(super) fn add_all(&mut self, others: Option<AllAnswer>) {
        match others {
            Some(AllAnswer::Allowed { remaining, full_after }) => {
                self.add(Answer::Allowed { remaining, full_after }, 0);
            }
            Some(AllAnswer::NotUntil { by, retry_after }) => {
                self.add(Answer::NotUntil { retry_after }, by + 1);
            }
            None => {}
        }
    }

    pub(super) fn answer(self) -> AllAnswer {
        match self.refused {
            Some((by, retry_after)) => AllAnswer::NotUntil { by, retry_after },
            None => AllAnswer::Allowed { remaining: self.remaining, full_after: self.full_after },
        }
    }
}
