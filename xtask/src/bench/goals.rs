//! What a call may cost: the goals, and whether a run met them.

use std::fmt;

use super::figures::{Figures, Way};

/// What a goal looks at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Measure {
    /// The most allocations per call among all rows whose names begin so.
    Allocations(&'static str),
    /// The most instructions per call among these rows.
    Instructions(&'static [&'static str]),
    /// How many times as long the first takes as the second, within rounds.
    Times((&'static str, Way), (&'static str, Way)),
    /// The share of a loopback round trip.
    Loopback(&'static str),
    /// The bytes of an object, heap included.
    Bytes(&'static str),
}

/// Where a measure has to end up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Bar {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

impl Bar {
    /// Is `value` on the right side?
    #[must_use]
    pub(super) fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(bar) => value <= bar,
            Self::AtLeast(bar) => value >= bar,
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bar) => write!(f, "≤ {bar}"),
            Self::AtLeast(bar) => write!(f, "≥ {bar}"),
        }
    }
}

/// One goal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Goal {
    /// Its number in `docs/benchmarks.md`.
    pub(super) number: u32,
    /// What it is about.
    pub(super) about: &'static str,
    /// What it looks at.
    pub(super) measure: Measure,
    /// What must hold.
    pub(super) must: Bar,
    /// What would be better still.
    pub(super) stretch: Option<f64>,
}

/// The rows of a breaker that is closed, one a mode.
pub(super) const BREAKERS: &[&str] = &[
    "mamparo.breaker.consecutive",
    "mamparo.breaker.failures",
    "mamparo.breaker.calls",
    "mamparo.breaker.time",
    "mamparo.breaker.slow",
];

const ONE: Way = Way::OneTask;
const STACK: &str = "mamparo.stack.combinators";
const BREAKER: &str = "mamparo.breaker.failures";
const OPEN: &str = "mamparo.open";

const fn goal(number: u32, about: &'static str, measure: Measure, must: Bar) -> Goal {
    Goal { number, about, measure, must, stretch: None }
}

impl Goal {
    const fn stretch(self, bar: f64) -> Self {
        Self { stretch: Some(bar), ..self }
    }

    /// Does it look at counts alone, which are the same on every machine? Then the gate checks it.
    #[must_use]
    pub(super) const fn is_count(&self) -> bool {
        matches!(self.measure, Measure::Allocations(_) | Measure::Instructions(_))
    }
}

use Bar::{AtLeast, AtMost};
use Measure::{Allocations, Bytes, Instructions, Loopback, Times};

/// All goals. Times are compared with a peer of the same run, never with a number of another one.
pub(super) const GOALS: &[Goal] = &[
    goal(1, "allocations: success, refusal, error", Allocations("mamparo."), AtMost(0.0)),
    goal(2, "stack: instructions", Instructions(&[STACK]), AtMost(350.0)).stretch(220.0),
    goal(
        2,
        "stack as Dependency: instructions",
        Instructions(&["mamparo.stack.dependency"]),
        AtMost(350.0),
    ),
    goal(
        3,
        "stack / tower's stack (no breaker)",
        Times((STACK, ONE), ("tower.stack", ONE)),
        AtMost(1.0),
    )
    .stretch(0.5),
    goal(
        4,
        "tower-resilience's stack / ours",
        Times(("tr.stack", ONE), (STACK, ONE)),
        AtLeast(9.0),
    )
    .stretch(20.0),
    goal(
        5,
        "stack as Layers / as combinators",
        Times(("mamparo.stack.layers", ONE), (STACK, ONE)),
        AtMost(1.1),
    )
    .stretch(1.0),
    goal(6, "breaker, dearest mode: instructions", Instructions(BREAKERS), AtMost(200.0)),
    goal(6, "breaker by default: instructions", Instructions(&[BREAKER]), AtMost(200.0))
        .stretch(100.0),
    goal(6, "breaker / recloser", Times((BREAKER, ONE), ("recloser.breaker", ONE)), AtMost(1.7))
        .stretch(0.7),
    goal(
        6,
        "breaker over time / recloser",
        Times(("mamparo.breaker.time", ONE), ("recloser.breaker", ONE)),
        AtMost(1.7),
    )
    .stretch(0.7),
    goal(7, "open: instructions", Instructions(&[OPEN]), AtMost(150.0)),
    goal(7, "open / recloser open", Times((OPEN, ONE), ("recloser.open", ONE)), AtMost(0.8)),
    goal(7, "open: two tasks / one", Times((OPEN, Way::TwoTasks), (OPEN, ONE)), AtMost(1.2)),
    goal(
        8,
        "breaker: two tasks / one",
        Times((BREAKER, Way::TwoTasks), (BREAKER, ONE)),
        AtMost(2.3),
    )
    .stretch(1.2),
    goal(
        8,
        "breaker over time: two tasks / one",
        Times(("mamparo.breaker.time", Way::TwoTasks), ("mamparo.breaker.time", ONE)),
        AtMost(2.3),
    )
    .stretch(1.2),
    goal(
        9,
        "stack / tower's stack, two tasks",
        Times((STACK, Way::TwoTasks), ("tower.stack", Way::TwoTasks)),
        AtMost(0.6),
    )
    .stretch(0.45),
    goal(10, "bulkhead: instructions", Instructions(&["mamparo.bulkhead"]), AtMost(45.0)),
    goal(
        10,
        "bulkhead / tokio try_acquire",
        Times(("mamparo.bulkhead", ONE), ("tokio.semaphore.try_acquire", ONE)),
        AtMost(0.6),
    ),
    goal(
        11,
        "deadline unarmed / tokio timeout",
        Times(("mamparo.deadline", ONE), ("tokio.timeout", ONE)),
        AtMost(0.4),
    ),
    goal(
        11,
        "deadline armed / tokio timeout",
        Times(("mamparo.deadline.yield", ONE), ("tokio.timeout.yield", ONE)),
        AtMost(1.2),
    ),
    goal(
        12,
        "deadline armed, two workers / tokio timeout",
        Times(
            ("mamparo.deadline.yield", Way::TwoWorkers),
            ("tokio.timeout.yield", Way::TwoWorkers),
        ),
        AtMost(1.2),
    )
    .stretch(0.55),
    goal(
        13,
        "rate limit / governor",
        Times(("mamparo.rate_limit", ONE), ("governor.direct", ONE)),
        AtMost(1.1),
    )
    .stretch(1.0),
    goal(
        13,
        "rate limit, 10 000 keys / governor",
        Times(("mamparo.rate_limit.keyed.10000", ONE), ("governor.keyed.10000", ONE)),
        AtMost(1.1),
    )
    .stretch(1.0),
    goal(
        14,
        "window with 30 000 calls / with 100",
        Times(("mamparo.window.30000", ONE), ("mamparo.window.100", ONE)),
        AtMost(1.1),
    ),
    goal(14, "window: bytes", Bytes("breaker.time"), AtMost(4_096.0)).stretch(1_024.0),
    goal(15, "stack / loopback round trip", Loopback(STACK), AtMost(0.02)).stretch(0.01),
];

