//! Shoppers: they order at a steady rate whatever the shop answers, look at their orders, and now
//! and then click twice. Everything they do follows from the seed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use mamparo::call::{CallError, Context, clock};
use mamparo::core::rng::{Rng, SeededRng};
use mamparo::core::time::Moment;
use mamparo::http::{HttpClient, HttpError, Response};
use serde_json::{Value, json};

/// Customers of the shop.
pub const CUSTOMERS: u64 = 40;
/// Ordinary products, with plenty on the shelf.
pub const PRODUCTS: u64 = 20;
/// A product that runs out.
pub const SCARCE: &str = "p-scarce";
/// A product that no card pays for.
pub const DEAR: &str = "p-dear";

/// How many times a request without an answer is sent again, with the same key.
const RESENDS: u32 = 2;

/// What a shopper did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Did {
    /// `POST /v1/orders`
    Order,
    /// `GET /v1/orders?customerId=`
    List,
}

/// One request and its answer.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// What.
    pub did: Did,
    /// When it was sent.
    pub at: Moment,
    /// How long it took.
    pub took: Duration,
    /// The status; `None` without an answer.
    pub status: Option<u16>,
    /// A refusal that says when to come back, as problem+json.
    pub honest: bool,
    /// A list without product names that says so.
    pub partial: bool,
}

/// What all shoppers saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Requests, in the order of their answers.
    pub samples: Vec<Sample>,
    /// Orders that were answered with 201.
    pub answered: BTreeSet<String>,
    /// Same key, two different orders: must stay 0.
    pub split_keys: u64,
    /// The first shopper who was answered with 201.
    pub regular: Option<u64>,
}

/// Shared with the live view.
pub type Shared = Arc<Mutex<Seen>>;

