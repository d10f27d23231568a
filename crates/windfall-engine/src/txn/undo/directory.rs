//! The undo streams of a database.
//!
//! **Purpose.** Assigns a stream to each transaction that begins to write: one without an appender, if there is any, so
//! that committing threads do not wait for each other.
//!
//! **Invariants.** There are at most [`MAX_STREAMS`] streams (checked by `undo/directory.rs::get`), numbered from zero
//! without gaps (test: `all_streams_are_found_again`), and a stream is never removed (by type). Their number grows when
//! all are busy (test: `some_crash_points_of_longer_histories`).

use std::collections::{BTreeMap, BTreeSet};

use super::{
    position::stream_of,
    stream::{SLICE_PAGES, Stream, UndoContext, may_exist, slice_of},
};
use crate::{
    buffer::{Durability, Space},
    error::Result,
    ids::{SpaceId, UndoPos},
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicUsize,
            Ordering::{Acquire, Relaxed, SeqCst},
        },
    },
    system::UNDO,
};

/// The maximum number of streams: the stream number is one byte of each position.
pub(crate) const MAX_STREAMS: usize = 256;
/// The number of streams tried before one more is created.
const TRIES: usize = 8;

/// Bytes of log that creating slices may need.
const LOG_BYTES_OF_NEW_SLICES: u64 = 64 << 10;

/// The streams.
#[derive(Debug)]
pub struct Streams {
    context: Arc<UndoContext>,
    made: Box<[OnceLock<Stream>]>,
    count: AtomicUsize,
    /// The stream at which the next search begins.
    turn: AtomicUsize,
}

