//! Checks beside the books: what the shoppers saw, and whether the fault was felt at all.

use std::time::Duration;

use super::books::Books;
use super::scenario::{Fault, Scenario};
use super::script::Told;
use super::traffic::{Did, Sample, Seen, Shared, with};
use super::verdict::Verdict;
use super::{DemoError, metrics};
use crate::db::query;

/// A refusal must come well within what its caller waits.
const REFUSAL: Duration = Duration::from_secs(3);

/// What the shoppers themselves can tell: refusals are honest and prompt, keys are kept.
pub(super) fn of_shoppers(verdict: &mut Verdict, seen: &Seen) {
    let refusals = || seen.samples.iter().filter(|sample| sample.status == Some(503));
    let vague = refusals().filter(|sample| !sample.honest).count() as u64;
    verdict.add("every refusal is a problem with Retry-After", vague);
    let slow = refusals().filter(|sample| sample.did == Did::Order && sample.took >= REFUSAL);
    verdict.add("every refusal of an order comes in under 3 s", slow.count() as u64);
    verdict.add("one idempotency key is one order", seen.split_keys);
    let bugs = seen.samples.iter().filter(|sample| sample.status == Some(500)).count() as u64;
    verdict.add("nobody sees a 500", bugs);
}

/// A scenario that did not happen proves nothing: the fault itself must have been seen.
pub(super) fn fault_was_seen(
    verdict: &mut Verdict,
    scenario: &Scenario,
    seen: &Seen,
    told: Told,
    psp_failed: u64,
) {
    let absent = |seen: bool| u64::from(!seen);
    let refused = seen.samples.iter().any(|sample| sample.status == Some(503));
    let partial = seen.samples.iter().any(|sample| sample.partial);
    match scenario.fault {
        Fault::None => {}
        Fault::PspUnavailable | Fault::PspLate(_) => {
            verdict.add("payments got no answer from the PSP", absent(psp_failed > 0));
        }
        Fault::CatalogDown | Fault::CatalogSlow(_) => {
            verdict.add("orders were refused while the catalog was away", absent(refused));
            verdict.add("lists were partial while the catalog was away", absent(partial));
            let failed = |s: &&Sample| s.did == Did::List && s.status != Some(200);
            let lists = seen.samples.iter().filter(failed).count() as u64;
            verdict.add("lists were answered all the same", lists);
        }
        Fault::Poison => verdict.add("poison was sent", absent(told.poisoned > 0)),
        Fault::PaymentsKilled => {
            let name = "payments died with a charge in flight";
            verdict.add(name, absent(told.killed_mid_charge > 0));
        }
        Fault::PaymentsGone => {
            // Others are cancelled on any day: goods run out, cards are declined.
            let given_up = verdict.facts.timed_out > 0;
            verdict.add("the watchdog cancelled orders", absent(given_up));
        }
        Fault::BrokerDown => {
            let name = "events waited in outboxes while the broker was away";
            verdict.add(name, absent(told.waiting > 0));
        }
        Fault::DatabaseRestart => verdict.add("the database was restarted", absent(told.cut)),
    }
}

/// Orders that were answered with 201 and are in no book.
///
/// # Errors
/// What the database said.
pub(super) async fn lost_orders(books: &Books, seen: &Shared) -> Result<u64, DemoError> {
    let mut lost = with(seen, |seen| seen.answered.clone());
    let all: Vec<(String,)> = books.rows(query("SELECT id FROM orders.orders")).await?;
    for (id,) in &all {
        lost.remove(id);
    }
    Ok(lost.len() as u64)
}

/// Attempts of calling `dependency` that did not succeed.
pub(super) fn failed_attempts(text: &str, dependency: &str) -> u64 {
    let failed = metrics::samples(text, "mamparo_attempts_total").into_iter().filter(|(of, _)| {
        let is = |label, value| of.get(label).is_some_and(|found| found == value);
        is("dependency", dependency) && !is("outcome", "success")
    });
    failed.map(|(_, times)| times as u64).sum()
}

#[cfg(test)]
mod tests {
    use mamparo::core::time::Moment;

    use super::*;
    use crate::demo::verdict::Facts;

