//! Who of many equals is among the refused.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::keyed::sip::Sip;
use crate::rng::Rng;
use crate::time::Moment;

/// How long a key keeps its lot: long enough for a page with all its calls, short enough that nobody
/// stays among the refused.
const KEPT: Duration = Duration::from_secs(60);

/// A number that decides who is refused when only a part is: the lowest lots are.
///
/// Drawn for each request, it spreads refusals evenly. Made from a key (the client's), it lets the same
/// clients in for a minute and refuses the same others, in every service that uses the same seed: a page
/// of ten calls works for half of the users, where a fresh draw for each call would spoil it for all but
/// a thousandth (the user-oriented priority of DAGOR; Zhou and others, *Overload Control for Scaling
/// WeChat Microservices*, 2018).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lot(u64);

impl Lot {
    /// A lot for this request alone.
    pub fn drawn(rng: &mut impl Rng) -> Self {
        Self(rng.next_u64())
    }

    /// The lot that `key` has in the minute of `now`.
    #[must_use]
    pub fn of_key(key: &(impl Hash + ?Sized), now: Moment, seed: u64) -> Self {
        let minute = now.nanos() / KEPT.as_nanos() as u64;
        // Our own hash, and not the standard library's, which no two releases need agree on: services
        // are not built by one compiler.
        let mut hasher = Sip::new(seed, minute);
        key.hash(&mut hasher);
        Self(hasher.finish())
    }

    /// Its place among all, `0.0..1.0`.
    pub(super) fn share(self) -> f64 {
        f64::from((self.0 >> 32) as u32) / 4_294_967_296.0
    }

    /// A second number of the same kind, which does not follow from the first.
    pub(super) fn spread(self) -> f64 {
        f64::from(self.0 as u32) / 4_294_967_296.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Other services, other builds: the same client has the same lot there.
    #[test]
    fn a_key_has_the_lot_that_it_always_had() {
        let lot = |key: &str, millis| Lot::of_key(key, Moment::from_millis(millis), 9).0;
        assert_eq!(lot("client-7", 60_000), 0x61e4_5eb6_3bb5_c9fa);
        assert_eq!(lot("client-7", 119_999), lot("client-7", 60_000));
        assert_ne!(lot("client-7", 120_000), lot("client-7", 60_000));
    }
}
