//! The model itself: queues, what is in them, and what a release does with it. No clock of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use mamparo_core::message::capabilities::Version;
use mamparo_core::message::closure::Kind;
use mamparo_core::message::topology::{Argument, Binding, Queue as Declared};
use mamparo_core::time::Moment;
use mamparo_messaging::{Confirm, Message};

use super::rules::Rules;

/// One entry of `x-death`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    pub queue: String,
    pub reason: String,
    pub count: u32,
}

/// A message as the broker keeps it.
#[derive(Debug, Clone)]
pub struct Kept {
    pub message: Message,
    /// Newest first.
    deaths: Vec<Death>,
    /// What a client said of deaths where that only counts for cycles.
    claimed: Vec<Death>,
    /// The delivery count.
    pub failed: u32,
    /// The acquired count.
    pub acquired: u32,
    expires: Option<Moment>,
    ready: Moment,
}

/// How a message comes back from a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Return {
    Reject,
    Nack,
    /// Its channel ended, or its consumer was cancelled.
    Ended,
}

#[derive(Debug)]
struct Queue {
    declared: Declared,
    /// By place.
    messages: BTreeMap<u64, Kept>,
}

impl Queue {
    fn is(&self, key: &str, value: &str) -> bool {
        self.declared.text(key) == Some(value)
    }

    fn is_quorum(&self) -> bool {
        self.is("x-queue-type", "quorum")
    }

    fn is_sure(&self) -> bool {
        self.is("x-dead-letter-strategy", "at-least-once")
            && self.is("x-overflow", "reject-publish")
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.declared.number(key).and_then(|number| u64::try_from(number).ok())
    }

    fn time(&self, key: &str) -> Option<Duration> {
        self.number(key).map(Duration::from_millis)
    }
}

#[derive(Debug)]
struct Consumer {
    queue: String,
    prefetch: usize,
    /// In hand, by place, since when.
    hand: BTreeMap<u64, (Kept, Moment)>,
    ended: Option<Kind>,
}

