//! What a breaker must do, case by case. Numbers such as C2 are those of the list of reported faults.

use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::sleep;

use super::{Breaker, Subject, Trip};
use crate::calls::{
    Reached, Said, bad, bad_after, caught, dropped_after, good, good_after, hanging, panicking,
};
use crate::verdict::Verdict;

type Judge = fn(&Subject) -> Verdict;

/// More failures than any breaker of the table needs.
const PATIENCE: u32 = 1_100;

pub(super) const CASES: &[(&str, Judge)] = &[
    ("C1: a window of 10 calls slides: 1 000 successes, then 5 to 10 failures open", slides),
    ("C2: a success from before the outage does not close a half-open circuit", late_success),
    ("C2: a failure from before the outage does not open a circuit that has closed", late_failure),
    ("C3: of 100 callers at once, half-open(1) lets one through", one_probe),
    ("C3: of 100 callers at once, half-open(3) lets three through", three_probes),
    ("C4: a dropped probe gives its place back", dropped_probe),
    ("C4: a probe that panics gives its place back", panicking_probe),
    ("C4: a probe that never ends is replaced after a while", hanging_probe),
    ("C7: failures that end while it is open do not prolong it", no_prolonging),
    ("C8: a failed probe opens again at once", failed_probe),
    ("C10: a threshold of 100 % can trip", all_fail),
    ("C20: panics count as failures", panics_count),
    ("a burst of failures within a millisecond opens a time window", burst),
    ("failures older than the time window do not count", old_failures),
    ("values that nobody means: no panic", absurd),
];

/// Failures at once until the circuit refuses; `None` when it does not.
async fn trip(breaker: &dyn Breaker, patience: u32) -> Option<u32> {
    for failures in 0..=patience {
        if breaker.call(bad()).await == Said::Refused {
            return Some(failures);
        }
    }
    None
}

async fn reopens(breaker: &dyn Breaker) -> bool {
    breaker.call(good()).await == Said::Refused
}

fn slides(subject: &Subject) -> Verdict {
    subject.judge(Trip::Calls(10, 0.5), 1, |breaker, _| async move {
        for _ in 0..1_000 {
            breaker.call(good()).await;
        }
        match trip(&*breaker, PATIENCE).await {
            Some(failures) => Verdict::when(failures <= 10, format_args!("{failures} failures")),
            None => Verdict::Fault(format!("not after {PATIENCE} failures")),
        }
    })
}

fn late_success(subject: &Subject) -> Verdict {
    subject.judge(Trip::Soon, 1, |breaker, open| async move {
        let late = breaker.call(good_after(open * 2));
        let outage = async {
            trip(&*breaker, 10).await;
            sleep(open * 3 / 2).await;
            // The real probe hangs; the late success arrives meanwhile.
            let probe = breaker.call(bad_after(open * 3));
            let look = async {
                sleep(open).await;
                let reached = Reached::default();
                join_all((0..5).map(|_| breaker.call(reached.call(Duration::ZERO)))).await;
                reached.count()
            };
            join(probe, look).await.1
        };
        let (_, admitted) = join(late, outage).await;
        Verdict::when(admitted == 0, format_args!("{admitted} of 5 admitted beside the probe"))
    })
}

fn late_failure(subject: &Subject) -> Verdict {
    subject.judge(Trip::Soon, 1, |breaker, open| async move {
        let late = join_all((0..10).map(|_| breaker.call(bad_after(open * 3))));
        let outage = async {
            trip(&*breaker, 10).await;
            sleep(open * 3 / 2).await;
            // As many as it takes to close.
            for _ in 0..10 {
                breaker.call(good()).await;
            }
            sleep(open * 2).await;
            breaker.call(good()).await
        };
        let (_, after) = join(late, outage).await;
        Verdict::when(after == Said::Value, format_args!("{after:?} after 10 late failures"))
    })
}

fn probes(subject: &Subject, allowed: u32) -> Verdict {
    subject.judge(Trip::Soon, allowed, |breaker, open| async move {
        trip(&*breaker, 10).await;
        sleep(open * 3 / 2).await;
        let reached = Reached::default();
        join_all((0..100).map(|_| breaker.call(reached.call(open / 2)))).await;
        let count = reached.count();
        Verdict::when(count == allowed, format_args!("{count} admitted"))
    })
}

fn one_probe(subject: &Subject) -> Verdict {
    probes(subject, 1)
}

fn three_probes(subject: &Subject) -> Verdict {
    probes(subject, 3)
}

