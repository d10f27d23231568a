//! Interrupts of a thread's calls.
//!
//! **Purpose.** A call may wait for others: for locks, names, space. Another thread ends its waits by an [`Interrupt`],
//! which it must not have to look for: the calls of a session or transaction make theirs that of their thread
//! ([`Interrupt::enter`]), and each wait that can be interrupted asks for it ([`InterruptibleWait`]). So does work that
//! takes long without a wait, from time to time ([`LongWork`]).
//!
//! **Invariants.** A wait in progress when the interrupt comes is ended, even if the interrupt is withdrawn at once
//! (test: `an_interrupt_ends_the_wait_in_progress_although_it_is_withdrawn`). A wait that begins later is ended until
//! the interrupt is withdrawn (test: `an_interrupt_lasts_until_it_is_withdrawn`). A wait that is to end never goes on
//! (test: `a_wait_that_begins_interrupted_ends_although_the_interrupt_is_withdrawn`). No interrupt is lost between the
//! check of a wait and the wait (test: `an_interrupted_wait_ends`): a wait first registers what wakes it and then
//! checks for the interrupt, and an interrupt is first set and then wakes what is registered. With calls within calls
//! the interrupt of the innermost one that has any applies (test: `the_innermost_interrupt_applies`). Long work is
//! ended within [`LongWork::STEPS`] steps of an interrupt that lasts (test:
//! `an_interrupt_ends_long_work_until_it_is_withdrawn`).

use core::{cell::RefCell, fmt};

use super::{
    Arc, Event, Mutex, Progress, Rank,
    machine::{
        atomic::{AtomicU64, Ordering::SeqCst},
        thread_local,
    },
};

thread_local! {
    /// The interrupt of the innermost call of this thread that has one.
    static CURRENT: RefCell<Option<Arc<Interrupt>>> = const { RefCell::new(None) };
}

/// What a waiting thread is woken by. It then checks whether it was interrupted.
pub trait Wake: Send + Sync + fmt::Debug {
    /// Wakes the waiters.
    fn wake(&self);
}

impl Wake for Event {
    fn wake(&self) {
        self.notify();
    }
}

/// The bit of the state that is set while the interrupt lasts.
const IS_SET: u64 = 1;
/// The number of interrupts is above that bit.
const ONE_MORE: u64 = 2;

/// Gets the progress of long work. Returns whether the work goes on.
pub(super) type ReportProgress = dyn Fn(Progress) -> bool + Send + Sync;

/// Ends waits.
pub struct Interrupt {
    /// The number of interrupts so far, and whether the last one lasts.
    state: AtomicU64,
    /// What wakes the waits in progress.
    waits: Mutex<Vec<Arc<dyn Wake>>>,
    /// Gets the progress of the long work that it can end.
    report: Option<Box<ReportProgress>>,
}

impl Default for Interrupt {
    fn default() -> Self {
        Self { state: AtomicU64::new(0), waits: Mutex::new(Rank::Leaf, Vec::new()), report: None }
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (is_set, reports) = (self.is_set(), self.report.is_some());
        f.debug_struct("Interrupt")
            .field("is_set", &is_set)
            .field("reports", &reports)
            .finish_non_exhaustive()
    }
}

impl Interrupt {
    /// Returns an interrupt whose long work this callback gets the progress of.
    pub fn reporting(report: impl Fn(Progress) -> bool + Send + Sync + 'static) -> Self {
        Self { report: Some(Box::new(report)), ..Self::default() }
    }

    /// Returns the callback for the progress of long work.
    pub(super) fn callback(&self) -> Option<&ReportProgress> {
        self.report.as_deref()
    }

    /// Ends the waits in progress, and those that begin before [`Interrupt::clear`]. Does not wait.
    pub fn interrupt(&self) {
        // One step: otherwise an interrupt could be withdrawn between the two, and still end a later wait.
        let one_more = |state| Some((state + ONE_MORE) | IS_SET);
        self.state.fetch_update(SeqCst, SeqCst, one_more).expect("it always has a next state");
        // They are woken without the mutex: a waiter that checks whether it may continue takes other locks.
        let waits = self.waits.lock().clone();
        for wait in waits {
            wait.wake();
        }
    }

    /// Withdraws the interrupt: waits that begin from now on are not ended.
    pub fn clear(&self) {
        self.state.fetch_and(!IS_SET, SeqCst);
    }

