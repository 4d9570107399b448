//! Products and prices. Without its database the catalog answers from its cache, and says with
//! `Age` and `Cache-Status` how old that is and why.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mamparo::call::cache::{Handling, Outcome, StaleCache};
use mamparo::call::fallback::{Answer, Degraded, Fallback, Lesser};
use mamparo::call::{BuildError, Classify, Failure};
use mamparo::core::call::fallback::Windows;
use mamparo::core::outcome::Health;
use mamparo::http::server::{Json, Query};
use mamparo::http::{Problem, caching};
use mamparo::store::Store;
use serde::{Deserialize, Serialize};

use super::answers::{chain, is_away};
use crate::db::{ShopDb, query};

/// The catalog's schema, safe to run again.
pub const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS products (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    price_cents INTEGER NOT NULL CHECK (price_cents >= 0)
) STRICT;
";

/// The service's name in metrics and headers.
const NAME: &str = "catalog";
/// The database is always asked first; while it is away the cache may serve for a day.
const WINDOWS: Windows = Windows {
    fresh_for: Duration::ZERO,
    while_revalidate: Duration::ZERO,
    if_error: Duration::from_secs(24 * 60 * 60),
    must_revalidate: false,
};
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
#[derive(Debug)]
pub struct Catalog<DB: ShopDb> {
    store: Store<DB>,
    cache: StaleCache<String, Product>,
    fallback: Fallback,
}

