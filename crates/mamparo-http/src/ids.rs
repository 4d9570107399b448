//! Making and checking ids that come in headers.

use http::{HeaderMap, HeaderName};
use mamparo_call::clock;
use mamparo_core::rng::Rng;

/// Most characters of an id that comes from outside; longer ones are replaced.
const ID_CHARS_MAX: usize = 128;

/// The header's value when it is a plausible id: 1 to 128 visible ASCII characters.
///
/// Anything else is treated as absent. Ids end up in logs, and a log line is no place for what a
/// stranger composed.
pub(crate) fn valid_id<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let text = headers.get(name)?.to_str().ok()?;
    let fits = (1..=ID_CHARS_MAX).contains(&text.len());
    (fits && text.bytes().all(|byte| byte.is_ascii_graphic())).then_some(text)
}

/// A new request id: a UUIDv7, so that ids sort by the time they were made.
pub(crate) fn new_request_id() -> String {
    let millis = u64::try_from(clock::wall().unix_millis()).unwrap_or_default();
    let mut rng = clock::entropy();
    let mut random = [0; 10];
    let (head, tail) = random.split_at_mut(8);
    head.copy_from_slice(&rng.next_u64().to_be_bytes());
    tail.copy_from_slice(&rng.next_u64().to_be_bytes()[..2]);
    uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::REQUEST_ID;
    use http::HeaderValue;

    #[test]
    fn ids_from_outside_are_visible_ascii_and_short() {
        for (value, accepted) in [
            (&b"abc-123"[..], true),
            (b"", false),
            (b"two words", false),
            (b"tab\there", false),
            (b"caf\xc3\xa9", false),
            (&[b'x'; 128], true),
            (&[b'x'; 129], false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(value).unwrap());
            assert_eq!(valid_id(&headers, &REQUEST_ID).is_some(), accepted, "{value:?}");
        }
        assert_eq!(valid_id(&HeaderMap::new(), &REQUEST_ID), None);
    }

    #[test]
    fn new_request_ids_are_version_7_and_differ() {
        let (one, other) = (new_request_id(), new_request_id());
        assert_ne!(one, other);
        assert_eq!(uuid::Uuid::parse_str(&one).unwrap().get_version_num(), 7);
    }
}
