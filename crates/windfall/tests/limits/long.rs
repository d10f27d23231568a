//! Values far longer than the pool and the log: a gibibyte in the full test.

use std::io::{Read, Write};

use windfall::{Database, Error, FlushLog, Options, Result, Table, TableOptions, error::UsageError};

use crate::{
    Case, assert_sound, die, in_a_process_of_its_own, in_processes_of_its_own, memory, sized,
    time_limit::wait_until,
};

pub(crate) const STREAMED: &str = "long::a_long_value_is_written_read_and_deleted";
pub(crate) const KILLED: &str = "long::a_process_dies_within_a_long_value";

const POOL: u64 = 8 << 20;
const LOG: u64 = 16 << 20;
/// The memory that the process may use besides the pool, for a value of any length.
const BESIDE: u64 = 48 << 20;

fn length() -> u64 {
    sized(96 << 20, 1 << 30)
}

fn open(case: &Case) -> Database {
    let options = Options::default()
        .buffer_pool_size(POOL)
        .log_size(LOG)
        .log_buffer_size(1 << 20)
        .flush_log_at_trx_commit(FlushLog::Write);
    Database::open(&case.folder, options).unwrap()
}

/// The bytes of a value. Every eight bytes identify the value and their position in it.
struct Bytes {
    of: u64,
    at: u64,
    end: u64,
}

impl Bytes {
    fn new(of: u64, length: u64) -> Self {
        Self { of, at: 0, end: length }
    }

