//! The atomics of a model: those of the machine, with a scheduling point before each access.
//!
//! **Purpose.** They have the size of the machine's atomics, and zeroed memory is a zero, so mapped memory keeps its
//! layout.
//!
//! **Invariants.** One access is one step (test: `another_thread_may_run_before_each_access`). An update in a loop is a
//! load and a compare-and-swap, as in the machine (test: `an_update_is_repeated_when_another_comes_between`).

use core::sync::atomic as machine;
pub use core::sync::atomic::Ordering;

use super::{access, is_scenario};

/// Does nothing in a scenario, where all accesses have one total order.
pub fn fence(order: Ordering) {
    if !is_scenario() {
        machine::fence(order);
    }
}

macro_rules! atomic {
    ($name:ident, $value:ty $(, $add:ident)*) => {
        #[doc = concat!("`", stringify!($name), "` with a scheduling point before each access.")]
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(machine::$name);

        impl $name {
            /// Returns an atomic with this value.
            pub const fn new(value: $value) -> Self {
                Self(machine::$name::new(value))
            }

            /// Returns the value.
            pub fn load(&self, order: Ordering) -> $value {
                access(self);
                self.0.load(order)
            }

            /// Stores a value.
            pub fn store(&self, value: $value, order: Ordering) {
                access(self);
                self.0.store(value, order);
            }

            /// Stores a value and returns the previous one.
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                access(self);
                self.0.swap(value, order)
            }

            /// Stores `new` if the value is `current`.
            ///
            /// # Errors
            /// The value found.
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

            /// As [`Self::compare_exchange`]: in a model it has no spurious failures.
            ///
            /// # Errors
            /// The value found.
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            /// Updates the value if `update` returns a new one.
            ///
            /// # Errors
            /// The value for which `update` returned none.
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
atomic!(AtomicU8, u8, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_xor, fetch_max, fetch_min);
atomic!(AtomicU32, u32, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);
atomic!(AtomicU64, u64, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);
atomic!(AtomicUsize, usize, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);
