//! A saga's steps as data: what runs after what, what undoes it, how often it is tried.
//!
//! A graph never changes while a saga runs on it. Its [`hash`](Graph::hash) stands in the saga's row, and
//! a program that lacks that graph leaves the saga alone and says so.

use std::fmt;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::hash::fnv1a;

/// Most steps of a graph.
pub const STEPS_MAX: usize = 256;

/// A step, by its place in its graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId(pub u16);

impl StepId {
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A transaction in the saga's own database: it commits with the log, so it runs exactly once.
    Local,
    /// A call of another service, with a key. An intent is written first.
    Call,
    /// An event into the outbox; commits with the log.
    Emit,
    /// Another saga, started under a key of this one. Like a call, but its answer is the other saga's end.
    Sub,
    /// Waits for a signal, at most this long. A signal that came before counts.
    Wait(Duration),
    /// Waits this long.
    Sleep(Duration),
    /// From here on there is no way back: what comes after it is tried until it works or a person acts.
    Pivot,
    /// Chooses one of so many arms; steps of the others are not taken.
    Choice(u16),
}

impl Kind {
    /// Its word in diagrams, logs and the hash.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Call => "call",
            Self::Emit => "emit",
            Self::Sub => "sub-saga",
            Self::Wait(_) => "wait",
            Self::Sleep(_) => "sleep",
            Self::Pivot => "pivot",
            Self::Choice(_) => "choice",
        }
    }

    /// Does it happen elsewhere, so that its outcome can stay unknown?
    #[must_use]
    pub const fn is_remote(self) -> bool {
        matches!(self, Self::Call | Self::Sub)
    }

    /// Does it only let time or a signal pass?
    #[must_use]
    pub const fn is_pause(self) -> bool {
        matches!(self, Self::Wait(_) | Self::Sleep(_))
    }
}

/// What becomes of a step's effect when the saga goes back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Undo {
    /// It has none.
    ReadOnly,
    /// An undo takes it back.
    By,
    /// Nothing can take it back, for this reason. It stays, and the saga's end says so.
    Irreversible(String),
}

/// How often something is tried.
#[derive(Debug, Clone, PartialEq)]
pub struct Tries {
    /// Attempts in all, from 1. Without a limit in an undo, a saga would never ask for a person.
    pub attempts: u32,
    /// The waits between them.
    pub backoff: Backoff,
}

impl Tries {
    /// One attempt.
    #[must_use]
    pub const fn once() -> Self {
        Self::of(1)
    }

    /// So many attempts, with waits from 200 ms, twice as long each time, up to 30 s, full jitter.
    #[must_use]
    pub const fn of(attempts: u32) -> Self {
        let (base, cap) = (Duration::from_millis(200), Duration::from_secs(30));
        Self { attempts, backoff: Backoff::new(base, 2.0, cap) }
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Its name, unique in its graph.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// It begins when these are done, or not taken. All stand before it in the graph.
    pub after: Vec<StepId>,
    /// It is taken only when this choice takes this arm.
    pub arm: Option<(StepId, u16)>,
    /// One run for each of a number of items, which is known when the step begins.
    pub each: bool,
    /// What takes its effect back.
    pub undo: Undo,
    /// The callee can be asked whether a key was applied.
    pub probe: bool,
    /// Attempts forward. More than one only where the callee knows the key, or the step is local.
    pub tries: Tries,
    /// Attempts of its undo.
    pub undo_tries: Tries,
}

/// All steps of a saga.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    /// The definition's name.
    pub name: String,
    /// Its version, which people count.
    pub version: u32,
    /// Its steps; each after all those that it comes after.
    pub steps: Vec<Step>,
    /// The longest that a saga may go forward; then it is cancelled, unless it is past its pivot.
    pub deadline: Option<Duration>,
}

/// Why a graph can't be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// The step that is wrong, if it is one.
    pub step: Option<String>,
    /// What is wrong, and what to do.
    pub why: String,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.step {
            Some(step) => write!(f, "step {step:?}: {}", self.why),
            None => f.write_str(&self.why),
        }
    }
}

impl std::error::Error for Unfit {}

impl Graph {
    /// A step; `None` when the graph has no such one.
    #[must_use]
    pub fn step(&self, id: StepId) -> Option<&Step> {
        self.steps.get(id.index())
    }

