//! A table of a SQL server, call by call: what the handler of a storage engine does over the library. The server makes
//! the index entries, because it alone knows its collations.
//!
//! Run it with `cargo run --release -p windfall --example handler`.

use std::{
    path::Path,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

use windfall::{
    BATCH_ROWS, Condition, Database, Error, FieldChange, FlushLog, IndexBatch, IndexNumber, IndexOptions,
    Isolation, LockWaitObserver, MadeEntry, ObservedWait, OneRow, Options, Result, StatementEnd,
    SuppliedChange, SuppliedEntry, Table, TableChanges, TableOptions, Transaction, TransactionOptions,
    WaitOutcome,
    error::{LockError, SchemaError, UsageError},
    row::{self, FieldSet},
};

/// `people (id INT PRIMARY KEY, name VARCHAR, email VARCHAR UNIQUE, note TEXT, KEY (name))`, and the numbers of its
/// indexes, which stand for their names.
struct People {
    table: Table,
    name: IndexNumber,
    email: IndexNumber,
}

/// A row. An empty email is NULL.
#[derive(Clone, Copy)]
struct Person<'a> {
    id: u32,
    name: &'a str,
    email: &'a str,
    note: &'a str,
}

/// The key of a row.
fn key(id: u32) -> [u8; 4] {
    id.to_be_bytes()
}

/// A text as the collation compares it: in lower case. No key is the beginning of another one, as the terminator is in
/// no text.
fn collated(text: &str) -> Vec<u8> {
    [text.to_lowercase().as_bytes(), b"\0"].concat()
}

impl<'a> Person<'a> {
    fn fields(&self) -> [&'a [u8]; 3] {
        [self.name, self.email, self.note].map(str::as_bytes)
    }
}

impl People {
    fn create(db: &Database) -> Result<Self> {
        let options = TableOptions::default()
            .index("name", IndexOptions::supplied(0))
            .index("email", IndexOptions::supplied(0).unique());
        let table = db.create_table("people", options)?;
        Ok(Self { name: table.index_number("name")?, email: table.index_number("email")?, table })
    }

