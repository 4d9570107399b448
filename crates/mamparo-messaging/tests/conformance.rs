//! What every broker must do, run on each of them: the embedded one and RabbitMQ.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod common;

use std::future::Future;
use std::time::Duration;

use common::{open_store, options, order, until, within};
use mamparo_call::clock;
use mamparo_messaging::broker::{Delivery, Settled, Subscription};
use mamparo_messaging::{
    AnyBroker, Broker, Confirm, EmbeddedBroker, Message, MessagingError, QueuePolicy,
};
use mamparo_testkit::leavings::Leavings;
use mamparo_testkit::servers::amqp_url;

/// One broker with a queue that nobody else uses.
struct Bench {
    broker: AnyBroker,
    policy: QueuePolicy,
    _folder: Option<tempfile::TempDir>,
    _leavings: Option<Leavings>,
}

async fn embedded() -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let broker = open_store(folder.path(), "broker.db").await;
    let broker = EmbeddedBroker::new(broker, options()).into();
    Bench { broker, policy: policy(), _folder: Some(folder), _leavings: None }
}

async fn rabbitmq() -> Bench {
    let (broker, policy) = (AnyBroker::open(&amqp_url()).await.unwrap(), policy());
    let leavings = Leavings::on(&amqp_url()).queue(&policy.queue);
    Bench { broker, policy, _folder: None, _leavings: Some(leavings) }
}

fn policy() -> QueuePolicy {
    let queue = format!("conformance.{}", uuid::Uuid::new_v4());
    QueuePolicy {
        retry_delay: Duration::from_millis(40),
        ..QueuePolicy::new(queue.clone(), "team-orders").bind(format!("{queue}.*"))
    }
}

impl Bench {
    async fn declared(self) -> Self {
        self.broker.declare(&self.policy).await.unwrap();
        self
    }

    fn queue(&self) -> &str {
        &self.policy.queue
    }

    fn message(&self, key: &str) -> Message {
        let routing_key = format!("{}.created", self.policy.queue);
        Message { routing_key, ..order("order.created", key) }
    }

    async fn publish(&self, message: &Message) {
        let confirm = self.broker.publish("events", &message.routing_key, message).await;
        assert_eq!(confirm, Confirm::Confirmed);
    }

    async fn consume(&self) -> impl Subscription + use<> {
        self.broker.consume(self.queue(), 10).await.unwrap()
    }

    /// What is over, so that a shared broker does not fill up. The messages go with it.
    async fn empty(&self) {
        let subscription = self.consume().await;
        until("the queue is empty", async || {
            for delivery in subscription.take(100).await.unwrap() {
                subscription.ack(delivery.receipt).await.unwrap();
            }
            self.broker.depth(self.queue()).await.unwrap() == 0
        })
        .await;
        within(subscription.close()).await.unwrap();
    }
}

async fn take(subscription: &impl Subscription, count: usize) -> Vec<Delivery> {
    within(async {
        let mut taken = Vec::new();
        while taken.len() < count {
            subscription.ready().await;
            let room = u32::try_from(count - taken.len()).unwrap();
            taken.extend(subscription.take(room).await.unwrap());
        }
        taken
    })
    .await
}

async fn what_is_published_is_handed_out_unchanged(bench: Bench) {
    let bench = bench.declared().await;
    let subscription = bench.consume().await;
    let mut sent = bench.message("o-1");
    sent.headers.insert("tenant".into(), "Ñandú \"north\"".into());
    sent.headers.insert("x-request-id".into(), "r-1".into());
    let empty = Message { body: Vec::new(), key: String::new(), ..bench.message("") };
    let bytes = (0..=u8::MAX).cycle().take(300_000).collect();
    let binary = Message { body: bytes, ..bench.message("o-2") };
    let all = [sent, empty, binary];
    for message in &all {
        bench.publish(message).await;
    }
    let taken = take(&subscription, all.len()).await;
    assert!(taken.iter().all(|delivery| !delivery.suspect));
    let messages: Vec<Message> = taken.into_iter().map(|delivery| delivery.message).collect();
    assert_eq!(messages, all);
    within(subscription.close()).await.unwrap();
    bench.empty().await;
}

