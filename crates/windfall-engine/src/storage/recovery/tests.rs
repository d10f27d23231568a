//! Crash enumeration of the layers up to mini-transactions: pages, groups, drops, checkpoints, eviction.

mod copies;
mod dropped;
mod room;
mod unfinished;
mod unsynced;
mod unwritable;

use std::collections::BTreeMap;

use windfall_sim::{Fault, SimulatedDisk, SimulatedEnv, Survive};

use super::{attach_file, recover, scan};
use crate::{
    buffer::{BATCH_PAGES, BufferPool, Doublewrite, Durability, Space, StorageContext},
    checkpoint::{Checkpointer, TransactionNotes},
    disk::{Disk, FileName, Folder},
    env::{Env, Worker, WorkerClass},
    error::{CorruptError, Error, Result},
    health::Health,
    ids::{Lsn, PageNo, SpaceId, TrxId, UndoPos},
    log::{Control, ControlFile, GroupWriter, Log, LogOptions, Record},
    mtr::Mtr,
    page::{PageOp, PageType},
    sync::{Arc, as_another_thread},
    tablespace::{self, Deleter},
};

const PAGE_SIZE: usize = 4096;
const FRAMES: usize = 64;

struct NoTransactions;

impl TransactionNotes for NoTransactions {
    fn note(&self, _group: &mut GroupWriter) -> Option<Lsn> {
        None
    }

    fn ceilings(&self) -> (u64, u64) {
        (100, 0)
    }
}

/// The layers under test, running.
struct Base {
    env: SimulatedEnv,
    pool: Arc<BufferPool>,
    checkpointer: Arc<Checkpointer>,
    _workers: Vec<Worker>,
}

impl Base {
    fn open(disk: &SimulatedDisk, seed: u64) -> Result<Self> {
        Self::open_with(disk, seed, FRAMES)
    }

    fn open_with(disk: &SimulatedDisk, seed: u64, frames: usize) -> Result<Self> {
        Self::open_unless(disk, seed, frames, None)
    }

    /// Opens the database; no record names `unnamed`, so that tablespace is not required.
    fn open_unless(disk: &SimulatedDisk, seed: u64, frames: usize, unnamed: Option<SpaceId>) -> Result<Self> {
        let env = SimulatedEnv::new(seed);
        let health = Health::new();
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let is_new = disk.len(FileName::Control)?.is_none();
        let mut control = if is_new {
            Doublewrite::create(&*shared, PAGE_SIZE, BATCH_PAGES)?;
            let control = Control {
                page_size: PAGE_SIZE as u32,
                uuid: [7; 16],
                space_ceiling: 100,
                ..Control::default()
            };
            ControlFile::create(shared.clone(), health.clone(), control)?
        } else {
            ControlFile::open(shared.clone(), health.clone())?
        };
        let before = control.control().clone();
        let scan = scan(&shared, &before, &|_| {})?;
        let options = LogOptions { size: 256 << 10, segment: 64 << 10, buffer: 64 << 10 };
        let log = Log::open(
            shared.clone(),
            Arc::new(env.clone()),
            health.clone(),
            options,
            &mut control,
            scan.end,
        )?;
        let log = Arc::new(log);
        let context =
            StorageContext { disk: shared.clone(), log: log.clone(), env: Arc::new(env.clone()), health };
        let pool = Arc::new(BufferPool::new(context, PAGE_SIZE, frames, frames)?);
        pool.check_at_yield_points();
        let now = control.control().clone();
        let checkpointer = Arc::new(Checkpointer::new(pool.clone(), control));
        let mut workers = Vec::from(checkpointer.spawn(&env)?);
        let writer = log.clone();
        workers.push(env.spawn("log", WorkerClass::Service, log.wake(), Box::new(move || writer.step()))?);
        let mut lost = recover(&pool, &now, &scan, &|_| {})?.lost;
        lost.retain(|space, _| Some(*space) != unnamed);
        if let Some(error) = lost.into_values().next() {
            return Err(error);
        }
        checkpointer.end_recovery(Arc::new(NoTransactions));
        Ok(Self { env, pool, checkpointer, _workers: workers })
    }

    fn commit(&self, mtr: Mtr<'_>) -> Result<()> {
        let end = mtr.commit()?.unwrap();
        self.pool.context().log.sync_to(end)
    }
}

