//! Inventory's two sweeps: reservations that ran out, and reservations that orders know nothing of.

use std::collections::BTreeMap;

use mamparo::call::clock;
use mamparo::core::limits;
use mamparo::core::saga::order::OrderState;
use mamparo::core::saga::reconcile::{Evidence, Reconciliation, Verdict};
use mamparo::core::time::WallTime;
use mamparo::http::HttpClient;
use mamparo::store::Store;

use super::rows::{self, Reservation};
use super::saga::{self, because};
use crate::db::ShopDb;
use crate::services::answers::{HandlerError, chain};
use crate::services::orders::http::OrderList;

/// Gives free what nobody confirmed in time, a page at a time. How many reservations that were; one
/// that can't be released is passed over and logged.
///
/// # Errors
/// What the database said when the reservations were listed.
pub async fn expire<DB: ShopDb>(store: &Store<DB>, batch: u32) -> Result<u32, HandlerError> {
    let now = clock::wall();
    let mut cursor = (String::new(), WallTime::from_unix_millis(i64::MIN));
    let mut released = 0;
    loop {
        let page = rows::expired(store, now, &cursor, batch).await?;
        let Some(last) = page.last() else { return Ok(released) };
        cursor = last.clone();
        for (id, _) in page {
            match release(store, &id, because::EXPIRED).await {
                Ok(done) => released += u32::from(done),
                Err(error) => {
                    tracing::error!(order = id, error = chain(&error), "failed to release goods");
                }
            }
        }
    }
}

async fn release<DB: ShopDb>(
    store: &Store<DB>,
    id: &str,
    reason: &str,
) -> Result<bool, HandlerError> {
    let mut tx = store.begin().await?;
    let Some(reservation) = rows::hold(&mut tx, id).await? else { return Ok(false) };
    let done = saga::release(&mut tx, &reservation, reason, clock::wall()).await?;
    store.commit(tx).await?;
    if done {
        tracing::warn!(order = id, reason, "goods are free again");
    }
    Ok(done)
}

/// The net under the trapeze: compares old active reservations with what orders say.
#[derive(Debug)]
pub struct Reconciler<DB: ShopDb> {
    /// Inventory's own database.
    pub store: Store<DB>,
    /// Who knows the orders.
    pub orders: HttpClient,
    /// How it decides.
    pub plan: Reconciliation,
}

/// What one run found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Found {
    /// Reservations compared.
    pub looked: u32,
    /// Given free.
    pub released: u32,
    /// Reported to people and left alone.
    pub reported: u32,
}

impl<DB: ShopDb> Reconciler<DB> {
    /// One run over all active reservations that are old enough, page by page.
    ///
    /// # Errors
    /// What the database said.
    pub async fn run(&self) -> Result<Found, HandlerError> {
        let (mut found, mut unknown, mut cursor) = (Found::default(), 0, String::new());
        loop {
            let before = clock::wall().minus(self.plan.older_than);
            let batch = limits::BATCH_MAX;
            let page = rows::active_before(&self.store, before, &cursor, batch).await?;
            let Some(last) = page.last() else { return Ok(found) };
            cursor.clone_from(&last.order_id);
            self.compare(&page, &mut found, &mut unknown).await?;
        }
    }

    /// Compares a page. `unknown` counts the orders of the whole run that nobody knows: its last,
    /// short page is no more plausible than those before it.
    async fn compare(
        &self,
        page: &[Reservation],
        found: &mut Found,
        unknown: &mut u32,
    ) -> Result<(), HandlerError> {
        let known = self.ask(page).await;
        let evidence = |reservation: &Reservation| match &known {
            None => Evidence::None,
            Some(states) => match states.get(&reservation.order_id) {
                Some(state) => Evidence::State(*state),
                None => Evidence::Unknown,
            },
        };
        let all: Vec<_> = page.iter().map(|r| (r, evidence(r))).collect();
        *unknown += count(all.iter().filter(|(_, e)| *e == Evidence::Unknown).count());
        let looked = found.looked + count(all.len());
        let plausible = self.plan.plausible(looked, *unknown);
        if !plausible {
            tracing::error!(unknown, looked, "orders seem to have lost their memory");
        }
        for (reservation, evidence) in all {
            found.looked += 1;
            let id = &reservation.order_id;
            let verdict = self.plan.ask(clock::wall(), reservation.reserved, evidence);
            let held = evidence == Evidence::Unknown && !plausible;
            match verdict {
                Verdict::Keep => {}
                Verdict::Release if !held => {
                    tracing::error!(order = %id, ?evidence, "discrepancy: released");
                    let released = release(&self.store, id, because::RECONCILED).await?;
                    found.released += u32::from(released);
                }
                Verdict::Release | Verdict::Report => {
                    tracing::error!(order = %id, ?evidence, "discrepancy: reported");
                    found.reported += 1;
                }
            }
        }
        Ok(())
    }

    /// The states of a page's orders in one request; `None` when orders did not tell.
    async fn ask(&self, page: &[Reservation]) -> Option<BTreeMap<String, OrderState>> {
        let ids: Vec<&str> = page.iter().map(|r| r.order_id.as_str()).collect();
        let request = self.orders.get("/v1/orders").query("ids", ids.join(","));
        let list = match request.send().await.map(|answer| answer.json::<OrderList>()) {
            Ok(Ok(list)) => list,
            Ok(Err(error)) => {
                tracing::error!(%error, "reconciliation can't read the orders' answer");
                return None;
            }
            Err(error) => {
                tracing::warn!(%error, "reconciliation gets no answer from orders");
                return None;
            }
        };
        let mut states = BTreeMap::new();
        for order in list.orders {
            // A state that we do not know is no evidence about anything on this page.
            states.insert(order.id, OrderState::from_name(&order.status)?);
        }
        Some(states)
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
