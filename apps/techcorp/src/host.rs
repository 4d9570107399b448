//! How a service of the shop is put together from its policy file: database, broker, clients,
//! server, consumer, relay, jobs, and the order in which all of it stops.

use std::future::Future;
use std::time::Duration;

use axum::Router;
use mamparo::call::{BuildError, Dependency, clock};
use mamparo::core::backoff::Backoff;
use mamparo::core::message::intake::Phase;
use mamparo::core::message::topology::WaitingRoom;
use mamparo::http::health::{Check as HealthCheck, Readiness as HealthReadiness};
use mamparo::http::server::RateLimit;
use mamparo::http::{HttpClient, HttpError, ServerOptions, health, serve, standard};
use mamparo::messaging::{
    AnyBroker, Broker, Consumer, ConsumerHealth, ConsumerOptions, Handler, Housekeeper,
    MessagingError, QueuePolicy, Relay, RelayOptions, Sweeper, SweeperOptions, housekeeper,
};
use mamparo::service::{CancellationToken, Check, Role, Service, Stage, Step, Telemetry};
use mamparo::store::{Store, StoreError};
use mamparo::topology::{DependencySection, PolicyFile};
use tokio::net::TcpListener;

use crate::db::ShopDb;
use crate::services::answers::{HandlerError, chain};

/// How long requests in flight may take when the service stops.
const DRAIN: Duration = Duration::from_secs(10);
/// How often, and for how long, a database is asked whether it is there.
const PROBE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(1));
/// How long a dead relay's rows stay claimed.
const RELAY_LEASE: Duration = Duration::from_secs(10);

