use super::*;

fn headers(lines: &[&str]) -> HeaderMap {
    lines.iter().map(|line| (CACHE_STATUS, HeaderValue::from_str(line).unwrap())).collect()
}

fn read(text: &str) -> Vec<CacheStatus> {
    CacheStatus::read(&headers(&[text]))
}

#[test]
fn the_standards_own_examples_are_written_and_read() {
    let cache = "ExampleCache";
    for (status, text) in [
        (CacheStatus::hit(cache), "ExampleCache; hit"),
        (CacheStatus::hit(cache).ttl(376), "ExampleCache; hit; ttl=376"),
        (CacheStatus::hit(cache).ttl(-412), "ExampleCache; hit; ttl=-412"),
        (CacheStatus::forwarded(cache, Forward::UriMiss), "ExampleCache; fwd=uri-miss"),
        (
            CacheStatus::forwarded(cache, Forward::Stale).fwd_status(304),
            "ExampleCache; fwd=stale; fwd-status=304",
        ),
        (
            CacheStatus::forwarded(cache, Forward::UriMiss).collapsed(true),
            "ExampleCache; fwd=uri-miss; collapsed",
        ),
        (
            CacheStatus::forwarded(cache, Forward::UriMiss).collapsed(false),
            "ExampleCache; fwd=uri-miss; collapsed=?0",
        ),
    ] {
        assert_eq!(status.to_string(), text);
        assert_eq!(read(text), [status], "{text}");
    }
    let layers = read(r#"OriginCache; hit; ttl=1100, "CDN Company Here"; hit; ttl=545"#);
    let said: Vec<_> = layers.iter().map(|s| (s.cache(), s.is_hit(), s.ttl_seconds())).collect();
    assert_eq!(said, [("OriginCache", true, Some(1100)), ("CDN Company Here", true, Some(545))]);
    let layers = read(
        "ReverseProxyCache; hit, ForwardProxyCache; fwd=uri-miss; collapsed; stored, \
         BrowserCache; fwd=uri-miss",
    );
    let forward = CacheStatus::forwarded("ForwardProxyCache", Forward::UriMiss);
    assert_eq!(layers[1], forward.collapsed(true).stored());
    assert_eq!(layers[2].why_forwarded(), Some(Forward::UriMiss));
    assert_eq!(layers[0].why_forwarded(), None);
}

#[test]
fn each_reason_to_send_on_is_written_and_read() {
    for why in Forward::ALL {
        let status = CacheStatus::forwarded("c", why);
        assert_eq!(read(&status.to_string()), [status]);
    }
}

#[test]
fn names_keys_and_details_are_escaped_and_come_back() {
    for (name, written) in [
        ("bff", "bff"),
        ("*", "*"),
        ("a:b/c", "a:b/c"),
        ("", "\"\""),
        ("two words", "\"two words\""),
        ("7up", "\"7up\""),
        ("say \"no\"", r#""say \"no\"""#),
        ("back\\slash", r#""back\\slash""#),
        ("a,b;c=d", "\"a,b;c=d\""),
    ] {
        let status = CacheStatus::hit(name).key(name).detail(name);
        let key = if written.starts_with('"') { written.to_owned() } else { format!("\"{name}\"") };
        assert_eq!(status.to_string(), format!("{written}; hit; key={key}; detail={written}"));
        assert_eq!(read(&status.to_string()), [status]);
    }
    // What no structured field may hold: a line break in a name must not begin a header.
    let status = CacheStatus::hit("ñ\r\nset-cookie: x\0\x7f");
    assert_eq!(status.to_string(), "\"%C3%B1%0D%0Aset-cookie: x%00%7F\"; hit");
    let mut map = HeaderMap::new();
    status.append_to(&mut map);
    assert_eq!(map.len(), 1);
}

#[test]
fn a_hit_is_never_forwarded_and_numbers_stay_within_fifteen_digits() {
    let hit = CacheStatus::hit("c").fwd_status(200).stored().collapsed(true);
    assert_eq!(hit, CacheStatus::hit("c"));
    assert_eq!(CacheStatus::hit("c").ttl(i64::MIN).to_string(), "c; hit; ttl=-999999999999999");
    assert_eq!(CacheStatus::hit("c").ttl(i64::MAX).to_string(), "c; hit; ttl=999999999999999");
    let both = &read("c; hit; fwd=stale")[0];
    assert!(!both.is_hit() && both.why_forwarded() == Some(Forward::Stale));
}

#[test]
fn what_is_well_formed_and_unknown_is_passed_over() {
    let text = "c;x=1.5;y=:YQ==:;z=@1659578233;w=%\"f%c3%bc\";hit;Hit2";
    assert_eq!(read(text), [], "keys are lower-case");
    let text = "c;x=1.5;y=:YQ==:;z=@1659578233;w=%\"f%c3%bc\";hit;*a.b_c-1=tok;hit";
    assert_eq!(read(text), [CacheStatus::hit("c")]);
    let odd = &read("c; fwd=because; ttl=\"5\"; hit=yes; key=7, d")[..];
    assert_eq!(odd.iter().map(ToString::to_string).collect::<Vec<_>>(), ["c", "d"]);
    assert_eq!(read("c; hit=?0; ttl=1; ttl=2")[0].ttl_seconds(), Some(2), "the last one counts");
}

#[test]
fn a_list_that_breaks_the_syntax_is_void_and_replaced() {
    for broken in [
        "c; hit,",
        ",",
        "c; hit d",
        "c; hit; ",
        "c;;hit",
        "(a b); hit",
        "5; hit",
        "?1",
        "\"open",
        "\"bad\\escape\"",
        "\"tab\there\"",
        "c; ttl=",
        "c; ttl=1234567890123456",
        "c; ttl=1.2345",
        "c; ttl=-",
        "c; ttl=5.",
        "c; ok=?2",
        "c; b=:open",
        "c; d=@1.5",
        "é; hit",
    ] {
        assert_eq!(read(broken), [], "{broken:?}");
        let mut map = headers(&["fine; hit", broken]);
        CacheStatus::hit("ours").append_to(&mut map);
        let lines: Vec<_> = map.get_all(CACHE_STATUS).iter().collect();
        assert_eq!(lines, ["ours; hit"], "{broken:?}");
    }
}

#[test]
fn lines_are_one_list_and_ours_is_the_last() {
    let mut map = headers(&["a; hit", "b; fwd=miss,\tc"]);
    CacheStatus::hit("ours").ttl(3).append_to(&mut map);
    let names: Vec<_> = CacheStatus::read(&map).iter().map(|s| s.cache().to_owned()).collect();
    assert_eq!(names, ["a", "b", "c", "ours"]);
    assert_eq!(CacheStatus::read(&HeaderMap::new()), []);
}

#[test]
fn no_text_makes_the_reader_panic_and_what_it_reads_it_writes() {
    use mamparo_core::rng::{Rng, SeededRng};
    let letters: Vec<char> = "ac*;,= \t\"\\?01-.:@%(é".chars().collect();
    let mut rng = SeededRng::new(1);
    for _ in 0..50_000 {
        let length = rng.up_to(12);
        let text: String =
            (0..length).map(|_| letters[rng.up_to(letters.len() as u64 - 1) as usize]).collect();
        for member in &structured::list(&text).unwrap_or_default() {
            let status = CacheStatus::from_member(member);
            assert_eq!(read(&status.to_string()), [status], "{text:?}");
        }
    }
}
