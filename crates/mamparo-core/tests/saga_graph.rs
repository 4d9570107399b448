//! Graphs: what can't be run, what changes a graph's hash, and what it looks like.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::time::Duration;

use mamparo_core::saga::graph::{Graph, Kind, Step, StepId, Tries, Undo};

fn step(name: &str, kind: Kind, after: &[u16]) -> Step {
    Step {
        name: name.to_owned(),
        kind,
        after: after.iter().map(|id| StepId(*id)).collect(),
        arm: None,
        each: false,
        undo: if kind == Kind::Call { Undo::By } else { Undo::ReadOnly },
        probe: false,
        tries: Tries::once(),
        undo_tries: Tries::of(5),
    }
}

fn graph(steps: Vec<Step>) -> Graph {
    Graph { name: "checkout".to_owned(), version: 1, steps, deadline: None }
}

fn fine() -> Graph {
    let arm = |name, arm| Step { arm: Some((StepId(1), arm)), ..step(name, Kind::Call, &[1]) };
    graph(vec![
        step("reserve", Kind::Call, &[]),
        step("how", Kind::Choice(2), &[0]),
        arm("by card", 0),
        arm("by transfer", 1),
        step("paid", Kind::Wait(Duration::from_secs(60)), &[2, 3]),
        step("no way back", Kind::Pivot, &[4]),
        step("ship", Kind::Call, &[5]),
    ])
}

#[test]
fn a_graph_that_cannot_be_run_says_which_step_and_why() {
    fine().check().unwrap();
    let wrong = |change: fn(&mut Graph)| {
        let mut graph = fine();
        change(&mut graph);
        graph.check().unwrap_err().to_string()
    };
    let said = [
        wrong(|graph| graph.name = " ".to_owned()),
        wrong(|graph| graph.steps.clear()),
        wrong(|graph| graph.steps = vec![step("again", Kind::Call, &[]); 257]),
        wrong(|graph| graph.steps[0].name = String::new()),
        wrong(|graph| graph.steps[2].name = "reserve".to_owned()),
        wrong(|graph| graph.steps[0].after = vec![StepId(3)]),
        wrong(|graph| graph.steps[2].arm = Some((StepId(0), 0))),
        wrong(|graph| graph.steps[2].arm = Some((StepId(1), 2))),
        wrong(|graph| graph.steps[0].tries.attempts = 0),
        wrong(|graph| graph.steps[1].kind = Kind::Choice(0)),
        wrong(|graph| graph.steps[4].each = true),
        wrong(|graph| graph.steps[4].probe = true),
        wrong(|graph| graph.steps[6].after = vec![StepId(4)]),
        wrong(|graph| graph.steps[6].kind = Kind::Pivot),
        wrong(|graph| graph.steps[5].arm = Some((StepId(1), 0))),
    ];
    assert_eq!(
        said,
        [
            "the saga has no name",
            "the saga has no step",
            "a saga has at most 256 steps; put some of them into a sub-saga",
            "step \"\": it has no name",
            "step \"reserve\": another step has this name",
            "step \"reserve\": it comes after a later step",
            "step \"by card\": its arm is of no choice that stands before it",
            "step \"by card\": its choice has only 2 arms",
            "step \"reserve\": 0 attempts: it would never run",
            "step \"how\": a choice needs an arm",
            "step \"paid\": only local steps, calls and sub-sagas run for each of several items",
            "step \"paid\": only calls and sub-sagas have a probe",
            "step \"ship\": it stands beside the pivot; let it come before or after it",
            "step \"ship\": a saga has one pivot",
            "step \"no way back\": a pivot that may not be taken is no pivot",
        ]
    );
}

#[test]
fn the_hash_changes_with_what_a_running_saga_relies_on_and_with_nothing_else() {
    let hash = fine().hash();
    assert_eq!(hash.len(), 16);
    let of = |change: fn(&mut Graph)| {
        let mut graph = fine();
        change(&mut graph);
        graph.hash()
    };
    for changed in [
        of(|graph| graph.version = 2),
        of(|graph| graph.steps[0].name = "book".to_owned()),
        of(|graph| graph.steps[4].kind = Kind::Wait(Duration::from_secs(61))),
        of(|graph| graph.steps[4].after = vec![StepId(2)]),
        of(|graph| graph.steps[0].undo = Undo::ReadOnly),
        of(|graph| graph.steps[0].probe = true),
        of(|graph| graph.steps[0].each = true),
    ] {
        assert_ne!(changed, hash);
    }
    assert_eq!(of(|graph| graph.steps[0].tries = Tries::of(9)), hash);
    assert_eq!(of(|graph| graph.deadline = Some(Duration::from_secs(9))), hash);
}

#[test]
fn a_graph_draws_itself() {
    let mut graph = fine();
    graph.steps[6].undo = Undo::Irreversible("it is \"out\"".to_owned());
    graph.steps[0].each = true;
    let drawn = graph.to_mermaid();
    for line in [
        "flowchart TD",
        "    s0[\"reserve<br/>call, for each, undo\"]",
        "    s1{\"how<br/>choice\"}",
        "    s0 --> s1",
        "    s1 -->|1| s3",
        "    s4([\"paid<br/>wait\"])",
        "    s5[[\"no way back<br/>pivot\"]]",
        "    s6[\"ship<br/>call, stays: it is #quot;out#quot;\"]",
    ] {
        assert!(drawn.lines().any(|drawn| drawn == line), "{line}\n{drawn}");
    }
    assert!(!drawn.contains("    s1 --> s3"), "an arm is drawn once");
}
