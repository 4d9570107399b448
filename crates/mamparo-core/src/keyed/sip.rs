//! SipHash-1-3 with a key of our own (Aumasson and Bernstein, *SipHash: a fast short-input PRF*, 2012).
//!
//! Whoever does not know the key can't choose names that fall into one chain. The standard library has
//! the same function, but gives it no key that a simulation could repeat, and promises no release to hash as
//! the one before.

use std::hash::Hasher;

/// A hash under way.
#[derive(Debug, Clone)]
pub(crate) struct Sip {
    state: [u64; 4],
    /// The bytes that are no whole word yet, the first one lowest.
    rest: u64,
    /// How many they are, 0 to 7.
    rest_bytes: u32,
    /// Bytes so far; the lowest eight bits count.
    length: u64,
}

impl Sip {
    /// The empty hash under the key (`low`, `high`).
    #[inline]
    pub(crate) const fn new(low: u64, high: u64) -> Self {
        Self {
            state: [
                low ^ 0x736f_6d65_7073_6575,
                high ^ 0x646f_7261_6e64_6f6d,
                low ^ 0x6c79_6765_6e65_7261,
                high ^ 0x7465_6462_7974_6573,
            ],
            rest: 0,
            rest_bytes: 0,
            length: 0,
        }
    }

    /// Appends the lowest `bytes` (1 to 8) bytes of `word`, the others of which are zero.
    #[inline]
    fn append(&mut self, word: u64, bytes: u32) {
        self.length = self.length.wrapping_add(u64::from(bytes));
        let filled = self.rest_bytes;
        self.rest |= word << (8 * filled);
        self.rest_bytes = filled + bytes;
        if self.rest_bytes >= 8 {
            self.compress(self.rest);
            // What found no place in the word; all of it when there was none before.
            self.rest = word.checked_shr(64 - 8 * filled).unwrap_or(0);
            self.rest_bytes -= 8;
        }
    }

    #[inline]
    fn compress(&mut self, word: u64) {
        self.state[3] ^= word;
        self.round();
        self.state[0] ^= word;
    }

    #[inline]
    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.state;
        a = a.wrapping_add(b);
        c = c.wrapping_add(d);
        b = b.rotate_left(13) ^ a;
        d = d.rotate_left(16) ^ c;
        a = a.rotate_left(32).wrapping_add(d);
        c = c.wrapping_add(b);
        d = d.rotate_left(21) ^ a;
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.state = [a, b, c, d];
    }
}

impl Hasher for Sip {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.append(u64::from_le_bytes(*word), 8);
        }
        if !rest.is_empty() {
            let word = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            self.append(word, rest.len() as u32);
        }
    }

    #[inline]
    fn write_u8(&mut self, number: u8) {
        self.append(u64::from(number), 1);
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.append(u64::from(number), 4);
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.append(number, 8);
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.append(number as u64, 8);
    }

    #[inline]
    fn finish(&self) -> u64 {
        let mut last = self.clone();
        last.compress(self.length << 56 | self.rest);
        last.state[2] ^= 0xff;
        last.round();
        last.round();
        last.round();
        last.state.into_iter().fold(0, |hash, word| hash ^ word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: (u64, u64), parts: &[&[u8]]) -> u64 {
        let mut sip = Sip::new(key.0, key.1);
        parts.iter().for_each(|part| sip.write(part));
        sip.finish()
    }

    /// What the standard library of Rust 1.95 gives, whose key is zero.
    #[test]
    fn equals_the_function_it_says_it_is() {
        let bytes: Vec<u8> = (0..100).collect();
        for (length, expected) in [
            (0, 0xd1fb_a762_150c_532c),
            (1, 0x68a9_1412_8e01_e473),
            (7, 0x2f09_8ab0_c751_325a),
            (8, 0xead4_11e6_7ebe_2eea),
            (9, 0x7592_7f9d_9512_4362),
            (15, 0xf30e_b725_bb91_c9ea),
            (63, 0x385d_3e39_e5f3_7359),
            (99, 0xd14b_441f_7966_b1c4),
        ] {
            let whole = &bytes[..length];
            for split in 0..=length {
                let (head, tail) = whole.split_at(split);
                assert_eq!(hash((0, 0), &[head, tail]), expected, "{split} of {length}");
            }
        }
    }

    #[test]
    fn numbers_are_their_bytes_and_the_key_counts() {
        let mut sip = Sip::new(1, 2);
        sip.write_u8(9);
        sip.write_u32(0x0403_0201);
        sip.write_u64(0x0c0b_0a09_0807_0605);
        sip.write_usize(1);
        let bytes = [9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(sip.finish(), hash((1, 2), &[&bytes]));
        assert_ne!(hash((1, 2), &[&bytes]), hash((1, 3), &[&bytes]));
        assert_ne!(hash((1, 2), &[&bytes]), hash((3, 2), &[&bytes]));
    }
}
