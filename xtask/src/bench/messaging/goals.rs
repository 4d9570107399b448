//! What messages may cost, and whether a run met it.

use super::super::goals::Bar;
use super::super::goals::Bar::{AtLeast, AtMost};
use super::measured::{Measured, Range};

/// What a goal looks at.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Measure {
    /// How many times the second the first is, inside each round.
    Ratio(String, String),
    /// A row as it is.
    Value(String),
}

/// One goal.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Goal {
    /// The group whose rows it looks at, which `--only` names.
    pub(super) group: String,
    /// What it is about.
    pub(super) about: String,
    /// What it looks at.
    pub(super) measure: Measure,
    /// What should hold.
    pub(super) bar: Bar,
    /// It must; else it would be better still.
    pub(super) must: bool,
}

/// Queue types and prefetches at which consumers are measured.
const AT: [&str; 4] = ["classic.p10", "classic.p100", "quorum.p10", "quorum.p100"];
const KINDS: [&str; 2] = ["classic", "quorum"];

/// All goals. Rates and latencies are compared with a loop of the same run, never with a number of
/// another one.
pub(super) fn all() -> Vec<Goal> {
    let mut goals = Goals::default();
    for at in AT {
        let ours = format!("consume.ours.{at}");
        goals.ratio(format!("handled, {at}"), &ours, "consume.lapin.together", at, AtLeast(0.85));
        goals.stretch(
            format!("handled, {at}, against multiple acks"),
            &ours,
            "consume.lapin.multiple",
            at,
            AtLeast(0.6),
        );
    }
    for at in AT {
        let ours = format!("retry.ours.{at}");
        goals.ratio(format!("put off, {at}"), &ours, "retry.lapin", at, AtLeast(0.85));
    }
    for at in KINDS {
        let ours = format!("inbox.ours.{at}");
        let about = format!("handled once, {at}");
        goals.ratio(about, &ours, "inbox.pipelined", at, AtLeast(0.85));
    }
    for at in KINDS {
        let ours = format!("relay.ours.{at}");
        goals.ratio(format!("relayed, {at}"), &ours, "relay.serial", at, AtLeast(0.9));
        goals.stretch(
            format!("relayed, {at}, against publishing alone"),
            &ours,
            "relay.publish",
            at,
            AtLeast(0.8),
        );
    }
    for at in ["50.p50", "50.p99", "500.p50", "500.p99"] {
        let ours = format!("wakeup.ours.{at}");
        goals.ratio(format!("insert to delivery, {at}"), &ours, "wakeup.notify", at, AtMost(1.5));
        let (about, ours) =
            (format!("the same in one process, {at}"), format!("wakeup.ours.inside.{at}"));
        goals.ratio(about, &ours, "wakeup.notify", at, AtMost(1.5));
    }
    for at in ["c8", "c32"] {
        let (ours, about) = (format!("writers.ours.on.{at}"), format!("writers woken for, {at}"));
        goals.ratio(about, &ours, "writers.ours.off", at, AtLeast(0.9));
    }
    for (what, ours) in [("parked messages", "claims.ours"), ("outbox rows", "claims.relay")] {
        let fresh = format!("{ours}.fresh");
        goals.ratio(format!("claims, {what}"), &fresh, "claims.pgbench", "fresh", AtLeast(0.8));
        for statistics in ["absent", "stale"] {
            let about = format!("claims, {what}, statistics {statistics}");
            goals.ratio(about, &format!("{ours}.{statistics}"), ours, "fresh", AtLeast(0.7));
        }
    }
    for at in ["rabbitmq", "store"] {
        let about = format!("10 000 dead letters replayed by type, {at}");
        goals.value(about, &format!("replay.{at}"), AtMost(10.0));
    }
    goals.value("idle service: % of a processor", "idle.cpu", AtMost(1.0));
    goals.value("idle service: queries a second", "idle.queries", AtMost(1.0));
    goals.value("memory, end against middle", "memory.growth", AtMost(1.05));
    goals.0
}

#[derive(Debug, Default)]
struct Goals(Vec<Goal>);

impl Goals {
    fn ratio(&mut self, about: impl Into<String>, ours: &str, floor: &str, at: &str, bar: Bar) {
        let measure = Measure::Ratio(ours.to_owned(), format!("{floor}.{at}"));
        self.add(about.into(), measure, bar, true);
    }

