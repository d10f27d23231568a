//! Who has a lock.
//!
//! **Purpose.** So that who waits can name whom he waits for.
//!
//! **Invariants.** A name is signed after the lock was taken and crossed out before it is given back: a name that is
//! read uncrossed is that of one who has the lock. Signing costs a hold next to nothing: who has the lock alone writes
//! without a locked instruction, and who shares it for a moment only leaves his name as that of the last one, which is
//! mostly there already.
//!
//! **May touch.** `record`.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use super::record::Who;

/// In a word with a name: one of those who have signed and not crossed out.
const ONE: u32 = 1 << 8;

/// The names.
#[derive(Debug, Default)]
pub struct Sign {
    /// The last one who signed, and above that how many names are not crossed out.
    signed: AtomicU32,
    /// Who took the lock last.
    last: AtomicU8,
}

impl Sign {
    /// Signs for who has the lock alone.
    #[inline]
    pub fn enter_alone(&self, who: Who) {
        self.signed.store(ONE | u32::from(who.0), Relaxed);
        self.last.store(who.0, Relaxed);
    }

    /// Crosses that out.
    #[inline]
    pub fn leave_alone(&self) {
        self.signed.store(self.signed.load(Relaxed) & (ONE - 1), Relaxed);
    }

    /// Signs for one who shares the lock.
    pub fn enter(&self, who: Who) {
        let with = |word| ((word & !(ONE - 1)) + ONE) | u32::from(who.0);
        let mut word = self.signed.load(Relaxed);
        while let Err(other) = self.signed.compare_exchange_weak(word, with(word), Relaxed, Relaxed) {
            word = other;
        }
        self.pass(who);
    }

    /// Crosses that out.
    pub fn leave(&self) {
        self.signed.fetch_sub(ONE, Relaxed);
    }

    /// Leaves the name of one who shares the lock and does not sign. Sharers are not to take a line from each other.
    #[inline]
    pub fn pass(&self, who: Who) {
        if self.last.load(Relaxed) != who.0 {
            self.last.store(who.0, Relaxed);
        }
    }

    /// Who has the lock; of several who share it the last one to sign. None while nobody has signed.
    pub fn holder(&self) -> Option<Who> {
        let word = self.signed.load(Relaxed);
        (word >= ONE).then_some(Who(word as u8))
    }

    /// Who took the lock last.
    pub fn last(&self) -> Who {
        Who(self.last.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_there_until_it_is_crossed_out() {
        let sign = Sign::default();
        assert_eq!(sign.holder(), None);
        sign.enter_alone(Who(3));
        assert_eq!((sign.holder(), sign.last()), (Some(Who(3)), Who(3)));
        sign.leave_alone();
        assert_eq!((sign.holder(), sign.last()), (None, Who(3)));
        sign.enter(Who(4));
        sign.enter(Who(5));
        sign.pass(Who(6));
        assert_eq!((sign.holder(), sign.last()), (Some(Who(5)), Who(6)));
        sign.leave();
        assert!(sign.holder().is_some(), "one of two is left");
        sign.leave();
        assert_eq!((sign.holder(), sign.last()), (None, Who(6)));
    }
}
