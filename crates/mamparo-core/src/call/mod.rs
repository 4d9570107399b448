//! A call of a dependency: the policies, and the pipeline that holds their order.
//!
//! Each policy is a small machine of its own and can be used alone; [`pipeline`] holds the one order
//! in which they stand, and [`plan`] is the plain data from which all of them are made.

pub mod adaptive;
pub mod arithmetic;
pub mod breaker;
pub mod bulkhead;
pub mod deadline;
pub mod fallback;
pub mod fault;
pub mod hedge;
pub mod latency;
pub mod mistake;
pub mod pipeline;
pub mod plan;
pub mod rate_limit;
pub mod retry;
pub mod retry_budget;
pub mod shed;
pub mod throttle;
pub mod window;
