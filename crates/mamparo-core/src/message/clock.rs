//! The database's clock, seen from a host: how far the host's own is off.
//!
//! A lease is taken on one host and judged on another. With each host's own clock, one that is fast
//! by more than a lease takes over what lives, and one that is slow waits for ever. The database's
//! clock is the one that all of them share. Asking it for each lease would cost a round trip, so the
//! difference is measured now and then and added to the host's own reading (Cristian 1989: the answer
//! was read somewhere between asking and answering, so the middle is off by half the round trip at
//! most).

use std::time::Duration;

use crate::time::WallTime;

/// One look at the other clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Our clock when we asked.
    pub asked: WallTime,
    /// What the other clock said.
    pub said: WallTime,
    /// Our clock when the answer had come.
    pub answered: WallTime,
}

/// How far the other clock is ahead of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offset {
    /// Milliseconds to add to our clock; negative when it is ahead.
    pub millis: i64,
    /// The measurement's error, at most: half a round trip.
    pub error: Duration,
}

impl Sample {
    /// What this look says. `None` when our own clock stepped back in between.
    #[must_use]
    pub fn offset(&self) -> Option<Offset> {
        if self.answered < self.asked {
            return None;
        }
        let error = self.answered.since(self.asked) / 2;
        let middle = self.asked.plus(error).unix_millis();
        Some(Offset { millis: self.said.unix_millis().saturating_sub(middle), error })
    }
}

impl Offset {
    /// The best of several looks: the one with the shortest round trip. `None` without a usable one.
    #[must_use]
    pub fn best(samples: &[Sample]) -> Option<Self> {
        samples.iter().filter_map(Sample::offset).min_by_key(|offset| offset.error)
    }

    /// The other clock's time when ours shows `local`.
    #[must_use]
    pub const fn apply(&self, local: WallTime) -> WallTime {
        WallTime::from_unix_millis(local.unix_millis().saturating_add(self.millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> WallTime {
        WallTime::from_unix_millis(millis)
    }

    fn sample(asked: i64, said: i64, answered: i64) -> Sample {
        Sample { asked: at(asked), said: at(said), answered: at(answered) }
    }

    #[test]
    fn the_answer_was_read_in_the_middle_and_the_shortest_look_is_believed() {
        let ahead = sample(1_000, 6_010, 1_020).offset().unwrap();
        assert_eq!(ahead, Offset { millis: 5_000, error: Duration::from_millis(10) });
        assert_eq!(ahead.apply(at(2_000)), at(7_000));
        let behind = sample(10_000, 4_000, 10_000).offset().unwrap();
        assert_eq!(behind, Offset { millis: -6_000, error: Duration::ZERO });
        let looks = [sample(0, 900, 400), sample(1_000, 1_552, 1_004), sample(2_000, 2_700, 2_100)];
        assert_eq!(
            Offset::best(&looks),
            Some(Offset { millis: 550, error: Duration::from_millis(2) })
        );
    }

    #[test]
    fn a_clock_that_stepped_back_while_looking_says_nothing() {
        assert_eq!(sample(1_000, 5_000, 999).offset(), None);
        assert_eq!(Offset::best(&[sample(1_000, 5_000, 999)]), None);
        assert_eq!(Offset::best(&[]), None);
    }

    #[test]
    fn readings_from_the_ends_of_time_saturate() {
        let far = sample(i64::MIN, i64::MAX, i64::MIN).offset().unwrap();
        assert_eq!(far.millis, i64::MAX);
        assert_eq!(far.apply(at(i64::MAX)), at(i64::MAX));
    }
}
