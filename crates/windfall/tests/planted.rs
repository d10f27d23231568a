//! What a sanitizer has to find: `make sanitize` runs these first, and goes on only if each is found. Nothing else runs
//! them, for they are wrong on purpose.

use std::{cell::UnsafeCell, hint::black_box, sync::Barrier, thread};

/// A number that threads change without asking each other.
struct Unguarded(UnsafeCell<u64>);

// SAFETY: there is none, and that is to be found.
unsafe impl Sync for Unguarded {}

#[test]
#[ignore = "a race: for the thread sanitizer"]
fn a_race() {
    let number = &Unguarded(UnsafeCell::new(0));
    // On a busy machine the one would be done before the other has begun.
    let both = &Barrier::new(2);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                both.wait();
                for _ in 0..1_000_000 {
                    let at = number.0.get();
                    // SAFETY: none: the other thread does the same.
                    unsafe { at.write_volatile(at.read_volatile() + 1) };
                }
            });
        }
    });
    black_box(number.0.get());
}

#[test]
#[ignore = "a use of freed memory: for the address sanitizer"]
fn a_use_of_freed_memory() {
    let freed = Box::into_raw(Box::new(7u64));
    // SAFETY: it came from a box, and nobody else has it.
    drop(unsafe { Box::from_raw(freed) });
    // SAFETY: none: it was freed.
    black_box(unsafe { freed.read_volatile() });
}