    fn word(&self, at: u64) -> [u8; 8] {
        ((self.of << 48 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()
    }
}

impl Read for Bytes {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = out.len().min((self.end - self.at) as usize);
        for (offset, byte) in out[..n].iter_mut().enumerate() {
            let at = self.at + offset as u64;
            *byte = self.word(at / 8)[at as usize % 8];
        }
        self.at += n as u64;
        Ok(n)
    }
}

/// Asserts that these bytes are written.
impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut wanted = vec![0; bytes.len()];
        let n = self.read(&mut wanted)?;
        assert!(wanted[..n] == *bytes, "value {} differs about byte {}", self.of, self.at);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn put(table: &Table, key: &[u8], of: u64) -> Result<()> {
    table.put_stream(key, length(), &mut Bytes::new(of, length()))
}

fn assert_is(table: &Table, key: &[u8], of: u64) {
    let mut wanted = Bytes::new(of, length());
    assert_eq!(table.read_stream(key, &mut wanted).unwrap(), Some(length()));
    assert_eq!(wanted.at, length());
}

fn bytes_in(case: &Case, folder: &str) -> u64 {
    let files = std::fs::read_dir(case.folder.join(folder)).unwrap();
    files.map(|file| file.unwrap().metadata().map_or(0, |file| file.len())).sum()
}

fn assert_log_is_small(case: &Case) {
    let log = bytes_in(case, "log");
    assert!(log <= 2 * LOG, "{log} bytes of log");
}

#[test]
fn a_long_value_is_written_read_and_deleted() {
    in_a_process_of_its_own(STREAMED, |case| {
        let db = open(case);
        let table = db.create_table("t", TableOptions::default()).unwrap();
        table.put(b"a", b"before").unwrap();
        table.put(b"z", b"behind").unwrap();
        case.part("written", || put(&table, b"long", 1).unwrap());
        assert_log_is_small(case);
        case.part("read", || assert_is(&table, b"long", 1));
        case.part("replaced", || put(&table, b"long", 2).unwrap());
        case.part("read again", || assert_is(&table, b"long", 2));
        // The source ends before the value does, so the written part is rolled back.
        case.part("taken back", || {
            let error = table.put_stream(b"long", length() + 1, &mut Bytes::new(3, length())).unwrap_err();
            assert!(matches!(error, Error::Usage(UsageError::Source { .. })), "{error}");
            assert_is(&table, b"long", 2);
        });
        assert_log_is_small(case);
        // The check waits until everything that was replaced or rolled back is freed. The next values reuse that space.
        case.part("check", || assert_sound(&db, "after a rollback"));
        let before = bytes_in(case, "data");
        case.part("replaced twice", || {
            put(&table, b"long", 4).unwrap();
            assert_sound(&db, "replaced");
            put(&table, b"long", 5).unwrap();
        });
        let after = bytes_in(case, "data");
        assert!(after <= before + length() / 4, "{before} bytes of files have become {after}");
        case.part("deleted", || {
            assert!(table.delete(b"long").unwrap());
            assert_eq!(table.get(b"long").unwrap(), None);
            assert_eq!(table.rows().unwrap().count(), 2);
            assert_sound(&db, "deleted");
        });
        put(&table, b"long", 6).unwrap();
        let beside = memory("VmHWM").saturating_sub(POOL);
        println!("    at most {} MiB beside the pool", beside >> 20);
        assert!(beside <= BESIDE, "{beside} bytes beside the pool");
        // The same with the calls that take and return the value in one piece.
        case.part("in one piece", || {
            let whole = table.get(b"long").unwrap().unwrap();
            Bytes::new(6, length()).write_all(&whole).unwrap();
            table.put(b"whole", &whole).unwrap();
        });
        case.part("closed", || db.close().unwrap());
        let db = open(case);
        let table = db.table("t").unwrap();
        case.part("opened again", || assert_is(&table, b"whole", 6));
        case.part("dropped", || {
            db.drop_table("t").unwrap();
            wait_until("the deletion of the file", || bytes_in(case, "data") < 16 << 20);
        });
        db.close().unwrap();
    });
}

/// The process dies while it writes a value, once over nothing and once over another value, and while it deletes one.
#[test]
fn a_process_dies_within_a_long_value() {
    /// A source that kills the process near its end.
    struct Deadly(Bytes);
    impl Read for Deadly {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            if self.0.at >= self.0.end / 8 * 7 { die() } else { self.0.read(out) }
        }
    }
    let die_over = |case: &Case, key: &[u8], of: u64| {
        let db = open(case);
        let table = db.create_table("t", TableOptions::default()).or_else(|_| db.table("t")).unwrap();
        case.part("written up to the end", || {
            table.put_stream(key, length(), &mut Deadly(Bytes::new(of, length()))).unwrap();
        });
    };
    let first = |case: &Case| die_over(case, b"long", 1);
    let second = |case: &Case| {
        let db = case.part("opened", || open(case));
        let table = db.table("t").unwrap();
        assert_eq!(table.get(b"long").unwrap(), None);
        assert_log_is_small(case);
        case.part("check", || assert_sound(&db, "what was begun is gone"));
        let before = bytes_in(case, "data");
        case.part("written", || put(&table, b"long", 2).unwrap());
        let after = bytes_in(case, "data");
        assert!(after <= before + length() / 4, "{before} bytes of files have become {after}");
        db.close().unwrap();
        die_over(case, b"long", 3);
    };
    let third = |case: &Case| {
        let db = case.part("opened", || open(case));
        let table = db.table("t").unwrap();
        case.part("read", || assert_is(&table, b"long", 2));
        db.set_flush_log_at_trx_commit(FlushLog::Sync);
        assert!(table.delete(b"long").unwrap());
        table.put(b"last", b"").unwrap();
        die();
    };
    let fourth = |case: &Case| {
        let db = case.part("opened", || open(case));
        let table = db.table("t").unwrap();
        assert_eq!(table.rows().unwrap().count(), 1);
        case.part("check", || assert_sound(&db, "what was deleted is gone"));
        let beside = memory("VmHWM").saturating_sub(POOL);
        assert!(beside <= BESIDE + (64 << 20), "{beside} bytes beside the pool");
        db.close().unwrap();
    };
    in_processes_of_its_own(KILLED, &[&first, &second, &third, &fourth]);
}
