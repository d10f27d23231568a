//! Transactions in any order, and what each of them finds: by key, by index, by the index alone.
//!
//! An index keeps an entry for each key that a row has had and that somebody may still see. Which of them lead to what
//! a transaction sees depends on what it has changed itself, what others have changed and not ended, and what purge has
//! left: so the order is drawn, and all ways of reading are held against each other after each step, in each
//! transaction.

use std::time::Duration;

use windfall::{
    Index, IndexOptions, IndexRange, IndexRow, Isolation, Range, Seek, Table, TableOptions, Transaction,
    TransactionOptions,
    disk::simulated::SimulatedDisk,
    env::SimulatedEnv,
    error::{Error, LockError, TransactionError},
};

use super::{rows, simulated};

const LEVELS: [Isolation; 4] =
    [Isolation::ReadUncommitted, Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Snapshot];

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % end
    }

    fn pick(&mut self, from: u8, many: u64) -> u8 {
        from + self.below(many) as u8
    }
}

/// The index alone from both ends at once, and a cursor over it beside one that reads the rows.
fn check_ways(index: &Index, random: &mut Random) {
    let keys: Vec<_> = index.keys::<&[u8]>(..).unwrap().map(Result::unwrap).collect();
    let mut both = index.keys::<&[u8]>(..).unwrap();
    let (mut front, mut back) = (Vec::new(), Vec::new());
    loop {
        let from_front = random.below(2) == 0;
        let Some(found) = (if from_front { both.next() } else { both.next_back() }) else { break };
        if from_front { &mut front } else { &mut back }.push(found.unwrap());
    }
    front.extend(back.into_iter().rev());
    assert_eq!(front, keys);
    let (mut alone, mut of_rows) = (index.key_cursor().unwrap(), index.cursor().unwrap());
    for _ in 0..6 {
        let key = [random.pick(b'm', 4)];
        let found = match random.below(8) {
            0 => [alone.seek(Seek::AtLeast(&key)), of_rows.seek(Seek::AtLeast(&key))],
            1 => [alone.seek(Seek::AtMost(&key)), of_rows.seek(Seek::AtMost(&key))],
            2 => [alone.seek(Seek::Below(&key)), of_rows.seek(Seek::Below(&key))],
            3..=5 => [alone.next(), of_rows.next()],
            _ => [alone.prev(), of_rows.prev()],
        };
        let [one, other] = found.map(Result::unwrap);
        assert_eq!(one, other);
        let of_row = of_rows.row().map(|row| (&row.index_key, &row.key));
        assert_eq!(alone.row().map(|found| (&found.index_key, &found.key)), of_row);
    }
}

/// Some rows of a table, by its key and by its index, and the ranges that have more of them.
struct Begun {
    rows: (Range, Vec<u8>),
    by_index: (IndexRange, Vec<u8>),
}

impl Begun {
    fn new(table: &Table, random: &mut Random) -> Self {
        let (mut rows, mut at) = (table.rows().unwrap(), Vec::new());
        let (mut by_index, mut index_at) = (index_rows(table), Vec::new());
        for _ in 0..=random.below(4) {
            at = rows.next().map_or_else(|| vec![0xff], |row| row.unwrap().0);
            index_at = by_index.next().map_or_else(|| vec![0xff], |row| place(&row.unwrap()));
        }
        Self { rows: (rows, at), by_index: (by_index, index_at) }
    }

    /// What is behind them is what is there now.
    fn check_rest(self, table: &Table) {
        let (rest, at) = self.rows;
        let rest: Vec<_> = rest.map(Result::unwrap).collect();
        let now: Vec<_> = table.rows().unwrap().map(Result::unwrap).filter(|(key, _)| *key > at).collect();
        assert_eq!(rest, now);
        let (rest, at) = self.by_index;
        let rest: Vec<_> = rest.map(Result::unwrap).collect();
        let now: Vec<_> = index_rows(table).map(Result::unwrap).filter(|row| place(row) > at).collect();
        assert_eq!(rest, now);
    }
}

fn index_rows(table: &Table) -> IndexRange {
    table.index("first").unwrap().range::<&[u8]>(..).unwrap()
}

/// Index keys and keys are of one byte.
fn place(row: &IndexRow) -> Vec<u8> {
    [&row.index_key[..], &row.key].concat()
}

#[test]
fn every_way_of_reading_finds_what_the_transaction_sees() {
    for seed in 0..4 {
        let (disk, env, mut random) = (SimulatedDisk::new(seed), SimulatedEnv::new(seed), Random(seed));
        let db = simulated(&disk, &env);
        let indexed = || TableOptions::default().index("first", IndexOptions::on_value(0..1));
        let session = db.session();
        let tables: [Table; 2] = [
            db.create_table("t", indexed()).unwrap(),
            session.create_temporary_table("temporary", indexed()).unwrap(),
        ];
        let new = |random: &mut Random| -> Transaction {
            let level = LEVELS[random.below(4) as usize];
            db.begin(TransactionOptions::default().isolation(level).lock_wait(Duration::ZERO))
        };
        let mut trxs: Vec<Transaction> = (0..3).map(|_| new(&mut random)).collect();
        for step in 0..80 {
            let who = random.below(4) as usize;
            let is_temporary = random.below(3) == 0;
            let base = &tables[usize::from(is_temporary)];
            let table = trxs.get(who).map_or_else(|| base.clone(), |trx| base.within(trx));
            let key = [random.pick(b'a', 12)];
            let value = [random.pick(b'm', 4), random.pick(b'0', 10)];
            let done = match (random.below(12), trxs.get_mut(who)) {
                (0..=5, _) => table.put(&key, &value),
                (6 | 7, _) => table.delete(&key).map(drop),
                (8, Some(trx)) => trx.savepoint("s"),
                (9, Some(trx)) => {
                    // What was read ahead is not given once it was taken back.
                    let begun = Begun::new(&table, &mut random);
                    // There may be none.
                    if trx.rollback_to("s").is_ok() {
                        begun.check_rest(&table);
                    }
                    Ok(())
                }
                (10, Some(trx)) => {
                    let old = core::mem::replace(trx, new(&mut random));
                    if random.below(3) == 0 { old.rollback() } else { old.commit() }
                }
                _ => {
                    env.settle(random.below(4) as usize);
                    Ok(())
                }
            };
            match done {
                // Whoever closes a circle is taken back, and so is who would write over a change that a strict snapshot
                // does not see. Any other refusal is a row that somebody else has.
                Err(
                    Error::Lock(LockError::Deadlock(_)) | Error::Transaction(TransactionError::RolledBack(_)),
                ) if who < trxs.len() => {
                    trxs[who] = new(&mut random);
                }
                Err(Error::Transaction(TransactionError::Changed(owner))) if is_temporary => {
                    panic!("seed {seed}, step {step}: no view sees versions of {owner}");
                }
                Ok(()) | Err(Error::Transaction(_) | Error::Lock(_)) => {}
                Err(other) => panic!("seed {seed}, step {step}: {other}"),
            }
            for base in &tables {
                let within = trxs.iter().map(|trx| base.within(trx));
                for table in within.chain([base.clone()]) {
                    rows(&table);
                }
            }
            let reader = base.within(&trxs[random.below(3) as usize]);
            check_ways(&reader.index("first").unwrap(), &mut random);
        }
    }
}