async fn oldest_first_and_each_once(bench: Bench) {
    let bench = bench.declared().await;
    let sent: Vec<Message> = (0..30).map(|n| bench.message(&format!("o-{n}"))).collect();
    for message in &sent {
        bench.publish(message).await;
    }
    let subscription = bench.consume().await;
    let mut ids = Vec::new();
    while ids.len() < sent.len() {
        for delivery in take(&subscription, 1).await {
            assert_eq!(subscription.ack(delivery.receipt).await.unwrap(), Settled::Done);
            assert_eq!(subscription.ack(delivery.receipt).await.unwrap(), Settled::Stale);
            ids.push(delivery.message.id);
        }
    }
    let expected: Vec<String> = sent.into_iter().map(|message| message.id).collect();
    assert_eq!(ids, expected);
    assert_eq!(within(subscription.close()).await.unwrap(), 0);
    until("all are gone", async || bench.broker.depth(bench.queue()).await.unwrap() == 0).await;
}

async fn a_publish_that_nobody_wants_is_returned(bench: Bench) {
    let bench = bench.declared().await;
    let message = bench.message("o-1");
    for (exchange, routing_key) in
        [("events", "nobody.wants.this"), ("no.such.exchange", "x"), ("", "no.such.queue")]
    {
        let confirm = bench.broker.publish(exchange, routing_key, &message).await;
        assert_eq!(confirm, Confirm::Returned, "{exchange:?} {routing_key:?}");
    }
    bench.publish(&message).await;
    bench.empty().await;
}

async fn messages_c13_what_is_given_back_comes_again_later_and_its_old_receipt_is_nothing(
    bench: Bench,
) {
    let bench = bench.declared().await;
    bench.publish(&bench.message("o-1")).await;
    let subscription = bench.consume().await;
    let first = take(&subscription, 1).await.remove(0);
    let delay = Duration::from_millis(60).min(subscription.holds_for());
    let due = clock::now().plus(delay);
    assert_eq!(subscription.give_back(&first, delay).await.unwrap(), Settled::Done);
    assert_eq!(subscription.give_back(&first, delay).await.unwrap(), Settled::Stale);
    assert_eq!(subscription.ack(first.receipt).await.unwrap(), Settled::Stale);
    let second = take(&subscription, 1).await.remove(0);
    assert!(clock::now() >= due, "never early");
    assert_eq!(second.message, first.message);
    assert!(!second.suspect, "given back on purpose");
    assert!(second.receipt.epoch > first.receipt.epoch);
    assert_eq!(subscription.ack(first.receipt).await.unwrap(), Settled::Stale);
    assert_eq!(subscription.ack(second.receipt).await.unwrap(), Settled::Done);
    within(subscription.close()).await.unwrap();
    until("it is gone", async || bench.broker.depth(bench.queue()).await.unwrap() == 0).await;
}

async fn a_rejected_message_comes_again(bench: Bench) {
    let bench = bench.declared().await;
    bench.publish(&bench.message("o-1")).await;
    let subscription = bench.consume().await;
    let first = take(&subscription, 1).await.remove(0);
    assert_eq!(subscription.reject(first.receipt).await.unwrap(), Settled::Done);
    assert_eq!(subscription.reject(first.receipt).await.unwrap(), Settled::Stale);
    let second = take(&subscription, 1).await.remove(0);
    assert_eq!(second.message, first.message);
    assert_eq!(subscription.ack(second.receipt).await.unwrap(), Settled::Done);
    within(subscription.close()).await.unwrap();
}

async fn what_is_in_hand_at_the_end_goes_to_the_next_consumer_in_order(bench: Bench) {
    let bench = bench.declared().await;
    let sent: Vec<Message> = (0..5).map(|n| bench.message(&format!("o-{n}"))).collect();
    for message in &sent {
        bench.publish(message).await;
    }
    let subscription = bench.consume().await;
    let taken = take(&subscription, 5).await;
    assert_eq!(subscription.ack(taken[2].receipt).await.unwrap(), Settled::Done);
    assert_eq!(within(subscription.close()).await.unwrap(), 4);
    assert_eq!(subscription.ack(taken[0].receipt).await.unwrap(), Settled::Stale);
    let next = bench.consume().await;
    let ids: Vec<String> = take(&next, 4).await.into_iter().map(|d| d.message.id).collect();
    let expected: Vec<String> =
        [0, 1, 3, 4].into_iter().map(|n: usize| sent[n].id.clone()).collect();
    assert_eq!(ids, expected);
    within(next.close()).await.unwrap();
    bench.empty().await;
}

