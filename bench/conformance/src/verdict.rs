//! What came of a case, and tables of it.

use std::fmt;

/// What a policy did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// What it promises, or what the case asks.
    Pass(String),
    /// A documented limit, or a choice that surprises.
    Limit(String),
    /// Not what it promises.
    Fault(String),
    /// It has nothing of the kind.
    None,
}

use Verdict::{Fault, Limit, Pass};

impl Verdict {
    /// A pass with nothing to add.
    pub(crate) const fn pass() -> Self {
        Pass(String::new())
    }

    /// A pass when `good`, else a fault; either way with what was seen.
    pub(crate) fn when(good: bool, seen: impl fmt::Display) -> Self {
        if good { Pass(seen.to_string()) } else { Fault(seen.to_string()) }
    }

    /// A fault becomes a limit: the policy never promised it.
    pub(crate) fn never_promised(self) -> Self {
        match self {
            Fault(seen) => Limit(seen),
            other => other,
        }
    }

    /// The word that the file of expectations keeps.
    pub(crate) const fn word(&self) -> &'static str {
        match self {
            Pass(_) => "pass",
            Limit(_) => "limit",
            Fault(_) => "fault",
            Self::None => "n.a.",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pass(seen) | Limit(seen) | Fault(seen) if !seen.is_empty() => {
                write!(f, "{}: {seen}", self.word())
            }
            _ => f.write_str(self.word()),
        }
    }
}

/// One case, put to each subject of its table.
#[derive(Debug)]
pub(crate) struct Row {
    /// What must hold.
    pub(crate) case: &'static str,
    /// By subject, in the order of the table's columns.
    pub(crate) verdicts: Vec<Verdict>,
}

/// The cases of one kind of policy. Ours is the first column.
#[derive(Debug)]
pub(crate) struct Table {
    /// The kind of policy.
    pub(crate) about: &'static str,
    /// The subjects' names.
    pub(crate) subjects: Vec<&'static str>,
    /// The cases.
    pub(crate) rows: Vec<Row>,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| {} | {} |", self.about, self.subjects.join(" | "))?;
        writeln!(f, "|---|{}", "---|".repeat(self.subjects.len()))?;
        for Row { case, verdicts } in &self.rows {
            write!(f, "| {case} |")?;
            for verdict in verdicts {
                write!(f, " {verdict} |")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
