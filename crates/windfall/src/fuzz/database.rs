//! The fuzz target of opening: a database with arbitrary file contents under valid checksums.
//!
//! **Purpose.** It covers what no target of a single decoder covers: recovery, undo streams, allocation maps and the
//! system tree, over pages and log groups with arbitrary contents.
//!
//! **Invariants.** Opening, checking, reading, background work and closing end, with a result or an error (test:
//! `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`). An unmodified database has its rows, and a database
//! in which the check finds nothing can be read (checked by `fuzz/database.rs::database`).

use std::io;

use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use crate::{
    database::{Database, IndexOptions, TableOptions},
    disk::{Disk, FileName, Folder},
    error::{Result, UsageError},
    fuzz_input::Input,
    ids::{PageId, PageNo},
    log::{self, GroupWriter},
    options::Options,
    page::{
        Page, PageOp,
        fuzz::{SIZE, bytes, words},
    },
    sync::{Arc, OnceLock},
};

const ROWS: u32 = 120;
/// The maximum number of rows that a scan of so small a database returns.
const SCAN_ROWS_MAX: usize = 20_000;

fn options() -> Options {
    Options::default()
        .page_size(SIZE)
        .buffer_pool_size(96 * SIZE as u64)
        .log_size(1 << 20)
        .log_buffer_size(256 << 10)
}

fn open(disk: &SimulatedDisk, env: &SimulatedEnv) -> Result<Database> {
    Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options(), &|_| {})
}

/// A value source that takes a snapshot of the disk while it is being read.
struct Source<'a> {
    disk: &'a SimulatedDisk,
    env: &'a SimulatedEnv,
    left: usize,
    picture: &'a mut Option<SimulatedDisk>,
}

impl io::Read for Source<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = out.len().min(self.left).min(5000);
        out[..n].fill(7);
        self.left -= n;
        if self.left < 6000 && self.picture.is_none() {
            self.env.run_workers(300);
            *self.picture = Some(self.disk.survivor(Survive::Everything));
        }
        Ok(n)
    }
}

/// Returns a database as a crash left it, in the middle of a change: with pages in files and changes in the log, with
/// undo, long values, an index, and rows that wait for purge.
fn image() -> Result<SimulatedDisk> {
    let (disk, env) = (SimulatedDisk::new(5), SimulatedEnv::new(5));
    let db = open(&disk, &env)?;
    let with_index = TableOptions::default().index("by_town", IndexOptions::on_value(0..3));
    let table = db.create_table("people", with_index)?;
    db.create_table("other", TableOptions::default())?.insert(b"a", &[1; 9000])?;
    for n in 0..ROWS {
        table.insert(&n.to_be_bytes(), &[n as u8 % 5; 90][..3 + n as usize % 80])?;
    }
    db.checkpoint()?;
    for n in (0..ROWS).step_by(3) {
        table.put(&n.to_be_bytes(), &[9; 40])?;
        table.delete(&(n + 1).to_be_bytes())?;
    }
    let mut picture = None;
    let mut source = Source { disk: &disk, env: &env, left: 20_000, picture: &mut picture };
    table.put_stream(&0u32.to_be_bytes(), 20_000, &mut source)?;
    db.close()?;
    picture.ok_or_else(|| UsageError::Other("the value was not read".into()).into())
}

/// Returns the page that the input selects from the existing files.
fn some_page(input: &mut Input<'_>, disk: &SimulatedDisk) -> Option<(FileName, PageNo)> {
    let files = disk.list(Folder::Data).ok()?;
    let file = *files.get(usize::from(input.u8()) % files.len().max(1))?;
    let pages = (disk.len(file).ok()?? / SIZE as u64).max(1);
    Some((file, PageNo((u64::from(input.u8()) % pages) as u32)))
}

/// Changes bytes of a page in its file, and corrects its checksum.
fn patch(input: &mut Input<'_>, disk: &SimulatedDisk) -> Option<()> {
    let (file, no) = some_page(input, disk)?;
    let (at, len) = (usize::from(input.u16()) % SIZE, usize::from(input.u8()) % 64);
    let new = input.take(len);
    let words = words(&[]);
    let page = Page::new(&words);
    let offset = u64::from(no.0) * SIZE as u64;
    disk.read_page(file, offset, page.words()).ok()?;
    page.write(at, &new[..new.len().min(SIZE - at)]);
    page.seal();
    disk.write(file, offset, &bytes(page)).ok()
}

