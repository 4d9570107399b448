//! All that a call of a healthy dependency has to read: generation and mode in one word.

/// What a caller may do, as far as one word can say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Calls pass and are counted.
    Closed,
    /// By order: calls pass, are counted, and never open the circuit.
    ForcedClosed,
    /// By order: calls pass and are not counted.
    Disabled,
    /// Half-open with a place left.
    Trying,
    /// Half-open without one.
    Full,
    /// Open until its time is over.
    Open,
    /// By order: no call passes.
    ForcedOpen,
}

/// The mode in the three lowest bits, the generation above: 2⁶¹ changes of state will not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

impl Word {
    pub(super) const fn new(generation: u64, mode: Mode) -> Self {
        Self((generation << 3) | mode as u64)
    }

    #[inline]
    pub(super) const fn generation(self) -> u64 {
        self.0 >> 3
    }

    /// Does every call pass, with no place to take?
    #[inline]
    pub(super) const fn lets_pass(self) -> bool {
        self.0 & 7 <= Mode::Disabled as u64
    }

    #[inline]
    pub(super) const fn mode(self) -> Mode {
        match self.0 & 7 {
            0 => Mode::Closed,
            1 => Mode::ForcedClosed,
            2 => Mode::Disabled,
            3 => Mode::Trying,
            4 => Mode::Full,
            5 => Mode::Open,
            _ => Mode::ForcedOpen,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_gives_back_what_it_was_made_of() {
        use Mode::{Closed, Disabled, ForcedClosed, ForcedOpen, Full, Open, Trying};
        for mode in [Closed, ForcedClosed, Disabled, Trying, Full, Open, ForcedOpen] {
            for generation in [0, 1, 7, 8, (1 << 61) - 1] {
                let word = Word::new(generation, mode);
                assert_eq!((word.generation(), word.mode()), (generation, mode));
                assert_eq!(word.lets_pass(), matches!(mode, Closed | ForcedClosed | Disabled));
            }
        }
    }
}
