//! What the measuring program said.

use serde_json::Value;

/// A row: one number a round.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    /// Its name: what, how, where.
    pub(super) name: String,
    /// Its unit: `1/s`, `ms`, `s`, `%`, `MB`.
    pub(super) unit: String,
    /// The numbers in the order of the rounds.
    pub(super) rounds: Vec<f64>,
}

/// Everything that a run has measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Measured {
    /// The rows, by name.
    pub(super) rows: Vec<Row>,
    /// What a commit was worth, as the database server says it.
    pub(super) durability: String,
}

/// The median of some numbers, and all of their range: with few rounds, each of them counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Range {
    /// The least.
    pub(super) least: f64,
    /// The median; of two in the middle, their mean.
    pub(super) middle: f64,
    /// The most.
    pub(super) most: f64,
}

impl Range {
    /// The range of `values`; `None` when there are none or one of them is no number.
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        if values.iter().any(|value| value.is_nan()) {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let below = if values.len().is_multiple_of(2) { values[half - 1] } else { values[half] };
        Some(Self { least, middle: f64::midpoint(below, values[half]), most })
    }
}

impl Measured {
    /// Reads what the program printed.
    ///
    /// # Errors
    /// When it is not what that program prints.
    pub(super) fn read(value: &Value) -> Result<Self, String> {
        let wrong = |what: &str| format!("read `{what}` of a measurement");
        let rows = value["rows"].as_array().ok_or_else(|| wrong("rows"))?;
        let row = |row: &Value| {
            let text = |key: &str| row[key].as_str().map(str::to_owned).ok_or_else(|| wrong(key));
            let rounds = row["rounds"].as_array().ok_or_else(|| wrong("rounds"))?;
            // What is no number in JSON stays none, and spoils what it is part of.
            let rounds = rounds.iter().map(|value| value.as_f64().unwrap_or(f64::NAN)).collect();
            Ok(Row { name: text("name")?, unit: text("unit")?, rounds })
        };
        let durability = value["durability"].as_str().ok_or_else(|| wrong("durability"))?;
        let rows = rows.iter().map(row).collect::<Result<_, String>>()?;
        Ok(Self { rows, durability: durability.to_owned() })
    }

    /// The range of a row.
    pub(super) fn range(&self, name: &str) -> Option<Range> {
        Range::of(self.rounds(name)?.to_vec())
    }

    /// How many times the second the first is, taken inside each round.
    pub(super) fn ratio(&self, of: &str, to: &str) -> Option<Range> {
        let pairs = self.rounds(of)?.iter().zip(self.rounds(to)?);
        Range::of(pairs.map(|(of, to)| of / to).collect())
    }

    fn rounds(&self, name: &str) -> Option<&[f64]> {
        self.rows.iter().find(|row| row.name == name).map(|row| row.rounds.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ratios_are_taken_inside_a_round() {
        let row = |name, rounds: [f64; 3]| json!({"name": name, "unit": "1/s", "rounds": rounds});
        let rows = [row("a", [10.0, 20.0, 30.0]), row("b", [5.0, 5.0, 20.0])];
        let measured = Measured::read(&json!({"rows": rows, "durability": "fsync on"}));
        let measured = measured.expect("a measurement");
        // 2, 4 and 1.5 times; the ratio of the medians would be 4.
        let ratio = measured.ratio("a", "b").expect("a ratio");
        assert_eq!(ratio, Range { least: 1.5, middle: 2.0, most: 4.0 });
        assert_eq!(measured.ratio("a", "c"), None);
        assert_eq!(measured.range("b").map(|range| range.middle), Some(5.0));
    }

    #[test]
    fn a_range_has_its_median_and_its_ends() {
        let range = |values: &[f64]| Range::of(values.to_vec());
        assert_eq!(
            range(&[4.0, 1.0, 2.0, 10.0]),
            Some(Range { least: 1.0, middle: 3.0, most: 10.0 })
        );
        assert_eq!(range(&[]), None);
        assert_eq!(range(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn what_is_no_measurement_is_an_error() {
        for wrong in [json!({}), json!({"rows": [{"name": "a"}], "durability": ""})] {
            assert!(Measured::read(&wrong).is_err(), "{wrong}");
        }
        let missing = json!({"rows": []});
        assert!(Measured::read(&missing).is_err_and(|error| error.contains("durability")));
    }
}
