//! The queues around a consumer, against the lesson's design.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::time::Duration;

use mamparo_core::message::capabilities::{Capabilities, Version};
use mamparo_core::message::topology::{
    Argument, Binding, Exchange, Order, PolicyProblem, Queue, QueuePolicy, QueueType, Refusal,
    Return, Role, Topology, WaitingRoom,
};

fn policy(queue: &str) -> QueuePolicy {
    QueuePolicy::new(queue, "team-orders").bind("order.created")
}

fn rabbit(version: &str) -> Capabilities {
    Capabilities::rabbitmq(Version::parse(version).unwrap())
}

fn names(topology: &Topology) -> Vec<&str> {
    topology.queues.iter().map(|queue| queue.name.as_str()).collect()
}

fn shown(queue: &Queue) -> String {
    let shown = |(name, value): (&String, &Argument)| format!("{name}={value}");
    queue.arguments.iter().map(shown).collect::<Vec<_>>().join(" ")
}

#[test]
fn lesson_t01_every_dead_letter_queue_is_its_own_and_bound_to_nothing() {
    for broker in [Capabilities::embedded(), rabbit("3.10.8")] {
        let one = policy("orders.saga").topology(&broker);
        let other = policy("payments.saga").topology(&broker);
        for (topology, main) in [(&one, "orders.saga"), (&other, "payments.saga")] {
            assert!(topology.bindings.iter().all(|binding| binding.queue == main), "{topology:?}");
            assert!(topology.queues.iter().all(|queue| queue.name.starts_with(main)));
            let exchanges = topology.queues.iter().map(|q| q.text("x-dead-letter-exchange"));
            assert!(exchanges.flatten().all(str::is_empty), "by name, through no exchange");
        }
        assert!(one.queues.iter().all(|queue| !other.queues.contains(queue)));
    }
}

#[test]
fn lesson_t02_the_waiting_room_returns_by_queue_name_and_through_no_exchange() {
    let topology = policy("orders.saga").topology(&Capabilities::embedded());
    assert_eq!(names(&topology), ["orders.saga.dlq", "orders.saga", "orders.saga.retry"]);
    let way = Return { after: Duration::from_secs(30), to: "orders.saga".to_owned() };
    assert_eq!(topology.queues[2].returns, Some(way));
    assert_eq!((&topology.queues[0].returns, &topology.queues[1].returns), (&None, &None));
    let roles: Vec<Role> = topology.queues.iter().map(|queue| queue.role).collect();
    assert_eq!(roles, [Role::DeadLetters, Role::Main, Role::Waiting]);
}

#[test]
fn every_argument_on_rabbitmq_is_named_with_its_queue_type_first_of_all() {
    let topology = policy("orders.saga").topology(&rabbit("3.10.8"));
    assert_eq!(topology.exchanges, [Exchange { name: "events".to_owned() }]);
    let queues: Vec<String> = topology.queues.iter().map(shown).collect();
    let expected = [
        "x-delivery-limit=1000000 x-max-length=100000 x-overflow=reject-publish x-queue-type=quorum",
        "x-dead-letter-exchange=\"\" x-dead-letter-routing-key=orders.saga.dlq \
         x-dead-letter-strategy=at-least-once x-delivery-limit=100 x-overflow=reject-publish \
         x-queue-type=quorum",
        "x-dead-letter-exchange=\"\" x-dead-letter-routing-key=orders.saga \
         x-dead-letter-strategy=at-least-once x-max-length=100000 x-message-ttl=30000 \
         x-overflow=reject-publish x-queue-type=quorum",
    ];
    assert_eq!(queues, expected);
    // What a queue is made with must not change with the broker's release: it would differ after an upgrade.
    for later in ["3.13.7", "4.0.0", "4.1.3", "4.3.0"] {
        assert_eq!(policy("orders.saga").topology(&rabbit(later)), topology, "{later}");
    }
    let classic = QueuePolicy { queue_type: QueueType::Classic, ..policy("orders.saga") };
    let main = shown(&classic.topology(&rabbit("3.10.8")).queues[1]);
    let expected = "x-dead-letter-exchange=\"\" x-dead-letter-routing-key=orders.saga.dlq \
                    x-queue-type=classic";
    assert_eq!(main, expected, "a classic queue knows no strategy and no delivery limit");
}

