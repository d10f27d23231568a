//! What the calling thread or the process has used.
//!
//! **Purpose.** The processor time of a thread in user space and in the kernel, and its page faults: with its system
//! calls these are all the ways by which it gets into the kernel of its own accord. The same of all threads together.
//!
//! **Invariants.** Page faults are counted exactly, and times are in nanoseconds. The part of the time that is the
//! kernel's is not told apart: most kernels share it out by ticks of milliseconds, which says nothing about a statement
//! of microseconds.
//!
//! **May touch.** The system.

use std::{mem, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// What a thread or a process has used since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Its processor time in nanoseconds.
    pub time_ns: u64,
    /// Its page faults, those that read from a disk included.
    pub page_faults: u64,
}

impl Usage {
    /// That of the calling thread until now.
    pub fn of_this_thread() -> Self {
        Self::of(libc::RUSAGE_THREAD, ClockId::ThreadCPUTime)
    }

    /// That of all threads of the process until now, those that have ended included.
    pub fn of_this_process() -> Self {
        Self::of(libc::RUSAGE_SELF, ClockId::ProcessCPUTime)
    }

    fn of(which: libc::c_int, clock: ClockId) -> Self {
        let mut usage = mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the system writes a whole `rusage` there, and with the two arguments that are given here it cannot
        // fail.
        let usage = unsafe {
            libc::getrusage(which, usage.as_mut_ptr());
            usage.assume_init()
        };
        let time = clock_gettime(clock);
        let faults = usage.ru_minflt.saturating_add(usage.ru_majflt);
        Self {
            time_ns: time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64,
            page_faults: faults.max(0) as u64,
        }
    }

    /// Its processor time.
    pub fn time(self) -> Duration {
        Duration::from_nanos(self.time_ns)
    }

    /// What was used since an earlier look.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            time_ns: self.time_ns.saturating_sub(earlier.time_ns),
            page_faults: self.page_faults.saturating_sub(earlier.page_faults),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{hint::black_box, thread};

    use super::*;

    #[test]
    fn a_thread_that_works_uses_time_and_touches_pages() {
        const SIZE: usize = 64 << 20;
        let before = Usage::of_this_thread();
        let mut memory: Vec<u8> = Vec::with_capacity(SIZE);
        let mapped = Usage::of_this_thread().since(before).page_faults;
        black_box(&mut memory).resize(SIZE, 1);
        let used = Usage::of_this_thread().since(before);
        assert!(used.time_ns > 0 && used.page_faults >= mapped + 10, "{used:?}, and {mapped} before");
    }

    #[test]
    fn a_process_has_used_what_its_threads_have() {
        let before = Usage::of_this_process();
        let use_up = || {
            let before = Usage::of_this_thread();
            while Usage::of_this_thread().since(before).time_ns < 2_000_000 {}
        };
        thread::scope(|scope| {
            scope.spawn(use_up);
            scope.spawn(use_up);
        });
        let used = Usage::of_this_process().since(before);
        assert!(used.time_ns >= 4_000_000, "{used:?}");
    }
}
