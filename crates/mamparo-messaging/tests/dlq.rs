//! What people do with dead letters.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use common::{QUEUE, Script, Shop, Step, done, order, policy, shop, until};
use mamparo_call::clock;
use mamparo_core::message::headers;
use mamparo_core::message::lineage;
use mamparo_core::message::selection::{End, Sift};
use mamparo_messaging::broker::Filter;
use mamparo_messaging::dlq::{self, Choice, Outcome, Pace, Selected, Task, Verb, Witness};
use mamparo_messaging::embedded::EmbeddedLetters;
use mamparo_messaging::{Answer, Broker as _, Confirm, Message, MessagingError};
use mamparo_store::{inbox, queue};
use tokio_util::sync::CancellationToken;

/// `count` dead letters of each kind, in turns, as a consumer leaves them.
async fn dead(shop: &Shop, kinds: &[&str], count: usize) -> Vec<Message> {
    shop.broker.declare(&policy()).await.unwrap();
    let mut messages = Vec::new();
    for n in 0..count {
        for kind in kinds {
            let mut message = order(kind, &format!("o-{n}"));
            // The worst case for tools: the routing key has been rewritten on the way.
            message.routing_key = QUEUE.to_owned();
            for (name, value) in [
                ("x-attempts", "5"),
                ("x-attempts-queue", QUEUE),
                ("x-death", "[maxlen]"),
                ("traceparent", "00-a-b-01"),
            ] {
                message.headers.insert(name.to_owned(), value.to_owned());
            }
            let confirm = shop.broker.publish("", &format!("{QUEUE}.dlq"), &message).await;
            assert_eq!(confirm, Confirm::Confirmed);
            messages.push(message);
        }
    }
    messages
}

fn ids(messages: impl IntoIterator<Item = Message>) -> Vec<String> {
    messages.into_iter().map(|message| message.id).collect()
}

fn of_kind(kind: &str) -> Choice {
    Choice { sift: Sift { kind: Some(kind.to_owned()), ..Sift::default() }, ..Choice::default() }
}

async fn select(shop: &Shop, choice: &Choice) -> Selected<EmbeddedLetters> {
    dlq::select(&shop.broker, QUEUE, choice).await.unwrap()
}

async fn carry_out(
    selected: &mut Selected<EmbeddedLetters>,
    task: &Task,
) -> Result<Outcome, MessagingError> {
    dlq::carry_out(selected, task, None, &CancellationToken::new(), |_| ()).await
}

async fn replay(selected: &mut Selected<EmbeddedLetters>) -> Outcome {
    carry_out(selected, &Task::new(Verb::Replay, "ana", "")).await.unwrap()
}

#[tokio::test]
async fn lesson_s01_s02_a_filter_goes_by_type_and_never_meets_the_same_head_twice() {
    let shop = shop().await;
    let all = dead(&shop, &["order.created", "order.paid"], 5).await;
    let mut selected = select(&shop, &of_kind("order.paid")).await;
    assert_eq!((selected.messages.len(), selected.total), (5, 10));
    let outcome = replay(&mut selected).await;
    let expected = ids(all.into_iter().filter(|message| message.kind == "order.paid"));
    assert_eq!((outcome.done, outcome.end), (expected, End::Finished), "oldest first");
    assert_eq!((shop.depth("").await, shop.depth(".dlq").await), (5, 5));
}

#[tokio::test]
async fn lesson_s03_poison_that_comes_back_is_not_moved_again_in_the_same_batch() {
    let shop = shop().await;
    dead(&shop, &["order.created"], 20).await;
    let script = Script::new(|_, _| Step::Prepare(Answer::dead("poison")));
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    let mut selected = select(&shop, &Choice::default()).await;
    let outcome = replay(&mut selected).await;
    assert_eq!((outcome.done.len(), outcome.left.len()), (20, 0));
    until("all dead again", async || shop.depth(".dlq").await == 20).await;
    assert_eq!(script.seen().len(), 20, "each once");
    // The frozen selection is spent: what lies there now are other places in the queue.
    let again = replay(&mut selected).await;
    assert_eq!((again.done.len(), again.left.len()), (0, 20));
    assert!(again.left[0].why.contains("gone"), "{:?}", again.left[0]);
    running.stop().await;
}

