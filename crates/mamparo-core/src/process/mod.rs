//! The life of a process: start, ready, drain, stop.

pub mod lifecycle;
pub mod shutdown;
