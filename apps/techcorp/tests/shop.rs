//! What callers of the running shop may rely on: keys, refusals, limits, and how orders end.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod common;

use std::time::Duration;

use common::{Answer, PLAIN, Post, Shop, basket, day, until};
use futures_util::future::join_all;
use mamparo::call::clock;
use mamparo::core::saga::watchdog::Watchdog;
use mamparo::messaging::{AnyBroker, Broker as _, Confirm, Message, event};
use mamparo::store::SqliteStore;
use techcorp::db::query;
use techcorp::services::orders::saga::Deadlines;
use techcorp::services::orders::watch::OrderWatch;
use techcorp::weather::Sky;

/// One value of the books, as text.
async fn fact(shop: &Shop, sql: &'static str, id: &str) -> String {
    let books = shop.books().await;
    let found = books.rows::<(Option<String>,)>(query(sql).bind(id)).await;
    let found = found.unwrap_or_else(|error| panic!("{sql}: {error}"));
    books.close().await;
    found.into_iter().next().and_then(|(fact,)| fact).unwrap_or_default()
}

async fn state(shop: &Shop, id: &str) -> String {
    fact(shop, "SELECT state || ' ' || COALESCE(reason, '-') FROM orders.orders WHERE id = $1", id)
        .await
}

/// All movements of money of an order, in their order.
async fn money(shop: &Shop, id: &str) -> String {
    let query = "SELECT group_concat(kind || ' ' || cents, ', ') FROM
                     (SELECT kind, cents FROM psp.ledger WHERE order_id = ? ORDER BY id)";
    fact(shop, query, id).await
}

