//! Rows of messages that wait in their broker's queue: one suite, run on every database.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use mamparo_core::message::headers::Headers;
use mamparo_store::retries::{self, Recalled};

mod common;

use common::at;
use common::home::Home;

const CONSUMER: &str = "orders.saga";

fn headers(attempts: &str) -> Headers {
    [("x-attempts", attempts), ("tenant", "Ñandú \"north\"")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

async fn what_was_written_before_a_rejection_is_there_when_it_comes_back<H: Home>() {
    let home = H::empty();
    let store = home.store().await;
    assert_eq!(retries::recall(&store, CONSUMER, "m-1").await.unwrap(), None);
    for (attempts, returns) in [("1", 1), ("2", 2)] {
        let given = headers(attempts);
        retries::keep(&store, CONSUMER, "m-1", &given, returns, at(1)).await.unwrap();
        let recalled = retries::recall(&store, CONSUMER, "m-1").await.unwrap();
        assert_eq!(recalled, Some(Recalled { headers: given, returns, suspect: false }));
    }
    // Another consumer's message of the same id is another one.
    assert_eq!(retries::recall(&store, "others", "m-1").await.unwrap(), None);
    retries::done(&store, CONSUMER, "m-1").await.unwrap();
    assert_eq!(retries::recall(&store, CONSUMER, "m-1").await.unwrap(), None);
    retries::done(&store, CONSUMER, "m-1").await.unwrap();
}

async fn what_another_process_had_in_hand_is_a_suspect_until_it_is_given_back<H: Home>() {
    let home = H::empty();
    let (one, two) = (home.store().await, home.store().await);
    retries::keep(&one, CONSUMER, "m-1", &headers("1"), 1, at(1)).await.unwrap();
    let suspect =
        async |store| retries::recall(store, CONSUMER, "m-1").await.unwrap().unwrap().suspect;
    assert!(!suspect(&one).await, "it was rejected in good order");
    assert!(!suspect(&one).await, "this process lives");
    assert!(suspect(&two).await, "the other one has not said what became of it");
    assert!(!suspect(&two).await, "now it is here");
    retries::keep(&two, CONSUMER, "m-1", &headers("2"), 2, at(2)).await.unwrap();
    assert!(!suspect(&one).await);
}

async fn rows_are_counted_and_old_ones_forgotten<H: Home>() {
    let home = H::empty();
    let store = home.store().await;
    assert_eq!(retries::stats(&store, CONSUMER).await.unwrap(), (0, None));
    for (id, second) in [("m-1", 1), ("m-2", 2), ("m-3", 3), ("m-4", 9)] {
        retries::keep(&store, CONSUMER, id, &headers("1"), 1, at(second)).await.unwrap();
    }
    retries::keep(&store, "others", "m-1", &headers("1"), 1, at(0)).await.unwrap();
    assert_eq!(retries::stats(&store, CONSUMER).await.unwrap(), (4, Some(at(1))));
    // It came back in between: as it is since then.
    retries::keep(&store, CONSUMER, "m-1", &headers("2"), 2, at(8)).await.unwrap();
    assert_eq!(retries::stats(&store, CONSUMER).await.unwrap(), (4, Some(at(2))));
    assert_eq!(retries::forget(&store, at(3), 1).await.unwrap(), 1, "the oldest first");
    assert_eq!(retries::stats(&store, "others").await.unwrap(), (0, None));
    assert_eq!(retries::forget(&store, at(3), 10).await.unwrap(), 1);
    assert_eq!(retries::forget(&store, at(3), 10).await.unwrap(), 0, "the time itself is kept");
    assert_eq!(retries::stats(&store, CONSUMER).await.unwrap(), (3, Some(at(3))));
}

on_every_database!(
    what_was_written_before_a_rejection_is_there_when_it_comes_back,
    what_another_process_had_in_hand_is_a_suspect_until_it_is_given_back,
    rows_are_counted_and_old_ones_forgotten,
);