/// Does a caller get through, now that the first probe is no more?
async fn next_gets_through(breaker: &dyn Breaker) -> Verdict {
    let next = breaker.call(good()).await;
    Verdict::when(next == Said::Value, format_args!("next caller: {next:?}"))
}

fn dropped_probe(subject: &Subject) -> Verdict {
    subject.judge(Trip::Soon, 1, |breaker, open| async move {
        trip(&*breaker, 10).await;
        sleep(open * 3 / 2).await;
        dropped_after(breaker.call(hanging()), open / 10).await;
        next_gets_through(&*breaker).await
    })
}

fn panicking_probe(subject: &Subject) -> Verdict {
    subject.judge(Trip::Soon, 1, |breaker, open| async move {
        trip(&*breaker, 10).await;
        sleep(open * 3 / 2).await;
        caught(breaker.call(panicking())).await;
        // As a failure it may have opened the circuit again; then the next probe is due later.
        sleep(open * 3 / 2).await;
        next_gets_through(&*breaker).await
    })
}

fn hanging_probe(subject: &Subject) -> Verdict {
    subject.judge(Trip::Soon, 1, |breaker, open| async move {
        trip(&*breaker, 10).await;
        sleep(open * 3 / 2).await;
        let probe = breaker.call(hanging());
        let later = async {
            // Ours is told one second; the others have no such setting, and get a second more.
            for _ in 0..20 {
                sleep(open).await;
                if breaker.call(good()).await == Said::Value {
                    return true;
                }
            }
            false
        };
        let passed = tokio::select! { _ = probe => false, passed = later => passed };
        let seen = if passed { "" } else { "refuses for good" };
        Verdict::when(passed, seen).never_promised()
    })
}

fn no_prolonging(subject: &Subject) -> Verdict {
    subject.judge(Trip::Soon, 1, |breaker, open| async move {
        let late = join_all((0..10).map(|_| breaker.call(bad_after(open / 2))));
        let outage = async {
            trip(&*breaker, 10).await;
            sleep(open * 5 / 4).await;
            breaker.call(good()).await
        };
        let (_, next) = join(late, outage).await;
        Verdict::when(next == Said::Value, format_args!("{next:?} when its time was over"))
    })
}

fn failed_probe(subject: &Subject) -> Verdict {
    subject.judge(Trip::Soon, 1, |breaker, open| async move {
        trip(&*breaker, 10).await;
        sleep(open * 3 / 2).await;
        let probe = breaker.call(bad()).await;
        let reopened = reopens(&*breaker).await;
        Verdict::when(
            probe == Said::Failure && reopened,
            if reopened { "" } else { "stays half-open" },
        )
        .never_promised()
    })
}

fn all_fail(subject: &Subject) -> Verdict {
    subject.judge(Trip::Calls(10, 1.0), 1, |breaker, _| async move {
        match trip(&*breaker, PATIENCE).await {
            Some(failures) => Verdict::Pass(format!("{failures} failures")),
            None => Verdict::Fault("never".to_owned()),
        }
    })
}

fn panics_count(subject: &Subject) -> Verdict {
    subject.judge(Trip::Soon, 1, |breaker, _| async move {
        for _ in 0..20 {
            caught(breaker.call(panicking())).await;
        }
        let opened = reopens(&*breaker).await;
        Verdict::when(opened, if opened { "" } else { "closed after 20 panics" })
    })
}

fn burst(subject: &Subject) -> Verdict {
    subject.judge(Trip::Second, 1, |breaker, _| async move {
        match trip(&*breaker, PATIENCE).await {
            Some(failures) => Verdict::Pass(format!("{failures} failures")),
            None => Verdict::Fault(format!("not after {PATIENCE} failures")),
        }
    })
}

fn old_failures(subject: &Subject) -> Verdict {
    subject.judge(Trip::Second, 1, |breaker, _| async move {
        for _ in 0..8 {
            breaker.call(bad()).await;
        }
        sleep(Duration::from_millis(1_300)).await;
        for _ in 0..8 {
            breaker.call(bad()).await;
        }
        let opened = reopens(&*breaker).await;
        Verdict::when(!opened, if opened { "8 and 8 opened at 10" } else { "" })
    })
}

fn absurd(subject: &Subject) -> Verdict {
    let used = crate::calls::without_panic(|| {
        subject.judge(Trip::Absurd, 0, |breaker, _| async move {
            let mut panics = 0;
            for _ in 0..20 {
                panics += u32::from(caught(breaker.call(bad())).await == Said::Panicked);
            }
            Verdict::when(panics == 0, if panics == 0 { "" } else { "panics in a call" })
        })
    });
    used.unwrap_or_else(|| Verdict::Fault("panics when it is made".to_owned()))
}
