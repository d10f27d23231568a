//! Resource usage of the calling thread or of the process.
//!
//! **Purpose.** The processor time of a thread in user space and in the kernel, and its page faults: besides system
//! calls these are the only ways in which a thread enters the kernel itself. The same is available for all threads
//! together.
//!
//! **Method.** The system counts each page fault, and times are in nanoseconds. User and kernel time are not separated:
//! most kernels divide them by ticks of milliseconds, which is meaningless for a statement of microseconds.

use std::{
    mem,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

/// The resources that a thread or a process has used since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The processor time in nanoseconds.
    pub time_ns: u64,
    /// The page faults, including those that read from a disk.
    pub page_faults: u64,
}

impl Usage {
    /// Returns the usage of the calling thread until now.
    pub fn of_this_thread() -> Self {
        Self::of(libc::RUSAGE_THREAD, ClockId::ThreadCPUTime)
    }

    /// Returns the usage of all threads of the process until now, including those that have ended.
    pub fn of_this_process() -> Self {
        Self::of(libc::RUSAGE_SELF, ClockId::ProcessCPUTime)
    }

    /// Measures what this thread uses while it executes `run`, and for how long. It is meant for calls of
    /// microseconds: the duration is that of `run` alone; the processor time includes one reading of a clock and one
    /// of the two system calls that read the processor time.
    pub fn while_running<T>(run: impl FnOnce() -> T) -> (T, Duration, Self) {
        let faults = page_faults(libc::RUSAGE_THREAD);
        // The first call after a pause finds little of the kernel in the processor's caches.
        now(ClockId::ThreadCPUTime);
        let time = now(ClockId::ThreadCPUTime);
        let start = Instant::now();
        let done = run();
        let took = start.elapsed();
        let time_ns = now(ClockId::ThreadCPUTime) - time;
        (done, took, Self { time_ns, page_faults: page_faults(libc::RUSAGE_THREAD) - faults })
    }

    fn of(which: libc::c_int, clock: ClockId) -> Self {
        Self { page_faults: page_faults(which), time_ns: now(clock) }
    }

    /// Returns its processor time.
    pub fn time(self) -> Duration {
        Duration::from_nanos(self.time_ns)
    }

    /// Returns what was used since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            time_ns: self.time_ns.saturating_sub(earlier.time_ns),
            page_faults: self.page_faults.saturating_sub(earlier.page_faults),
        }
    }
}

/// Returns the value of a clock of processor time, in nanoseconds.
fn now(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the page faults of the thread or the process until now.
fn page_faults(which: libc::c_int) -> u64 {
    let mut usage = mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the system writes a whole `rusage` there, and it cannot fail with the two arguments that are used here.
    let usage = unsafe {
        libc::getrusage(which, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_minflt.saturating_add(usage.ru_majflt).max(0) as u64
}

#[cfg(test)]
mod tests {
    use std::{hint::black_box, thread};

    use super::*;

    #[test]
    fn a_thread_that_works_uses_time_and_touches_pages() {
        const SIZE: usize = 64 << 20;
        let (mut memory, _, mapped) = Usage::while_running(|| Vec::<u8>::with_capacity(SIZE));
        let before = Usage::of_this_thread();
        let ((), took, used) = Usage::while_running(|| black_box(&mut memory).resize(SIZE, 1));
        let around = Usage::of_this_thread().since(before);
        assert!(used.page_faults >= mapped.page_faults + 10, "{used:?}, and {mapped:?} before");
        assert!(
            used.time_ns > 0 && !took.is_zero() && used.time_ns < around.time_ns,
            "{used:?} of {around:?}"
        );
        assert!(used.page_faults <= around.page_faults, "{used:?} of {around:?}");
    }

    #[test]
    fn the_usage_of_a_process_includes_its_threads() {
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
