//! Calls that have one room each, and words that no file may keep.
//!
//! A text scan: it finds what is written, `use … as` hides from it. Clippy's `disallowed-methods`
//! (clippy.toml) sees through that; this scan sees what clippy does not, code that is compiled out
//! on this machine.

use super::source::Source;
use super::{Finding, line_of};

/// Where a banned call may stand besides its rooms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tests {
    /// Tests may use it.
    Free,
    /// Tests may not use it either.
    Bound,
}

/// One banned call.
struct Ban {
    calls: &'static [&'static str],
    /// Beginnings of paths where it may stand; without `.rs`, so that a file may become a folder.
    rooms: &'static [&'static str],
    tests: Tests,
    why: &'static str,
    way_out: &'static str,
}

/// Command lines talk to the terminal.
const TERMINALS: &[&str] = &["apps/", "bench/", "crates/mamparo-cli/", "xtask/"];

const BANS: &[Ban] = &[
    Ban {
        calls: &["Instant::now"],
        rooms: &[
            "bench/messaging/src/clock",
            "bench/policies/src/clock",
            "crates/mamparo-call/src/clock",
            "xtask/src/steps",
        ],
        tests: Tests::Free,
        why: "time is an argument, so that simulation and tests move it",
        way_out: "take `now: Moment`; drivers ask mamparo_call::clock::now()",
    },
    Ban {
        calls: &["SystemTime::now", "Utc::now", "OffsetDateTime::now_utc"],
        rooms: &["crates/mamparo-call/src/clock"],
        tests: Tests::Free,
        why: "calendar time is an argument, so that simulation and tests move it",
        way_out: "take `now: WallTime`; drivers ask mamparo_call::clock::wall()",
    },
    Ban {
        calls: &["thread_rng", "rand::rng", "rand::random", "OsRng", "getrandom::fill"],
        rooms: &["crates/mamparo-call/src/clock"],
        tests: Tests::Bound,
        why: "randomness is an argument, so that a seed replays a failure",
        way_out: "take `rng: &mut impl Rng`; drivers ask mamparo_call::clock::entropy()",
    },
    Ban {
        calls: &["tokio::spawn", "task::spawn", "spawn_blocking", "spawn_local", "thread::spawn"],
        // A measurement awaits the tasks that it spawns.
        rooms: &[
            "bench/messaging/src/tasks",
            "bench/policies/src/time",
            "crates/mamparo-service/src/tasks",
        ],
        tests: Tests::Free,
        why: "a task that nobody owns dies silently and outlives the shutdown",
        way_out: "use mamparo_service::tasks, or a FuturesUnordered inside the running future",
    },
    Ban {
        calls: &["env::var", "env::var_os", "env::vars", "env::vars_os", "env::set_var"],
        // Whoever discards a message signs with the user's name.
        rooms: &[
            "crates/mamparo-service/src/env",
            "crates/mamparo-cli/src/actor",
            "crates/mamparo-testkit/src/servers",
            "xtask/",
        ],
        tests: Tests::Free,
        why: "configuration is read once and all its mistakes are reported together",
        way_out: "read it in mamparo_service::env and pass the value",
    },
    Ban {
        calls: &["thread::sleep"],
        rooms: &["crates/mamparo-testkit/src/servers"],
        tests: Tests::Bound,
        why: "it blocks a runtime's thread, and a test that sleeps is slow and still races",
        way_out: "await mamparo_call::clock::sleep_until(), or wait for the condition itself",
    },
    Ban {
        calls: &["println!", "print!", "eprintln!", "eprint!"],
        rooms: TERMINALS,
        tests: Tests::Free,
        why: "a library does not own the terminal",
        way_out: "return the text, or log with tracing",
    },
    Ban {
        calls: &["process::exit", "process::abort"],
        // Whoever sends a second signal has waited enough.
        rooms: &["crates/mamparo-service/src/signal"],
        tests: Tests::Free,
        why: "it skips destructors and the ordered shutdown",
        way_out: "return an ExitCode from main",
    },
    Ban {
        calls: &["todo!", "unimplemented!", "dbg!"],
        rooms: &[],
        tests: Tests::Bound,
        why: "unfinished code panics on somebody",
        way_out: "finish it, or leave the function out until it has a user",
    },
    Ban {
        calls: &["#[ignore"],
        rooms: &[],
        tests: Tests::Bound,
        why: "a test that does not run proves nothing",
        way_out: "bring up what it needs (xtask/src/servers.rs), or assert today's result and say so",
    },
];