/// The expected content of the pages: by tablespace, by page, a number.
type Model = BTreeMap<u64, BTreeMap<u32, u64>>;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Allocates a page in each of two tablespaces, as one group.
    Allocate(u64, u64),
    /// Writes a number to several pages of a tablespace, as one group.
    Write(u64),
    Free(u64),
    Drop(u64),
    Checkpoint,
    /// Lets background work run.
    Settle,
}

fn script(seed: u64, steps: usize) -> Vec<Step> {
    let chance = SimulatedEnv::new(seed);
    let mut draw = |n: u64| chance.random() % n;
    (0..steps)
        .map(|n| {
            // A dropped tablespace is never created again, so ids grow with time.
            let space = |draw: &mut dyn FnMut(u64) -> u64| 16 + n as u64 / 40 + draw(3);
            match draw(20) {
                0..8 => Step::Allocate(space(&mut draw), space(&mut draw)),
                8..14 => Step::Write(space(&mut draw)),
                14..16 => Step::Free(space(&mut draw)),
                16 => Step::Drop(16 + n as u64 / 40),
                17 => Step::Checkpoint,
                _ => Step::Settle,
            }
        })
        .collect()
}

const AT: usize = 64;

struct Run<'a> {
    base: &'a Base,
    spaces: BTreeMap<u64, Arc<Space>>,
    dropped: Vec<u64>,
    /// The acknowledged state.
    model: Model,
    /// The state if the current step has taken effect.
    next: Model,
}

impl Run<'_> {
    fn space(&mut self, id: u64) -> Arc<Space> {
        let pool = &self.base.pool;
        self.spaces.entry(id).or_insert_with(|| pool.attach(SpaceId(id), Durability::Logged)).clone()
    }

    fn write(mtr: &mut Mtr<'_>, space: &Arc<Space>, page: u32, value: u64) -> Result<()> {
        let slot = mtr.latch(space, PageNo(page))?;
        mtr.apply(slot, &PageOp::Write { at: AT as u32, bytes: &value.to_le_bytes() });
        Ok(())
    }

    fn step(&mut self, n: u64, step: Step) -> Result<()> {
        let pool = self.base.pool.clone();
        let _room = pool.context().log.admit(4096)?;
        self.base.env.yield_point();
        self.next = self.model.clone();
        match step {
            Step::Allocate(a, b) => {
                if self.dropped.contains(&a) || self.dropped.contains(&b) {
                    return Ok(());
                }
                let mut mtr = Mtr::begin(&pool)?;
                for id in [a.min(b), a.max(b)] {
                    let space = self.space(id);
                    let near = PageNo((n % 7) as u32);
                    let slot = tablespace::allocate(&mut mtr, &space, PageType::Leaf, 0, near)?;
                    let page = mtr.id(slot).page.0;
                    Self::write(&mut mtr, &space, page, n)?;
                    assert!(
                        self.next.entry(id).or_default().insert(page, n).is_none(),
                        "page {page} is in use"
                    );
                }
                self.base.commit(mtr)?;
            }
            Step::Write(id) => {
                let pages: Vec<u32> =
                    self.model.get(&id).map(|p| p.keys().copied().collect()).unwrap_or_default();
                if pages.is_empty() {
                    return Ok(());
                }
                let space = self.space(id);
                let mut mtr = Mtr::begin(&pool)?;
                for page in pages.iter().skip(n as usize % pages.len()).step_by(3).take(4) {
                    Self::write(&mut mtr, &space, *page, n)?;
                    self.next.entry(id).or_default().insert(*page, n);
                }
                self.base.commit(mtr)?;
            }
            Step::Free(id) => {
                let Some((&page, _)) = self.model.get(&id).and_then(|p| p.last_key_value()) else {
                    return Ok(());
                };
                let space = self.space(id);
                let mut mtr = Mtr::begin(&pool)?;
                let slot = mtr.latch(&space, PageNo(page))?;
                let freeing = tablespace::prepare_free(&mut mtr, &space, slot)?;
                tablespace::free(&mut mtr, &space, freeing);
                self.next.entry(id).or_default().remove(&page);
                self.base.commit(mtr)?;
            }
            Step::Drop(id) => {
                if self.dropped.contains(&id) || !self.model.contains_key(&id) {
                    return Ok(());
                }
                let space = self.space(id);
                self.next.remove(&id);
                self.dropped.push(id);
                let mut mtr = Mtr::begin(&pool)?;
                mtr.record(&Record::Drop { spaces: vec![SpaceId(id)].into() });
                let end = mtr.commit()?.unwrap();
                pool.context().log.sync_to(end)?;
                pool.detach(&space, Some(end));
                while pool.reclaim_step(&mut drop) {}
            }
            Step::Checkpoint => drop(self.base.checkpointer.checkpoint(false)?),
            Step::Settle => self.base.env.run_workers(5),
        }
        self.model = self.next.clone();
        Ok(())
    }
}

