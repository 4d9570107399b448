//! Load shedding: 503 `SHED` with `Retry-After` for what matters least, before any work is done on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use mamparo_call::{Context, clock};
use mamparo_core::call::mistake::Mistake;
use mamparo_core::call::shed::{Answer, Criticality, Entry, Lot, Needs, Shed, ShedConfig, Work};
use mamparo_core::keyed::Keyed;
use mamparo_core::rng::Rng;
use mamparo_core::time::Moment;

use crate::problem::codes;
use crate::{Problem, observe};

/// Most routes whose time is learned. A service with more has them share.
const ROUTES_MAX: usize = 1_000;

/// Refuses requests by their criticality when the service is nearly full, and those that can't be done
/// before their caller hangs up.
///
/// The load is the requests that are being handled, over `capacity`. A request counts from here until its
/// answer begins or its handler is dropped. Clients keep their lot for a minute: under half load for
/// their level, half of them are served, not half of each one's calls.
#[derive(Debug)]
pub struct LoadShed {
    shed: Shed,
    capacity: u32,
    in_flight: AtomicU32,
    seed: u64,
    routes: Keyed<String, Arc<Needs>>,
}

impl LoadShed {
    /// A shedder for a service that can handle `capacity` requests at once.
    ///
    /// # Errors
    /// All mistakes of the settings; `shed.capacity` when it is 0.
    pub fn new(capacity: u32, config: ShedConfig) -> Result<Self, Vec<Mistake>> {
        let mut mistakes = config.mistakes();
        if capacity == 0 {
            mistakes.push(Mistake { key: "shed.capacity", text: "must be at least 1".to_owned() });
        }
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let seed = clock::entropy().next_u64();
        Ok(Self {
            shed: Shed::new(config),
            capacity,
            in_flight: AtomicU32::new(0),
            seed: 0,
            routes: Keyed::new(ROUTES_MAX, seed, Arc::new(Needs::new())),
        })
    }

    /// The seed of clients' lots. Services with the same seed serve the same clients, so that a page
    /// which needs all of them works for some. Default 0 everywhere.
    #[must_use]
    pub fn lot_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Requests that are being handled.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn lot(&self, now: Moment, client: Option<&str>) -> Lot {
        match client {
            Some(client) => Lot::of_key(client, now, self.seed),
            None => Lot::drawn(&mut clock::entropy()),
        }
    }

    fn needs(&self, now: Moment, request: &Request) -> Arc<Needs> {
        let path =
            request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str);
        let route = format!("{} {path}", request.method());
        let entry = || (route.clone(), Arc::new(Needs::new()));
        self.routes.get_or_insert(now, route.as_str(), entry)
    }
}

/// One request among those in flight; leaves when it is dropped.
struct Place<'a> {
    in_flight: &'a AtomicU32,
    /// How many were there before.
    before: u32,
}

impl<'a> Place<'a> {
    fn take(in_flight: &'a AtomicU32) -> Self {
        Self { in_flight, before: in_flight.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Asks the shedder, and answers 503 for what stays out.
pub async fn layer(State(shed): State<Arc<LoadShed>>, request: Request, next: Next) -> Response {
    let context = Context::current();
    let now = clock::now();
    let needs = shed.needs(now, &request);
    // Counted first and looked at then: of two that come at once, only one sees the last place free.
    let place = Place::take(&shed.in_flight);
    let work = Work {
        criticality: context.criticality,
        load: f64::from(place.before) / f64::from(shed.capacity),
        left: context.left(now),
        needs: needs.ask(now),
    };
    let Answer { entry, change } = shed.shed.ask(work, shed.lot(now, context.client.as_deref()));
    if let Some(change) = change {
        observe::shedding(change);
    }
    match entry {
        Entry::Admitted => {
            let response = next.run(request).await;
            if response.status().is_success() {
                let done = clock::now();
                needs.tell(done, done.since(now));
            }
            response
        }
        Entry::Overloaded { retry_after } => {
            observe::shed(work.criticality);
            overloaded(work.criticality, retry_after).into_response()
        }
        Entry::TooLate => {
            observe::refused("deadline-too-near");
            Problem::deadline_exceeded()
                .detail("such requests take longer than is left")
                .into_response()
        }
    }
}

fn overloaded(criticality: Criticality, wait: Duration) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, codes::SHED)
        .detail("there is too much to do, and other requests matter more")
        .extension("criticality", criticality.slug())
        .retry_after(wait)
}
