//! Opening: creating a database, or recovering an existing one.
//!
//! **Purpose.** The order in which recovery brings up the layers.
//!
//! **Invariants.** A new database exists once its control file does: that file is made when the doublewrite file is
//! durable, and before any data file and any segment of the log (test:
//! `a_new_database_exists_once_its_control_file_does`). No page is written before the log is open, because only then is
//! everything that recovery has read durable: pages are written through the pool, which has the open log (by type).

use std::{collections::BTreeSet, path::Path};

use super::{Engine, files};
use crate::{
    buffer::{BufferPool, Doublewrite, Durability, SMALLEST_ROOM, Space, StorageContext},
    catalog::Catalog,
    checkpoint::Checkpointer,
    disk::{Disk, FileName, Folder, RealDisk, RealDiskOptions},
    env::{Env, RealEnv, Worker, WorkerClass},
    error::{CorruptError, DiskError, Result, UsageError},
    health::Health,
    ids::{SpaceId, TrxId},
    log::{Control, ControlFile, LOG_OVERHEAD_BYTES, Log, Record},
    mtr::Mtr,
    options::Options,
    page,
    recovery::{self, FileRecord, Files, Lost, Recovered, Scan},
    sync::{
        Arc, Event, Mutex, OnceLock, Progress, Rank,
        atomic::{AtomicBool, AtomicU8},
    },
    system::{Change, FILE, SystemTree},
    tablespace::Deleter,
    tree::hash::HashBudget,
    txn::{Ids, Transactions, commit_order::CommitOrder, trx::background_rollback},
};

/// Unnamed tablespaces that one group of the log drops: such a group fits into the smallest log buffer.
const DROPS_PER_GROUP: usize = 1024;

/// Refuses to create a database if options forbid it, or files show that there was one.
fn check_is_new(disk: &Arc<dyn Disk>, options: &Options) -> Result<()> {
    let control = disk.path(FileName::Control);
    // Creation makes the control file durable before any of these files: so this database has lost it.
    for folder in [Folder::Data, Folder::Log] {
        if let Some(file) = disk.list(folder)?.first() {
            let what = format!(
                "it is missing, although {} is there: restore the database from a backup, or choose an empty folder for \
                 a new one",
                disk.path(*file).display()
            );
            return Err(CorruptError::File { file: control, what: what.into() }.into());
        }
    }
    if !options.create_if_missing {
        let folder = control.parent().unwrap_or(&control).to_owned();
        return Err(UsageError::NoDatabase { folder }.into());
    }
    Ok(())
}

fn create(
    disk: &Arc<dyn Disk>,
    env: &Arc<dyn Env>,
    health: &Health,
    page_size: usize,
) -> Result<ControlFile> {
    Doublewrite::create(&**disk, page_size, SMALLEST_ROOM)?;
    disk.sync_folder(Folder::Root)?;
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&env.random().to_le_bytes());
    uuid[8..].copy_from_slice(&env.random().to_le_bytes());
    let control = Control {
        page_size: page_size as u32,
        uuid,
        space_ceiling: SpaceId::FIRST.0,
        trx_ceiling: 1,
        ..Control::default()
    };
    ControlFile::create(disk.clone(), health.clone(), control)
}

/// Returns a number of frames.
fn frames(bytes: u64, page_size: usize) -> usize {
    usize::try_from(bytes / page_size as u64).unwrap_or(usize::MAX)
}

fn check_page_size(disk: &Arc<dyn Disk>, control: &Control, options: &Options) -> Result<usize> {
    let page_size = control.page_size as usize;
    if !page::SIZES.contains(&page_size) {
        let what =
            format!("its page size is {page_size}, which no version writes: restore it from a backup").into();
        return Err(CorruptError::File { file: disk.path(FileName::Control), what }.into());
    }
    match options.page_size {
        Some(asked) if asked != page_size => {
            let what = format!(
                "the database has pages of {page_size} bytes: leave the option out, or ask for these"
            );
            Err(UsageError::Option { name: "page_size", what: what.into() }.into())
        }
        _ => Ok(page_size),
    }
}

