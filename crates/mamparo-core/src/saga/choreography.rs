//! A choreographed saga as a table: in this state, on this event, go there and do that.
//!
//! The table is *total*: every event has an answer in every state. A late success in a cancelled
//! saga is an event like any other, with a rule that starts its undo; nothing is "ignored".

use std::fmt::Debug;

use crate::table::Row;

/// One rule: the transition, and what is done in the same transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule<S: 'static, E: 'static, A: 'static> {
    /// State, event and next state, with the reason.
    pub row: Row<S, E>,
    /// What is done together with the transition.
    pub then: A,
}

/// Shorthand for the rows of a table.
#[must_use]
pub const fn rule<S, E, A>(from: S, on: E, to: S, then: A, why: &'static str) -> Rule<S, E, A> {
    Rule { row: Row { from, on, to, why }, then }
}

/// All rules of one choreographed saga.
#[derive(Debug, Clone, Copy)]
pub struct Choreography<S: 'static, E: 'static, A: 'static> {
    /// The saga's name, for diagrams and messages.
    pub name: &'static str,
    /// The rules; one for each pair of state and event.
    pub rules: &'static [Rule<S, E, A>],
}

impl<S, E, A> Choreography<S, E, A>
where
    S: Copy + PartialEq + Debug,
    E: Copy + PartialEq + Debug,
{
    /// What follows `event` in `state`; `None` only when the table is not total.
    #[must_use]
    pub fn react(&self, state: S, event: E) -> Option<&'static Rule<S, E, A>> {
        self.rules.iter().find(|rule| rule.row.from == state && rule.row.on == event)
    }

    /// Pairs of `states` × `events` without a rule, pairs with two, and rules that `hits` leaves
    /// out. A saga's test asserts that nothing comes back.
    #[must_use]
    pub fn untested(&self, states: &[S], events: &[E], hits: &[(S, E)]) -> Vec<String> {
        let mut found = Vec::new();
        for state in states {
            for event in events {
                let count = self
                    .rules
                    .iter()
                    .filter(|r| r.row.from == *state && r.row.on == *event)
                    .count();
                if count != 1 {
                    found.push(format!("{}: {count} rules for {event:?} in {state:?}", self.name));
                }
                if !hits.contains(&(*state, *event)) {
                    found.push(format!("{}: no test drives {event:?} in {state:?}", self.name));
                }
            }
        }
        found
    }

    /// The table as a Mermaid state diagram; rules that stay where they are are left out.
    #[must_use]
    pub fn to_mermaid(&self) -> String {
        let mut text = String::from("stateDiagram-v2\n");
        for Row { from, on, to, .. } in self.rules.iter().map(|rule| rule.row) {
            if from != to {
                text.push_str(&format!("    {from:?} --> {to:?}: {on:?}\n"));
            }
        }
        text
    }
}
