//! The cost of a drop, by the engine's own counters, memory included, and by system calls if there is `strace`.

mod changed_env;
mod time_limit;

use std::{
    io::Write,
    path::Path,
    process::Command,
    sync::{Arc, RwLock},
    time::Duration,
};

use windfall::{
    CountingAllocator, Database, DropReport, FlushLog, IndexOptions, Options, Result, Table, TableChanges,
    TableOptions,
    env::{RealEnv, Step},
};
use windfall_base::sync::work::{self, Work};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use changed_env::{Change, Changed};
use time_limit::wait_until;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const PAGE: u64 = 4096;
const FRAMES: u64 = 2048;
/// The variable that marks the traced process.
const CHILD: &str = "WINDFALL_DROP_COST_CHILD";
const BEGIN: &str = "windfall drop begins";
const END: &str = "windfall drop has ended";

/// The log is so large that it triggers no checkpoint, so dirty pages stay dirty.
fn options() -> Options {
    Options::default()
        .page_size(PAGE as usize)
        .buffer_pool_size(FRAMES * PAGE)
        .log_size(256 << 20)
        .flush_log_at_trx_commit(FlushLog::Lazy)
}

/// Inserts rows, three to a page. Each raises both counters to its number.
fn fill(table: &Table, rows: u64) -> Result<()> {
    for n in 0..rows {
        let mut value = [n as u8; 1000];
        value[..8].copy_from_slice(&n.to_be_bytes());
        table.raise_numbers(n)?;
        table.raise_row_ids(n)?;
        table.insert(&n.to_be_bytes(), &value)?;
    }
    Ok(())
}

fn indexed() -> TableOptions {
    TableOptions::default().index("i", IndexOptions::on_value(0..8))
}

/// The most memory that a statement allocates, and frees, for itself and for each tree: names, the record, its log
/// group, occasionally a queue entry, and entries in its own lists (metadata locks, gates, ids, changes, latched
/// pages). The memory that the trees own is not part of it, whatever its size.
const ALLOCATED: u64 = 1_536;
const ALLOCATED_PER_TREE: u64 = 512;
const FREED: u64 = 1 << 10;
const FREED_PER_TREE: u64 = 320;
/// Calls that allocate, and the same number of calls that free.
const CALLS: u64 = 12;
const CALLS_PER_TREE: u64 = 2;

fn assert_little_allocated(what: &str, report: &DropReport) {
    let most = ALLOCATED + report.trees as u64 * ALLOCATED_PER_TREE;
    assert!(report.work.of(Work::AllocatedBytes) <= most, "{what}: {:?}", report.work);
}

/// Asserts the limits of a drop: no work outside the system tree, a path and two pages in it, one log write, and little
/// memory.
fn assert_cheap(what: &str, report: &DropReport, height: u64) {
    let of = |kind| report.work.of(kind);
    let trees = report.trees as u64;
    println!(
        "{what}: {} bytes allocated by {} calls, {} freed by {}, of {trees} trees",
        of(Work::AllocatedBytes),
        of(Work::Allocation),
        of(Work::FreedBytes),
        of(Work::Free)
    );
    assert!(of(Work::Allocation) <= CALLS + trees * CALLS_PER_TREE, "{what}: {:?}", report.work);
    assert!(of(Work::Free) <= CALLS + trees * CALLS_PER_TREE, "{what}: {:?}", report.work);
    assert_little_allocated(what, report);
    assert!(of(Work::FreedBytes) <= FREED + trees * FREED_PER_TREE, "{what}: {:?}", report.work);
    for kind in [
        Work::Frame,
        Work::Latch,
        Work::ListEntry,
        Work::Read,
        Work::Write,
        Work::Sync,
        Work::FileCall,
        Work::Evicted,
        Work::Reclaimed,
        Work::MapCall,
        Work::Wait,
    ] {
        assert_eq!(of(kind), 0, "{what}: {kind:?} in {:?}", report.work);
    }
    let system = of(Work::SystemTreeFrame);
    assert!(system <= height + 2, "{what}: {system} pages of a system tree of height {height}");
    assert_eq!((of(Work::LogWrite), of(Work::LogSync)), (1, 1), "{what}: {:?}", report.work);
}