/// Attaches tablespaces to the pool as records name them.
struct Attacher<'a> {
    pool: &'a BufferPool,
    /// The data files that existed when recovery began.
    files: Files,
    /// Tablespaces with a file that was created durably, according to their record or the log.
    made: BTreeSet<SpaceId>,
    named: BTreeSet<SpaceId>,
    lost: Lost,
}

impl Attacher<'_> {
    fn attach(&mut self, id: SpaceId) -> Result<Arc<Space>> {
        self.named.insert(id);
        if let Some(error) = self.lost.remove(&id) {
            return Err(error);
        }
        let made = self.made.contains(&id).then_some(FileRecord::Permanent);
        let known = self.pool.space(id);
        if let (Some(_), Some(_), false) = (&known, made, self.files.contains(&id)) {
            return Err(DiskError::Missing { path: self.pool.context().disk.path(FileName::Data(id)) }.into());
        }
        if let Some(space) = known {
            return Ok(space);
        }
        let space = self.pool.attach(id, Durability::Logged);
        recovery::attach_file(self.pool, &space, self.files.contains(&id), made)?;
        Ok(space)
    }
}

/// Data files that no record named when the database was opened. They are being deleted.
#[derive(Clone, Debug, Default)]
pub struct Orphans {
    /// Files with an id that was assigned once: of a drop with an interrupted deletion, of a creation that never
    /// committed, or of a temporary table. Temporary tables leave no trace but the file, so a file that the engine has
    /// lost track of is also listed here.
    pub pending: Vec<SpaceId>,
    /// Files with an id that was never assigned: no crash leaves such a file.
    pub leaked: Vec<SpaceId>,
}

impl Orphans {
    fn of(scan: &Scan, attacher: &Attacher<'_>) -> Self {
        let unnamed = attacher.files.difference(&attacher.named).copied();
        let (pending, leaked) = unnamed.partition(|space| space.0 < scan.space_ceiling);
        Self { pending, leaked }
    }
}