impl Streams {
    /// Opens the streams, with the slices that are recorded in the system tree. `attach` attaches a tablespace to the
    /// pool.
    ///
    /// # Errors
    /// Damage, I/O.
    pub(in crate::txn) fn open(
        context: Arc<UndoContext>,
        attach: &mut dyn FnMut(SpaceId) -> Result<Arc<Space>>,
    ) -> Result<Self> {
        let mut found: BTreeMap<u8, BTreeMap<u64, Arc<Space>>> = BTreeMap::new();
        let mut failure = None;
        context.system.scan(&[UNDO], &mut |key, value| {
            let space = value.try_into().ok().map(|bytes| SpaceId(u64::from_le_bytes(bytes)));
            let slice = slice_of(key).filter(|(_, slice)| may_exist(*slice, context.pool.page_size()));
            let attached = match (slice, space) {
                (Some(slice), Some(space)) => attach(space).map(|space| (slice, space)),
                _ => Err(context.system.damaged("the record of an undo slice makes no sense")),
            };
            match attached {
                Ok(((stream, slice), space)) => {
                    // Its first page was written before it got its record.
                    space.set_has_pages();
                    found.entry(stream).or_default().insert(slice, space);
                }
                Err(error) => failure = Some(error),
            }
            failure.is_none()
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        let streams: Box<[OnceLock<Stream>]> = (0..MAX_STREAMS).map(|_| OnceLock::new()).collect();
        let count = found.last_key_value().map_or(1, |(stream, _)| usize::from(*stream) + 1);
        context.slices.store(found.values().map(BTreeMap::len).sum::<usize>() as u64, Relaxed);
        for (number, stream) in (0..=u8::MAX).zip(&streams[..count]) {
            let slices = found.remove(&number).unwrap_or_default();
            let _ = stream.set(Stream::new(context.clone(), number, Durability::Logged, slices));
        }
        debug_assert!(found.is_empty(), "the system tree has slices of streams that were not opened");
        Ok(Self { context, made: streams, count: AtomicUsize::new(count), turn: AtomicUsize::new(0) })
    }

    /// Creates a stream for the temporary tables of a session, which is not logged.
    pub fn temporary(&self) -> Stream {
        Stream::new(self.context.clone(), 0, Durability::Temporary, BTreeMap::new())
    }

    /// Drops the slices of a session's stream, which are not read again.
    pub fn drop_temporary(&self, stream: &Stream) {
        debug_assert!(stream.durability() == Durability::Temporary, "logged undo is dropped by purge");
        stream.purge.set_dropped();
        for (_, id) in stream.slices() {
            if let Some(space) = self.context.pool.space(id) {
                self.context.pool.detach(&space, None);
            }
        }
    }

    /// Returns the number of slices, and their bytes.
    pub fn extent(&self) -> (u64, u64) {
        let slices = self.context.slices.load(Relaxed);
        (slices, self.bytes_of(slices))
    }

    /// Returns the bytes of undo that count towards the limit: two slices per stream do not count.
    pub(crate) fn bytes_in_the_limit(&self) -> u64 {
        self.bytes_of(self.context.slices.load(Relaxed).saturating_sub(2 * self.count() as u64))
    }

    fn bytes_of(&self, slices: u64) -> u64 {
        slices * SLICE_PAGES * self.context.pool.page_size() as u64
    }

    /// Returns the number of streams.
    fn count(&self) -> usize {
        self.count.load(Acquire)
    }

    /// Returns the tablespaces of all slices.
    pub fn spaces(&self) -> Vec<SpaceId> {
        self.all().flat_map(Stream::slices).map(|(_, space)| space).collect()
    }

    /// Returns the tablespaces of all slices while no slice is being created or dropped.
    pub fn stable_spaces(&self) -> BTreeSet<SpaceId> {
        self.all().flat_map(Stream::stable_slices).collect()
    }

    /// Returns all streams.
    pub fn all(&self) -> impl Iterator<Item = &Stream> {
        self.made[..self.count()].iter().filter_map(OnceLock::get)
    }

    /// Returns the stream of an undo position.
    pub fn of(&self, pos: UndoPos) -> Option<&Stream> {
        self.made[usize::from(stream_of(pos))].get()
    }

    /// Returns a stream that most likely has no appender.
    pub fn pick(&self) -> &Stream {
        let count = self.count();
        // Usually the first one is free: a single thread keeps to one stream, and its pages stay in the CPU cache.
        let first = self.turn.load(Relaxed);
        for n in 0..count.min(TRIES) {
            let stream = self.get((first + n) % count);
            if stream.is_free() {
                return stream;
            }
        }
        self.turn.store((first + TRIES) % count, Relaxed);
        if count < MAX_STREAMS && self.count.load(SeqCst) == count {
            let stream = self.get(count);
            let _ = self.count.compare_exchange(count, count + 1, SeqCst, SeqCst);
            debug_assert!(self.count() > count, "a stream was created, and no search finds it");
            return stream;
        }
        self.get(first % count)
    }

    /// Creates the slices that the streams will need next.
    ///
    /// # Errors
    /// I/O, a full disk.
    pub(crate) fn create_next_slices(&self) -> Result<()> {
        // A reservation makes the log larger, so an idle database makes none.
        if !self.all().any(Stream::needs_next_slice) {
            return Ok(());
        }
        let _room = self.context.pool.context().log.admit(LOG_BYTES_OF_NEW_SLICES)?;
        self.all().try_for_each(Stream::create_next_slices)
    }

    /// Returns the stream of this number, which is created if it does not exist.
    pub(in crate::txn) fn get(&self, number: usize) -> &Stream {
        debug_assert!(number < MAX_STREAMS, "there are at most {MAX_STREAMS} streams");
        let stream = self.made[number].get_or_init(|| {
            Stream::new(self.context.clone(), number as u8, Durability::Logged, BTreeMap::new())
        });
        debug_assert!(usize::from(stream.number()) == number, "a stream is found by its number");
        stream
    }
}

#[cfg(test)]
mod tests {
    use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

    use super::{
        super::{
            super::{
                Mode,
                tests::{Base, PAGE_SIZE, Setup},
            },
            stream::key_of,
        },
        *,
    };
    use crate::{mtr::Mtr, system::Change};

    /// The number in a damaged record must not overflow when positions are computed.
    #[test]
    fn a_slice_without_a_place_in_its_stream_is_damage() {
        let bytes = SLICE_PAGES * (PAGE_SIZE as u64 - 32);
        let first_refused = (1 << 55) / bytes;
        for (slice, is_refused) in
            [(first_refused - 1, false), (first_refused, true), (u64::MAX / bytes, true), (u64::MAX, true)]
        {
            let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
            let base = Base::open(Setup { purge: false, ..Setup::simulated(&disk, &env) }).unwrap();
            base.put(b"row", b"11x", Mode::Insert).unwrap();
            let space = base.transactions.streams().spaces()[0];
            let mut mtr = Mtr::begin(&base.pool).unwrap();
            let record = Change::put(key_of(0, slice), space.0.to_le_bytes().to_vec());
            base.system.change(&mut mtr, &mut [record]).unwrap();
            mtr.commit().unwrap();
            base.sync().unwrap();
            drop(base);
            let disk = disk.restart(Survive::Everything);
            let opened = Base::open(Setup { purge: false, ..Setup::simulated(&disk, &env) });
            match opened {
                Ok(base) => {
                    assert!(!is_refused, "slice {slice}");
                    // The stream continues after that slice.
                    base.put(b"another row", b"22x", Mode::Insert).unwrap();
                }
                Err(error) => {
                    assert!(
                        is_refused && error.to_string().contains("makes no sense"),
                        "slice {slice}: {error}"
                    );
                }
            }
        }
    }

    #[test]
    fn all_streams_are_found_again() {
        for count in [1, 255, MAX_STREAMS] {
            let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
            let open = |disk: &SimulatedDisk| {
                Base::open(Setup { log_size: 16 << 20, purge: false, ..Setup::simulated(disk, &env) })
                    .unwrap()
            };
            let base = open(&disk);
            let streams = base.transactions.streams();
            for number in 0..count {
                // The next one to write gets this stream.
                streams.get(number);
                streams.count.store(number + 1, SeqCst);
                streams.turn.store(number, SeqCst);
                base.put(&number.to_be_bytes(), &number.to_be_bytes(), Mode::Insert).unwrap();
            }
            let made = streams.spaces();
            assert!(made.len() >= count, "{} slices of {count} streams", made.len());
            base.sync().unwrap();
            drop(base);
            let base = open(&disk.restart(Survive::Everything));
            let streams = base.transactions.streams();
            assert_eq!((streams.all().count(), streams.spaces()), (count, made));
        }
    }
}
