//! The name of a lock's holder.
//!
//! **Purpose.** Lets a waiter name the holder that it waits for.
//!
//! **Invariants.** A name is written after the lock is acquired and cleared before it is released: a name that is read
//! and not cleared is that of a current holder. Writing the name costs a hold next to nothing. An exclusive holder
//! writes without an atomic read-modify-write instruction. A brief shared holder only stores its name as the last one,
//! which is mostly there already.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use super::record::LockOwner;

/// One holder that has written its name and not cleared it: the count in the word is above the 8 bits of the name.
const ONE: u32 = 1 << 8;

/// The names.
#[derive(Debug, Default)]
pub(super) struct HolderName {
    /// The last name that was written, and above it the number of names that are not cleared.
    signed: AtomicU32,
    /// The last holder of the lock.
    last: AtomicU8,
}

impl HolderName {
    /// Writes the name of an exclusive holder.
    #[inline]
    pub(super) fn enter_alone(&self, who: LockOwner) {
        self.signed.store(ONE | u32::from(who.0), Relaxed);
        self.last.store(who.0, Relaxed);
    }

    /// Clears the name of an exclusive holder.
    #[inline]
    pub(super) fn leave_alone(&self) {
        self.signed.store(self.signed.load(Relaxed) & (ONE - 1), Relaxed);
    }

    /// Writes the name of a shared holder.
    pub(super) fn enter(&self, who: LockOwner) {
        let with = |word| ((word & !(ONE - 1)) + ONE) | u32::from(who.0);
        let mut word = self.signed.load(Relaxed);
        while let Err(other) = self.signed.compare_exchange_weak(word, with(word), Relaxed, Relaxed) {
            word = other;
        }
        self.pass(who);
    }

    /// Clears the name of a shared holder.
    pub(super) fn leave(&self) {
        self.signed.fetch_sub(ONE, Relaxed);
    }

    /// Stores the name of a brief shared holder, which is not counted. Shared holders must not invalidate each other's
    /// cache line.
    #[inline]
    pub(super) fn pass(&self, who: LockOwner) {
        if self.last.load(Relaxed) != who.0 {
            self.last.store(who.0, Relaxed);
        }
    }

    /// Returns the holder of the lock; of several shared ones the last to write its name. `None` if there is no name.
    pub(super) fn holder(&self) -> Option<LockOwner> {
        let word = self.signed.load(Relaxed);
        (word >= ONE).then_some(LockOwner(word as u8))
    }

    /// Returns the last holder of the lock.
    pub(super) fn last(&self) -> LockOwner {
        LockOwner(self.last.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_there_until_it_is_crossed_out() {
        let sign = HolderName::default();
        assert_eq!(sign.holder(), None);
        sign.enter_alone(LockOwner(3));
        assert_eq!((sign.holder(), sign.last()), (Some(LockOwner(3)), LockOwner(3)));
        sign.leave_alone();
        assert_eq!((sign.holder(), sign.last()), (None, LockOwner(3)));
        sign.enter(LockOwner(4));
        sign.enter(LockOwner(5));
        sign.pass(LockOwner(6));
        assert_eq!((sign.holder(), sign.last()), (Some(LockOwner(5)), LockOwner(6)));
        sign.leave();
        assert!(sign.holder().is_some(), "one of two is left");
        sign.leave();
        assert_eq!((sign.holder(), sign.last()), (None, LockOwner(6)));
    }
}