impl Engine {
    /// Opens the database in this folder, or creates one.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_folder(path: &Path, options: &Options, progress: &dyn Fn(Progress)) -> Result<Self> {
        options.check()?;
        let disk_options = RealDiskOptions {
            open_files: options.open_files,
            io_threads: options.io_threads,
            direct: options.direct_io,
            create: options.create_if_missing,
        };
        let disk = RealDisk::open(path, disk_options)?;
        Self::open(Arc::new(disk), Arc::new(RealEnv::default()), options, progress)
    }

    /// Opens the database on this disk, or creates one.
    ///
    /// # Errors
    /// Errors of the files or the options.
    pub fn open(
        disk: Arc<dyn Disk>,
        env: Arc<dyn Env>,
        options: &Options,
        progress: &dyn Fn(Progress),
    ) -> Result<Self> {
        options.check()?;
        let (health, began) = (Health::new(), env.now());
        let (mut control, PoolSize { page_size, frames, most_frames }) =
            open_control(&disk, &env, &health, options)?;
        let scan = recovery::scan(&disk, control.control(), progress)?;
        let log = Log::open(disk.clone(), env.clone(), health.clone(), options.log(), &mut control, scan.end)
            .map(Arc::new)?;
        assert!(log.end() == scan.end, "the log does not continue at the end that recovery has found");
        let opened = control.control().clone();
        let context = StorageContext { disk: disk.clone(), log: log.clone(), env: env.clone(), health };
        let pool = Arc::new(BufferPool::new(context, page_size, frames, most_frames)?);
        pool.notify_when_stopped();
        #[cfg(any(test, feature = "testing"))]
        pool.check_at_yield_points();
        let checkpointer = Arc::new(Checkpointer::new(pool.clone(), control));
        let stopped_last = spawn_log_workers(&pool, &checkpointer)?;

        let recovered = recovery::recover(&pool, &opened, &scan, progress)?;
        let budget = Arc::new(HashBudget::new(options.hash_memory()));
        let deleter = Arc::new(Deleter::new(pool.clone()));
        let (system, mut attacher) = system_tree(&pool, &budget, &scan, recovered, opened.system_made)?;
        let transactions = open_transactions(&pool, &system, &scan, &mut attacher, options)?;
        let catalog = Catalog::open(
            pool.clone(),
            system.clone(),
            transactions.clone(),
            budget.clone(),
            (options.hash_index, options.extractors.clone()),
            &mut |space| attacher.attach(space),
        )?;
        pool.sync_created_files()?;
        // From here on there is work that requests room in the log, which may be full.
        checkpointer.end_recovery(transactions.clone());
        let orphans = Orphans::of(&scan, &attacher);
        drop_unnamed(&pool, &system, &deleter, &attacher)?;
        let engine = Self {
            disk,
            env,
            log,
            pool,
            system,
            transactions,
            commit_order: CommitOrder::default(),
            catalog: Arc::new(catalog),
            checkpointer,
            deleter,
            hash_budget: budget,
            orphans,
            flush_log: AtomicU8::new(options.flush_log_at_trx_commit as u8),
            closed: AtomicBool::new(false),
            outcome: OnceLock::new(),
            ended: Event::new(),
            stopped_first: Mutex::new(Rank::Leaf, Vec::new()),
            stopped_last: Mutex::new(Rank::Leaf, stopped_last),
            notifier: Mutex::new(Rank::Workers, None),
        };
        engine.transactions.set_lock_wait(options.lock_wait_timeout);
        engine.transactions.undo_limit().set(options.undo_limit);
        engine.transactions.undo_limit().set_policy(options.undo_limit_action);
        background_rollback::schedule_unfinished(&engine.transactions)?;
        engine.spawn_background_workers()?;
        let log_bytes = scan.end.0 - opened.low_water_mark.0;
        tracing::info!(
            target: "windfall::recovery",
            log_bytes,
            tablespaces = scan.changed.len(),
            rollbacks = engine.transactions.rollbacks().count(),
            prepared = scan.prepared.len(),
            ms = engine.env.now().saturating_sub(began).as_millis() as u64,
            "recovery is complete",
        );
        Ok(engine)
    }
}

/// The size of the buffer pool.
struct PoolSize {
    page_size: usize,
    frames: usize,
    most_frames: usize,
}

/// Opens the control file, or creates a database. The options are checked before anything is created.
fn open_control(
    disk: &Arc<dyn Disk>,
    env: &Arc<dyn Env>,
    health: &Health,
    options: &Options,
) -> Result<(ControlFile, PoolSize)> {
    let (found, page_size) = if disk.len(FileName::Control)?.is_some() {
        let control = ControlFile::open(disk.clone(), health.clone())?;
        let page_size = check_page_size(disk, control.control(), options)?;
        (Some(control), page_size)
    } else {
        check_is_new(disk, options)?;
        (None, options.page_size.unwrap_or(page::DEFAULT_SIZE))
    };
    let most = options.pool_max(page_size);
    let (frames, most_frames) = (frames(options.buffer_pool_size, page_size), frames(most, page_size));
    BufferPool::check_frames(frames, most_frames, page_size)?;
    options.check_log_buffer(page_size)?;
    let control = match found {
        Some(control) => control,
        None => create(disk, env, health, page_size)?,
    };
    Ok((control, PoolSize { page_size, frames, most_frames }))
}

/// Starts the workers that recovery needs: they write pages, take checkpoints and write the log.
fn spawn_log_workers(pool: &BufferPool, checkpointer: &Arc<Checkpointer>) -> Result<Vec<Worker>> {
    let StorageContext { log, env, health, .. } = pool.context();
    let mut workers = Vec::from(checkpointer.spawn(&**env)?);
    let writer = log.clone();
    let step = health.watch("log", Box::new(move || writer.step()));
    workers.push(env.spawn("log", WorkerClass::Service, log.wake(), step)?);
    Ok(workers)
}

