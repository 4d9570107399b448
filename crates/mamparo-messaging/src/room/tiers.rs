//! Waiting rooms that are queues of the broker, one a delay; dead letters in a queue of the broker.

use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::message::headers;
use mamparo_core::message::topology::{QueuePolicy, Wait};
use mamparo_core::message::waiting::{Stay, tier_for};

use super::{Case, Followed, Moved, Room};
use crate::{Broker, Confirm, Message};

/// The broker's own queues. A copy counts as safe when the broker has confirmed it and a queue wanted
/// it; whatever else it says, the original stays.
#[derive(Debug)]
pub(crate) struct Tiers<B> {
    broker: B,
    waits: Vec<Wait>,
    delays: Vec<Duration>,
    dlq: String,
}

impl<B: Broker> Tiers<B> {
    pub(crate) fn new(broker: B, policy: &QueuePolicy) -> Self {
        let (waits, dlq) = (policy.waits(), policy.dlq());
        Self { broker, waits, delays: policy.delays().to_vec(), dlq }
    }

    /// When a message is back that is put off for `delay`: a tier may be longer than that.
    pub(crate) fn back_in(&self, delay: Duration) -> Duration {
        let tier = self.delays.get(tier_for(&self.delays, delay)).copied();
        tier.unwrap_or_default().max(delay)
    }

    pub(super) async fn publish(&self, queue: &str, copy: &Message) -> Moved {
        match self.broker.publish("", queue, copy).await {
            Confirm::Confirmed => Moved::Safe,
            Confirm::Returned => Moved::Stays(format!("the queue {queue} does not exist")),
            Confirm::Nacked(why) => Moved::Stays(format!("the queue {queue} refused it: {why}")),
            Confirm::Unknown(why) => Moved::Stays(format!("no confirm of {queue}: {why}")),
        }
    }

    /// Into the tier at `tier`, with the time before which the copy is not to be handled when the tier
    /// ends earlier.
    async fn put_into(&self, copy: &Message, tier: usize, named: Option<Duration>) -> Moved {
        let Some(wait) = self.waits.get(tier) else {
            return Moved::Stays("the policy has no waiting room".to_owned());
        };
        let Some(left) = named else { return self.publish(&wait.queue, copy).await };
        let mut copy = copy.clone();
        let due = clock::wall().plus(left).unix_millis().to_string();
        headers::set(&mut copy.headers, headers::NOT_BEFORE, due);
        self.publish(&wait.queue, &copy).await
    }
}

impl<B: Broker> Room for Tiers<B> {
    async fn keep(&self, case: &Case<'_>, stay: Stay) -> Moved {
        self.put_into(&case.copy, stay.tier, stay.named.then_some(stay.wait)).await
    }

    async fn bury(&self, case: &Case<'_>) -> Moved {
        self.publish(&self.dlq, &case.copy).await
    }

    async fn put_off(&self, case: &Case<'_>, delay: Duration) -> Moved {
        self.put_into(&case.copy, tier_for(&self.delays, delay), Some(delay)).await
    }

    async fn follow(&self, case: &Case<'_>, delay: Duration) -> Followed {
        Followed::Moved(self.put_off(case, delay).await)
    }
}
