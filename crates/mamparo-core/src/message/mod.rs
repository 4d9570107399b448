//! Messages: where they go next.