#[tokio::test]
async fn chaos_e19_looking_alters_nothing_and_a_batch_hides_no_newer_failure() {
    let shop = shop().await;
    let first = dead(&shop, &["order.created"], 3).await;
    let look = async || select(&shop, &Choice::default()).await;
    let places = |selected: &Selected<EmbeddedLetters>| {
        selected.messages.iter().map(|stored| (stored.tag, stored.since)).collect::<Vec<_>>()
    };
    let mut selected = look().await;
    assert_eq!(places(&look().await), places(&selected), "the same places, the same times");
    let seen: Vec<Message> = selected.messages.iter().map(|s| s.message.clone()).collect();
    assert_eq!(seen, first, "headers and bodies untouched");

    // Fails while somebody thinks about the first three.
    let newer = dead(&shop, &["order.paid"], 1).await;
    let outcome = replay(&mut selected).await;
    assert_eq!(outcome.done, ids(first), "each is really back in its queue");
    assert_eq!(shop.depth("").await, 3);
    let left = look().await.messages.into_iter().map(|stored| stored.message);
    assert_eq!(ids(left), ids(newer), "and the newer one is still there to be seen");
}

#[tokio::test]
async fn lesson_s05_a_replay_is_one_copy_that_starts_over() {
    let shop = shop().await;
    let sent = dead(&shop, &["order.created"], 1).await.remove(0);
    let mut selected = select(&shop, &Choice::default()).await;
    replay(&mut selected).await;
    assert_eq!((shop.depth("").await, shop.depth(".dlq").await), (1, 0));
    let back = shop.broker.browse(QUEUE, &Filter::default()).await.unwrap().remove(0).message;
    assert_eq!((&back.id, &back.kind, &back.body), (&sent.id, &sent.kind, &sent.body));
    assert_eq!(headers::attempts(&back.headers, QUEUE).made, 0);
    assert!(back.header(headers::REPLAYED).is_some());
    assert_eq!(back.header("traceparent"), Some("00-a-b-01"));
    assert_eq!(back.header(lineage::REPLAY_OF), Some("00-a-b-01"));
    assert_eq!(back.header("x-death"), None);
    let script = Script::new(|_, _| done());
    let running = shop.consume(policy(), &script);
    until("applied", async || shop.effects().await == [sent.id.as_str()]).await;
    running.stop().await;
}

#[tokio::test]
async fn lesson_s04_a_replay_into_a_queue_that_is_gone_loses_nothing() {
    let shop = shop().await;
    let all = dead(&shop, &["order.created"], 3).await;
    let mut selected = select(&shop, &Choice::default()).await;
    shop.meddle("DELETE FROM mamparo_queues WHERE name = 'orders.saga'").await;
    let outcome = replay(&mut selected).await;
    assert_eq!((outcome.done.len(), outcome.left.len()), (0, 3));
    assert_eq!(outcome.left[0].why, "queue \"orders.saga\" does not exist");
    let left = shop.dead().await.into_iter().map(|stored| stored.message);
    assert_eq!(ids(left), ids(all), "in place and in order");
}

#[tokio::test]
async fn lesson_s06_discarding_takes_an_actor_and_a_reason_and_can_be_undone() {
    let shop = shop().await;
    let sent = dead(&shop, &["order.created"], 2).await;
    let sift = Sift { ids: vec![sent[0].id.clone()], ..Sift::default() };
    let mut selected = select(&shop, &Choice { sift, ..Choice::default() }).await;
    for (actor, reason) in [("", "test order"), ("ana", " ")] {
        let task = Task::new(Verb::Discard, actor, reason);
        let error = carry_out(&mut selected, &task).await.unwrap_err();
        assert!(matches!(error, MessagingError::Unsigned(_)), "{error}");
    }
    assert_eq!(shop.depth(".dlq").await, 2);
    let task = Task::new(Verb::Discard, "ana", "test order");
    let outcome = carry_out(&mut selected, &task).await.unwrap();
    assert_eq!(outcome.done, [sent[0].id.clone()]);
    assert_eq!(shop.depth(".dlq").await, 1);
    let archive = queue::archive(shop.broker.store(), &format!("{QUEUE}.dlq"), 10).await.unwrap();
    assert_eq!(archive.len(), 1);
    assert_eq!((archive[0].actor.as_str(), archive[0].reason.as_str()), ("ana", "test order"));
    assert_eq!(archive[0].message.id, sent[0].id);

    let undo = Task::new(Verb::Undo, "bea", "it was real");
    let archived =
        async || dlq::select_archived(&shop.broker, QUEUE, &Choice::default()).await.unwrap();
    shop.meddle("UPDATE mamparo_archive SET archived_at = archived_at - 604801000").await;
    let late = carry_out(&mut archived().await, &undo).await.unwrap();
    assert_eq!(late.left[0].why, "it was discarded over 7 days ago");
    shop.meddle("UPDATE mamparo_archive SET archived_at = archived_at + 604000000").await;
    let outcome = carry_out(&mut archived().await, &undo).await.unwrap();
    assert_eq!(outcome.done, [sent[0].id.clone()]);
    let back = shop.dead().await.pop().unwrap().message;
    let mut expected = sent[0].clone();
    expected.headers = headers::carried(&expected.headers);
    assert_eq!(back, expected, "as it was");
    assert_eq!(archived().await.messages.len(), 0);
    let totals = queue::totals(shop.broker.store()).await.unwrap();
    assert!(totals.iter().all(queue::Totals::balanced), "{totals:?}");
}

