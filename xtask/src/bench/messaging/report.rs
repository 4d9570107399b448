//! Rows and goals as text: Markdown tables, so that a run can go into the documentation as it is.

use std::fmt;

use serde_json::{Value, json};

use super::goals::{Measure, Outcome};
use super::measured::{Measured, Range, Row};

/// The table of all rows.
#[derive(Debug)]
pub(super) struct Rows<'a>(pub(super) &'a Measured);

impl fmt::Display for Rows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| row | unit | median [min–max] |")?;
        writeln!(f, "|---|---|---|")?;
        for Row { name, unit, rounds } in &self.0.rows {
            writeln!(f, "| {name} | {unit} | {} |", Shown(Range::of(rounds.clone())))?;
        }
        writeln!(f, "\nPostgreSQL: {}.", self.0.durability)
    }
}

/// The table of the goals.
#[derive(Debug)]
pub(super) struct Goals<'a>(pub(super) &'a [Outcome]);

impl fmt::Display for Goals<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| goal | floor | ours | ratio [min–max] | must | |")?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        for outcome in self.0 {
            let Outcome { goal, floor, ours, judged } = outcome;
            let verdict = match (judged, outcome.met(), goal.must) {
                (None, ..) => "not measured",
                (Some(_), true, _) => "met",
                (Some(_), false, true) => "missed",
                (Some(_), false, false) => "not reached",
            };
            let ratio = match goal.measure {
                Measure::Ratio(..) => *judged,
                Measure::Value(_) => None,
            };
            let stretch = if goal.must { "" } else { " (stretch)" };
            writeln!(
                f,
                "| {} | {} | {} | {} | {}{stretch} | {verdict} |",
                goal.about,
                Middle(*floor),
                Middle(*ours),
                Shown(ratio),
                goal.bar,
            )?;
        }
        let must = self.0.iter().filter(|outcome| outcome.goal.must);
        let met = must.clone().filter(|outcome| outcome.met()).count();
        writeln!(f, "\n{met} of {} met.", must.count())
    }
}

/// All of it as one JSON value.
pub(super) fn json(measured: &Measured, outcomes: &[Outcome]) -> Value {
    let rows = measured.rows.iter().map(|row| {
        json!({
            "name": row.name,
            "unit": row.unit,
            "rounds": row.rounds,
            "range": Range::of(row.rounds.clone()).map(range_json),
        })
    });
    let goals = outcomes.iter().map(|outcome| {
        json!({
            "about": outcome.goal.about,
            "bar": outcome.goal.bar.to_string(),
            "must": outcome.goal.must,
            "floor": outcome.floor.map(range_json),
            "ours": outcome.ours.map(range_json),
            "judged": outcome.judged.map(range_json),
            "met": outcome.met(),
        })
    });
    json!({
        "rows": rows.collect::<Value>(),
        "goals": goals.collect::<Value>(),
        "durability": measured.durability,
    })
}

fn range_json(Range { least, middle, most }: Range) -> Value {
    json!({"min": least, "median": middle, "max": most})
}

/// A range with its ends.
struct Shown(Option<Range>);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Some(Range { least, middle, most })) = *self else {
            return f.write_str("–");
        };
        if least == most {
            return write!(f, "{}", Number(middle));
        }
        write!(f, "{} [{}–{}]", Number(middle), Number(least), Number(most))
    }
}

/// The median alone.
struct Middle(Option<Range>);

impl fmt::Display for Middle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(range) => write!(f, "{}", Number(range.middle)),
            None => f.write_str("–"),
        }
    }
}

/// Three digits or more.
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(value) = *self;
        let digits = match value {
            100.0.. => 0,
            10.0.. => 1,
            _ => 2,
        };
        write!(f, "{value:.digits$}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::goals;
    use super::*;

    fn measured() -> Measured {
        let row = |name: &str, rounds: &[f64]| Row {
            name: name.to_owned(),
            unit: "1/s".to_owned(),
            rounds: rounds.to_vec(),
        };
        let rows = vec![
            row("relay.serial.quorum", &[10_000.0, 9_000.0, 12_000.0]),
            row("relay.ours.quorum", &[9_500.0, 9_000.0, 6_000.0]),
        ];
        Measured { rows, durability: "fsync on".to_owned() }
    }

    #[test]
    fn a_row_shows_its_median_and_all_of_its_range() {
        let table = Rows(&measured()).to_string();
        assert!(table.contains("| relay.ours.quorum | 1/s | 9000 [6000–9500] |"), "{table}");
        assert!(table.contains("PostgreSQL: fsync on."), "{table}");
    }

    #[test]
    fn a_goal_shows_floor_ours_and_ratio_and_what_is_missing() {
        let outcomes = goals::judge(&goals::all(), &measured());
        let table = Goals(&outcomes).to_string();
        let row = "| relayed, quorum | 10000 | 9000 | 0.95 [0.50–1.00] | ≥ 0.9 | met |";
        assert!(table.contains(row), "{table}");
        assert!(
            table.contains("| relayed, classic | – | – | – | ≥ 0.9 | not measured |"),
            "{table}"
        );
        assert!(table.contains("(stretch)"), "{table}");
        let must = outcomes.iter().filter(|outcome| outcome.goal.must).count();
        assert!(table.contains(&format!("1 of {must} met.")), "{table}");
        let json = json(&measured(), &outcomes);
        assert_eq!(json["rows"][1]["range"]["median"], 9_000.0);
    }

    #[test]
    fn numbers_keep_three_digits() {
        let shown = [0.854, 1.5, 12.34, 123.4, 10_000.0].map(|value| Number(value).to_string());
        assert_eq!(shown, ["0.85", "1.50", "12.3", "123", "10000"]);
    }
}
