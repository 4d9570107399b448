//! Where a message comes from, as its headers say.

use mamparo_core::message::headers::{self, Headers};
use mamparo_core::message::lineage::{
    self, ARCHIVE_REASON, ARCHIVED_BY, EDITED_FROM, EDITED_TO, REPLAY_OF, REPLAYS, Signed,
};
use mamparo_core::time::WallTime;
use proptest::prelude::*;

const SIGNED: Signed<'_> =
    Signed { actor: "ana", reason: "mended", now: WallTime::from_unix_millis(0) };

fn of(pairs: &[(&str, &str)]) -> Headers {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn lesson_s05_a_replay_starts_over_keeps_its_trace_and_is_counted() {
    let dead = of(&[
        ("traceparent", "00-a-b-01"),
        ("x-attempts", "5"),
        ("x-death", "[…]"),
        ("X-Replays", "2"),
        ("x-last-error", "503"),
    ]);
    let back = lineage::replayed(&dead, "q", SIGNED);
    let get = |name| headers::get(&back, name);
    assert_eq!(headers::attempts(&back, "q").made, 0);
    assert_eq!((get(REPLAYS), lineage::replays(&back)), (Some("3"), 3));
    assert_eq!((get("traceparent"), get(REPLAY_OF)), (Some("00-a-b-01"), Some("00-a-b-01")));
    assert_eq!((get("x-death"), get("x-last-error")), (None, Some("503")));
    assert_eq!(get(headers::REPLAYED), Some("1970-01-01T00:00:00.000Z"));
    let odd = of(&[(REPLAYS, "many"), (REPLAY_OF, "old")]);
    let back = lineage::replayed(&odd, "q", SIGNED);
    assert_eq!((lineage::replays(&back), headers::get(&back, REPLAY_OF)), (1, None));
}

#[test]
fn messages_c39_an_edited_copy_has_the_next_id_and_the_headers_that_were_asked_for() {
    for (id, next) in [
        ("m-1", "m-1~e1"),
        ("m-1~e1", "m-1~e2"),
        ("m-1~e9", "m-1~e10"),
        ("m~e", "m~e~e1"),
        ("m~e01", "m~e01~e1"),
        ("m~e4294967295", "m~e4294967295~e1"),
        ("", "~e1"),
    ] {
        assert_eq!(lineage::edited_id(id), next);
    }
    let dead =
        of(&[("Tenant", "a"), ("x-tag", "1"), ("x-dead-reason", "poison"), ("keep", "as is")]);
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let changes = [set("tenant", "b"), set("x-tag", ""), set(EDITED_FROM, "a lie")];
    let copy = lineage::edited(&dead, "m-1", "q", &changes, SIGNED);
    let get = |name| headers::get(&copy, name);
    assert_eq!((get("tenant"), get("x-tag"), get("keep")), (Some("b"), None, Some("as is")));
    assert_eq!((get(EDITED_FROM), get("x-dead-reason")), (Some("m-1"), None));
    let again = lineage::edited(&copy, "m-1~e1", "q", &[], SIGNED);
    assert_eq!(headers::get(&again, EDITED_FROM), Some("m-1~e1"), "an edit of an edit");
}

#[test]
fn lesson_s06_what_was_thrown_away_says_by_whom_and_comes_back_as_it_was() {
    let dead = of(&[("x-last-error", "503"), ("tenant", "a")]);
    let kept = lineage::archived(&dead, Some("m-1~e1"), SIGNED);
    let get = |name| headers::get(&kept, name);
    assert_eq!((get(ARCHIVED_BY), get(ARCHIVE_REASON)), (Some("ana"), Some("mended")));
    assert_eq!(get(EDITED_TO), Some("m-1~e1"));
    assert_eq!(lineage::restored(&kept), dead);
}

proptest! {
    #[test]
    fn each_edit_has_an_id_of_its_own(id in "[a-z~e0-9]{0,12}", edits in 1_usize..12) {
        let mut ids = vec![id];
        for _ in 0..edits {
            let next = lineage::edited_id(&ids[ids.len() - 1]);
            prop_assert!(!ids.contains(&next));
            ids.push(next);
        }
    }
}
