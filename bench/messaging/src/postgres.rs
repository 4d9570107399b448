//! PostgreSQL as a loop written by hand uses it.

use std::ops::Deref;

use tokio_postgres::{Client, NoTls};

use crate::Result;
use crate::tasks::{self, Task};

/// A connection and the task that moves its bytes.
#[derive(Debug)]
pub(crate) struct Connected {
    client: Client,
    _io: Task<std::result::Result<(), tokio_postgres::Error>>,
}

impl Deref for Connected {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Connects to `address`.
pub(crate) async fn connect(address: &str) -> Result<Connected> {
    let (client, connection) = tokio_postgres::connect(address, NoTls).await?;
    Ok(Connected { client, _io: tasks::begin(connection) })
}
