//! Points in the code at which a test acts.
//!
//! **Purpose.** The code passes such a point in one line. A test decides what happens there: the step fails
//! ([`Failpoint`]), a function of the test runs ([`SyncPoint`]), a limit has another value ([`TestValue`]), the test
//! learns a sum ([`TestCounter`]), or work that is rarely needed is done at once ([`Eager`]).
//!
//! **Invariants.** Only tests of this crate, and builds with the feature `testing`, can set a point (by type). In any
//! other build the types have no size, and so no state for their methods to act on (by type): the compiler checks it.

pub use points::{Eager, Failpoint, SyncPoint, TestCounter, TestValue};

#[cfg(any(test, feature = "testing"))]
mod points {
    use core::{cell::Cell, fmt};

    use crate::{
        error::{Result, UsageError},
        sync::{
            Mutex, Rank,
            atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
            thread_local,
        },
    };

    /// Makes one of the next steps fail.
    #[derive(Debug, Default)]
    pub struct Failpoint(AtomicU64);

    impl Failpoint {
        /// Sets the step, counted from 1, that fails; 0 for none.
        pub fn set(&self, step: u64) {
            self.0.store(step, Relaxed);
        }

        /// Returns the number of steps up to the one that fails; 0 if it has failed, or none was set.
        pub fn steps_left(&self) -> u64 {
            self.0.load(Relaxed)
        }

        /// Passes a step.
        ///
        /// # Errors
        /// This is the step that was set.
        pub fn pass(&self) -> Result<()> {
            let left = self.0.load(Relaxed);
            if left > 0 {
                self.0.store(left - 1, Relaxed);
            }
            if left == 1 { Err(UsageError::Other("failpoint".into()).into()) } else { Ok(()) }
        }
    }

    /// Runs a function of the test. The function is not called within itself.
    pub struct SyncPoint {
        run: Mutex<Option<Box<dyn FnMut() + Send>>>,
        /// Whether there is a function, or was one: otherwise threads that pass must not synchronise here, which could
        /// hide a race from the tests.
        is_used: AtomicBool,
    }

    impl Default for SyncPoint {
        fn default() -> Self {
            Self { run: Mutex::new(Rank::Leaf, None), is_used: AtomicBool::new(false) }
        }
    }

    impl fmt::Debug for SyncPoint {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("SyncPoint")
        }
    }

    impl SyncPoint {
        /// Sets the function. A panic in it removes it.
        pub fn set(&self, run: impl FnMut() + Send + 'static) {
            *self.run.lock() = Some(Box::new(run));
            self.is_used.store(true, Relaxed);
        }

        /// Removes the function.
        pub fn clear(&self) {
            let run = self.run.lock().take();
            drop(run);
        }

        /// Runs the function.
        pub fn pass(&self) {
            if !self.is_used.load(Relaxed) {
                return;
            }
            let run = self.run.lock().take();
            if let Some(mut run) = run {
                run();
                self.run.lock().get_or_insert(run);
            }
        }
    }

    /// A value that a test sets instead of the constant in the code.
    #[derive(Debug)]
    pub struct TestValue<T>(Mutex<Option<T>>);

    impl<T> Default for TestValue<T> {
        fn default() -> Self {
            Self(Mutex::new(Rank::Leaf, None))
        }
    }

    impl<T: Copy> TestValue<T> {
        /// Sets the value.
        pub fn set(&self, value: T) {
            *self.0.lock() = Some(value);
        }

        /// Returns the value, if a test has set one.
        pub fn get(&self) -> Option<T> {
            *self.0.lock()
        }
    }

    thread_local! {
        static EAGER: Cell<bool> = const { Cell::new(false) };
    }

    /// Whether this thread does at once what usually waits until it is needed.
    #[derive(Debug)]
    pub struct Eager;

    impl Eager {
        /// Switches it on or off, for this thread.
        pub fn set(is_on: bool) {
            EAGER.set(is_on);
        }

        /// Returns whether it is on.
        pub fn is_on() -> bool {
            EAGER.get()
        }
    }

    /// A sum that only a test reads.
    #[derive(Debug, Default)]
    pub struct TestCounter(AtomicU64);

    impl TestCounter {
        /// Adds to the sum.
        pub fn add(&self, count: u64) {
            self.0.fetch_add(count, Relaxed);
        }

        /// Returns the sum.
        pub fn sum(&self) -> u64 {
            self.0.load(Relaxed)
        }
    }
}

#[cfg(not(any(test, feature = "testing")))]
mod points {
    use core::marker::PhantomData;

    use crate::error::Result;

    /// Makes one of the next steps fail, in tests.
    #[derive(Debug, Default)]
    pub struct Failpoint(());

    impl Failpoint {
        /// Passes a step.
        ///
        /// # Errors
        /// None.
        #[inline]
        pub fn pass(&self) -> Result<()> {
            Ok(())
        }
    }

    /// Runs a function of the test, in tests.
    #[derive(Debug, Default)]
    pub struct SyncPoint(());

    impl SyncPoint {
        /// Does nothing.
        #[inline]
        pub fn pass(&self) {}
    }

    /// A value that a test sets instead of the constant in the code.
    #[derive(Debug)]
    pub struct TestValue<T>(PhantomData<fn() -> T>);

    impl<T> Default for TestValue<T> {
        fn default() -> Self {
            Self(PhantomData)
        }
    }

    impl<T> TestValue<T> {
        /// Returns `None`.
        #[inline]
        pub fn get(&self) -> Option<T> {
            None
        }
    }

    /// Whether this thread does at once what usually waits until it is needed, in tests.
    #[derive(Debug)]
    pub struct Eager;

    impl Eager {
        /// Returns `false`.
        #[inline]
        pub fn is_on() -> bool {
            false
        }
    }

    /// A sum that only a test reads.
    #[derive(Debug, Default)]
    pub struct TestCounter(());

    impl TestCounter {
        /// Does nothing.
        #[inline]
        pub fn add(&self, _: u64) {}
    }

    const _: () = assert!(
        size_of::<(Failpoint, SyncPoint, TestValue<u64>, TestCounter, Eager)>() == 0,
        "a point of the tests has a size in the product"
    );
}
