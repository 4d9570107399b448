//! Atomics and locks of the policies that calls share, under names that a model checker can take
//! over.
//!
//! In a normal build these are std's. Under `--cfg loom` they are loom's, and `cargo xtask model` runs
//! the policies through every interleaving that its bounds allow. Whoever takes an atomic or a lock
//! from elsewhere is not checked, so core has no other source of them.

#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard, atomic};

/// Always std's: a handle that is passed on decides nothing, so there is nothing to check.
pub use std::sync::Arc;

use std::sync::PoisonError;

/// Locks `mutex`, whether or not a thread panicked while it held it.
///
/// No code of a user runs under a lock of core, and core's own changes under one are whole at every
/// point where they could unwind: a poisoned lock guards nothing broken.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value on cache lines of its own, so that two threads that write to neighbours do not take the
/// line from each other. 128 bytes, because current processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Apart<T>(pub T);

/// A small number of the calling thread, the same for as long as it lives: threads that start one
/// after the other get different ones, for choosing a stripe of a counter.
///
/// Which number a thread has decides only where something is counted, never what is decided.
#[cfg(not(loom))]
#[must_use]
pub fn thread_number() -> usize {
    static NEXT: atomic::AtomicUsize = atomic::AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, atomic::Ordering::Relaxed);
    }
    // While a thread ends its number may be gone; any stripe will do then.
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

/// The number that loom gives the calling thread: every run of a model sees the same.
#[cfg(loom)]
#[must_use]
pub fn thread_number() -> usize {
    // Only the text of the identifier is the same in every run.
    let text = format!("{:?}", loom::thread::current().id());
    text.chars().filter_map(|c| c.to_digit(10)).fold(0, |sum, digit| sum * 10 + digit as usize)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_number_and_shares_it_with_no_other() {
        let own = thread_number();
        assert_eq!(own, thread_number());
        let others = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(thread_number)).collect();
            threads.into_iter().map(|thread| thread.join().expect("ends")).collect::<Vec<_>>()
        });
        let mut all = [vec![own], others].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 5);
    }

    #[test]
    fn policies_c20_a_lock_works_on_after_a_panic_under_it() {
        let mutex = Mutex::new(7);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock(&mutex);
            panic!("under the lock");
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock(&mutex), 7);
    }
}