/// Returns a tablespace, whether the log names it or not.
fn known(base: &Base, id: SpaceId) -> Arc<Space> {
    let pool = &base.pool;
    pool.space(id).unwrap_or_else(|| {
        let space = pool.attach(id, Durability::Logged);
        let exists = pool.context().disk.len(FileName::Data(id)).unwrap().is_some();
        attach_file(pool, &space, exists, None).unwrap();
        space
    })
}

fn observe(base: &Base, model: &Model) -> std::result::Result<(), String> {
    for (id, pages) in model {
        let space = known(base, SpaceId(*id));
        if pages.is_empty() && !space.has_pages() {
            continue;
        }
        let used = tablespace::pages_in_use(&base.pool, &space).map_err(|e| e.to_string())?;
        let used: Vec<u32> = used.into_iter().map(|p| p.0).filter(|p| *p != 0).collect();
        let expected: Vec<u32> = pages.keys().copied().collect();
        if used != expected {
            return Err(format!("tablespace {id}: pages {used:?} are in use, not {expected:?}"));
        }
        for (page, value) in pages {
            let shared = base
                .pool
                .share(&space, PageNo(*page), crate::page::Access::Point)
                .map_err(|e| e.to_string())?;
            let found = shared.page().u64(AT);
            if found != *value {
                return Err(format!("tablespace {id} page {page}: {found}, not {value}"));
            }
        }
    }
    Ok(())
}

/// Runs the script, and crashes at an operation of the disk if one is given. Returns the disk, the acknowledged state,
/// and the state that is possible instead.
fn run(seed: u64, script: &[Step], crash_at: Option<u64>) -> (SimulatedDisk, Model, Model) {
    let disk = SimulatedDisk::new(seed);
    if let Some(operation) = crash_at {
        disk.crash_at(operation);
    }
    let Ok(base) = Base::open(&disk, seed) else { return (disk, Model::new(), Model::new()) };
    let mut run = Run {
        base: &base,
        spaces: BTreeMap::new(),
        dropped: vec![],
        model: Model::new(),
        next: Model::new(),
    };
    for (n, step) in script.iter().enumerate() {
        if let Err(error) = run.step(n as u64 + 1, *step) {
            assert!(disk.is_crashed(), "step {n} {step:?}: {error}");
            return (disk, run.model, run.next);
        }
    }
    observe(&base, &run.model).unwrap_or_else(|what| panic!("without any crash: {what}"));
    (disk, run.model, run.next)
}

fn check(disk: &SimulatedDisk, seed: u64, model: &Model, next: &Model, what: &str) {
    if disk.len(FileName::Control).is_ok_and(|l| l.is_none()) {
        // The run crashed before there was a database.
        return assert!(model.is_empty());
    }
    let base = match Base::open(disk, seed) {
        Ok(base) => base,
        Err(error) if model.is_empty() && next.is_empty() => {
            assert!(error.to_string().contains("control"), "{what}: {error}");
            return;
        }
        Err(error) => panic!("{what}: {error}"),
    };
    if let Err(with) = observe(&base, next)
        && let Err(without) = observe(&base, model)
    {
        panic!("{what}: neither with the last step ({with}) nor without ({without})");
    }
}

fn enumerate(seed: u64, steps: usize, every: u64) -> u64 {
    let script = script(seed, steps);
    let (disk, ..) = run(seed, &script, None);
    let total = disk.operations();
    let mut points = 0;
    for operation in (1 + seed % every..=total).step_by(every as usize) {
        let (disk, model, next) = run(seed, &script, Some(operation));
        for survive in [Survive::Nothing, Survive::Everything, Survive::Random(seed ^ operation)] {
            let what = format!("seed {seed}, crash at operation {operation} of {total}, {survive:?}");
            let survivor = disk.restart(survive);
            // Recovery itself is interrupted, too.
            survivor.crash_at(1 + operation % 37);
            let _ = Base::open(&survivor, seed);
            let survivor = survivor.restart(survive);
            check(&survivor, seed, &model, &next, &what);
            points += 1;
        }
    }
    points
}

