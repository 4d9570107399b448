//! What was measured, and what may be compared with what.

use std::collections::BTreeMap;

use serde_json::Value;

/// How a row was run; ratios are taken between times of one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// One task on one thread.
    OneTask,
    /// One task on a runtime of two workers.
    TwoWorkers,
    /// Two tasks at once, sharing one policy.
    TwoTasks,
}

impl Way {
    /// As the measuring program writes it.
    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::OneTask => "one_task",
            Self::TwoWorkers => "two_workers",
            Self::TwoTasks => "two_tasks",
        }
    }
}

/// Nanoseconds per call by round, in each way.
pub(super) type Rounds = BTreeMap<String, Vec<f64>>;

/// Everything that a run has measured, by the names of the rows. A part that was not run is empty.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures {
    /// The rows in their order.
    pub(super) names: Vec<String>,
    /// Times of each row.
    pub(super) times: BTreeMap<String, Rounds>,
    /// Nanoseconds of a loopback round trip, by round.
    pub(super) loopback: Vec<f64>,
    /// Share of cells that stayed disturbed by other programs.
    pub(super) disturbed: f64,
    /// Instructions per call.
    pub(super) instructions: BTreeMap<String, f64>,
    /// Allocations and allocated bytes per call.
    pub(super) allocations: BTreeMap<String, (f64, f64)>,
    /// Bytes that an object occupies, heap included.
    pub(super) sizes: BTreeMap<String, f64>,
}

/// The middle of several values and the range that holds most of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    /// A tenth of the values is below.
    pub(super) low: f64,
    /// The median.
    pub(super) middle: f64,
    /// A tenth of the values is above.
    pub(super) high: f64,
}

impl Spread {
    /// The spread of `values`; `None` when there are none or one of them is no number.
    #[must_use]
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| value.is_nan()) {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
        Some(Self { low: at(0.1), middle: at(0.5), high: at(0.9) })
    }
}

impl Figures {
    /// Takes in what `policies time` printed.
    ///
    /// # Errors
    /// When it is not what that program prints.
    pub(super) fn add_times(&mut self, value: &Value) -> Result<(), String> {
        for case in array(value, "cases")? {
            let name = text(case, "name")?;
            let mut rounds = Rounds::new();
            for way in [Way::OneTask, Way::TwoWorkers, Way::TwoTasks] {
                rounds.insert(way.key().to_owned(), numbers(case, way.key())?);
            }
            self.add_name(&name);
            self.times.insert(name, rounds);
        }
        self.loopback = numbers(value, "loopback")?;
        self.disturbed = number(value, "disturbed")?;
        Ok(())
    }

    /// Takes in what `allocations` printed.
    ///
    /// # Errors
    /// When it is not what that program prints.
    pub(super) fn add_allocations(&mut self, value: &Value) -> Result<(), String> {
        for case in array(value, "cases")? {
            let name = text(case, "name")?;
            self.add_name(&name);
            let count = (number(case, "allocations")?, number(case, "bytes")?);
            self.allocations.insert(name, count);
        }
        for size in array(value, "sizes")? {
            self.sizes.insert(text(size, "name")?, number(size, "bytes")?);
        }
        Ok(())
    }

    /// Takes in the instructions of one row.
    pub(super) fn add_instructions(&mut self, name: &str, per_call: f64) {
        self.add_name(name);
        self.instructions.insert(name.to_owned(), per_call);
    }

    /// Nanoseconds per call of a row.
    #[must_use]
    pub(super) fn nanos(&self, name: &str, way: Way) -> Option<Spread> {
        Spread::of(self.rounds(name, way)?.to_vec())
    }

    /// How many times as long the first takes as the second, within rounds.
    #[must_use]
    pub(super) fn ratio(&self, of: (&str, Way), to: (&str, Way)) -> Option<Spread> {
        ratio(self.rounds(of.0, of.1)?, self.rounds(to.0, to.1)?)
    }

    /// What share of a loopback round trip a row takes, within rounds.
    #[must_use]
    pub(super) fn share_of_loopback(&self, name: &str) -> Option<Spread> {
        ratio(self.rounds(name, Way::OneTask)?, &self.loopback)
    }

    fn rounds(&self, name: &str, way: Way) -> Option<&[f64]> {
        self.times.get(name)?.get(way.key()).map(Vec::as_slice)
    }

    fn add_name(&mut self, name: &str) {
        if !self.names.iter().any(|known| known == name) {
            self.names.push(name.to_owned());
        }
    }
}

fn ratio(of: &[f64], to: &[f64]) -> Option<Spread> {
    Spread::of(of.iter().zip(to).map(|(of, to)| of / to).collect())
}

fn array<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    value[key].as_array().ok_or_else(|| format!("read `{key}` of a measurement: no list"))
}

fn text(value: &Value, key: &str) -> Result<String, String> {
    let text = value[key].as_str().map(str::to_owned);
    text.ok_or_else(|| format!("read `{key}` of a measurement: no text"))
}

fn number(value: &Value, key: &str) -> Result<f64, String> {
    value[key].as_f64().ok_or_else(|| format!("read `{key}` of a measurement: no number"))
}

fn numbers(value: &Value, key: &str) -> Result<Vec<f64>, String> {
    // What is no number in JSON (a task that panicked) stays none, and spoils what it is part of.
    Ok(array(value, key)?.iter().map(|value| value.as_f64().unwrap_or(f64::NAN)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn figures() -> Figures {
        let mut figures = Figures::default();
        let case = |name, nanos: [f64; 3]| json!({"name": name, "one_task": nanos, "two_workers": nanos, "two_tasks": nanos.map(|n| n * 2.0)});
        let value = json!({
            "cases": [case("a", [10.0, 20.0, 30.0]), case("b", [5.0, 5.0, 20.0])],
            "loopback": [1_000.0, 1_000.0, 1_000.0],
            "disturbed": 0.0,
        });
        figures.add_times(&value).expect("a measurement");
        figures
    }

    #[test]
    fn ratios_are_taken_inside_a_round() {
        let figures = figures();
        // 2, 4 and 1.5 times; the ratio of the medians would be 4.
        let ratio = figures.ratio(("a", Way::OneTask), ("b", Way::OneTask)).expect("a ratio");
        assert_eq!(ratio.middle, 2.0);
        let both = figures.ratio(("a", Way::TwoTasks), ("a", Way::OneTask)).expect("a ratio");
        assert_eq!((both.low, both.middle, both.high), (2.0, 2.0, 2.0));
        assert_eq!(figures.share_of_loopback("a").expect("a share").middle, 0.02);
        assert_eq!(figures.ratio(("a", Way::OneTask), ("c", Way::OneTask)), None);
    }

    #[test]
    fn what_is_no_number_compares_with_nothing() {
        assert_eq!(Spread::of(vec![1.0, f64::NAN]), None);
        assert_eq!(Spread::of(Vec::new()), None);
        assert!(Figures::default().add_times(&json!({"cases": [{"name": "a"}]})).is_err());
        assert!(Figures::default().add_allocations(&json!({"cases": [{}], "sizes": []})).is_err());
    }
}
