//! The books of a bank: accounts in two tables, and a ledger that lists every transfer.
//!
//! A transfer changes some accounts and adds a ledger row in one transaction. So every consistent read sees each
//! account with its opening amount plus the sum of its ledger entries, and the total amount is constant.

use std::collections::BTreeMap;

use windfall::{
    AutoCommit, Database, InTransaction, IndexOptions, Result, Table, TableOptions, Transaction,
    TransactionOptions,
};

pub(crate) const ACCOUNTS: u16 = 24;
/// The amount that each account was opened with.
const OPENING: i64 = 1000;
/// The accounts with even numbers, those with odd numbers, and the ledger.
const TABLES: [&str; 3] = ["north", "south", "ledger"];
/// An index of the accounts by amount: each transfer moves entries in it.
const INDEX: &str = "amount";

/// The amounts that are moved, per account: their sum is zero.
pub(crate) type Moves = Vec<(u16, i64)>;

/// The transfers of the ledger by number.
pub(crate) type Ledger = BTreeMap<u64, Moves>;

/// The tables of the bank.
#[derive(Clone)]
pub(crate) struct Books<A = AutoCommit> {
    accounts: [Table<A>; 2],
    ledger: Table<A>,
}

impl Books {
    /// Creates the bank if it does not exist.
    pub(crate) fn found(db: &Database) -> Result<()> {
        if db.table(TABLES[2]).is_ok() {
            return Ok(());
        }
        // An earlier creation may have been interrupted: the ledger is created last.
        for name in &TABLES[..2] {
            if db.table(name).is_ok() {
                db.drop_table(name)?;
            }
            let options = TableOptions::default().index(INDEX, IndexOptions::on_value(0..8));
            let table = db.create_table(name, options)?;
            let trx = db.begin(TransactionOptions::default());
            for account in (0..ACCOUNTS).filter(|account| TABLES[usize::from(account % 2)] == *name) {
                trx.table(&table).insert(&account.to_be_bytes(), &value_of(OPENING, 0))?;
            }
            trx.commit()?;
        }
        db.create_table(TABLES[2], TableOptions::default()).map(drop)
    }

    pub(crate) fn of(db: &Database) -> Result<Self> {
        Ok(Self { accounts: [db.table(TABLES[0])?, db.table(TABLES[1])?], ledger: db.table(TABLES[2])? })
    }

    pub(crate) fn within<'t>(&self, trx: &'t Transaction) -> Books<InTransaction<'t>> {
        Books {
            accounts: self.accounts.each_ref().map(|table| trx.table(table)),
            ledger: trx.table(&self.ledger),
        }
    }
}

impl Books<InTransaction<'_>> {
    /// Adds an amount, which may be negative, to an account.
    pub(crate) fn add(&self, account: u16, amount: i64, stamp: u64) -> Result<()> {
        let (table, key) = (&self.accounts[usize::from(account % 2)], account.to_be_bytes());
        let held =
            amount_of(&table.get_for_update(&key)?.expect("an account that is there from the beginning on"));
        table.put(&key, &value_of(held + amount, stamp))
    }

    /// Writes a transfer into the ledger.
    pub(crate) fn enter(&self, number: u64, moves: &Moves) -> Result<()> {
        self.ledger.insert(&number.to_be_bytes(), &written(moves))
    }
}

/// Reads all books in one consistent snapshot. They must agree whatever runs concurrently.
pub(crate) fn audit(db: &Database) -> Result<Ledger> {
    let view = db.begin(TransactionOptions::default().read_only().consistent_snapshot());
    let books = Books::of(db)?;
    let books = books.within(&view);
    let (mut held, mut by_index) = (BTreeMap::new(), BTreeMap::new());
    for table in &books.accounts {
        for row in table.rows()? {
            let (key, value) = row?;
            let account = account_of(&key);
            assert_eq!(held.insert(account, amount_of(&value)), None, "account {account} is there twice");
        }
        for row in table.index(INDEX)?.range::<&[u8]>(..)? {
            let row = row?;
            let account = account_of(&row.key);
            assert!(
                row.value.starts_with(&row.index_key),
                "account {account} has another amount in the index"
            );
            let before = by_index.insert(account, amount_of(&row.value));
            assert_eq!(before, None, "account {account} is in the index twice");
        }
    }
    assert_eq!(held, by_index, "accounts, and by the index");
    let mut ledger = Ledger::new();
    let mut wanted: BTreeMap<_, _> = (0..ACCOUNTS).map(|account| (account, OPENING)).collect();
    for row in books.ledger.rows()? {
        let (number, moves) = row?;
        let moves = read(&moves);
        for (account, amount) in &moves {
            *wanted.get_mut(account).expect("an account") += amount;
        }
        ledger.insert(u64::from_be_bytes(number.try_into().expect("a number")), moves);
    }
    assert_eq!(held, wanted, "accounts, and what the ledger says of them; {} transfers", ledger.len());
    assert_eq!(held.values().sum::<i64>(), OPENING * i64::from(ACCOUNTS), "money in all");
    Ok(ledger)
}

fn account_of(key: &[u8]) -> u16 {
    u16::from_be_bytes(key.try_into().expect("an account"))
}

/// Returns the value of an account: the amount, encoded so that byte order is numeric order, and then padding that is
/// occasionally long.
fn value_of(amount: i64, stamp: u64) -> Vec<u8> {
    let mut value = (amount.cast_unsigned() ^ 1 << 63).to_be_bytes().to_vec();
    let length = if stamp % 7 == 3 { 3000 } else { 40 + stamp % 200 };
    value.resize(8 + length as usize, stamp as u8);
    value
}

fn amount_of(value: &[u8]) -> i64 {
    (u64::from_be_bytes(value[..8].try_into().expect("an amount")) ^ 1 << 63).cast_signed()
}

fn written(moves: &Moves) -> Vec<u8> {
    moves
        .iter()
        .flat_map(|(account, amount)| account.to_be_bytes().into_iter().chain(amount.to_be_bytes()))
        .collect()
}

fn read(bytes: &[u8]) -> Moves {
    let one = |bytes: &[u8]| {
        let (account, amount) = bytes.split_at(2);
        (account_of(account), i64::from_be_bytes(amount.try_into().expect("an amount")))
    };
    bytes.chunks_exact(10).map(one).collect()
}
