//! The redo log (write-ahead log): appending, group commit, reading back; and the control file.
//!
//! **Purpose.** Every change of a page is logged here before the page may be written to its file. The log is an endless
//! stream of bytes; a position in it is an LSN. It holds one *frame* (`frame`) per mini-transaction. The thread that
//! made the mini-transaction copies the frame into a ring buffer in memory (`ring`, `group`). The first committing
//! thread that needs it writes and syncs it (`writer`) to segment files (`segments`), and recovery reads it back
//! ([`LogReader`]). Callbacks report that a position is durable (`notifications`). [`ControlFile`] records where
//! recovery begins.
//!
//! **The end of the log.** After a crash the stream ends in a bad frame: torn, never written, or old bytes of a
//! recycled segment. That is the normal end, unless there is proof that the log was durable beyond that frame. In that
//! case a device has lost or changed data that it had synced, and continuing would silently drop committed work. The
//! proofs are:
//!
//! - The control file records a durable position, and the LSN at which the newest incarnation begins, before which
//!   everything was made durable.
//! - Each frame records up to where the log was durable when the frame was made. A good frame after the bad one that
//!   records a durable position above the bad one is proof. A good frame that does not may have reached the disk out of
//!   order before the crash. So damage is distinguished from a torn tail for everything but the last commits before a
//!   crash. When the log is idle, a *marker* frame closes that gap a second later, and a clean shutdown closes it at
//!   once.
//! - A good frame in a segment with a bad header: the header was durable before the frame was written.
//!
//! **Stale frames.** The bytes after the end stay where they are, except that a write that enters a new block fills the
//! rest of that block with zeros. Among them may be good frames of the past, at the very LSN that they carry, and new
//! frames may end exactly where one of them begins. So every opening of the log is an *incarnation* with its own
//! number. The number is recorded durably in the control file, with the LSN at which the incarnation begins, before the
//! incarnation writes anything. From that LSN on only frames of that incarnation are valid; before it, numbers never
//! fall along the stream. A remnant has a lower number than the frame before it, so it is neither a frame nor proof,
//! and nothing has to be erased. Stale frames of a recycled segment carry other LSNs.
//!
//! **Invariants.**
//! - LSNs of frames are multiples of 8 (checked by `log/frame.rs::new`). The ring holds the range `written..reserved`;
//!   `durable <= written <= reserved` (checked by `log/invariants.rs::check_invariants`).
//! - Below [`Log::append_low_water_mark`] every group's pages are registered dirty (test:
//!   `the_low_water_mark_of_appending_waits_for_the_appenders`).
//! - Appending never waits for the low-water mark of the log (the oldest LSN still needed), only for writing;
//!   operations wait in [`Log::wait_for_room`] (test: `operations_wait_for_the_low_water_mark_and_appending_does_not`).
//!   Appending uses a log reservation made before ([`LogReservation`]), and the segments for that reservation are
//!   prepared (test: `reserved_bytes_can_be_appended_on_a_full_disk`).
//! - A segment is retired only when the control file durably records a low-water mark above it (test:
//!   `no_segment_is_used_again_that_the_control_file_still_needs`).
//! - A failed write or sync poisons the database, and every waiter gets the error (tests: `every_write_fails`,
//!   `a_failing_sync_is_reported_to_every_commit_and_acknowledges_none`).

mod control;
mod frame;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod group;
#[cfg(any(test, feature = "testing"))]
mod invariants;
mod notifications;
mod reader;
mod record;
mod ring;
mod segments;
mod space;
mod writer;

#[cfg(all(test, feature = "model"))]
mod interleavings;
#[cfg(test)]
mod test_disk;
#[cfg(test)]
mod tests;

use core::time::Duration;

