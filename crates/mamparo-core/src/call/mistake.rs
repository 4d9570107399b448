//! Values of a policy that can't be meant, collected so that all of them are reported at once.

use std::fmt;
use std::time::Duration;

/// A value that can't be meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Which value, as in the policy file: `retry.attempts`.
    pub key: &'static str,
    /// What is wrong with it, with the numbers.
    pub text: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.text)
    }
}

/// Mistakes under way, and the checks that most policies need.
#[derive(Debug, Default)]
pub(crate) struct Mistakes(Vec<Mistake>);

impl Mistakes {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn into_vec(self) -> Vec<Mistake> {
        self.0
    }

    pub(crate) fn add(&mut self, key: &'static str, text: String) {
        self.0.push(Mistake { key, text });
    }

    pub(crate) fn extend(&mut self, mistakes: Vec<Mistake>) {
        self.0.extend(mistakes);
    }

    pub(crate) fn unless(&mut self, sound: bool, key: &'static str, text: impl FnOnce() -> String) {
        if !sound {
            self.add(key, text());
        }
    }

    pub(crate) fn range(&mut self, key: &'static str, value: u32, least: u32, most: u32) {
        self.unless((least..=most).contains(&value), key, || {
            if most == u32::MAX {
                format!("is {value}, must be at least {least}")
            } else {
                format!("is {value}, must be from {least} to {most}")
            }
        });
    }

    pub(crate) fn positive(&mut self, key: &'static str, value: Duration) {
        self.unless(!value.is_zero(), key, || "must be more than zero".into());
    }
}
