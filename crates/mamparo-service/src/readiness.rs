//! Is the service ready? Named checks that components keep up to date.
//!
//! A check is a value, not a callback: `/health/ready` only reads, so a probe every second costs
//! nothing and can't hang on a dependency that does.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::backoff::Backoff;
use mamparo_core::process::lifecycle::{Event, Lifecycle, Stage};
use mamparo_core::time::Moment;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::observe;
use crate::tasks::lock;

/// The checks of one service. Cheap to clone; clones are the same checks.
#[derive(Debug, Clone)]
pub struct Readiness {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    service: String,
    state: Mutex<State>,
    stage: watch::Sender<Stage>,
}

#[derive(Debug)]
struct State {
    lifecycle: Lifecycle,
    /// All checks are registered: their verdicts count from now on.
    started: bool,
    checks: Vec<CheckState>,
}

#[derive(Debug)]
struct CheckState {
    name: String,
    /// Why it is down; `None` when it is up.
    down: Option<String>,
    /// What is not as it should be although it is up.
    note: Option<String>,
    since: Moment,
}

/// What `/health/ready` answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Whether the service is ready: 200, or else 503.
    pub ready: bool,
    /// Where it stands in its life.
    pub stage: Stage,
    /// Each check, in the order of registration.
    pub checks: Vec<CheckReport>,
}

/// One check of a [`Report`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// The check's name.
    pub name: String,
    /// Why it is down; `None` when it is up.
    pub down: Option<String>,
    /// What is not as it should be although it is up: a consumer that pauses, say.
    pub note: Option<String>,
    /// How long it has been so.
    pub lasted: Duration,
}

impl Readiness {
    /// The readiness of the service called `service`, which starts now.
    #[must_use]
    pub fn new(service: impl Into<String>) -> Self {
        let state =
            State { lifecycle: Lifecycle::new(clock::now()), started: false, checks: Vec::new() };
        let shared = Shared {
            service: service.into(),
            state: Mutex::new(state),
            stage: watch::Sender::new(Stage::Starting),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Registers the check `name`. It is down, "not checked yet", until its owner says otherwise.
    /// A name that is registered already answers the same check.
    #[must_use]
    pub fn check(&self, name: impl Into<String>) -> Check {
        let name = name.into();
        let mut state = lock(&self.shared.state);
        let known = state.checks.iter().position(|check| check.name == name);
        let index = known.unwrap_or_else(|| {
            let down = Some("not checked yet".to_owned());
            state.checks.push(CheckState { name, down, note: None, since: clock::now() });
            state.checks.len() - 1
        });
        self.shared.evaluate(&mut state);
        Check { readiness: self.clone(), index }
    }

    /// How it stands.
    #[must_use]
    pub fn report(&self) -> Report {
        let now = clock::now();
        let state = lock(&self.shared.state);
        let standing = state.lifecycle.ask(now);
        let checks = state.checks.iter().map(|check| CheckReport {
            name: check.name.clone(),
            down: check.down.clone(),
            note: check.note.clone(),
            lasted: now.since(check.since),
        });
        Report { ready: standing.ready, stage: standing.stage, checks: checks.collect() }
    }

    /// Completes as soon as the service is in `stage`.
    pub async fn until(&self, stage: Stage) {
        let mut stages = self.shared.stage.subscribe();
        // The sender lives as long as `self`, so waiting can't fail.
        let _ = stages.wait_for(|present| *present == stage).await;
    }

    /// All checks are registered and all components are up: the verdicts count from now on.
    pub(crate) fn started(&self) {
        let mut state = lock(&self.shared.state);
        state.started = true;
        self.shared.evaluate(&mut state);
    }

    /// The service stops: it never gets ready again.
    pub(crate) fn stopping(&self) {
        self.shared.tell(&mut lock(&self.shared.state), Event::StopAsked);
    }

    /// The last step of the shutdown is over.
    pub(crate) fn stopped(&self) {
        self.shared.tell(&mut lock(&self.shared.state), Event::Drained);
    }
}

impl Shared {
    /// Tells the lifecycle what the checks add up to. Under the lock that the checks changed under:
    /// two components that turn at once must not have their verdicts told in the other order.
    fn evaluate(&self, state: &mut State) {
        if state.started {
            let all_up = state.checks.iter().all(|check| check.down.is_none());
            self.tell(state, if all_up { Event::ChecksPassed } else { Event::CheckFailed });
        }
    }

    fn tell(&self, state: &mut State, event: Event) {
        match state.lifecycle.tell(clock::now(), event) {
            Ok(Some(change)) => {
                observe::stage(&self.service, &change);
                self.stage.send_replace(change.to);
            }
            Ok(None) => {}
            // A component may still report after the end; it comes too late to matter.
            Err(unfit) => tracing::debug!(service = self.service, %unfit, "ignored"),
        }
    }
}

/// The handle that a component keeps its check up to date with.
#[derive(Debug, Clone)]
pub struct Check {
    readiness: Readiness,
    index: usize,
}

impl Check {
    /// It works.
    pub fn ready(&self) {
        self.set(None, None);
    }

    /// It works as far as callers are concerned, and `note` says what people should know.
    pub fn ready_but(&self, note: impl Into<String>) {
        self.set(None, Some(note.into()));
    }

    /// It doesn't work, because of `reason`.
    pub fn not_ready(&self, reason: impl Into<String>) {
        self.set(Some(reason.into()), None);
    }

    /// Keeps the check up to date until `stop`: probes every `every` while it is up, and with
    /// exponential backoff (base 100 ms, factor 2, full jitter, cap `every`) while it is down. A
    /// probe that takes longer than `timeout` counts as down.
    pub async fn keep<F, E>(
        &self,
        every: Duration,
        timeout: Duration,
        mut probe: impl FnMut() -> F,
        stop: CancellationToken,
    ) where
        F: Future<Output = Result<(), E>>,
        E: std::fmt::Display,
    {
        let mut rng = clock::entropy();
        let backoff = Backoff { cap: every, ..Backoff::default() };
        let (mut failures, mut wait) = (0_u32, Duration::ZERO);
        loop {
            let limit = clock::now().plus(timeout);
            let answer = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                answer = probe() => answer.map_err(|error| error.to_string()),
                () = clock::sleep_until(limit) => Err(format!("no answer in {timeout:?}")),
            };
            wait = match answer {
                Ok(()) => {
                    failures = 0;
                    self.ready();
                    every
                }
                Err(reason) => {
                    failures = failures.saturating_add(1);
                    self.not_ready(reason);
                    backoff.delay(failures, wait, &mut rng)
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = clock::sleep_until(clock::now().plus(wait)) => {}
            }
        }
    }

    fn set(&self, down: Option<String>, note: Option<String>) {
        let shared = &self.readiness.shared;
        let mut state = lock(&shared.state);
        let Some(check) = state.checks.get_mut(self.index) else { return };
        let turned = check.down.is_some() != down.is_some();
        if turned {
            check.since = clock::now();
            observe::check(&shared.service, &check.name, down.as_deref());
        }
        (check.down, check.note) = (down, note);
        if turned {
            shared.evaluate(&mut state);
        }
    }
}
