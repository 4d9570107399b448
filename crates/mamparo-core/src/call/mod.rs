//! A call of a dependency: the policies, and the pipeline that holds their order.

pub mod pipeline;
