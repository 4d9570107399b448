//! Puts a customer's page together. With the catalog away it still shows the orders, without
//! product names and with `"partial": true`: a page that says what it lacks is no lie.

use std::collections::{BTreeMap, BTreeSet};

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use mamparo::http::server::{Json, Query};
use mamparo::http::{HttpClient, Problem};
use serde::{Deserialize, Serialize};

use super::answers::chain;
use super::catalog::ProductList;
use super::orders::http::{OrderList, OrderView};
use super::trouble;

/// What the handlers need.
#[derive(Debug, Clone)]
pub struct Bff {
    /// Whose orders.
    pub orders: HttpClient,
    /// What the products are called.
    pub catalog: HttpClient,
}

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
    pub product_names: BTreeMap<String, String>,
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
    let names = bff.names(&list).await;
    let partial = names.is_none();
    let names = names.unwrap_or_default();
    let named = |order: OrderView| {
        let of = |line: &crate::events::Line| {
            names.get(&line.product_id).map(|name| (line.product_id.clone(), name.clone()))
        };
        NamedOrder { product_names: order.lines.iter().filter_map(of).collect(), order }
    };
    Ok(Json(Page { orders: list.orders.into_iter().map(named).collect(), partial }))
}

impl Bff {
    /// The names of all products on the page; `None` when the catalog did not tell.
    async fn names(&self, list: &OrderList) -> Option<BTreeMap<String, String>> {
        let ids: BTreeSet<&str> =
            list.orders.iter().flat_map(|o| &o.lines).map(|l| l.product_id.as_str()).collect();
        if ids.is_empty() {
            return Some(BTreeMap::new());
        }
        let ids = ids.into_iter().collect::<Vec<_>>().join(",");
        let answer = self.catalog.get("/v1/products").query("ids", ids).send().await;
        let products = match answer.map(|response| response.json::<ProductList>()) {
            Ok(Ok(list)) => list.products,
            Ok(Err(error)) => {
                tracing::warn!(%error, fallback = "partial", "the catalog's answer can't be read");
                return None;
            }
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(error, fallback = "partial", "no product names");
                return None;
            }
        };
        Some(products.into_iter().map(|product| (product.id, product.name)).collect())
    }
}