pub use control::{Control, ControlFile, FORMAT_VERSION};
use crossbeam_utils::CachePadded;
use frame::Seed;
pub use group::AppendSlot;
pub use notifications::DurableCallback;
use notifications::Notifications;
pub(crate) use notifications::is_in_callback;
pub use reader::LogReader;
pub use record::{GroupReader, GroupWriter, Record};
use ring::Ring;
use segments::Segments;
pub use segments::file_of;
use space::Blocker;
pub use space::{LOG_OVERHEAD_BYTES, LogReservation};
use writer::Writer;

use crate::{
    disk::{Disk, FileName},
    env::Env,
    error::{CorruptError, Error, Result, UsageError},
    failpoint::TestCounter,
    health::Health,
    ids::{Lsn, SpaceId, TrxId},
    sync::{
        Arc, Event, Mutex, OnceLock, Rank, Seldom,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

/// When a commit is written and made durable, like `innodb_flush_log_at_trx_commit` of `MariaDB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum FlushLog {
    /// 0: written and synced about once a second.
    Lazy = 0,
    /// 1: synced at each commit.
    #[default]
    Sync = 1,
    /// 2: written at each commit, synced about once a second: commits survive the process, not the machine.
    Write = 2,
}

impl TryFrom<u8> for FlushLog {
    type Error = UsageError;

    fn try_from(value: u8) -> Result<Self, UsageError> {
        match value {
            0 => Ok(Self::Lazy),
            1 => Ok(Self::Sync),
            2 => Ok(Self::Write),
            _ => Err(UsageError::Option {
                name: "flush_log_at_trx_commit",
                what: format!("{value} is none of 0, 1, 2").into(),
            }),
        }
    }
}

/// Sizes of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// The size, in bytes, that the age is kept below; at least two of the largest segments.
    pub size: u64,
    /// The size of the largest segments in bytes, a multiple of 4 KiB. A log that has grown little has smaller ones.
    pub segment: u64,
    /// The size of the buffer in memory, in bytes: a power of two from 64 KiB to 1 GiB. A group is at most a quarter
    /// of it.
    pub buffer: usize,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { size: 1 << 30, segment: 64 << 20, buffer: 16 << 20 }
    }
}

/// Counters of a log since it was opened, and its current state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LogMetrics {
    /// Syncs of a segment.
    pub fsyncs: u64,
    /// Writes to a segment.
    pub writes: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Groups appended.
    pub groups: u64,
    /// Times a thread waited for another one to write or sync.
    pub follows: u64,
    /// Times the buffer was full, so that the appending thread had to write.
    pub buffer_full: u64,
    /// Times an operation waited for the low-water mark to rise.
    pub waits: u64,
    /// The longest of these waits.
    pub longest_wait: Duration,
    /// The duration of the last sync.
    pub last_sync: Duration,
    /// The distance from the low-water mark to the end, in bytes.
    pub age: u64,
    /// The size that the age is kept below, in bytes.
    pub size: u64,
}

#[derive(Debug, Default)]
struct LogCounters {
    fsyncs: AtomicU64,
    writes: AtomicU64,
    bytes: AtomicU64,
    follows: AtomicU64,
    full: AtomicU64,
    waits: AtomicU64,
    longest_wait: AtomicU64,
}

