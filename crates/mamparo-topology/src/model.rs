//! The model: plain data, one struct a section of the file.

use std::net::SocketAddr;
use std::time::Duration;

use mamparo_core::backoff::Jitter;
use mamparo_core::call::adaptive::AdaptiveConfig;
use mamparo_core::call::arithmetic;
use mamparo_core::call::bulkhead::Order;
use mamparo_core::call::fault::FaultConfig;
use mamparo_core::call::hedge::HedgeConfig;
use mamparo_core::call::shed::ShedConfig;
use mamparo_core::call::throttle::ThrottleConfig;
use mamparo_core::message::topology::{Order as MessageOrder, QueueType, WaitingRoom};

use crate::{Located, Settings};

/// One `mamparo.toml`: everything a service calls, consumes and runs, with its limits.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyFile {
    /// The file's name, as it was given.
    pub file: String,
    /// `[service]`
    pub service: ServiceSection,
    /// `[dependencies.<name>]`, in the order of the file.
    pub dependencies: Vec<DependencySection>,
    /// `[[routes]]`
    pub routes: Vec<RouteSection>,
    /// `[queues."<name>"]`
    pub queues: Vec<QueueSection>,
    /// `[sagas.<name>]`
    pub sagas: Vec<SagaSection>,
    /// `[jobs.<name>]`
    pub jobs: Vec<JobSection>,
    /// `[settings]`, the application's own.
    pub settings: Settings,
}

impl PolicyFile {
    /// The dependency called `name`.
    #[must_use]
    pub fn dependency(&self, name: &str) -> Option<&DependencySection> {
        self.dependencies.iter().find(|section| *section.name == name)
    }

    /// The route `METHOD /path`, as the file writes it.
    #[must_use]
    pub fn route(&self, path: &str) -> Option<&RouteSection> {
        self.routes.iter().find(|route| {
            path.split_once(' ').is_some_and(|(method, path)| {
                route.method.value == method && route.path.value == path
            })
        })
    }

    /// The queue called `name`.
    #[must_use]
    pub fn queue(&self, name: &str) -> Option<&QueueSection> {
        self.queues.iter().find(|section| *section.name == name)
    }

    /// The saga called `name`.
    #[must_use]
    pub fn saga(&self, name: &str) -> Option<&SagaSection> {
        self.sagas.iter().find(|section| *section.name == name)
    }

    /// The job called `name`.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<&JobSection> {
        self.jobs.iter().find(|section| *section.name == name)
    }
}

/// Who the service is, and where it listens and keeps its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSection {
    /// The name in logs, metrics and headers.
    pub name: Located<String>,
    /// The team that is called at night.
    pub owner: Located<String>,
    /// What a caller may wait for an answer; required when there are routes.
    pub request_budget: Option<Located<Duration>>,
    /// The address of the HTTP server. Default `127.0.0.1:0`: this machine, any free port.
    pub listen: Located<SocketAddr>,
    /// `sqlite:path` or `postgres://…`; `None` for a service without state.
    pub store: Option<Located<String>>,
    /// `sqlite:path` or `amqp://…`; `None` for a service without messages.
    pub broker: Option<Located<String>>,
}

/// Something that the service calls, and the policies in front of it.
#[derive(Debug, Clone, PartialEq)]
pub struct DependencySection {
    /// Its name in routes, logs and metrics.
    pub name: Located<String>,
    /// Its base address, `http://…` or `https://…`.
    pub url: Located<String>,
    /// The longest that one attempt may take.
    pub attempt_timeout: Located<Duration>,
    /// `None`: one attempt.
    pub retry: Option<RetrySection>,
    /// `None`: no circuit breaker.
    pub breaker: Option<BreakerSection>,
    /// `None`: any number of calls in flight.
    pub bulkhead: Option<BulkheadSection>,
    /// `adaptive = { algorithm, min, max, initial, tolerance }`: the limit of the bulkhead finds itself.
    /// Defaults `gradient2`, 4, 200, 20, 1.5. `None`: it is fixed.
    pub adaptive: Option<AdaptiveConfig>,
    /// `hedge = { after | quantile, least, max }`: attempts beside one that takes long. Defaults the 0.95
    /// quantile, 10 ms at least, 1 more. `None`: one at a time.
    pub hedge: Option<HedgeConfig>,
    /// `throttle = { k, window, min_requests, refuse_max }`: holds back what would be refused. Defaults
    /// 2, 2 min, 10, 0.9. `None`: nothing is held back.
    pub throttle: Option<ThrottleConfig>,
    /// `shed = { best_effort, sheddable, sheddable_plus, critical, critical_plus, band, hysteresis,
    /// retry_after }`: from which share of the slots on each level is refused. Defaults 0.75, 0.82,
    /// 0.89, 0.97, 1.0; 0.05, 0.02, 1 s. `None`: all levels are equal.
    pub shed: Option<ShedConfig>,
    /// Over which time latencies are observed, for the advice on the timeout. `None`: they aren't.
    pub observe_latency: Option<Located<Duration>>,
    /// Most attempts that go on in the background when their caller is gone, where the code asks for
    /// it, 1 to 1 000. `None`: they are cancelled.
    pub detached: Option<Located<u32>>,
    /// `None`: no limit of our own.
    pub rate_limit: Option<RateLimitSection>,
    /// `faults = { enabled, seed, by, latency, error, outcome, panic }`: faults on purpose, for staging.
    /// Defaults false, 0, `call`; no latency; shares of 0. `None`, or not enabled: nothing befalls anybody.
    pub faults: Option<FaultConfig>,
    /// What answers when the call fails. Default: none.
    pub fallback: Located<Fallback>,
}