#[test]
fn a_drop_under_the_hands_of_purge_does_not_stop_the_database() {
    let disk = SimulatedDisk::new(1);
    let base = Base::open(&disk, 1).unwrap();
    let space = base.pool.attach(SpaceId(30), Durability::Logged);
    let mut mtr = Mtr::begin(&base.pool).unwrap();
    for _ in 0..2 {
        tablespace::allocate(&mut mtr, &space, PageType::Overflow, 0, PageNo::ROOT).unwrap();
    }
    base.commit(mtr).unwrap();
    // Purge frees page after page, and the table is dropped between two of them.
    let mut mtr = Mtr::begin(&base.pool).unwrap();
    let first = mtr.latch(&space, PageNo(1)).unwrap();
    let first = tablespace::prepare_free(&mut mtr, &space, first).unwrap();
    tablespace::free(&mut mtr, &space, first);
    base.pool.detach(&space, None);
    assert!(mtr.latch(&space, PageNo(2)).is_err());
    drop(mtr);
    assert!(base.pool.context().health.check().is_ok());
    // An unlogged change of a live tablespace poisons the database.
    let live = base.pool.attach(SpaceId(31), Durability::Logged);
    let mut mtr = Mtr::begin(&base.pool).unwrap();
    tablespace::allocate(&mut mtr, &live, PageType::Leaf, 0, PageNo::ROOT).unwrap();
    drop(mtr);
    assert!(base.pool.context().health.check().is_err());
}

#[test]
fn a_file_that_was_created_after_its_drop_is_not_missed() {
    let disk = SimulatedDisk::new(1);
    {
        let base = Base::open(&disk, 1).unwrap();
        // The drop is below the low-water mark, the file is deleted, and the log still states that it was created.
        let mut mtr = Mtr::begin(&base.pool).unwrap();
        mtr.record(&Record::FileMade { space: SpaceId(77) });
        base.commit(mtr).unwrap();
    }
    Base::open(&disk.restart(Survive::Nothing), 1).unwrap();
}

/// Returns two tablespaces of one page each, created below the low-water mark.
fn two_pages(disk: &SimulatedDisk) -> Result<(Base, [Arc<Space>; 2])> {
    let base = Base::open(disk, 1)?;
    let spaces = [40, 41].map(|id| base.pool.attach(SpaceId(id), Durability::Logged));
    for space in &spaces {
        let mut mtr = Mtr::begin(&base.pool)?;
        tablespace::allocate(&mut mtr, space, PageType::Leaf, 0, PageNo::ROOT)?;
        base.commit(mtr)?;
    }
    // The low-water mark rises to where the log states that the files were created.
    base.checkpointer.checkpoint_all(false)?;
    Ok((base, spaces))
}

fn set(base: &Base, space: &Arc<Space>, value: u64) -> Result<()> {
    let mut mtr = Mtr::begin(&base.pool)?;
    Run::write(&mut mtr, space, 1, value)?;
    // At its end, too: no part of it alone passes for the whole page.
    let slot = mtr.latch(space, PageNo(1))?;
    mtr.apply(slot, &PageOp::Write { at: PAGE_SIZE as u32 - 8, bytes: &value.to_le_bytes() });
    base.commit(mtr)
}

fn pages_are(base: &Base, values: [u64; 2]) -> std::result::Result<(), String> {
    observe(base, &[(40, values[0]), (41, values[1])].map(|(id, n)| (id, BTreeMap::from([(1, n)]))).into())
}

/// Writes of pages fail repeatedly and tear them, others succeed. Sets what was acknowledged last.
fn tear(disk: &SimulatedDisk, acknowledged: &mut [u64; 2]) -> Result<()> {
    let (base, [one, other]) = two_pages(disk)?;
    set(&base, &one, 7)?;
    acknowledged[0] = 7;
    disk.fail_at(0, Fault::TornPage);
    assert!(base.pool.flush([(one.clone(), PageNo(1))]).is_err());
    for n in 1..8 {
        set(&base, &other, n)?;
        acknowledged[1] = n;
        if n % 3 != 0 {
            disk.fail_at(0, Fault::TornPage);
        }
        if base.pool.flush([(other.clone(), PageNo(1))]).is_err() && disk.is_crashed() {
            return Ok(());
        }
    }
    base.pool.flush_all()?;
    pages_are(&base, *acknowledged).unwrap();
    Ok(())
}