#[test]
fn lesson_t05_growing_tiers_are_queues_of_their_own_named_by_their_delay() {
    let delays = [Duration::from_millis(500), Duration::from_secs(30), Duration::from_secs(7_200)];
    let tiers = QueuePolicy { retry_tiers: delays.to_vec(), ..policy("orders.saga") };
    let waits: Vec<String> = tiers.waits().into_iter().map(|wait| wait.queue).collect();
    let expected = ["orders.saga.retry.500ms", "orders.saga.retry.30s", "orders.saga.retry.2h"];
    assert_eq!(waits, expected);
    let topology = tiers.topology(&rabbit("3.10.8"));
    assert_eq!(names(&topology)[2..], expected);
    let ttls: Vec<Option<i64>> =
        topology.queues.iter().map(|queue| queue.number("x-message-ttl")).collect();
    assert_eq!(ttls, [None, None, Some(500), Some(30_000), Some(7_200_000)]);
    // 4 waits: the tiers, and the last one again.
    let waits = Duration::from_millis(500) + Duration::from_secs(30 + 2 * 7_200);
    // Each up to 20 % longer.
    assert_eq!(tiers.worst_case(), Duration::from_secs(150) + waits * 12 / 10);
    let two = QueuePolicy { attempts: 2, ..tiers };
    assert_eq!(two.worst_case(), Duration::from_millis(60_600));
}

#[test]
fn only_the_waiting_room_that_is_used_is_made() {
    let in_room = |waiting_room, broker: &Capabilities| {
        let policy = QueuePolicy { waiting_room, ..policy("q") };
        let topology = policy.topology(broker);
        let delayed = topology.queues[1].text("x-delayed-retry-type").map(str::to_owned);
        (policy.room_on(broker), topology.queues.len(), delayed)
    };
    for old in [rabbit("3.10.8"), rabbit("4.2.9"), Capabilities::embedded()] {
        assert_eq!(in_room(WaitingRoom::Tiers, &old), (WaitingRoom::Tiers, 3, None));
        assert_eq!(in_room(WaitingRoom::Parked, &old), (WaitingRoom::Parked, 2, None));
        assert_eq!(in_room(WaitingRoom::Broker, &old), (WaitingRoom::Tiers, 3, None));
    }
    let own = in_room(WaitingRoom::Broker, &rabbit("4.3.0"));
    assert_eq!(own, (WaitingRoom::Broker, 2, Some("failed".to_owned())));
    let tiers = vec![Duration::from_secs(5), Duration::from_secs(600)];
    let waiting_room = WaitingRoom::Broker;
    let grows = QueuePolicy { waiting_room, retry_tiers: tiers, ..policy("q") };
    let main = grows.topology(&rabbit("4.3.0")).queues.swap_remove(1);
    let ends = ["x-delayed-retry-min", "x-delayed-retry-max"].map(|key| main.number(key));
    assert_eq!(ends, [Some(5_000), Some(600_000)]);
}

#[test]
fn strict_order_has_one_active_consumer_and_parks() {
    let parked = QueuePolicy { waiting_room: WaitingRoom::Parked, ..policy("q") };
    let active = |order| {
        let topology = QueuePolicy { order, ..parked.clone() }.topology(&rabbit("3.10.8"));
        let main = topology.queues.iter().find(|queue| queue.role == Role::Main).unwrap();
        main.arguments.get("x-single-active-consumer").cloned()
    };
    assert_eq!(active(Order::Strict), Some(Argument::Flag(true)));
    assert_eq!((active(Order::Key), active(Order::None)), (None, None));
    let strict = QueuePolicy { order: Order::Strict, ..parked };
    assert_eq!(strict.problems(), []);
    for waiting_room in [WaitingRoom::Tiers, WaitingRoom::Broker] {
        let forgets = QueuePolicy { waiting_room, ..strict.clone() };
        assert_eq!(forgets.problems(), [PolicyProblem::Order]);
    }
}

