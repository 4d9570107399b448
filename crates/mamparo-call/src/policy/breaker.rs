//! A circuit breaker around any future.

use std::sync::Arc;

use mamparo_core::call::breaker::{
    Admission, Breaker, BreakerConfig, Change, Explanation, Phase, Verdict,
};
use mamparo_core::call::pipeline::Refusal;
use mamparo_core::outcome::Health;
use mamparo_core::rng::Rng;
use mamparo_core::time::Moment;

use crate::clock;
use crate::policy::listen::Ears;
use crate::policy::{ByError, Ending, Guard, Guarded, Listener, PolicyEvent, Refused};

/// The breaker that all clones share.
///
/// A failure's [`Health`] counts, not the failure: a 404 is a sign of life. A panic of the future counts
/// as bad health; a future that is dropped is no verdict and gives its probe place back. While the
/// circuit is closed a success reads no clock, unless calls are counted by time or slow ones count.
///
/// ```
/// # #[derive(Debug)] struct Down;
/// # impl mamparo_call::Classify for Down {
/// #     fn classify(&self) -> mamparo_call::Failure { mamparo_call::Failure::TRANSIENT }
/// # }
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use mamparo_call::policy::{BreakerPolicy, GuardError};
/// use mamparo_core::call::breaker::BreakerConfig;
///
/// let breaker = BreakerPolicy::new(BreakerConfig::default()); // 5 failures in 10 s: open for 30 s
/// for _ in 0..5 {
///     let answer = breaker.call(async { Err::<(), _>(Down) }).await;
///     assert!(matches!(answer, Err(GuardError::Inner(Down))));
/// }
/// let refused = breaker.call(async { Ok::<_, Down>(()) }).await.expect_err("open");
/// assert!(refused.refused().is_some_and(|refused| refused.retry_after.is_some()));
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct BreakerPolicy {
    shared: Arc<Shared>,
}

#[derive(Debug, Clone)]
struct Shared {
    breaker: Arc<Breaker>,
    /// Do slow calls count, so that each call has to be timed?
    timed: bool,
    ears: Ears,
}

impl BreakerPolicy {
    /// A closed circuit.
    #[must_use]
    pub fn new(config: BreakerConfig) -> Self {
        let breaker = Arc::new(Breaker::with_seed(config, clock::entropy().next_u64()));
        let timed = config.slow_rate().is_some();
        let ears = Ears::default();
        Self { shared: Arc::new(Shared { breaker, timed, ears }) }
    }

    /// The same breaker with a listener of this handle and its clones: how calls end, `Refused`, and the
    /// `Changed` that they bring about.
    #[must_use]
    pub fn listened_by(self, listener: impl Listener + 'static) -> Self {
        let shared = Shared { ears: Ears::new(listener), ..(*self.shared).clone() };
        Self { shared: Arc::new(shared) }
    }

    /// Runs `future` unless the circuit is open, and takes its end.
    ///
    /// # Errors
    /// [`GuardError`](crate::policy::GuardError): refused, or the future's own error.
    pub const fn call<F>(&self, future: F) -> Guarded<&Self, ByError, F> {
        Guarded::new(self, ByError, future)
    }

    /// The same with a [`Judge`](crate::policy::Judge) of values and errors.
    pub const fn call_judged<J, F>(&self, judge: J, future: F) -> Guarded<&Self, J, F> {
        Guarded::new(self, judge, future)
    }

    /// The state now.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.shared.breaker.phase(clock::now())
    }

    /// Why the circuit is as it is, and what is missing for it to change.
    #[must_use]
    pub fn explain(&self) -> Explanation {
        self.shared.breaker.explain(clock::now())
    }

    /// Refuses every call until another order.
    pub fn force_open(&self) {
        self.changed(self.shared.breaker.force_open(clock::now()));
    }

    /// Lets every call pass and goes on counting, until another order.
    pub fn force_closed(&self) {
        self.changed(self.shared.breaker.force_closed(clock::now()));
    }

    /// Lets every call pass and counts nothing, until another order.
    pub fn disable(&self) {
        self.changed(self.shared.breaker.disable(clock::now()));
    }

    /// Takes an order back.
    pub fn automatic(&self) {
        self.changed(self.shared.breaker.automatic(clock::now()));
    }

    fn ask(&self) -> Result<BreakerPass, Refused> {
        let now = clock::now();
        let answer = self.shared.breaker.ask(now);
        self.changed(answer.change);
        match answer.admission {
            Ok(admission) => Ok(BreakerPass { admission, started: now }),
            Err(after) => {
                let refused = Refused::new(Refusal::CircuitOpen, Some(after));
                self.shared.ears.tell(|| PolicyEvent::Refused(refused));
                Err(refused)
            }
        }
    }

    /// The end of a call that the breaker has to know of.
    #[inline(never)]
    fn tell(&self, pass: BreakerPass, ending: Ending) {
        let plain = ending == Ending::Succeeded && !pass.admission.is_probe();
        let now = if plain && !self.shared.breaker.success_needs_now() {
            Moment::ORIGIN
        } else {
            clock::now()
        };
        let (health, retry_after) = match ending {
            Ending::Succeeded => (Health::Good, None),
            Ending::Failed(failure) => (failure.health, failure.retry_after),
            Ending::Panicked => (Health::Bad, None),
            Ending::Cancelled => (Health::Silent, None),
        };
        let took = self.shared.timed.then(|| now.since(pass.started));
        let verdict = Verdict { health, took, retry_after };
        let told = self.shared.breaker.tell(now, pass.admission, verdict);
        self.shared.ears.tell(|| ending.event());
        self.changed(told.change);
    }

    #[inline]
    fn changed(&self, change: Option<Change>) {
        if let Some(change) = change {
            self.shared.ears.tell(|| PolicyEvent::Changed(change));
        }
    }
}

/// What a call carries that a [`BreakerPolicy`] let through.
#[derive(Debug)]
pub struct BreakerPass {
    admission: Admission,
    /// When it began; without meaning where that is of no interest and no clock was read.
    started: Moment,
}

impl Guard for BreakerPolicy {
    type Pass = BreakerPass;
    type Judge = ByError;

    #[inline(always)]
    fn enter(&self) -> Result<BreakerPass, Refused> {
        let closed = if self.shared.timed { None } else { self.shared.breaker.ask_closed() };
        match closed {
            Some(admission) => Ok(BreakerPass { admission, started: Moment::ORIGIN }),
            None => self.ask(),
        }
    }

    #[inline(always)]
    fn leave(&self, pass: BreakerPass, ending: Ending) {
        if ending == Ending::Succeeded
            && !self.shared.timed
            && self.shared.breaker.forgets_success(&pass.admission)
        {
            self.shared.ears.tell(|| PolicyEvent::Succeeded);
        } else {
            self.tell(pass, ending);
        }
    }

    fn shut(&self) -> Option<Refused> {
        let after = self.shared.breaker.refuses(clock::now())?;
        Some(Refused::new(Refusal::CircuitOpen, Some(after)))
    }
}