    #[test]
    fn a_fault_that_nobody_felt_is_not_seen() {
        let of = |dependency: &str, outcome: &str| {
            format!(
                "mamparo_attempts_total{{service=\"payments\",dependency=\"{dependency}\",outcome=\"{outcome}\"}} 3\n"
            )
        };
        let calm = of("psp", "success") + &of("catalog", "timeout");
        assert_eq!(failed_attempts(&calm, "psp"), 0);
        assert_eq!(failed_attempts(&(calm + &of("psp", "timeout")), "psp"), 3);
    }

    /// What a shopper of a calm day saw, bent by `bend`; the checks that fail then.
    fn failing(bend: impl FnOnce(&mut Seen)) -> Vec<&'static str> {
        let mut seen = Seen {
            samples: vec![sample(Did::Order, 201), sample(Did::List, 200)],
            ..Seen::default()
        };
        bend(&mut seen);
        let mut verdict = Verdict { facts: Facts::default(), checks: Vec::new() };
        of_shoppers(&mut verdict, &seen);
        verdict.checks.iter().filter(|check| !check.ok).map(|check| check.name).collect()
    }

    fn sample(did: Did, status: u16) -> Sample {
        let (at, took) = (Moment::ORIGIN, Duration::from_millis(9));
        let (status, honest) = (Some(status), status == 503);
        Sample { did, at, took, status, honest, partial: false }
    }

    #[test]
    fn each_check_of_the_shoppers_can_fail() {
        assert!(failing(|_| {}).is_empty());
        assert!(failing(|seen| seen.samples.push(sample(Did::Order, 503))).is_empty());
        let vague = Sample { honest: false, ..sample(Did::Order, 503) };
        let slow = Sample { took: REFUSAL, ..sample(Did::Order, 503) };
        for (bend, name) in [
            (vague, "every refusal is a problem with Retry-After"),
            (slow, "every refusal of an order comes in under 3 s"),
            (sample(Did::Order, 500), "nobody sees a 500"),
        ] {
            assert_eq!(failing(|seen| seen.samples.push(bend)), [name]);
        }
        assert_eq!(failing(|seen| seen.split_keys = 1), ["one idempotency key is one order"]);
    }

    #[test]
    fn a_scenario_that_did_not_happen_fails() {
        let felt = |name: &str, seen: &Seen, told: Told, psp_failed: u64, timed_out: u64| {
            // Somebody's card is always declined.
            let facts = Facts { cancelled: timed_out + 1, timed_out, ..Facts::default() };
            let mut verdict = Verdict { facts, checks: Vec::new() };
            fault_was_seen(&mut verdict, Scenario::named(name).unwrap(), seen, told, psp_failed);
            verdict.holds()
        };
        let (quiet, told) = (Seen::default(), Told::default());
        let partial = Sample { partial: true, ..sample(Did::List, 200) };
        let away = Seen { samples: vec![sample(Did::Order, 503), partial], ..Seen::default() };
        assert!(felt("calm", &quiet, told, 0, 0));
        for name in ["catalog-down", "catalog-slow"] {
            assert!(!felt(name, &quiet, told, 0, 0), "{name}");
            assert!(felt(name, &away, told, 0, 0), "{name}");
        }
        for name in ["payments-503", "psp-slow"] {
            assert!(!felt(name, &quiet, told, 0, 0), "{name}");
            assert!(felt(name, &quiet, told, 1, 0), "{name}");
        }
        assert!(!felt("poison", &quiet, told, 0, 0));
        assert!(felt("poison", &quiet, Told { poisoned: 1, ..told }, 0, 0));
        assert!(!felt("crash", &quiet, told, 0, 0));
        assert!(felt("crash", &quiet, Told { killed_mid_charge: 1, ..told }, 0, 0));
        assert!(!felt("broker-down", &quiet, told, 0, 0));
        assert!(felt("broker-down", &quiet, Told { waiting: 1, ..told }, 0, 0));
        assert!(!felt("database-restart", &quiet, told, 0, 0));
        assert!(felt("database-restart", &quiet, Told { cut: true, ..told }, 0, 0));
        assert!(!felt("payments-gone", &quiet, told, 0, 0));
        assert!(felt("payments-gone", &quiet, told, 0, 1));
    }
}
