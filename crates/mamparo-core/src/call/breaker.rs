//! The circuit breaker: closed lets calls through, open refuses, half-open tries.
//!
//! - Every admission carries the *generation* of the state that granted it. A result of an older
//!   generation is reported as stale and changes nothing: a slow success from before the trip never
//!   closes a circuit, and ten failures at once open it once.
//! - A half-open circuit admits exactly `probes` trial calls. One that ends without a verdict
//!   (cancelled, refused locally) gives its place back.
//! - States change lazily from `now`; there is no background task to lose.
//! - Threads share it by reference. A call of a closed circuit reads one word and, if it succeeds,
//!   writes nothing that another thread reads, or next to nothing; a refusal only reads. The plain
//!   machine that moves between the states stands behind a lock, where only the news go: a threshold
//!   that is reached, a probe, a person's order.

mod answer;
mod config;
mod explain;
mod keyed;
mod machine;
mod table;
mod trial;
mod watch;
mod word;

use std::fmt;
use std::time::Duration;

pub use answer::{Admission, Answer, Change, Look, Override, Told, Verdict};
pub use config::{BreakerConfig, Over, SlowRate, Trip};
pub use explain::{Explanation, Missing, Probes};
pub use keyed::KeyedBreaker;
pub use table::{Event, Phase, TABLE};

use crate::call::window::{Counts, Standing};
use crate::limits::HALF_OPEN_RETRY_AFTER;
use crate::outcome::Health;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Apart, Mutex, MutexGuard, lock};
use crate::time::Moment;
use machine::{Machine, State};
use watch::Watch;
use word::{Mode, Word};

/// The breaker of one dependency in one process.
pub struct Breaker {
    hot: Apart<Hot>,
    watch: Watch,
    machine: Apart<Mutex<Machine>>,
}

/// What every call reads and only a change of state writes.
///
/// The word is written last and read first, so whoever sees a word sees the times that belong to it,
/// or later ones. Which of the two, a second look at the word tells: between two writes of the same
/// time there is always another word.
struct Hot {
    word: AtomicU64,
    /// When the open time is over, in nanoseconds.
    open_until: AtomicU64,
    /// When a half-open circuit stops waiting for its probes, in nanoseconds.
    full_until: AtomicU64,
    config: BreakerConfig,
}

/// What can be answered from the hot words alone.
enum Glance {
    Admitted {
        generation: u64,
    },
    Refused {
        after: Duration,
    },
    /// Something is due, or a probe place is free: the machine has to say.
    Unsure,
}

impl Breaker {
    /// A closed circuit with an empty window. Its jitter, if it has one, is that of every other with
    /// the same history: see [`Breaker::with_seed`].
    #[must_use]
    pub fn new(config: BreakerConfig) -> Self {
        Self::with_seed(config, 0)
    }

    /// A closed circuit with an empty window, whose open times are spread by `seed`
    /// ([`BreakerConfig::open_jitter`]). Give each instance of a service its own.
    #[must_use]
    pub fn with_seed(config: BreakerConfig, seed: u64) -> Self {
        let hot = Hot {
            word: AtomicU64::new(Word::new(0, Mode::Closed).0),
            open_until: AtomicU64::new(0),
            full_until: AtomicU64::new(0),
            config,
        };
        Self {
            hot: Apart(hot),
            watch: Watch::new(&config),
            machine: Apart(Mutex::new(Machine::new(config, seed))),
        }
    }

    /// The limits.
    #[must_use]
    pub const fn config(&self) -> &BreakerConfig {
        &self.hot.0.config
    }

    /// May a call be made now?
    #[inline]
    pub fn ask(&self, now: Moment) -> Answer {
        match self.glance(now) {
            Glance::Admitted { generation } => {
                Answer { admission: Ok(Admission::new(generation, false)), change: None }
            }
            Glance::Refused { after } => Answer { admission: Err(after), change: None },
            Glance::Unsure => self.ask_machine(now),
        }
    }

    /// The admission that [`Breaker::ask`] gives while the circuit is closed, for one look at one word
    /// and none at the clock; `None` when there is more to say. It takes no place: a caller that is
    /// refused elsewhere may drop it.
    #[must_use]
    #[inline]
    pub fn ask_closed(&self) -> Option<Admission> {
        let word = self.word();
        word.lets_pass().then(|| Admission::new(word.generation(), false))
    }

    /// Would [`Breaker::ask`] refuse now, and until when? Takes no place and changes nothing.
    #[must_use]
    pub fn refuses(&self, now: Moment) -> Option<Duration> {
        match self.glance(now) {
            Glance::Admitted { .. } => None,
            Glance::Refused { after } => Some(after),
            Glance::Unsure => self.machine().refuses(now),
        }
    }

