//! Orders' HTTP side: take an order, show one, list a customer's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use http::StatusCode;
use mamparo::call::fallback::{self, Fresh};
use mamparo::call::{Context, clock};
use mamparo::core::call::fallback::Windows;
use mamparo::core::saga::order::OrderState;
use mamparo::http::problem::codes;
use mamparo::http::server::{Answer, Claimed, Idempotency, Json, Path, Query};
use mamparo::http::{HttpClient, HttpError, Problem};
use mamparo::store::Store;
use serde::{Deserialize, Serialize};

use super::rows::{self, OrderRow};
use super::saga::Deadlines;
use crate::db::ShopDb;
use crate::events::{Line, OrderCreated, kind};
use crate::services::{emit, trouble};

/// How long a key is locked by a request whose process died: three times what a request may take,
/// so that who tries again after a crash is not kept waiting for longer than that.
const KEY_LEASE: Duration = Duration::from_secs(10);
/// When to come back while the catalog has only old prices.
const PRICES_AGAIN: Duration = Duration::from_secs(1);
/// Most lines of one order.
const LINES_MAX: usize = 100;
/// Most units of one line.
const QUANTITY_MAX: u32 = 1_000;
/// Most orders in one answer.
const PAGE: u32 = 50;

/// What the handlers need.
#[derive(Debug)]
pub struct Orders<DB: ShopDb> {
    /// Orders' own database.
    pub store: Store<DB>,
    /// Prices.
    pub catalog: HttpClient,
    /// Who may order.
    pub customers: HttpClient,
    /// Limits of the states.
    pub deadlines: Deadlines,
    /// What both dependencies together may take; they are asked in parallel.
    pub dependency_budget: Duration,
}

/// `POST /v1/orders`
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewOrder {
    customer_id: String,
    lines: Vec<Line>,
}

/// An order as it is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OrderView {
    /// The order's id.
    pub id: String,
    /// Who ordered.
    pub customer_id: String,
    /// What.
    pub lines: Vec<Line>,
    /// For how much.
    pub total_cents: i64,
    /// `PENDING`, `STOCK_RESERVED`, `CONFIRMED` or `CANCELLED`.
    pub status: String,
    /// Why it was cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was accepted, RFC 3339.
    pub created_at: String,
}

/// A list of orders.
#[derive(Debug, Serialize, Deserialize)]
pub struct OrderList {
    /// The orders, newest first.
    pub orders: Vec<OrderView>,
}

/// A product, as orders need it from the catalog.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Priced {
    id: String,
    price_cents: i64,
}

#[derive(Debug, Deserialize)]
struct PriceList {
    products: Vec<Priced>,
}

impl From<OrderRow> for OrderView {
    fn from(row: OrderRow) -> Self {
        Self {
            id: row.id,
            customer_id: row.customer_id,
            lines: row.lines,
            total_cents: row.total_cents,
            status: row.state.name().to_owned(),
            reason: row.reason,
            created_at: row.created.to_string(),
        }
    }
}

/// The routes.
pub fn router<DB: ShopDb>(orders: Orders<DB>) -> Router {
    let guard = Idempotency::required(orders.store.clone()).lease(KEY_LEASE);
    Router::new()
        .route("/v1/orders", guard.around(post(create::<DB>)).merge(get(list::<DB>)))
        .route("/v1/orders/{id}", get(show::<DB>))
        .with_state(Arc::new(orders))
}

