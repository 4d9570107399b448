//! The states of an adaptive limit and what a window does to them.

use crate::table::{Row, Table};

/// The name of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Each window moves the limit by the algorithm's law.
    Seeking,
    /// The limit is a part of itself, and calls that began under the whole one end. The first state too:
    /// what ends in a first window is what ends early.
    Draining,
    /// The limit is a part of itself, to see how long calls take without a queue.
    Probing,
}

/// What a window showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// The limit was in use: the law moved it.
    Judged,
    /// Less than half of the limit was in use: it stays.
    Unused,
    /// Calls were dropped.
    Dropped,
    /// Nothing near the base latency was seen for too long.
    Stale,
    /// Most calls of the older limit have ended.
    Drained,
    /// The base latency has been measured anew.
    Measured,
}

const fn row(from: Phase, on: Event, to: Phase, why: &'static str) -> Row<Phase, Event> {
    Row { from, on, to, why }
}

/// Which state follows which window.
pub const TABLE: Table<Phase, Event> = Table {
    name: "adaptive",
    rows: &[
        row(Phase::Seeking, Event::Judged, Phase::Seeking, "latency says more or less"),
        row(Phase::Seeking, Event::Unused, Phase::Seeking, "an idle limit has proved nothing"),
        row(Phase::Seeking, Event::Dropped, Phase::Seeking, "too much for the dependency"),
        row(Phase::Seeking, Event::Stale, Phase::Draining, "a queue stands, or it is slower now"),
        row(Phase::Draining, Event::Drained, Phase::Probing, "what ends now began under the part"),
        row(Phase::Draining, Event::Dropped, Phase::Seeking, "even the part is too much"),
        row(Phase::Probing, Event::Measured, Phase::Seeking, "the base is known again"),
        row(Phase::Probing, Event::Dropped, Phase::Seeking, "even the part is too much"),
    ],
};
