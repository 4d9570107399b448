//! The circuit breaker: closed lets calls through, open refuses, half-open tries.
//!
//! - Every admission carries the *generation* of the state that granted it. A result of an older
//!   generation is reported as stale and changes nothing: a slow success from before the trip never
//!   closes a circuit, and ten failures at once open it once.
//! - A half-open circuit admits exactly `probes` trial calls. One that ends without a verdict
//!   (cancelled, refused locally) gives its place back.
//! - States change lazily from `now`; there is no background task to lose.

mod table;

use std::time::Duration;

pub use table::{Event, Phase, TABLE};

use crate::call::window::{CallRing, Counts, FailureRing, TimeBuckets};
use crate::limits::HALF_OPEN_RETRY_AFTER;
use crate::outcome::Health;
use crate::time::Moment;

/// When a closed circuit opens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Trip {
    /// That many failures within the period, however many successes lie between.
    Failures {
        /// At least 1. Default 5.
        failures: u32,
        /// More than zero. Default 10 s.
        window: Duration,
    },
    /// That share of failures in the window, once it holds enough calls.
    Rate {
        /// `0.0 < rate ≤ 1.0`; reaching it opens.
        failure_rate: f64,
        /// Fewer calls than this prove nothing; at least 1.
        min_calls: u32,
        /// What the window holds.
        over: Over,
    },
}

/// What a rate is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The last so many calls.
    Calls(u32),
    /// The last period, in steps of a tenth.
    Time(Duration),
}

/// A breaker's limits. Default: 5 failures in 10 s open it for 30 s, then one probe decides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BreakerConfig {
    /// When it opens.
    pub trip: Trip,
    /// How long it stays open. Default 30 s.
    pub open_for: Duration,
    /// Trial calls of the half-open circuit: the most at once, and the successes that close it.
    /// Default 1.
    pub probes: u32,
    /// How long a half-open circuit may wait for its probes. After that, one success is enough to
    /// close it, and probes that still hang open it again. Default 30 s.
    pub half_open_max: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            trip: Trip::Failures { failures: 5, window: Duration::from_secs(10) },
            open_for: Duration::from_secs(30),
            probes: 1,
            half_open_max: Duration::from_secs(30),
        }
    }
}

/// A state change, for hooks, logs and gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The state before.
    pub from: Phase,
    /// The state after.
    pub to: Phase,
    /// What made it change.
    pub on: Event,
    /// When.
    pub at: Moment,
}

/// The right to one call. Comes back through [`Breaker::tell`], exactly once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an admission that is never told keeps its probe place"]
pub struct Admission {
    generation: u64,
    probe: bool,
}

impl Admission {
    /// Is this a trial call of a half-open circuit?
    #[must_use]
    pub const fn is_probe(&self) -> bool {
        self.probe
    }
}

/// The breaker's answer to a caller that wants to call.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The admission, or after what time to ask again.
    pub admission: Result<Admission, Duration>,
    /// The change that asking brought about.
    pub change: Option<Change>,
}

/// The breaker's answer to a caller that stands in line for other guards first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// After what time to ask again; `None` when the caller may go on.
    pub refused: Option<Duration>,
    /// The change that the look brought about.
    pub change: Option<Change>,
}

/// What became of an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// How it was taken.
    pub event: Event,
    /// The change that it made.
    pub change: Option<Change>,
}

#[derive(Debug, Clone)]
enum Window {
    Failures(FailureRing),
    Calls(CallRing),
    Time(TimeBuckets),
}

#[derive(Debug, Clone)]
enum State {
    Closed { window: Window },
    Open { until: Moment },
    HalfOpen { since: Moment, in_flight: u32, passed: u32 },
}

/// The breaker of one dependency in one process.
#[derive(Debug, Clone)]
pub struct Breaker {
    config: BreakerConfig,
    generation: u64,
    state: State,
}