/// Makes commits durable from now on and everything before durable. Then waits until no background work is left that
/// writes to the log, because the leader of a log write writes the records of all threads.
fn await_rest(db: &Database) -> Result<()> {
    db.set_flush_log_at_trx_commit(FlushLog::Sync);
    db.create_table("settled", TableOptions::default())?;
    db.drop_table("settled")?;
    let mut groups = db.metrics().log_groups;
    wait_until("the log comes to rest", || {
        std::thread::sleep(Duration::from_millis(250));
        let now = db.metrics().log_groups;
        now == core::mem::replace(&mut groups, now)
    });
    Ok(())
}

/// Directly after the background has freed much memory, a request for memory can take hundreds of microseconds, because
/// glibc sorts the freed blocks. A drop requests none, except blocks of the queues of dropped trees and of dropped
/// tables, each for 31 entries.
#[test]
fn a_drop_requests_no_memory() -> Result<()> {
    const QUEUES: usize = 2;
    /// A name with it has 60 bytes or a few more.
    const PREFIX: &str = "the_database_of_the_application/a_table_with_a_long_name__";
    // A page of the system tree that is not in memory is read by a request with memory of its own.
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options().buffer_pool_size(128 << 20))?;
    let mut with_indexes = TableOptions::default();
    for n in 0..30 {
        with_indexes = with_indexes.index(&format!("i{n}"), IndexOptions::on_value(0..8));
    }
    // More tables than a leaf of the system tree has: the last ones leave it nearly empty, which is noted for a merge.
    let tables = 31 * 4_usize;
    for (trees, table) in [(1, TableOptions::default()), (31, with_indexes)] {
        for mode in [FlushLog::Sync, FlushLog::Lazy] {
            db.set_flush_log_at_trx_commit(mode);
            for n in 0..tables {
                db.create_table(&format!("{PREFIX}{n}"), table.clone())?.insert(b"k", b"a value")?;
            }
            // A group that outgrows the thread's buffer.
            db.table(&format!("{PREFIX}0"))?.put(b"long", &[7; 9_000])?;
            let reports: Vec<DropReport> =
                (0..tables).map(|n| db.drop_table(&format!("{PREFIX}{n}"))).collect::<Result<_>>()?;
            // On a busy machine the log's worker may be late: then a drop that needs the next file of the log prepares
            // it, with its path and its name.
            let (prepared, rest): (Vec<_>, Vec<_>) =
                reports.iter().partition(|report| report.work.of(Work::FileCall) > 0);
            assert!(prepared.len() <= 4, "{} drops have prepared files of the log", prepared.len());
            let requests: Vec<u64> = rest.iter().map(|report| report.work.of(Work::Allocation)).collect();
            let most = (tables * trees).div_ceil(31) + tables.div_ceil(31) + QUEUES;
            assert!(requests.iter().sum::<u64>() as usize <= most, "{trees} trees, {mode:?}: {requests:?}");
        }
    }
    Ok(())
}

/// Queues of background work allocate one block for some dozens of entries.
#[test]
fn each_of_many_statements_allocates_little() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options())?;
    for n in 0..100 {
        db.create_table("t", indexed())?;
        let reports = [
            ("drop of an index", db.drop_index("t", "i")?),
            ("truncation", db.truncate_table("t")?),
            ("drop", db.drop_table("t")?),
        ];
        for (statement, report) in reports {
            assert_little_allocated(&format!("{statement} {n}"), &report);
        }
    }
    Ok(())
}

