//! The embedded broker's queues, looked at and made: rows of its own tables, which can all be seen and
//! all be changed.

use mamparo_core::message::topology::plan::{Difference, Seen, Subject, Theirs};
use mamparo_core::message::topology::{Argument, Queue, Topology};
use mamparo_store::queue::{self, QueueSpec};

use super::EmbeddedBroker;
use crate::MessagingError;
use crate::plan::Provision;

impl Provision for EmbeddedBroker {
    async fn look(&self, topology: &Topology) -> Result<Vec<Seen>, MessagingError> {
        let mut seen = Vec::new();
        for queue in &topology.queues {
            seen.push(self.look_at(queue).await?);
        }
        for binding in &topology.bindings {
            let bound = queue::bindings(self.store(), &binding.exchange)
                .await
                .map_err(MessagingError::store("list bindings"))?;
            let there = bound
                .iter()
                .any(|(pattern, queue)| (pattern, queue) == (&binding.pattern, &binding.queue));
            let same = Seen::There { differences: Vec::new(), depth: None };
            seen.push(if there { same } else { Seen::Missing });
        }
        Ok(seen)
    }

    async fn make(&self, topology: &Topology, subject: &Subject) -> Result<(), MessagingError> {
        match subject {
            // Exchanges are only names here.
            Subject::Exchange(_) => Ok(()),
            Subject::Queue(name, _) => {
                let wanted = topology.queues.iter().find(|queue| queue.name == *name);
                let returns = wanted.and_then(|queue| queue.returns.clone());
                let spec = QueueSpec {
                    name: name.clone(),
                    message_ttl: returns.as_ref().map(|way| way.after),
                    dead_letter_to: returns.map(|way| way.to),
                };
                queue::declare(self.store(), &spec)
                    .await
                    .map_err(MessagingError::store("declare queue"))
            }
            Subject::Binding(binding) => {
                queue::bind(self.store(), &binding.exchange, &binding.pattern, &binding.queue)
                    .await
                    .map_err(MessagingError::store("bind queue"))
            }
        }
    }
}

impl EmbeddedBroker {
    async fn look_at(&self, wanted: &Queue) -> Result<Seen, MessagingError> {
        let there = queue::spec(self.store(), &wanted.name)
            .await
            .map_err(MessagingError::store("read a queue"))?;
        let Some(there) = there else { return Ok(Seen::Missing) };
        let depth = queue::depth(self.store(), &wanted.name)
            .await
            .map_err(MessagingError::store("count the messages of a queue"))?;
        let theirs = [
            ("x-message-ttl", there.message_ttl.map(Argument::from)),
            ("x-dead-letter-routing-key", there.dead_letter_to.map(Argument::Text)),
        ];
        let differs = |(key, theirs): (&str, Option<Argument>)| {
            let ours = wanted.arguments.get(key).cloned();
            (ours != theirs).then(|| Difference {
                key: key.to_owned(),
                ours,
                theirs: theirs.map_or(Theirs::NotSet, Theirs::Value),
            })
        };
        let differences = theirs.into_iter().filter_map(differs).collect();
        Ok(Seen::There { differences, depth: Some(depth) })
    }
}
