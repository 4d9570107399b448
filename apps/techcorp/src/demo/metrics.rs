//! Reads the few metrics that the demo shows, from the text that `/metrics` answers.

use std::collections::BTreeMap;

/// A breaker, by who calls whom, with its state: 0 closed, 1 half-open, 2 open.
pub type Breakers = BTreeMap<(String, String), u8>;

/// All samples of the metric `name`, as (labels, value).
#[must_use]
pub fn samples(text: &str, name: &str) -> Vec<(BTreeMap<String, String>, f64)> {
    text.lines().filter_map(|line| sample(line.strip_prefix(name)?)).collect()
}

/// `{a="b",c="d"} 1` or ` 1`; anything else belongs to a metric with a longer name.
fn sample(rest: &str) -> Option<(BTreeMap<String, String>, f64)> {
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => rest.rsplit_once("} ")?,
        None => ("", rest.strip_prefix(' ')?),
    };
    let mut pairs = BTreeMap::new();
    for pair in labels.split("\",").filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once("=\"")?;
        pairs.insert(key.to_owned(), value.trim_end_matches('"').to_owned());
    }
    Some((pairs, value.trim().parse().ok()?))
}

/// The sum of a counter over all its labels.
#[must_use]
pub fn total(text: &str, name: &str) -> u64 {
    samples(text, name).iter().map(|(_, value)| *value as u64).sum()
}

/// A counter by (service, dependency).
#[must_use]
pub fn by_dependency(text: &str, name: &str) -> BTreeMap<(String, String), u64> {
    let mut counts = BTreeMap::new();
    for (mut labels, value) in samples(text, name) {
        if let (Some(service), Some(to)) = (labels.remove("service"), labels.remove("dependency")) {
            *counts.entry((service, to)).or_default() += value as u64;
        }
    }
    counts
}

/// The state of every breaker.
#[must_use]
pub fn breakers(text: &str) -> Breakers {
    let states = by_dependency(text, "circuit_breaker_state");
    states.into_iter().map(|(key, state)| (key, u8::try_from(state).unwrap_or(2))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP circuit_breaker_state 0 closed\n\
        circuit_breaker_state{service=\"orders\",dependency=\"catalog\"} 2\n\
        circuit_breaker_state{service=\"bff\",dependency=\"catalog\"} 0\n\
        mamparo_attempts_total{service=\"bff\",outcome=\"ok\"} 7\n\
        mamparo_attempts_total{service=\"bff\",outcome=\"failed\"} 2\n\
        mamparo_attempts_total_more 9\n";

    #[test]
    fn samples_are_read_with_their_labels() {
        let states = breakers(TEXT);
        assert_eq!(states[&("orders".to_owned(), "catalog".to_owned())], 2);
        assert_eq!(states.len(), 2);
        assert_eq!(total(TEXT, "mamparo_attempts_total"), 9);
        assert_eq!(total(TEXT, "nothing"), 0);
    }
}