/// All mails about an order, each with how often the mail server was given it.
async fn mails(shop: &Shop, id: &str) -> String {
    let query = "SELECT group_concat(subject, '; ') FROM mail.delivered WHERE key LIKE ? || '-%'";
    fact(shop, query, id).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_is_the_same_order() {
    let mut shop = Shop::open(&PLAIN, &[]).await;
    let mut orders = 0;
    for service in ["orders", "gateway"] {
        let post = Post::new(&format!("same-{service}")).of("p-2", 3);
        let first = shop.order(service, &post).await;
        assert_eq!((first.status, first.replayed()), (201, false), "{first:?}");
        let place = first.header("location").unwrap().to_owned();
        assert_eq!(place, format!("/v1/orders/{}", first.id()));
        assert_eq!(shop.get(service, &place).await.id(), first.id(), "the location leads there");
        for _ in 0..2 {
            let again = shop.order(service, &post).await;
            assert_eq!((again.status, again.replayed()), (201, true), "{again:?}");
            assert_eq!(again.body, first.body, "byte for byte");
            assert_eq!(again.header("location"), Some(place.as_str()));
            assert_eq!(again.header("content-type"), first.header("content-type"));
        }

        // Quoted, as the standard has it, and bare are one key.
        let quoted = Post { key: Some(format!("\"same-{service}\"")), ..post.clone() };
        let again = shop.order(service, &quoted).await;
        assert!(again.replayed() && again.body == first.body, "{again:?}");

        // Another request under the same key is refused, and the first one still stands.
        let other = Post { body: basket("c-1", "p-2", 4), ..post.clone() };
        shop.order(service, &other).await.is_problem(422, "IDEMPOTENCY_KEY_MISMATCH");
        assert_eq!(shop.order(service, &post).await.body, first.body);

        // Somebody else's key of the same name is somebody else's.
        let stranger = Post { client: "stranger".to_owned(), ..post.clone() };
        let theirs = shop.order(service, &stranger).await;
        assert_eq!((theirs.status, theirs.replayed()), (201, false), "{theirs:?}");
        assert_ne!(theirs.id(), first.id());

        let keyless = Post { key: None, ..post.clone() };
        shop.order(service, &keyless).await.is_problem(400, "IDEMPOTENCY_KEY_MISSING");
        let empty = Post { key: Some(String::new()), ..post.clone() };
        assert_eq!(shop.order(service, &empty).await.status, 400);
        orders += 2;
        assert_eq!(shop.count("SELECT COUNT(*) FROM orders.orders").await, orders);
    }
    shop.holds().await;
    shop.staff.stop_all().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_twice_at_once_is_one_order() {
    let mut shop = Shop::open(&PLAIN, &[]).await;
    for round in 0..10 {
        let post = Post::new(&format!("at-once-{round}"));
        let service = ["orders", "gateway"][round % 2];
        let answers = join_all((0..4).map(|_| shop.order(service, &post))).await;
        let accepted: Vec<&Answer> = answers.iter().filter(|a| a.status == 201).collect();
        assert_eq!(accepted.iter().filter(|a| !a.replayed()).count(), 1, "{answers:?}");
        assert!(accepted.iter().all(|answer| answer.body == accepted[0].body), "{answers:?}");
        for refused in answers.iter().filter(|answer| answer.status != 201) {
            refused.is_problem(409, "IDEMPOTENCY_KEY_IN_USE");
            refused.says_when_to_come_back();
        }
        let later = shop.order(service, &post).await;
        assert!(later.replayed() && later.body == accepted[0].body, "{later:?}");
    }
    assert_eq!(shop.count("SELECT COUNT(*) FROM orders.orders").await, 10);
    shop.holds().await;
    shop.staff.stop_all().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_sold_or_paid_is_cancelled_with_the_reason_and_one_mail() {
    let mut shop = Shop::open(&PLAIN, &[]).await;
    let paid = shop.ordered(&Post::new("paid").of("p-1", 2)).await;
    let declined = shop.ordered(&Post::new("declined").of("p-dear", 1)).await;
    let short = shop.ordered(&Post::new("short").of("p-scarce", 21)).await;
    // One line of two is short: neither is held.
    let mut half = Post::new("half");
    half.body["lines"] = serde_json::json!([
        { "productId": "p-1", "quantity": 1 }, { "productId": "p-scarce", "quantity": 21 },
    ]);
    let half = shop.ordered(&half).await;
    let verdict = shop.holds().await;
    assert_eq!((verdict.facts.confirmed, verdict.facts.cancelled), (1, 3));
    assert_eq!(verdict.facts.timed_out, 0, "the watchdog had no part in it");

    for (id, ended, cash) in [
        (&paid, "CONFIRMED -", "CHARGE 2498"),
        (&declined, "CANCELLED PAYMENT_REJECTED", ""),
        (&short, "CANCELLED OUT_OF_STOCK", ""),
        (&half, "CANCELLED OUT_OF_STOCK", ""),
    ] {
        assert_eq!(state(&shop, id).await, ended);
        assert_eq!(money(&shop, id).await, cash, "{ended}");
        let answer = shop.get("gateway", &format!("/v1/orders/{id}")).await.json();
        let (status, reason) = ended.split_once(' ').unwrap();
        assert_eq!(answer["status"], status);
        assert_eq!(answer["reason"].as_str().unwrap_or("-"), reason, "{answer}");
        let mail = match reason {
            "-" => format!("Your order {id} is confirmed"),
            reason => format!("Your order {id} is cancelled: {reason}"),
        };
        assert_eq!(mails(&shop, id).await, mail);
    }
    let held = "SELECT SUM(reserved) FROM inventory.stock";
    assert_eq!(shop.count(held).await, 2, "only the paid order holds goods");
    shop.staff.stop_all().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_in_a_hurry_is_limited_and_others_are_not() {
    const PER_MINUTE: usize = 300;
    let mut shop = Shop::open(&PLAIN, &[]).await;
    let began = clock::now();
    let path = "/v1/products?ids=p-1";
    let hurry = |many: usize| join_all((0..many).map(|_| shop.get_as("hurry", "gateway", path)));
    let mut answers = hurry(PER_MINUTE + 1).await;
    // On a slow machine a few more come free meanwhile: one each 200 ms.
    let free = |answers: &[Answer]| answers.iter().filter(|answer| answer.status != 429).count();
    until("the limit is reached", async || {
        if free(&answers) == answers.len() {
            answers.extend(hurry(20).await);
        }
        (free(&answers) < answers.len()).then_some(())
    })
    .await;
    let passed = clock::now().since(began).as_secs_f64();
    let allowed = PER_MINUTE + 1 + (passed * PER_MINUTE as f64 / 60.0).ceil() as usize;
    assert!(free(&answers) <= allowed, "{} of {} in {passed} s", free(&answers), answers.len());
    assert!(free(&answers) >= PER_MINUTE, "{} of {}", free(&answers), answers.len());
    for answer in answers.iter().filter(|answer| answer.status == 429) {
        answer.is_problem(429, "RATE_LIMITED");
        assert!(answer.says_when_to_come_back() <= 60, "{answer:?}");
    }

    let post = Post { client: "hurry".to_owned(), ..Post::new("hurry") };
    let limited = join_all((0..20).map(|_| shop.order("gateway", &post))).await;
    assert!(limited.iter().any(|answer| answer.status == 429), "one limit for all routes");
    // Others are served, and so is whoever asks how the gateway is.
    assert_eq!(shop.get_as("calm", "gateway", path).await.status, 200);
    let calm = Post { client: "calm".to_owned(), ..Post::new("calm") };
    assert_eq!(shop.order("gateway", &calm).await.status, 201);
    assert_eq!(shop.get_as("hurry", "gateway", "/health/ready").await.status, 200);
    shop.holds().await;
    shop.staff.stop_all().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_charge_that_is_answered_after_the_cancellation_is_refunded_once() {
    // The PSP charges at once and answers when the watchdog has long given the order up.
    let scenario = day(&[
        ("orders", "sagas/order/deadlines/STOCK_RESERVED", "1s"),
        ("payments", "dependencies/psp/attempt_timeout", "6s"),
    ]);
    let mut shop = Shop::open(&scenario, &[]).await;
    shop.staff.sky("psp", Sky::Late(Duration::from_millis(4_500))).await.unwrap();
    let id = shop.ordered(&Post::new("late").of("p-3", 1)).await;
    until("it is charged and given up", async || {
        let charged = money(&shop, &id).await == "CHARGE 1749";
        (charged && state(&shop, &id).await == "CANCELLED PAYMENT_TIMEOUT").then_some(())
    })
    .await;
    shop.staff.sky("psp", Sky::Clear).await.unwrap();
    let facts = shop.holds().await.facts;
    assert_eq!((facts.charges, facts.refunds, facts.timed_out), (1, 1, 1));
    assert_eq!(money(&shop, &id).await, "CHARGE 1749, REFUND 1749");
    assert_eq!(state(&shop, &id).await, "CANCELLED PAYMENT_TIMEOUT");
    assert_eq!(mails(&shop, &id).await, format!("Your order {id} is cancelled: PAYMENT_TIMEOUT"));
    shop.staff.stop_all().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lesson_w02_a_payment_that_comes_after_the_cancellation_never_revives_the_order() {
    let mut shop = Shop::open(&PLAIN, &[]).await;
    shop.staff.sky("psp", Sky::Late(Duration::from_millis(900))).await.unwrap();
    let id = shop.ordered(&Post::new("overtaken").of("p-3", 1)).await;
    until("its goods are reserved", async || {
        (state(&shop, &id).await == "STOCK_RESERVED -").then_some(())
    })
    .await;
    // Orders are away while payments say that they have charged …
    shop.staff.stop("orders").await.unwrap();
    until("the payment waits for orders", async || {
        let query = "SELECT kind FROM broker.mamparo_messages WHERE queue = 'orders.saga'
                     AND key = $1";
        (fact(&shop, query, &id).await == "payment.confirmed").then_some(())
    })
    .await;
    shop.staff.sky("psp", Sky::Clear).await.unwrap();
    // … and the first to look at the order when they are back is the watchdog.
    let address = format!("sqlite:{}", shop.dir().join("orders.db").display());
    let store = SqliteStore::open_existing(&address).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    sqlx::query("UPDATE orders SET deadline_ms = 1 WHERE id = $1")
        .bind(&id)
        .execute(&mut *tx)
        .await
        .unwrap();
    store.commit(tx).await.unwrap();
    let watchdog = Watchdog::default();
    let site = shop.staff.site();
    let broker = AnyBroker::open_existing(&site.engines().broker_in(site.dir())).await.unwrap();
    let deadlines = Deadlines::default();
    let watch = OrderWatch { store: store.clone(), watchdog, deadlines, broker };
    assert_eq!(watch.cycle().await.unwrap(), 1);
    store.close().await;
    assert_eq!(state(&shop, &id).await, "CANCELLED PAYMENT_TIMEOUT");

    shop.staff.start("orders").await.unwrap();
    let facts = shop.holds().await.facts;
    assert_eq!((facts.charges, facts.refunds, facts.timed_out), (1, 1, 1));
    assert_eq!(state(&shop, &id).await, "CANCELLED PAYMENT_TIMEOUT");
    assert_eq!(money(&shop, &id).await, "CHARGE 1749, REFUND 1749");
    assert_eq!(mails(&shop, &id).await, format!("Your order {id} is cancelled: PAYMENT_TIMEOUT"));
    let query = "SELECT group_concat(did, ', ') FROM orders.order_history
                 WHERE order_id = ? AND event = 'PaymentConfirmed'";
    assert_eq!(fact(&shop, query, &id).await, "CancelAgain", "it came late, and was heard");
    let query = "SELECT released || ' ' || refunded FROM orders.orders WHERE id = $1";
    assert_eq!(fact(&shop, query, &id).await, "1 1", "goods and money are known to be back");
    shop.staff.stop_all().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shop_reconciles_by_itself() {
    let scenario = day(&[
        ("inventory", "jobs/reconciliation/every", "500ms"),
        ("inventory", "jobs/reconciliation/older_than", "20m"),
    ]);
    let mut shop = Shop::open(&scenario, &[]).await;
    let paid = shop.ordered(&Post::new("paid").of("p-1", 1)).await;
    let declined = shop.ordered(&Post::new("declined").of("p-dear", 1)).await;
    shop.rest().await;
    shop.staff.stop("orders").await.unwrap();
    for id in [&paid, &declined, "unknown"] {
        hold(&shop, id).await;
    }
    let unreached = shop.sent("inventory", "orders");
    until("reconciliation asked in vain", async || {
        (shop.sent("inventory", "orders") > unreached + 4).then_some(())
    })
    .await;
    let reservation = "SELECT state || ' ' || COALESCE(reason, '-')
                       FROM inventory.reservations WHERE order_id = $1";
    for id in [&paid, &declined, "unknown"] {
        assert_eq!(fact(&shop, reservation, id).await, "ACTIVE -", "{id}: no answer, no release");
    }
    shop.staff.start("orders").await.unwrap();
    for id in [&declined, "unknown"] {
        until("the goods are free", async || {
            (fact(&shop, reservation, id).await == "RELEASED RECONCILED").then_some(())
        })
        .await;
    }
    // A whole run later the confirmed order still has its goods.
    hold(&shop, "another").await;
    until("another run", async || {
        (fact(&shop, reservation, "another").await == "RELEASED RECONCILED").then_some(())
    })
    .await;
    assert_eq!(fact(&shop, reservation, &paid).await, "ACTIVE -");
    shop.staff.stop_all().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_c37_what_waits_is_consumed_at_the_start_before_anything_new_comes() {
    let mut shop = Shop::open(&PLAIN, &[]).await;
    shop.staff.stop("notifications").await.unwrap();
    shop.staff.stop("payments").await.unwrap();
    let id = shop.ordered(&Post::new("waiting")).await;
    until("the order waits for payments, and nobody is there", async || {
        let waits = "SELECT COUNT(*) FROM broker.mamparo_messages WHERE queue = 'payments.orders'";
        (shop.count(waits).await > 0).then_some(())
    })
    .await;
    // Nothing new is ordered from here on.
    shop.staff.start("payments").await.unwrap();
    until("the order is confirmed", async || {
        (state(&shop, &id).await == "CONFIRMED -").then_some(())
    })
    .await;
    // Ready means subscribed: it does not say so before.
    shop.staff.start("notifications").await.unwrap();
    let ready = shop.get("notifications", "/health/ready").await.json();
    let checks = ready["checks"].as_array().unwrap();
    let consumer = checks.iter().find(|check| check["name"] == "notifications.orders").unwrap();
    assert_eq!(consumer["ready"], true, "{ready}");
    until("the mail is handed over", async || {
        let key = format!("{id}-confirmed");
        let mail = fact(&shop, "SELECT subject FROM mail.delivered WHERE key = $1", &key).await;
        mail.ends_with("is confirmed").then_some(())
    })
    .await;
    shop.holds().await;
    shop.staff.stop_all().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_only_the_broker_could_take_comes_to_those_that_payments_keep() {
    let mut shop = Shop::open(&PLAIN, &[]).await;
    shop.staff.stop("payments").await.unwrap();
    let site = shop.staff.site();
    let broker = AnyBroker::open_existing(&site.engines().broker_in(site.dir())).await.unwrap();
    let body = serde_json::json!({ "orderId": "o-1" });
    let event = event("payment.refund-due", "o-1", &body).unwrap();
    let letter = Message::from_event(event, "");
    assert_eq!(broker.publish("", "payments.orders.dlq", &letter).await, Confirm::Confirmed);
    shop.staff.start("payments").await.unwrap();
    until("the letter among payments' own", async || {
        let kept = "SELECT COUNT(*) FROM payments.mamparo_failed WHERE kind = 'payment.refund-due'";
        (shop.count(kept).await == 1).then_some(())
    })
    .await;
    until("the broker without it", async || {
        (broker.depth("payments.orders.dlq").await.unwrap() == 0).then_some(())
    })
    .await;
    broker.close().await;
    let books = shop.books().await;
    let dead = books.dead_letters().await.unwrap();
    books.close().await;
    assert_eq!(dead, [("payments.orders.dlq".to_owned(), letter.id)], "it is counted all the same");
    shop.staff.stop_all().await.unwrap();
}

/// Makes inventory hold goods for an order, since an hour ago, whatever became of it.
async fn hold(shop: &Shop, id: &str) {
    let address = format!("sqlite:{}", shop.dir().join("inventory.db").display());
    let store = SqliteStore::open_existing(&address).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    sqlx::query(
        "INSERT INTO reservations (order_id, customer_id, lines, total_cents, state, reserved_ms)
         VALUES ($1, 'c-1', '[]', 0, 'ACTIVE', $2)
         ON CONFLICT (order_id) DO UPDATE SET state = 'ACTIVE', reserved_ms = $2, lines = '[]',
                                              reason = NULL",
    )
    .bind(id)
    .bind(clock::wall().minus(Duration::from_secs(3_600)).unix_millis())
    .execute(&mut *tx)
    .await
    .unwrap();
    store.commit(tx).await.unwrap();
    store.close().await;
}
