//! The order of the shutdown, and the time that each step may use.

use std::time::Duration;

use mamparo_core::limits::SHUTDOWN_MAX;
use mamparo_core::process::shutdown::{Ending, ORDER, OutOfOrder, Shutdown, Step};
use mamparo_core::time::Moment;
use proptest::prelude::*;

const START: Moment = Moment::from_millis(5_000);

#[test]
fn the_order_is_the_missions_and_the_parts_are_thirty() {
    let steps: Vec<Step> = ORDER.iter().map(|share| share.step).collect();
    assert_eq!(
        steps,
        [
            Step::StopAccepting,
            Step::ReadyOff,
            Step::FinishRequests,
            Step::CancelConsumers,
            Step::SettleMessages,
            Step::StopWorkers,
            Step::ClosePools,
            Step::FlushTelemetry,
        ]
    );
    assert_eq!(ORDER.iter().map(|share| share.parts).sum::<u32>(), 30);
    assert_eq!(SHUTDOWN_MAX, Duration::from_secs(30));
}

#[test]
fn each_step_that_overruns_gets_its_share_and_no_more() {
    let mut shutdown = Shutdown::new(START, SHUTDOWN_MAX);
    let mut now = START;
    for share in &ORDER {
        let allotment = shutdown.ask(now).unwrap();
        assert_eq!(allotment.step, share.step);
        assert_eq!(allotment.may_use, Duration::from_secs(share.parts.into()), "{share:?}");
        now = now.plus(allotment.may_use);
        let record = shutdown.tell(now, share.step, Ending::Cut).unwrap();
        assert_eq!((record.took, record.ending), (allotment.may_use, Ending::Cut));
    }
    assert_eq!(shutdown.ask(now), None);
    assert_eq!(now.since(START), SHUTDOWN_MAX);
}

#[test]
fn what_a_quick_step_leaves_goes_to_the_next() {
    let mut shutdown = Shutdown::new(START, SHUTDOWN_MAX);
    shutdown.tell(START, Step::StopAccepting, Ending::Done).unwrap();
    shutdown.tell(START, Step::ReadyOff, Ending::Done).unwrap();
    let requests = shutdown.ask(START).unwrap();
    assert_eq!(requests.may_use, Duration::from_secs(12));
    let later = START.plus(Duration::from_secs(5));
    assert_eq!(shutdown.ask(later).unwrap().may_use, Duration::from_secs(7));
}

#[test]
fn lost_time_is_shared_in_proportion() {
    let mut shutdown = Shutdown::new(START, SHUTDOWN_MAX);
    // The runtime hung for 16 s: the remaining steps, 28 parts, share the 14 s that are left.
    let now = START.plus(Duration::from_secs(16));
    shutdown.tell(now, Step::StopAccepting, Ending::Cut).unwrap();
    shutdown.tell(now, Step::ReadyOff, Ending::Done).unwrap();
    let requests = shutdown.ask(now).unwrap();
    assert_eq!(requests.may_use, Duration::from_secs(14) * 10 / 28);
    // Nothing is left, nothing may be used, and nothing panics.
    let far = Moment::FAR_FUTURE;
    assert_eq!(shutdown.ask(far).unwrap().may_use, Duration::ZERO);
    shutdown.tell(far, Step::FinishRequests, Ending::Cut).unwrap();
    assert_eq!(shutdown.ask(far).unwrap().may_use, Duration::ZERO);
}

#[test]
fn a_step_out_of_order_is_refused_and_changes_nothing() {
    let mut shutdown = Shutdown::new(START, SHUTDOWN_MAX);
    let told = shutdown.tell(START, Step::ClosePools, Ending::Done).unwrap_err();
    let present = Some(Step::StopAccepting);
    assert_eq!(told, OutOfOrder { told: Step::ClosePools, present });
    assert_eq!(
        told.to_string(),
        "step \"close pools\" was reported while the shutdown is at \"stop accepting\""
    );
    assert_eq!(shutdown.ask(START).unwrap().step, Step::StopAccepting);
    for share in &ORDER {
        shutdown.tell(START, share.step, Ending::Done).unwrap();
    }
    let over = shutdown.tell(START, Step::FlushTelemetry, Ending::Done).unwrap_err();
    assert_eq!(over.present, None);
}

proptest! {
    /// Whatever the steps take of what they may, the whole fits and nobody's share is eaten.
    #[test]
    fn no_step_eats_anothers_share(
        taken in proptest::collection::vec(0.0_f64..=1.0, 8), total in 0_u64..100_000,
    ) {
        let total = Duration::from_millis(total);
        let mut shutdown = Shutdown::new(START, total);
        let mut now = START;
        for (share, taken) in ORDER.iter().zip(taken) {
            let allotment = shutdown.ask(now).unwrap();
            prop_assert!(allotment.may_use + Duration::from_nanos(40) >= total * share.parts / 30);
            now = now.plus(allotment.may_use.mul_f64(taken)).min(now.plus(allotment.may_use));
            shutdown.tell(now, share.step, Ending::Done).unwrap();
        }
        prop_assert!(now.since(START) <= total);
    }
}