#[test]
fn an_invalid_record_is_reported_with_its_segment() {
    let disk = SimulatedDisk::new(1);
    let (base, [space, _]) = two_pages(&disk).unwrap();
    let log = base.pool.context().log.clone();
    while log.end() < Lsn(64 << 10) {
        set(&base, &space, 1).unwrap();
    }
    let (at, _) = log.begin_group().append(b"\xff no record").unwrap();
    log.sync_to(Lsn::MAX).unwrap();
    drop((base, space, log));
    let error = Base::open(&disk.restart(Survive::Nothing), 1).err();
    let Some(Error::Corrupt(CorruptError::Log { file, lsn, .. })) = error else { panic!("{error:?}") };
    assert_eq!((file, lsn), (disk.path(FileName::Log((64 << 10) - 4096)), at));
}

#[test]
fn a_page_torn_by_a_failed_write_stays_whole_in_the_doublewrite_file() {
    let disk = SimulatedDisk::new(3);
    tear(&disk, &mut [0; 2]).unwrap();
    for operation in 1..=disk.operations() {
        let disk = SimulatedDisk::new(3);
        disk.crash_at(operation);
        let mut acknowledged = [0; 2];
        let _ = tear(&disk, &mut acknowledged);
        if acknowledged == [0; 2] {
            continue;
        }
        for survive in [Survive::Nothing, Survive::Everything, Survive::Random(operation)] {
            let what = format!("crash at operation {operation}, {survive:?}, acknowledged: {acknowledged:?}");
            let base =
                Base::open(&disk.restart(survive), 1).unwrap_or_else(|error| panic!("{what}: {error}"));
            // The change in progress may be there.
            let [one, other] = acknowledged;
            pages_are(&base, [one, other])
                .or_else(|_| pages_are(&base, [one, other + 1]))
                .unwrap_or_else(|found| panic!("{what}: {found}"));
        }
    }
}

#[test]
fn a_torn_page_is_whole_again_in_memory_if_its_place_takes_no_write() {
    // Some requests are executed when they are submitted, others when they are waited for.
    for seed in 0..8 {
        let disk = SimulatedDisk::new(seed);
        let (base, [one, _]) = two_pages(&disk).unwrap();
        set(&base, &one, 7).unwrap();
        disk.fail_at(0, Fault::TornPage);
        assert!(base.pool.flush([(one.clone(), PageNo(1))]).is_err());
        drop(base);
        let disk = disk.restart(Survive::Everything);
        disk.fail_always_on(FileName::Data(one.id()), Fault::WriteFails);
        let base = Base::open(&disk, seed).unwrap_or_else(|error| panic!("{seed}: {error}"));
        pages_are(&base, [7, 0]).unwrap_or_else(|found| panic!("{seed}: {found}"));
        assert!(base.pool.flush_all().is_err(), "seed {seed}: the page is as torn as before");
        disk.clear_faults();
        pages_are(&Base::open(&disk, seed).unwrap(), [7, 0])
            .unwrap_or_else(|found| panic!("{seed}: {found}"));
    }
}

/// Files created by a process that was killed before their names were durable are found and used by the next one.
#[test]
fn file_names_of_a_killed_process_are_durable_after_an_opening() {
    let are_durable = |disk: &SimulatedDisk, what: &str| {
        drop(Base::open(disk, 1).unwrap());
        let left = disk.restart(Survive::Nothing);
        for file in [FileName::Control, FileName::Doublewrite] {
            assert!(left.len(file).unwrap().is_some(), "{what}: {file} is missing after a loss of power");
        }
    };
    let disk = SimulatedDisk::new(1);
    drop(Base::open(&disk, 1).unwrap());
    // The doublewrite file was lost, and is made again.
    disk.remove(FileName::Doublewrite).unwrap();
    disk.sync_folder(Folder::Root).unwrap();
    Doublewrite::create(&disk, PAGE_SIZE, BATCH_PAGES).unwrap();
    are_durable(&disk.next_process(), "made again");
    for operation in 1..=disk.operations() {
        let disk = SimulatedDisk::new(1);
        disk.crash_at(operation);
        drop(Base::open(&disk, 1));
        are_durable(&disk.next_process(), &format!("killed at operation {operation}"));
    }
}