    /// Makes a change of a row with its entries before and after. The payload is what the collation loses, so that the
    /// index covers the column.
    fn change<T>(
        &self,
        old: Option<&Person<'_>>,
        new: Option<&Person<'_>>,
        change: impl FnOnce(&[SuppliedChange<'_>]) -> T,
    ) -> T {
        let names = [old, new].map(|row| row.map(|row| (collated(row.name), row.name)));
        let emails = [old, new].map(|row| row.map(|row| (collated(row.email), row.email)));
        let [old_name, new_name] = names
            .each_ref()
            .map(|of| of.as_ref().map(|(key, name)| SuppliedEntry::new(key).payload(name.as_bytes())));
        let [old_email, new_email] = emails.each_ref().map(|of| {
            of.as_ref().map(|(key, email)| {
                let entry = SuppliedEntry::new(key);
                if email.is_empty() { entry.may_repeat() } else { entry }
            })
        });
        change(&[
            SuppliedChange::new(self.name, old_name, new_name),
            SuppliedChange::new(self.email, old_email, new_email),
        ])
    }

    /// A row that may have a long field is written field by field, any other one as one value.
    fn insert(&self, trx: &Transaction, person: &Person<'_>) -> Result<()> {
        let (table, key, fields) = (trx.table(&self.table), key(person.id), person.fields());
        self.change(None, Some(person), |entries| {
            if person.note.len() > 1_000 {
                table.insert_fields(&key, &fields, entries)
            } else {
                table.insert_with(&key, &row::encode(&fields), entries)
            }
        })
    }
}

/// `INSERT` of several rows, with numbers that are reserved for all of them, and one that is refused.
fn insert(db: &Database, people: &People) -> Result<()> {
    let mut trx = db.begin(TransactionOptions::default().isolation(Isolation::ReadCommitted));
    trx.begin_statement()?;
    let mut numbers = people.table.reserve_numbers(8)?;
    let long = "A long note. ".repeat(50_000);
    for (name, email, note) in [
        ("Ada", "ada@analytical.org", &*long),
        ("Blaise", "blaise@wheels.org", "Adds."),
        ("Charles", "", "Differences."),
        ("Edgar", "edgar@relations.org", "Joins."),
        ("grace", "", "Compiles."),
    ] {
        let id = numbers.next().expect("eight are reserved") as u32;
        people.insert(&trx, &Person { id, name, email, note })?;
    }
    // No other statement has reserved numbers since, so the rest of them is not lost.
    assert!(people.table.return_numbers(numbers)?);
    trx.end_statement(StatementEnd::Keep)?;

    // A statement that fails is undone as a whole; the transaction goes on.
    trx.begin_statement()?;
    people.insert(&trx, &Person { id: 6, name: "Konrad", email: "", note: "" })?;
    let refused = people.insert(&trx, &Person { id: 7, name: "Ada", email: "ADA@analytical.org", note: "" });
    let Err(Error::Schema(SchemaError::DuplicateKey { index, row, .. })) = refused else {
        panic!("two rows have an email: {refused:?}")
    };
    assert_eq!((index, &*row), (Some(people.email), &key(1)[..]));
    trx.end_statement(StatementEnd::Undo)?;
    println!("a statement is undone: row {row:?} has that email");

    trx.begin_statement()?;
    people.insert(&trx, &Person { id: 6, name: "Kurt", email: "", note: "Is incomplete." })?;
    // The end of the statement and the commit in one call, and the wait for the disk in another one.
    let commit = trx.commit_statement(FlushLog::Lazy)?.expect("it has changed rows");
    db.await_durable(commit)
}

/// `SELECT name FROM people WHERE name BETWEEN 'b' AND 'h' AND name LIKE '%e%'`: the optimizer's estimate, then a scan
/// of the index alone, whose condition is evaluated before a row is read.
fn select(people: &People) -> Result<()> {
    let index = people.table.index_at(people.name)?;
    let (mut cursor, mut batch) = (index.key_cursor()?, IndexBatch::default());
    cursor.set_range("b".."h");
    let wanted = |name: &[u8]| if name.contains(&b'e') { Condition::Holds } else { Condition::Fails };
    let mut names = Vec::new();
    while cursor.next_batch_where(&mut batch, BATCH_ROWS, |entry| wanted(entry.payload))? > 0 {
        names.extend(batch.iter().map(|entry| String::from_utf8_lossy(entry.payload).into_owned()));
    }
    println!(
        "some {} entries are in the range, of which {names:?} are wanted",
        index.estimate_rows("b".."h")?
    );
    assert_eq!(names, ["Blaise", "Charles", "grace"]);

    // The long note is not read for the other columns, and no more of it than is wanted.
    let without_note = people.table.select_fields(FieldSet::first(2)).get(&key(1))?.expect("Ada is there");
    let beginning =
        people.table.select_fields(FieldSet::ALL.cut_at(100)).get(&key(1))?.expect("Ada is there");
    assert_eq!(row::field(&without_note, 0), Some(&b"Ada"[..]));
    println!("Ada without her note has {} bytes, and cut off {}", without_note.len(), beginning.len());
    Ok(())
}

/// `UPDATE` and `DELETE`: each row is read and locked, and then changed.
fn update(db: &Database, people: &People) -> Result<()> {
    let mut trx = db.begin(TransactionOptions::default());
    trx.begin_statement()?;
    let (within, mut found) = (trx.table(&people.table).select_fields(FieldSet::first(2)), OneRow::default());
    assert!(within.get_one_for_update(&key(1), &mut found)?.is_some());
    let ada = Person { id: 1, name: "Ada", email: "ada@analytical.org", note: "" };
    let countess = Person { name: "Countess Ada", ..ada };
    // Her note has pages of its own, and stays as it is.
    let fields = [FieldChange::Set(countess.name.as_bytes()), FieldChange::Keep, FieldChange::Keep];
    people.change(Some(&ada), Some(&countess), |entries| within.update_fields(&key(1), &fields, entries))?;

    let charles = Person { id: 3, name: "Charles", email: "", note: "Differences." };
    let engine = Person { email: "charles@analytical.org", ..charles };
    let value = row::encode(&engine.fields());
    people.change(Some(&charles), Some(&engine), |entries| within.update_with(&key(3), &value, entries))?;
    // Another primary key, at which the row keeps its unique keys.
    people.change(Some(&engine), Some(&engine), |entries| {
        within.change_key_with(&key(3), &key(30), &value, entries)
    })?;
    let edgar = Person { id: 4, name: "Edgar", email: "edgar@relations.org", note: "Joins." };
    assert!(people.change(Some(&edgar), None, |entries| within.delete_with(&key(4), entries))?);
    trx.commit_statement(FlushLog::Sync)?;
    println!("{} rows after the updates", people.table.row_count()?);
    Ok(())
}

/// Sends the waits for locks to the server, which may interrupt one of the two.
struct Waits(Sender<ObservedWait>);

impl LockWaitObserver for Waits {
    fn wait_begins(&self, wait: &ObservedWait) {
        // The server may not listen any more.
        let _ = self.0.send(wait.clone());
    }
    fn blockers_changed(&self, _wait: &ObservedWait) {}
    fn wait_ended(&self, _wait: &ObservedWait, _outcome: WaitOutcome) {}
}

/// Sessions in each other's way, which the tags of their transactions name.
fn locks(db: &Database, people: &People, waits: &Receiver<ObservedWait>) -> Result<()> {
    let session = |tag| TransactionOptions::default().tag(tag);
    // A deadlock: the session with the lower priority is the victim.
    let (one, other) = (db.begin(session(1).deadlock_priority(10)), db.begin(session(2)));
    let lock = |trx: &Transaction, id| trx.table(&people.table).get_for_update(&key(id)).map(drop);
    lock(&one, 1)?;
    lock(&other, 2)?;
    let victim = thread::scope(|scope| {
        let waiting = scope.spawn(|| lock(&other, 1));
        let wait = waits.recv().expect("the observer sends it");
        println!("session {} waits for session {}", wait.waiter.tag, wait.blockers[0].tag);
        lock(&one, 2)?;
        waiting.join().expect("a session")
    });
    assert!(matches!(victim, Err(Error::Lock(LockError::Deadlock(_)))), "{victim:?}");
    one.commit()?;

    // `LOCK TABLES people WRITE`.
    let writer = db.begin(session(3));
    writer.table(&people.table).lock_exclusive()?;
    let refused = lock(&db.begin(session(4).lock_wait(Duration::ZERO)), 1);
    println!("session 4 does not wait: {}", refused.expect_err("the table is locked"));
    writer.commit()?;

    // A replica applies two transactions side by side: the gap locks of one do not block the other one.
    let replica = |tag| session(tag).ordering_group(1).lock_wait(Duration::ZERO);
    let (first, second) = (db.begin(replica(5)), db.begin(replica(6)));
    assert_eq!(first.table(&people.table).range_for_update(key(40)..key(50))?.count(), 0);
    people.insert(&second, &Person { id: 45, name: "Radia", email: "", note: "Spans trees." })?;
    first.commit()?;
    second.commit()?;
    Ok(())
}

/// `XA PREPARE` and `XA COMMIT`, also after the connection was lost or the server was started again.
fn two_phase_commit(db: &Database, people: &People) -> Result<()> {
    let trx = db.begin(TransactionOptions::default());
    people.insert(&trx, &Person { id: 50, name: "Leslie", email: "", note: "Agrees." })?;
    trx.prepare(b"xa 1")?;
    drop(trx);
    for prepared in db.prepared() {
        let commit = db.commit_prepared(&prepared.xid)?.expect("it has changed rows");
        db.await_durable(commit)?;
        println!("{} is committed", String::from_utf8_lossy(&prepared.xid));
    }
    Ok(())
}

/// The entry of a row in the index of domains: the end of the email. A row without one is not in the index.
fn domain(_index: &str, _key: &[u8], value: &[u8], entry: &mut MadeEntry) -> Result<bool> {
    let no_email = || UsageError::Other("the row has no field for the email".into());
    let email = row::field(value, 1).ok_or_else(no_email)?;
    let domain = email.rsplit(|byte| *byte == b'@').next().unwrap_or_default();
    entry.key.extend_from_slice(&[domain, b"\0"].concat());
    Ok(!email.is_empty())
}

/// `ALTER TABLE`: an index is built while other sessions write, and becomes visible with the server's new metadata.
fn alter(db: &Database, people: &People) -> Result<()> {
    let changes = TableChanges::default().add_index("domain", IndexOptions::supplied(0));
    let mut alteration = thread::scope(|scope| {
        // A writer does not know the index, and supplies no entries for it.
        let writer = scope.spawn(|| {
            (100..200).try_for_each(|id| {
                let trx = db.begin(TransactionOptions::default());
                let email = format!("reader-{id}@library.org");
                people.insert(&trx, &Person { id, name: "Reader", email: &email, note: "" })?;
                trx.commit_with(FlushLog::Lazy).map(drop)
            })
        });
        let built = db.build_indexes_with("people", changes, domain);
        writer.join().expect("a writer").and(built)
    })?;
    alteration.catch_up_with(domain)?;
    // From here on the server keeps the table to itself, for the moment that this takes.
    alteration.finish_with(TableChanges::default().metadata(b"definition 2".to_vec()), domain)?;
    let readers = people.table.index("domain")?.keys("library.org\0"..="library.org\0")?.count();
    println!("{readers} rows in the new index");
    assert_eq!(readers, 100);
    // Other changes of a table are one step as well.
    let changes = TableChanges::default().drop_index("domain").rename_index("name", "by_name").numbers(1_000);
    db.alter_table("people", changes)?;
    assert_eq!((people.table.next_number()?, people.table.index_number("by_name")?), (1_000, people.name));
    Ok(())
}

/// A schema with tables that have no primary key: their rows have ids that the engine counts.
fn schema(db: &Database) -> Result<()> {
    let mut group = db.ddl();
    for name in ["shop/orders", "shop/visits"] {
        group.create_table(name, TableOptions::default());
    }
    group.commit()?;
    let visits = db.table("shop/visits")?;
    visits.set_row_ids(7)?;
    for page in ["/", "/basket"] {
        visits.put_fields(&visits.next_row_id()?.to_be_bytes(), &[page.as_bytes(), b"GET"])?;
    }
    assert_eq!(visits.estimate_rows(7_u64.to_be_bytes()..)?, 2);
    db.truncate_tables_with_prefix("shop/")?;
    assert_eq!(visits.next_row_id()?, 1);
    // `DROP DATABASE shop`.
    let names = db.table_names_with_prefix("shop/")?;
    println!("{names:?}: dropped with {} trees", db.drop_tables_with_prefix("shop/")?.trees);
    Ok(())
}

/// Runs the example in a database in this folder.
///
/// # Errors
/// The errors of the database.
pub(crate) fn run(folder: &Path) -> Result<()> {
    let (sender, waits) = mpsc::channel();
    let options = Options::default().buffer_pool_size(64 << 20).lock_wait_observer(Arc::new(Waits(sender)));
    let db = Database::open(folder, options)?;
    let people = People::create(&db)?;
    insert(&db, &people)?;
    select(&people)?;
    update(&db, &people)?;
    locks(&db, &people, &waits)?;
    two_phase_commit(&db, &people)?;
    alter(&db, &people)?;
    schema(&db)?;
    // `CHECK TABLE people`, which others do not notice, and which may be ended.
    let report = people.table.check(|_progress| true)?;
    println!("the check has found {} findings in {} trees", report.findings.len(), report.trees.len());
    assert!(report.is_sound(), "{:?}", report.findings);
    db.close()
}

#[cfg(not(test))]
fn main() -> Result<()> {
    let folder = std::env::temp_dir().join("windfall-example-handler");
    let _ = std::fs::remove_dir_all(&folder);
    run(&folder)
}
