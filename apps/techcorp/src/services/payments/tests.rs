//! Money: every order of charge, cancellation, crash and lost answer ends with the right sum.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use mamparo::call::{Dependency, clock};
use mamparo::http::{HttpClient, Problem, serve};
use mamparo::messaging::{Answer, Handler, Message, event};
use mamparo::service::{Role, Tasks};
use mamparo::store::{SqliteStore, outbox};
use serde_json::json;
use tokio::net::TcpListener;

use super::psp::Psp;
use super::rows::{self, State as Stands};
use super::saga::{Facts, PaymentSaga};
use crate::events::kind;
use crate::outside::psp;

/// What the PSP answers.
#[derive(Debug, Clone, Copy)]
enum Mood {
    /// What it did.
    Honest,
    /// This, having done nothing.
    Refuses(u16, &'static str),
    /// This, having done it.
    Lies(u16, &'static str),
}

type Shared = Arc<Mutex<Mood>>;

async fn moody(State(mood): State<Shared>, request: Request, next: Next) -> Response {
    let mood = *mood.lock().unwrap();
    let say =
        |status, code| Problem::new(StatusCode::from_u16(status).unwrap(), code).into_response();
    match mood {
        Mood::Honest => next.run(request).await,
        Mood::Refuses(status, code) => say(status, code),
        Mood::Lies(status, code) => {
            next.run(request).await;
            say(status, code)
        }
    }
}

struct Till {
    saga: PaymentSaga<sqlx::Sqlite>,
    books: SqliteStore,
    mood: Shared,
    _tasks: Tasks,
}

async fn till() -> Till {
    let books = SqliteStore::open("sqlite::memory:").await.unwrap();
    books.apply(psp::SCHEMA).await.unwrap();
    let mood = Shared::new(Mutex::new(Mood::Honest));
    let router: Router =
        psp::router(books.clone()).layer(from_fn_with_state(Arc::clone(&mood), moody));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let tasks = Tasks::new("psp");
    tasks.spawn(Role::Server, "psp", |stop| async move {
        serve(listener, router, stop.cancelled_owned(), Duration::from_secs(1)).await.map(|_| ())
    });
    let dependency = Dependency::builder("psp").attempt_timeout(Duration::from_secs(5));
    let client = HttpClient::new(&url, dependency.build().unwrap()).unwrap();
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    store.apply(rows::SCHEMA).await.unwrap();
    Till { saga: PaymentSaga { store, psp: Psp::new(client) }, books, mood, _tasks: tasks }
}

fn message(kind: &str, body: &serde_json::Value) -> Message {
    Message::from_event(event(kind, "o-1", body).unwrap(), "events")
}

/// `stock.reserved` whose reservation runs out in `minutes`.
fn reserved(minutes: i64) -> Message {
    let expiry = clock::wall().unix_millis() + minutes * 60_000;
    let body = json!({ "orderId": "o-1", "customerId": "c-1", "totalCents": 500,
                       "expiresAtUnixMs": expiry });
    message(kind::STOCK_RESERVED, &body)
}

fn cancelled() -> Message {
    let body = json!({ "orderId": "o-1", "customerId": "c-1", "reason": "PAYMENT_TIMEOUT" });
    message(kind::ORDER_CANCELLED, &body)
}

fn refund_due() -> Message {
    message(kind::PAYMENT_REFUND_DUE, &json!({ "orderId": "o-1" }))
}

impl Till {
    fn psp(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    async fn prepare(&self, message: &Message) -> Result<Facts, Answer> {
        self.saga.prepare(message).await
    }

    async fn apply(&self, message: &Message, facts: Result<Facts, Answer>) -> Answer {
        let facts = match facts {
            Ok(facts) => facts,
            Err(answer) => return answer,
        };
        let mut tx = self.saga.store.begin().await.unwrap();
        let answer = self.saga.apply(message, facts, &mut tx).await;
        if answer == Answer::Done {
            self.saga.store.commit(tx).await.unwrap();
        }
        answer
    }

    async fn deliver(&self, message: &Message) -> Answer {
        let facts = self.prepare(message).await;
        self.apply(message, facts).await
    }

    async fn state(&self) -> Option<Stands> {
        rows::find(&self.saga.store, "o-1").await.unwrap().map(|charge| charge.state)
    }

    async fn emitted(&self, kind: &str) -> usize {
        let events = outbox::list(&self.saga.store, 100).await.unwrap();
        events.iter().filter(|listed| listed.event.kind == kind).count()
    }

    /// The PSP's ledger: what was charged, and what went back.
    async fn ledger(&self) -> (i64, i64) {
        let sum = |kind| {
            let query = "SELECT COALESCE(SUM(cents), 0) FROM ledger WHERE kind = ?";
            sqlx::query_scalar(query).bind(kind).fetch_one(self.books.reader())
        };
        (sum("CHARGE").await.unwrap(), sum("REFUND").await.unwrap())
    }
}

#[tokio::test]
async fn a_crash_between_barring_the_key_and_saying_so_still_rejects_the_payment() {
    let till = till().await;
    till.psp(Mood::Refuses(503, "AWAY"));
    assert!(matches!(till.deliver(&reserved(15)).await, Answer::RetryAfter { .. }));
    till.psp(Mood::Honest);
    let late = reserved(-1);
    let _crash = till.prepare(&late).await.unwrap();
    assert_eq!(till.deliver(&late).await, Answer::Done);
    assert_eq!(till.state().await, Some(Stands::Declined));
    assert_eq!(till.emitted(kind::PAYMENT_REJECTED).await, 1, "orders must hear of it");
    assert_eq!(till.ledger().await, (0, 0));
}

#[tokio::test]
async fn what_the_psp_refuses_for_good_is_dead_and_charges_nobody_when_it_is_replayed() {
    for refusal in [400, 401, 403, 404, 422] {
        let till = till().await;
        till.psp(Mood::Refuses(refusal, "NO"));
        let charge = reserved(15);
        assert!(matches!(till.deliver(&charge).await, Answer::Dead { .. }), "{refusal}");
        assert_eq!(till.state().await, Some(Stands::Started), "nobody knows, so nobody says no");
        // The watchdog ends the order. The refund, too, is refused until somebody mends us.
        assert_eq!(till.deliver(&cancelled()).await, Answer::Done);
        assert!(matches!(till.deliver(&refund_due()).await, Answer::Dead { .. }));
        assert_eq!(till.state().await, Some(Stands::RefundDue));
        // A day later the dead letters are replayed, in either order.
        till.psp(Mood::Honest);
        assert_eq!(till.deliver(&charge).await, Answer::Done);
        assert_eq!(till.deliver(&refund_due()).await, Answer::Done);
        assert_eq!(till.deliver(&charge).await, Answer::Done);
        assert_eq!(till.state().await, Some(Stands::Void));
        assert_eq!(till.ledger().await, (0, 0));
    }
}

#[tokio::test]
async fn a_key_that_is_still_in_use_at_the_psp_is_asked_about_later() {
    let till = till().await;
    till.psp(Mood::Lies(409, "IDEMPOTENCY_KEY_IN_USE"));
    let charge = reserved(15);
    assert!(matches!(till.deliver(&charge).await, Answer::RetryAfter { .. }));
    till.psp(Mood::Honest);
    assert_eq!(till.deliver(&charge).await, Answer::Done);
    assert_eq!(till.state().await, Some(Stands::Charged));
    assert_eq!(till.ledger().await, (500, 0));
}

#[tokio::test]
async fn lesson_w12_money_that_should_be_back_is_not_invisible() {
    let till = till().await;
    till.deliver(&reserved(15)).await;
    till.deliver(&cancelled()).await;
    let store = &till.saga.store;
    let (now, later) = (clock::wall(), clock::wall().plus(Duration::from_secs(1)));
    assert_eq!(
        rows::refunds_due(store, now.minus(Duration::from_secs(600))).await.unwrap(),
        (0, 0)
    );
    assert_eq!(rows::refunds_due(store, later).await.unwrap(), (1, 500));
    till.deliver(&refund_due()).await;
    assert_eq!(rows::refunds_due(store, later).await.unwrap(), (0, 0));
}

/// When the cancellation is handled, in relation to the charge.
#[derive(Debug, Clone, Copy)]
enum Cancelled {
    Before,
    BetweenPrepareAndApply,
    BetweenTwoDeliveries,
    After,
}

#[tokio::test]
async fn lesson_g04_a_cancelled_order_keeps_no_money_whatever_overtakes_what() {
    use Cancelled::*;
    for when in [Before, BetweenPrepareAndApply, BetweenTwoDeliveries, After] {
        for first in [Mood::Honest, Mood::Lies(500, "LOST"), Mood::Refuses(503, "AWAY")] {
            for refund in [Mood::Honest, Mood::Lies(500, "LOST")] {
                let till = till().await;
                let (charge, cancel) = (reserved(15), cancelled());
                if matches!(when, Before) {
                    till.deliver(&cancel).await;
                }
                till.psp(first);
                let facts = till.prepare(&charge).await;
                till.psp(Mood::Honest);
                if matches!(when, BetweenPrepareAndApply) {
                    till.deliver(&cancel).await;
                    till.psp(refund);
                    till.deliver(&refund_due()).await;
                    till.psp(Mood::Honest);
                }
                // Without an answer, or with a crash before the commit, the charge comes again.
                if matches!(when, BetweenTwoDeliveries) {
                    drop(facts);
                    till.deliver(&cancel).await;
                } else {
                    till.apply(&charge, facts).await;
                }
                till.deliver(&charge).await;
                till.deliver(&cancel).await;
                till.psp(refund);
                for _ in 0..till.emitted(kind::PAYMENT_REFUND_DUE).await {
                    till.deliver(&refund_due()).await;
                    till.psp(Mood::Honest);
                    till.deliver(&refund_due()).await;
                }
                // Everything once more, as after a replay of old letters.
                for message in [&charge, &cancel, &refund_due()] {
                    assert_eq!(till.deliver(message).await, Answer::Done);
                }
                let (case, (charged, back)) = ((when, first, refund), till.ledger().await);
                assert_eq!(charged, back, "{case:?}");
                assert!(charged <= 500, "{case:?}: charged twice");
                let state = till.state().await;
                assert!(
                    matches!(state, Some(Stands::Refunded | Stands::Void)),
                    "{case:?} {state:?}"
                );
                let told = till.emitted(kind::PAYMENT_REFUNDED).await;
                assert_eq!(told, usize::from(charged > 0), "{case:?}");
            }
        }
    }
}
