//! The shop: which services there are, and how each is wired.

use std::sync::Arc;
use std::time::Duration;

use mamparo::core::saga::reconcile::Reconciliation;
use mamparo::core::saga::watchdog::Watchdog;
use mamparo::service::{Service, Telemetry};
use mamparo::topology::PolicyFile;
use sqlx::{Postgres, Sqlite};

use crate::db::{Engine, ShopDb};
use crate::host::{Host, StartError};
use crate::outside::{mail, psp};
use crate::services::bff::{self, Bff};
use crate::services::catalog::{self, Catalog, Product};
use crate::services::customers::{self, Customer};
use crate::services::gateway::{self, Gateway};
use crate::services::inventory::http::Inventory;
use crate::services::inventory::jobs::Reconciler;
use crate::services::inventory::saga::StockSaga;
use crate::services::notifications::{self, Mailroom, Sender};
use crate::services::orders::http::Orders;
use crate::services::orders::saga::{Deadlines, OrderSaga};
use crate::services::orders::watch::OrderWatch;
use crate::services::payments::psp::Psp;
use crate::services::payments::saga::PaymentSaga;
use crate::services::{inventory, orders, payments};
use crate::stock;
use crate::weather::Weather;

/// The services, in an order in which they can be started: outside worlds, then what others call.
pub const SERVICES: [&str; 10] = [
    "psp",
    "mail",
    "catalog",
    "customers",
    "inventory",
    "payments",
    "notifications",
    "orders",
    "bff",
    "gateway",
];

/// The policy file that a service comes with.
#[must_use]
pub fn default_policy(service: &str) -> Option<&'static str> {
    Some(match service {
        "gateway" => include_str!("../config/gateway.toml"),
        "bff" => include_str!("../config/bff.toml"),
        "orders" => include_str!("../config/orders.toml"),
        "catalog" => include_str!("../config/catalog.toml"),
        "customers" => include_str!("../config/customers.toml"),
        "inventory" => include_str!("../config/inventory.toml"),
        "payments" => include_str!("../config/payments.toml"),
        "notifications" => include_str!("../config/notifications.toml"),
        "psp" => include_str!("../config/psp.toml"),
        "mail" => include_str!("../config/mail.toml"),
        _ => return None,
    })
}

/// How long two dependencies asked in parallel may take (mission: gateway 5 s, orders 3 s, 2 s).
const DEPENDENCY_BUDGET: Duration = Duration::from_secs(2);
/// How long queued mails wait when the mail server took all, or took none.
const MAIL_PAUSE: Duration = Duration::from_millis(500);

/// Builds the service that `policy` describes: its tasks work from here on, and stop when the result
/// is run to its end. `weather` is what the demo does to its HTTP side.
///
/// # Errors
/// What is missing, wrong or taken.
pub async fn build(
    policy: PolicyFile,
    telemetry: Telemetry,
    weather: &Weather,
) -> Result<Service, StartError> {
    wire(Host::open(policy, telemetry).await?, weather).await
}

/// The same for a host that has its port.
///
/// # Errors
/// What is missing or wrong.
pub async fn wire(host: Host, weather: &Weather) -> Result<Service, StartError> {
    let store = host.policy().service.store.as_ref();
    // Who keeps no books can be built for any database.
    match store.map_or(Ok(Engine::Sqlite), |address| Engine::of(address))? {
        Engine::Sqlite => wire_on::<Sqlite>(host, weather).await,
        Engine::Postgres => wire_on::<Postgres>(host, weather).await,
    }
}

async fn wire_on<DB: ShopDb>(host: Host, weather: &Weather) -> Result<Service, StartError> {
    let name = host.policy().service.name.value.clone();
    match name.as_str() {
        "gateway" => build_gateway(host).await,
        "bff" => build_bff(host).await,
        "orders" => build_orders::<DB>(host).await,
        "catalog" => build_catalog::<DB>(host, weather).await,
        "customers" => build_customers::<DB>(host).await,
        "inventory" => build_inventory::<DB>(host).await,
        "payments" => build_payments::<DB>(host).await,
        "notifications" => build_notifications::<DB>(host).await,
        "psp" => {
            let store = host.store::<DB>(psp::SCHEMA).await?;
            host.serve(weather.over(psp::router(store)))
        }
        "mail" => {
            let store = host.store::<DB>(mail::SCHEMA).await?;
            host.serve(mail::router(store))
        }
        _ => Err(StartError::Unknown(name)),
    }
}

async fn build_gateway(host: Host) -> Result<Service, StartError> {
    let gateway = Gateway {
        orders: host.client("orders")?,
        bff: host.client("bff")?,
        catalog: host.client("catalog")?,
    };
    host.serve(gateway::router(gateway))
}

async fn build_bff(host: Host) -> Result<Service, StartError> {
    let bff = Bff::new(host.client("orders")?, host.client("catalog")?);
    host.serve(bff::router(bff))
}