/// What became of a goal.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    /// The goal.
    pub(super) goal: Goal,
    /// What was measured; `None` when a row of it was not.
    pub(super) value: Option<f64>,
    /// The row that decided, where it is the worst of several.
    pub(super) row: Option<String>,
}

impl Outcome {
    /// Was it met? What was not measured was not met.
    #[must_use]
    pub(super) fn met(&self) -> bool {
        self.value.is_some_and(|value| self.goal.must.holds(value))
    }

    /// Was the better mark met too?
    #[must_use]
    pub(super) fn stretched(&self) -> bool {
        let bar = self.goal.stretch.map(|bar| match self.goal.must {
            AtMost(_) => AtMost(bar),
            AtLeast(_) => AtLeast(bar),
        });
        bar.zip(self.value).is_some_and(|(bar, value)| bar.holds(value))
    }
}

/// Holds `goals` against `figures`.
#[must_use]
pub(super) fn judge(goals: &[Goal], figures: &Figures) -> Vec<Outcome> {
    goals.iter().map(|goal| outcome(*goal, figures)).collect()
}

fn outcome(goal: Goal, figures: &Figures) -> Outcome {
    let (value, row) = match goal.measure {
        Allocations(prefix) => {
            let rows = figures.allocations.iter().filter(|(name, _)| name.starts_with(prefix));
            worst(rows.map(|(name, (count, _))| (name.as_str(), Some(*count))))
        }
        Instructions(rows) => {
            worst(rows.iter().map(|row| (*row, figures.instructions.get(*row).copied())))
        }
        Times(of, to) => (figures.ratio(of, to).map(|spread| spread.middle), None),
        Loopback(row) => (figures.share_of_loopback(row).map(|spread| spread.middle), None),
        Bytes(object) => (figures.sizes.get(object).copied(), None),
    };
    Outcome { goal, value, row }
}

/// The largest value and its row; none at all when one is missing.
fn worst<'a>(rows: impl Iterator<Item = (&'a str, Option<f64>)>) -> (Option<f64>, Option<String>) {
    let mut most: Option<(f64, &str)> = None;
    for (row, value) in rows {
        let Some(value) = value else { return (None, Some(row.to_owned())) };
        if most.is_none_or(|(most, _)| value > most) {
            most = Some((value, row));
        }
    }
    (most.map(|(value, _)| value), most.map(|(_, row)| row.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_was_not_met() {
        let outcomes = judge(GOALS, &Figures::default());
        assert_eq!(outcomes.len(), GOALS.len());
        assert!(outcomes.iter().all(|outcome| !outcome.met() && outcome.value.is_none()));
    }

    #[test]
    fn the_dearest_row_decides_and_a_missing_one_spoils() {
        let mut figures = Figures::default();
        figures.add_instructions("a", 90.0);
        figures.add_instructions("b", 210.0);
        let both = goal(6, "", Instructions(&["a", "b"]), AtMost(200.0)).stretch(100.0);
        let [first] = &judge(&[both], &figures)[..] else { panic!("one outcome") };
        assert_eq!((first.value, first.row.as_deref()), (Some(210.0), Some("b")));
        assert!(!first.met() && !first.stretched());
        let missing = goal(6, "", Instructions(&["a", "c"]), AtMost(200.0));
        assert!(!judge(&[missing], &figures)[0].met());
        let one = goal(6, "", Instructions(&["a"]), AtMost(200.0)).stretch(100.0);
        assert!(judge(&[one], &figures)[0].stretched());
    }

    #[test]
    fn bars_hold_on_their_own_side() {
        assert!(AtMost(0.0).holds(0.0) && !AtMost(0.0).holds(0.001));
        assert!(AtLeast(9.0).holds(9.0) && !AtLeast(9.0).holds(8.9));
    }
}
