//! `mamparo topology`: what a broker has, beside what the policy files say.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use mamparo_core::message::capabilities::{Capabilities, Engine};
use mamparo_core::message::topology::alarm::{Fill, fill};
use mamparo_core::message::topology::plan::{Action, Plan, Step, Subject};
use mamparo_core::message::topology::{QueuePolicy, Role};
use mamparo_messaging::plan::{self, Applied};
use mamparo_messaging::{AnyBroker, Broker as _, MessagingError};

use crate::output::{Exit, allowed, data, failure, json, safe, say};

mod report;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show what would be made, what is there alike and what differs. Changes nothing.
    Plan(Which),
    /// Make what is missing. Never deletes; leaves alone what differs and says how to migrate.
    Apply {
        #[command(flatten)]
        which: Which,
        /// Do it without being asked.
        #[arg(long)]
        yes: bool,
    },
    /// End with 1 when the broker is other than the files say. Changes nothing.
    Drift(Which),
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The broker: sqlite:PATH (embedded) or amqp://USER:PASSWORD@HOST:PORT/VHOST (RabbitMQ).
    #[arg(long, value_name = "URL")]
    broker: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The services' policy files, mamparo.toml.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// Runs one verb.
pub(crate) async fn run(verb: Verb) -> Exit {
    let (Verb::Plan(which) | Verb::Apply { which, .. } | Verb::Drift(which)) = &verb;
    let Some(policies) = policies(&which.files) else { return Exit::Unusable };
    // A plan must not make the embedded broker's file; applying one may.
    let opened = match &verb {
        Verb::Apply { yes: true, .. } => AnyBroker::open(&which.broker).await,
        Verb::Plan(_) | Verb::Apply { .. } | Verb::Drift(_) => {
            AnyBroker::open_existing(&which.broker).await
        }
    };
    let broker = match opened {
        Ok(broker) => broker,
        Err(error) => return unusable(&error),
    };
    let plans = match look(&broker, &policies).await {
        Ok(plans) => plans,
        Err(exit) => return exit,
    };
    let able = broker.capabilities();
    match &verb {
        Verb::Plan(which) => {
            let refused = plans.iter().any(Plan::refused);
            let words = if refused { "some of it differs" } else { "nothing stands in the way" };
            let found = if refused { Exit::Findings } else { Exit::Clean };
            shown(which, &able, &plans, words, found)
        }
        Verb::Drift(which) => {
            let full =
                plans.iter().any(|plan| plan.steps.iter().any(|s| filled(plan, s) == Fill::Full));
            let (words, found) = match (plans.iter().any(Plan::drifts), full) {
                (true, _) => ("the broker is other than the files say", Exit::Findings),
                (false, true) => ("a queue is at its limit", Exit::Findings),
                (false, false) => ("no drift", Exit::Clean),
            };
            shown(which, &able, &plans, words, found)
        }
        Verb::Apply { which, yes } => apply(which, *yes, &broker, &able, &plans).await,
    }
}

/// The queues of all files; `None` when the files can't be used, and why was said.
fn policies(files: &[PathBuf]) -> Option<Vec<QueuePolicy>> {
    let read = match mamparo_topology::load(files) {
        Ok(read) => read,
        Err(problems) => {
            say(&problems.to_string());
            say("error: failed to read the policy files; nothing was looked at");
            return None;
        }
    };
    let mut found: Vec<(QueuePolicy, String)> = Vec::new();
    for file in &read {
        for section in &file.queues {
            let policy = section.policy();
            let place = format!("{}:{}", file.file, section.name.line);
            if let Some((_, first)) = found.iter().find(|(other, _)| other.queue == policy.queue) {
                let queue = &policy.queue;
                say(&format!("{place}: queues.{queue:?}: the same queue stands at {first}"));
                say("hint: two services with one queue take each other's messages");
                return None;
            }
            found.push((policy, place));
        }
    }
    if found.is_empty() {
        say("error: failed to find a queue: the files have no [queues.\"NAME\"]");
        return None;
    }
    Some(found.into_iter().map(|(policy, _)| policy).collect())
}

async fn look(broker: &AnyBroker, policies: &[QueuePolicy]) -> Result<Vec<Plan>, Exit> {
    let mut plans = Vec::new();
    for (number, policy) in policies.iter().enumerate() {
        say(&format!("looking at {} ({} of {})", policy.queue, number + 1, policies.len()));
        plans.push(plan::plan(broker, policy).await.map_err(|error| unusable(&error))?);
    }
    Ok(plans)
}

fn unusable(error: &MessagingError) -> Exit {
    say(&failure(error));
    if let MessagingError::NoFile { .. } = error {
        say(
            "hint: a service makes its broker's file when it starts; so does `mamparo topology apply --yes`",
        );
    }
    Exit::Unusable
}

/// Prints plans and what they come to.
fn shown(which: &Which, able: &Capabilities, plans: &[Plan], words: &str, found: Exit) -> Exit {
    let written = if which.json {
        json(&report::Report::new(able, plans)) == Exit::Clean
    } else {
        data(&plans.iter().map(|plan| report::text(plan, able)).collect::<String>())
    };
    summary(plans, words);
    notes(able, plans);
    if written { found } else { Exit::Findings }
}