/// Opens the transactions. Those that the scan has found unfinished are active again.
fn open_transactions(
    pool: &Arc<BufferPool>,
    system: &Arc<SystemTree>,
    scan: &Scan,
    attacher: &mut Attacher<'_>,
    options: &Options,
) -> Result<Arc<Transactions>> {
    let ids = Arc::new(Ids::new(pool.clone(), SpaceId(scan.space_ceiling), TrxId(scan.trx_ceiling)));
    let transactions = Transactions::open(
        pool.clone(),
        system.clone(),
        ids,
        &scan.unfinished,
        &scan.prepared,
        &mut |space| attacher.attach(space),
    )?;
    let transactions = Arc::new(transactions.with_observer(options.lock_wait_observer.clone()));
    #[cfg(any(test, feature = "testing"))]
    transactions.check_at_yield_points();
    assert!(
        transactions.active().count() == scan.unfinished.len(),
        "every unfinished transaction is active again"
    );
    Ok(transactions)
}

/// Returns the system tree, and the attacher with the recorded state of the data files.
fn system_tree<'a>(
    pool: &'a Arc<BufferPool>,
    budget: &Arc<HashBudget>,
    scan: &Scan,
    recovered: Recovered,
    made_before: bool,
) -> Result<(Arc<SystemTree>, Attacher<'a>)> {
    let Recovered { files, lost } = recovered;
    let made = scan.made.keys().copied().collect();
    let mut attacher = Attacher { pool, files, made, named: BTreeSet::new(), lost };
    if made_before {
        attacher.made.insert(SpaceId::SYSTEM);
    }
    attacher.attach(SpaceId::SYSTEM)?;
    let system = Arc::new(SystemTree::new(pool.clone(), budget.clone()));
    let mut damaged = false;
    system.scan(&[FILE], &mut |key, _| {
        match files::space_of_key(key) {
            Some(space) => drop(attacher.made.insert(space)),
            None => damaged = true,
        }
        !damaged
    })?;
    if damaged {
        return Err(system.damaged("a record of a data file is damaged"));
    }
    Ok((system, attacher))
}

