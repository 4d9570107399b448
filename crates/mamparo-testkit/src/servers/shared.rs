//! The servers that one run of `cargo xtask test` shares among all test programs.

/// Names the PostgreSQL server for tests; a superuser's address.
pub const POSTGRES_URL: &str = "MAMPARO_POSTGRES_URL";

/// Names the RabbitMQ broker for tests.
pub const AMQP_URL: &str = "MAMPARO_AMQP_URL";

/// The PostgreSQL server of this test run.
///
/// # Panics
/// When there is none, with how to get it: a test that needs a server fails without it.
#[must_use]
pub fn postgres_url() -> String {
    address(POSTGRES_URL)
}

/// The RabbitMQ broker of this test run.
///
/// # Panics
/// As [`postgres_url`].
#[must_use]
pub fn amqp_url() -> String {
    address(AMQP_URL)
}

#[expect(clippy::panic, reason = "a test that can't run must fail, and this is its message")]
#[expect(clippy::disallowed_methods, reason = "tests take their servers from the environment")]
fn address(variable: &str) -> String {
    match std::env::var(variable) {
        Ok(address) if !address.is_empty() => address,
        _ => panic!(
            "{variable} is not set: run the tests by `cargo xtask test` (`-p CRATE` for one crate), which \
             starts the servers, or set it to a server of your own"
        ),
    }
}
