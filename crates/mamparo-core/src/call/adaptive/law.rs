//! How far a window that used its limit moves it: one function a law, limit in, limit out.
//!
//! Limits are fractions of a call here, so that slow growth adds up; bounds are the caller's.

/// Calls that may queue, in units of log₁₀ of the limit: fewer than the first is too few, more than the
/// second too many (Netflix's concurrency-limits, `VegasLimit`).
const VEGAS_QUEUE: (f64, f64) = (3.0, 6.0);

/// Least calls that Gradient2 lets queue to see whether there is room; the root of the limit, where
/// that is more.
const GRADIENT_QUEUE: f64 = 4.0;

/// Share of Gradient2's answer that counts at once. The rest is what the limit was.
const GRADIENT_SMOOTHING: f64 = 0.2;

/// Half when nothing gets through, and little when little is lost.
pub(super) fn on_drops(limit: f64, dropped: f64) -> f64 {
    limit * (1.0 - dropped / 2.0)
}

/// One more.
pub(super) fn aimd(limit: f64) -> f64 {
    limit + 1.0
}

/// By the calls that queue at the dependency.
pub(super) fn vegas(limit: f64, base: f64, took: f64) -> f64 {
    let queued = limit * (1.0 - base / took);
    // A step of nothing would hold a limit of one for ever.
    let step = limit.log10().max(1.0);
    if queued <= step {
        limit + VEGAS_QUEUE.1 * step
    } else if queued < VEGAS_QUEUE.0 * step {
        limit + step
    } else if queued > VEGAS_QUEUE.1 * step {
        limit - step
    } else {
        limit
    }
}

/// By the ratio of what calls take in the long term to what they take now.
pub(super) fn gradient(limit: f64, tolerance: f64, long: f64, took: f64) -> f64 {
    let gradient = (tolerance * long / took).clamp(0.5, 1.0);
    let target = limit * gradient + limit.sqrt().max(GRADIENT_QUEUE);
    limit + (target - limit) * GRADIENT_SMOOTHING
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_take_half_at_most_and_their_share_otherwise() {
        assert_eq!(on_drops(100.0, 1.0), 50.0);
        assert_eq!(on_drops(100.0, 0.1), 95.0);
    }

    #[test]
    fn vegas_keeps_between_three_and_six_steps_queued() {
        // log₁₀ 100 = 2: a queue of q shows as base ÷ took = 1 − q ÷ 100.
        for (queued, expected) in
            [(0.0, 112.0), (1.9, 112.0), (4.0, 102.0), (8.0, 100.0), (11.9, 100.0), (30.0, 98.0)]
        {
            let moved = vegas(100.0, 1.0 - queued / 100.0, 1.0);
            assert!((moved - expected).abs() < 1e-9, "{queued} queued: {moved}");
        }
        assert_eq!(vegas(1.0, 1.0, 1.0), 7.0, "out of the smallest limit");
    }

    #[test]
    fn gradient_lowers_beyond_its_tolerance_and_by_a_tenth_at_most() {
        let moved = |took| gradient(100.0, 1.5, 1.0, took);
        assert!((moved(1.0) - 102.0).abs() < 1e-9);
        assert!((moved(1.5) - 102.0).abs() < 1e-9);
        assert!((moved(2.0) - 97.0).abs() < 1e-9);
        assert!((moved(1_000.0) - 92.0).abs() < 1e-9);
    }
}
