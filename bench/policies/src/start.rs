//! The common start of two threads that are to run at the same time.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::clock;

/// Handshakes in a row that prove that both threads run.
const HANDSHAKES: u32 = 32;
/// For how long they may go on: on two processors they take a few microseconds, on one processor the
/// first one alone takes a turn of the scheduler.
const TOGETHER: Duration = Duration::from_micros(40);
/// How often the scheduler is asked to place the threads anew, before they start as they are.
const TRIES: u32 = 20;

/// Where two threads meet. Both spin, so both keep the worker of a runtime that they run on.
///
/// Having both arrived is not enough: the second may have taken the processor of the first, which
/// would then run its whole loop alone, and later. So they hand a number to and fro first.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// The leader is there.
    pub(crate) led: AtomicBool,
    /// Odd: it is the follower's turn.
    beat: AtomicU32,
    go: AtomicBool,
}

impl Start {
    /// The first thread: finds out whether the second one runs beside it, then says go.
    pub(crate) fn lead(&self) {
        self.led.store(true, Ordering::Release);
        for _ in 0..TRIES {
            if self.are_together() {
                break;
            }
            // Asleep for a moment, so that the scheduler puts this thread on a free processor.
            std::thread::park_timeout(Duration::from_millis(1));
        }
        self.go.store(true, Ordering::Release);
    }

    /// The second thread: answers until the first one says go.
    pub(crate) fn follow(&self) {
        while !self.go.load(Ordering::Acquire) {
            let beat = self.beat.load(Ordering::Acquire);
            if beat % 2 == 1 {
                self.beat.store(beat.wrapping_add(1), Ordering::Release);
            }
            std::hint::spin_loop();
        }
    }

    fn are_together(&self) -> bool {
        let start = clock::now();
        for _ in 0..HANDSHAKES {
            self.beat.fetch_or(1, Ordering::AcqRel);
            while self.beat.load(Ordering::Acquire) % 2 == 1 {
                if start.elapsed() > TOGETHER {
                    return false;
                }
            }
        }
        true
    }
}
