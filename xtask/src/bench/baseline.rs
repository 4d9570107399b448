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
# its update, and look at what moved.
";

/// What the file holds: instructions per call by row.
pub(super) type Baseline = BTreeMap<String, f64>;

/// Reads the text of the file.
///
/// # Errors
/// When it is not what [`write`] makes.
pub(super) fn parse(text: &str) -> Result<Baseline, String> {
    let table: toml::Table = text.parse().map_err(|error| format!("parse {FILE}: {error}"))?;
    let rows = table.get("instructions").and_then(|rows| rows.as_table());
    let rows = rows.ok_or_else(|| format!("parse {FILE}: it has no [instructions]"))?;
    let number = |value: &toml::Value| value.as_float().or(value.as_integer().map(|n| n as f64));
    rows.iter()
        .map(|(name, value)| {
            let number = number(value).ok_or_else(|| format!("parse {FILE}: {name} is no number"));
            Ok((name.clone(), number?))
        })
        .collect()
}

/// The text of the file for `figures`.
#[must_use]
pub(super) fn write(figures: &Figures) -> String {
    let mut text = format!("{HEAD}\n[instructions]\n");
    for (name, count) in figures.instructions.iter().filter(|(name, _)| is_kept(name)) {
        // Whole instructions: what is behind the point comes from rare turns of a window.
        let line = writeln!(text, "\"{name}\" = {count:.0}");
        line.ok();
    }
    text
}

fn is_kept(name: &str) -> bool {
    name.starts_with(OURS) || name == "base.bare"
}

/// What `figures` do wrong, one line each; empty when the gate is open.
#[must_use]
pub(super) fn findings(baseline: &Baseline, figures: &Figures) -> Vec<String> {
    let mut found = Vec::new();
    for (name, count) in figures.instructions.iter().filter(|(name, _)| is_kept(name)) {
        match baseline.get(name) {
            None => found.push(format!("{name}: {count:.0} instructions, not in {FILE}")),
            Some(kept) if *count > kept * STEP + 0.5 => found.push(format!(
                "{name}: {count:.0} instructions, {kept:.0} in {FILE} ({:+.1} %)",
                (count / kept - 1.0) * 100.0
            )),
            Some(_) => {}
        }
    }
    for name in baseline.keys().filter(|name| !figures.instructions.contains_key(*name)) {
        found.push(format!("{name}: in {FILE} and no longer measured"));
    }
    for outcome in judge(GOALS, figures).iter().filter(|outcome| outcome.goal.is_count()) {
        if !outcome.met() {
            found.push(missed(outcome));
        }
    }
    found
}

fn missed(outcome: &Outcome) -> String {
    let goal = &outcome.goal;
    let row = outcome.row.as_deref().unwrap_or("no row");
    match outcome.value {
        Some(value) => {
            format!(
                "goal {} ({}): {value:.2} in {row}, must be {}",
                goal.number, goal.about, goal.must
            )
        }
        None => format!("goal {} ({}): {row} was not measured", goal.number, goal.about),
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
    baseline.iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(count: f64) -> Figures {
        let mut figures = Figures::default();
        figures.add_instructions("mamparo.breaker.failures", count);
        figures.add_instructions("tr.stack", 4_000.0);
        figures
    }

    /// Findings about rows, without those about goals of rows that are not there.
    fn rows(baseline: &Baseline, figures: &Figures) -> Vec<String> {
        let found = findings(baseline, figures).into_iter();
        found.filter(|line| !line.starts_with("goal")).collect()
    }

    #[test]
    fn a_step_of_three_percent_passes_and_more_does_not() {
        let baseline = parse(&write(&figures(100.0))).expect("what was written");
        assert_eq!(baseline.len(), 1, "peers are not kept: {baseline:?}");
        assert_eq!(rows(&baseline, &figures(103.0)), [""; 0]);
        let found = rows(&baseline, &figures(104.0));
        assert!(found[0].contains("104 instructions, 100 in") && found[0].contains("+4.0 %"));
        assert_eq!(slack(&baseline, &figures(99.0)), [""; 0]);
        assert_eq!(slack(&baseline, &figures(80.0)).len(), 1);
    }

    #[test]
    fn new_and_lost_rows_are_found_and_bars_hold_whatever_was_blessed() {
        let baseline = parse(&write(&figures(100.0))).expect("what was written");
        assert!(rows(&Baseline::new(), &figures(1.0))[0].contains("not in"));
        assert!(rows(&baseline, &Figures::default())[0].contains("no longer measured"));
        let dear = figures(900.0);
        let blessed = parse(&write(&dear)).expect("what was written");
        let found = findings(&blessed, &dear);
        assert!(found.iter().any(|line| line.contains("must be ≤ 200")), "{found:?}");
        assert!(parse("[other]").is_err() && parse("instructions = 3").is_err());
    }
}
