//! From the model to core's plain plans.

use mamparo_core::backoff::Backoff;

use crate::RetrySection;

impl RetrySection {
    /// The waits between attempts.
    #[must_use]
    pub fn backoff(&self) -> Backoff {
        Backoff { base: *self.base, factor: *self.factor, cap: *self.cap }
    }
}
