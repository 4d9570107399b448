//! Every row of the lifecycle, and what fits no row.

use std::time::Duration;

use mamparo_core::process::lifecycle::{Event, Lifecycle, Stage, TABLE, Unfit};
use mamparo_core::time::Moment;

/// A process that was led to `stage`.
fn at(stage: Stage) -> Lifecycle {
    let mut process = Lifecycle::new(Moment::ORIGIN);
    let way: &[Event] = match stage {
        Stage::Starting => &[],
        Stage::Ready => &[Event::ChecksPassed],
        Stage::NotReady => &[Event::CheckFailed],
        Stage::Draining => &[Event::StopAsked],
        Stage::Stopped => &[Event::StopAsked, Event::Drained],
    };
    for event in way {
        let change = process.tell(Moment::ORIGIN, *event);
        assert!(matches!(change, Ok(Some(_))), "{event:?}: {change:?}");
    }
    process
}

#[test]
fn every_row_of_the_table_is_driven_and_every_other_pair_is_refused() {
    let stages = [Stage::Starting, Stage::Ready, Stage::NotReady, Stage::Draining, Stage::Stopped];
    let events = [Event::ChecksPassed, Event::CheckFailed, Event::StopAsked, Event::Drained];
    let now = Moment::from_millis(1_500);
    let mut hits = Vec::new();
    for (stage, event) in stages.iter().flat_map(|s| events.iter().map(move |e| (*s, *e))) {
        let mut process = at(stage);
        match (TABLE.row(stage, event), process.tell(now, event)) {
            (Some(row), Ok(change)) => {
                assert_eq!(process.ask(now).stage, row.to);
                assert_eq!(change.is_some(), row.from != row.to);
                if let Some(change) = change {
                    assert_eq!((change.from, change.to), (row.from, row.to));
                    assert_eq!(change.lasted, Duration::from_millis(1_500));
                }
                hits.push((stage, event));
            }
            (None, Err(unfit)) => {
                assert_eq!(unfit, Unfit { stage, event });
                assert_eq!(process.ask(now).stage, stage, "a refused event changes nothing");
            }
            (row, told) => panic!("{stage:?} on {event:?}: {row:?}, but {told:?}"),
        }
    }
    assert_eq!(TABLE.untested(&hits), Vec::<String>::new());
}

#[test]
fn only_ready_is_ready_and_a_draining_process_takes_no_work() {
    for (stage, ready, takes_work) in [
        (Stage::Starting, false, true),
        (Stage::Ready, true, true),
        (Stage::NotReady, false, true),
        (Stage::Draining, false, false),
        (Stage::Stopped, false, false),
    ] {
        let standing = at(stage).ask(Moment::from_millis(20));
        assert_eq!((standing.ready, standing.takes_work), (ready, takes_work), "{stage:?}");
        assert_eq!(standing.lasted, Duration::from_millis(20));
    }
}

#[test]
fn checks_turn_readiness_both_ways_until_the_process_drains() {
    let mut process = at(Stage::Starting);
    for (event, ready) in [
        (Event::CheckFailed, false),
        (Event::ChecksPassed, true),
        (Event::CheckFailed, false),
        (Event::ChecksPassed, true),
        (Event::StopAsked, false),
        (Event::ChecksPassed, false),
    ] {
        process.tell(Moment::ORIGIN, event).unwrap();
        assert_eq!(process.ask(Moment::ORIGIN).ready, ready, "{event:?}");
    }
}

#[test]
fn an_unfit_event_says_which_and_where() {
    let unfit = Unfit { stage: Stage::Ready, event: Event::Drained };
    assert_eq!(unfit.to_string(), "event Drained does not fit a process that is Ready");
}
