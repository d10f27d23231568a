//! Tests of transactions over a real pool and log on a simulated disk: a table with two secondary trees.

mod chains;
mod checks;
mod crash;
mod entry_versions;
mod fields;
mod frames;
mod freezing;
mod model;
mod obstacles;
mod own;
mod purge;
mod reservations;
mod threads;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{
    Edit, EntryForm, Ids, Mode, RowTarget, Secondary, Stop, SuppliedChange, SuppliedEntry, Transactions, Trx,
    Value,
    locks::{LockRequest, LockTimeout, RowMode, RowName, Waits},
    mvcc::value,
    row::{self, secondary},
    trx::background_rollback,
};
use crate::{
    buffer::{BATCH_PAGES, BufferPool, Doublewrite, Durability, Space, StorageContext},
    checkpoint::Checkpointer,
    disk::{Disk, FileName},
    env::{Env, Next, Worker, WorkerClass},
    error::{Error, Owner, Result},
    health::Health,
    ids::{Lsn, SpaceId, TrxId},
    log::{Control, ControlFile, Log, LogOptions, Record},
    mtr::Mtr,
    recovery::{FileRecord, Recovered, attach_file, recover, scan},
    row::FieldSet,
    store::Tree,
    sync::{
        Arc, Event, Mutex, Rank,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    system::{Change, FILE, SystemTree},
    tablespace,
    tree::hash::{HashBudget, TreeHash},
};

pub(super) const PAGE_SIZE: usize = 4096;
/// The table's trees: their ids are below those of undo.
const CLUSTERED: SpaceId = SpaceId(2);
const UNIQUE: SpaceId = SpaceId(3);
const PLAIN: SpaceId = SpaceId(4);
const LOCK_TIMEOUT: LockTimeout = LockTimeout::AtMost(Duration::from_mins(10));

/// A running database of one table.
pub(super) struct Base {
    pub pool: Arc<BufferPool>,
    pub system: Arc<SystemTree>,
    pub transactions: Arc<Transactions>,
    pub checkpointer: Arc<Checkpointer>,
    pub clustered: Arc<Tree>,
    pub unique: Arc<Tree>,
    pub plain: Arc<Tree>,
    /// How the entries of the secondary trees come apart.
    pub form: EntryForm,
    workers: Mutex<Vec<Worker>>,
}

/// The setup of a base.
pub(super) struct Setup {
    pub disk: Arc<dyn Disk>,
    pub env: Arc<dyn Env>,
    pub frames: usize,
    pub log_size: u64,
    pub purge: bool,
    /// Whether the calls supply the entries of the secondary trees, with payloads.
    pub supplied: bool,
}

impl Setup {
    pub(super) fn simulated(disk: &SimulatedDisk, env: &SimulatedEnv) -> Self {
        Self {
            disk: Arc::new(disk.clone()),
            env: Arc::new(env.clone()),
            frames: 128,
            log_size: 256 << 10,
            purge: true,
            supplied: false,
        }
    }
}

fn record_files(pool: &BufferPool, system: &SystemTree) -> Result<()> {
    let made = pool.files_to_record(16);
    if made.is_empty() {
        return Ok(());
    }
    let live = |space: &&SpaceId| pool.space(**space).is_some_and(|space| !space.is_dropped());
    let key = |space: &SpaceId| [&[FILE][..], &space.0.to_be_bytes()].concat();
    let mut changes: Vec<Change> =
        made.iter().filter(live).map(|space| Change::put(key(space), Vec::new())).collect();
    let mut mtr = Mtr::begin(pool)?;
    system.change(&mut mtr, &mut changes)?;
    mtr.commit()?;
    for space in &made {
        pool.file_recorded(*space);
    }
    Ok(())
}

impl Base {
    pub(super) fn open(setup: Setup) -> Result<Self> {
        let Setup { disk, env, frames, log_size, purge, supplied } = setup;
        let health = Health::new();
        let mut control = if disk.len(FileName::Control)?.is_none() {
            Doublewrite::create(&*disk, PAGE_SIZE, BATCH_PAGES)?;
            let control = Control { page_size: PAGE_SIZE as u32, uuid: [7; 16], ..Control::default() };
            ControlFile::create(disk.clone(), health.clone(), control)?
        } else {
            ControlFile::open(disk.clone(), health.clone())?
        };
        let found = scan(&disk, control.control(), &|_| {})?;
        let options = LogOptions { size: log_size, segment: 64 << 10, buffer: 256 << 10 };
        let log = Log::open(disk.clone(), env.clone(), health.clone(), options, &mut control, found.end)?;
        let log = Arc::new(log);
        let context = StorageContext { disk: disk.clone(), log: log.clone(), env: env.clone(), health };
        let pool = Arc::new(BufferPool::new(context, PAGE_SIZE, frames, frames)?);
        pool.check_at_yield_points();
        let now = control.control().clone();
        let checkpointer = Arc::new(Checkpointer::new(pool.clone(), control));
        let mut workers = Vec::from(checkpointer.spawn(&*env)?);
        workers.push(env.spawn("log", WorkerClass::Service, log.wake(), Box::new(move || log.step()))?);
        let Recovered { files, lost } = recover(&pool, &now, &found, &|_| {})?;
        if let Some(error) = lost.into_values().next() {
            return Err(error);
        }
        if pool.space(SpaceId::SYSTEM).is_none() {
            let space = pool.attach(SpaceId::SYSTEM, Durability::Logged);
            // The log no longer contains the creation of its file, but a record in this file does.
            let exists = files.contains(&SpaceId::SYSTEM);
            attach_file(&pool, &space, exists, exists.then_some(FileRecord::Permanent))?;
        }
        let budget = Arc::new(HashBudget::new(0));
        let system = Arc::new(SystemTree::new(pool.clone(), budget.clone()));
        let mut made = HashSet::new();
        system.scan(&[FILE], &mut |key, _| {
            made.insert(SpaceId(u64::from_be_bytes(key[1..].try_into().unwrap())))
        })?;
        let mut named = HashSet::from([SpaceId::SYSTEM]);
        let mut attach = |id: SpaceId| -> Result<Arc<Space>> {
            named.insert(id);
            if let Some(space) = pool.space(id) {
                return Ok(space);
            }
            let space = pool.attach(id, Durability::Logged);
            attach_file(
                &pool,
                &space,
                files.contains(&id),
                made.contains(&id).then_some(FileRecord::Permanent),
            )?;
            Ok(space)
        };
        let ids = Arc::new(Ids::new(pool.clone(), SpaceId(found.space_ceiling), TrxId(found.trx_ceiling)));
        let transactions = Transactions::open(
            pool.clone(),
            system.clone(),
            ids,
            &found.unfinished,
            &found.prepared,
            &mut attach,
        )?;
        let transactions = Arc::new(transactions);
        transactions.check_at_yield_points();
        let mut trees = Vec::new();
        for id in [CLUSTERED, UNIQUE, PLAIN] {
            let tree = Tree::new(pool.clone(), attach(id)?, TreeHash::new(budget.clone()));
            trees.push(Arc::new(tree.with_horizon(transactions.active().clone())));
        }
        let lost: Vec<_> = pool.spaces().into_iter().filter(|space| !named.contains(&space.id())).collect();
        if !lost.is_empty() {
            let mut mtr = Mtr::begin(&pool)?;
            mtr.record(&Record::Drop { spaces: lost.iter().map(|space| space.id()).collect() });
            let end = mtr.commit()?;
            for space in &lost {
                pool.detach(space, end);
            }
        }
        checkpointer.end_recovery(transactions.clone());
        background_rollback::schedule_unfinished(&transactions)?;
        while background_rollback::rollback_step(&transactions) {}
        let (pool2, system2) = (pool.clone(), system.clone());
        let record = move || {
            let _ = record_files(&pool2, &system2);
            Next::Idle(Duration::from_millis(20))
        };
        workers.push(env.spawn("records", WorkerClass::Client, Arc::new(Event::new()), Box::new(record))?);
        let pool2 = pool.clone();
        let reclaim = move || {
            if pool2.reclaim_step(&mut drop) { Next::Again } else { Next::Idle(Duration::from_millis(20)) }
        };
        workers.push(env.spawn(
            "reclaimer",
            WorkerClass::Service,
            Arc::new(Event::new()),
            Box::new(reclaim),
        )?);
        if purge {
            let purging = transactions.clone();
            let wake = transactions.purge().wake();
            let step = move || match purging.purge().step() {
                Ok(true) => Next::Again,
                _ => Next::Idle(Duration::from_millis(20)),
            };
            workers.push(env.spawn("purge", WorkerClass::Client, wake, Box::new(step))?);
        }
        let mut trees = trees.into_iter();
        let mut tree = || trees.next().unwrap();
        Ok(Self {
            clustered: tree(),
            unique: tree(),
            plain: tree(),
            pool,
            system,
            transactions,
            checkpointer,
            form: if supplied {
                EntryForm::Supplied { usual: 3, payloads: true }
            } else {
                EntryForm::Terminated
            },
            workers: Mutex::new(Rank::Leaf, workers),
        })
    }

    pub(super) fn secondaries(&self) -> [Secondary<'_>; 2] {
        let form = self.form;
        [
            Secondary {
                tree: &self.unique,
                unique: true,
                place: 0,
                replaces: None,
                name: NAMES[0],
                form,
                extraction: None,
            },
            Secondary {
                tree: &self.plain,
                unique: false,
                place: 1,
                replaces: None,
                name: NAMES[1],
                form,
                extraction: None,
            },
        ]
    }

    pub(super) fn target<'a>(&'a self, secondaries: &'a [Secondary<'a>]) -> RowTarget<'a> {
        RowTarget {
            name: "table",
            clustered: &self.clustered,
            secondaries,
            keys_of: &|value| Ok(keys_of(value).into_iter().collect()),
            temporary: None,
            watch: None,
            reads: None,
        }
    }

    /// Returns an observer of changes that locks the first row for this transaction when it is about to be changed.
    pub(super) fn lock_once<'b>(&'b self, trx: &mut Trx<'_>) -> Box<row::Watch<'b>> {
        let (lock_owner, is_locked) = (trx.lock_owner().unwrap(), AtomicBool::new(false));
        Box::new(move |key, _, _| {
            if !is_locked.swap(true, Relaxed) {
                let wanted =
                    LockRequest::Row(RowName { space: CLUSTERED, key: key.into() }, RowMode::Exclusive);
                self.transactions.lock_manager().acquire(&lock_owner, wanted, LockTimeout::NoWait).unwrap();
            }
        })
    }

    pub(super) fn put(&self, key: &[u8], value: &[u8], mode: Mode) -> Result<Option<Lsn>> {
        self.transactions.write(&self.target(&self.secondaries()), key, Value::Bytes(value), mode)
    }

    pub(super) fn delete(&self, key: &[u8]) -> Result<Option<row::Changed>> {
        self.transactions.delete(&self.target(&self.secondaries()), key)
    }

    /// Returns the index key and the payload of a row with this value in a secondary tree.
    pub(super) fn entry_of(&self, n: usize, value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let key = keys_of(value).swap_remove(n)?;
        Some(if self.form == EntryForm::Terminated {
            (key, Vec::new())
        } else {
            // The length makes it self-delimiting.
            ([&[key.len() as u8], &key[..]].concat(), payload_of(n, value))
        })
    }

    pub(super) fn sync(&self) -> Result<()> {
        let log = &self.pool.context().log;
        log.sync_to(log.end())
    }

    pub(super) fn purge_all(&self) {
        while self.transactions.purge().step().unwrap() {}
    }

    /// Returns the difference, unless the table holds exactly these rows.
    pub(super) fn compare(&self, model: &Rows) -> std::result::Result<(), String> {
        let text = |error: Error| error.to_string();
        let mut rows = Rows::new();
        let mut cursor = self.clustered.cursor();
        while cursor.next().map_err(text)? {
            let header = cursor.header().unwrap();
            if !header.is_deleted() {
                let mut value = cursor.value().to_vec();
                let there = value::resolve(&self.clustered, cursor.key(), header, FieldSet::ALL, &mut value)
                    .map_err(text)?;
                assert!(there, "the row is missing, and no thread changed it");
                rows.insert(cursor.key().to_vec(), value);
            }
        }
        if rows != *model {
            let show = |rows: &Rows| -> Vec<String> {
                rows.iter().map(|(k, v)| format!("{k:?}:{}:{:?}", v.len(), &v[..v.len().min(3)])).collect()
            };
            return Err(format!("rows {:?} instead of {:?}", show(&rows), show(model)));
        }
        for (n, tree) in [&self.unique, &self.plain].into_iter().enumerate() {
            let mut found = BTreeSet::new();
            let mut cursor = tree.cursor();
            while cursor.next().map_err(text)? {
                if !cursor.header().unwrap().is_deleted() {
                    let parts = self.form.split(cursor.key(), cursor.value()).unwrap();
                    let index_key = self.form.index_key(parts.index, &mut Vec::new()).to_vec();
                    found.insert((index_key, parts.row.to_vec(), parts.payload.to_vec()));
                }
            }
            let expected: BTreeSet<_> = model
                .iter()
                .filter_map(|(key, value)| {
                    let (index_key, payload) = self.entry_of(n, value)?;
                    Some((index_key, key.clone(), payload))
                })
                .collect();
            if found != expected {
                return Err(format!("secondary tree {n} holds {found:?}, not {expected:?}"));
            }
        }
        for tree in [&self.clustered, &self.unique, &self.plain, self.system.tree()] {
            tree.check().map_err(text)?;
        }
        Ok(())
    }

    /// Returns the number of entries, delete-marked or not, and of pages: clustered, unique, plain; overflow pages
    /// included.
    pub(super) fn footprint(&self) -> (u64, usize) {
        let trees = [&self.clustered, &self.unique, &self.plain];
        let entries = trees.iter().map(|tree| {
            let mut cursor = tree.cursor();
            let mut count = 0;
            while cursor.next().unwrap() {
                count += 1;
            }
            count
        });
        let pages = |tree: &&Arc<Tree>| tablespace::pages_in_use(&self.pool, tree.space()).unwrap().len();
        (entries.sum(), trees.iter().map(pages).sum())
    }

    /// Purges everything, and returns the difference: entries that are not needed, pages that belong to nothing.
    pub(super) fn compare_purged(&self, model: &Rows) -> std::result::Result<(), String> {
        self.purge_all();
        self.compare(model)?;
        let expected: usize = model.values().map(|value| 1 + keys_of(value).iter().flatten().count()).sum();
        let (entries, _) = self.footprint();
        if entries != expected as u64 {
            return Err(format!("{entries} entries where {expected} are needed"));
        }
        self.compare_pages()
    }

    /// Returns the difference, unless each page in use is needed.
    pub(super) fn compare_pages(&self) -> std::result::Result<(), String> {
        for tree in [&self.clustered, &self.unique, &self.plain, self.system.tree()] {
            let mut used =
                tablespace::pages_in_use(&self.pool, tree.space()).map_err(|error| error.to_string())?;
            used.retain(|page| page.0 % tablespace::pages_a_map(PAGE_SIZE) != 0);
            let reached = tree.check().map_err(|error| error.to_string())?.pages;
            if !reached.iter().eq(used.iter().copied()) {
                return Err(format!("pages {used:?} are in use, {reached:?} are needed"));
            }
        }
        Ok(())
    }

    pub(super) fn slices(&self) -> usize {
        self.transactions.streams().all().map(|stream| stream.slices().len()).sum()
    }

    /// Stops the workers.
    pub(super) fn stop(&self) {
        let workers = core::mem::take(&mut *self.workers.lock());
        drop(workers);
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A call of a test in a transaction.
struct TestCall<'a, 't> {
    trx: &'a mut Trx<'t>,
    waits: Waits,
}

impl<'t> row::Attempts<'t> for TestCall<'_, 't> {
    const RESTARTS_AFTER_DEADLOCK: bool = false;

    fn trx(&mut self) -> &mut Trx<'t> {
        self.trx
    }

    fn waits(&self) -> Waits {
        self.waits
    }

    fn set_waits(&mut self, waits: Waits) {
        self.waits = waits;
    }
}