    /// Returns whether waits that begin now are ended.
    pub fn is_set(&self) -> bool {
        self.state.load(SeqCst) & IS_SET != 0
    }

    /// Makes it the interrupt of this thread's calls, until the guard is dropped.
    pub fn enter(self: &Arc<Self>) -> Interruptible {
        Interruptible { before: CURRENT.with(|current| current.replace(Some(self.clone()))) }
    }

    /// Makes this thread's calls such as nothing interrupts, until the guard is dropped.
    pub fn leave() -> Interruptible {
        Interruptible { before: CURRENT.with(|current| current.replace(None)) }
    }

    /// Returns the interrupt of this thread's calls, if there is any.
    pub(super) fn current() -> Option<Arc<Self>> {
        CURRENT.with(|current| current.borrow().clone())
    }

    /// Returns whether this thread's calls are interrupted now: for work that takes long without a wait. [`LongWork`]
    /// asks for it between short steps.
    pub fn is_current_set() -> bool {
        CURRENT.with(|current| current.borrow().as_ref().is_some_and(|interrupt| interrupt.is_set()))
    }
}

/// The calls of this thread are interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

/// Work without a wait, of any number of short steps, that the interrupt of its thread's calls ends.
#[derive(Debug, Default)]
pub struct LongWork {
    steps: u32,
}

impl LongWork {
    /// It looks for the interrupt once in so many steps: work of fewer ones costs an addition for each, and is not
    /// ended.
    pub const STEPS: u32 = 1024;

    /// Counts a step.
    ///
    /// # Errors
    /// [`Interrupted`]: the work must end.
    #[inline]
    pub fn step(&mut self) -> Result<(), Interrupted> {
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(Self::STEPS) { Self::check() } else { Ok(()) }
    }

    /// Looks for the interrupt now.
    ///
    /// # Errors
    /// [`Interrupted`]: the work must end.
    #[cold]
    pub fn check() -> Result<(), Interrupted> {
        if Interrupt::is_current_set() { Err(Interrupted) } else { Ok(()) }
    }
}

/// While it exists, the waits of a thread can be interrupted.
#[derive(Debug)]
#[must_use = "the waits can be interrupted while it exists"]
pub struct Interruptible {
    /// The interrupt that it has replaced.
    before: Option<Arc<Interrupt>>,
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        let before = self.before.take();
        // A thread that ends has none any more.
        let ended = CURRENT.try_with(|current| current.replace(before));
        drop(ended);
    }
}

/// A wait that the interrupt of its thread's calls ends.
#[derive(Debug)]
pub struct InterruptibleWait(Option<Registered>);

#[derive(Debug)]
struct Registered {
    interrupt: Arc<Interrupt>,
    wake: Arc<dyn Wake>,
    /// The state of the interrupt before the interrupts that end the wait.
    before: u64,
}

impl InterruptibleWait {
    /// Begins a wait from which this wakes the thread.
    pub fn begin<W: Wake + 'static>(wake: &Arc<W>) -> Self {
        Self::begin_by(|| wake.clone())
    }

    /// As [`InterruptibleWait::begin`], of what is made only if the calls of this thread can be interrupted.
    pub fn begin_by<W: Wake + 'static>(wake: impl FnOnce() -> Arc<W>) -> Self {
        let Some(interrupt) = Interrupt::current() else { return Self::never() };
        let state = interrupt.state.load(SeqCst);
        // The interrupt that lasts is one of the wait's own, also if it is withdrawn meanwhile.
        let before = if state & IS_SET == 0 { state } else { state - ONE_MORE };
        let wake: Arc<dyn Wake> = wake();
        interrupt.waits.lock().push(wake.clone());
        Self(Some(Registered { interrupt, wake, before }))
    }

    /// Begins a wait of a thread that looks for the interrupt from time to time, so that nothing has to wake it.
    pub fn polled() -> Self {
        Self::begin_by(|| Arc::new(Event::new()))
    }

    /// Returns a wait that nothing interrupts.
    pub fn never() -> Self {
        Self(None)
    }

    /// Returns whether the wait must end. Once it must, it must for good.
    pub fn is_interrupted(&self) -> bool {
        self.0.as_ref().is_some_and(|Registered { interrupt, before, .. }| {
            interrupt.state.load(SeqCst) / ONE_MORE != before / ONE_MORE
        })
    }
}