impl Breaker {
    /// A closed circuit with an empty window.
    #[must_use]
    pub fn new(config: BreakerConfig) -> Self {
        Self { config, generation: 0, state: State::Closed { window: window_of(&config) } }
    }

    /// May a call be made now?
    pub fn ask(&mut self, now: Moment) -> Answer {
        let change = self.advance(now);
        let generation = self.generation;
        let probes = self.config.probes.max(1);
        let admission = match &mut self.state {
            State::Closed { .. } => Ok(Admission { generation, probe: false }),
            State::Open { until } => Err(now.until(*until)),
            State::HalfOpen { in_flight, passed, .. } if *in_flight + *passed < probes => {
                *in_flight += 1;
                Ok(Admission { generation, probe: true })
            }
            State::HalfOpen { .. } => Err(HALF_OPEN_RETRY_AFTER),
        };
        Answer { admission, change }
    }

    /// Would [`Breaker::ask`] refuse now, and until when? Takes no place and changes nothing.
    #[must_use]
    pub fn refuses(&self, now: Moment) -> Option<Duration> {
        match (&self.state, self.due(now)) {
            // Both open circuits: the one that the asking would bring about, and the present one.
            (State::HalfOpen { .. }, Some(Event::AgedHanging)) => Some(self.config.open_for),
            (State::Open { until }, None) => Some(now.until(*until)),
            (State::HalfOpen { in_flight, passed, .. }, None) => {
                (*in_flight + *passed >= self.config.probes.max(1)).then_some(HALF_OPEN_RETRY_AFTER)
            }
            // Closed, or about to let calls through again.
            (State::Closed { .. }, _) | (State::Open { .. } | State::HalfOpen { .. }, Some(_)) => {
                None
            }
        }
    }

    /// Refuses a caller that [`Breaker::ask`] would refuse, and lets everybody else go on without
    /// taking a place.
    ///
    /// Unlike [`Breaker::refuses`] it brings about what has become due: where nobody gets as far as
    /// asking, this is what sends a circuit whose probes hang back to open.
    pub fn look(&mut self, now: Moment) -> Look {
        match self.refuses(now) {
            None => Look { refused: None, change: None },
            Some(after) => Look { refused: Some(after), change: self.advance(now) },
        }
    }

    /// Takes the outcome of an admitted call.
    ///
    /// For a success under [`Trip::Failures`] that is no probe the time is not looked at, so the
    /// caller can save the clock reading ([`Breaker::success_needs_now`]).
    // By value on purpose: an admission can be told only once.
    #[expect(clippy::needless_pass_by_value, reason = "an admission is used up by telling it")]
    pub fn tell(&mut self, now: Moment, admission: Admission, health: Health) -> Told {
        if admission.generation != self.generation {
            return Told { event: Event::Stale, change: None };
        }
        let probes = self.config.probes.max(1);
        let event = match (&mut self.state, health) {
            // No admission of an open state exists, so its generation can't be told.
            (State::Open { .. }, _) => Event::Stale,
            (State::Closed { .. }, Health::Silent) => Event::Returned,
            (State::Closed { window }, Health::Good | Health::Bad) => {
                if window.record(now, health == Health::Bad, &self.config.trip) {
                    Event::Tripped
                } else {
                    Event::Counted
                }
            }
            (State::HalfOpen { in_flight, passed, .. }, health) => {
                *in_flight = in_flight.saturating_sub(1);
                match health {
                    Health::Silent => Event::Returned,
                    Health::Bad => Event::ProbeFailed,
                    Health::Good => {
                        *passed += 1;
                        if *passed >= probes { Event::ProbesPassed } else { Event::ProbePassed }
                    }
                }
            }
        };
        // Most verdicts only count; those need no look at the table.
        let change = if event == Event::Counted { None } else { self.go(now, event) };
        Told { event, change }
    }

    /// Does a success have to be told with the time of its end, even when it is no probe?
    #[must_use]
    pub const fn success_needs_now(&self) -> bool {
        matches!(self.config.trip, Trip::Rate { .. })
    }

