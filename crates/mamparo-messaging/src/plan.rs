//! Making what a policy needs, on any broker: look, plan, apply.
//!
//! What is there is only looked at until somebody applies; nothing is ever deleted; what differs and
//! can't be changed is refused with the way to migrate (`docs/runbooks/topology.md`). What follows from
//! a look is decided in [`mamparo_core::message::topology::plan`].

use std::future::Future;

use mamparo_core::message::capabilities::Capabilities;
use mamparo_core::message::topology::plan::{Action, Plan, Seen, Step, Subject};
use mamparo_core::message::topology::{QueuePolicy, Topology};

use crate::{Broker, MessagingError};

/// A broker whose queues can be looked at and made.
pub trait Provision: Broker {
    /// What is there of `topology`, part by part in the order of
    /// [`subjects`](mamparo_core::message::topology::plan::subjects). Changes nothing.
    ///
    /// On RabbitMQ arguments are read by declaring what was just seen to exist with the values that it has
    /// said. A queue that is deleted by somebody else between the two would be made by the second: the
    /// protocol has no question without that risk. Policies and bindings can't be seen over AMQP at all, nor
    /// arguments that RabbitMQ does not compare: unknown ones, and of a classic queue those that only quorum
    /// queues have. A broker that was set up to relax its checks hides the type of a queue.
    fn look(
        &self,
        topology: &Topology,
    ) -> impl Future<Output = Result<Vec<Seen>, MessagingError>> + Send;

    /// Makes one part of `topology`. Again changes nothing.
    fn make(
        &self,
        topology: &Topology,
        subject: &Subject,
    ) -> impl Future<Output = Result<(), MessagingError>> + Send;
}

/// What `policy` needs on `broker`, what is there and what differs. Changes nothing.
///
/// # Errors
/// [`MessagingError::Policy`] and [`MessagingError::Refused`] for what is never made, else what the
/// broker said.
pub async fn plan<B: Provision>(broker: &B, policy: &QueuePolicy) -> Result<Plan, MessagingError> {
    let able = broker.capabilities();
    permitted(policy, &able)?;
    let seen = broker.look(&policy.topology(&able)).await?;
    Ok(Plan::new(policy, &able, seen))
}

/// What became of a plan.
#[derive(Debug)]
pub struct Applied {
    /// How many parts were made or changed.
    pub made: usize,
    /// The part that failed, its number in the plan and why. What stands before it is made, what stands
    /// after it is not: apply again when the cause is gone.
    pub failed: Option<(usize, MessagingError)>,
}

/// Makes what `plan` says is missing, and tells each part as it is done. Does nothing at all when a part
/// is refused: half of a consumer's queues is worse than what is there.
pub async fn apply<B: Provision>(broker: &B, plan: &Plan, mut told: impl FnMut(&Step)) -> Applied {
    let mut applied = Applied { made: 0, failed: None };
    if plan.refused() {
        return applied;
    }
    for (number, step) in plan.steps.iter().enumerate() {
        match step.action {
            Action::Keep | Action::Refuse(..) => continue,
            Action::Create | Action::Change(_) | Action::Ensure => {}
        }
        if let Err(error) = broker.make(&plan.topology, &step.subject).await {
            applied.failed = Some((number, error));
            return applied;
        }
        applied.made += 1;
        told(step);
    }
    applied
}

/// Makes everything that `policy` needs, as a service does when it starts. Declaring what is there alike
/// changes nothing and costs one round trip a part.
///
/// # Errors
/// [`MessagingError::Mismatch`] with everything that differs when something is there with other
/// arguments; else as [`plan`].
pub async fn declare<B: Provision>(broker: &B, policy: &QueuePolicy) -> Result<(), MessagingError> {
    let able = broker.capabilities();
    permitted(policy, &able)?;
    let topology = policy.topology(&able);
    for subject in mamparo_core::message::topology::plan::subjects(&topology) {
        let Err(error) = broker.make(&topology, &subject).await else { continue };
        if !error.is_mismatch() {
            return Err(error);
        }
        // Only now, because the look costs a channel for each thing that differs.
        let plan = Plan::new(policy, &able, broker.look(&topology).await?);
        if plan.refused() {
            return Err(MessagingError::Mismatch { plan: Box::new(plan) });
        }
        // Whoever made it has deleted it since: the next start makes it.
        return Err(error);
    }
    Ok(())
}

fn permitted(policy: &QueuePolicy, able: &Capabilities) -> Result<(), MessagingError> {
    let problems = policy.problems();
    if !problems.is_empty() {
        return Err(MessagingError::Policy { queue: policy.queue.clone(), problems });
    }
    let refusals = policy.refusals(able);
    if !refusals.is_empty() {
        return Err(MessagingError::Refused { queue: policy.queue.clone(), refusals });
    }
    Ok(())
}
