//! Mistakes of a file, as people read them.

use std::fmt;

/// One mistake: where, which key, what is wrong, and the way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file's name, as it was given.
    pub file: String,
    /// The line, counted from one; `None` when the whole file is meant.
    pub line: Option<u32>,
    /// The column in characters, counted from one; `None` when the line is only near.
    pub column: Option<u32>,
    /// The key's path, for example `dependencies.catalog.retry.attempts`; empty for syntax errors.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// The way out, where one is known.
    pub hint: Option<String>,
}

impl Problem {
    /// A mistake of `file` as a whole.
    #[must_use]
    pub fn of_file(file: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            line: None,
            column: None,
            key: String::new(),
            message: message.into(),
            hint: None,
        }
    }

    /// A mistake in the value of `key` that stands on `line` (zero: on no line).
    #[must_use]
    pub fn of_key(
        file: impl Into<String>,
        line: u32,
        key: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        let line = (line > 0).then_some(line);
        Self { line, key: key.into(), ..Self::of_file(file, message) }
    }

    /// The same mistake with the way out.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// `orders.toml:14: dependencies.catalog.attempt_timout: unknown key`, and the hint on a line of
/// its own.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file)?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        if !self.key.is_empty() {
            write!(f, " {}:", self.key)?;
        }
        write!(f, " {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// All mistakes found, in the order of files and lines; never empty when it is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// `Ok` with `value` when nothing was found.
    ///
    /// # Errors
    /// The problems, if there are any.
    pub fn or<T>(found: Vec<Problem>, value: T) -> Result<T, Self> {
        if found.is_empty() { Ok(value) } else { Err(Self(found)) }
    }

    /// The problems, one by one.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Extend<Problem> for Problems {
    fn extend<T: IntoIterator<Item = Problem>>(&mut self, more: T) {
        self.0.extend(more);
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// One problem after the other, as [`Problem`] shows them.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
