//! Figures and goals as text: Markdown tables, so that a run can go into the documentation as it is.

use std::fmt;

use serde_json::{Value, json};

use super::figures::{Figures, Spread, Way};
use super::goals::{Goal, Measure, Outcome};

/// The row that all others are held against.
const BARE: &str = "base.bare";

/// The table of all rows.
#[derive(Debug)]
pub(super) struct Table<'a>(pub(super) &'a Figures);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(figures) = *self;
        writeln!(
            f,
            "| call | 1 task, ns | x bare | instr. | allocs (B) | 2 workers, ns | 2 tasks, ns | x one |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|---|")?;
        for name in &figures.names {
            let one = figures.nanos(name, Way::OneTask);
            let bare = figures.ratio((name, Way::OneTask), (BARE, Way::OneTask));
            let two = figures.ratio((name, Way::TwoTasks), (name, Way::OneTask));
            writeln!(
                f,
                "| {name} | {} | {} | {} | {} | {} | {} | {} |",
                Nanos(one, true),
                Times(bare),
                Count(figures.instructions.get(name).copied()),
                Memory(figures.allocations.get(name).copied()),
                Nanos(figures.nanos(name, Way::TwoWorkers), false),
                Nanos(figures.nanos(name, Way::TwoTasks), true),
                Times(two),
            )?;
        }
        if let Some(trip) = Spread::of(figures.loopback.clone()) {
            writeln!(f, "\nLoopback round trip of 64 bytes: {} ns.", Nanos(Some(trip), true))?;
        }
        writeln!(f, "Cells that others disturbed to the last: {:.1} %.", figures.disturbed * 100.0)
    }
}

/// The table of the goals.
#[derive(Debug)]
pub(super) struct Goals<'a>(pub(super) &'a [Outcome]);

impl fmt::Display for Goals<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| # | goal | must | stretch | measured | |")?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        for outcome in self.0 {
            let Goal { number, about, must, stretch, .. } = outcome.goal;
            let verdict = match (outcome.value, outcome.met(), outcome.stretched()) {
                (None, ..) => "not measured",
                (_, true, true) => "met, stretch too",
                (_, true, false) => "met",
                (_, false, _) => "missed",
            };
            let stretch = stretch.map_or(String::new(), |bar| bar.to_string());
            writeln!(
                f,
                "| {number} | {about} | {must} | {stretch} | {} | {verdict} |",
                Shown(outcome)
            )?;
        }
        let met = self.0.iter().filter(|outcome| outcome.met()).count();
        writeln!(f, "\n{met} of {} met.", self.0.len())
    }
}

/// All of it as one JSON value.
#[must_use]
pub(super) fn json(figures: &Figures, outcomes: &[Outcome]) -> Value {
    let nanos = |name: &str, way| figures.nanos(name, way).map(spread_json);
    let cases = figures.names.iter().map(|name| {
        json!({
            "name": name,
            "one_task_ns": nanos(name, Way::OneTask),
            "two_workers_ns": nanos(name, Way::TwoWorkers),
            "two_tasks_ns": nanos(name, Way::TwoTasks),
            "instructions": figures.instructions.get(name),
            "allocations": figures.allocations.get(name).map(|(count, _)| count),
            "allocated_bytes": figures.allocations.get(name).map(|(_, bytes)| bytes),
        })
    });
    let goals = outcomes.iter().map(|outcome| {
        json!({
            "number": outcome.goal.number,
            "about": outcome.goal.about,
            "must": outcome.goal.must.to_string(),
            "value": outcome.value,
            "met": outcome.met(),
        })
    });
    json!({
        "cases": cases.collect::<Value>(),
        "goals": goals.collect::<Value>(),
        "loopback_ns": Spread::of(figures.loopback.clone()).map(spread_json),
        "disturbed": figures.disturbed,
        "bytes": figures.sizes,
    })
}

fn spread_json(spread: Spread) -> Value {
    json!({"p10": spread.low, "median": spread.middle, "p90": spread.high})
}

/// A time with, or without, the range that holds most of its values.
struct Nanos(Option<Spread>, bool);

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Some(Spread { low, middle, high }), range) = *self else {
            return f.write_str("–");
        };
        let digits = usize::from(middle < 20.0);
        write!(f, "{middle:.digits$}")?;
        if range { write!(f, " [{low:.digits$}–{high:.digits$}]") } else { Ok(()) }
    }
}

struct Times(Option<Spread>);

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Spread { middle, .. }) if middle < 20.0 => write!(f, "{middle:.1}"),
            Some(Spread { middle, .. }) => write!(f, "{middle:.0}"),
            None => f.write_str("–"),
        }
    }
}

struct Count(Option<f64>);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(count) => write!(f, "{count:.0}"),
            None => f.write_str("–"),
        }
    }
}

struct Memory(Option<(f64, f64)>);

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // A table that grew once in a thousand calls is no allocation of a call.
            Some((count, _)) if count < 0.005 => f.write_str("0"),
            Some((count, bytes)) => write!(f, "{count:.0} ({bytes:.0})"),
            None => f.write_str("–"),
        }
    }
}

/// The measured value of a goal, in the unit of its measure.
struct Shown<'a>(&'a Outcome);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = self.0;
        let Some(value) = outcome.value else {
            return write!(f, "– {}", outcome.row.as_deref().unwrap_or_default());
        };
        match outcome.goal.measure {
            Measure::Allocations(_) => write!(f, "{value:.2}")?,
            Measure::Instructions(_) | Measure::Bytes(_) => write!(f, "{value:.0}")?,
            Measure::Times(..) => write!(f, "{value:.2}")?,
            Measure::Loopback(_) => write!(f, "{:.2} %", value * 100.0)?,
        }
        match (&outcome.row, outcome.goal.measure) {
            (Some(row), Measure::Instructions(rows)) if rows.len() > 1 => write!(f, " ({row})"),
            (Some(row), Measure::Allocations(_)) if value > 0.0 => write!(f, " ({row})"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::goals::{GOALS, judge};
    use super::*;

    #[test]
    fn tables_show_what_is_there_and_leave_the_rest_open() {
        let mut figures = Figures::default();
        figures.add_instructions(BARE, 18.2);
        figures.allocations.insert(BARE.to_owned(), (10.0, 1_044.0));
        let table = Table(&figures).to_string();
        assert!(table.contains("| base.bare | – | – | 18 | 10 (1044) | – | – | – |"), "{table}");
        let outcomes = judge(GOALS, &figures);
        let goals = Goals(&outcomes).to_string();
        assert!(goals.contains("not measured"), "{goals}");
        assert!(goals.contains(&format!("0 of {} met", GOALS.len())), "{goals}");
        assert_eq!(json(&figures, &outcomes)["cases"][0]["instructions"], 18.2);
    }

    #[test]
    fn small_times_keep_a_digit() {
        let spread = |middle| Some(Spread { low: middle - 1.0, middle, high: middle + 1.0 });
        assert_eq!(Nanos(spread(3.84), true).to_string(), "3.8 [2.8–4.8]");
        assert_eq!(Nanos(spread(365.4), false).to_string(), "365");
    }
}
