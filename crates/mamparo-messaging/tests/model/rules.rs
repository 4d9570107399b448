//! What differs from one RabbitMQ release to another, as far as it matters to whoever consumes.

use mamparo_core::message::capabilities::Version;

/// The releases that the suites run on: one of each set of rules.
pub const RELEASES: [Version; 7] = [
    Version::new(3, 10, 8),
    Version::new(3, 13, 0),
    Version::new(3, 13, 7),
    Version::new(4, 0, 0),
    Version::new(4, 0, 5),
    Version::new(4, 1, 4),
    Version::new(4, 3, 0),
];

#[derive(Debug, Clone, Copy)]
pub struct Rules(pub Version);

impl Rules {
    fn from(self, major: u32, minor: u32, patch: u32) -> bool {
        self.0 >= Version::new(major, minor, patch)
    }

    /// An `x-death` that a client sends is taken for the message's own. 3.13.0 to .2 forgot it
    /// (rabbitmq-server 10709), 4.0 ignores it for good (11331).
    pub fn takes_deaths_of_clients(self) -> bool {
        !self.from(3, 13, 0) || (self.from(3, 13, 3) && !self.from(4, 0, 0))
    }

    /// It counts when the broker looks for cycles: in 4.0.0 also where it is ignored otherwise
    /// (celery PR 10095).
    pub fn looks_for_cycles_in_them(self) -> bool {
        self.takes_deaths_of_clients() || (self.from(4, 0, 0) && !self.from(4, 0, 1))
    }

    /// The limit of a quorum queue that names none.
    pub fn delivery_limit(self) -> Option<u32> {
        self.from(4, 0, 0).then_some(20)
    }

    /// Returns of every kind raise the delivery count; from 4.3 only `basic.reject` does
    /// (rabbitmq-server 15387), the others raise the acquired count.
    pub fn counts_every_return(self) -> bool {
        !self.from(4, 3, 0)
    }

    /// The queue waits before it hands a returned message out again, if its arguments say so.
    pub fn delays_retries(self) -> bool {
        self.from(4, 3, 0)
    }

    /// A consumer that keeps a message for too long is cancelled; before 4.3 its channel is closed.
    pub fn cancels_the_slow(self) -> bool {
        self.from(4, 3, 0)
    }
}
