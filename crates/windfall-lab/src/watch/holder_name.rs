//! The name of a lock's holder.
//!
//! **Purpose.** Lets a waiter name the holder that it waits for.
//!
//! **Invariants.** A name is written after the lock is acquired and cleared before it is released: a name that is read
//! and not cleared is that of a current holder (test: `a_wait_names_no_previous_holder`).
//!
//! **Cost.** Writing the name costs a hold next to nothing. An exclusive holder writes without an atomic
//! read-modify-write instruction. A brief shared holder only stores its name as the last one, which is mostly there
//! already.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use super::record::RoleAndPurpose;

/// One holder that has written its name and not cleared it: the count in the word is above the 8 bits of the name.
const ONE: u32 = 1 << 8;

/// The names.
#[derive(Debug, Default)]
pub(super) struct HolderName {
    /// The last name that was written, and above it the number of names that are not cleared.
    written: AtomicU32,
    /// The last holder of the lock.
    last: AtomicU8,
}

impl HolderName {
    /// Writes the name of an exclusive holder.
    #[inline]
    pub(super) fn enter_alone(&self, holder: RoleAndPurpose) {
        self.written.store(ONE | u32::from(holder.0), Relaxed);
        self.last.store(holder.0, Relaxed);
    }

    /// Clears the name of an exclusive holder.
    #[inline]
    pub(super) fn leave_alone(&self) {
        self.written.store(self.written.load(Relaxed) & (ONE - 1), Relaxed);
    }

    /// Writes the name of a shared holder.
    pub(super) fn enter(&self, holder: RoleAndPurpose) {
        let with = |word| ((word & !(ONE - 1)) + ONE) | u32::from(holder.0);
        let mut word = self.written.load(Relaxed);
        while let Err(other) = self.written.compare_exchange_weak(word, with(word), Relaxed, Relaxed) {
            word = other;
        }
        self.pass(holder);
    }

    /// Clears the name of a shared holder.
    pub(super) fn leave(&self) {
        self.written.fetch_sub(ONE, Relaxed);
    }

    /// Stores the name of a brief shared holder, which is not counted. Shared holders must not invalidate each other's
    /// cache line.
    #[inline]
    pub(super) fn pass(&self, holder: RoleAndPurpose) {
        if self.last.load(Relaxed) != holder.0 {
            self.last.store(holder.0, Relaxed);
        }
    }

    /// Returns the holder of the lock; of several shared ones the last to write its name. `None` if there is no name.
    pub(super) fn holder(&self) -> Option<RoleAndPurpose> {
        let word = self.written.load(Relaxed);
        (word >= ONE).then_some(RoleAndPurpose(word as u8))
    }

    /// Returns the last holder of the lock.
    pub(super) fn last(&self) -> RoleAndPurpose {
        RoleAndPurpose(self.last.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_there_until_it_is_crossed_out() {
        let holder_name = HolderName::default();
        assert_eq!(holder_name.holder(), None);
        holder_name.enter_alone(RoleAndPurpose(3));
        assert_eq!((holder_name.holder(), holder_name.last()), (Some(RoleAndPurpose(3)), RoleAndPurpose(3)));
        holder_name.leave_alone();
        assert_eq!((holder_name.holder(), holder_name.last()), (None, RoleAndPurpose(3)));
        holder_name.enter(RoleAndPurpose(4));
        holder_name.enter(RoleAndPurpose(5));
        holder_name.pass(RoleAndPurpose(6));
        assert_eq!((holder_name.holder(), holder_name.last()), (Some(RoleAndPurpose(5)), RoleAndPurpose(6)));
        holder_name.leave();
        assert!(holder_name.holder().is_some(), "one of two is left");
        holder_name.leave();
        assert_eq!((holder_name.holder(), holder_name.last()), (None, RoleAndPurpose(6)));
    }
}
