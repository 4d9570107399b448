//! Every end of a connection, a channel or a consumer has a meaning and an advice.

use mamparo_core::message::closure::{Closure, Culprit, Kind};

#[test]
fn each_reply_code_has_its_meaning() {
    let rows = [
        (200, "Goodbye", Kind::Closed, true),
        (311, "CONTENT_TOO_LARGE", Kind::Exhausted, true),
        (320, "CONNECTION_FORCED - broker forced connection closure", Kind::Forced, true),
        (402, "INVALID_PATH", Kind::NotAllowed, false),
        (403, "ACCESS_REFUSED - Login was refused", Kind::Refused, false),
        (404, "NOT_FOUND - no queue 'orders' in vhost '/'", Kind::NotFound, false),
        (405, "RESOURCE_LOCKED - cannot obtain exclusive access", Kind::Locked, true),
        (
            406,
            "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 60000 ms",
            Kind::AckTimeout,
            true,
        ),
        (406, "PRECONDITION_FAILED - unknown delivery tag 7", Kind::UnknownTag, true),
        (
            406,
            "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'orders.retry' in vhost '/'",
            Kind::Mismatch,
            false,
        ),
        (
            406,
            "PRECONDITION_FAILED - message size 134217729 is larger than configured max size 134217728",
            Kind::TooLarge,
            false,
        ),
        (406, "PRECONDITION_FAILED - fast reply consumer already set", Kind::Precondition, false),
        (501, "FRAME_ERROR", Kind::Protocol, false),
        (505, "UNEXPECTED_FRAME", Kind::Protocol, false),
        (506, "RESOURCE_ERROR", Kind::Exhausted, true),
        (530, "NOT_ALLOWED - vhost shop not found", Kind::NotAllowed, false),
        (540, "NOT_IMPLEMENTED", Kind::Protocol, false),
        (541, "INTERNAL_ERROR", Kind::Internal, true),
        (999, "something new", Kind::Other, true),
    ];
    for (code, text, kind, passes) in rows {
        let closure = Closure::of_reply(code, text);
        assert_eq!((closure.kind, closure.kind.passes()), (kind, passes), "{code} {text}");
        let words = closure.to_string();
        assert!(words.contains(text) && words.contains(&format!("({code})")), "{words}");
        assert!(words.ends_with(kind.advice()), "{words}");
    }
}

#[test]
fn an_end_without_words_says_so() {
    let words = Closure::new(Kind::Disconnected, "").to_string();
    assert!(words.starts_with("no reason given: "), "{words}");
}

#[test]
fn the_publish_that_closed_a_channel_is_told_from_its_neighbours() {
    let of = |code, text: &str| Closure::of_reply(code, text).culprit();
    let large = "PRECONDITION_FAILED - message size 1025 is larger than configured max size 1024";
    assert_eq!(of(406, large), Some(Culprit::LongerThan(1_024)));
    let large = Culprit::LongerThan(1_024);
    assert!(large.is("events", 1_025) && !large.is("events", 1_024));
    let refused =
        "ACCESS_REFUSED - access to exchange 'events' in vhost '/' refused for user 'shop'";
    assert_eq!(of(403, refused), Some(Culprit::To("events".into())));
    let refused =
        "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'shop'";
    let default = of(403, refused).unwrap();
    assert!(default.is("", 1) && !default.is("events", 1));
    for (code, text) in [
        (406, "PRECONDITION_FAILED - message size is larger than anything"),
        (403, "ACCESS_REFUSED - Login was refused"),
        (403, "ACCESS_REFUSED - access to exchange 'torn"),
        (404, "NOT_FOUND - no exchange 'events' in vhost '/'"),
    ] {
        assert_eq!(of(code, text), None, "{text}");
    }
}
