//! A value and where it stands.

use std::ops::Deref;

/// A value of the file, with the line it stands on, so that later findings can point there.
///
/// It reads like the value itself: `*policy.service.name`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Its line in the file, counted from one; zero when it is a default or an override.
    pub line: u32,
}

impl<T> Located<T> {
    /// A value that stands on `line`.
    pub const fn at(line: u32, value: T) -> Self {
        Self { value, line }
    }

    /// A value that stands in no file: a default, or an override.
    pub const fn nowhere(value: T) -> Self {
        Self { value, line: 0 }
    }
}

impl<T> Deref for Located<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
