//! A handler's limit and the broker's.

use std::time::Duration;

use mamparo_core::message::capabilities::{Capabilities, Version};
use mamparo_core::message::patience::{CONSUMER_TIMEOUT, MARGIN, Patience, patience};
use mamparo_core::message::topology::QueuePolicy;

#[test]
fn lesson_k11_a_handler_must_end_before_the_broker_takes_its_message_back() {
    let rabbit = Capabilities::rabbitmq(Version::new(3, 10, 8));
    let most = CONSUMER_TIMEOUT - MARGIN;
    let second = Duration::from_secs(1);
    // Prefetch, workers, handler's limit; verdict on RabbitMQ.
    let rows = [
        (10, None, 30 * second, Patience::Enough),
        (1_000, None, most, Patience::Enough),
        (10, None, most + second, Patience::TooShort),
        (10, Some(1), Duration::MAX, Patience::TooShort),
        (100, Some(8), 30 * second, Patience::Enough),
        (100, Some(1), 30 * second, Patience::Crowded(3_000 * second)),
        (9, Some(2), 400 * second, Patience::Crowded(2_000 * second)),
    ];
    for (prefetch, workers, handler_timeout, verdict) in rows {
        let policy =
            QueuePolicy { prefetch, workers, handler_timeout, ..QueuePolicy::new("q", "team") };
        assert_eq!(patience(&policy, &rabbit, CONSUMER_TIMEOUT), verdict, "{policy:?}");
        let embedded = patience(&policy, &Capabilities::embedded(), CONSUMER_TIMEOUT);
        assert_eq!(embedded, Patience::Enough, "its leases are renewed");
    }
}