/// Runs `look` on what was seen so far.
pub fn with<T>(seen: &Shared, look: impl FnOnce(&mut Seen) -> T) -> T {
    look(&mut seen.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The shoppers.
#[derive(Debug)]
pub struct Traffic {
    /// The way in.
    pub gateway: HttpClient,
    /// What they saw.
    pub seen: Shared,
    /// Orders a second.
    pub rate: f64,
    /// The seed.
    pub rng: SeededRng,
    /// When the regular customer comes, in this order: lists of somebody who has orders are then
    /// asked for even where traffic is thin.
    pub regular_at: Vec<Moment>,
}

/// What a shopper is about to do.
#[derive(Debug, Clone)]
struct Intent {
    shopper: u64,
    key: String,
    lines: Value,
    list: Option<List>,
    twice: bool,
}

/// When a shopper looks at the list of orders.
#[derive(Debug, Clone, Copy)]
enum List {
    /// While the order is under way.
    Meanwhile,
    /// When the order was answered.
    Afterwards,
}

impl Intent {
    fn client(&self) -> String {
        format!("shopper-{}", self.shopper)
    }

    fn customer(&self) -> String {
        format!("c-{}", self.shopper)
    }
}

impl Traffic {
    /// Sends requests until `until`, then waits for the answers that are still out.
    pub async fn run(mut self, until: Moment) {
        let pause = Duration::from_secs_f64(1.0 / self.rate.clamp(0.1, 1_000.0));
        let mut next = clock::now();
        let mut out = FuturesUnordered::new();
        let mut serial = 0_u64;
        while clock::now() < until {
            tokio::select! {
                () = clock::sleep_until(next) => {
                    next = next.plus(pause);
                    serial += 1;
                    let intent = self.who_comes(serial, clock::now());
                    out.push(act(self.gateway.clone(), Arc::clone(&self.seen), intent));
                }
                Some(()) = out.next() => {}
            }
        }
        while out.next().await.is_some() {}
    }

    /// A shopper as the seed has it; or the regular customer, when it is time.
    fn who_comes(&mut self, serial: u64, now: Moment) -> Intent {
        let intent = self.intend(serial);
        let regular = with(&self.seen, |seen| seen.regular);
        match (regular, self.regular_at.first()) {
            (Some(shopper), Some(at)) if *at <= now => {
                self.regular_at.remove(0);
                Intent { shopper, list: Some(List::Meanwhile), twice: false, ..intent }
            }
            _ => intent,
        }
    }

    fn intend(&mut self, serial: u64) -> Intent {
        let rng = &mut self.rng;
        let shopper = rng.up_to(CUSTOMERS - 1) + 1;
        let lines = if rng.chance(0.03) {
            json!([{ "productId": DEAR, "quantity": 1 }])
        } else if rng.chance(0.08) {
            json!([{ "productId": SCARCE, "quantity": 1 + rng.up_to(2) }])
        } else {
            let first = rng.up_to(PRODUCTS - 1);
            let line = |offset: u64, quantity: u64| {
                let number = (first + offset) % PRODUCTS + 1;
                json!({ "productId": format!("p-{number}"), "quantity": quantity })
            };
            let quantity = 1 + rng.up_to(2);
            if rng.chance(0.4) {
                json!([line(0, quantity), line(7, 1)])
            } else {
                json!([line(0, quantity)])
            }
        };
        Intent {
            shopper,
            key: format!("{:016x}-{serial}", rng.next_u64()),
            lines,
            list: rng.chance(0.5).then_some(List::Afterwards),
            twice: rng.chance(0.05),
        }
    }
}

async fn act(gateway: HttpClient, seen: Shared, intent: Intent) {
    let context = Context { client: Some(intent.client().into()), ..Context::default() };
    context
        .scope(async {
            match intent.list {
                None => buy(&gateway, &seen, &intent).await,
                Some(List::Meanwhile) => {
                    tokio::join!(buy(&gateway, &seen, &intent), list(&gateway, &seen, &intent));
                }
                Some(List::Afterwards) => {
                    buy(&gateway, &seen, &intent).await;
                    list(&gateway, &seen, &intent).await;
                }
            }
        })
        .await;
}

/// Orders, or clicks twice.
async fn buy(gateway: &HttpClient, seen: &Shared, intent: &Intent) {
    let first = order(gateway, seen, intent);
    if !intent.twice {
        first.await;
        return;
    }
    let (one, other) = tokio::join!(first, order(gateway, seen, intent));
    if let (Some(one), Some(other)) = (one, other)
        && one != other
    {
        with(seen, |seen| seen.split_keys += 1);
    }
}

/// Orders, and sends the same again when no answer came. The order's id, if there is one.
async fn order(gateway: &HttpClient, seen: &Shared, intent: &Intent) -> Option<String> {
    let body = json!({ "customerId": intent.customer(), "lines": intent.lines });
    for _ in 0..=RESENDS {
        let at = clock::now();
        let request = gateway.post("/v1/orders").idempotency_key(&intent.key).json(&body);
        let answer = request.send().await;
        let sample = sample(Did::Order, at, &answer);
        let id = answer.ok().and_then(|answer| answer.json::<Value>().ok());
        let id = id.and_then(|order| Some(order.get("id")?.as_str()?.to_owned()));
        with(seen, |seen| {
            seen.samples.push(sample);
            if id.is_some() {
                seen.regular.get_or_insert(intent.shopper);
            }
            seen.answered.extend(id.clone());
        });
        if sample.status.is_some() {
            return id;
        }
    }
    None
}

async fn list(gateway: &HttpClient, seen: &Shared, intent: &Intent) {
    let at = clock::now();
    let answer = gateway.get("/v1/orders").query("customerId", intent.customer()).send().await;
    let mut sample = sample(Did::List, at, &answer);
    let page = answer.ok().and_then(|answer| answer.json::<Value>().ok());
    sample.partial = page.is_some_and(|page| page["partial"] == true);
    with(seen, |seen| seen.samples.push(sample));
}

fn sample(did: Did, at: Moment, answer: &Result<Response, CallError<HttpError>>) -> Sample {
    let took = clock::now().since(at);
    let said = match answer {
        Ok(response) => Some(response),
        Err(error) => error.cause().and_then(HttpError::answer),
    };
    let header = |name| said.and_then(|said| said.headers.get(name)?.to_str().ok());
    let problem = header(CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/problem"));
    Sample {
        did,
        at,
        took,
        status: said.map(|said| said.status.as_u16()),
        honest: problem && header(RETRY_AFTER).is_some(),
        partial: false,
    }
}

/// The value below which `share` of all durations lie.
#[must_use]
pub fn percentile(mut took: Vec<Duration>, share: f64) -> Duration {
    if took.is_empty() {
        return Duration::ZERO;
    }
    took.sort_unstable();
    let rank = (share * took.len() as f64).ceil() as usize;
    took[rank.clamp(1, took.len()) - 1]
}

#[cfg(test)]
mod tests {
    use mamparo::call::Dependency;

    use super::*;

    fn traffic(seed: u64) -> Traffic {
        let dependency = Dependency::builder("gateway").build().unwrap();
        Traffic {
            gateway: HttpClient::new("http://127.0.0.1:9", dependency).unwrap(),
            seen: Shared::default(),
            rate: 10.0,
            rng: SeededRng::new(seed),
            regular_at: Vec::new(),
        }
    }

    #[test]
    fn a_seed_replays_the_traffic() {
        let sent = |seed| {
            let mut traffic = traffic(seed);
            (1..=200).map(|serial| format!("{:?}", traffic.intend(serial))).collect::<Vec<_>>()
        };
        assert_eq!(sent(7), sent(7));
        assert_ne!(sent(7), sent(8));
    }

    #[test]
    fn somebody_who_has_orders_looks_at_them_when_it_is_time_however_thin_traffic_is() {
        let after = |seconds| Moment::ORIGIN.plus(Duration::from_secs(seconds));
        let mut traffic = traffic(7);
        traffic.regular_at = vec![after(4), after(5)];
        let is_regular = |traffic: &mut Traffic, seconds| {
            let intent = traffic.who_comes(seconds, after(seconds));
            let meanwhile = matches!(intent.list, Some(List::Meanwhile));
            meanwhile.then_some(intent.shopper)
        };
        // Nobody has an order yet: who should look waits until somebody has.
        assert_eq!(is_regular(&mut traffic, 4), None);
        with(&traffic.seen, |seen| seen.regular = Some(41));
        assert_eq!(is_regular(&mut traffic, 3), None, "not yet");
        for expected in [Some(41), Some(41), None] {
            assert_eq!(is_regular(&mut traffic, 9), expected);
        }
    }

    #[test]
    fn percentiles_are_taken_from_the_samples() {
        let took: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(took.clone(), 0.5), Duration::from_millis(50));
        assert_eq!(percentile(took.clone(), 0.99), Duration::from_millis(99));
        assert_eq!(percentile(took[..1].to_vec(), 0.99), Duration::from_millis(1));
        assert_eq!(percentile(Vec::new(), 0.5), Duration::ZERO);
    }
}