#[test]
fn a_version_is_another_queue_and_the_same_consumer() {
    let first = policy("orders.saga");
    assert_eq!(first.clone().versioned(1), first);
    let second = first.versioned(2);
    assert_eq!((second.queue.as_str(), second.consumer()), ("orders.saga.v2", "orders.saga"));
    assert_eq!((second.dlq(), second.problems()), ("orders.saga.v2.dlq".to_owned(), vec![]));
    assert_eq!(second.clone().versioned(3).queue, "orders.saga.v3");
    let misnamed = QueuePolicy { queue: "orders.saga".to_owned(), ..second };
    assert_eq!(misnamed.problems(), [PolicyProblem::Version]);
    assert_eq!(misnamed.consumer(), "orders.saga");
}

/// What the lesson declares on RabbitMQ for two consumers.
fn lesson() -> Topology {
    let text = |text: &str| Argument::Text(text.to_owned());
    let queue = |name: String, role, arguments: Vec<(&str, Argument)>| Queue {
        name,
        role,
        returns: None,
        arguments: arguments.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
    };
    let mut topology = Topology { exchanges: vec![], queues: vec![], bindings: vec![] };
    for name in ["orders", "payments"] {
        let dead = || ("x-dead-letter-exchange", text("dlx"));
        topology.queues.push(queue(format!("{name}.dlq"), Role::DeadLetters, vec![]));
        topology.queues.push(queue(name.to_owned(), Role::Main, vec![dead()]));
        let ttl = ("x-message-ttl", Argument::Number(30_000));
        let back = vec![("x-dead-letter-exchange", text("")), ttl];
        topology.queues.push(queue(format!("{name}.retry"), Role::Waiting, back));
        let pattern = "#".to_owned();
        let dlq = format!("{name}.dlq");
        topology.bindings.push(Binding { exchange: "dlx".to_owned(), pattern, queue: dlq });
    }
    topology
}

#[test]
fn the_lessons_topology_is_refused_with_reasons_and_ours_is_not() {
    let broker = rabbit("3.10.8");
    let refusals = lesson().refusals(&broker);
    let receivers = vec!["orders.dlq".to_owned(), "payments.dlq".to_owned()];
    let mut expected = vec![Refusal::SharedDeadLetters { exchange: "dlx".to_owned(), receivers }];
    for name in ["orders", "payments"] {
        let [dlq, retry] = ["dlq", "retry"].map(|suffix| format!("{name}.{suffix}"));
        expected.push(Refusal::Unbounded { queue: dlq });
        expected.push(Refusal::ClassicWaitingRoom { queue: retry.clone() });
        expected.push(Refusal::Unbounded { queue: retry });
    }
    assert_eq!(refusals, expected);
    for room in [WaitingRoom::Tiers, WaitingRoom::Parked, WaitingRoom::Broker] {
        for version in ["3.10.0", "3.13.7", "4.0.0", "4.1.0", "4.3.1"] {
            let ours = QueuePolicy { waiting_room: room, ..policy("orders.saga") };
            assert_eq!(ours.refusals(&rabbit(version)), [], "{room:?} on {version}");
        }
    }
}