#[tokio::test]
async fn messages_c39_an_edit_is_one_linked_copy_and_the_original_is_archived() {
    let shop = shop().await;
    let sent = dead(&shop, &["order.created"], 1).await.remove(0);
    let edit = |body: &str, name: &str, value: &str| {
        let headers = vec![(name.to_owned(), value.to_owned())];
        Task::new(Verb::Edit { body: Some(body.into()), headers }, "ana", "bad total")
    };
    let mut selected = select(&shop, &Choice::default()).await;
    let outcome = carry_out(&mut selected, &edit("{\"total\":1}", "tenant", "b")).await.unwrap();
    assert_eq!(outcome.done, std::slice::from_ref(&sent.id));
    assert_eq!((shop.depth("").await, shop.depth(".dlq").await), (1, 0), "one copy, no original");
    let copy = shop.broker.browse(QUEUE, &Filter::default()).await.unwrap().remove(0).message;
    assert_eq!(copy.id, format!("{}~e1", sent.id));
    assert_eq!(copy.body, b"{\"total\":1}");
    assert_eq!(copy.header(lineage::EDITED_FROM), Some(sent.id.as_str()));
    assert_eq!((copy.header("tenant"), copy.header("traceparent")), (Some("b"), Some("00-a-b-01")));
    assert_eq!((&copy.kind, &copy.key, &copy.exchange), (&sent.kind, &sent.key, &sent.exchange));
    for (name, value) in headers::carried(&sent.headers) {
        let kept = copy.header(&name).map(str::to_owned);
        assert!(kept == Some(value) || name.starts_with("x-attempts"), "{name}: {kept:?}");
    }
    let again = carry_out(&mut selected, &edit("{}", "tenant", "c")).await.unwrap();
    assert_eq!((again.done.len(), again.left.len(), shop.depth("").await), (0, 1, 1), "only one");

    // The copy is poison too: an edit of the edit.
    let script = Script::new(|message, _| {
        if message.id.ends_with("~e1") { Step::Prepare(Answer::dead("poison")) } else { done() }
    });
    let running = shop.consume(policy(), &script);
    until("dead again", async || shop.depth(".dlq").await == 1).await;
    let mut selected = select(&shop, &Choice::default()).await;
    carry_out(&mut selected, &edit("{\"total\":2}", "tenant", "d")).await.unwrap();
    let second = format!("{}~e2", sent.id);
    until("applied", async || shop.effects().await == [second.as_str()]).await;
    running.stop().await;
    let mut archived = dlq::select_archived(&shop.broker, QUEUE, &Choice::default()).await.unwrap();
    assert_eq!(archived.messages.len(), 2);
    let undo = carry_out(&mut archived, &Task::new(Verb::Undo, "ana", "")).await.unwrap();
    assert_eq!((undo.done.len(), undo.left.len()), (0, 2), "their copies went their way");
}

#[tokio::test]
async fn lesson_s07_a_canary_that_fails_again_keeps_the_rest_where_it_lies() {
    let shop = shop().await;
    let all = dead(&shop, &["order.created"], 10).await;
    let script = Script::new(|_, _| Step::Prepare(Answer::dead("still broken")));
    let running = shop.consume(policy(), &script);
    let canary = Some(std::time::Duration::from_secs(20));
    let task =
        Task { pace: Pace { canary, ..Pace::default() }, ..Task::new(Verb::Replay, "ana", "") };
    let mut selected = select(&shop, &Choice::default()).await;
    let outcome = carry_out(&mut selected, &task).await.unwrap();
    assert_eq!((outcome.end, outcome.untouched), (End::CanaryFailed, 9));
    assert_eq!((outcome.done.len(), outcome.back), (1, vec![all[0].id.clone()]));
    running.stop().await;
    let left = ids(shop.dead().await.into_iter().map(|stored| stored.message));
    assert_eq!(left[..9], ids(all[1..].to_vec()), "in place and in order");

    let mended = Script::new(|_, _| done());
    let running = shop.consume(policy(), &mended);
    let mut selected = select(&shop, &Choice::default()).await;
    let outcome = carry_out(&mut selected, &task).await.unwrap();
    assert_eq!((outcome.end, outcome.done.len()), (End::Finished, 10));
    until("all applied", async || shop.effects().await.len() == 10).await;
    running.stop().await;
}