#[test]
fn the_work_of_a_drop_depends_on_nothing() -> Result<()> {
    let mut seen = Vec::new();
    for hashed in [false, true] {
        for (fill_name, rows, clean) in [
            ("of no page", 0, false),
            ("of one page", 1, false),
            ("dirty", 4500, false),
            ("clean", 4500, true),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let db = Database::open(folder.path(), options().hash_index(hashed))?;
            for name in ["dropped", "truncated", "first", "second"] {
                db.create_table(name, indexed())?;
            }
            assert_eq!(db.check()?.findings, Vec::<String>::new());
            let height = db.metrics().system_tree_height;
            for name in ["dropped", "truncated"] {
                let table = db.table(name)?;
                fill(&table, rows / 2)?;
                for n in 0..(rows / 2).min(500) {
                    assert!(table.get(&n.to_be_bytes())?.is_some());
                }
            }
            if clean {
                db.checkpoint()?;
            }
            await_rest(&db)?;
            let metrics = db.metrics();
            let what = format!("{fill_name}, hash index {hashed}");
            if rows > 1 {
                let wanted = if clean { metrics.pool_clean } else { metrics.pool_dirty };
                assert!(wanted > FRAMES / 2, "{what}: {metrics:?}");
            }
            assert_cheap(&format!("drop, {what}"), &db.drop_table("dropped")?, height);
            assert_cheap(&format!("truncation, {what}"), &db.truncate_table("truncated")?, height);
            assert_cheap(&format!("drop of an index, {what}"), &db.drop_index("truncated", "i")?, height);
            let report = db.drop_tables(&["first", "second", "truncated"])?;
            assert_eq!(report.trees, 5);
            assert_cheap(&format!("group, {what}"), &report, height + 2 * 2);
            seen.push(report.work.of(Work::SystemTreeFrame));
        }
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?} pages for the same drop");
    Ok(())
}

/// A drop does not touch the metadata of the table, however long they are, and neither does their replacement.
#[test]
fn long_metadata_are_dropped_as_any_tree() -> Result<()> {
    for is_written in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Database::open(folder.path(), options())?;
        for name in ["dropped", "altered"] {
            fill(&db.create_table(name, indexed().metadata(vec![7; 1 << 20]))?, 10)?;
        }
        if is_written {
            db.checkpoint()?;
        }
        let height = db.metrics().system_tree_height;
        await_rest(&db)?;
        let report = db.drop_table("dropped")?;
        assert_eq!(report.trees, 3, "rows, an index, and metadata");
        assert_cheap("drop", &report, height);
        let short = TableChanges::default().metadata(vec![1; 100]);
        assert_cheap("alteration", &db.alter_table("altered", short)?, height);
        assert_eq!(db.table("altered")?.metadata()?, vec![1; 100]);
    }
    Ok(())
}

/// A tree's hash index grows with the rows that are read. No handle is kept, and the drop still frees none of it.
#[test]
fn a_hash_index_of_megabytes_is_freed_by_no_statement_and_zeroed_by_no_read() -> Result<()> {
    const ROWS: u64 = 150_000;
    /// The most that a read may zero at once, and the memory that it needs for itself.
    const A_READ: u64 = (128 << 10) + 4096;
    let folder = tempfile::tempdir().expect("a folder");
    let options = options().buffer_pool_size(64 << 20).hash_index_memory(256 << 20);
    let db = Database::open(folder.path(), options.hash_index(true))?;
    for name in ["dropped", "truncated", "without an index"] {
        db.create_table(name, indexed())?;
    }
    let height = db.metrics().system_tree_height;
    for name in ["dropped", "truncated", "without an index"] {
        let table = db.table(name)?;
        let mut most = (0, 0);
        for n in 0..ROWS {
            table.insert(&n.to_be_bytes(), &n.to_be_bytes())?;
        }
        for n in 0..ROWS {
            let before = work::so_far();
            assert!(table.get(&n.to_be_bytes())?.is_some());
            let work = work::so_far() - before;
            most = (most.0.max(work.of(Work::AllocatedBytes)), most.1.max(work.of(Work::MapCall)));
        }
        assert!(
            most.0 <= A_READ && most.1 <= 1,
            "{most:?}: bytes that a read allocates, and calls for memory"
        );
    }
    let used = db.metrics().hash_index_bytes;
    assert!(used >= 3 * (2 << 20), "{used} bytes of hash indexes");
    await_rest(&db)?;
    assert_cheap("drop", &db.drop_table("dropped")?, height);
    assert_cheap("truncation", &db.truncate_table("truncated")?, height);
    assert_cheap("drop of an index", &db.drop_index("without an index", "i")?, height);
    db.drop_table("without an index")?;
    wait_until("hash indexes are freed", || db.metrics().hash_index_bytes == 0);
    Ok(())
}

