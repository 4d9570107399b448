//! The breakers of the table behind one face.

use std::sync::Arc;
use std::time::Duration;

use mamparo_call::policy::{BreakerPolicy, GuardError};
use mamparo_core::call::breaker::{BreakerConfig, Over, Trip as When};
use recloser::{AsyncRecloser, Recloser};
use tower::util::BoxCloneSyncService;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_resilience::circuitbreaker::{
    CircuitBreakerError, CircuitBreakerLayer, SlidingWindowType,
};

use super::{Breaker, Subject, Trip};
use crate::calls::{Boxed, Down, Inner, Said};

/// Long enough to tell from what is done at once, short enough to wait for.
const OPEN_FOR: Duration = Duration::from_millis(100);
/// failsafe's constant wait may be short, all its others are whole seconds; its window is seconds too.
const SECOND: Duration = Duration::from_secs(1);

pub(super) fn all() -> Vec<Subject> {
    let subject = |name, paused, make| Subject { name, paused, open_for: OPEN_FOR, make };
    vec![
        subject("ours", true, ours),
        subject("tower-resilience", false, tower_resilience),
        subject("recloser", false, recloser),
        subject("failsafe", false, failsafe),
    ]
}

fn said<T, E>(result: Result<T, E>, refused: impl FnOnce(&E) -> bool) -> Said {
    match result {
        Ok(_) => Said::Value,
        Err(error) if refused(&error) => Said::Refused,
        Err(_) => Said::Failure,
    }
}

impl Breaker for BreakerPolicy {
    fn call(&self, inner: Inner) -> Boxed<Said> {
        let policy = self.clone();
        Box::pin(async move {
            said(policy.call(inner).await, |error| matches!(error, GuardError::Refused(_)))
        })
    }
}

fn ours(trip: Trip, probes: u32) -> Option<Box<dyn Breaker>> {
    let rate = |rate, min_calls, over| When::Rate {
        failure_rate: Some(rate),
        slow_rate: None,
        min_calls,
        over,
    };
    let soon = BreakerConfig {
        trip: When::Consecutive { failures: 2 },
        open_for: OPEN_FOR,
        half_open_max: SECOND,
        probes,
        ..BreakerConfig::default()
    };
    let config = match trip {
        Trip::Soon => soon,
        Trip::Calls(calls, share) => {
            BreakerConfig { trip: rate(share, calls, Over::Calls(calls)), ..soon }
        }
        Trip::Second => BreakerConfig { trip: rate(0.5, 10, Over::Time(SECOND)), ..soon },
        Trip::Absurd => BreakerConfig {
            trip: rate(f64::NAN, 0, Over::Calls(0)),
            open_for: Duration::MAX,
            half_open_max: Duration::ZERO,
            probes: 0,
            ..soon
        },
    };
    Some(Box::new(BreakerPolicy::new(config)))
}

/// The request of the service is the call itself.
struct Layered(BoxCloneSyncService<Inner, (), CircuitBreakerError<Down>>);

impl Breaker for Layered {
    fn call(&self, inner: Inner) -> Boxed<Said> {
        let service = self.0.clone();
        Box::pin(async move { said(service.oneshot(inner).await, |error| error.is_circuit_open()) })
    }
}

fn tower_resilience(trip: Trip, probes: u32) -> Option<Box<dyn Breaker>> {
    let builder = CircuitBreakerLayer::builder()
        .wait_duration_in_open(OPEN_FOR)
        .permitted_calls_in_half_open(probes as usize);
    let builder = match trip {
        Trip::Soon => builder.sliding_window_size(2).failure_rate_threshold(0.5),
        Trip::Calls(calls, share) => {
            builder.sliding_window_size(calls as usize).failure_rate_threshold(share)
        }
        Trip::Second => builder
            .sliding_window_type(SlidingWindowType::TimeBased)
            .sliding_window_duration(SECOND)
            .minimum_number_of_calls(10)
            .failure_rate_threshold(0.5),
        Trip::Absurd => builder.sliding_window_size(1).wait_duration_in_open(Duration::MAX),
    };
    let layer = builder.build().ok()?;
    Some(Box::new(Layered(BoxCloneSyncService::new(layer.layer(service_fn(|inner: Inner| inner))))))
}

struct Reclosing(Arc<AsyncRecloser>);

impl Breaker for Reclosing {
    fn call(&self, inner: Inner) -> Boxed<Said> {
        let breaker = Arc::clone(&self.0);
        Box::pin(async move {
            said(breaker.call(inner).await, |error| matches!(error, recloser::Error::Rejected))
        })
    }
}

fn recloser(trip: Trip, probes: u32) -> Option<Box<dyn Breaker>> {
    let builder = Recloser::custom().open_wait(OPEN_FOR).half_open_len(probes as usize);
    let builder = match trip {
        Trip::Soon => builder.closed_len(2),
        Trip::Calls(calls, share) => builder.closed_len(calls as usize).error_rate(share as f32),
        Trip::Second => return None,
        Trip::Absurd => builder.closed_len(1).open_wait(Duration::MAX),
    };
    Some(Box::new(Reclosing(Arc::new(AsyncRecloser::from(builder.build())))))
}

struct Failsafe<C>(C);

impl<C> Breaker for Failsafe<C>
where
    C: failsafe::futures::CircuitBreaker + Clone + Send + Sync + 'static,
{
    fn call(&self, inner: Inner) -> Boxed<Said> {
        let breaker = self.0.clone();
        Box::pin(async move {
            let result = failsafe::futures::CircuitBreaker::call(&breaker, inner).await;
            said(result, |error| matches!(error, failsafe::Error::Rejected))
        })
    }
}

fn failsafe(trip: Trip, _probes: u32) -> Option<Box<dyn Breaker>> {
    use failsafe::{Config, backoff, failure_policy};
    let wait = || backoff::constant(OPEN_FOR);
    match trip {
        Trip::Soon => {
            let policy = failure_policy::consecutive_failures(2, wait());
            Some(Box::new(Failsafe(Config::new().failure_policy(policy).build())))
        }
        Trip::Second => {
            let policy = failure_policy::success_rate_over_time_window(0.5, 10, SECOND, wait());
            Some(Box::new(Failsafe(Config::new().failure_policy(policy).build())))
        }
        Trip::Absurd => {
            let tiny = Duration::from_millis(4);
            let policy = failure_policy::success_rate_over_time_window(0.5, 10, tiny, wait());
            Some(Box::new(Failsafe(Config::new().failure_policy(policy).build())))
        }
        // It has no window that counts calls.
        Trip::Calls(..) => None,
    }
}
