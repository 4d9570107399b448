//! What the demo does to a service's HTTP side: a delay before each answer, a refusal instead of
//! one, or an answer that comes long after the work was done. Clear sky unless somebody changes it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::put;
use axum::{Json, Router};
use http::StatusCode;
use mamparo::call::clock;
use mamparo::http::Problem;
use serde::{Deserialize, Serialize};

/// Where a demo's service takes its weather from.
pub const WEATHER: &str = "/demo/weather";

/// What happens to requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sky {
    /// Nothing.
    #[default]
    Clear,
    /// Each is held up this long before it is worked on.
    Slow(Duration),
    /// Each is refused with 503, and nothing is done.
    Unavailable,
    /// Each is worked on at once, and answered this much later.
    Late(Duration),
}

/// The weather over one service; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Weather {
    sky: Arc<Mutex<Sky>>,
    open: bool,
}

impl Weather {
    /// Changes it.
    pub fn set(&self, sky: Sky) {
        *self.sky.lock().unwrap_or_else(PoisonError::into_inner) = sky;
    }

    fn now(&self) -> Sky {
        *self.sky.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clear, and changed by whoever reaches the service: a [`Sky`] is PUT to [`WEATHER`]. For the
    /// services of a demo that run in processes of their own.
    #[must_use]
    pub fn open() -> Self {
        Self { open: true, ..Self::default() }
    }

    /// `router` in this weather.
    pub fn over(&self, router: Router) -> Router {
        let router = router.layer(from_fn_with_state(self.clone(), layer));
        if !self.open {
            return router;
        }
        let change = |State(weather): State<Self>, Json(sky): Json<Sky>| async move {
            weather.set(sky);
            StatusCode::NO_CONTENT
        };
        router.merge(Router::new().route(WEATHER, put(change)).with_state(self.clone()))
    }
}

async fn layer(State(weather): State<Weather>, request: Request, next: Next) -> Response {
    match weather.now() {
        Sky::Clear => next.run(request).await,
        Sky::Slow(delay) => {
            clock::sleep_until(clock::now().plus(delay)).await;
            next.run(request).await
        }
        Sky::Unavailable => {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "MAINTENANCE").into_response()
        }
        Sky::Late(delay) => {
            let answer = next.run(request).await;
            clock::sleep_until(clock::now().plus(delay)).await;
            answer
        }
    }
}