/// Returns two pages that were changed and written, each in its own batch.
fn two_written(disk: &SimulatedDisk) -> [Arc<Space>; 2] {
    let (base, spaces) = two_pages(disk).unwrap();
    for (space, value) in spaces.iter().zip([7, 8]) {
        set(&base, space, value).unwrap();
        base.pool.flush([(space.clone(), PageNo(1))]).unwrap();
    }
    spaces
}

#[test]
fn a_page_that_cannot_be_read_is_restored_from_its_copy() {
    let disk = SimulatedDisk::new(3);
    let spaces = two_written(&disk);
    let disk = disk.restart(Survive::Nothing);
    for space in &spaces {
        disk.make_unreadable(FileName::Data(space.id()), PAGE_SIZE as u64);
    }
    pages_are(&Base::open(&disk, 1).unwrap(), [7, 8]).unwrap();
}

#[test]
fn a_copy_that_cannot_be_read_is_none() {
    let disk = SimulatedDisk::new(3);
    two_written(&disk);
    let disk = disk.restart(Survive::Nothing);
    let length = disk.len(FileName::Doublewrite).unwrap().unwrap();
    for at in [0, length / 2] {
        for block in 0..3 {
            let disk = disk.next_process();
            disk.make_unreadable(FileName::Doublewrite, at + block * 4096);
            pages_are(&Base::open(&disk, 1).unwrap(), [7, 8]).unwrap();
        }
    }
}

#[test]
fn a_page_is_not_restored_from_a_copy_that_may_be_outdated() {
    let disk = SimulatedDisk::new(3);
    let (base, [one, other]) = two_pages(&disk).unwrap();
    for value in [7, 9] {
        set(&base, &one, value).unwrap();
        base.pool.flush([(one.clone(), PageNo(1))]).unwrap();
    }
    // The low-water mark passes the changes that led to the newer copy.
    base.pool.files_to_record(16).into_iter().for_each(|space| base.pool.file_recorded(space));
    base.checkpointer.checkpoint_all(false).unwrap();
    drop((base, other));
    let disk = disk.restart(Survive::Nothing);
    let data = FileName::Data(one.id());
    let length = disk.len(FileName::Doublewrite).unwrap().unwrap();
    for half in [0, length / 2] {
        let disk = disk.next_process();
        assert!(disk.corrupt(data, PAGE_SIZE as u64 + 200, 1));
        disk.make_unreadable(FileName::Doublewrite, half);
        // Only this page is affected, if only the older copy is left.
        let found = pages_are(&Base::open(&disk, 1).unwrap(), [9, 0]);
        assert!(found.is_ok() || found.unwrap_err().contains("checksum"), "half {half}");
    }
    let mut refused = 0;
    for half in [0, length / 2] {
        let disk = disk.next_process();
        disk.make_unreadable(data, PAGE_SIZE as u64);
        disk.make_unreadable(FileName::Doublewrite, half);
        match Base::open(&disk, 1) {
            // The newer copy: the low-water mark is directly above its last change.
            Ok(base) => pages_are(&base, [9, 0]).unwrap(),
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("page 1"), "{error}");
            }
        }
        // The bad blocks become readable again.
        let disk = disk.next_process();
        disk.make_readable(data, PAGE_SIZE as u64);
        disk.make_readable(FileName::Doublewrite, half);
        pages_are(&Base::open(&disk, 1).unwrap(), [9, 0]).unwrap();
    }
    assert_eq!(refused, 1, "of the other half the older copy is read");
}

#[test]
fn a_page_that_cannot_be_read_and_has_no_copy_is_named() {
    let disk = SimulatedDisk::new(3);
    let [one, _] = two_written(&disk);
    let disk = disk.restart(Survive::Nothing);
    disk.make_unreadable(FileName::Data(one.id()), PAGE_SIZE as u64);
    disk.remove(FileName::Doublewrite).unwrap();
    let error = Base::open(&disk, 1).err().expect("it is opened without a page").to_string();
    let file = disk.path(FileName::Data(one.id())).display().to_string();
    assert!(error.contains(&file) && error.contains("page 1"), "{error}");
}