impl Drop for InterruptibleWait {
    fn drop(&mut self) {
        let Some(Registered { interrupt, wake, .. }) = self.0.take() else { return };
        let mut waits = interrupt.waits.lock();
        let place = waits.iter().position(|known| Arc::ptr_eq(known, &wake));
        debug_assert!(place.is_some(), "a wait ends that was not registered");
        place.map(|place| waits.swap_remove(place));
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    /// Waits on another thread. Returns once it is registered.
    fn waiter(interrupt: &Arc<Interrupt>) -> std::thread::JoinHandle<bool> {
        let (mine, event) = (interrupt.clone(), Arc::new(Event::new()));
        let thread = std::thread::spawn(move || {
            let _entered = mine.enter();
            let waiting = InterruptibleWait::begin(&event);
            event.wait_for(LONG, || waiting.is_interrupted())
        });
        while interrupt.waits.lock().is_empty() && !thread.is_finished() {
            std::thread::yield_now();
        }
        thread
    }

    #[test]
    fn an_interrupt_ends_the_wait_in_progress_although_it_is_withdrawn() {
        let interrupt = Arc::new(Interrupt::default());
        let thread = waiter(&interrupt);
        interrupt.interrupt();
        interrupt.clear();
        assert!(thread.join().unwrap());
        assert!(interrupt.waits.lock().is_empty());
    }

    #[test]
    fn an_interrupt_lasts_until_it_is_withdrawn() {
        let (interrupt, event) = (Arc::new(Interrupt::default()), Arc::new(Event::new()));
        interrupt.clear();
        interrupt.interrupt();
        assert!(!Interrupt::is_current_set() && !InterruptibleWait::begin(&event).is_interrupted());
        {
            let _entered = interrupt.enter();
            for _ in 0..2 {
                assert!(Interrupt::is_current_set() && InterruptibleWait::begin(&event).is_interrupted());
            }
            assert!(!InterruptibleWait::never().is_interrupted());
            interrupt.clear();
            let waiting = InterruptibleWait::begin(&event);
            assert!(!Interrupt::is_current_set() && !waiting.is_interrupted());
            assert_eq!(interrupt.waits.lock().len(), 1);
        }
        assert!(interrupt.waits.lock().is_empty());
    }

    /// A waiter asks more than once, and gives up what it waited for if the last answer says so.
    #[test]
    fn a_wait_that_begins_interrupted_ends_although_the_interrupt_is_withdrawn() {
        let (interrupt, event) = (Arc::new(Interrupt::default()), Arc::new(Event::new()));
        let _entered = interrupt.enter();
        interrupt.interrupt();
        let waiting = InterruptibleWait::begin(&event);
        interrupt.clear();
        assert!(waiting.is_interrupted());
        assert!(!InterruptibleWait::begin(&event).is_interrupted());
    }

    #[test]
    fn an_interrupt_ends_long_work_until_it_is_withdrawn() {
        let interrupt = Arc::new(Interrupt::default());
        let all = |work: &mut LongWork| (0..LongWork::STEPS).try_for_each(|_| work.step());
        interrupt.interrupt();
        let mut work = LongWork::default();
        assert_eq!(all(&mut work), Ok(()), "it is that of no call of this thread");
        let _entered = interrupt.enter();
        assert_eq!(
            (1..LongWork::STEPS).try_for_each(|_| work.step()),
            Ok(()),
            "it looks once in so many steps"
        );
        assert_eq!((work.step(), LongWork::check()), (Err(Interrupted), Err(Interrupted)));
        interrupt.clear();
        assert_eq!((all(&mut work), LongWork::check()), (Ok(()), Ok(())));
    }

    #[test]
    fn the_innermost_interrupt_applies() {
        let (outer, inner) = (Arc::new(Interrupt::default()), Arc::new(Interrupt::default()));
        outer.interrupt();
        let entered = outer.enter();
        {
            let _entered = inner.enter();
            assert!(!Interrupt::is_current_set());
        }
        assert!(Interrupt::is_current_set());
        {
            let _left = Interrupt::leave();
            assert!(!Interrupt::is_current_set());
        }
        assert!(Interrupt::is_current_set());
        drop(entered);
        assert!(!Interrupt::is_current_set());
    }
}
