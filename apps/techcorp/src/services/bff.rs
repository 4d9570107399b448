//! Puts a customer's page together. With the catalog away it still shows the orders, without
//! product names and with `"partial": true`: a page that says what it lacks is no lie.

use std::collections::{BTreeMap, BTreeSet};

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use mamparo::call::CallError;
use mamparo::call::fallback::{Answer, Fallback, Lesser};
use mamparo::http::server::{Json, Query};
use mamparo::http::{HttpClient, HttpError, Problem};
use serde::{Deserialize, Serialize};

use super::answers::chain;
use super::catalog::ProductList;
use super::orders::http::{OrderList, OrderView};
use super::trouble;

/// What the handlers need.
#[derive(Debug, Clone)]
pub struct Bff {
    orders: HttpClient,
    catalog: HttpClient,
    fallback: Fallback,
}

/// Product names by product id.
type Names = BTreeMap<String, String>;

/// The page.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    /// The orders, newest first.
    pub orders: Vec<NamedOrder>,
    /// `true` when product names are missing because the catalog did not answer.
    pub partial: bool,
}

/// An order with the names of its products.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamedOrder {
    /// The order as orders know it.
    #[serde(flatten)]
    pub order: OrderView,
    /// Names by product id; empty in a partial answer.
    pub product_names: Names,
}

/// The routes.
pub fn router(bff: Bff) -> Router {
    Router::new().route("/v1/orders", get(page)).with_state(bff)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wanted {
    customer_id: String,
}

async fn page(State(bff): State<Bff>, Query(wanted): Query<Wanted>) -> Result<Json<Page>, Problem> {
    let request = bff.orders.get("/v1/orders").query("customerId", &wanted.customer_id);
    let response = request.send().await.map_err(|error| Problem::from(&error))?;
    let list: OrderList = response.json().map_err(|error| trouble(&error))?;
    let (names, partial) = match bff.names(&list).await {
        Ok(Answer::Fresh(names)) => (names.into_inner(), false),
        Ok(Answer::Degraded(names)) => (names.accept_degraded(), true),
        // The catalog answered, and not what was asked for. That is a bug of one of us, and no
        // reason to hide the orders.
        Err(error) => {
            tracing::error!(error = chain(&error), fallback = "partial", "no product names");
            (Names::new(), true)
        }
    };
    let named = |order: OrderView| {
        let of = |line: &crate::events::Line| {
            names.get(&line.product_id).map(|name| (line.product_id.clone(), name.clone()))
        };
        NamedOrder { product_names: order.lines.iter().filter_map(of).collect(), order }
    };
    Ok(Json(Page { orders: list.orders.into_iter().map(named).collect(), partial }))
}

impl Bff {
    /// Puts pages together from these two.
    #[must_use]
    pub fn new(orders: HttpClient, catalog: HttpClient) -> Self {
        let fallback = Fallback::of(catalog.dependency());
        Self { orders, catalog, fallback }
    }

    /// The names of all products on the page; none of them when the catalog can't tell.
    async fn names(&self, list: &OrderList) -> Result<Answer<Names>, CallError<HttpError>> {
        let ids: BTreeSet<&str> =
            list.orders.iter().flat_map(|o| &o.lines).map(|l| l.product_id.as_str()).collect();
        let called = if ids.is_empty() {
            Ok(ProductList { products: Vec::new() })
        } else {
            let ids = ids.into_iter().collect::<Vec<_>>().join(",");
            self.catalog.get("/v1/products").query("ids", ids).send_json().await
        };
        if let Err(error) = &called {
            tracing::warn!(error = chain(error), "the catalog tells no product names");
        }
        let names = called.map(|list: ProductList| {
            list.products.into_iter().map(|product| (product.id, product.name)).collect()
        });
        self.fallback.read(names, |_reason| Some(Lesser::Partial(Names::new())))
    }
}