impl DependencySection {
    /// The longest that a call can take: every attempt times out, and every wait is the longest.
    #[must_use]
    pub fn worst_case(&self) -> Duration {
        let retry = self.retry_config();
        arithmetic::worst_case(retry.attempts, self.longest_attempt(), &retry.backoff)
    }

    /// The longest that an attempt can take with its hedges, the last of which begins after all of
    /// their delays.
    #[must_use]
    pub fn longest_attempt(&self) -> Duration {
        let hedging = self.hedge.map_or(Duration::ZERO, |hedge| hedge.longest_delay());
        self.attempt_timeout.saturating_add(hedging)
    }
}

/// `retry = { attempts, base, factor, cap, jitter, budget }`: exponential backoff.
#[derive(Debug, Clone, PartialEq)]
pub struct RetrySection {
    /// Attempts, the first one included, 1 to 100. Default 3.
    pub attempts: Located<u32>,
    /// Ceiling of the first wait. Default 100 ms.
    pub base: Located<Duration>,
    /// Growth of the ceiling from wait to wait, 1 to 100. Default 2.
    pub factor: Located<f64>,
    /// The ceiling never grows past this. Default 2 s.
    pub cap: Located<Duration>,
    /// `full`, `equal`, `decorrelated` or `none`. Default full.
    pub jitter: Located<Jitter>,
    /// Retries and hedges of all calls together, as a share of first attempts, 0 to 1. Default 0.2.
    pub budget: Located<f64>,
}

/// `breaker = { failures | consecutive | failure_rate, slow_rate, slower_than, min_calls, calls,
/// window, open_for, open_growth, open_max, open_jitter, probes, probe_success, half_open_max }`.
#[derive(Debug, Clone, PartialEq)]
pub struct BreakerSection {
    /// What opens the circuit.
    pub rule: BreakerRule,
    /// The time that is looked back over, where calls or failures are not simply counted. Default 10 s.
    pub window: Located<Duration>,
    /// How long an open circuit refuses before it probes. Default 30 s.
    pub open_for: Located<Duration>,
    /// By what that time grows with each trial that fails, 1 to 100. Default 1: it does not.
    pub open_growth: Located<f64>,
    /// It grows to this at most. Default 5 min, and at least `open_for`.
    pub open_max: Located<Duration>,
    /// Up to this share of it is left out by chance, 0 to 0.5. Default 0.
    pub open_jitter: Located<f64>,
    /// How many calls a half-open circuit admits. Default 1.
    pub probes: Located<u32>,
    /// Share of them that must succeed to close it, above 0 and at most 1. Default 1.
    pub probe_success: Located<f64>,
    /// How long it may wait for them. Default 30 s.
    pub half_open_max: Located<Duration>,
}

/// What opens a circuit.
#[derive(Debug, Clone, PartialEq)]
pub enum BreakerRule {
    /// So many failures in the window. Default 5.
    Failures(Located<u32>),
    /// So many failures in a row.
    Consecutive(Located<u32>),
    /// So large a share of the calls; of two shares, the first that is reached.
    Rate {
        /// The share that failed, above 0 and at most 1.
        failure_rate: Option<Located<f64>>,
        /// The share that was slow.
        slow: Option<SlowRule>,
        /// Fewer calls than this give no verdict. Default 20, or as many as are looked at.
        min_calls: Located<u32>,
        /// The last so many calls, in place of those in the window.
        calls: Option<Located<u32>>,
    },
}

/// `slow_rate`, `slower_than`: how many calls may be slow, and what slow is.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowRule {
    /// The share, above 0 and at most 1.
    pub rate: Located<f64>,
    /// A call that takes longer than this is slow.
    pub slower_than: Located<Duration>,
}

/// `bulkhead = { limit, queue, order }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BulkheadSection {
    /// Most calls in flight. Default 20.
    pub limit: Located<u32>,
    /// Most callers that wait for a place. Default 0: refused at once.
    pub queue: Located<u32>,
    /// Who of them is next: `fifo`, or `adaptive-lifo`. Default fifo.
    pub order: Located<Order>,
}

/// `rate_limit = { requests, per, burst }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimitSection {
    /// So many requests, at least 1.
    pub requests: Located<u32>,
    /// In this time.
    pub per: Located<Duration>,
    /// So many of them at once after a pause. `None`: all of them.
    pub burst: Option<Located<u32>>,
}