    fn stretch(&mut self, about: String, ours: &str, floor: &str, at: &str, bar: Bar) {
        let measure = Measure::Ratio(ours.to_owned(), format!("{floor}.{at}"));
        self.add(about, measure, bar, false);
    }

    fn value(&mut self, about: impl Into<String>, row: &str, bar: Bar) {
        self.add(about.into(), Measure::Value(row.to_owned()), bar, true);
    }

    fn add(&mut self, about: String, measure: Measure, bar: Bar, must: bool) {
        let (Measure::Ratio(row, _) | Measure::Value(row)) = &measure;
        let group = row.split('.').next().unwrap_or_default().to_owned();
        self.0.push(Goal { group, about, measure, bar, must });
    }
}

/// What became of a goal.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    /// The goal.
    pub(super) goal: Goal,
    /// The floor, where there is one.
    pub(super) floor: Option<Range>,
    /// Ours.
    pub(super) ours: Option<Range>,
    /// What is held against the bar: ours, or its ratio to the floor. `None` when a row was not measured.
    pub(super) judged: Option<Range>,
}

impl Outcome {
    /// Was it met? What was not measured was not met.
    pub(super) fn met(&self) -> bool {
        self.judged.is_some_and(|range| self.goal.bar.holds(range.middle))
    }

    /// Met, or not asked for.
    pub(super) fn is_well(&self) -> bool {
        self.met() || !self.goal.must
    }
}

/// Holds `goals` against what was measured.
pub(super) fn judge(goals: &[Goal], measured: &Measured) -> Vec<Outcome> {
    let outcome = |goal: &Goal| {
        let (floor, ours, judged) = match &goal.measure {
            Measure::Ratio(ours, floor) => {
                (measured.range(floor), measured.range(ours), measured.ratio(ours, floor))
            }
            Measure::Value(row) => (None, measured.range(row), measured.range(row)),
        };
        Outcome { goal: goal.clone(), floor, ours, judged }
    };
    goals.iter().map(outcome).collect()
}

#[cfg(test)]
mod tests {
    use super::super::measured::Row;
    use super::*;

    fn measured(rows: &[(&str, f64)]) -> Measured {
        let row = |(name, value): &(&str, f64)| Row {
            name: (*name).to_owned(),
            unit: "1/s".to_owned(),
            rounds: vec![*value; 3],
        };
        Measured { rows: rows.iter().map(row).collect(), durability: String::new() }
    }

    fn of(about: &str, rows: &[(&str, f64)]) -> Outcome {
        let outcomes = judge(&all(), &measured(rows));
        outcomes.into_iter().find(|outcome| outcome.goal.about == about).expect("a goal")
    }

    #[test]
    fn a_ratio_is_held_against_its_bar_on_the_right_side() {
        let rows = |ours| [("relay.serial.quorum", 100.0), ("relay.ours.quorum", ours)];
        assert!(of("relayed, quorum", &rows(90.0)).met());
        assert!(!of("relayed, quorum", &rows(89.0)).met());
        let late = |ours| [("wakeup.notify.50.p99", 10.0), ("wakeup.ours.50.p99", ours)];
        assert!(of("insert to delivery, 50.p99", &late(15.0)).met());
        assert!(!of("insert to delivery, 50.p99", &late(16.0)).met());
    }

    #[test]
    fn what_was_not_measured_is_not_met_and_a_stretch_may_be_missed() {
        let missing = of("relayed, quorum", &[("relay.serial.quorum", 100.0)]);
        assert!(!missing.met() && !missing.is_well());
        let about = "relayed, quorum, against publishing alone";
        let stretch = of(about, &[("relay.publish.quorum", 100.0), ("relay.ours.quorum", 10.0)]);
        assert!(!stretch.met() && stretch.is_well());
    }

    #[test]
    fn stale_statistics_are_compared_with_our_own_fresh_ones() {
        let goal = all()
            .into_iter()
            .find(|goal| goal.about == "claims, parked messages, statistics stale");
        let rows = Measure::Ratio("claims.ours.stale".to_owned(), "claims.ours.fresh".to_owned());
        assert_eq!(goal.map(|goal| (goal.group, goal.measure)), Some(("claims".to_owned(), rows)));
    }

    #[test]
    fn goals_have_names_of_their_own() {
        let mut names: Vec<_> = all().into_iter().map(|goal| goal.about).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
