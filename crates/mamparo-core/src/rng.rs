//! Randomness as an argument.
//!
//! Core draws from what it is handed, so a seed replays a run to the last bit. The one place that
//! asks the operating system for entropy is `mamparo-call::clock`.

/// A source of uniformly distributed 64-bit numbers.
pub trait Rng {
    /// The next number.
    fn next_u64(&mut self) -> u64;

    /// A number in `0..=max`, without modulo bias worth the name (below 2⁻⁶⁴ × `max`).
    fn up_to(&mut self, max: u64) -> u64 {
        // The high half of a 64 × 65 bit product maps the whole range evenly onto 0..=max.
        let product = u128::from(self.next_u64()) * (u128::from(max) + 1);
        u64::try_from(product >> 64).unwrap_or(max)
    }

    /// A number from zero (possible) to one (never reached).
    fn unit(&mut self) -> f64 {
        // 53 bits are what an f64 holds exactly.
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with the given share of cases; shares outside `0.0..=1.0` are clamped.
    fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }
}

/// A small, fast, seedable generator (SplitMix64; Steele, Lea, Flood 2014). Not for secrets.
#[derive(Debug, Clone)]
pub struct SeededRng {
    state: u64,
}

impl SeededRng {
    /// The generator that always yields the same sequence for `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }
}

impl Rng for SeededRng {
    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

impl<R: Rng + ?Sized> Rng for &mut R {
    fn next_u64(&mut self) -> u64 {
        (**self).next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_its_sequence() {
        let (mut one, mut other) = (SeededRng::new(7), SeededRng::new(7));
        for _ in 0..100 {
            assert_eq!(one.next_u64(), other.next_u64());
        }
        assert_ne!(SeededRng::new(7).next_u64(), SeededRng::new(8).next_u64());
    }

    #[test]
    fn up_to_reaches_both_ends_and_no_further() {
        let mut rng = SeededRng::new(1);
        let mut seen = [false; 4];
        for _ in 0..1_000 {
            seen[rng.up_to(3) as usize] = true;
        }
        assert_eq!(seen, [true; 4]);
        assert_eq!(rng.up_to(0), 0);
        rng.up_to(u64::MAX);
    }

    #[test]
    fn chance_follows_its_share() {
        let mut rng = SeededRng::new(2);
        let hits = (0..10_000).filter(|_| rng.chance(0.3)).count();
        assert!((2_800..3_200).contains(&hits), "{hits}");
        assert!(!(0..100).any(|_| rng.chance(0.0)));
        assert!((0..100).all(|_| rng.chance(1.0)));
    }
}
