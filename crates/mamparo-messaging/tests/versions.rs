//! A queue changes its version while events come: both versions get them, and each is handled once.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use common::{QUEUE, Script, done, order, policy, shop, until};
use mamparo_messaging::Broker as _;

#[tokio::test]
async fn lesson_t04_an_event_that_reaches_two_versions_of_a_queue_is_handled_once() {
    let shop = shop().await;
    let (first, second) = (policy(), policy().versioned(2));
    for version in [&first, &second] {
        shop.broker.declare(version).await.unwrap();
    }
    // What lay in the old queue before the new one was bound, and what comes by both.
    for key in ["o-1", "o-2", "o-3"] {
        shop.publish(&order("order.created", key)).await;
    }
    assert_eq!(shop.broker.depth(QUEUE).await.unwrap(), 3);
    assert_eq!(shop.broker.depth(&second.queue).await.unwrap(), 3);
    let script = Script::new(|_, _| done());
    let (old, new) = (shop.consume(first, &script), shop.consume(second.clone(), &script));
    until("both are empty", async || {
        let depths = (shop.broker.depth(QUEUE).await, shop.broker.depth(&second.queue).await);
        (depths.0.unwrap(), depths.1.unwrap()) == (0, 0)
    })
    .await;
    old.stop().await;
    new.stop().await;
    assert_eq!(shop.effects().await.len(), 3, "six deliveries, three effects");
}
