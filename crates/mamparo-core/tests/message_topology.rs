//! The queues around a consumer, against the lesson's design.

use std::time::Duration;

use mamparo_core::message::topology::{PolicyProblem, QueuePolicy, Return};

fn policy(queue: &str) -> QueuePolicy {
    QueuePolicy::new(queue, "team-orders").bind("order.created")
}

#[test]
fn lesson_t01_every_dead_letter_queue_is_its_own_and_bound_to_nothing() {
    let (one, other) = (policy("orders.saga").topology(), policy("payments.saga").topology());
    for topology in [&one, &other] {
        let main = &topology.queues[0].name;
        assert!(topology.bindings.iter().all(|binding| &binding.queue == main), "{topology:?}");
        assert!(topology.queues.iter().all(|queue| queue.name.starts_with(main.as_str())));
    }
    let shared = one.queues.iter().filter(|queue| other.queues.contains(queue)).count();
    assert_eq!(shared, 0);
}

#[test]
fn lesson_t02_the_waiting_room_returns_by_queue_name_and_through_no_exchange() {
    let topology = policy("orders.saga").topology();
    let names: Vec<&str> = topology.queues.iter().map(|queue| queue.name.as_str()).collect();
    assert_eq!(names, ["orders.saga", "orders.saga.retry", "orders.saga.dlq"]);
    let way = Return { after: Duration::from_secs(30), to: "orders.saga".to_owned() };
    assert_eq!(topology.queues[1].returns, Some(way));
    assert_eq!((&topology.queues[0].returns, &topology.queues[2].returns), (&None, &None));
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
        attempts: 0,
        retry_delay: Duration::ZERO,
        handler_timeout: Duration::ZERO,
        bindings: vec!["order..created".to_owned(), "order.*".to_owned()],
    };
    let problems = wrong.problems();
    let expected = [
        PolicyProblem::ReservedSuffix,
        PolicyProblem::Owner,
        PolicyProblem::Prefetch,
        PolicyProblem::Attempts,
        PolicyProblem::RetryDelay,
        PolicyProblem::HandlerTimeout,
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
    let endless = QueuePolicy { retry_delay: Duration::MAX, ..payments };
    assert_eq!(endless.worst_case(), Duration::MAX);
}
