//! The atomics of a model: the machine's, with a point for the scheduler before each access.
//!
//! **Purpose.** They are as large as the machine's and zeroed memory is a zero, so what is mapped stays as it is.
//!
//! **Invariants.** One access is one step. An update in a loop is a load and a compare-and-swap, as it is in the
//! machine.
//!
//! **May touch.** The scheduler's points.

use core::sync::atomic as machine;
pub use core::sync::atomic::Ordering;

use super::access;

/// Everything is in one order here.
pub fn fence(_order: Ordering) {}

macro_rules! atomic {
    ($name:ident, $value:ty $(, $add:ident)*) => {
        #[doc = concat!("`", stringify!($name), "` with points.")]
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(machine::$name);

        impl $name {
            /// With this value.
            pub const fn new(value: $value) -> Self {
                Self(machine::$name::new(value))
            }

            /// Reads it.
            pub fn load(&self, order: Ordering) -> $value {
                access(self);
                self.0.load(order)
            }

            /// Writes it.
            pub fn store(&self, value: $value, order: Ordering) {
                access(self);
                self.0.store(value, order);
            }

            /// Writes it and gives the value before.
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                access(self);
                self.0.swap(value, order)
            }

            /// Writes it if it has the value.
            ///
            /// # Errors
            /// The value it has.
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                access(self);
                self.0.compare_exchange(current, new, success, failure)
            }

            /// As [`Self::compare_exchange`]: here it does not fail by chance.
            ///
            /// # Errors
            /// The value it has.
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            /// Updates it, as long as `update` gives a value.
            ///
            /// # Errors
            /// The value for which `update` gave none.
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut update: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut value = self.load(fetch);
                while let Some(new) = update(value) {
                    match self.compare_exchange(value, new, set, fetch) {
                        Ok(before) => return Ok(before),
                        Err(now) => value = now,
                    }
                }
                Err(value)
            }

            $(
                /// As in the machine.
                pub fn $add(&self, value: $value, order: Ordering) -> $value {
                    access(self);
                    self.0.$add(value, order)
                }
            )*
        }
    };
}

atomic!(AtomicBool, bool, fetch_and, fetch_or);
atomic!(AtomicU8, u8, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);
atomic!(AtomicU32, u32, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);
atomic!(AtomicU64, u64, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);
atomic!(AtomicUsize, usize, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);