#[test]
fn messages_c06_each_kind_of_loss_is_refused_and_says_why_and_the_way_out() {
    let broker = rabbit("4.1.0");
    let topology = policy("q").topology(&broker);
    let without = |n: usize, key: &str| {
        let mut topology = topology.clone();
        topology.queues[n].arguments.remove(key).unwrap();
        topology.refusals(&broker)
    };
    let queue = || "q.retry".to_owned();
    assert_eq!(without(2, "x-queue-type"), [Refusal::ClassicWaitingRoom { queue: queue() }]);
    for key in ["x-dead-letter-strategy", "x-overflow"] {
        assert_eq!(without(2, key), [Refusal::ForgetsOnReturn { queue: queue() }]);
    }
    assert_eq!(without(2, "x-message-ttl"), [Refusal::TimePerMessage { queue: queue() }]);
    assert_eq!(without(2, "x-max-length"), [Refusal::Unbounded { queue: queue() }]);
    let main = || "q".to_owned();
    let lost = [Refusal::LimitWithoutTarget { queue: main(), limit: 100 }];
    assert_eq!(without(1, "x-dead-letter-exchange"), lost);
    // From 4.0 on a dead-letter queue has a limit that nobody asked for.
    let lost = [Refusal::LimitWithoutTarget { queue: "q.dlq".to_owned(), limit: 20 }];
    assert_eq!(without(0, "x-delivery-limit"), lost);
    let mut older = topology.clone();
    older.queues[0].arguments.remove("x-delivery-limit").unwrap();
    assert_eq!(older.refusals(&rabbit("3.13.7")), []);
    let version = Version::new(3, 9, 29);
    let old = policy("q").refusals(&Capabilities::rabbitmq(version));
    assert_eq!(old, [Refusal::TooOld { version }]);
    let queue_type = QueueType::Classic;
    let waiting_room = WaitingRoom::Broker;
    let undelayed = QueuePolicy { queue_type, waiting_room, ..policy("q") };
    let refused = [Refusal::ClassicDelayedRetry { queue: main() }];
    assert_eq!(undelayed.refusals(&rabbit("4.3.0")), refused);
    assert_eq!(undelayed.refusals(&broker), [], "it falls back to tiers");
    for refusal in lost.iter().chain(&old).chain(&refused) {
        for words in [refusal.to_string().as_str(), refusal.why(), refusal.way_out()] {
            assert!(words.len() > 20 && !words.ends_with('.'), "{words}");
        }
    }
}

#[test]
fn messages_c04_a_waiting_room_belongs_to_one_queue_only() {
    assert_ne!(policy("a").retry_queue(), policy("b").retry_queue());
}

#[test]
fn lesson_t07_a_queue_without_an_owner_is_refused_and_all_mistakes_come_at_once() {
    assert_eq!(policy("orders.saga").problems(), []);
    let wrong = QueuePolicy {
        queue: "orders.dlq".to_owned(),
        owner: " ".to_owned(),
        prefetch: 0,
        workers: Some(1),
        attempts: 0,
        retry_delay: Duration::ZERO,
        retry_tiers: vec![Duration::from_secs(2), Duration::from_secs(1)],
        waiting_room: WaitingRoom::Tiers,
        order: Order::Strict,
        handler_timeout: Duration::ZERO,
        queue_type: QueueType::Quorum,
        delivery_limit: 10_001,
        max_length: 0,
        version: 0,
        bindings: vec!["order..created".to_owned(), "order.*".to_owned()],
    };
    let problems = wrong.problems();
    let expected = [
        PolicyProblem::ReservedSuffix,
        PolicyProblem::Owner,
        PolicyProblem::Prefetch,
        PolicyProblem::Workers,
        PolicyProblem::Attempts,
        PolicyProblem::RetryDelay,
        PolicyProblem::RetryTiers,
        PolicyProblem::Order,
        PolicyProblem::HandlerTimeout,
        PolicyProblem::DeliveryLimit,
        PolicyProblem::MaxLength,
        PolicyProblem::Version,
        PolicyProblem::Binding("order..created".to_owned()),
    ];
    assert_eq!(problems, expected);
    for name in ["", "with space", &"x".repeat(201)] {
        assert!(policy(name).problems().contains(&PolicyProblem::Name), "{name:?}");
    }
    assert!(problems.iter().all(|problem| !problem.to_string().is_empty()));
}

#[test]
fn lesson_k13_the_worst_case_counts_attempts_and_waits() {
    // 5 × 20 s of handling and 4 × 30 s of waiting.
    let payments = QueuePolicy { handler_timeout: Duration::from_secs(20), ..policy("payments") };
    assert_eq!(payments.worst_case(), Duration::from_secs(220));
    // Rows that wait are spread: 4 × 36 s.
    let parked = QueuePolicy { waiting_room: WaitingRoom::Parked, ..payments.clone() };
    assert_eq!(parked.worst_case(), Duration::from_secs(244));
    let endless = QueuePolicy { retry_delay: Duration::MAX, ..payments };
    assert_eq!(endless.worst_case(), Duration::MAX);
}