async fn create<DB: ShopDb>(
    State(orders): State<Arc<Orders<DB>>>,
    claimed: Claimed,
    Json(new): Json<NewOrder>,
) -> Result<Answer, Problem> {
    validate(&new)?;
    let total_cents = orders.price(&new).await?;
    let now = clock::wall();
    let row = OrderRow {
        id: uuid::Uuid::now_v7().to_string(),
        customer_id: new.customer_id,
        lines: new.lines,
        total_cents,
        state: OrderState::Pending,
        version: 0,
        reason: None,
        created: now,
    };
    let created = OrderCreated {
        order_id: row.id.clone(),
        customer_id: row.customer_id.clone(),
        lines: row.lines.clone(),
        total_cents,
    };
    // Order, event and answer commit together: there is no half-made order, and the same key finds
    // this answer even if the process dies on the next line.
    let mut tx = orders.store.begin().await?;
    let due = orders.deadlines.due(row.state, now);
    rows::insert(&mut tx, &row, due).await.map_err(|error| trouble(&error))?;
    emit(&mut tx, kind::ORDER_CREATED, &row.id, &created, now).await.map_err(|e| trouble(&e))?;
    let location = format!("/v1/orders/{}", row.id);
    let answer = Answer::json(StatusCode::CREATED, &OrderView::from(row))?.location(&location);
    claimed.complete(&mut tx, &answer).await?;
    orders.store.commit(tx).await?;
    Ok(answer)
}

impl<DB: ShopDb> Orders<DB> {
    /// Prices the order and checks its customer, both at once. Neither can degrade: without an
    /// answer there is no order.
    async fn price(&self, new: &NewOrder) -> Result<i64, Problem> {
        let ids: Vec<&str> = new.lines.iter().map(|line| line.product_id.as_str()).collect();
        let prices = self.catalog.get("/v1/products").query("ids", ids.join(",")).send();
        let customer = self.customers.get(format!("/v1/customers/{}", new.customer_id)).send();
        let context = Context::current().with_budget(clock::now(), self.dependency_budget);
        let (prices, customer) = context.scope(async { tokio::join!(prices, customer) }).await;
        if let Err(error) = customer {
            return Err(match error.cause().and_then(HttpError::upstream_code) {
                Some("CUSTOMER_NOT_FOUND") => {
                    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "UNKNOWN_CUSTOMER")
                        .detail(format!("there is no customer {:?}", new.customer_id))
                }
                _ => Problem::from(&error),
            });
        }
        let answer = prices.map_err(|error| Problem::from(&error))?;
        let answer = fallback::Answer::from(answer.into_fetched(Windows::default()));
        let Ok(fresh) = answer.fresh() else { return Err(old_prices()) };
        let prices: Fresh<PriceList> =
            fresh.try_map(|answer| answer.json()).map_err(|error| trouble(&error))?;
        let by_id = |list: PriceList| {
            list.products.into_iter().map(|product| (product.id, product.price_cents)).collect()
        };
        total(&new.lines, &prices.map(by_id))
    }
}

/// The catalog answers from its memory. That will do for a page; an order waits until it knows.
fn old_prices() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, codes::DEPENDENCY_UNAVAILABLE)
        .detail("the catalog has only old prices right now")
        .extension("dependency", "catalog")
        .extension("reason", "stale")
        .retry_after(PRICES_AGAIN)
}

/// Prices by product id.
type Prices = BTreeMap<String, i64>;

/// What all lines cost together, in cents; refuses unknown products and sums that no one can pay.
fn total(lines: &[Line], prices: &Fresh<Prices>) -> Result<i64, Problem> {
    let mut sum: i64 = 0;
    for line in lines {
        let Some(price) = prices.get(&line.product_id) else {
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "UNKNOWN_PRODUCT")
                .detail(format!("there is no product {:?}", line.product_id)));
        };
        let more =
            price.checked_mul(i64::from(line.quantity)).and_then(|cost| sum.checked_add(cost));
        sum = more.ok_or_else(|| Problem::validation("the total is out of range"))?;
    }
    Ok(sum)
}

fn validate(new: &NewOrder) -> Result<(), Problem> {
    if !crate::services::is_id(&new.customer_id) {
        return Err(Problem::validation("customerId: 1 to 64 letters, digits or '-'"));
    }
    check_lines(&new.lines)
}