/// How many parts there are of each kind.
fn summary(plans: &[Plan], words: &str) {
    let mut counts = [0_usize; 5];
    for step in plans.iter().flat_map(|plan| &plan.steps) {
        let place = match step.action {
            Action::Create => 0,
            Action::Change(_) => 1,
            Action::Refuse(..) => 2,
            Action::Keep => 3,
            Action::Ensure => 4,
        };
        counts[place] += 1;
    }
    let [create, change, differs, alike, unseen] = counts;
    let mut text = format!("{create} missing, {alike} alike");
    for (count, what) in [(change, "to change"), (differs, "different"), (unseen, "not visible")] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    say(&format!("{text}: {words}"));
}

/// What the reader has to know besides, and the next step.
fn notes(able: &Capabilities, plans: &[Plan]) {
    if able.engine == Engine::RabbitMq {
        say(
            "note: AMQP shows neither bindings nor policies; `apply` makes sure of the bindings, and \
             `rabbitmqctl list_policies` lists the policies, which can't override these arguments",
        );
    }
    for plan in plans {
        for step in &plan.steps {
            let (name, depth) = (&step.subject, step.depth.unwrap_or_default());
            let (limit, owner) = (plan.policy.max_length, &plan.policy.owner);
            let filled = match filled(plan, step) {
                Fill::Fine => continue,
                Fill::Near => "near",
                Fill::Full => "at",
            };
            say(&format!(
                "warning: {name} holds {depth} messages, {filled} its limit of {limit}; tell {owner}"
            ));
        }
        let room = plan.policy.room_on(able);
        if room != plan.policy.waiting_room {
            let (queue, wanted) = (&plan.policy.queue, plan.policy.waiting_room.as_str());
            say(&format!(
                "note: {queue}: waiting_room {wanted:?} needs RabbitMQ 4.3; on {able} messages wait in {}",
                room.as_str()
            ));
        }
    }
    if plans.iter().any(Plan::refused) {
        say("hint: docs/runbooks/topology.md says how to migrate without losing a message");
    } else if plans.iter().any(Plan::drifts) {
        say("hint: `mamparo topology apply` makes what is missing");
    }
}

/// How full a waiting room or dead-letter queue is. What RabbitMQ dead-letters itself into a full queue is
/// lost or waits where no count shows it, so that nobody else would tell.
fn filled(plan: &Plan, step: &Step) -> Fill {
    match (&step.subject, step.depth) {
        (Subject::Queue(_, Role::Waiting | Role::DeadLetters), Some(depth)) => {
            fill(depth, plan.policy.max_length)
        }
        (Subject::Queue(..) | Subject::Exchange(_) | Subject::Binding(_), _) => Fill::Fine,
    }
}

async fn apply(
    which: &Which,
    yes: bool,
    broker: &AnyBroker,
    able: &Capabilities,
    plans: &[Plan],
) -> Exit {
    let wanted: Vec<&Plan> = plans.iter().filter(|plan| !plan.refused()).collect();
    let queues = wanted.len();
    if !wanted.iter().any(|plan| plan.steps.iter().any(|step| step.action != Action::Keep)) {
        let refused = plans.iter().any(Plan::refused);
        let (words, found) = match refused {
            true => ("nothing was made", Exit::Findings),
            false => ("nothing to do", Exit::Clean),
        };
        return shown(which, able, plans, words, found);
    }
    let question = format!("Make what is missing for {queues} queues on {able}?");
    match allowed(&question, yes) {
        Ok(true) => {}
        Ok(false) => {
            say("nothing was changed");
            return Exit::Clean;
        }
        Err(hint) => {
            say("error: failed to apply: nobody to ask");
            say(&format!("hint: {hint}"));
            return Exit::Unusable;
        }
    }
    let mut outcomes = Vec::new();
    for plan in plans {
        let applied = plan::apply(broker, plan, |step| {
            say(&format!("made {} {}", step.subject.kind(), safe(&step.subject.to_string())));
        })
        .await;
        outcomes.push((plan, applied));
    }
    told(which, able, &outcomes)
}

/// What was made, what was left and what failed.
fn told(which: &Which, able: &Capabilities, outcomes: &[(&Plan, Applied)]) -> Exit {
    let mut clean = true;
    for (plan, applied) in outcomes {
        let queue = &plan.policy.queue;
        if let Some((number, error)) = &applied.failed {
            clean = false;
            say(&failure(error));
            let left = plan.steps.iter().skip(*number).filter(|step| step.action != Action::Keep);
            for step in left {
                say(&format!("not made: {} {}", step.subject.kind(), step.subject));
            }
            say("hint: what was made stays; apply again when the cause is gone");
        } else if plan.refused() {
            clean = false;
            say(&format!("left alone: {queue} differs"));
        }
    }
    let made: usize = outcomes.iter().map(|(_, applied)| applied.made).sum();
    let written = if which.json {
        json(&report::Outcome::new(able, outcomes)) == Exit::Clean
    } else {
        data(&outcomes.iter().map(|(plan, _)| report::text(plan, able)).collect::<String>())
    };
    say(&format!("made or made sure of {made} parts on {able}"));
    if outcomes.iter().any(|(plan, _)| plan.refused()) {
        say("hint: docs/runbooks/topology.md says how to migrate without losing a message");
    }
    if clean && written { Exit::Clean } else { Exit::Findings }
}
