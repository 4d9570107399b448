//! Transition tables as data.
//!
//! A machine's table is the one place that says which state follows which event. The machine looks
//! its next state up here; tests, diagrams and the lab read the same rows.

use std::fmt::Debug;

/// One row: in state `from`, on event `on`, the machine goes to `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row<S: 'static, E: 'static> {
    /// The state before.
    pub from: S,
    /// What happened.
    pub on: E,
    /// The state after; equal to `from` where the event only counts.
    pub to: S,
    /// Why, in one sentence fragment for diagrams and docs.
    pub why: &'static str,
}

/// All rows of a machine.
#[derive(Debug, Clone, Copy)]
pub struct Table<S: 'static, E: 'static> {
    /// The machine's name, for diagrams.
    pub name: &'static str,
    /// The rows; (from, on) is unique among them.
    pub rows: &'static [Row<S, E>],
}

impl<S: Copy + PartialEq + Debug, E: Copy + PartialEq + Debug> Table<S, E> {
    /// The row for `on` in state `from`; `None` when the event does not fit the state.
    #[must_use]
    pub fn row(&self, from: S, on: E) -> Option<&'static Row<S, E>> {
        self.rows.iter().find(|row| row.from == from && row.on == on)
    }

    /// The table as a Mermaid state diagram, one arrow a row.
    #[must_use]
    pub fn to_mermaid(&self) -> String {
        let mut text = String::from("stateDiagram-v2\n");
        for row in self.rows {
            let (from, to, on) = (format!("{:?}", row.from), format!("{:?}", row.to), row.on);
            text.push_str(&format!("    {from} --> {to}: {on:?}\n"));
        }
        text
    }

    /// Rows that `hits` leaves out, and (from, on) pairs that stand more than once. A machine's
    /// test passes the rows it drove and asserts that nothing comes back, so that a row without a
    /// test turns the build red.
    #[must_use]
    pub fn untested(&self, hits: &[(S, E)]) -> Vec<String> {
        let missing = self
            .rows
            .iter()
            .filter(|row| !hits.iter().any(|(from, on)| *from == row.from && *on == row.on))
            .map(|row| format!("{}: no test drives {:?} on {:?}", self.name, row.from, row.on));
        let twice = self.rows.iter().enumerate().filter_map(|(index, row)| {
            let seen = self.rows[..index].iter().any(|r| r.from == row.from && r.on == row.on);
            seen.then(|| format!("{}: {:?} on {:?} stands twice", self.name, row.from, row.on))
        });
        missing.chain(twice).collect()
    }
}