/// Repeats an attempt until it is not blocked.
fn unblocked<T>(trx: &mut Trx<'_>, mut attempt: impl FnMut(&mut Trx<'_>) -> Result<T, Stop>) -> Result<T> {
    let mut call = TestCall { trx, waits: Waits::new(LOCK_TIMEOUT) };
    row::retry(&mut call, |call| attempt(call.trx).map(Some))
}

/// Puts a row in a transaction, or deletes it.
pub(super) fn change(
    trx: &mut Trx<'_>,
    target: &RowTarget<'_>,
    key: &[u8],
    value: Option<&[u8]>,
) -> Result<()> {
    unblocked(trx, |trx| {
        let new = value.map(|value| (Value::Bytes(value), Mode::Put));
        with_entries(target, key, value, new, |edit| row::change(trx, target, key, edit, false).map(drop))
    })
}

const NAMES: [&str; 2] = ["unique", "plain"];

/// Makes a change, with the entries of the row before and after it if the table takes them from the caller. No other
/// thread may change the row meanwhile. `after` is the new value, also if that is read from a source.
fn with_entries<T>(
    target: &RowTarget<'_>,
    key: &[u8],
    after: Option<&[u8]>,
    new: Option<(Value<'_>, Mode)>,
    run: impl FnOnce(&mut Edit<'_>) -> T,
) -> T {
    let mut before = Vec::new();
    let is_there = value::get(target.clustered, key, FieldSet::ALL, &mut before).unwrap_or(false);
    let entry = |n: usize, value: &[u8]| {
        let key = keys_of(value).swap_remove(n)?;
        Some(([&[key.len() as u8], &key[..]].concat(), payload_of(n, value)))
    };
    let sides = [is_there.then_some(&before[..]), after];
    let both = [0, 1].map(|n| sides.map(|value| value.and_then(|value| entry(n, value))));
    let changes = [0, 1].map(|n| {
        let supplied = |side: usize| {
            both[n][side].as_ref().map(|(key, payload)| SuppliedEntry::new(key).payload(payload))
        };
        SuppliedChange::new(NAMES[n], supplied(0), supplied(1))
    });
    let mut edit = match new {
        None => Edit::delete(),
        Some((Value::Bytes(bytes), mode)) => Edit::write(Value::Bytes(bytes), mode),
        // A source for as long as the entries.
        Some((Value::Source { length, source }, mode)) => {
            Edit::write(Value::Source { length, source: &mut *source }, mode)
        }
        Some((Value::Fields(fields), mode)) => Edit::write(Value::Fields(fields), mode),
    };
    if target.secondaries.iter().any(|secondary| secondary.form != EntryForm::Terminated) {
        edit = edit.with_entries(&changes);
    }
    run(&mut edit)
}

/// Returns the payload of a row's entry in a secondary tree: none for a short value, otherwise of one of four lengths.
fn payload_of(n: usize, value: &[u8]) -> Vec<u8> {
    value.get(3).map_or_else(Vec::new, |fill| vec![*fill; [0, 5, 200, 900][(usize::from(*fill) + n) % 4]])
}

/// Reads a row with an exclusive lock in a transaction.
pub(super) fn lock(
    trx: &mut Trx<'_>,
    target: &RowTarget<'_>,
    key: &[u8],
    value: &mut Vec<u8>,
) -> Result<bool> {
    unblocked(trx, |trx| {
        let read = row::LockingRead { mode: RowMode::Exclusive, fields: Some(FieldSet::ALL), entry: None };
        let owner = || Owner::Unknown;
        row::read_locked(trx, target.clustered, key, read, value, owner)
    })
}

impl Transactions {
    /// Writes a row, as a transaction of its own.
    pub(super) fn write(
        &self,
        target: &RowTarget<'_>,
        key: &[u8],
        value: Value<'_>,
        mode: Mode,
    ) -> Result<Option<Lsn>> {
        let after = if let Value::Bytes(bytes) = value { bytes } else { &[] };
        self.write_bytes(target, key, after, value, mode)
    }

    /// As [`Transactions::write`]. `bytes` is the value, also if that is read from a source.
    fn write_bytes(
        &self,
        target: &RowTarget<'_>,
        key: &[u8],
        bytes: &[u8],
        value: Value<'_>,
        mode: Mode,
    ) -> Result<Option<Lsn>> {
        let new = Some((value, mode));
        let changed = with_entries(target, key, Some(bytes), new, |edit| self.alone(target, key, edit))?;
        Ok(changed.and_then(|changed| changed.end))
    }

    /// Deletes a row, as a transaction of its own. Returns whether there was one, with the LSN.
    pub(super) fn delete(&self, target: &RowTarget<'_>, key: &[u8]) -> Result<Option<row::Changed>> {
        with_entries(target, key, None, None, |edit| self.alone(target, key, edit))
    }

    fn alone(&self, target: &RowTarget<'_>, key: &[u8], edit: &mut Edit<'_>) -> Result<Option<row::Changed>> {
        let mut call = row::SingleCall::new(self, LOCK_TIMEOUT);
        row::retry(&mut call, |call| row::change(&mut call.trx, target, key, edit, true).map(Some))
    }
}

/// The expected rows of the table.
pub(super) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns the index keys of a value. The unique key is the first two bytes, or none if the first byte is zero; the
/// other key is the following bytes, at most two.
pub(super) fn keys_of(value: &[u8]) -> Vec<Option<Vec<u8>>> {
    let unique = value.get(..2).filter(|key| key[0] != 0).map(<[u8]>::to_vec);
    vec![unique, value.get(2..).map(|rest| rest[..rest.len().min(2)].to_vec())]
}