#[test]
fn a_torn_page_that_is_latched_stays_whole_in_the_doublewrite_file() {
    let disk = SimulatedDisk::new(3);
    let (base, [one, other]) = two_pages(&disk).unwrap();
    set(&base, &one, 7).unwrap();
    set(&base, &other, 8).unwrap();
    disk.fail_at(0, Fault::TornPage);
    assert!(base.pool.flush([(one.clone(), PageNo(1))]).is_err());
    let latched = base.pool.exclusive(&one, PageNo(1)).unwrap();
    as_another_thread(|| {
        // Each of these overwrites one half of the doublewrite file.
        for n in 0..2 {
            assert_eq!(base.pool.flush([(other.clone(), PageNo(1))]).unwrap(), 1, "{n}");
            let mut page = base.pool.exclusive(&other, PageNo(1)).unwrap();
            page.mark_dirty(&other, base.pool.context().log.durable());
        }
    });
    let crashed = disk.survivor(Survive::Everything);
    drop(latched);
    base.pool.flush_all().unwrap();
    assert_eq!(base.pool.oldest_dirty(), None);
    pages_are(&Base::open(&crashed, 1).unwrap(), [7, 8]).unwrap();
}

/// Drops a tablespace, and leaves its file.
fn drop_space(base: &Base, space: &Arc<Space>) {
    let mut mtr = Mtr::begin(&base.pool).unwrap();
    mtr.record(&Record::Drop { spaces: vec![space.id()].into() });
    base.pool.detach(space, mtr.commit().unwrap());
    while base.pool.reclaim_step(&mut drop) {}
}

#[test]
fn a_torn_page_is_needed_until_the_drop_of_its_tablespace_is_durable() {
    let disk = SimulatedDisk::new(3);
    let (base, [one, other]) = two_pages(&disk).unwrap();
    set(&base, &one, 7).unwrap();
    disk.fail_at(0, Fault::TornPage);
    assert!(base.pool.flush([(one.clone(), PageNo(1))]).is_err());
    set(&base, &other, 1).unwrap();
    drop_space(&base, &one);
    // Each of these overwrites one half of the doublewrite file.
    for n in 0..2 {
        assert_eq!(base.pool.flush([(other.clone(), PageNo(1))]).unwrap(), 1, "{n}");
        let mut page = base.pool.exclusive(&other, PageNo(1)).unwrap();
        page.mark_dirty(&other, base.pool.context().log.durable());
    }
    let base = Base::open(&disk.restart(Survive::Nothing), 1).unwrap();
    let is_there = base.pool.space(one.id()).is_some_and(|space| !space.is_dropped());
    assert!(!is_there || pages_are(&base, [7, 1]).is_ok());
}

/// Returns the content of the first of two pages in its file, as readers see it and as a crash would leave it.
fn in_the_file(disk: &SimulatedDisk) -> [u64; 2] {
    [disk.clone(), disk.survivor(Survive::Nothing)].map(|disk| {
        let mut value = [0; 8];
        disk.read(FileName::Data(SpaceId(40)), (PAGE_SIZE + AT) as u64, &mut value).unwrap();
        u64::from_le_bytes(value)
    })
}

/// Returns the next process, which sees in the page's file what is not durable there. The doublewrite file, which
/// could repair that, is lost.
fn next_without_copies(disk: &SimulatedDisk) -> Option<SimulatedDisk> {
    (in_the_file(disk) == [7, 0]).then(|| {
        let next = disk.next_process();
        next.remove(FileName::Doublewrite).unwrap();
        next
    })
}

#[test]
fn writes_of_a_killed_process_are_synced_before_new_writes() {
    let mut cases = 0;
    for n in 1..20 {
        let disk = SimulatedDisk::new(3);
        let (base, [one, _]) = two_pages(&disk).unwrap();
        set(&base, &one, 7).unwrap();
        disk.crash_at(disk.operations() + n);
        let _ = base.pool.flush([(one.clone(), PageNo(1))]);
        // The outcome of the operation in progress at the kill is unknown; the operation after the write is the sync.
        let disk = disk.next_process();
        if let Some(next) = next_without_copies(&disk) {
            cases += 1;
            let _base = Base::open(&next, 1).unwrap();
            assert_eq!(in_the_file(&next), [7, 7], "killed at operation {n} of a flush");
        }
    }
    assert!(cases > 0, "no process was killed between write and sync");
}