    /// A step by its name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<StepId> {
        self.ids().find(|id| self.step(*id).is_some_and(|step| step.name == name))
    }

    /// All steps, in their order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = StepId> + '_ {
        (0..self.steps.len()).filter_map(|index| u16::try_from(index).ok()).map(StepId)
    }

    /// The pivot, if there is one.
    #[must_use]
    pub fn pivot(&self) -> Option<StepId> {
        self.ids().find(|id| self.step(*id).is_some_and(|step| step.kind == Kind::Pivot))
    }

    /// Does `late` come after `early`, directly or not? An arm comes after its choice.
    #[must_use]
    pub fn follows(&self, late: StepId, early: StepId) -> bool {
        let Some(step) = self.step(late) else { return false };
        let arm = step.arm.map(|(choice, _)| choice);
        let mut before = step.after.iter().copied().chain(arm).filter(|before| *before < late);
        before.any(|before| before == early || self.follows(before, early))
    }

    /// Can it be run?
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), Unfit> {
        let whole = |why: &str| Err(Unfit { step: None, why: why.to_owned() });
        if self.name.trim().is_empty() {
            return whole("the saga has no name");
        }
        if self.steps.is_empty() {
            return whole("the saga has no step");
        }
        if self.steps.len() > STEPS_MAX {
            return whole("a saga has at most 256 steps; put some of them into a sub-saga");
        }
        for id in self.ids() {
            let Some(step) = self.step(id) else { continue };
            self.check_step(id, step)
                .map_err(|why| Unfit { step: Some(step.name.clone()), why })?;
        }
        Ok(())
    }

    fn check_step(&self, id: StepId, step: &Step) -> Result<(), String> {
        let fails = |wrong: bool, why: &str| if wrong { Err(why.to_owned()) } else { Ok(()) };
        fails(step.name.trim().is_empty(), "it has no name")?;
        fails(self.named(&step.name) != Some(id), "another step has this name")?;
        fails(step.after.iter().any(|after| *after >= id), "it comes after a later step")?;
        if let Some((choice, arm)) = step.arm {
            let arms = match self.step(choice).map(|choice| choice.kind) {
                Some(Kind::Choice(arms)) if choice < id => arms,
                _ => return Err("its arm is of no choice that stands before it".to_owned()),
            };
            fails(arm >= arms, &format!("its choice has only {arms} arms"))?;
        }
        let Tries { attempts, .. } = step.tries;
        fails(attempts == 0 || step.undo_tries.attempts == 0, "0 attempts: it would never run")?;
        fails(matches!(step.kind, Kind::Choice(0)), "a choice needs an arm")?;
        fails(
            step.each && !matches!(step.kind, Kind::Local | Kind::Call | Kind::Sub),
            "only local steps, calls and sub-sagas run for each of several items",
        )?;
        fails(step.probe && !step.kind.is_remote(), "only calls and sub-sagas have a probe")?;
        if step.kind != Kind::Pivot {
            return self.pivot().map_or(Ok(()), |pivot| {
                let apart = !self.follows(id, pivot) && !self.follows(pivot, id);
                fails(apart, "it stands beside the pivot; let it come before or after it")
            });
        }
        fails(self.pivot() != Some(id), "a saga has one pivot")?;
        fails(step.arm.is_some(), "a pivot that may not be taken is no pivot")
    }

    /// Changes when anything changes that a running saga relies on. 16 hexadecimal digits of FNV-1a.
    #[must_use]
    pub fn hash(&self) -> String {
        format!("{:016x}", fnv1a(self.canonical().bytes()))
    }

    /// What the log of a running saga refers to. How often something is tried may change under way.
    fn canonical(&self) -> String {
        let mut text = format!("{}\n{}\n", self.name, self.version);
        for Step { name, kind, after, arm, each, undo, probe, .. } in &self.steps {
            let undo = match undo {
                Undo::ReadOnly => "read-only",
                Undo::By => "undo",
                Undo::Irreversible(_) => "irreversible",
            };
            let after: Vec<u16> = after.iter().map(|id| id.0).collect();
            let arm = arm.map(|(choice, arm)| (choice.0, arm));
            text.push_str(&format!("{name:?} {kind:?} {after:?} {arm:?} {each} {undo} {probe}\n"));
        }
        text
    }

    /// The graph as a Mermaid flow chart.
    #[must_use]
    pub fn to_mermaid(&self) -> String {
        let mut text = String::from("flowchart TD\n");
        for id in self.ids() {
            let Some(step) = self.step(id) else { continue };
            let mut note = step.kind.word().to_owned();
            if step.each {
                note.push_str(", for each");
            }
            match &step.undo {
                Undo::By => note.push_str(", undo"),
                Undo::Irreversible(reason) => note.push_str(&format!(", stays: {reason}")),
                Undo::ReadOnly => {}
            }
            let label = format!("{}<br/>{note}", step.name).replace('"', "#quot;");
            let (open, close) = match step.kind {
                Kind::Choice(_) => ("{\"", "\"}"),
                Kind::Pivot => ("[[\"", "\"]]"),
                Kind::Wait(_) | Kind::Sleep(_) => ("([\"", "\"])"),
                Kind::Local | Kind::Call | Kind::Emit | Kind::Sub => ("[\"", "\"]"),
            };
            text.push_str(&format!("    s{}{open}{label}{close}\n", id.0));
            for after in step.after.iter().filter(|after| step.arm.is_none_or(|a| a.0 != **after)) {
                text.push_str(&format!("    s{} --> s{}\n", after.0, id.0));
            }
            if let Some((choice, arm)) = step.arm {
                text.push_str(&format!("    s{} -->|{arm}| s{}\n", choice.0, id.0));
            }
        }
        text
    }
}
