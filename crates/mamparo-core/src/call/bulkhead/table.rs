//! How a caller stands in the line of a bulkhead, and what moves it on.

use crate::table::{Row, Table};

/// How the holder of a ticket stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// No slot yet.
    Waiting,
    /// A slot is kept for it; pick it up.
    Granted,
    /// There will be no slot; leave.
    Shed,
    /// The ticket has ended, or was never given out.
    Gone,
}

/// What happened to the holder of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A slot was handed to it.
    Grant,
    /// Its turn came after its time was over.
    Expire,
    /// It made room for a newer caller.
    Shed,
    /// It picked its slot up.
    Claim,
    /// It went away: timed out, cancelled, or told to.
    Leave,
}

const fn row(from: Standing, on: Event, to: Standing, why: &'static str) -> Row<Standing, Event> {
    Row { from, on, to, why }
}

/// Which standing follows which event.
pub const TABLE: Table<Standing, Event> = Table {
    name: "bulkhead",
    rows: &[
        row(Standing::Waiting, Event::Grant, Standing::Granted, "a slot came free"),
        row(Standing::Waiting, Event::Expire, Standing::Shed, "a slot would come too late"),
        row(Standing::Waiting, Event::Shed, Standing::Shed, "under pressure, the oldest goes"),
        row(Standing::Waiting, Event::Leave, Standing::Gone, "it held nothing"),
        row(Standing::Granted, Event::Claim, Standing::Gone, "it runs now"),
        row(Standing::Granted, Event::Leave, Standing::Gone, "its slot is handed on"),
        row(Standing::Shed, Event::Leave, Standing::Gone, "it was told"),
    ],
};