#[test]
fn a_page_that_is_found_done_is_written_again_before_the_low_water_mark_passes() {
    let mut cases = 0;
    for seed in 0..16 {
        let disk = SimulatedDisk::new(seed);
        let (base, [one, _]) = two_pages(&disk).unwrap();
        set(&base, &one, 7).unwrap();
        let written = base.pool.context().log.durable();
        disk.fail_on(FileName::Data(one.id()), Fault::SyncFails);
        assert!(base.pool.flush([(one.clone(), PageNo(1))]).is_err());
        if let Some(next) = next_without_copies(&disk) {
            cases += 1;
            // The syncs of the next process succeed, and do not report what the failed one has lost.
            let base = Base::open(&next, seed).unwrap();
            assert_eq!(in_the_file(&next), [7, 0], "seed {seed}: found done, and not durable");
            base.pool.files_to_record(16).into_iter().for_each(|space| base.pool.file_recorded(space));
            let low_water_mark = base.checkpointer.checkpoint_all(false).unwrap();
            assert!(low_water_mark >= written, "it is replayed again");
            assert_eq!(
                in_the_file(&next),
                [7, 7],
                "seed {seed}: the low-water mark passes what is not durable"
            );
        }
    }
    assert!(cases > 0, "no sync has lost the page");
}

#[test]
fn a_panic_during_a_change_of_several_pages_stops_the_database() {
    let disk = SimulatedDisk::new(5);
    let base = Base::open(&disk, 5).unwrap();
    let space = base.pool.attach(SpaceId(20), Durability::Logged);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut mtr = Mtr::begin(&base.pool).unwrap();
        tablespace::allocate(&mut mtr, &space, PageType::Leaf, 0, PageNo(1)).unwrap();
        panic!("planned");
    }));
    assert!(panicked.is_err());
    assert!(base.pool.context().health.is_poisoned());
    assert!(Mtr::begin(&base.pool).is_err(), "something was begun after it");
    assert!(base.checkpointer.checkpoint_all(false).is_err(), "something was written after it");
    drop(base);
    // Changes that were applied and not logged are lost.
    let base = Base::open(&disk.restart(Survive::Everything), 6).unwrap();
    assert!(!base.pool.attach(SpaceId(20), Durability::Logged).has_pages());
}

#[test]
fn a_full_log_makes_the_deleter_sync_a_drop() {
    let disk = SimulatedDisk::new(7);
    let base = Base::open(&disk, 7).unwrap();
    let (pool, deleter) = (&base.pool, Deleter::new(base.pool.clone()));
    let log = &pool.context().log;
    let space = pool.attach(SpaceId(20), Durability::Logged);
    let mut mtr = Mtr::begin(pool).unwrap();
    tablespace::allocate(&mut mtr, &space, PageType::Leaf, 0, PageNo(1)).unwrap();
    base.commit(mtr).unwrap();
    base.checkpointer.checkpoint_all(false).unwrap();
    let mut mtr = Mtr::begin(pool).unwrap();
    mtr.record(&Record::Drop { spaces: vec![space.id()].into() });
    let dropped = mtr.commit().unwrap().unwrap();
    pool.detach(&space, Some(dropped));
    while pool.reclaim_step(&mut |space| deleter.push(&space)) {}

    let _ = deleter.step();
    assert!(log.durable() < dropped, "a log with room is not synced for a drop");
    while log.pressure() < 50 {
        let mut group = GroupWriter::default();
        group.push(&Record::TrxTable { active: vec![(TrxId(1), UndoPos(8)); 500] });
        log.begin_group().append(group.bytes()).unwrap();
    }
    let _ = deleter.step();
    assert!(log.durable() >= dropped, "the file still waits for its drop to be durable");
    for _ in 0..3 {
        let _ = deleter.step();
    }
    assert_eq!(deleter.deletions().files, 1);
}

#[test]
fn every_crash_point_of_short_histories() {
    let points: u64 = (1..4).map(|seed| enumerate(seed, 40, 1)).sum();
    assert!(points > 500, "{points} crash points are too few to mean anything");
}

#[test]
fn some_crash_points_of_longer_histories() {
    let points: u64 = (10..14).map(|seed| enumerate(seed, 300, 41)).sum();
    assert!(points > 100, "{points} crash points are too few to mean anything");
}