/// The thread that drops the last handle of a dropped table frees next to nothing.
#[test]
fn the_last_handle_of_a_dropped_table_frees_nothing() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options().buffer_pool_size(64 << 20).hash_index(true))?;
    let table = db.create_table("t", indexed())?;
    fill(&table, 10_000)?;
    for n in 0..10_000u64 {
        assert!(table.get(&n.to_be_bytes())?.is_some());
    }
    let index = table.index("i")?;
    let mut rows = table.range::<[u8; 8]>(..)?;
    assert!(rows.next().is_some());
    let free = db.metrics().pool_free;
    db.drop_table("t")?;
    // The frames and the memory of the hash index are freed although handles exist.
    wait_until("frames come back", || db.metrics().pool_free > free + 3000);
    wait_until("hash indexes are freed", || db.metrics().hash_index_bytes == 0);
    let freed = |name: &str, run: Box<dyn FnOnce()>| {
        let before = work::so_far();
        run();
        let work = work::so_far() - before;
        println!("{name}: {work:?}");
        assert!(work.of(Work::FreedBytes) <= 8 << 10 && work.of(Work::MapCall) == 0, "{name}: {work:?}");
    };
    freed("rows", Box::new(move || drop(rows)));
    freed("index", Box::new(move || drop(index)));
    freed("table", Box::new(move || drop(table)));
    Ok(())
}

#[test]
fn a_table_that_no_checkpoint_saw_makes_no_file() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options())?;
    db.create_table("warm", indexed())?;
    let files = db.metrics().files_created;
    for round in 0..200 {
        let table = db.create_table("t", indexed())?;
        fill(&table, 10)?;
        if round % 2 == 0 {
            db.truncate_table("t")?;
            fill(&table, 3)?;
        }
        db.drop_table("t")?;
    }
    let session = db.session();
    for _ in 0..50 {
        fill(&*session.scratch()?, 10)?;
    }
    assert_eq!(db.metrics().files_created, files, "a table that was never flushed has a file");
    Ok(())
}

#[test]
fn a_group_of_a_thousand_is_one_commit() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    // The tables fill half of the pool: no page of the system tree that the drops need is evicted.
    let db = Database::open(folder.path(), options().buffer_pool_size(2 * FRAMES * PAGE))?;
    let names: Vec<String> = (0..1000).map(|n| format!("partition {n:04}")).collect();
    for name in &names {
        fill(&db.create_table(name, TableOptions::default())?, 1)?;
    }
    await_rest(&db)?;
    let before = db.metrics().log_syncs;
    let report = db.drop_tables(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
    let syncs = db.metrics().log_syncs - before;
    assert_eq!(report.trees, 1000);
    assert_eq!(report.work.of(Work::LogSync), 1, "{:?}", report.work);
    assert!(report.work.of(Work::Allocation) <= CALLS + 1000 * CALLS_PER_TREE, "{:?}", report.work);
    assert!(report.work.of(Work::Free) <= CALLS + 1000 * CALLS_PER_TREE, "{:?}", report.work);
    assert!(report.work.of(Work::FreedBytes) <= FREED + 1000 * FREED_PER_TREE, "{:?}", report.work);
    assert!(
        report.work.of(Work::AllocatedBytes) <= ALLOCATED + 1000 * ALLOCATED_PER_TREE,
        "{:?}",
        report.work
    );
    assert_eq!(syncs, 1, "syncs of the log while a group was dropped");
    for kind in [
        Work::Frame,
        Work::Latch,
        Work::ListEntry,
        Work::Sync,
        Work::FileCall,
        Work::Read,
        Work::Write,
        Work::MapCall,
        Work::Wait,
    ] {
        assert_eq!(report.work.of(kind), 0, "{kind:?} in {:?}", report.work);
    }
    assert_eq!(db.tables()?, []);
    Ok(())
}