    /// The state at `now`, without changing it.
    #[must_use]
    pub fn phase(&self, now: Moment) -> Phase {
        let present = self.present();
        self.due(now).and_then(|on| TABLE.row(present, on)).map_or(present, |row| row.to)
    }

    /// What the window of a closed circuit holds; zero in the other states. Under
    /// [`Trip::Failures`], successes leave no trace and `calls` equals `failed`.
    #[must_use]
    pub fn counts(&self, now: Moment) -> Counts {
        match &self.state {
            State::Closed { window: Window::Failures(ring) } => {
                Counts { calls: ring.count(now), failed: ring.count(now) }
            }
            State::Closed { window: Window::Calls(ring) } => ring.counts(),
            State::Closed { window: Window::Time(buckets) } => buckets.counts(now),
            State::Open { .. } | State::HalfOpen { .. } => Counts::default(),
        }
    }

    fn present(&self) -> Phase {
        match self.state {
            State::Closed { .. } => Phase::Closed,
            State::Open { .. } => Phase::Open,
            State::HalfOpen { .. } => Phase::HalfOpen,
        }
    }

    /// The change that has become due by the mere passing of time.
    fn advance(&mut self, now: Moment) -> Option<Change> {
        self.due(now).and_then(|on| self.go(now, on))
    }

    fn due(&self, now: Moment) -> Option<Event> {
        match &self.state {
            State::Closed { .. } => None,
            State::Open { until } => (now >= *until).then_some(Event::OpenTimeOver),
            State::HalfOpen { .. } => self.aged(now),
        }
    }

    fn aged(&self, now: Moment) -> Option<Event> {
        match &self.state {
            State::HalfOpen { since, in_flight, passed }
                if now.since(*since) >= self.config.half_open_max =>
            {
                // With no success and nothing in flight there is nothing to decide upon: the next
                // caller is the probe.
                if *passed > 0 {
                    Some(Event::AgedPassing)
                } else {
                    (*in_flight > 0).then_some(Event::AgedHanging)
                }
            }
            State::HalfOpen { .. } | State::Closed { .. } | State::Open { .. } => None,
        }
    }

    /// Looks the next state up and enters it when it differs.
    fn go(&mut self, now: Moment, on: Event) -> Option<Change> {
        let from = self.present();
        let to = TABLE.row(from, on)?.to;
        if to == from {
            return None;
        }
        self.generation += 1;
        self.state = match to {
            Phase::Closed => State::Closed { window: window_of(&self.config) },
            Phase::Open => State::Open { until: now.plus(self.config.open_for) },
            Phase::HalfOpen => State::HalfOpen { since: now, in_flight: 0, passed: 0 },
        };
        Some(Change { from, to, on, at: now })
    }
}

impl Window {
    /// Records a verdict; true when it reaches the threshold.
    fn record(&mut self, now: Moment, failed: bool, trip: &Trip) -> bool {
        let counts = match self {
            Self::Failures(ring) => return failed && ring.record(now),
            Self::Calls(ring) => ring.record(failed),
            Self::Time(buckets) => buckets.record(now, failed),
        };
        match *trip {
            Trip::Failures { .. } => false,
            // The call that completes the minimum decides too, even when it succeeded itself.
            Trip::Rate { failure_rate, min_calls, .. } => {
                counts.failed > 0
                    && counts.calls >= min_calls
                    && counts.failure_rate() >= failure_rate
            }
        }
    }
}

fn window_of(config: &BreakerConfig) -> Window {
    match config.trip {
        Trip::Failures { failures, window } => Window::Failures(FailureRing::new(failures, window)),
        Trip::Rate { over: Over::Calls(calls), .. } => Window::Calls(CallRing::new(calls)),
        Trip::Rate { over: Over::Time(period), .. } => Window::Time(TimeBuckets::new(period)),
    }
}