/// An open log.
#[derive(Debug)]
pub struct Log {
    disk: Arc<dyn Disk>,
    env: Arc<dyn Env>,
    health: Health,
    seed: Seed,
    incarnation: u32,
    size: u64,
    segments: Segments,
    ring: Ring,
    /// The end of the reserved range: the next group begins here.
    reserved: CachePadded<AtomicU64>,
    /// The end of the written range. The ring's space below it is free again.
    written: CachePadded<AtomicU64>,
    durable: AtomicU64,
    low_water_mark: AtomicU64,
    /// Bytes in outstanding log reservations ([`LogReservation`]).
    reserved_bytes: CachePadded<AtomicU64>,
    /// Bytes reserved since the log was opened.
    pub(crate) reserved_ever: TestCounter,
    /// The end of the last marker frame.
    marked: AtomicU64,
    slots: Box<[CachePadded<group::Slot>]>,
    /// Held by the leader of syncs, and by the writer.
    syncer: Mutex<()>,
    writer: Mutex<Writer>,
    /// The number of requests for a sync so far; how many of them had arrived when the last sync began; and how many
    /// took part in that sync or arrived while it ran.
    arrived: AtomicU64,
    served: AtomicU64,
    recent_committers: AtomicU64,
    /// The value of `arrived` at which the group-commit delay ends; the maximum while no leader is delayed.
    expected: AtomicU64,
    /// Notified when `arrived` reaches `expected`.
    arrival: Event,
    /// The number of group-commit delays in a row during which no other committer arrived.
    fruitless_delays: AtomicU64,
    /// The number of group commits.
    group_commits: AtomicU64,
    /// Notified when `written` moves or a writer steps down.
    progress: Event,
    /// Notified when `durable` moves or a leader of syncs steps down. Separate, so that waiters for a sync are not
    /// woken by each write.
    synced: Event,
    /// Notified when a frame is complete.
    published: Event,
    slot_free: Event,
    /// Notified when the low-water mark has risen.
    room: Arc<Event>,
    wake: Arc<Event>,
    checkpointer: OnceLock<Arc<Event>>,
    /// The error of the last attempt to prepare a segment ahead, if it failed.
    unprepared: Blocker,
    /// When there was an event of a reservation that was refused.
    refused: Seldom,
    /// The error that keeps pages from being written, if any: the low-water mark does not rise then.
    unflushed: Blocker,
    /// The error that keeps created files from being recorded, if any: the low-water mark does not rise then either.
    unrecorded: Blocker,
    last_sync_at: AtomicU64,
    last_sync_took: AtomicU64,
    /// The longest sync since the last call of [`Log::take_longest_sync`].
    longest_sync: AtomicU64,
    /// When the current sync began; zero when none is running.
    syncing_since: AtomicU64,
    notifications: Notifications,
    counters: LogCounters,
}

/// Checks the control file for contradictions.
fn check_control(disk: &dyn Disk, control: &Control) -> Result<()> {
    let is_possible = |lsn: Lsn| lsn.0.is_multiple_of(frame::ALIGN) && lsn.0 < segments::LSN_LIMIT;
    let is_consistent =
        [control.low_water_mark, control.checkpoint, control.durable, control.incarnation_start]
            .into_iter()
            .all(is_possible)
            && control.low_water_mark <= control.durable.max(control.incarnation_start)
            && control.space_ceiling <= SpaceId::MAX.0
            && control.trx_ceiling <= TrxId::MAX.0;
    if is_consistent {
        return Ok(());
    }
    let what = "the control record contradicts itself: restore the database from a backup".into();
    Err(CorruptError::File { file: disk.path(FileName::Control), what }.into())
}

/// Returns the incarnation that begins when the log is opened with these options.
fn next_incarnation(options: LogOptions, control: &Control) -> Result<u32> {
    let refuse =
        |name, what: &str| Err(Error::from(UsageError::Option { name, what: what.to_owned().into() }));
    if !segments::is_possible_size(options.segment) || options.size / 2 < options.segment {
        let what = format!("{} is less than two segments of {}", options.size, options.segment);
        return refuse("log_size", &what);
    }
    if !options.buffer.is_power_of_two() || !(64 << 10..=1 << 30).contains(&options.buffer) {
        return refuse("log_buffer_size", "a power of two from 64 KiB to 1 GiB is needed");
    }
    match control.incarnation.checked_add(1) {
        Some(incarnation) => Ok(incarnation),
        None => refuse("path", "the database was opened too often: dump it and load it again"),
    }
}