async fn messages_c13_a_dead_consumers_message_comes_again_as_suspect(bench: Bench) {
    let bench = bench.declared().await;
    bench.publish(&bench.message("o-1")).await;
    let dead = bench.consume().await;
    let old = take(&dead, 1).await.remove(0);
    drop(dead);
    let alive = bench.consume().await;
    let new = take(&alive, 1).await.remove(0);
    assert!(new.suspect, "its first process may have died of it");
    assert_eq!(new.message, old.message);
    assert!(new.receipt.epoch > old.receipt.epoch);
    assert_eq!(alive.ack(old.receipt).await.unwrap(), Settled::Stale);
    assert_eq!(alive.give_back(&old, Duration::ZERO).await.unwrap(), Settled::Stale);
    assert_eq!(alive.reject(old.receipt).await.unwrap(), Settled::Stale);
    assert_eq!(alive.ack(new.receipt).await.unwrap(), Settled::Done);
    within(alive.close()).await.unwrap();
    until("it is gone", async || bench.broker.depth(bench.queue()).await.unwrap() == 0).await;
}

async fn the_waiting_room_gives_back_after_its_delay_and_never_early(bench: Bench) {
    let bench = bench.declared().await;
    let wait = bench.policy.waits().remove(0);
    let subscription = bench.consume().await;
    let sent = bench.message("o-1");
    let begin = clock::now();
    let confirm = bench.broker.publish("", &wait.queue, &sent).await;
    assert_eq!(confirm, Confirm::Confirmed);
    let delivery = take(&subscription, 1).await.remove(0);
    assert!(clock::now() >= begin.plus(wait.delay));
    assert_eq!(delivery.message, sent, "exchange and routing key of the first publish included");
    assert!(!delivery.suspect);
    assert_eq!(subscription.ack(delivery.receipt).await.unwrap(), Settled::Done);
    within(subscription.close()).await.unwrap();
}

async fn lesson_t01_a_dead_letter_reaches_its_own_queue_only(bench: Bench) {
    let bench = bench.declared().await;
    let others = [policy(), policy()].map(|other| {
        let bindings = bench.policy.bindings.clone();
        QueuePolicy { bindings, ..other }
    });
    let leavings = Leavings::on(&amqp_url());
    let _leavings = others.iter().fold(leavings, |all, other| all.queue(&other.queue));
    for other in &others {
        bench.broker.declare(other).await.unwrap();
    }
    let confirm = bench.broker.publish("", &bench.policy.dlq(), &bench.message("o-1")).await;
    assert_eq!(confirm, Confirm::Confirmed);
    until("it lies there", async || bench.broker.depth(&bench.policy.dlq()).await.unwrap() == 1)
        .await;
    for other in &others {
        assert_eq!(bench.broker.depth(&other.dlq()).await.unwrap(), 0);
        assert_eq!(bench.broker.depth(&other.queue).await.unwrap(), 0);
    }
}

async fn declaring_again_changes_nothing(bench: Bench) {
    let bench = bench.declared().await;
    bench.publish(&bench.message("o-1")).await;
    let bench = bench.declared().await;
    let subscription = bench.consume().await;
    let delivery = take(&subscription, 1).await.remove(0);
    subscription.ack(delivery.receipt).await.unwrap();
    within(subscription.close()).await.unwrap();
}

async fn a_wrong_policy_or_queue_is_refused_in_words(bench: Bench) {
    let nobody = QueuePolicy { attempts: 0, ..QueuePolicy::new("orders", "") };
    let error = bench.broker.declare(&nobody).await.unwrap_err().to_string();
    assert!(error.contains("owner") && error.contains("attempts"), "{error}");
    let error = bench.broker.consume(bench.queue(), 10).await.unwrap_err();
    assert!(matches!(error, MessagingError::UnknownQueue { .. }), "{error}");
    assert!(error.to_string().contains(bench.queue()), "{error}");
}

