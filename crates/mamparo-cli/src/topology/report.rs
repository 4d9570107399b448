//! A plan as people and programs read it.

use mamparo_core::message::capabilities::Capabilities;
use mamparo_core::message::topology::Argument;
use mamparo_core::message::topology::plan::{Action, Difference, Migration, Plan, Step, Theirs};
use mamparo_messaging::plan::Applied;
use serde::Serialize;
use serde_json::Value;

use crate::output::safe;

/// One plan as text: a line for the queue, then one for each part.
pub(super) fn text(plan: &Plan, able: &Capabilities) -> String {
    let policy = &plan.policy;
    let room = policy.room_on(able).as_str();
    let (queue, owner) = (safe(&policy.queue), safe(&policy.owner));
    let mut text = format!("{queue} ({owner}) on {able}, messages wait in {room}\n");
    let names: Vec<String> = plan.steps.iter().map(|s| safe(&s.subject.to_string())).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    for (step, name) in plan.steps.iter().zip(names) {
        let (word, kind) = (word(&step.action), step.subject.kind());
        let depth = step.depth.map_or_else(String::new, |depth| format!("{depth} messages"));
        let line = format!("  {word:<8}  {kind:<8}  {name:<width$}  {depth}");
        text.push_str(&format!("{}\n", line.trim_end()));
        let (differences, way) = changes(&step.action);
        for difference in differences {
            text.push_str(&format!("            {}\n", safe(&difference.to_string())));
        }
        if let Some(way) = way {
            text.push_str(&format!("            way: {}\n", safe(&way.to_string())));
        }
    }
    text
}

fn word(action: &Action) -> &'static str {
    match action {
        Action::Create => "missing",
        Action::Keep => "alike",
        Action::Change(_) => "change",
        Action::Refuse(..) => "differs",
        Action::Ensure => "unseen",
    }
}

fn changes(action: &Action) -> (&[Difference], Option<&Migration>) {
    match action {
        Action::Create | Action::Keep | Action::Ensure => (&[], None),
        Action::Change(differences) => (differences, None),
        Action::Refuse(differences, way) => (differences, Some(way)),
    }
}

/// All plans, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    broker: String,
    drifts: bool,
    refused: bool,
    queues: Vec<Queue>,
}

impl Report {
    pub(super) fn new(able: &Capabilities, plans: &[Plan]) -> Self {
        Self {
            broker: able.to_string(),
            drifts: plans.iter().any(Plan::drifts),
            refused: plans.iter().any(Plan::refused),
            queues: plans.iter().map(|plan| Queue::new(plan, able)).collect(),
        }
    }
}

/// What became of all plans, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    broker: String,
    made: usize,
    refused: Vec<String>,
    failed: Vec<Failure>,
    queues: Vec<Queue>,
}

#[derive(Debug, Serialize)]
struct Failure {
    queue: String,
    part: String,
    error: String,
}

impl Outcome {
    pub(super) fn new(able: &Capabilities, outcomes: &[(&Plan, Applied)]) -> Self {
        let failed = outcomes.iter().filter_map(|(plan, applied)| {
            let (number, error) = applied.failed.as_ref()?;
            Some(Failure {
                queue: plan.policy.queue.clone(),
                part: plan.steps.get(*number)?.subject.to_string(),
                error: error.to_string(),
            })
        });
        let refused = outcomes.iter().filter(|(plan, _)| plan.refused());
        Self {
            broker: able.to_string(),
            made: outcomes.iter().map(|(_, applied)| applied.made).sum(),
            refused: refused.map(|(plan, _)| plan.policy.queue.clone()).collect(),
            failed: failed.collect(),
            queues: outcomes.iter().map(|(plan, _)| Queue::new(plan, able)).collect(),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Queue {
    queue: String,
    owner: String,
    waiting_room: &'static str,
    parts: Vec<Part>,
}

impl Queue {
    fn new(plan: &Plan, able: &Capabilities) -> Self {
        Self {
            queue: plan.policy.queue.clone(),
            owner: plan.policy.owner.clone(),
            waiting_room: plan.policy.room_on(able).as_str(),
            parts: plan.steps.iter().map(Part::new).collect(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Part {
    kind: &'static str,
    name: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differences: Vec<Differs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    way: Option<String>,
}

impl Part {
    fn new(step: &Step) -> Self {
        let (differences, way) = changes(&step.action);
        Self {
            kind: step.subject.kind(),
            name: step.subject.to_string(),
            state: word(&step.action),
            depth: step.depth,
            differences: differences.iter().map(Differs::new).collect(),
            way: way.map(ToString::to_string),
        }
    }
}

/// `null` is "not set"; a value that the broker cut off is left out.
#[derive(Debug, Serialize)]
struct Differs {
    key: String,
    ours: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    theirs: Option<Value>,
}

impl Differs {
    fn new(difference: &Difference) -> Self {
        Self {
            key: difference.key.clone(),
            ours: difference.ours.as_ref().map_or(Value::Null, value),
            theirs: match &difference.theirs {
                Theirs::Value(theirs) => Some(value(theirs)),
                Theirs::NotSet => Some(Value::Null),
                Theirs::CutOff => None,
            },
        }
    }
}

fn value(argument: &Argument) -> Value {
    match argument {
        Argument::Text(text) => text.clone().into(),
        Argument::Number(number) => (*number).into(),
        Argument::Flag(flag) => (*flag).into(),
    }
}
