//! Products and prices. Without its database the catalog answers from its cache, and says with
//! `Age` how old that is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::AGE;
use http::{HeaderValue, StatusCode};
use mamparo::call::clock;
use mamparo::core::time::WallTime;
use mamparo::http::Problem;
use mamparo::http::server::{Json, Query};
use mamparo::store::SqliteStore;
use moka::future::Cache;
use serde::{Deserialize, Serialize};

use super::answers::chain;

/// The catalog's schema, safe to run again.
pub const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS products (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    price_cents INTEGER NOT NULL CHECK (price_cents >= 0)
) STRICT;
";

/// How long the cache may serve while the database is away.
const STALE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Most products that are remembered.
const CACHED_MAX: u64 = 10_000;
/// Most products in one answer.
const PAGE: usize = 200;

/// A product.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Product {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its price in cents.
    pub price_cents: i64,
}

/// `GET /v1/products`
#[derive(Debug, Serialize, Deserialize)]
pub struct ProductList {
    /// The products that exist among those asked for.
    pub products: Vec<Product>,
}

/// What the handlers need.
#[derive(Debug, Clone)]
pub struct Catalog {
    store: SqliteStore,
    cache: Cache<String, Arc<Remembered>>,
}

/// A product as it was read last.
#[derive(Debug)]
struct Remembered {
    product: Product,
    read: WallTime,
}

impl Catalog {
    /// A catalog with an empty cache.
    #[must_use]
    pub fn new(store: SqliteStore) -> Self {
        let cache = Cache::builder().max_capacity(CACHED_MAX).time_to_live(STALE_MAX).build();
        Self { store, cache }
    }

    /// Reads products, and remembers them.
    async fn read(&self, ids: &[String]) -> Result<Vec<Product>, sqlx::Error> {
        let wanted =
            serde_json::to_string(ids).map_err(|error| sqlx::Error::Encode(error.into()))?;
        let rows: Vec<(String, String, i64)> = sqlx::query_as(
            "SELECT id, name, price_cents FROM products
             WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id",
        )
        .bind(wanted)
        .fetch_all(self.store.reader())
        .await?;
        let read = clock::wall();
        let mut products = Vec::with_capacity(rows.len());
        for (id, name, price_cents) in rows {
            let product = Product { id: id.clone(), name, price_cents };
            self.cache.insert(id, Arc::new(Remembered { product: product.clone(), read })).await;
            products.push(product);
        }
        Ok(products)
    }

    /// The same from memory, with the age of the oldest; `None` when one is not remembered: a
    /// product that is merely unknown to the cache must not be called unknown.
    async fn remember(&self, ids: &[String]) -> Option<(Vec<Product>, Duration)> {
        let (mut products, mut oldest) = (BTreeMap::new(), Duration::ZERO);
        for id in ids {
            let known = self.cache.get(id).await?;
            oldest = oldest.max(clock::wall().since(known.read));
            products.insert(id.clone(), known.product.clone());
        }
        Some((products.into_values().collect(), oldest))
    }
}

/// The routes.
pub fn router(catalog: Catalog) -> Router {
    Router::new().route("/v1/products", get(list)).with_state(catalog)
}

#[derive(Debug, Deserialize)]
struct Wanted {
    ids: String,
}

async fn list(
    State(catalog): State<Catalog>,
    Query(wanted): Query<Wanted>,
) -> Result<Response, Problem> {
    let ids: Vec<String> = wanted.ids.split(',').map(str::to_owned).collect();
    if ids.len() > PAGE {
        return Err(Problem::validation(format!("ids: at most {PAGE}")));
    }
    let error = match catalog.read(&ids).await {
        Ok(products) => return Ok(Json(ProductList { products }).into_response()),
        Err(error) => error,
    };
    tracing::warn!(error = chain(&error), "the database is away; answering from the cache");
    let Some((products, age)) = catalog.remember(&ids).await else {
        return Err(Problem::unavailable(Duration::from_secs(1)));
    };
    let mut response = (StatusCode::OK, Json(ProductList { products })).into_response();
    response.headers_mut().insert(AGE, HeaderValue::from(age.as_secs()));
    Ok(response)
}

/// Puts the shop's products into an empty catalog.
///
/// # Errors
/// What the database said.
pub async fn seed(store: &SqliteStore, products: &[Product]) -> Result<(), sqlx::Error> {
    let mut tx = store.begin().await.map_err(|error| sqlx::Error::Configuration(error.into()))?;
    for product in products {
        sqlx::query(
            "INSERT INTO products (id, name, price_cents) VALUES (?, ?, ?)
             ON CONFLICT (id) DO NOTHING",
        )
        .bind(&product.id)
        .bind(&product.name)
        .bind(product.price_cents)
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_its_database_the_catalog_answers_from_its_cache_with_age() {
        let store = SqliteStore::open("sqlite::memory:").await.unwrap();
        store.apply(SCHEMA).await.unwrap();
        let lamp = Product { id: "p-1".into(), name: "Lamp".into(), price_cents: 1_999 };
        seed(&store, std::slice::from_ref(&lamp)).await.unwrap();
        let catalog = Catalog::new(store.clone());
        let ids = ["p-1".to_owned()];
        assert_eq!(catalog.read(&ids).await.unwrap(), [lamp]);

        store.close().await;
        let ask = |ids: &str| list(State(catalog.clone()), Query(Wanted { ids: ids.into() }));
        let answer = ask("p-1").await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()[AGE], "0");
        let unknown = ask("p-1,p-2").await.unwrap_err();
        assert_eq!(unknown.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
