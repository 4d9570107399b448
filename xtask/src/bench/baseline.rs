//! The gate: counts against a committed file, so that a call gets dearer only on purpose.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::figures::Figures;
use super::goals::{GOALS, Outcome, judge};

/// Where the counts are kept.
pub(super) const FILE: &str = "bench/baseline.toml";
/// How much dearer a row may get without a new baseline: what another build of the same compiler, or
/// another library's patch, makes of it.
const STEP: f64 = 1.03;
/// Rows that the gate keeps: ours. What peers cost is theirs.
const OURS: &str = "mamparo.";

const HEAD: &str = "\
# What a call costs, counted by callgrind: instructions per call, the inner call and the loop included
# (`base.bare`). `cargo xtask bench gate` fails when a row is more than 3 % above; when that is meant,
# `cargo xtask bench gate --bless` writes this file anew. Counts depend on the compiler: bless after
# its update, and look at what moved. [missed] is written by hand: goals of docs/benchmarks.md that the
# counts miss, and why.
";

/// What the file holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Baseline {
    /// Instructions per call by row.
    instructions: BTreeMap<String, f64>,
    /// Goals that are known to be missed, each with its reason. Written by hand: a goal is given up by
    /// somebody who says why, never by a tool.
    missed: BTreeMap<String, String>,
}

/// Reads the text of the file.
///
/// # Errors
/// When it is not what [`Baseline::text`] makes.
pub(super) fn parse(text: &str) -> Result<Baseline, String> {
    let table: toml::Table = text.parse().map_err(|error| format!("parse {FILE}: {error}"))?;
    let rows = |key: &str| table.get(key).and_then(|rows| rows.as_table()).into_iter().flatten();
    let mut baseline = Baseline::default();
    for (name, value) in rows("instructions") {
        let number = value.as_float().or(value.as_integer().map(|number| number as f64));
        let number = number.ok_or_else(|| format!("parse {FILE}: {name} is no number"))?;
        baseline.instructions.insert(name.clone(), number);
    }
    for (goal, reason) in rows("missed") {
        let reason = reason.as_str().filter(|reason| !reason.is_empty());
        let reason =
            reason.ok_or_else(|| format!("parse {FILE}: {goal} is missed for no reason"))?;
        baseline.missed.insert(goal.clone(), reason.to_owned());
    }
    Ok(baseline)
}

impl Baseline {
    /// The same reasons with the counts of `figures`.
    pub(super) fn renewed(self, figures: &Figures) -> Self {
        let kept = figures.instructions.iter().filter(|(name, _)| is_kept(name));
        // Whole instructions: what is behind the point comes from rare turns of a window.
        let instructions = kept.map(|(name, count)| (name.clone(), count.round())).collect();
        Self { instructions, ..self }
    }

    /// The text of the file.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{HEAD}\n[missed]\n");
        for (goal, reason) in &self.missed {
            // A String takes whatever is written to it.
            writeln!(text, "\"{goal}\" = \"{reason}\"").ok();
        }
        text.push_str("\n[instructions]\n");
        for (name, count) in &self.instructions {
            writeln!(text, "\"{name}\" = {count:.0}").ok();
        }
        text
    }
}

fn is_kept(name: &str) -> bool {
    name.starts_with(OURS) || name == "base.bare"
}

/// What `figures` do wrong, one line each; empty when the gate is open.
pub(super) fn findings(baseline: &Baseline, figures: &Figures) -> Vec<String> {
    let mut found = dearer(&baseline.instructions, figures);
    for outcome in judge(GOALS, figures).iter().filter(|outcome| outcome.goal.is_count()) {
        let key = key(outcome);
        match (outcome.met(), baseline.missed.get(&key)) {
            (false, None) => found.push(missed(outcome)),
            (true, Some(_)) => {
                found.push(format!("goal {key} is met by now: take it from [missed] of {FILE}"));
            }
            (true, None) | (false, Some(_)) => {}
        }
    }
    found
}

