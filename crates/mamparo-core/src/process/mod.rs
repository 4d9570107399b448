//! The life of a process: start, ready, drain, stop.
