//! A user's code inside the map by key: it may panic anywhere, and what is forgotten may ask the map.

use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use mamparo_core::keyed::{Dispensable, Keep, Keyed};
use mamparo_core::time::Moment;

const NOW: Moment = Moment::from_millis(1_000);

/// Idle from a moment on, as a bucket is.
#[derive(Debug)]
struct Until(u64);

impl Until {
    fn new(nanos: u64) -> Arc<Self> {
        Arc::new(Self(nanos))
    }
}

impl Dispensable for Until {
    fn keep(&self, now: Moment) -> Keep {
        if self.0 <= now.nanos() { Keep::Idle } else { Keep::Nearest(self.0) }
    }
}

/// A key whose end asks the map that forgot it, whichever way it was forgotten.
#[test]
fn a_key_that_is_forgotten_may_ask_the_map_as_it_ends() {
    static NAMES: LazyLock<Keyed<Name, Arc<Until>>> =
        LazyLock::new(|| Keyed::new(4, 7, Until::new(0)));
    static ENDED: AtomicU64 = AtomicU64::new(0);

    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Name(u32);

    impl Drop for Name {
        fn drop(&mut self) {
            assert!(NAMES.keys() <= 4);
            ENDED.fetch_add(1, Ordering::Relaxed);
        }
    }

    // Those of the first round go as others come, idle or nearest; those of the second as 7 is asked.
    for (until, names) in [(0, 0..8), (2 * NOW.nanos(), 8..16), (0, 6..8)] {
        for name in names {
            NAMES.get_or_insert(NOW, &Name(name), || (Name(name), Until::new(until)));
        }
    }
    let later = Moment::from_millis(3_000);
    for _ in 0..100 {
        NAMES.get_or_insert(later, &Name(7), || (Name(7), Until::new(0)));
    }
    assert_eq!(NAMES.keys(), 1);
    // Each question makes a name too, and one that has to be kept makes two.
    assert_eq!(ENDED.load(Ordering::Relaxed), 8 + 8 + 2 + 100 + 17);
}

/// A panic in any code of a user's that the map runs: the map stays whole, and goes on.
#[test]
fn policies_c20_a_key_that_panics_leaves_the_map_usable() {
    static PANICS_IN: AtomicU64 = AtomicU64::new(0);
    const EQ: u64 = 1;
    const HASH: u64 = 2;
    const CLONE: u64 = 3;
    const MAKER: u64 = 4;
    const DROP: u64 = 5;

    fn panic_in(place: u64) {
        let due = PANICS_IN.compare_exchange(place, 0, Ordering::Relaxed, Ordering::Relaxed);
        assert!(due.is_err(), "in {place}");
    }

    #[derive(Eq)]
    struct Touchy(u32);

    impl PartialEq for Touchy {
        fn eq(&self, other: &Self) -> bool {
            panic_in(EQ);
            self.0 == other.0
        }
    }
    impl Hash for Touchy {
        fn hash<H: Hasher>(&self, state: &mut H) {
            panic_in(HASH);
            self.0.hash(state);
        }
    }
    impl Clone for Touchy {
        fn clone(&self) -> Self {
            panic_in(CLONE);
            Self(self.0)
        }
    }
    impl Drop for Touchy {
        fn drop(&mut self) {
            panic_in(DROP);
        }
    }

    let map: Keyed<Touchy, Arc<Until>> = Keyed::new(2, 7, Until::new(0));
    let (old, new) = (Touchy(1), Touchy(2));
    let ask = |key: &Touchy| {
        map.get_or_insert(NOW, key, || {
            panic_in(MAKER);
            (Touchy(key.0), Until::new(u64::MAX))
        })
    };
    for place in [EQ, HASH, CLONE, MAKER, DROP] {
        let (first, second) = (ask(&old), ask(&new));
        let third = Touchy(3);
        PANICS_IN.store(place, Ordering::Relaxed);
        let panicked = catch_unwind(AssertUnwindSafe(|| match place {
            EQ | HASH => drop(ask(&old)),
            CLONE => drop(map.entries()),
            _ => drop(ask(&third)),
        }));
        assert!(panicked.is_err(), "{place}");
        assert!(Arc::ptr_eq(&first, &ask(&old)) && Arc::ptr_eq(&second, &ask(&new)), "{place}");
        assert_eq!(map.keys(), 2);
    }
    // Nobody holds the two any more: one goes, its end panics, and the newcomer is there all the same.
    let third = Touchy(3);
    PANICS_IN.store(DROP, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(ask(&third)))).is_err());
    assert_eq!((map.keys(), map.peek(&third, |_| ())), (2, Some(())));
}