fn dearer(kept: &BTreeMap<String, f64>, figures: &Figures) -> Vec<String> {
    let mut found = Vec::new();
    for (name, count) in figures.instructions.iter().filter(|(name, _)| is_kept(name)) {
        match kept.get(name) {
            None => found.push(format!("{name}: {count:.0} instructions, not in {FILE}")),
            Some(kept) if *count > kept * STEP + 0.5 => found.push(format!(
                "{name}: {count:.0} instructions, {kept:.0} in {FILE} ({:+.1} %)",
                (count / kept - 1.0) * 100.0
            )),
            Some(_) => {}
        }
    }
    for name in kept.keys().filter(|name| !figures.instructions.contains_key(*name)) {
        found.push(format!("{name}: in {FILE} and no longer measured"));
    }
    found
}

/// How the file names a goal.
fn key(outcome: &Outcome) -> String {
    format!("{} {}", outcome.goal.number, outcome.goal.about)
}

fn missed(outcome: &Outcome) -> String {
    let (key, must) = (key(outcome), outcome.goal.must);
    let row = outcome.row.as_deref().unwrap_or("no row");
    match outcome.value {
        Some(value) => format!("goal {key}: {value:.2} in {row}, must be {must}"),
        None => format!("goal {key}: {row} was not measured"),
    }
}

/// Rows that got so much cheaper that the file should say so.
#[must_use]
pub(super) fn slack(baseline: &Baseline, figures: &Figures) -> Vec<String> {
    let count = |name: &str| figures.instructions.get(name).copied();
    let row = |(name, kept): (&String, &f64)| {
        let count = count(name)?;
        (count * STEP + 0.5 < *kept).then(|| format!("{name}: {count:.0}, {kept:.0} in {FILE}"))
    };
    baseline.instructions.iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BREAKER: &str = "mamparo.breaker.failures";

    fn figures(count: f64) -> Figures {
        let mut figures = Figures::default();
        figures.add_instructions(BREAKER, count);
        figures.add_instructions("tr.stack", 4_000.0);
        figures
    }

    fn blessed(count: f64) -> Baseline {
        let baseline = Baseline::default().renewed(&figures(count));
        let read = parse(&baseline.text()).expect("what was written");
        assert_eq!(read, baseline);
        read
    }

    #[test]
    fn a_step_of_three_percent_passes_and_more_does_not() {
        let Baseline { instructions: kept, .. } = blessed(100.0);
        assert_eq!(kept.len(), 1, "peers are not kept: {kept:?}");
        assert_eq!(dearer(&kept, &figures(103.0)), [""; 0]);
        let found = dearer(&kept, &figures(104.0));
        assert!(found[0].contains("104 instructions, 100 in") && found[0].contains("+4.0 %"));
        assert_eq!(slack(&blessed(100.0), &figures(99.0)), [""; 0]);
        assert_eq!(slack(&blessed(100.0), &figures(80.0)).len(), 1);
    }

    #[test]
    fn new_and_lost_rows_are_found() {
        assert!(dearer(&BTreeMap::new(), &figures(1.0))[0].contains("not in"));
        let kept = blessed(100.0).instructions;
        assert!(dearer(&kept, &Figures::default())[0].contains("no longer measured"));
    }

    #[test]
    fn a_goal_is_missed_only_with_a_reason_and_only_as_long_as_it_is() {
        let goal = "6 breaker by default: instructions";
        let about = |baseline: &Baseline, count| {
            let found = findings(baseline, &figures(count)).into_iter();
            found.filter(|line| line.contains(goal)).collect::<Vec<_>>()
        };
        let strict = blessed(900.0);
        assert!(
            about(&strict, 900.0)[0].contains("900.00 in mamparo.breaker.failures, must be ≤ 200")
        );
        let text = format!("[missed]\n\"{goal}\" = \"the clock\"\n");
        let given_up = parse(&text).expect("a reason").renewed(&figures(900.0));
        assert_eq!(about(&given_up, 900.0), [""; 0]);
        assert!(about(&given_up, 150.0)[0].contains("is met by now"));
        assert!(given_up.text().contains("the clock"), "blessing keeps what people wrote");
        assert!(parse(&text.replace("the clock", "")).is_err());
        assert!(parse("instructions = { a = \"b\" }").is_err());
    }
}