/// Drops what no record names: the remains of unfinished creations and of drops with undeleted files.
fn drop_unnamed(
    pool: &Arc<BufferPool>,
    system: &SystemTree,
    deleter: &Deleter,
    attacher: &Attacher<'_>,
) -> Result<()> {
    let unnamed = |space: &SpaceId| !attacher.named.contains(space);
    let lost: Vec<_> = pool.spaces().into_iter().filter(|space| unnamed(&space.id())).collect();
    for some in lost.chunks(DROPS_PER_GROUP) {
        let _room = pool.context().log.admit_freeing(LOG_OVERHEAD_BYTES + size_of_val(some) as u64)?;
        let mut mtr = Mtr::begin(pool)?;
        mtr.record(&Record::Drop { spaces: some.iter().map(|space| space.id()).collect() });
        let end = mtr.commit()?;
        for space in some {
            pool.detach(space, end);
        }
    }
    debug_assert!(lost.iter().all(|space| space.is_dropped()), "a tablespace without a name is in use");
    let known: BTreeSet<SpaceId> = lost.iter().map(|space| space.id()).collect();
    for file in attacher.files.iter().filter(|space| unnamed(space) && !known.contains(space)) {
        deleter.push_file(*file);
    }
    let stale = attacher.made.iter().filter(|space| unnamed(space) && !attacher.files.contains(space));
    let mut changes: Vec<Change> = stale.map(|space| Change::remove(files::file_key(*space))).collect();
    for batch in changes.chunks_mut(files::RECORDS_PER_GROUP) {
        // The low-water mark may be below the creation of files by replay until their records are written, which
        // begins later: so nothing may wait for it here. And a full disk must not prevent opening: the user may drop
        // something to free space.
        let _room = pool.context().log.admit_freeing(files::LOG_BYTES_PER_GROUP)?;
        let mut mtr = Mtr::begin(pool)?;
        system.change(&mut mtr, batch)?;
        mtr.commit()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

    use super::*;
    use crate::engine::test_engine::{self, create_table, create_table_with_page};

    #[test]
    fn any_number_of_unnamed_tablespaces_is_dropped() {
        let options =
            Options::default().page_size(4096).buffer_pool_size(256 * 4096).log_buffer_size(64 << 10);
        let engine = test_engine::open(&SimulatedDisk::new(1), Arc::new(SimulatedEnv::new(1)), &options);
        let attacher = Attacher {
            pool: &engine.pool,
            files: Files::new(),
            made: BTreeSet::new(),
            named: engine.pool.spaces().iter().map(|space| space.id()).collect(),
            lost: Lost::new(),
        };
        // More than the drops that fit in one group of the log.
        let unnamed: Vec<_> =
            (10_000..15_000).map(|id| engine.pool.attach(SpaceId(id), Durability::Logged)).collect();
        drop_unnamed(&engine.pool, &engine.system, &engine.deleter, &attacher).unwrap();
        assert!(unnamed.iter().all(|space| space.is_dropped()));
        create_table(&engine, "t");
    }

    /// What a crash leaves of a creation is a database that can be opened, or none.
    #[test]
    fn a_new_database_exists_once_its_control_file_does() {
        let options = Options::default().page_size(4096).buffer_pool_size(256 * 4096).log_size(1 << 20);
        let whole = SimulatedDisk::new(1);
        whole.record_crash_points(1..=u64::MAX);
        drop(test_engine::open(&whole, Arc::new(SimulatedEnv::new(1)), &options));
        let (mut without, mut with) = (0, 0);
        for (operation, crash_point) in whole.take_crash_points() {
            for survive in [Survive::Nothing, Survive::Everything, Survive::Random(operation)] {
                let left = crash_point.restart(survive);
                let what = format!("operation {operation}, {survive}");
                if left.len(FileName::Control).unwrap().is_some() {
                    let has_room = Doublewrite::has_room(&left, 4096).unwrap();
                    assert!(has_room, "{what}: a file was to be made before the control file");
                    with += 1;
                } else {
                    let files = [Folder::Data, Folder::Log].map(|folder| left.list(folder).unwrap());
                    assert!(
                        files.iter().all(Vec::is_empty),
                        "{what}: {files:?} came before the control file"
                    );
                    without += 1;
                }
                drop(test_engine::open(&left, Arc::new(SimulatedEnv::new(1)), &options));
            }
        }
        assert!(without > 5 && with > 5, "{without} without a control file, {with} with one");
    }

    #[test]
    fn cleanup_at_open_does_not_wait_for_later_steps() {
        let options = Options::default().page_size(4096).buffer_pool_size(256 * 4096).log_size(1 << 20);
        let open = |disk: &SimulatedDisk| test_engine::open(disk, Arc::new(SimulatedEnv::new(1)), &options);
        let disk = SimulatedDisk::new(1);
        let engine = open(&disk);
        create_table_with_page(&engine, "t");
        let change = |change| {
            let mut mtr = Mtr::begin(&engine.pool).unwrap();
            engine.system.change(&mut mtr, &mut [change]).unwrap();
            mtr.commit().unwrap();
        };
        // A record of a deleted file, as a log under pressure leaves it.
        let stale = files::file_key(engine.transactions.ids().space().unwrap());
        change(Change::put(stale.clone(), Vec::new()));
        // The log states that a file was created, and no record does: the low-water mark cannot pass that.
        engine.pool.flush_all().unwrap();
        let held = engine.pool.files_low_water_mark().expect("the record was written already");
        while engine.log.pressure() < 100 || engine.log.end().0 < held.0 + engine.log.size() {
            change(Change::put(b"x".to_vec(), vec![7; 900]));
        }
        engine.log.sync_to(engine.log.end()).unwrap();
        let crashed = disk.restart(Survive::Nothing);
        drop(engine);

        // In a simulation a wait for an event that no thread will notify is a panic.
        let engine = open(&crashed);
        assert!(engine.log.pressure() >= 100, "there was room in the log");
        let mut is_there = false;
        engine
            .system
            .scan(&stale, &mut |_, _| {
                is_there = true;
                false
            })
            .unwrap();
        assert!(!is_there, "the record is still there");
    }
}
