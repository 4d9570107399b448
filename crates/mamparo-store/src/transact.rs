//! A transaction as a closure: run again where the database says so, never after an unknown commit.

use std::error::Error;
use std::time::Duration;

use mamparo_core::message::idempotency::Phase;
use mamparo_core::message::transaction::{Class, Decision, Repeats};
use mamparo_core::rng::SeededRng;
use mamparo_core::time::WallTime;

use crate::class::class_within;
use crate::idempotency::ClaimToken;
use crate::{Backend, Store, StoreError, Transaction};

/// How long a rollback may take before its connection is given up.
const ROLLBACK_LIMIT: Duration = Duration::from_secs(5);

/// A row that a transaction writes, and that is there if and only if it has committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Witness<'a> {
    /// The inbox row that it inserted first.
    Inbox {
        /// Whose inbox.
        consumer: &'a str,
        /// The message.
        message_id: &'a str,
    },
    /// The idempotency key that it completed.
    Key(&'a ClaimToken),
}

/// The attempts at one transaction, for work that borrows: a loop where [`Store::transact`] is a
/// closure.
///
/// ```
/// # use mamparo_store::{Backend, Store, StoreError, Transaction};
/// # async fn place<DB: Backend>(_: &mut Transaction<'_, DB>, _: &str) -> Result<u64, StoreError> { Ok(7) }
/// async fn order<DB: Backend>(store: &Store<DB>, product: &str) -> Result<u64, StoreError> {
///     let mut attempts = store.attempts();
///     loop {
///         let mut tx = attempts.begin().await?;
///         let placed = place(&mut tx, product).await;
///         if let Some(id) = attempts.end(tx, placed).await? {
///             return Ok(id);
///         }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Attempts<'s, DB: Backend> {
    store: &'s Store<DB>,
    repeats: Repeats,
    attempt: u32,
    rng: Option<SeededRng>,
}

impl<DB: Backend> Attempts<'_, DB> {
    /// Begins the next attempt, as [`Store::begin`] does.
    ///
    /// # Errors
    /// What the database said.
    pub async fn begin(&mut self) -> Result<Transaction<'static, DB>, StoreError> {
        self.attempt = self.attempt.saturating_add(1);
        self.store.begin().await
    }

    /// Ends an attempt: commits, or rolls back if `outcome` is an error. `None` after the wait when
    /// the whole of it is to run again.
    ///
    /// # Errors
    /// `outcome`'s own, or the commit's, when it does not run again.
    pub async fn end<T, E>(
        &mut self,
        tx: Transaction<'_, DB>,
        outcome: Result<T, E>,
    ) -> Result<Option<T>, E>
    where
        E: Error + From<StoreError> + 'static,
    {
        let error = match outcome {
            Ok(value) => match self.store.commit(tx).await {
                Ok(()) => return Ok(Some(value)),
                Err(error) => E::from(error),
            },
            Err(error) => {
                // The first error counts. A connection that can't roll back is closed by its pool,
                // which asks each one that comes back whether it still answers.
                tokio::time::timeout(ROLLBACK_LIMIT, tx.rollback()).await.ok();
                error
            }
        };
        let class = class_within(&error).unwrap_or(Class::Permanent);
        self.store.doubt(class);
        match self.repeats.ask(self.attempt, class, self.rng.get_or_insert_with(entropy)) {
            Decision::Again { after } => {
                tokio::time::sleep(after).await;
                Ok(None)
            }
            Decision::AgainOnFresh => Ok(None),
            Decision::GiveUp => Err(error),
        }
    }
}

impl<DB: Backend> Store<DB> {
    /// Runs `work` in a transaction and commits it; rolls back when it fails.
    ///
    /// A deadlock or a serialization failure, in `work` or at the commit, runs the whole of `work`
    /// again: 3 attempts, waits of at most 50 ms and 100 ms with full jitter ([`Repeats::default`]). So
    /// `work` must have no effect but in the transaction. A statement that must be prepared anew
    /// does so once. All other errors are the caller's, and above all
    /// [`StoreError::CommitUnknown`]: ask [`Store::has_committed`] before running it again.
    ///
    /// For SERIALIZABLE, make `SET TRANSACTION ISOLATION LEVEL SERIALIZABLE` its first statement.
    ///
    /// The future is `Send` when `work` is `async move` and owns what it uses; the compiler can't see
    /// that much for borrowed things. [`Store::attempts`] takes those.
    ///
    /// # Errors
    /// What `work` returned, or the last attempt's [`StoreError`].
    pub async fn transact<T, E, F>(&self, mut work: F) -> Result<T, E>
    where
        F: AsyncFnMut(&mut Transaction<'_, DB>) -> Result<T, E>,
        E: Error + From<StoreError> + 'static,
    {
        let mut attempts = self.attempts();
        loop {
            let mut tx = attempts.begin().await?;
            let outcome = work(&mut tx).await;
            if let Some(value) = attempts.end(tx, outcome).await? {
                return Ok(value);
            }
        }
    }

    /// Attempts at one transaction, by the rules of [`Store::transact`].
    #[must_use]
    pub fn attempts(&self) -> Attempts<'_, DB> {
        self.attempts_with(Repeats::default())
    }

    /// As [`Store::attempts`], with a number and waits of one's own.
    #[must_use]
    pub fn attempts_with(&self, repeats: Repeats) -> Attempts<'_, DB> {
        Attempts { store: self, repeats, attempt: 0, rng: None }
    }

    /// Has the transaction that wrote `witness` committed? For after [`StoreError::CommitUnknown`].
    ///
    /// Waits for the transaction where the server still works on it, so that a no is final: what has
    /// not committed then never will.
    ///
    /// # Errors
    /// What the database said; the question is open then, so ask again.
    pub async fn has_committed(&self, witness: Witness<'_>) -> Result<bool, StoreError> {
        let operation = "look for the row of an unknown commit";
        let failed = || StoreError::during(operation);
        let mut tx = self.begin().await?;
        let found = match witness {
            // Inserting waits for whoever has inserted it and not ended yet, where looking would
            // just not see it.
            Witness::Inbox { consumer, message_id } => {
                let now = WallTime::default();
                let seen = DB::insert_inbox(&mut tx, consumer, message_id, "", now).await;
                seen.map_err(failed())? > 0
            }
            Witness::Key(ClaimToken { caller, key, epoch }) => {
                let record = DB::lock_key(&mut tx, caller, key).await.map_err(failed())?;
                record.is_some_and(|record| {
                    record.epoch == *epoch && record.phase == Phase::Completed
                })
            }
        };
        tx.rollback().await.map_err(failed())?;
        Ok(found)
    }
}

/// Seeded by the operating system, for jitter.
fn entropy() -> SeededRng {
    SeededRng::new(uuid::Uuid::new_v4().as_u64_pair().1)
}
