//! A full disk on a real file system: a call that needs space fails and has changed nothing, other calls work, and all
//! calls work again once there is space.

use std::{
    collections::BTreeMap,
    env::{current_exe, var_os},
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read, Write},
    process::Command,
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use windfall::{
    Database, Error, FlushLog, IndexOptions, Options, Result, Table, TableOptions, error::DiskError,
};

use crate::{
    Case, assert_sound, check, die, guard::mix, in_processes_of_its_own, seed, sized, tell_less,
    time_limit::HANG,
};

pub(crate) const FILE_SIZE: &str = "full::files_that_may_not_grow_and_then_may";
pub(crate) const FILE_SYSTEM: &str = "full::a_file_system_that_is_full_during_any_call";

/// The pool has room for all pages that a log of this size may have changed. Otherwise each call that finds all frames
/// waiting to be written waits about ten seconds for them before it fails.
fn options() -> Options {
    Options::default()
        .page_size(4096)
        .buffer_pool_size(2000 * 4096)
        .log_size(1 << 20)
        .log_buffer_size(64 << 10)
        .flush_log_at_trx_commit(FlushLog::Write)
}

fn definition() -> TableOptions {
    TableOptions::default().index("i", IndexOptions::on_value(0..8))
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn assert_same(table: &Table, rows: &Rows, what: &str) {
    let found: Result<Rows> = table.rows().unwrap().collect();
    let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(found == *rows, "{what}: {} rows, {} expected", found.len(), rows.len());
}

/// Returns whether the system has refused to extend a file.
fn is_refused(error: &Error) -> bool {
    match error {
        Error::Disk(DiskError::Full { .. }) => true,
        Error::Disk(DiskError::Io { source, .. }) => source.kind() == io::ErrorKind::FileTooLarge,
        _ => false,
    }
}

/// Repeats a call until it is not refused any more: the log checks once per second whether there is space.
fn at_last<T>(what: &str, mut call: impl FnMut() -> Result<T>) -> T {
    let start = Instant::now();
    loop {
        match call() {
            Ok(done) => return done,
            Err(error) => {
                assert!(is_refused(&error), "{what}: {error}");
                assert!(start.elapsed() < HANG, "{what}: there is room, and still refused: {error}");
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Limits the files of this process to this many bytes, a number of whole blocks. An attempt to exceed the limit is an
/// error.
fn limit_files(most: Option<u64>) {
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    setrlimit(Resource::Fsize, Rlimit { current: most, maximum: getrlimit(Resource::Fsize).maximum })
        .unwrap();
}

/// Returns the value that belongs to a key.
fn value(key: u64) -> Vec<u8> {
    let mixed = mix(&[key]);
    let length = if mixed.is_multiple_of(40) { 4000 + mixed % 200_000 } else { 8 + mixed % 900 };
    let mut value = vec![mixed as u8; length as usize];
    value[..8].copy_from_slice(&key.to_be_bytes());
    value
}

/// Puts the next row, if that is possible.
fn put(table: &Table, rows: &mut Rows, next: &mut u64) -> Result<()> {
    *next += 1;
    let (key, value) = (next.to_be_bytes().to_vec(), value(*next));
    table.put(&key, &value)?;
    rows.insert(key, value);
    Ok(())
}

/// The file with the number of acknowledged rows, for the next process.
const ACKNOWLEDGED: &str = "acknowledged";

/// Asserts that the next process finds exactly the rows that were acknowledged in the previous one.
fn continue_working(case: &Case) {
    let db = Database::open(&case.folder, options()).unwrap();
    let acknowledged: usize = fs::read_to_string(case.folder.join(ACKNOWLEDGED)).unwrap().parse().unwrap();
    let rows: Vec<_> = db.table("t").unwrap().rows().unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len(), acknowledged);
    for (key, found) in rows {
        assert!(found == value(u64::from_be_bytes(key[..].try_into().unwrap())), "row {key:?}");
    }
    assert_sound(&db, "opened again");
    db.close().unwrap();
}

/// Every system supports this limit, so the test runs everywhere.
#[test]
fn files_that_may_not_grow_and_then_may() {
    let fill = |case: &Case| {
        let mut chance = StdRng::seed_from_u64(seed());
        // Too little for a database.
        limit_files(Some(2 * 4096));
        let error = Database::open(&case.folder, options()).unwrap_err();
        assert!(is_refused(&error), "{error:?}");
        limit_files(None);
        let db = Database::open(&case.folder, options()).unwrap();
        let table = db.create_table("t", definition()).unwrap();
        let (mut rows, mut next) = (Rows::new(), 0);
        let rounds = sized(4, 40);
        for round in 0..rounds {
            let what = format!("round {round}");
            db.create_table("other", definition()).unwrap().put(b"k", b"another row").unwrap();
            db.checkpoint().unwrap();
            let files = fs::read_dir(case.folder.join("data")).unwrap();
            let largest = files.map(|file| file.unwrap().metadata().unwrap().len()).max().unwrap();
            limit_files(Some(largest.max(1 << 20) + chance.random_range(0..256) * 4096));
            let refused = case.part("refused", || {
                loop {
                    if let Err(error) = put(&table, &mut rows, &mut next) {
                        break error;
                    }
                }
            });
            assert!(is_refused(&refused), "{what}: {refused}");
            assert!(
                refused.to_string().contains(case.folder.to_str().unwrap()),
                "{what}: no file is named: {refused}"
            );
            assert_same(&table, &rows, &what);
            // A call that frees space.
            db.drop_table("other").unwrap();
            if round % 2 == 0 {
                std::thread::sleep(Duration::from_millis(1200));
            }
            if round == rounds - 1 {
                // The process dies while the disk is full.
                fs::write(case.folder.join(ACKNOWLEDGED), rows.len().to_string()).unwrap();
                die();
            }
            limit_files(None);
            case.part("continues", || {
                at_last(&what, || put(&table, &mut rows, &mut next));
                at_last(&what, || db.checkpoint());
            });
            assert_sound(&db, &what);
            assert_same(&table, &rows, &what);
        }
    };
    in_processes_of_its_own(FILE_SIZE, &[&fill, &continue_working]);
}

/// Fills all free space.
fn take_room(case: &Case) {
    let mut ballast = File::create(case.folder.join(BALLAST)).unwrap();
    for piece in [1 << 20, 4096] {
        while ballast.write_all(&vec![1; piece]).is_ok() {}
    }
}

fn give_room(case: &Case) {
    fs::remove_file(case.folder.join(BALLAST)).unwrap();
}

const BALLAST: &str = "ballast";

/// Returns whether this process, and so its children, has its temporary files in a small file system of its own. If
/// not, runs the test in one. If the system does not permit that, nothing runs.
fn in_a_file_system_of_its_own(test: &str) -> bool {
    const HERE: &str = "WINDFALL_LIMITS_FILE_SYSTEM";
    if var_os(HERE).is_some() {
        return true;
    }
    let folder = tempfile::tempdir().unwrap();
    let mounted = |run: &[&OsStr]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
        command.args(["mount -t tmpfs -o size=24m none \"$TMPDIR\" && exec \"$@\"", "sh"]).args(run);
        command.env("TMPDIR", folder.path()).env(HERE, "1").output()
    };
    if !mounted(&["true".as_ref()]).is_ok_and(|run| run.status.success()) {
        tell_less("the system lets nobody have a file system of his own: none was filled");
        return false;
    }
    let test_program = current_exe().unwrap();
    let run = mounted(&[test_program.as_ref(), test.as_ref(), "--exact".as_ref(), "--nocapture".as_ref()]);
    check(test, &run.unwrap(), "1 passed", &crate::again(test));
    false
}

/// The number of kinds of calls that may find the disk full.
const CALLS: u32 = 9;
/// Keys of rows that a call creates and deletes again.
const PASSING: u64 = 1 << 60;

struct World {
    db: Database,
    rows: Rows,
    next: u64,
}

impl World {
    fn table(&self) -> Table {
        // A call may have renamed it, and failed to rename it back.
        self.db.table("t").or_else(|_| self.db.table("u")).unwrap()
    }

    /// Makes a call of this kind, and undoes its effect if possible.
    fn call(&mut self, kind: u32) -> Result<()> {
        match kind {
            0 => put(&self.table(), &mut self.rows, &mut self.next),
            1 => {
                self.next += 1;
                let (key, length) = ((PASSING | self.next).to_be_bytes(), 3 << 20);
                self.table().put_stream(&key, length, &mut io::repeat(7).take(length))?;
                self.table().delete(&key).map(drop)
            }
            2 => {
                let Some(key) = self.rows.keys().next_back().cloned() else { return Ok(()) };
                assert!(self.table().delete(&key)?);
                self.rows.remove(&key);
                Ok(())
            }
            3 => {
                self.db.create_table("new", definition())?.put(b"k", b"another row")?;
                self.db.drop_table("new").map(drop)
            }
            4 => {
                self.db.create_index("t", "late", IndexOptions::on_value(0..100))?;
                self.db.drop_index("t", "late").map(drop)
            }
            5 => self.db.checkpoint(),
            6 => {
                assert_eq!(self.db.check()?.findings, Vec::<String>::new());
                Ok(())
            }
            7 => {
                self.db.rename_table("t", "u")?;
                self.db.rename_table("u", "t")
            }
            _ => (0..200).try_for_each(|_| put(&self.table(), &mut self.rows, &mut self.next)),
        }
    }

    /// Undoes the effect of a call that was refused half-way, once there is space again.
    fn tidy(&self, what: &str) {
        if self.db.table("u").is_ok() {
            at_last(what, || self.db.rename_table("u", "t"));
        }
        if self.table().index("late").is_ok() {
            at_last(what, || self.db.drop_index("t", "late"));
        }
        if self.db.table("new").is_ok() {
            at_last(what, || self.db.drop_table("new"));
        }
        let passing: Vec<_> =
            self.table().range(&PASSING.to_be_bytes()[..]..).unwrap().map(Result::unwrap).collect();
        for (key, _) in passing {
            at_last(what, || self.table().delete(&key));
        }
    }

    /// Checks what can be read while the disk is full. A read may lack a frame if all of them wait to be written.
    fn look(&self, what: &str) {
        let rows = self.table().range(..&PASSING.to_be_bytes()[..]).unwrap().collect::<Result<Rows>>();
        match rows {
            Ok(rows) => {
                assert!(rows == self.rows, "{what}: {} rows, {} expected", rows.len(), self.rows.len());
            }
            Err(error) => assert!(is_refused(&error), "{what}: {error}"),
        }
    }
}

#[test]
fn a_file_system_that_is_full_during_any_call() {
    let fill = |case: &Case| {
        let mut chance = StdRng::seed_from_u64(seed());
        let open = || Database::open(&case.folder, options());
        let mut world = World { db: open().unwrap(), rows: Rows::new(), next: 0 };
        world.db.create_table("t", definition()).unwrap();
        let (rounds, mut refusals) = (sized(90, 400), [0; CALLS as usize]);
        for round in 0..rounds {
            let kind = round % CALLS;
            let what = format!("round {round}, call {kind}");
            world = case.guard.run(&crate::again(FILE_SYSTEM), || {
                take_room(case);
                for _ in 0..chance.random_range(20..200) {
                    // Some space is left in files that are longer than their content.
                    let done =
                        world.call(kind).and_then(|()| put(&world.table(), &mut world.rows, &mut world.next));
                    if let Err(error) = done {
                        assert!(is_refused(&error), "{what}: {error}");
                        refusals[kind as usize] += 1;
                        break;
                    }
                }
                world.look(&what);
                if chance.random_range(0..4) == 0 {
                    // The next process also finds the disk full.
                    let World { db, rows, next } = world;
                    let closed = db.close();
                    assert!(closed.as_ref().err().is_none_or(is_refused), "{what}: {closed:?}");
                    // Opening needs space only for pages with a refused last write, and reports that.
                    let db = open().unwrap_or_else(|error| {
                        assert!(is_refused(&error), "{what}, opening: {error}");
                        give_room(case);
                        let db = open().unwrap_or_else(|error| panic!("{what}, opening with room: {error}"));
                        take_room(case);
                        db
                    });
                    world = World { db, rows, next };
                    world.look(&what);
                }
                if round == rounds - 1 {
                    // The process dies at this point. The file for the next process also needs space.
                    give_room(case);
                    fs::write(case.folder.join(ACKNOWLEDGED), world.rows.len().to_string()).unwrap();
                    world.tidy(&what);
                    println!("    refused, by call: {refusals:?}");
                    assert!(
                        refusals.iter().sum::<u32>() > rounds / 3,
                        "the disk was seldom full: {refusals:?}"
                    );
                    die();
                }
                give_room(case);
                world.tidy(&what);
                at_last(&what, || {
                    world.tidy(&what);
                    world.call(kind)
                });
                at_last(&what, || put(&world.table(), &mut world.rows, &mut world.next));
                assert_sound(&world.db, &what);
                assert_same(&world.table(), &world.rows, &what);
                // Otherwise the file system would soon be full of rows.
                if world.rows.len() > 3000 {
                    world.db.truncate_table("t").unwrap();
                    world.rows.clear();
                }
                world
            });
        }
    };
    if in_a_file_system_of_its_own(FILE_SYSTEM) {
        in_processes_of_its_own(FILE_SYSTEM, &[&fill, &continue_working]);
    }
}
