//! A global allocator that counts what the benchmarks allocate.
//!
//! This is the one crate of the repository with `unsafe` in it, because the trait `GlobalAlloc` is
//! unsafe by its signature. It hands every request to the system's allocator unchanged; nothing that
//! ships links it.
#![expect(unsafe_code, reason = "GlobalAlloc can't be implemented without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counted. Install it with `#[global_allocator]`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counting;

/// What was allocated since the program started, on all threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Requests for memory; one that grows in place counts too.
    pub allocations: u64,
    /// Bytes that they asked for.
    pub bytes: u64,
}

impl Count {
    /// The count so far.
    #[must_use]
    pub fn now() -> Self {
        Self { allocations: ALLOCATIONS.load(Relaxed), bytes: BYTES.load(Relaxed) }
    }

    /// What came after `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            allocations: self.allocations.saturating_sub(earlier.allocations),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }
}

fn count(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Relaxed);
    BYTES.fetch_add(bytes as u64, Relaxed);
}

// SAFETY: every method passes its arguments on to `System` as they came, and returns what it
// returned; counting touches two atomics and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise is the one that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}
