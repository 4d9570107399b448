//! Where a message comes from, in its headers: put back, edited, thrown away, brought back.

use super::headers::{self, Headers};
use crate::time::WallTime;

/// How often people have put the message back.
pub const REPLAYS: &str = "x-replays";
/// The `traceparent` that the message carried when it was put back, for a link from the new
/// handling's trace to the failed one's.
pub const REPLAY_OF: &str = "x-replay-of";
/// The id of the message that this one is an edited copy of.
pub const EDITED_FROM: &str = "x-edited-from";
/// The id of the edited copy that went its way instead of this one.
pub const EDITED_TO: &str = "x-edited-to";
/// When the message was taken out of the dead letters, RFC 3339.
pub const ARCHIVED: &str = "x-archived";
/// Who took it out.
pub const ARCHIVED_BY: &str = "x-archived-by";
/// Why it was taken out.
pub const ARCHIVE_REASON: &str = "x-archive-reason";

/// Between an id and the number of its edit.
const EDIT_MARK: &str = "~e";

/// Who does something to a message, why, and when.
#[derive(Debug, Clone, Copy)]
pub struct Signed<'a> {
    /// Who.
    pub actor: &'a str,
    /// Why; may be empty where the operation allows it.
    pub reason: &'a str,
    /// When.
    pub now: WallTime,
}

/// The headers of a message that is put back into `queue`: as [`headers::replayed`], and one replay
/// more.
#[must_use]
pub fn replayed(from: &Headers, queue: &str, signed: Signed<'_>) -> Headers {
    let Signed { actor, reason, now } = signed;
    let mut copy = headers::replayed(from, queue, actor, reason, now);
    headers::set(&mut copy, REPLAYS, replays(from).saturating_add(1).to_string());
    match headers::get(from, headers::TRACEPARENT) {
        Some(trace) => headers::set(&mut copy, REPLAY_OF, trace),
        None => headers::remove(&mut copy, REPLAY_OF),
    }
    copy
}

/// How often people have put the message back; 0 when the header is missing or unreadable.
#[must_use]
pub fn replays(headers: &Headers) -> u32 {
    headers::get(headers, REPLAYS).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The headers of the edited copy of message `id`, with `changes` on top; an empty value removes one.
/// What says how the copy came to be is ours to say, whatever the changes are.
#[must_use]
pub fn edited(
    from: &Headers,
    id: &str,
    queue: &str,
    changes: &[(String, String)],
    signed: Signed<'_>,
) -> Headers {
    let mut changed = from.clone();
    for (name, value) in changes {
        if value.is_empty() {
            headers::remove(&mut changed, name);
        } else {
            headers::set(&mut changed, name, value.as_str());
        }
    }
    let mut copy = replayed(&changed, queue, signed);
    headers::set(&mut copy, EDITED_FROM, id);
    copy
}

/// The id of the next edited copy of `id`: `m-1` becomes `m-1~e1`, and that `m-1~e2`.
///
/// It follows from the id alone: whoever edits again because nobody knows whether the first copy
/// left sends the same id, and the consumer's inbox lets one of them take effect.
#[must_use]
pub fn edited_id(id: &str) -> String {
    let numbered = id.rsplit_once(EDIT_MARK).and_then(|(base, number)| {
        let canonical = !number.starts_with('0') && number.bytes().all(|b| b.is_ascii_digit());
        let next = number.parse::<u32>().ok().filter(|_| canonical)?.checked_add(1)?;
        Some((base, next))
    });
    let (base, next) = numbered.unwrap_or((id, 1));
    format!("{base}{EDIT_MARK}{next}")
}

/// The headers under which a message is kept after it was thrown away, or an edited copy
/// (`edited_to`) went its way. Everything else stays, so that it can be brought back as it was.
#[must_use]
pub fn archived(from: &Headers, edited_to: Option<&str>, signed: Signed<'_>) -> Headers {
    let mut kept = headers::carried(from);
    headers::set(&mut kept, ARCHIVED, signed.now.to_string());
    headers::set(&mut kept, ARCHIVED_BY, headers::clean(signed.actor));
    headers::set(&mut kept, ARCHIVE_REASON, headers::clean(signed.reason));
    if let Some(to) = edited_to {
        headers::set(&mut kept, EDITED_TO, to);
    }
    kept
}

/// The headers of a message that comes back from the archive: as before it went there.
#[must_use]
pub fn restored(from: &Headers) -> Headers {
    let mut back = from.clone();
    for name in [ARCHIVED, ARCHIVED_BY, ARCHIVE_REASON, EDITED_TO] {
        headers::remove(&mut back, name);
    }
    back
}
