//! Bugs that a sanitizer must find: `make sanitize` runs these first, and continues only if each is found. Nothing else
//! runs them, because they are wrong on purpose.

use std::{cell::UnsafeCell, hint::black_box, sync::Barrier, thread};

/// A number that threads change without synchronisation.
struct Unguarded(UnsafeCell<u64>);

// SAFETY: none, and the sanitizer must find that.
unsafe impl Sync for Unguarded {}

#[test]
#[ignore = "a race: for the thread sanitizer"]
fn a_race() {
    let number = &Unguarded(UnsafeCell::new(0));
    // On a busy machine one thread would otherwise end before the other begins.
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
    // SAFETY: the pointer came from a box, and there is no other owner.
    drop(unsafe { Box::from_raw(freed) });
    // SAFETY: none: it was freed.
    black_box(unsafe { freed.read_volatile() });
}
