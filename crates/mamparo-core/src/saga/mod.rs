//! Sagas: what happens next, and by when.
