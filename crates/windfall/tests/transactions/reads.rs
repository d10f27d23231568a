//! Cursors and ranges in transactions that end or are partly rolled back.

use windfall::{
    Access, Cursor, Error, Isolation, LockWaitPolicy, Range, Seek, Table, error::TransactionError,
};

use super::{begin, calls::is_duplicate, database, temporary::indexed};

#[test]
fn nothing_is_read_within_a_transaction_that_has_ended() {
    let db = database();
    let shared = db.create_table("t", indexed()).unwrap();
    let session = db.session();
    let temporary = session.create_temporary_table("t", indexed()).unwrap();
    for table in [shared, temporary] {
        (0..20u8).for_each(|n| table.put(&[n], &[n]).unwrap());
        let trx = begin(&db, Isolation::RepeatableRead);
        let within = trx.table(&table);
        let (mut cursor, mut range) =
            (within.cursor().unwrap(), within.range_for_share::<&[u8]>(..).unwrap());
        let (mut by_index, mut keys) = (
            within.index("first").unwrap().cursor().unwrap(),
            within.index("first").unwrap().keys::<&[u8]>(..).unwrap(),
        );
        assert!(cursor.next().unwrap() && range.next().is_some());
        assert!(by_index.next().unwrap() && keys.next().is_some());
        let mut unmoved = (within.cursor().unwrap(), within.rows().unwrap());
        trx.commit().unwrap();
        let refused = [
            cursor.next().map(drop),
            cursor.seek(Seek::First).map(drop),
            range.next().unwrap().map(drop),
            by_index.next().map(drop),
            keys.next().unwrap().map(drop),
            unmoved.0.next().map(drop),
            unmoved.1.next_back().unwrap().map(drop),
        ];
        for done in refused {
            assert!(matches!(done, Err(Error::Transaction(TransactionError::Committed))), "{done:?}");
        }
    }
}

/// A cursor that moves up and a range that moves down, with their positions after some steps. Before the first step
/// there is no key.
struct Walks {
    up: Cursor,
    up_at: Vec<u8>,
    down: Range,
    down_at: Option<Vec<u8>>,
}

impl Walks {
    fn new(table: &Table<impl Access>, steps: usize) -> Self {
        let (mut up, mut down) = (table.cursor().unwrap(), table.rows().unwrap());
        let (mut up_at, mut down_at) = (Vec::new(), None);
        for _ in 0..steps {
            up_at = if up.next().unwrap() { up.key().unwrap().to_vec() } else { vec![0xff] };
            down_at = Some(down.next_back_ref().unwrap().map_or_else(Vec::new, |(key, _)| key.to_vec()));
        }
        Self { up, up_at, down, down_at }
    }

    /// Asserts that both return these rows from here on, as far as they have not passed them.
    fn assert_rest(self, rows: &[(Vec<u8>, Vec<u8>)], context: &str) {
        let Self { mut up, up_at, down, down_at } = self;
        let is_first = up_at.is_empty();
        let expected: Vec<_> = rows.iter().filter(|(key, _)| is_first || *key > up_at).cloned().collect();
        let mut rest = Vec::new();
        while up.next().unwrap() {
            rest.push(up.row().map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap());
        }
        assert_eq!(rest, expected, "{context}, upwards");
        let mut back = Vec::new();
        while up.prev().unwrap() {
            back.push(up.row().map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap());
        }
        back.reverse();
        assert_eq!(back, rows, "{context}, back again");
        let is_below = |key: &Vec<u8>| down_at.as_ref().is_none_or(|at| key < at);
        let expected: Vec<_> = rows.iter().rev().filter(|(key, _)| is_below(key)).cloned().collect();
        assert_eq!(down.rev().map(Result::unwrap).collect::<Vec<_>>(), expected, "{context}, downwards");
    }
}

/// A cursor does not return what it has read ahead once that was rolled back.
#[test]
fn a_cursor_returns_nothing_that_was_rolled_back() {
    let db = database();
    let shared = db.create_table("t", indexed()).unwrap();
    let session = db.session();
    let temporary = session.create_temporary_table("temporary", indexed()).unwrap();
    let before: Vec<_> = (b'a'..=b'p').map(|key| (vec![key], vec![key, b'1'])).collect();
    for table in [shared, temporary] {
        for (key, value) in &before {
            table.put(key, value).unwrap();
        }
        let cases = Isolation::ALL.iter().flat_map(|level| (0..20).map(|steps| (*level, steps)));
        for ((level, steps), fails) in cases.flat_map(|case| [(case, false), (case, true)]) {
            let trx = begin(&db, level);
            let within = trx.table(&table);
            let change = || {
                within.put(b"c", b"c2")?;
                within.insert(b"cc", b"c3")?;
                within.insert(b"zz", b"z4")?;
                within.delete(b"e")?;
                within.delete(b"a").map(drop)
            };
            let mut walks = None;
            if fails {
                let failed = trx.atomically(|| {
                    change()?;
                    walks = Some(Walks::new(&within, steps));
                    within.insert(b"b", b"")
                });
                assert!(is_duplicate(&failed));
            } else {
                trx.savepoint("here").unwrap();
                change().unwrap();
                walks = Some(Walks::new(&within, steps));
                trx.rollback_to("here").unwrap();
            }
            let context = format!("{level:?}, table {}, from step {steps}", table.name());
            walks.unwrap().assert_rest(&before, &context);
            trx.rollback().unwrap();
        }
    }
}

#[test]
fn a_locking_read_replaces_the_value_in_the_buffer() {
    let db = database();
    let table = db.create_table("t", windfall::TableOptions::default()).unwrap();
    let long = vec![7; 20_000];
    for (key, value) in [(b"a", &b"short"[..]), (b"b", &long), (b"c", b"")] {
        table.insert(key, value).unwrap();
    }
    let (one, other) = (begin(&db, Isolation::RepeatableRead), begin(&db, Isolation::RepeatableRead));
    let (mine, others) = (one.table(&table), other.table(&table).lock_wait_policy(LockWaitPolicy::NoWait));
    let mut value = vec![1; 50];
    for (key, expected) in [(b"a", &b"short"[..]), (b"b", &long), (b"c", b""), (b"a", b"short")] {
        assert!(mine.get_for_share_into(key, &mut value).unwrap());
        assert_eq!(value, expected);
        assert!(others.get_for_share_into(key, &mut value).unwrap());
        assert!(matches!(others.get_for_update_into(key, &mut value), Err(Error::Lock(_))));
    }
    assert!(!mine.get_for_update_into(b"d", &mut value).unwrap());
}