    /// Refuses a caller that [`Breaker::ask`] would refuse, and lets everybody else go on without
    /// taking a place.
    ///
    /// Unlike [`Breaker::refuses`] it brings about what has become due: where nobody gets as far as
    /// asking, this is what sends a circuit whose probes hang back to open.
    pub fn look(&self, now: Moment) -> Look {
        match self.glance(now) {
            Glance::Admitted { .. } => Look { refused: None, change: None },
            Glance::Refused { after } => Look { refused: Some(after), change: None },
            Glance::Unsure => {
                let mut machine = self.machine();
                let refused = machine.refuses(now);
                let change = refused.and_then(|_| machine.advance(now));
                self.publish(&machine);
                Look { refused, change }
            }
        }
    }

    /// Would the success of this call, in good time, leave no trace? Then it need not be told, and no
    /// clock be read for it. So it is where failures alone are counted, and where there is none in the
    /// window that a success could put in the past. One of a probe always leaves a trace.
    #[must_use]
    #[inline]
    pub fn forgets_success(&self, admission: &Admission) -> bool {
        !admission.is_probe() && self.watch.forgets_success(admission.generation())
    }

    /// Takes the outcome of an admitted call.
    ///
    /// For a success that is no probe the time is not looked at, unless the rule is a rate, so the
    /// caller can save the clock reading ([`Breaker::success_needs_now`]).
    // By value on purpose: an admission can be told only once.
    #[expect(clippy::needless_pass_by_value, reason = "an admission is used up by telling it")]
    #[inline]
    pub fn tell(&self, now: Moment, admission: Admission, verdict: impl Into<Verdict>) -> Told {
        let verdict = verdict.into();
        let word = self.word();
        // Generation and mode in one comparison, for the circuit that is closed nearly always.
        if word == Word::new(admission.generation(), Mode::Closed) {
            self.count(now, admission.generation(), &verdict)
        } else {
            self.tell_others(now, word, &admission, &verdict)
        }
    }

    fn tell_others(
        &self,
        now: Moment,
        word: Word,
        admission: &Admission,
        verdict: &Verdict,
    ) -> Told {
        if admission.generation() != word.generation() {
            return Told { event: Event::Stale, change: None };
        }
        match word.mode() {
            Mode::Closed | Mode::ForcedClosed => self.count(now, admission.generation(), verdict),
            Mode::Disabled => Told { event: Event::Returned, change: None },
            Mode::Trying | Mode::Full => self.end_probe(now, admission.generation(), verdict),
            // No admission of an open state exists, so its generation can't be told.
            Mode::Open | Mode::ForcedOpen => Told { event: Event::Stale, change: None },
        }
    }

    /// Does a success have to be told with the time of its end, even when it is no probe?
    #[must_use]
    pub const fn success_needs_now(&self) -> bool {
        matches!(self.config().trip, Trip::Rate { .. })
    }

    /// Refuses every call until another order. `None` when that is ordered already.
    pub fn force_open(&self, now: Moment) -> Option<Change> {
        self.order(now, Some(Override::Open))
    }

    /// Lets every call pass and goes on counting, until another order. `None` when that is ordered
    /// already.
    pub fn force_closed(&self, now: Moment) -> Option<Change> {
        self.order(now, Some(Override::Closed))
    }

    /// Lets every call pass and counts nothing, until another order. `None` when that is ordered
    /// already.
    pub fn disable(&self, now: Moment) -> Option<Change> {
        self.order(now, Some(Override::Disabled))
    }

    /// Takes an order back: a circuit that was held open is tried first, any other is closed with an
    /// empty window. `None` when there is no order.
    pub fn automatic(&self, now: Moment) -> Option<Change> {
        self.order(now, None)
    }

    /// The order that stands, if one does.
    #[must_use]
    pub fn overridden(&self) -> Option<Override> {
        match self.word().mode() {
            Mode::ForcedOpen => Some(Override::Open),
            Mode::ForcedClosed => Some(Override::Closed),
            Mode::Disabled => Some(Override::Disabled),
            Mode::Closed | Mode::Trying | Mode::Full | Mode::Open => None,
        }
    }

    /// The state at `now`, without changing it.
    #[must_use]
    pub fn phase(&self, now: Moment) -> Phase {
        match self.glance(now) {
            Glance::Admitted { .. } => Phase::Closed,
            Glance::Refused { .. } | Glance::Unsure => self.machine().phase_at(now),
        }
    }