/// The database gave no products.
#[derive(Debug, thiserror::Error)]
#[error("read products")]
struct Unread(#[source] sqlx::Error);

impl Classify for Unread {
    fn classify(&self) -> Failure {
        if is_away(&self.0) {
            Failure::TRANSIENT
        } else {
            // What the database can't do, it can't do a second time, and it is not the caller's doing.
            Failure { health: Health::Bad, ..Failure::PERMANENT }
        }
    }
}

impl<DB: ShopDb> Catalog<DB> {
    /// A catalog with an empty cache.
    ///
    /// # Errors
    /// [`BuildError`], when the cache's limits can't be meant.
    pub fn new(store: Store<DB>) -> Result<Self, BuildError> {
        let cache = StaleCache::builder(NAME).service(NAME).entries(CACHED_MAX);
        let cache = cache.windows(WINDOWS).build()?;
        Ok(Self { store, cache, fallback: Fallback::new(NAME, "database") })
    }

    /// Reads products, and remembers them.
    async fn read(&self, ids: &[String]) -> Result<Vec<Product>, Unread> {
        let wanted =
            query("SELECT id, name, price_cents FROM products WHERE id IN (:listed) ORDER BY id");
        let wanted = wanted.bind_list(ids).map_err(Unread)?;
        let rows: Vec<(String, String, i64)> = wanted.all(&self.store).await.map_err(Unread)?;
        let mut products = Vec::with_capacity(rows.len());
        for (id, name, price_cents) in rows {
            let product = Product { id: id.clone(), name, price_cents };
            self.cache.put(id, product.clone());
            products.push(product);
        }
        // What is gone does not come back from memory.
        let gone = ids.iter().filter(|id| products.iter().all(|product| product.id != **id));
        gone.for_each(|id| self.cache.forget(id));
        Ok(products)
    }

    /// The same from memory, as old as the oldest; `None` when one is not remembered: a product that
    /// is merely unknown to the cache must not be called unknown.
    fn remember(&self, ids: &[String]) -> Option<Lesser<Vec<Product>>> {
        let (mut products, mut oldest) = (BTreeMap::new(), Duration::ZERO);
        for id in ids {
            let Lesser::Stale(product, age) = self.cache.recall(id)? else { return None };
            oldest = oldest.max(age);
            products.insert(id, product);
        }
        Some(Lesser::Stale(products.into_values().collect(), oldest))
    }
}

/// The routes.
pub fn router<DB: ShopDb>(catalog: Catalog<DB>) -> Router {
    Router::new().route("/v1/products", get(list::<DB>)).with_state(Arc::new(catalog))
}

#[derive(Debug, Deserialize)]
struct Wanted {
    ids: String,
}

async fn list<DB: ShopDb>(
    State(catalog): State<Arc<Catalog<DB>>>,
    Query(wanted): Query<Wanted>,
) -> Result<Response, Problem> {
    let ids: Vec<String> = wanted.ids.split(',').map(str::to_owned).collect();
    if ids.len() > PAGE {
        return Err(Problem::validation(format!("ids: at most {PAGE}")));
    }
    let called = catalog.read(&ids).await;
    if let Err(error) = &called {
        tracing::warn!(error = chain(error), "the database gave no products");
    }
    match catalog.fallback.read(called, |_reason| catalog.remember(&ids)) {
        Ok(Answer::Fresh(products)) => {
            let outcome = Outcome::Fetched { had_stale: false, collapsed: None, stored: true };
            Ok(answer(products.into_inner(), outcome, Duration::ZERO))
        }
        Ok(Answer::Degraded(products)) => Ok(stale(products)),
        Err(Unread(_)) => Err(Problem::unavailable(Duration::from_secs(1))),
    }
}

/// An answer that says how old it is, and why there is no newer one.
fn stale(products: Degraded<Vec<Product>>) -> Response {
    let (reason, age) = (products.reason(), products.age().unwrap_or_default());
    answer(products.accept_degraded(), Outcome::Stale(reason), age)
}

fn answer(products: Vec<Product>, outcome: Outcome, age: Duration) -> Response {
    let mut response = Json(ProductList { products }).into_response();
    let handling = Handling { outcome, age, ttl_seconds: WINDOWS.ttl_seconds(age) };
    caching::tell(NAME, &handling, response.headers_mut());
    response
}

/// Puts the shop's products into an empty catalog.
///
/// # Errors
/// What the database said.
pub async fn seed<DB: ShopDb>(store: &Store<DB>, products: &[Product]) -> Result<(), sqlx::Error> {
    let mut tx = store.begin().await.map_err(|error| sqlx::Error::Configuration(error.into()))?;
    for product in products {
        query(
            "INSERT INTO products (id, name, price_cents) VALUES ($1, $2, $3)
             ON CONFLICT (id) DO NOTHING",
        )
        .bind(&product.id)
        .bind(&product.name)
        .bind(product.price_cents)
        .run(&mut tx)
        .await?;
    }
    tx.commit().await
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use http::header::AGE;
    use mamparo::http::caching::{CacheStatus, Forward};
    use mamparo::store::SqliteStore;

    use super::*;

    #[tokio::test]
    async fn without_its_database_the_catalog_answers_from_its_cache_with_age() {
        let store = SqliteStore::open("sqlite::memory:").await.unwrap();
        store.apply(SCHEMA).await.unwrap();
        let product = |id: &str| Product { id: id.into(), name: "Lamp".into(), price_cents: 1_999 };
        let lamps = [product("p-1"), product("p-3")];
        seed(&store, &lamps).await.unwrap();
        let catalog = Arc::new(Catalog::new(store.clone()).unwrap());
        let ask = |ids: &str| list(State(Arc::clone(&catalog)), Query(Wanted { ids: ids.into() }));
        let answer = ask("p-1,p-3").await.unwrap();
        assert_eq!((answer.status(), answer.headers().get(AGE)), (StatusCode::OK, None));
        let status = CacheStatus::read(answer.headers());
        assert_eq!(status, [CacheStatus::forwarded("catalog", Forward::Miss).stored().ttl(0)]);
        let delete = sqlx::query("DELETE FROM products WHERE id = 'p-3'");
        let mut tx = store.begin().await.unwrap();
        delete.execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(ask("p-1,p-3").await.unwrap().status(), StatusCode::OK);

        store.close().await;
        let answer = ask("p-1").await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()[AGE], "0");
        let status = &CacheStatus::read(answer.headers())[0];
        assert!(status.is_hit() && status.ttl_seconds() <= Some(0), "{status}");
        assert!(status.to_string().ends_with("detail=unavailable"), "{status}");
        for lacking in ["p-1,p-2", "p-3"] {
            let refusal = ask(lacking).await.unwrap_err();
            assert_eq!(refusal.status(), StatusCode::SERVICE_UNAVAILABLE, "{lacking}");
        }
    }
}
