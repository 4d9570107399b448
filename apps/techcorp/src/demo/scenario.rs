//! The scenarios of the demo: what goes wrong, when, and which clocks are shortened for it.

use std::time::Duration;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The catalog is stopped, and started again.
    CatalogDown,
    /// The catalog takes this long for each answer.
    CatalogSlow(Duration),
    /// The PSP answers 503.
    PspUnavailable,
    /// The PSP charges at once and answers after this long.
    PspLate(Duration),
    /// Malformed events arrive in every consumer's queue.
    Poison,
    /// Payments are killed in the middle of a charge, and started again.
    PaymentsKilled,
    /// Payments are stopped for longer than the watchdog waits.
    PaymentsGone,
    /// The broker is stopped, and started again.
    BrokerDown,
    /// The database server is restarted under everybody.
    DatabaseRestart,
}

/// A scenario. The fault begins and ends at shares of the run's length.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// What it is called on the command line.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// What goes wrong.
    pub fault: Fault,
    /// When it begins, as a share of the run.
    pub begins: f64,
    /// When it ends, as a share of the run.
    pub ends: f64,
    /// Limits of this scenario that differ from the demo's: (service, path of the
    /// key with `/` between its parts, value).
    pub limits: &'static [(&'static str, &'static str, &'static str)],
}

/// Clocks that every demo shortens, so that a minute shows what a shop sees in an hour. What is
/// not here is as in the services' files.
pub const SHORTENED: &[(&str, &str, &str)] = &[
    ("orders", "dependencies/catalog/breaker/open_for", "2s"),
    ("orders", "dependencies/customers/breaker/open_for", "2s"),
    ("orders", "queues/orders.saga/retry_delay", "1s"),
    ("orders", "sagas/order/watch_every", "1s"),
    ("bff", "dependencies/orders/breaker/open_for", "2s"),
    ("bff", "dependencies/catalog/breaker/open_for", "2s"),
    ("gateway", "dependencies/orders/breaker/open_for", "2s"),
    ("gateway", "dependencies/bff/breaker/open_for", "2s"),
    ("gateway", "dependencies/catalog/breaker/open_for", "2s"),
    ("inventory", "queues/inventory.orders/retry_delay", "1s"),
    ("inventory", "dependencies/orders/breaker/open_for", "2s"),
    ("inventory", "sagas/order/watch_every", "1s"),
    ("payments", "queues/payments.orders/retry_delay", "1s"),
    ("payments", "dependencies/psp/attempt_timeout", "1s"),
    ("payments", "dependencies/psp/retry/base", "100ms"),
    ("payments", "dependencies/psp/retry/cap", "500ms"),
    ("payments", "dependencies/psp/breaker/open_for", "2s"),
    ("notifications", "queues/notifications.orders/retry_delay", "1s"),
    ("notifications", "dependencies/mail/breaker/open_for", "2s"),
];

/// All scenarios, the calm one first.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "calm",
        about: "nothing goes wrong",
        fault: Fault::None,
        begins: 0.3,
        ends: 0.6,
        limits: &[],
    },
    Scenario {
        name: "catalog-down",
        about: "the catalog is stopped: orders are refused with 503 and Retry-After, lists lose names",
        fault: Fault::CatalogDown,
        begins: 0.3,
        ends: 0.6,
        limits: &[],
    },
    Scenario {
        name: "catalog-slow",
        about: "the catalog takes 2 s for each answer: attempts time out, the circuit opens",
        fault: Fault::CatalogSlow(Duration::from_secs(2)),
        begins: 0.3,
        ends: 0.6,
        limits: &[],
    },
    Scenario {
        name: "payments-503",
        about: "the PSP answers 503: charges wait in the queue, none is lost",
        fault: Fault::PspUnavailable,
        begins: 0.3,
        ends: 0.6,
        limits: &[],
    },
    Scenario {
        name: "psp-slow",
        about: "the PSP charges and then lets the answer time out: nobody is charged twice",
        fault: Fault::PspLate(Duration::from_secs(3)),
        begins: 0.3,
        ends: 0.6,
        limits: &[],
    },
    Scenario {
        name: "poison",
        about: "malformed events arrive: each goes to its own queue's dead letters, at once",
        fault: Fault::Poison,
        begins: 0.3,
        ends: 0.6,
        limits: &[],
    },
    Scenario {
        name: "crash",
        about: "payments are killed in the middle of a charge and started again",
        fault: Fault::PaymentsKilled,
        begins: 0.3,
        ends: 0.4,
        limits: &[],
    },
    Scenario {
        name: "payments-gone",
        about: "payments are away for longer than the watchdog waits: orders are cancelled, money goes back",
        fault: Fault::PaymentsGone,
        // 5 s even in the shortest run, so that the watchdog's 3 s pass.
        begins: 0.2,
        ends: 0.7,
        limits: &[
            ("orders", "sagas/order/deadlines/STOCK_RESERVED", "3s"),
            ("orders", "sagas/order/deadlines/PENDING", "3s"),
        ],
    },
    Scenario {
        name: "broker-down",
        about: "the broker is away: orders are taken all the same, their events wait in outboxes",
        fault: Fault::BrokerDown,
        // 20 s of a run of 40 s.
        begins: 0.2,
        ends: 0.7,
        limits: &[],
    },
    Scenario {
        name: "database-restart",
        about: "the database is restarted: who is cut off is told when to come back, or goes on later",
        fault: Fault::DatabaseRestart,
        begins: 0.3,
        ends: 0.6,
        limits: &[],
    },
];

impl Scenario {
    /// The scenario with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_faults_begin_before_they_end() {
        let names: std::collections::BTreeSet<_> = SCENARIOS.iter().map(|s| s.name).collect();
        assert_eq!(names.len(), SCENARIOS.len());
        for scenario in SCENARIOS {
            assert!(0.0 < scenario.begins && scenario.begins < scenario.ends, "{}", scenario.name);
            assert!(scenario.ends < 1.0, "{}: recovery has to be seen", scenario.name);
        }
    }
}