/// Why a service did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The policy file lacks something that this service can't do without.
    #[error("start {service}: the policy file has no {what}")]
    Missing {
        /// The service.
        service: String,
        /// The section or key.
        what: String,
    },
    /// A dependency's policies don't make sense together.
    #[error("build the policies of a dependency")]
    Policies(#[from] BuildError),
    /// A dependency's address.
    #[error("make a client")]
    Client(#[from] HttpError),
    /// The database.
    #[error("open the database")]
    Store(#[from] StoreError),
    /// Seeding the database.
    #[error("fill the database")]
    Seed(#[from] sqlx::Error),
    /// The broker.
    #[error("open the broker")]
    Broker(#[from] MessagingError),
    /// The port.
    #[error("listen on {address}")]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Not a service of this shop.
    #[error("start {0:?}: the shop has no such service")]
    Unknown(String),
}

/// A service under construction.
#[derive(Debug)]
pub struct Host {
    policy: PolicyFile,
    service: Service,
    telemetry: Telemetry,
    listener: TcpListener,
}

impl Host {
    /// An empty service with this policy file, on its port. The port comes before everything else:
    /// whoever finds it taken has not touched a database or taken a message.
    ///
    /// # Errors
    /// When the port can't be had.
    pub async fn open(policy: PolicyFile, telemetry: Telemetry) -> Result<Self, StartError> {
        let service = Service::new(policy.service.name.value.clone());
        let address = *policy.service.listen;
        let listener = TcpListener::bind(address).await;
        let listener = listener
            .map_err(|source| StartError::Listen { address: address.to_string(), source })?;
        Ok(Self { policy, service, telemetry, listener })
    }

    /// The policy file.
    #[must_use]
    pub fn policy(&self) -> &PolicyFile {
        &self.policy
    }

    /// The error for a part of the policy file that is not there.
    #[must_use]
    pub fn missing(&self, what: impl Into<String>) -> StartError {
        StartError::Missing { service: self.service.name().to_owned(), what: what.into() }
    }

    /// A client for the dependency `name`, with its policies, and with the faults of the file where
    /// they are switched on.
    ///
    /// # Errors
    /// When the file does not name it, or its policies contradict each other.
    pub fn client(&self, name: &str) -> Result<HttpClient, StartError> {
        let section = self.policy.dependency(name);
        let section = section.ok_or_else(|| self.missing(format!("[dependencies.{name}]")))?;
        client_of(section, self.service.name())
    }

    /// The service's database with its own `schema`, watched by a check and closed last.
    ///
    /// # Errors
    /// When the file names none, or it can't be opened.
    pub async fn store<DB: ShopDb>(&self, schema: &str) -> Result<Store<DB>, StartError> {
        let address = self.policy.service.store.as_ref();
        let address = address.ok_or_else(|| self.missing("service.store"))?;
        let store = DB::open(address).await?;
        store.apply(&DB::schema(schema)).await?;
        let (check, probed) = (self.service.readiness().check("database"), store.clone());
        self.service.tasks().spawn_essential(Role::Worker, "database check", |stop| async move {
            let probe = || async { probed.ping().await.map_err(|error| chain(&error)) };
            check.keep(PROBE.0, PROBE.1, probe, stop).await;
        });
        let housekeeper = Housekeeper::new(&store, housekeeper::Policy::default());
        self.service.tasks().spawn_essential(Role::Worker, "housekeeping", |stop| async move {
            housekeeper.run(stop).await;
        });
        let closed = store.clone();
        self.service.on_stop(Step::ClosePools, "database", || async move { closed.close().await });
        Ok(store)
    }

    /// The broker that the policy file names.
    ///
    /// # Errors
    /// When the file names none, or it can't be opened.
    pub async fn broker(&self) -> Result<AnyBroker, StartError> {
        let address = self.policy.service.broker.as_ref();
        let address = address.ok_or_else(|| self.missing("service.broker"))?;
        let broker = AnyBroker::open(address).await?;
        let closed = broker.clone();
        self.service.on_stop(Step::ClosePools, "broker", || async move { closed.close().await });
        Ok(broker)
    }

    /// Consumes the queue `name` with `handler`. The service is ready only while it is subscribed; that
    /// it pauses, and what for, stands beside.
    ///
    /// # Errors
    /// When the file has no such queue, or the broker refuses it.
    pub async fn consume<DB: ShopDb, H: Handler<DB>>(
        &self,
        name: &str,
        broker: &AnyBroker,
        store: &Store<DB>,
        handler: H,
    ) -> Result<(), StartError> {
        let section = self.policy.queue(name);
        let section = section.ok_or_else(|| self.missing(format!("[queues.{name:?}]")))?;
        let policy = section.policy();
        broker.declare(&policy).await?;
        if policy.waiting_room == WaitingRoom::Parked {
            self.sweep(broker, store, &policy);
        }
        let options =
            ConsumerOptions { version: env!("CARGO_PKG_VERSION"), ..ConsumerOptions::default() };
        let consumer = Consumer::new(broker.clone(), store.background(), policy, handler)
            .with_options(options);
        let (handle, check) = (consumer.handle(), self.service.readiness().check(name));
        let tasks = self.service.tasks();
        tasks.spawn_essential(Role::Consumer, name, |stop| async move {
            let summary = consumer.run(stop).await;
            tracing::info!(?summary, "consumer stopped");
        });
        tasks.spawn_essential(Role::Worker, format!("{name} check"), |stop| async move {
            let watch = async {
                let mut shown = Standing::Unknown;
                while handle.wait_for(|health| Standing::of(health) != shown).await {
                    shown = Standing::of(&handle.health());
                    shown.show(&check);
                }
                Standing::of(&handle.health()).show(&check);
                stop.cancelled().await;
            };
            tokio::select! {
                () = watch => {}
                () = stop.cancelled() => {}
            }
        });
        Ok(())
    }

    /// Brings dead letters that only the broker could take (the database was away, or the broker itself
    /// gave a message up) to those that the service keeps.
    fn sweep<DB: ShopDb>(&self, broker: &AnyBroker, store: &Store<DB>, policy: &QueuePolicy) {
        let options = SweeperOptions::default();
        let sweeper = Sweeper::new(broker.clone(), store, [policy], options);
        self.service.tasks().spawn_essential(Role::Worker, "sweeper", |stop| async move {
            sweeper.run(stop).await;
        });
    }

    /// Carries the outbox of `store` to `broker`.
    pub fn relay<DB: ShopDb>(&self, broker: &AnyBroker, store: &Store<DB>) {
        let options = RelayOptions { lease: RELAY_LEASE, ..RelayOptions::default() };
        let relay = Relay::new(store.background(), broker.clone(), options);
        self.service.tasks().spawn_essential(Role::Worker, "relay", |stop| async move {
            let summary = relay.run(stop).await;
            tracing::info!(?summary, "relay stopped");
        });
    }

    /// Runs `cycle` again and again: after each it says how long to pause. Cycles never overlap; a
    /// failed one is logged and tried again with backoff, and one that is running when the service
    /// stops is awaited.
    pub fn job<F>(&self, name: &'static str, mut cycle: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = Result<Duration, HandlerError>> + Send + 'static,
    {
        self.service.tasks().spawn_essential(Role::Worker, name, move |stop| async move {
            let (mut rng, backoff) = (clock::entropy(), Backoff::default());
            let (mut failures, mut pause) = (0, Duration::ZERO);
            while !stop.is_cancelled() {
                pause = match cycle().await {
                    Ok(pause) => {
                        failures = 0;
                        pause
                    }
                    Err(error) => {
                        failures += 1;
                        tracing::error!(job = name, error = chain(&error), failures, "job failed");
                        backoff.delay(failures, pause, &mut rng)
                    }
                };
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = clock::sleep_until(clock::now().plus(pause)) => {}
                }
            }
        });
    }

    /// The finished service, which serves `router` with the standard layers, health and metrics.
    ///
    /// # Errors
    /// When the file has no request budget.
    pub fn serve(self, router: Router) -> Result<Service, StartError> {
        let router = standard(router, self.options()?).merge(self.health());
        let (listener, address) = (self.listener, *self.policy.service.listen);
        tracing::info!(service = self.service.name(), %address, "listening");
        self.service.tasks().spawn_essential(
            Role::Server,
            "http",
            |stop: CancellationToken| async move {
                let drained = serve(listener, router, stop.cancelled_owned(), DRAIN).await?;
                tracing::info!(?drained, "server stopped");
                Ok::<(), std::io::Error>(())
            },
        );
        Ok(self.service)
    }

    /// The budget of the file, and the limit that all of its routes share, if they have one.
    fn options(&self) -> Result<ServerOptions, StartError> {
        let budget = self.policy.service.request_budget.as_ref();
        let budget = budget.ok_or_else(|| self.missing("service.request_budget"))?;
        // Callers inside the shop pass on who asked; the shop's clients name themselves, as if an
        // authentication in front had established it.
        let mut options = ServerOptions::new(budget.value).trust_client_header(true);
        if let Some(limit) = self.policy.routes.iter().find_map(|route| route.rate_limit.as_ref()) {
            options = options.rate_limit(RateLimit::new(limit.config()));
        }
        Ok(options)
    }

    fn health(&self) -> Router {
        let (readiness, telemetry) = (self.service.readiness().clone(), self.telemetry.clone());
        let ready = move || {
            let report = readiness.report();
            let checks = report.checks.into_iter().map(|check| HealthCheck {
                name: check.name,
                ready: check.down.is_none(),
                detail: check.down.or(check.note),
            });
            let checks = checks.collect();
            HealthReadiness {
                checks,
                draining: matches!(report.stage, Stage::Draining | Stage::Stopped),
            }
        };
        health::routes(ready, move || telemetry.render())
    }
}

/// What `/health/ready` shows of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    /// Nobody has looked.
    Unknown,
    /// It takes messages.
    Flows,
    /// It is subscribed and takes none, or one at a time: what it waits for.
    Paused(String),
    /// It has lost its broker or its store, or has ended.
    Away(String),
}

impl Standing {
    fn of(health: &ConsumerHealth) -> Self {
        if health.stopped {
            return Self::Away("the consumer has ended".to_owned());
        }
        if !health.subscribed {
            let why = health.error.clone();
            return Self::Away(why.unwrap_or_else(|| "not subscribed".to_owned()));
        }
        let word = match health.phase {
            Phase::Flowing => return Self::Flows,
            Phase::Paused => "paused",
            Phase::Probing => "tries one message at a time",
        };
        let missing = health.missing.as_deref().unwrap_or("nothing can be handled now");
        Self::Paused(format!("{word}: {missing}"))
    }

    /// A pause is no reason to send callers away: what is missing has a check of its own, or is somebody
    /// else's trouble.
    fn show(&self, check: &Check) {
        match self {
            Self::Unknown => {}
            Self::Flows => check.ready(),
            Self::Paused(why) => check.ready_but(why.as_str()),
            Self::Away(why) => check.not_ready(why.as_str()),
        }
    }
}

fn client_of(section: &DependencySection, service: &str) -> Result<HttpClient, StartError> {
    let dependency = Dependency::from_plan(section.plan(service))?;
    let faults = section.faults.unwrap_or_default();
    Ok(HttpClient::with_faults(&section.url, dependency, faults)?)
}

#[cfg(test)]
mod tests;