#[tokio::test]
async fn lesson_s07_a_canary_that_nobody_handles_ends_the_batch() {
    let shop = shop().await;
    dead(&shop, &["order.created"], 3).await;
    let canary = Some(std::time::Duration::from_millis(50));
    let task =
        Task { pace: Pace { canary, ..Pace::default() }, ..Task::new(Verb::Replay, "ana", "") };
    let mut selected = select(&shop, &Choice::default()).await;
    let outcome = carry_out(&mut selected, &task).await.unwrap();
    assert_eq!((outcome.end, outcome.untouched), (End::CanaryUnknown, 2));
    assert_eq!((shop.depth("").await, shop.depth(".dlq").await), (1, 2));

    // The inbox knows better than an empty queue.
    let witness = &shop.store as &dyn dlq::Witness;
    let mut selected = select(&shop, &Choice::default()).await;
    let (stop, mut seen) = (CancellationToken::new(), Vec::new());
    let script = Script::new(|_, _| done());
    let running = shop.consume(policy(), &script);
    let canary = Some(std::time::Duration::from_secs(20));
    let task =
        Task { pace: Pace { canary, ..Pace::default() }, ..Task::new(Verb::Replay, "ana", "") };
    let seeing = |progress: dlq::Progress| seen.push((progress.had, progress.canary));
    let outcome = dlq::carry_out(&mut selected, &task, Some(witness), &stop, seeing).await.unwrap();
    assert_eq!((outcome.end, outcome.done.len()), (End::Finished, 2));
    assert!(seen.contains(&(1, true)) && seen.last() == Some(&(2, false)), "{seen:?}");
    running.stop().await;
}

#[tokio::test]
async fn lesson_s07_a_batch_can_be_stopped_at_any_message() {
    let shop = shop().await;
    let all = dead(&shop, &["order.created"], 10).await;
    let stop = CancellationToken::new();
    let window = std::num::NonZeroU32::MIN;
    let task =
        Task { pace: Pace { window, ..Pace::default() }, ..Task::new(Verb::Replay, "ana", "") };
    let mut selected = select(&shop, &Choice::default()).await;
    let seeing = |progress: dlq::Progress| {
        if progress.tally.done == 4 {
            stop.cancel();
        }
    };
    let outcome = dlq::carry_out(&mut selected, &task, None, &stop, seeing).await.unwrap();
    assert_eq!(outcome.end, End::Interrupted);
    let moved = outcome.done.len();
    assert!((4..=5).contains(&moved), "what was on its way is finished: {moved}");
    assert_eq!(outcome.untouched, 10 - moved);
    let back = shop.broker.browse(QUEUE, &Filter::default()).await.unwrap();
    let both = back.into_iter().chain(shop.dead().await).map(|stored| stored.message);
    assert_eq!(ids(both), ids(all), "each in one queue or the other, in order");
}

#[tokio::test]
async fn lesson_s08_dead_letters_of_others_are_none_of_ours() {
    let shop = shop().await;
    dead(&shop, &["order.created"], 2).await;
    let other = mamparo_messaging::QueuePolicy::new("mail", "team-mail").bind("order.*");
    shop.broker.declare(&other).await.unwrap();
    let error = Message { id: "theirs".to_owned(), ..order("order.created", "o-9") };
    shop.broker.publish("", "mail.dlq", &error).await;
    let mut selected = select(&shop, &Choice::default()).await;
    assert_eq!(selected.total, 2);
    let outcome = replay(&mut selected).await;
    assert_eq!(outcome.done.len(), 2);
    assert_eq!(shop.broker.depth("mail").await.unwrap(), 0);
    assert_eq!(shop.broker.depth("mail.dlq").await.unwrap(), 1);
}

#[tokio::test]
async fn an_unknown_queue_is_named_with_those_that_exist() {
    let shop = shop().await;
    dead(&shop, &["order.created"], 1).await;
    let error = dlq::select(&shop.broker, "order.saga", &Choice::default()).await.unwrap_err();
    assert_eq!(error.to_string(), "find queue \"order.saga\": the broker has orders.saga");
}

#[tokio::test]
async fn the_inbox_of_a_consumer_knows_what_went_to_any_version_of_its_queue() {
    let shop = shop().await;
    for consumer in ["orders.saga", "mail.v2"] {
        let mut tx = shop.store.begin().await.unwrap();
        inbox::insert(&mut tx, consumer, "m-1", "order.created", clock::wall()).await.unwrap();
        shop.store.commit(tx).await.unwrap();
    }
    for (queue, known) in [
        ("orders.saga", true),
        ("orders.saga.v2", true),
        ("mail.v2", true),
        ("mail", false),
        ("mail.v3", false),
    ] {
        assert_eq!(Witness::handled(&shop.store, queue, "m-1").await.unwrap(), known, "{queue}");
    }
}