/// What answers when a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fallback {
    /// Nothing: the caller is told.
    #[default]
    None,
    /// The last good answer, with its age.
    Stale,
    /// The rest of the answer, marked as partial.
    Partial,
}

impl Fallback {
    /// The word in the file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Stale => "stale",
            Self::Partial => "partial",
        }
    }
}

/// `[[routes]]`: what the service answers, and whom it asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSection {
    /// The HTTP method.
    pub method: Located<String>,
    /// The path, with `{placeholders}`.
    pub path: Located<String>,
    /// The calls: groups run one after the other, the calls of one group in parallel.
    pub calls: Vec<Vec<CallRef>>,
    /// Whether callers must or may send an idempotency key; `None`: the route doesn't look at it.
    pub idempotency_key: Option<Located<IdempotencyKey>>,
    /// The limit of each client on this route.
    pub rate_limit: Option<RateLimitSection>,
}

/// `"catalog GET /v1/products"`: a call that a route makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRef {
    /// The dependency's name.
    pub dependency: Located<String>,
    /// The HTTP method.
    pub method: String,
    /// The path, with `{placeholders}`.
    pub path: String,
}

/// What a route does about the `Idempotency-Key` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdempotencyKey {
    /// Without a key, the answer is 400.
    Required,
    /// A key is honoured when it is sent.
    Optional,
}

/// `[queues."<name>"]`: a consumer's queue with its retry room and its dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSection {
    /// The main queue's name in version 1; `.retry` and `.dlq` follow from it.
    pub name: Located<String>,
    /// Who answers for its dead letters.
    pub owner: Located<String>,
    /// Messages in hand at a time. 1 to 1000, default 10.
    pub prefetch: Located<u32>,
    /// Handlers that run at once. 1 to `prefetch`, which is the default.
    pub workers: Option<Located<u32>>,
    /// Deliveries before a message is dead, the first included. 1 to 100, default 5.
    pub attempts: Located<u32>,
    /// The wait before the next delivery. 1 ms to 24 h, default 30 s.
    pub retry_delay: Located<Duration>,
    /// Growing waits instead of `retry_delay`, `["5s", "30s", "2m", "10m"]` say: up to 10, each 1 ms to
    /// 24 h and longer than the one before. Default none.
    pub retry_tiers: Vec<Located<Duration>>,
    /// Where messages wait: `tiers` (queues of the broker), `parked` (rows of the service's database) or
    /// `broker` (RabbitMQ 4.3's own delayed retry; tiers elsewhere). Default `tiers`.
    pub waiting_room: Located<WaitingRoom>,
    /// The order that is kept: `key` (messages of one key in turn, within each process), `none`, or `strict`
    /// (over the death of a process too: one process works at a time; needs `parked`). Default `key`.
    pub order: Located<MessageOrder>,
    /// The longest that a handler may take. Default 30 s.
    pub handler_timeout: Located<Duration>,
    /// `type`: how RabbitMQ keeps the main queue, `quorum` or `classic`. Default `quorum`.
    pub queue_type: Located<QueueType>,
    /// Hand-outs of one message after which a quorum queue gives it up by itself, into the dead-letter
    /// queue. From `attempts` to 10000, default 100.
    pub delivery_limit: Located<u32>,
    /// Most messages in each waiting room and in the dead-letter queue. 1 to 10 million, default 100000.
    pub max_length: Located<u32>,
    /// Version of the queue: from 2 on its name ends in it, `orders.saga.v2`. 1 to 999, default 1.
    pub version: Located<u32>,
    /// What the on-call opens when a letter is dead.
    pub runbook: Located<String>,
    /// The event types that are routed here, patterns with `*` and `#` included.
    pub events: Vec<Located<String>>,
}

/// `[sagas.<name>]`: the deadlines of a saga's states, and the watchdog over them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SagaSection {
    /// The saga's name.
    pub name: Located<String>,
    /// How often the watchdog looks. Default 60 s.
    pub watch_every: Located<Duration>,
    /// Most sagas that one look takes. Default 100.
    pub batch: Located<u32>,
    /// When a reservation falls back by itself; deadlines must end before it.
    pub reservation_expiry: Option<Located<Duration>>,
    /// How long a saga may stay in each state.
    pub deadlines: Vec<StateDeadline>,
}

impl SagaSection {
    /// The deadline of `state`.
    #[must_use]
    pub fn deadline(&self, state: &str) -> Option<Duration> {
        self.deadlines.iter().find(|deadline| deadline.state == state).map(|d| d.after.value)
    }
}

/// How long a saga may stay in a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDeadline {
    /// The state's name, for example `STOCK_RESERVED`.
    pub state: String,
    /// The time after which the watchdog acts.
    pub after: Located<Duration>,
}

/// `[jobs.<name>]`: work that runs on a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSection {
    /// The job's name.
    pub name: Located<String>,
    /// How often it runs.
    pub every: Located<Duration>,
    /// It looks only at what is older than this, where the job has such a notion.
    pub older_than: Option<Located<Duration>>,
}
