//! What a drop costs, counted: by the engine's own counters and, where there is `strace`, by the system's.

use std::{
    io::Write,
    path::Path,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use windfall::{
    Database, DropReport, FlushLog, IndexOptions, Options, Result, Table, TableOptions, sync::work::Work,
};

const PAGE: u64 = 4096;
const FRAMES: u64 = 2048;
/// How the process that is traced knows what it is.
const CHILD: &str = "WINDFALL_DROP_COST_CHILD";
const BEGIN: &str = "windfall drop begins";
const END: &str = "windfall drop has ended";

/// A log that takes everything without asking for a checkpoint, so that what is dirty stays dirty.
fn options() -> Options {
    Options::default()
        .page_size(PAGE as usize)
        .buffer_pool_size(FRAMES * PAGE)
        .log_size(256 << 20)
        .flush_log_at_trx_commit(FlushLog::Lazy)
}

/// Three rows take a page. Each brings its number along.
fn fill(table: &Table, rows: u64) -> Result<()> {
    for n in 0..rows {
        let mut value = [n as u8; 1000];
        value[..8].copy_from_slice(&n.to_be_bytes());
        table.raise_numbers(n)?;
        table.insert(&n.to_be_bytes(), &value)?;
    }
    Ok(())
}

fn indexed() -> TableOptions {
    TableOptions::default().index("i", IndexOptions::on_value(0..8))
}

/// The bar: nothing outside the catalog, a path and a bit inside, and one log write.
fn assert_cheap(what: &str, report: &DropReport, height: u64) {
    let of = |kind| report.work.of(kind);
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
    ] {
        assert_eq!(of(kind), 0, "{what}: {kind:?} in {:?}", report.work);
    }
    let catalog = of(Work::CatalogFrame);
    assert!(catalog <= height + 2, "{what}: {catalog} pages of a catalog of height {height}");
    assert_eq!((of(Work::LogWrite), of(Work::LogSync)), (1, 1), "{what}: {:?}", report.work);
}

/// From now on commits are durable, what came before is, and nobody tidies up after it any more: whoever leads the
/// log writes for everybody.
fn settle(db: &Database) -> Result<()> {
    db.set_flush_log_at_trx_commit(FlushLog::Sync);
    db.create_table("settled", TableOptions::default())?;
    db.drop_table("settled")?;
    let mut groups = db.metrics().log_groups;
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(250));
        let now = core::mem::replace(&mut groups, db.metrics().log_groups);
        if now == groups {
            return Ok(());
        }
    }
    panic!("the log does not come to rest");
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
            let height = db.metrics().catalog_height;
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
            settle(&db)?;
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
            seen.push(report.work.of(Work::CatalogFrame));
        }
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?} pages for the same drop");
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
    assert_eq!(db.metrics().files_created, files, "files were made for what nobody flushed");
    Ok(())
}

#[test]
fn a_group_of_a_thousand_is_one_commit() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    // The tables fill half of it: no page of the system tree goes that the drops need.
    let db = Database::open(folder.path(), options().buffer_pool_size(2 * FRAMES * PAGE))?;
    let names: Vec<String> = (0..1000).map(|n| format!("partition {n:04}")).collect();
    for name in &names {
        fill(&db.create_table(name, TableOptions::default())?, 1)?;
    }
    settle(&db)?;
    let before = db.metrics().log_syncs;
    let report = db.drop_tables(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
    let syncs = db.metrics().log_syncs - before;
    assert_eq!(report.trees, 1000);
    assert_eq!(report.work.of(Work::LogSync), 1, "{:?}", report.work);
    assert_eq!(syncs, 1, "syncs of the log while a group was dropped");
    for kind in
        [Work::Frame, Work::Latch, Work::ListEntry, Work::Sync, Work::FileCall, Work::Read, Work::Write]
    {
        assert_eq!(report.work.of(kind), 0, "{kind:?} in {:?}", report.work);
    }
    assert_eq!(db.tables()?, []);
    Ok(())
}

#[test]
fn eight_droppers_share_their_syncs() -> Result<()> {
    const THREADS: usize = 8;
    const EACH: usize = 60;
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options())?;
    for n in 0..THREADS * EACH {
        fill(&db.create_table(&format!("t{n}"), TableOptions::default())?, 1)?;
    }
    settle(&db)?;
    let before = db.metrics().log_syncs;
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, SeqCst);
                    if n >= THREADS * EACH {
                        break;
                    }
                    db.drop_table(&format!("t{n}")).expect("a drop");
                }
            });
        }
    });
    let (syncs, drops) = (db.metrics().log_syncs - before, (THREADS * EACH) as u64);
    println!("{drops} drops by {THREADS} threads: {syncs} syncs");
    assert!(syncs * 4 <= drops, "{drops} drops by {THREADS} threads made {syncs} syncs");
    Ok(())
}

/// What the traced process does: drops between two marks.
#[test]
#[ignore = "run by the test that traces it"]
fn traced_child() -> Result<()> {
    let Ok(folder) = std::env::var(CHILD) else { return Ok(()) };
    let db = Database::open(folder, options())?;
    let table = db.create_table("t", indexed())?;
    fill(&table, 3000)?;
    assert!(db.metrics().pool_dirty > 500);
    let mut marks = std::fs::File::options().write(true).open("/dev/null").expect("/dev/null");
    settle(&db)?;
    marks.write_all(BEGIN.as_bytes()).expect("a mark");
    let dropped = db.drop_table("t");
    marks.write_all(END.as_bytes()).expect("a mark");
    dropped.map(drop)
}

/// The system calls of the dropping thread between the marks.
fn calls_of_a_drop(trace: &Path) -> Vec<String> {
    let trace = std::fs::read_to_string(trace).expect("the trace");
    let mark = |mark: &str| {
        let mut lines = trace.lines().enumerate();
        lines.find(|(_, line)| line.contains(mark)).unwrap_or_else(|| panic!("no {mark:?} in:\n{trace}"))
    };
    let ((from, line), (to, _)) = (mark(BEGIN), mark(END));
    let thread = line.split_whitespace().next().expect("a thread id");
    let of_thread = |line: &&str| line.split_whitespace().next() == Some(thread);
    let call = |line: &str| line[thread.len()..].trim_start().to_owned();
    let lines = trace.lines().take(to).skip(from + 1).filter(of_thread).map(call);
    // A call that another thread's came into is told in two lines, and so is a mark.
    lines.filter(|line| !line.starts_with("<...")).collect()
}

/// Is seen also where what passes is not shown.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

#[test]
fn the_system_is_asked_for_the_log_and_nothing_else() {
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
    let calls = calls_of_a_drop(&trace);
    println!("a drop's system calls: {calls:#?}");
    let of_log = |call: &str, name: &str| call.starts_with(&format!("{name}(")) && call.contains("/log/");
    let count = |name| calls.iter().filter(|call| of_log(call, name)).count();
    assert_eq!(count("fdatasync"), 1, "{calls:#?}");
    assert!((1..=2).contains(&count("pwrite64")), "{calls:#?}");
    let others = calls.iter().filter(|call| !of_log(call, "pwrite64") && !of_log(call, "fdatasync"));
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&String>::new());
}