    /// What the window of a closed circuit holds; zero in the other states. Where failures are counted
    /// and not rates, successes leave no trace and `calls` equals `failed`.
    #[must_use]
    pub fn counts(&self, now: Moment) -> Counts {
        match self.glance(now) {
            Glance::Admitted { generation } => self.watch.counts(now, generation),
            Glance::Refused { .. } | Glance::Unsure => Counts::default(),
        }
    }

    /// Why the circuit is as it is, what it has counted, and what is missing for it to change.
    #[must_use]
    pub fn explain(&self, now: Moment) -> Explanation {
        let machine = self.machine().clone();
        let counts = match machine.state {
            State::Closed => self.watch.counts(now, machine.generation),
            State::Open { .. } | State::HalfOpen { .. } => Counts::default(),
        };
        explain::explain(machine, counts, now)
    }

    #[inline]
    fn glance(&self, now: Moment) -> Glance {
        let word = self.word();
        if word.lets_pass() {
            return Glance::Admitted { generation: word.generation() };
        }
        match word.mode() {
            Mode::Open => {
                let until = Moment::from_nanos(self.hot.0.open_until.load(Ordering::Acquire));
                self.refused(word, now < until, now.until(until))
            }
            Mode::Full => {
                let until = Moment::from_nanos(self.hot.0.full_until.load(Ordering::Acquire));
                self.refused(word, now < until, HALF_OPEN_RETRY_AFTER)
            }
            Mode::ForcedOpen => Glance::Refused { after: self.config().open_for },
            Mode::Trying | Mode::Closed | Mode::ForcedClosed | Mode::Disabled => Glance::Unsure,
        }
    }

    /// A refusal stands if the time read was that of `word`: see [`Hot`].
    fn refused(&self, word: Word, refused: bool, after: Duration) -> Glance {
        if refused && word == self.word() { Glance::Refused { after } } else { Glance::Unsure }
    }

    #[inline]
    fn count(&self, now: Moment, generation: u64, verdict: &Verdict) -> Told {
        let failed = match verdict.health {
            Health::Silent => return Told { event: Event::Returned, change: None },
            Health::Good => false,
            Health::Bad => true,
        };
        match self.watch.record(now, generation, failed, verdict.took) {
            None => Told { event: Event::Stale, change: None },
            Some(Standing::Reached) => self.trip(now, generation, verdict.retry_after),
            Some(Standing::Below | Standing::TooFew) => {
                Told { event: Event::Counted, change: None }
            }
        }
    }

    #[cold]
    fn ask_machine(&self, now: Moment) -> Answer {
        let mut machine = self.machine();
        let (answer, change) = machine.ask(now);
        self.publish(&machine);
        let generation = machine.generation;
        Answer { admission: answer.map(|probe| Admission::new(generation, probe)), change }
    }

    #[cold]
    fn trip(&self, now: Moment, generation: u64, retry_after: Option<Duration>) -> Told {
        let mut machine = self.machine();
        let (event, change) = machine.trip(now, generation, retry_after);
        self.publish(&machine);
        Told { event, change }
    }

    #[cold]
    fn end_probe(&self, now: Moment, generation: u64, verdict: &Verdict) -> Told {
        let mark = match verdict.health {
            Health::Silent => None,
            Health::Good => Some(self.watch.mark(false, verdict.took)),
            Health::Bad => Some(self.watch.mark(true, verdict.took)),
        };
        let mut machine = self.machine();
        let (event, change) = machine.end_probe(now, generation, mark, verdict.retry_after);
        self.publish(&machine);
        Told { event, change }
    }

    fn order(&self, now: Moment, order: Option<Override>) -> Option<Change> {
        let mut machine = self.machine();
        let change = machine.order(now, order);
        self.publish(&machine);
        change
    }

    /// Makes the machine's state visible to those who don't lock. Runs under its lock.
    fn publish(&self, machine: &Machine) {
        let word = Word::new(machine.generation, machine.mode());
        let before = self.word();
        if word == before {
            return;
        }
        match &machine.state {
            State::Closed if word.generation() == before.generation() => {}
            State::Closed => self.watch.renew(machine.generation),
            State::Open { until } => {
                self.hot.0.open_until.store(until.nanos(), Ordering::Release);
            }
            State::HalfOpen { trial } => {
                let until = trial.since.plus(machine.config.half_open_max);
                self.hot.0.full_until.store(until.nanos(), Ordering::Release);
            }
        }
        self.hot.0.word.store(word.0, Ordering::Release);
    }

    #[inline]
    fn word(&self) -> Word {
        Word(self.hot.0.word.load(Ordering::Acquire))
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        lock(&self.machine.0)
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker")
            .field("machine", &*self.machine())
            .field("watch", &self.watch)
            .finish_non_exhaustive()
    }
}