impl Log {
    /// Opens the log that ends at `end`, as a [`LogReader`] has found it, and begins a new incarnation there.
    /// Everything before it is durable on return. A new database has an empty folder and ends at zero.
    ///
    /// # Errors
    /// [`UsageError::Option`] for impossible sizes, [`CorruptError::File`] when the control file contradicts itself,
    /// and errors of the disk.
    pub fn open(
        disk: Arc<dyn Disk>,
        env: Arc<dyn Env>,
        health: Health,
        options: LogOptions,
        control: &mut ControlFile,
        end: Lsn,
    ) -> Result<Self> {
        let before = control.control().clone();
        check_control(disk.as_ref(), &before)?;
        let incarnation = next_incarnation(options, &before)?;
        let ring = Ring::new(options.buffer)?;
        let known = before.durable.max(before.incarnation_start);
        assert!(known <= end, "the log ends below a position that was durable");
        assert!(end.0.is_multiple_of(frame::ALIGN), "the log ends where no frame can begin");
        let segments = Segments::open(
            disk.clone(),
            health.clone(),
            before.uuid,
            options.segment,
            before.low_water_mark,
            known,
            end,
        )?;
        control.update(|control| {
            control.incarnation = incarnation;
            control.incarnation_start = end;
            control.durable = end;
            control.clean = false;
        })?;
        assert!(before.incarnation < control.control().incarnation, "every opening is a new incarnation");
        let now = env.now().as_nanos() as u64;
        Ok(Self {
            seed: Seed::new(&before.uuid),
            incarnation,
            size: options.size,
            segments,
            ring,
            reserved: CachePadded::new(AtomicU64::new(end.0)),
            written: CachePadded::new(AtomicU64::new(end.0)),
            durable: AtomicU64::new(end.0),
            low_water_mark: AtomicU64::new(before.low_water_mark.0),
            reserved_bytes: CachePadded::new(AtomicU64::new(0)),
            reserved_ever: TestCounter::default(),
            marked: AtomicU64::new(end.0),
            slots: (0..group::SLOTS).map(|_| CachePadded::new(group::Slot::free())).collect(),
            syncer: Mutex::new(Rank::LogSync, ()),
            writer: Mutex::new(Rank::LogWrite, Writer::default()),
            arrived: AtomicU64::new(0),
            expected: AtomicU64::new(u64::MAX),
            served: AtomicU64::new(0),
            recent_committers: AtomicU64::new(0),
            arrival: Event::new(),
            fruitless_delays: AtomicU64::new(0),
            group_commits: AtomicU64::new(0),
            progress: Event::new(),
            synced: Event::new(),
            published: Event::new(),
            slot_free: Event::new(),
            room: Arc::default(),
            wake: Arc::new(Event::new()),
            checkpointer: OnceLock::new(),
            unprepared: Blocker::default(),
            refused: Seldom::default(),
            unflushed: Blocker::default(),
            unrecorded: Blocker::default(),
            last_sync_at: AtomicU64::new(now),
            last_sync_took: AtomicU64::new(0),
            longest_sync: AtomicU64::new(0),
            syncing_since: AtomicU64::new(0),
            notifications: Notifications::default(),
            counters: LogCounters::default(),
            disk,
            env,
            health,
        })
    }

    /// Returns the end of the log: where the next group will begin.
    pub fn end(&self) -> Lsn {
        Lsn(self.reserved.load(SeqCst))
    }

    /// Returns the position up to which the log has been written.
    pub fn written(&self) -> Lsn {
        Lsn(self.written.load(SeqCst))
    }

    /// Returns the position up to which the log is durable: pages changed below it may be written.
    pub fn durable(&self) -> Lsn {
        Lsn(self.durable.load(SeqCst))
    }

    /// Waits until a commit is written or durable, as `mode` requires; `end` is the end of its last group. Does nothing
    /// if nothing was logged.
    ///
    /// # Errors
    /// A failure poisons the database.
    pub fn await_flush(&self, end: impl Into<Option<Lsn>>, mode: FlushLog) -> Result<()> {
        let Some(lsn) = end.into() else {
            return Ok(());
        };
        match mode {
            FlushLog::Lazy => self.health.check(),
            FlushLog::Sync => self.sync_to(lsn),
            FlushLog::Write => self.write_to(lsn),
        }
    }
}
