//! The model of `mamparo.toml`, the one policy file of a service.
//!
//! [`parse`] reads the text of one file, [`load`] reads several files; both hand back either the
//! whole model or *every* mistake at once ([`Problems`]), each with its file, line and key, and with
//! the nearest valid key where a key is unknown. Nothing here runs: no clock, no runtime, no
//! network.
//!
//! ```
//! let problems = mamparo_topology::parse(
//!     "orders.toml",
//!     "[service]\nname = \"orders\"\nowner = \"team-orders\"\nreqest_budget = \"3s\"\n",
//! )
//! .unwrap_err();
//! assert_eq!(
//!     problems.to_string(),
//!     "orders.toml:4: service.reqest_budget: unknown key\n  hint: did you mean request_budget?"
//! );
//! ```
//!
//! Reading goes one way: `reader` (typed values with lines) → `sections` (one file a section) →
//! `check` (what only shows across sections) → `model`. `convert` makes core's plans of it, `print`
//! makes the on-call's table of it.

mod check;
mod convert;
mod load;
mod located;
mod model;
mod print;
mod problem;
mod reader;
mod sections;
mod settings;
mod units;

pub use load::{load, load_one, parse};
pub use located::Located;
pub use model::{
    BreakerRule, BreakerSection, BulkheadSection, CallRef, DependencySection, Fallback,
    IdempotencyKey, JobSection, PolicyFile, QueueSection, RateLimitSection, RetrySection,
    RouteSection, SagaSection, ServiceSection, SlowRule, StateDeadline,
};
pub use print::dependency_table;
pub use problem::{Problem, Problems};
pub use sections::{check_broker, check_store};
pub use settings::{Setting, SettingValue, Settings, SettingsReader};
pub use units::{parse_duration, show_duration};