/// Lines as they may come from outside: some, few enough, each product once.
///
/// # Errors
/// The problem to answer with; it names the place.
pub fn check_lines(lines: &[Line]) -> Result<(), Problem> {
    if lines.is_empty() || lines.len() > LINES_MAX {
        return Err(Problem::validation(format!("lines: 1 to {LINES_MAX}")));
    }
    for (index, line) in lines.iter().enumerate() {
        if !crate::services::is_id(&line.product_id) {
            let what = format!("lines[{index}].productId: 1 to 64 letters, digits or '-'");
            return Err(Problem::validation(what));
        }
        if !(1..=QUANTITY_MAX).contains(&line.quantity) {
            let what = format!("lines[{index}].quantity: 1 to {QUANTITY_MAX}");
            return Err(Problem::validation(what));
        }
        if lines[..index].iter().any(|other| other.product_id == line.product_id) {
            let what = format!("lines[{index}].productId: {:?} stands twice", line.product_id);
            return Err(Problem::validation(what));
        }
    }
    Ok(())
}

async fn show<DB: ShopDb>(
    State(orders): State<Arc<Orders<DB>>>,
    Path(id): Path<String>,
) -> Result<Json<OrderView>, Problem> {
    let row = rows::find(&orders.store, &id).await.map_err(|error| trouble(&error))?;
    row.map(|row| Json(row.into())).ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "ORDER_NOT_FOUND").detail(format!("no order {id:?}"))
    })
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wanted {
    customer_id: Option<String>,
    ids: Option<String>,
}

async fn list<DB: ShopDb>(
    State(orders): State<Arc<Orders<DB>>>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<OrderList>, Problem> {
    let store = &orders.store;
    let rows = match (wanted.customer_id, wanted.ids) {
        (Some(customer), None) => rows::of_customer(store, &customer, PAGE).await,
        (None, Some(ids)) => {
            let ids: Vec<String> = ids.split(',').map(str::to_owned).collect();
            rows::find_all(store, &ids).await
        }
        (None, None) | (Some(_), Some(_)) => {
            return Err(Problem::validation("give either customerId or ids"));
        }
    };
    let rows = rows.map_err(|error| trouble(&error))?;
    Ok(Json(OrderList { orders: rows.into_iter().map(OrderView::from).collect() }))
}

#[cfg(test)]
mod tests {
    use mamparo::call::cache::Fetched;

    use super::*;

    fn line(product: &str, quantity: u32) -> Line {
        Line { product_id: product.to_owned(), quantity }
    }

    #[test]
    fn totals_are_exact_cents_and_never_overflow() {
        let prices = Prices::from([("p-1".to_owned(), 1_999), ("p-2".to_owned(), i64::MAX)]);
        let prices = fallback::Answer::from(Fetched::from(prices)).fresh().unwrap();
        assert_eq!(total(&[line("p-1", 3)], &prices).unwrap(), 5_997);
        assert_eq!(total(&[line("p-9", 1)], &prices).unwrap_err().code(), "UNKNOWN_PRODUCT");
        assert_eq!(total(&[line("p-2", 2)], &prices).unwrap_err().code(), "VALIDATION_FAILED");
    }

    #[test]
    fn an_order_that_makes_no_sense_is_refused_with_the_place() {
        let order =
            |customer: &str, lines: Vec<Line>| NewOrder { customer_id: customer.to_owned(), lines };
        assert!(validate(&order("c-1", vec![line("p-1", 1)])).is_ok());
        for (bad, place) in [
            (order("c/../1", vec![line("p-1", 1)]), "customerId"),
            (order("c-1", vec![]), "lines"),
            (order("c-1", vec![line("p-1", 0)]), "lines[0].quantity"),
            (order("c-1", vec![line("p-1", 1), line("p-1", 2)]), "lines[1].productId"),
            (order("c-1", vec![line("p 1", 1)]), "lines[0].productId"),
        ] {
            let problem = validate(&bad).unwrap_err().to_json();
            assert!(problem["detail"].as_str().unwrap().starts_with(place), "{problem}");
        }
    }
}
