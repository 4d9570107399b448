//! The rows, by what they are compared with.

mod claims;
mod consume;
mod idle;
mod inbox;
mod memory;
mod ours;
mod publish;
mod relay;
mod relaying;
mod replay;
mod retry;
mod wakeup;
mod writers;

use crate::case::Group;

/// All groups, in the order in which they are measured.
pub(crate) fn all() -> Vec<Group> {
    vec![
        consume::group(),
        retry::group(),
        inbox::group(),
        publish::group(),
        relay::group(),
        wakeup::group(),
        writers::group(),
        claims::group(),
        replay::group(),
        idle::group(),
        memory::group(),
    ]
}