#[derive(Debug)]
pub struct Node {
    rules: Rules,
    queues: BTreeMap<String, Queue>,
    bindings: Vec<Binding>,
    consumers: BTreeMap<u64, Consumer>,
    numbers: u64,
    /// How long a message may be in hand.
    pub consumer_timeout: Duration,
    /// The worker that moves dead letters at least once stands still (rabbitmq-server 12625).
    pub stuck: bool,
    /// What the broker has thrown away: id, and why.
    pub lost: Vec<(String, &'static str)>,
}

impl Node {
    pub fn new(release: Version) -> Self {
        Self {
            rules: Rules(release),
            queues: BTreeMap::new(),
            bindings: Vec::new(),
            consumers: BTreeMap::new(),
            numbers: 0,
            consumer_timeout: Duration::from_secs(1_800),
            stuck: false,
            lost: Vec::new(),
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub fn declared(&self, queue: &str) -> Option<&Declared> {
        self.queues.get(queue).map(|queue| &queue.declared)
    }

    pub fn declare(&mut self, queue: Declared) {
        let name = queue.name.clone();
        self.queues.entry(name).or_insert(Queue { declared: queue, messages: BTreeMap::new() });
    }

    pub fn bind(&mut self, binding: Binding) {
        if !self.bindings.contains(&binding) {
            self.bindings.push(binding);
        }
    }

    pub fn publish(
        &mut self,
        exchange: &str,
        key: &str,
        message: &Message,
        now: Moment,
    ) -> Confirm {
        let targets: Vec<String> = if exchange.is_empty() {
            self.queues.contains_key(key).then(|| key.to_owned()).into_iter().collect()
        } else {
            let bound = |one: &&Binding| one.exchange == exchange && matches(&one.pattern, key);
            self.bindings.iter().filter(bound).map(|one| one.queue.clone()).collect()
        };
        let mut message = message.clone();
        let sent = message.headers.remove("x-death").map(|text| read(&text)).unwrap_or_default();
        message.headers.retain(|name, _| name != "x-delivery-count" && name != "x-acquired-count");
        let known = self.rules.takes_deaths_of_clients();
        let hidden = self.rules.looks_for_cycles_in_them() && !known;
        let kept = Kept {
            message,
            deaths: if known { sent.clone() } else { Vec::new() },
            claimed: if hidden { sent } else { Vec::new() },
            failed: 0,
            acquired: 0,
            expires: None,
            ready: now,
        };
        if targets.is_empty() {
            return Confirm::Returned;
        }
        let mut confirm = Confirm::Confirmed;
        for target in targets {
            if self.put(&target, kept.clone(), now).is_err() {
                confirm = Confirm::Nacked("maxlen".to_owned());
            }
        }
        confirm
    }

    /// At the queue's end; back when it is missing or full and refuses.
    fn put(&mut self, queue: &str, mut kept: Kept, now: Moment) -> Result<(), Box<Kept>> {
        let place = self.number();
        let Some(queue) = self.queues.get_mut(queue) else { return Err(Box::new(kept)) };
        let full =
            queue.number("x-max-length").is_some_and(|max| queue.messages.len() as u64 >= max);
        if full && queue.is("x-overflow", "reject-publish") {
            return Err(Box::new(kept));
        }
        kept.expires = queue.time("x-message-ttl").map(|ttl| now.plus(ttl));
        (kept.failed, kept.acquired, kept.ready) = (0, 0, now);
        queue.messages.insert(place, kept);
        Ok(())
    }

    /// Sends a message of `queue` where its dead letters go. Back when that is not possible now and the
    /// queue keeps what it can't move.
    fn dead_letter(
        &mut self,
        queue: &str,
        kept: Kept,
        reason: &str,
        now: Moment,
    ) -> Result<(), Box<Kept>> {
        let id = kept.message.id.clone();
        let source = &self.queues[queue];
        let sure = source.is_sure();
        if sure && self.stuck {
            return Err(Box::new(kept));
        }
        let target = source.declared.text("x-dead-letter-routing-key").map(str::to_owned);
        let (Some(""), Some(target)) = (source.declared.text("x-dead-letter-exchange"), target)
        else {
            self.lost.push((id, "no dead-letter target"));
            return Ok(());
        };
        let mut moved = kept.clone();
        let at = moved.deaths.iter().position(|one| one.queue == queue && one.reason == reason);
        let count = at.map_or(0, |at| moved.deaths.remove(at).count) + 1;
        let death = Death { queue: queue.to_owned(), reason: reason.to_owned(), count };
        moved.deaths.insert(0, death);
        let path: Vec<&Death> = moved.deaths.iter().chain(&moved.claimed).collect();
        let again = path.iter().position(|death| death.queue == target);
        if reason != "rejected"
            && again.is_some_and(|at| path[..=at].iter().all(|death| death.reason != "rejected"))
        {
            self.lost.push((id, "cycle"));
            return Ok(());
        }
        match self.put(&target, moved, now) {
            Err(_) if sure => Err(Box::new(kept)),
            Err(_) => {
                self.lost.push((id, "at most once"));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// A message of `queue` comes back to its place.
    fn give_back(&mut self, queue: &str, place: u64, mut kept: Kept, how: Return, now: Moment) {
        let Some(into) = self.queues.get(queue) else { return };
        if into.is_quorum() {
            let counts = self.rules.counts_every_return() || how == Return::Reject;
            kept.failed += u32::from(counts);
            let limit = into.number("x-delivery-limit").and_then(|n| u32::try_from(n).ok());
            let limit = limit.or(self.rules.delivery_limit());
            if limit.is_some_and(|limit| kept.failed > limit) {
                let Err(kept) = self.dead_letter(queue, kept, "delivery_limit", now) else {
                    return;
                };
                self.back(queue, place, *kept);
                return;
            }
            let delayed = match into.declared.text("x-delayed-retry-type") {
                Some("all") => true,
                Some("failed") => counts,
                Some("returned") => !counts,
                _ => false,
            };
            if delayed && self.rules.delays_retries() {
                let least = into.time("x-delayed-retry-min").unwrap_or_default();
                let most = into.time("x-delayed-retry-max").unwrap_or(Duration::MAX);
                kept.ready = now.plus((least * kept.failed).min(most));
            }
        }
        self.back(queue, place, kept);
    }

    fn back(&mut self, queue: &str, place: u64, kept: Kept) {
        if let Some(into) = self.queues.get_mut(queue) {
            into.messages.insert(place, kept);
        }
    }

    /// Lets everything happen that is due.
    pub fn tick(&mut self, now: Moment) {
        let names: Vec<String> = self.queues.keys().cloned().collect();
        for name in names {
            loop {
                let head = self.queues[&name].messages.first_key_value();
                let due = head.filter(|(_, kept)| kept.expires.is_some_and(|due| due <= now));
                let Some((place, kept)) = due.map(|(place, kept)| (*place, kept.clone())) else {
                    break;
                };
                if self.dead_letter(&name, kept, "expired", now).is_err() {
                    break;
                }
                self.queues.get_mut(&name).unwrap().messages.remove(&place);
            }
        }
        let limit = self.consumer_timeout;
        let slow = |one: &Consumer| {
            one.ended.is_none() && one.hand.values().any(|(_, since)| since.plus(limit) <= now)
        };
        let slow: Vec<(u64, bool)> = self
            .consumers
            .iter()
            .filter(|(_, one)| slow(one))
            .map(|(id, one)| (*id, self.queues.get(&one.queue).is_some_and(Queue::is_quorum)))
            .collect();
        for (id, quorum) in slow {
            let quiet = quorum && self.rules.cancels_the_slow();
            self.end(id, if quiet { Kind::Cancelled } else { Kind::AckTimeout }, now);
        }
    }

    /// When something is due next.
    pub fn next(&self, now: Moment) -> Option<Moment> {
        let kept = self.queues.values().flat_map(|queue| queue.messages.values());
        let moments = kept.flat_map(|kept| [Some(kept.ready), kept.expires]).flatten();
        let limit = self.consumer_timeout;
        let hands = self.consumers.values().filter(|one| one.ended.is_none());
        let hands = hands.flat_map(|one| one.hand.values().map(|(_, since)| since.plus(limit)));
        moments.chain(hands).filter(|due| *due > now).min()
    }

    pub fn subscribe(&mut self, queue: &str, prefetch: u32) -> u64 {
        let id = self.number();
        let (queue, prefetch) = (queue.to_owned(), usize::try_from(prefetch).unwrap());
        self.consumers.insert(id, Consumer { queue, prefetch, hand: BTreeMap::new(), ended: None });
        id
    }

    /// Hands out up to `max` messages that are ready.
    pub fn take(&mut self, consumer: u64, max: usize, now: Moment) -> Vec<(u64, Kept)> {
        let Some(one) = self.consumers.get_mut(&consumer) else { return Vec::new() };
        let Some(queue) = self.queues.get_mut(&one.queue) else { return Vec::new() };
        let room = one.prefetch.saturating_sub(one.hand.len()).min(max);
        let ready = queue.messages.iter().filter(|(_, kept)| kept.ready <= now);
        let places: Vec<u64> = ready.map(|(place, _)| *place).take(room).collect();
        let mut taken = Vec::new();
        for place in places {
            let kept = queue.messages.remove(&place).unwrap();
            taken.push((place, kept.clone()));
            let kept = Kept { acquired: kept.acquired + 1, ..kept };
            one.hand.insert(place, (kept, now));
        }
        taken
    }

    pub fn can_take(&self, consumer: u64, now: Moment) -> bool {
        let Some(one) = self.consumers.get(&consumer) else { return false };
        one.hand.len() < one.prefetch
            && self
                .queues
                .get(&one.queue)
                .is_some_and(|queue| queue.messages.values().any(|kept| kept.ready <= now))
    }

    pub fn ended(&self, consumer: u64) -> Option<Kind> {
        self.consumers.get(&consumer).and_then(|one| one.ended)
    }

    pub fn ack(&mut self, consumer: u64, place: u64) -> bool {
        self.consumers.get_mut(&consumer).is_some_and(|one| one.hand.remove(&place).is_some())
    }

    /// `basic.reject` or `basic.nack`, with requeue.
    pub fn requeue(&mut self, consumer: u64, place: u64, how: Return, now: Moment) -> bool {
        let Some(one) = self.consumers.get_mut(&consumer) else { return false };
        let queue = one.queue.clone();
        let Some((kept, _)) = one.hand.remove(&place) else { return false };
        self.give_back(&queue, place, kept, how, now);
        true
    }

    /// The consumer is no more, and everything in its hand goes back. How many that were.
    pub fn end(&mut self, consumer: u64, why: Kind, now: Moment) -> usize {
        let Some(one) = self.consumers.get_mut(&consumer) else { return 0 };
        one.ended.get_or_insert(why);
        let (queue, hand) = (one.queue.clone(), std::mem::take(&mut one.hand));
        let count = hand.len();
        for (place, (kept, _)) in hand {
            self.give_back(&queue, place, kept, Return::Ended, now);
        }
        count
    }

    /// Every connection breaks.
    pub fn cut(&mut self, now: Moment) {
        let all: Vec<u64> = self.consumers.keys().copied().collect();
        for consumer in all {
            self.end(consumer, Kind::Disconnected, now);
        }
    }

    /// Messages that are ready, oldest first, as a consumer would see them.
    pub fn ready(&self, queue: &str, now: Moment) -> Option<Vec<(u64, Message)>> {
        let messages = &self.queues.get(queue)?.messages;
        let ready = messages.iter().filter(|(_, kept)| kept.ready <= now);
        Some(ready.map(|(place, kept)| (*place, self.shown(kept))).collect())
    }

    /// The message with what the broker writes on it.
    pub fn shown(&self, kept: &Kept) -> Message {
        let mut message = kept.message.clone();
        let mut write = |name: &str, value: String| message.headers.insert(name.to_owned(), value);
        if !kept.deaths.is_empty() {
            write("x-death", told(&kept.deaths));
        }
        if kept.failed > 0 {
            write("x-delivery-count", kept.failed.to_string());
        }
        if kept.acquired > 0 && self.rules.delays_retries() {
            write("x-acquired-count", kept.acquired.to_string());
        }
        message
    }

    pub fn argument(&mut self, queue: &str, key: &str, value: Option<Argument>) {
        let arguments = &mut self.queues.get_mut(queue).unwrap().declared.arguments;
        match value {
            Some(value) => arguments.insert(key.to_owned(), value),
            None => arguments.remove(key),
        };
    }

    pub fn delete(&mut self, queue: &str) {
        self.queues.remove(queue);
    }
}

/// `queue/reason/count`, one after the other: AMQP has a table here.
fn told(deaths: &[Death]) -> String {
    let one = |Death { queue, reason, count }: &Death| format!("{queue}/{reason}/{count}");
    deaths.iter().map(one).collect::<Vec<_>>().join(" ")
}

pub fn read(text: &str) -> Vec<Death> {
    let one = |part: &str| {
        let mut parts = part.split('/').map(str::to_owned);
        let (queue, reason) = (parts.next()?, parts.next()?);
        Some(Death { queue, reason, count: parts.next()?.parse().ok()? })
    };
    text.split(' ').filter_map(one).collect()
}

/// A topic pattern.
fn matches(pattern: &str, key: &str) -> bool {
    fn fits(pattern: &[&str], key: &[&str]) -> bool {
        match pattern.split_first() {
            None => key.is_empty(),
            Some((&"#", rest)) => (0..=key.len()).any(|skip| fits(rest, &key[skip..])),
            Some((word, rest)) => key
                .split_first()
                .is_some_and(|(first, keys)| (*word == "*" || word == first) && fits(rest, keys)),
        }
    }
    fits(&pattern.split('.').collect::<Vec<_>>(), &key.split('.').collect::<Vec<_>>())
}
