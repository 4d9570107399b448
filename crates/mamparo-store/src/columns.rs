//! What stands in the columns of both databases: times in milliseconds, headers in JSON.

use std::collections::BTreeMap;

use mamparo_core::time::WallTime;
use serde_json::Value;
use sqlx::{ColumnIndex, Decode, Result, Row, Type};

/// Headers as a JSON object.
pub(crate) fn headers_to_json(headers: &BTreeMap<String, String>) -> Result<String> {
    serde_json::to_string(headers).map_err(|error| sqlx::Error::Encode(Box::new(error)))
}

/// Headers from the text of a JSON object in `column`.
pub(crate) fn headers_from_json(json: &str, column: &str) -> Result<BTreeMap<String, String>> {
    let read: Result<BTreeMap<String, Value>, _> = serde_json::from_str(json);
    let read = read.map_err(|source| column_error(column, source))?;
    // Whoever edits a header by hand writes 5 where we write "5". One such row must not keep all
    // others of its queue from being read.
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Ok(read.into_iter().map(|(name, value)| (name, text(value))).collect())
}

/// A point in time from a column with milliseconds.
pub(crate) fn time_of<'r, R: Row>(row: &'r R, column: &str) -> Result<WallTime>
where
    i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'c> &'c str: ColumnIndex<R>,
{
    row.try_get::<'r, i64, _>(column).map(WallTime::from_unix_millis)
}

/// A number from a column that is never negative.
pub(crate) fn count_of<'r, R: Row, T: TryFrom<i64>>(row: &'r R, column: &str) -> Result<T>
where
    i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'c> &'c str: ColumnIndex<R>,
    T::Error: std::error::Error + Send + Sync + 'static,
{
    T::try_from(row.try_get::<'r, i64, _>(column)?).map_err(|source| column_error(column, source))
}

pub(crate) fn column_error(
    column: &str,
    source: impl std::error::Error + Send + Sync + 'static,
) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.to_owned(), source: Box::new(source) }
}