async fn waiting_is_dropped_at_will_and_nothing_is_lost(bench: Bench) {
    let bench = bench.declared().await;
    let subscription = bench.consume().await;
    let sent: Vec<Message> = (0..20).map(|n| bench.message(&format!("o-{n}"))).collect();
    let (broker, all) = (bench.broker.clone(), sent.clone());
    let publisher = common::spawn(async move {
        for message in &all {
            let confirm = broker.publish("events", &message.routing_key, message).await;
            assert_eq!(confirm, Confirm::Confirmed);
        }
    });
    let mut got = Vec::new();
    while got.len() < sent.len() {
        // Dropped half-way as often as the runtime lets the other branch win.
        tokio::select! {
            biased;
            () = tokio::task::yield_now() => {}
            () = subscription.lost() => panic!("nothing ended it"),
            () = subscription.ready() => {}
        }
        within(subscription.ready()).await;
        for delivery in subscription.take(10).await.unwrap() {
            subscription.ack(delivery.receipt).await.unwrap();
            got.push(delivery.message.id);
        }
    }
    publisher.await.unwrap();
    let sent: Vec<String> = sent.into_iter().map(|message| message.id).collect();
    assert_eq!(got, sent);
    within(subscription.close()).await.unwrap();
    bench.empty().await;
}

async fn a_dropped_publish_harms_no_other(bench: Bench) {
    let bench = bench.declared().await;
    // Cut off after so many polls: before it is sent, on its way, after its confirm.
    for polls in 0..40_u32 {
        let message = bench.message(&format!("o-{polls}"));
        let publish = bench.broker.publish("events", &message.routing_key, &message);
        let mut left = polls / 4;
        let cut = std::pin::pin!(publish);
        let mut cut = Some(cut);
        std::future::poll_fn(|cx| {
            let done = cut.as_mut().is_none_or(|publish| publish.as_mut().poll(cx).is_ready());
            left = left.saturating_sub(1);
            if done || left == 0 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }
    bench.publish(&bench.message("last")).await;
    if let AnyBroker::RabbitMq(rabbit) = &bench.broker {
        until("no place in the window is lost", async || rabbit.in_flight() == 0).await;
    }
    bench.empty().await;
}

/// Where the broker came from outside, too, and when the test fails.
#[tokio::test]
async fn the_suite_leaves_nothing_on_rabbitmq() {
    let bench = rabbitmq().await.declared().await;
    let (broker, policy) = (bench.broker.clone(), bench.policy.clone());
    bench.publish(&bench.message("o-1")).await;
    let failed = common::spawn(async move {
        let _subscription = bench.consume().await;
        assert_eq!(bench.queue(), "", "a test that fails");
    });
    assert!(failed.await.unwrap_err().is_panic());
    for queue in [policy.queue.clone(), policy.dlq(), policy.waits().remove(0).queue] {
        let error = broker.depth(&queue).await.unwrap_err();
        assert!(matches!(error, MessagingError::UnknownQueue { .. }), "{queue}: {error}");
    }
}

/// Every case on every broker.
macro_rules! suite {
    ($($case:ident),+ $(,)?) => {
        mod on_embedded {
            $(#[tokio::test]
            async fn $case() {
                super::$case(super::embedded().await).await;
            })+
        }

        mod on_rabbitmq {
            $(#[tokio::test]
            async fn $case() {
                super::$case(super::rabbitmq().await).await;
            })+
        }
    };
}

suite!(
    what_is_published_is_handed_out_unchanged,
    oldest_first_and_each_once,
    a_publish_that_nobody_wants_is_returned,
    messages_c13_what_is_given_back_comes_again_later_and_its_old_receipt_is_nothing,
    a_rejected_message_comes_again,
    what_is_in_hand_at_the_end_goes_to_the_next_consumer_in_order,
    messages_c13_a_dead_consumers_message_comes_again_as_suspect,
    the_waiting_room_gives_back_after_its_delay_and_never_early,
    lesson_t01_a_dead_letter_reaches_its_own_queue_only,
    declaring_again_changes_nothing,
    a_wrong_policy_or_queue_is_refused_in_words,
    waiting_is_dropped_at_will_and_nothing_is_lost,
    a_dropped_publish_harms_no_other,
);
