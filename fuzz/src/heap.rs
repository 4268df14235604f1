//! The bytes of the heap that this thread has, counted independently of what the product counts.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

struct Counting;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: usize, sign: i64) {
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    // A thread that ends no longer has a counter.
    let _ = LIVE.try_with(|live| live.set(live.get().wrapping_add(sign * bytes)));
}

// SAFETY: every call is passed on to the system's allocator with the arguments it came with; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: as promised by our caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: as promised by our caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes allocated by this thread and not freed; may be negative if others allocated what this thread freed.
#[must_use]
pub fn live_bytes() -> i64 {
    LIVE.with(Cell::get)
}