/// Workers pause while the test holds the lock.
#[derive(Debug, Default)]
struct PausedWorkers(Arc<RwLock<()>>);

impl Change for PausedWorkers {
    fn step(&self, _: &'static str, mut step: Step) -> Step {
        let rest = self.0.clone();
        Box::new(move || {
            let _works = rest.read();
            step()
        })
    }
}

/// Independent of the speed of the disk: the sync that one thread has begun does not end before all threads have logged
/// their drops.
#[test]
fn eight_droppers_share_their_syncs() -> Result<()> {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 20;
    let disk = SimulatedDisk::new(1);
    let env = Arc::new(Changed { env: Arc::new(RealEnv::default()), change: PausedWorkers::default() });
    let db = Database::open_on(Arc::new(disk.clone()), env.clone(), &options(), &|_| {})?;
    let name = |round, n| format!("t {round} {n}");
    for (round, n) in (0..ROUNDS).flat_map(|round| (0..THREADS).map(move |n| (round, n))) {
        fill(&db.create_table(&name(round, n), TableOptions::default())?, 1)?;
    }
    db.checkpoint()?;
    db.set_flush_log_at_trx_commit(FlushLog::Sync);
    let durable = || -> Result<u64> {
        let env = Arc::new(SimulatedEnv::new(1));
        let db = Database::open_on(Arc::new(disk.survivor(Survive::Nothing)), env, &options(), &|_| {})?;
        Ok(ROUNDS * THREADS - db.tables()?.len() as u64)
    };
    for round in 0..ROUNDS {
        // From here on only the drops are logged.
        let resting = env.change.0.write();
        let groups = db.metrics().log_groups;
        disk.hold_log_syncs(true);
        let syncs = std::thread::scope(|scope| {
            let drop_table = |n| db.drop_table(&name(round, n));
            let drops: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || drop_table(n))).collect();
            let finished = || drops.iter().filter(|drop| drop.is_finished()).count();
            wait_until("all of them have logged their drops, and one of them syncs", || {
                let are_logged = db.metrics().log_groups >= groups + THREADS;
                are_logged && disk.held_log_syncs() > 0 || finished() > 0
            });
            let seen = (disk.held_log_syncs(), finished());
            let before = durable();
            // Before any assertion, because the scope waits for the threads.
            disk.hold_log_syncs(false);
            assert_eq!(seen, (1, 0), "running syncs, and drops that did not wait for one");
            assert_eq!(before?, round * THREADS, "drops that are durable before the sync");
            let reports = drops.into_iter().map(|drop| drop.join().expect("a thread that drops"));
            reports.map(|report| Ok(report?.work.of(Work::LogSync))).sum::<Result<u64>>()
        })?;
        assert_eq!(db.metrics().log_groups, groups + THREADS, "a drop is one group of the log");
        // One sync was in progress, and the next one covers all drops that were logged during it (group commit).
        assert!((1..=2).contains(&syncs), "{THREADS} drops made {syncs} syncs");
        assert_eq!(durable()?, (round + 1) * THREADS, "drops that are durable");
        drop(resting);
    }
    Ok(())
}

/// The size of the hash index that the traced process drops.
const HASH_INDEX: u64 = 1 << 30;
/// The statements that are traced, in this order.
const TRACED: [&str; 3] = ["drop", "truncation", "drop of an index"];