/// Words that no comment keeps, with the way out.
const LEFTOVERS: &[(&str, &str)] = &[
    ("TODO", "do it, or open an issue and say in a sentence what is missing"),
    ("FIXME", "mend it, or open an issue and say in a sentence what is wrong"),
    ("XXX", "say in a sentence what a reader should know"),
    ("```ignore", "let the example compile; `no_run` is for what must not be executed"),
];

/// What `source` calls outside of the call's room, and what it left behind.
pub(super) fn check(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for ban in BANS {
        if ban.rooms.iter().any(|room| source.path.starts_with(room)) {
            continue;
        }
        for call in ban.calls {
            let lines = Source::lines_with(&source.code, call);
            let counts = |line: &usize| ban.tests == Tests::Bound || !source.is_test(*line);
            found.extend(lines.into_iter().filter(counts).map(|line| Finding {
                file: source.path.clone(),
                line,
                what: format!("`{call}` {}", misplaced(ban.rooms)),
                why: ban.why.to_owned(),
                way_out: ban.way_out.to_owned(),
            }));
        }
    }
    for (word, way_out) in LEFTOVERS {
        found.extend(source.comments.match_indices(word).map(|(at, _)| Finding {
            file: source.path.clone(),
            line: line_of(&source.comments, at),
            what: format!("`{word}` in a comment"),
            why: "a promise in a comment is kept by nobody".to_owned(),
            way_out: (*way_out).to_owned(),
        }));
    }
    found
}

/// Rooms that no file has any more.
pub(super) fn check_rooms(sources: &[Source]) -> Vec<Finding> {
    let rooms = BANS.iter().flat_map(|ban| ban.rooms);
    let gone = rooms.filter(|room| !sources.iter().any(|source| source.path.starts_with(**room)));
    gone.map(|room| Finding {
        file: "xtask/src/tidy/calls.rs".to_owned(),
        line: 1,
        what: format!("no file lives in the room {room}"),
        why: "an exception that nobody needs is a hole".to_owned(),
        way_out: "say where the room is now, or remove it".to_owned(),
    })
    .collect()
}

fn misplaced(rooms: &[&str]) -> String {
    if rooms.is_empty() {
        "is allowed nowhere".to_owned()
    } else {
        format!("outside of its room ({})", rooms.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Source::new(path, text)).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn every_ban_can_fail_and_is_free_in_its_rooms() {
        for ban in BANS {
            for call in ban.calls {
                let text = format!("fn f() {{\n    {call}(1);\n}}\n");
                assert_eq!(lines("crates/some/src/f.rs", &text), [2], "{call}");
                for room in ban.rooms {
                    assert_eq!(lines(&format!("{room}/f.rs"), &text), [0; 0], "{call} in {room}");
                }
            }
        }
    }

    #[test]
    fn strings_comments_and_longer_names_are_no_calls() {
        let text = "// Instant::now\n/* tokio::spawn /* env::var */ */\n\
            const A: &str = \"thread::sleep \\\" println!\";\n\
            const B: &str = r#\"dbg!(\"x\")\"#;\nfn my_spawn_blocking_count() {}\n";
        assert_eq!(lines("crates/some/src/f.rs", text), [0; 0]);
    }

    #[test]
    fn tests_may_spawn_but_never_sleep_or_be_ignored() {
        let text = "#[cfg(test)]\nmod tests {\n    #[ignore]\n    fn f() {\n        tokio::spawn(x);\n        \
            std::thread::sleep(y);\n    }\n}\nfn g() { tokio::spawn(x); }\n";
        let mut found = lines("crates/some/src/f.rs", text);
        found.sort_unstable();
        assert_eq!(found, [3, 6, 9]);
    }

    #[test]
    fn a_room_without_a_file_is_found() {
        let rooms = BANS.iter().flat_map(|ban| ban.rooms);
        let mut sources: Vec<_> =
            rooms.map(|room| Source::new(&format!("{room}/a.rs"), "")).collect();
        assert_eq!(check_rooms(&sources), []);
        sources.retain(|source| !source.path.contains("/env/"));
        let gone = check_rooms(&sources);
        assert_eq!(gone.len(), 1);
        assert!(gone[0].what.contains("mamparo-service/src/env"), "{gone:?}");
    }

    #[test]
    fn leftovers_in_comments_are_found() {
        let text = format!("//! {}: later\nfn f() {{}} // {}\n", LEFTOVERS[0].0, LEFTOVERS[1].0);
        assert_eq!(lines("crates/some/src/f.rs", &text), [1, 2]);
    }
}