/// Appends a group with changes of a page to the log.
fn log_changes(input: &mut Input<'_>, disk: &SimulatedDisk) -> Option<()> {
    let (file, page) = some_page(input, disk)?;
    let FileName::Data(space) = file else { return None };
    let len = input.u8();
    let mut ops = input.take(len.into());
    let mut group = GroupWriter::default();
    while let Ok((op, rest)) = PageOp::decode(ops) {
        group.page(PageId { space, page }, &op);
        ops = rest;
    }
    log::fuzz::append(disk, group.bytes())
}

/// Reads everything. Returns whether every row could be read.
fn read_all(db: &Database) -> bool {
    let mut whole = true;
    for name in ["people", "other"] {
        let Ok(table) = db.table(name) else { continue };
        whole &= table.peek_number().is_ok();
        // The auto-increment values may be used up.
        let _ = table.next_number();
        let _ = table.next_row_id();
        let rows =
            table.rows().map(|rows| rows.take(SCAN_ROWS_MAX).map(|row| row.is_ok()).collect::<Vec<_>>());
        whole &= rows.is_ok_and(|rows| rows.len() < SCAN_ROWS_MAX && rows.into_iter().all(|is_ok| is_ok));
        for n in 0..ROWS {
            whole &= table.get(&n.to_be_bytes()).is_ok();
        }
        if let Ok(index) = table.index("by_town") {
            let rows =
                index.range("\0".."\u{fff}").map(|rows| rows.take(SCAN_ROWS_MAX).all(|row| row.is_ok()));
            whole &= rows.is_ok_and(|all| all);
        }
    }
    whole
}

/// Opens a database with modified bytes, or with arbitrary groups appended to its log.
pub(super) fn database(data: &[u8]) {
    static IMAGE: OnceLock<Result<SimulatedDisk>> = OnceLock::new();
    let image = match IMAGE.get_or_init(image) {
        Ok(image) => image,
        Err(error) => panic!("the image cannot be made: {error}"),
    };
    let disk = image.survivor(Survive::Everything);
    let mut input = Input(data);
    while !input.is_empty() {
        let _ = match input.u8() % 3 {
            0 => patch(&mut input, &disk),
            1 => log_changes(&mut input, &disk),
            _ => {
                let len = input.u8();
                log::fuzz::append(&disk, input.take(len.into()))
            }
        };
    }
    let env = SimulatedEnv::new(3);
    let db = match open(&disk, &env) {
        Ok(db) => db,
        Err(error) => {
            assert!(!data.is_empty(), "an unmodified database does not open: {error}");
            return;
        }
    };
    let sound = db.check().is_ok_and(|report| report.is_sound());
    let whole = read_all(&db);
    assert!(whole || !sound, "the check finds nothing, and not all can be read");
    if data.is_empty() {
        let rows = db.table("people").and_then(|table| table.rows()).map(Iterator::count);
        assert!(sound && rows.is_ok_and(|rows| rows == 2 * ROWS as usize / 3), "it was not modified");
    }
    env.run_workers(200);
    read_all(&db);
    let _ = db.close();
}

/// Returns changes of pages of every file, and groups for the log.
pub(super) fn database_seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![Vec::new()];
    for file in 0..8 {
        for page in [0, 1, 2, 5] {
            seeds.push([&[0, file, page, 28, 0, 6], &[2, 0, 3, 0, 1, 0][..]].concat());
            seeds.push([&[0, file, page, 128, 0, 2], &[0xf1, 0xff][..]].concat());
        }
        let mut op = Vec::new();
        PageOp::NodeRemove { slot: 1 }.encode(&mut op);
        PageOp::Write { at: 60, bytes: b"anything" }.encode(&mut op);
        seeds.push([&[1, file, 1, op.len() as u8], &op[..]].concat());
    }
    for group in log::fuzz::records_seeds() {
        seeds.push([&[2, group.len() as u8], &group[..]].concat());
    }
    seeds
}