/// The traced process: each statement runs between two marks.
#[test]
#[ignore = "run by the test that traces it"]
fn traced_child() -> Result<()> {
    let Ok(folder) = std::env::var(CHILD) else { return Ok(()) };
    let options = options().buffer_pool_size(4 * FRAMES * PAGE).hash_index(true);
    let db = Database::open(folder, options.hash_index_memory(4 * HASH_INDEX))?;
    let mut marks = std::fs::File::options().write(true).open("/dev/null").expect("/dev/null");
    let other = db.create_table("other", TableOptions::default())?;
    for (n, what) in TRACED.iter().enumerate() {
        db.set_flush_log_at_trx_commit(FlushLog::Lazy);
        // No handle is kept: the statement drops the last reference to the trees.
        let table = db.create_table("t", indexed())?;
        fill(&table, 3000)?;
        assert!(db.metrics().pool_dirty > 500);
        // Both trees have a hash index, and the last statement drops an index alone.
        #[cfg(feature = "lab")]
        {
            table.simulate_hash_index(HASH_INDEX / 2);
            // The memory of its previous size is freed in the background.
            wait_until("hash indexes are freed", || db.metrics().hash_index_bytes == HASH_INDEX);
        }
        drop(table);
        await_rest(&db)?;
        // The last syncs had no other thread to serve, so the next one does not wait for one (group-commit delay).
        db.set_flush_log_at_trx_commit(FlushLog::Sync);
        (0..3).try_for_each(|_| other.put(b"key", b"value"))?;
        marks.write_all(BEGIN.as_bytes()).expect("a mark");
        let done = match n {
            0 => db.drop_table("t"),
            1 => db.truncate_table("t"),
            _ => db.drop_index("t", "i"),
        };
        marks.write_all(END.as_bytes()).expect("a mark");
        assert!(done?.trees > 0, "{what}");
        wait_until("hash indexes are freed", || db.metrics().hash_index_bytes <= HASH_INDEX / 2);
        if n > 0 {
            db.drop_table("t")?;
        }
        wait_until("hash indexes are freed", || db.metrics().hash_index_bytes == 0);
    }
    Ok(())
}

/// Returns the system calls of the statements' thread between the marks.
fn calls_between_marks(trace: &Path) -> Vec<Vec<String>> {
    let trace = std::fs::read_to_string(trace).expect("the trace");
    let thread_of = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    let mut inside: Option<(String, Vec<String>)> = None;
    for line in trace.lines() {
        if line.contains(BEGIN) {
            inside = Some((thread_of(line), Vec::new()));
        } else if line.contains(END) {
            found.extend(inside.take().map(|(_, calls)| calls));
        } else if let Some((thread, calls)) = &mut inside
            && thread_of(line) == *thread
        {
            let call = line[thread.len()..].trim_start();
            // A call or a mark that another thread's call interrupts takes two lines.
            if !call.starts_with("<...") {
                calls.push(call.to_owned());
            }
        }
    }
    assert_eq!(found.len(), TRACED.len(), "{trace}");
    found
}

/// Reports a skipped test on stderr, where it is visible even if the output of passing tests is not shown.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

#[test]
fn the_system_is_asked_for_the_log_and_nothing_else() {
    if !cfg!(feature = "lab") {
        skipped("without the feature `lab` no hash index of a GiB is made: those of its rows are traced");
    }
    if Command::new("strace").arg("-V").output().is_err() {
        skipped("there is no strace on this machine");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-qq", "-s", "64", "-o"]).arg(&trace);
    strace.arg(std::env::current_exe().expect("the name of the test"));
    strace.args(["--exact", "traced_child", "--ignored", "--nocapture"]);
    let output = strace.env(CHILD, folder.path().join("db")).output().expect("strace runs");
    if !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("ptrace") {
        skipped(&format!("strace may not trace here: {}", String::from_utf8_lossy(&output.stderr)));
        return;
    }
    assert!(output.status.success(), "{output:?}");
    for (what, calls) in TRACED.iter().zip(calls_between_marks(&trace)) {
        println!("the system calls of a {what}: {calls:#?}");
        let of_log = |call: &str, name: &str| call.starts_with(&format!("{name}(")) && call.contains("/log/");
        let count = |name| calls.iter().filter(|call| of_log(call, name)).count();
        assert_eq!(count("fdatasync"), 1, "{what}: {calls:#?}");
        assert!((1..=2).contains(&count("pwrite64")), "{what}: {calls:#?}");
        let others = calls.iter().filter(|call| !of_log(call, "pwrite64") && !of_log(call, "fdatasync"));
        assert_eq!(others.collect::<Vec<_>>(), Vec::<&String>::new(), "{what}");
    }
}