async fn build_catalog<DB: ShopDb>(host: Host, weather: &Weather) -> Result<Service, StartError> {
    let store = host.store::<DB>(catalog::SCHEMA).await?;
    let product = |shelf: &stock::Shelf| Product {
        id: shelf.product_id.clone(),
        name: shelf.name.clone(),
        price_cents: shelf.price_cents,
    };
    let products: Vec<Product> = stock::shelves().iter().map(product).collect();
    catalog::seed(&store, &products).await?;
    host.serve(weather.over(catalog::router(Catalog::new(store)?)))
}

async fn build_customers<DB: ShopDb>(host: Host) -> Result<Service, StartError> {
    let store = host.store::<DB>(customers::SCHEMA).await?;
    let all: Vec<Customer> = stock::customers().map(|(id, name)| Customer { id, name }).collect();
    customers::seed(&store, &all).await?;
    host.serve(customers::router(store))
}

async fn build_orders<DB: ShopDb>(host: Host) -> Result<Service, StartError> {
    let saga = host.policy().saga("order").ok_or_else(|| host.missing("[sagas.order]"))?;
    let limits = saga.deadlines.iter().map(|state| (state.state.clone(), state.after.value));
    let deadlines = Deadlines::new(limits);
    if let Some(state) = deadlines.missing().next() {
        return Err(host.missing(format!("sagas.order.deadlines.{}", state.name())));
    }
    let watchdog = Watchdog { every: saga.watch_every.value, batch: saga.batch.value };
    let (store, broker) = (host.store::<DB>(orders::rows::SCHEMA).await?, host.broker().await?);
    let handler = OrderSaga { deadlines: deadlines.clone() };
    host.consume("orders.saga", &broker, &store, handler).await?;
    host.relay(&broker, &store);
    let watch =
        OrderWatch { store: store.background(), watchdog, deadlines: deadlines.clone(), broker };
    let watch = Arc::new(watch);
    host.job("watchdog", move || {
        let watch = Arc::clone(&watch);
        async move { watch.cycle().await.map(|moved| watch.watchdog.pause(moved)) }
    });
    let orders = Orders {
        store,
        catalog: host.client("catalog")?,
        customers: host.client("customers")?,
        deadlines,
        dependency_budget: DEPENDENCY_BUDGET,
    };
    host.serve(orders::http::router(orders))
}

async fn build_inventory<DB: ShopDb>(host: Host) -> Result<Service, StartError> {
    let saga = host.policy().saga("order").ok_or_else(|| host.missing("[sagas.order]"))?;
    let expiry = saga.reservation_expiry.as_ref();
    let expiry = **expiry.ok_or_else(|| host.missing("sagas.order.reservation_expiry"))?;
    let (every, batch) = (saga.watch_every.value, saga.batch.value);
    let job = host.policy().job("reconciliation");
    let job = job.ok_or_else(|| host.missing("[jobs.reconciliation]"))?;
    let plan = Reconciliation::default();
    let older_than = job.older_than.as_ref().map_or(plan.older_than, |time| time.value);
    let plan = Reconciliation { every: job.every.value, older_than, ..plan };

    let (store, broker) = (host.store::<DB>(inventory::rows::SCHEMA).await?, host.broker().await?);
    let mut tx = store.begin().await?;
    for shelf in stock::shelves() {
        inventory::rows::seed(&mut tx, &shelf.product_id, shelf.units).await?;
    }
    store.commit(tx).await?;
    host.consume("inventory.orders", &broker, &store, StockSaga { expiry }).await?;
    host.relay(&broker, &store);
    let sweeper = store.background();
    host.job("reservation expiry", move || {
        let store = sweeper.clone();
        async move { inventory::jobs::expire(&store, batch).await.map(|_| every) }
    });
    let reconciler = Reconciler { store: store.background(), orders: host.client("orders")?, plan };
    let reconciler = Arc::new(reconciler);
    host.job("reconciliation", move || {
        let reconciler = Arc::clone(&reconciler);
        async move {
            let found = reconciler.run().await?;
            tracing::info!(?found, "reconciled with orders");
            Ok(reconciler.plan.every)
        }
    });
    host.serve(inventory::http::router(Inventory { store, expiry }))
}

async fn build_payments<DB: ShopDb>(host: Host) -> Result<Service, StartError> {
    let (store, broker) = (host.store::<DB>(payments::rows::SCHEMA).await?, host.broker().await?);
    let handler = PaymentSaga { store: store.background(), psp: Psp::new(host.client("psp")?) };
    host.consume("payments.orders", &broker, &store, handler).await?;
    host.relay(&broker, &store);
    host.job("refund watch", move || {
        let store = store.background();
        async move { payments::saga::watch_refunds(&store).await }
    });
    host.serve(axum::Router::new())
}

async fn build_notifications<DB: ShopDb>(host: Host) -> Result<Service, StartError> {
    let (store, broker) = (host.store::<DB>(notifications::SCHEMA).await?, host.broker().await?);
    host.consume("notifications.orders", &broker, &store, Mailroom).await?;
    let sender = Arc::new(Sender { store: store.background(), mail: host.client("mail")? });
    host.job("mail sender", move || {
        let sender = Arc::clone(&sender);
        async move { sender.round().await.map(|_| MAIL_PAUSE) }
    });
    host.serve(axum::Router::new())
}
