//! A table's handle: rows by their keys.
//!
//! **Purpose.** Reads and writes of single rows, ranges of rows, long values as streams.
//!
//! **Invariants.** A call passes the table's gate and works on the shape that it finds inside. It is atomic over all
//! trees of the table, and when it returns it is as durable as `flush_log_at_trx_commit` says. A handle that outlives
//! its table answers [`Error::TableDropped`], and keeps no page of it alive.
//!
//! **May touch.** `engine`, `catalog`, `transaction`.

use core::ops::RangeBounds;
use std::io::{self, Read};

use crate::{
    catalog::{self, Call, Shape},
    cursor::Cursor,
    engine::Engine,
    error::{Error, Owner, Result, SchemaError, UsageError},
    ids::Lsn,
    index::Index,
    range::{Bounds, Range},
    session::SessionUndo,
    sync::Arc,
    transaction::{Mode, RowTarget, Secondary, Value, Watch, read},
};

/// A table. Clones are cheap and are the same table.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) engine: Arc<Engine>,
    pub(crate) name: Arc<str>,
    pub(crate) inner: Arc<catalog::Table>,
    /// Where a temporary table's undo goes.
    undo: Option<Arc<SessionUndo>>,
}

impl Table {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, table: Arc<catalog::Table>) -> Self {
        Self { engine, name: name.into(), inner: table, undo: None }
    }

    pub(crate) fn temporary(
        engine: Arc<Engine>,
        name: &str,
        table: Arc<catalog::Table>,
        undo: Arc<SessionUndo>,
    ) -> Self {
        Self { engine, name: name.into(), inner: table, undo: Some(undo) }
    }

    /// The name that the table had when this handle was made.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The bytes that were given at the table's creation.
    pub fn metadata(&self) -> Vec<u8> {
        self.inner.look(|shape| shape.record.metadata.clone())
    }

    /// The longest key of a table without indexes, in bytes. With an index, the row's key and the index key lie in one entry,
    /// which is no longer than that either: so both together have at most 2 bytes less, and one less for each zero byte of
    /// the index key. What is longer is refused when it is written.
    pub fn key_limit(&self) -> usize {
        self.inner.look(|shape| shape.clustered.key_limit())
    }

    /// An error of a call on this table, which says so.
    #[cold]
    pub(crate) fn told(&self, error: Error) -> Error {
        error.of(|space| {
            let index = self.inner.look(|shape| {
                let index = shape.record.indexes.iter().find(|index| Some(index.space) == space);
                index.map(|index| index.name.clone())
            });
            let table = self.name.clone();
            match index {
                Some(index) => Owner::Index { table, index },
                None => Owner::Table(table),
            }
        })
    }

    pub(crate) fn enter(&self) -> Result<Call<'_>> {
        self.inner.enter().map_err(|error| self.told(error))
    }

    /// Runs a change of rows, then waits for the log outside the gate.
    fn change<T>(&self, run: impl FnOnce(&RowTarget<'_>) -> Result<(T, Lsn)>) -> Result<T> {
        self.engine.check_open()?;
        let call = self.inner.enter_to_change().map_err(|error| self.told(error))?;
        let shape: &Shape = &call;
        let indexes = shape.secondaries.iter().zip(&shape.record.indexes);
        let secondaries: Vec<Secondary<'_>> = indexes
            .map(|(tree, index)| Secondary { tree, unique: index.unique, name: &index.name })
            .collect();
        let keys_of = |_key: &[u8], value: &[u8]| {
            shape.record.indexes.iter().map(|index| index.key.whole_key_of(value).map(Some)).collect()
        };
        let noting = shape.building.as_ref().map(|building| {
            |key: &[u8], before: Option<&[u8]>, after: Option<&[u8]>| building.note(key, before, after)
        });
        let target = RowTarget {
            name: &self.name,
            clustered: &shape.clustered,
            secondaries: &secondaries,
            keys_of: &keys_of,
            temporary: self.undo.as_ref().map(|undo| undo.stream()),
            watch: noting.as_ref().map(|noting| noting as &Watch<'_>),
        };
        let done = run(&target);
        if let Some(undo) = &self.undo {
            // The session's end waits for those inside, and then drops this stream.
            self.engine.transactions.purge_temporary(undo.stream());
        }
        drop(call);
        let (result, end) = done.map_err(|error| self.told(error))?;
        if end > Lsn::ZERO {
            self.engine.log.commit(end, self.engine.flush_log())?;
        }
        self.engine.env.breathe();
        Ok(result)
    }

    fn write(&self, key: &[u8], value: Value<'_>, mode: Mode) -> Result<()> {
        self.change(|target| Ok(((), self.engine.transactions.write(target, key, value, mode)?)))
    }

    /// Inserts a row.
    ///
    /// # Errors
    /// [`SchemaError::DuplicateKey`] when there is one with this key, or in a unique index; keys and values that are
    /// too long; a dropped table; I/O. The table is unchanged then.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(key, Value::Bytes(value), Mode::Insert)
    }

    /// Inserts a row, or replaces the one with this key.
    ///
    /// # Errors
    /// As [`Table::insert`], but for the key itself.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(key, Value::Bytes(value), Mode::Put)
    }

    /// Replaces the value of a row.
    ///
    /// # Errors
    /// [`SchemaError::NoRow`] when there is none with this key; as [`Table::insert`] otherwise.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(key, Value::Bytes(value), Mode::Update)
    }

    /// Deletes a row. Says whether there was one.
    ///
    /// # Errors
    /// A dropped table, I/O. The table is unchanged then.
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        self.change(|target| {
            let end = self.engine.transactions.delete(target, key)?;
            Ok((end.is_some(), end.unwrap_or(Lsn::ZERO)))
        })
    }

    /// Inserts a row whose value of `length` bytes is read from `source`, piece by piece: it is never in memory as a whole.
    ///
    /// The row is locked meanwhile, and statements on this table wait. The source may call this table and others, but no
    /// statement: that would wait for this very call, and is an error. Neither does a call from within a source wait for a
    /// row that another call changes: that is an error, too. Tables of another database are no exception.
    ///
    /// # Errors
    /// As [`Table::insert`]; a source that fails or ends early.
    pub fn insert_stream(&self, key: &[u8], length: u64, source: &mut dyn Read) -> Result<()> {
        self.write(key, Value::Source { length, source }, Mode::Insert)
    }

    /// As [`Table::put`], the value read from `source`.
    ///
    /// # Errors
    /// As [`Table::put`]; a source that fails or ends early.
    pub fn put_stream(&self, key: &[u8], length: u64, source: &mut dyn Read) -> Result<()> {
        self.write(key, Value::Source { length, source }, Mode::Put)
    }

    /// The value of a row.
    ///
    /// # Errors
    /// A dropped table, damage, I/O.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// The value of a row, in place of what `value` held: spares an allocation for each row. Says whether there is one.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.engine.check_open()?;
        let call = self.enter()?;
        read::get(&call.clustered, key, value).map_err(|error| self.told(error))
    }

    /// Whether there is a row with this key.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        self.engine.check_open()?;
        let call = self.enter()?;
        let header = call.clustered.get_into(key, &mut Vec::new());
        let header = header.map_err(|error| self.told(error))?;
        Ok(header.is_some_and(|header| !header.is_deleted()))
    }

    /// Writes the value of a row to `out`, piece by piece. Gives its length; `None` when there is no such row.
    ///
    /// It is the value that the row has at the beginning, whatever becomes of the row meanwhile. The table can be changed,
    /// dropped and truncated between two pieces, also by `out` itself.
    ///
    /// # Errors
    /// As [`Table::get`]; an `out` that fails; [`Error::TableDropped`] when the table is dropped or truncated meanwhile, and
    /// then some of the value has been written.
    pub fn read_stream(&self, key: &[u8], out: &mut dyn io::Write) -> Result<Option<u64>> {
        self.engine.check_open()?;
        let opened = {
            let call = self.enter()?;
            let opened = self.engine.transactions.open_value(&call.clustered, key);
            opened.map_err(|error| self.told(error))?
        };
        let Some(mut reader) = opened else { return Ok(None) };
        let length = reader.left();
        let mut piece = vec![0; 64 << 10];
        while reader.left() > 0 {
            self.engine.check_open()?;
            let n = {
                // The version is kept from purge; that its tablespace is gone shows as the table's being dropped.
                let _call = self.enter()?;
                reader.read(&mut piece).map_err(|error| self.told(error))?
            };
            // Nobody waits for what `out` does.
            let failed = |error: io::Error| UsageError::Other(format!("the output: {error}").into());
            out.write_all(&piece[..n]).map_err(failed)?;
        }
        Ok(Some(length))
    }

    /// The rows whose keys lie in a range, in order, from either end.
    ///
    /// The range may be changed meanwhile: a row that is there all the time is seen once, one that comes or goes may
    /// be seen or not.
    ///
    /// # Errors
    /// A dropped table.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Range> {
        Ok(Range::new(self.cursor()?, Bounds::of(&range)))
    }

    /// All rows, in order.
    ///
    /// # Errors
    /// A dropped table.
    pub fn rows(&self) -> Result<Range> {
        self.range::<&[u8]>(..)
    }

    /// A cursor over all rows, which is nowhere yet.
    ///
    /// # Errors
    /// A dropped table.
    pub fn cursor(&self) -> Result<Cursor> {
        self.engine.check_open()?;
        let call = self.enter()?;
        let owner = Owner::Table(self.name.clone());
        Ok(Cursor::new(self.engine.clone(), self.inner.clone(), call.clustered.clone(), owner))
    }

    /// A secondary index.
    ///
    /// # Errors
    /// There is none of this name; a dropped table.
    pub fn index(&self, name: &str) -> Result<Index> {
        self.engine.check_open()?;
        let call = self.enter()?;
        let shape = &call;
        let place = shape.record.indexes.iter().position(|index| *index.name == *name);
        let place =
            place.ok_or_else(|| SchemaError::NoIndex { table: self.name.clone(), index: name.into() })?;
        let name = shape.record.indexes[place].name.clone();
        Ok(Index::new(self.clone(), name, shape.secondaries[place].clone()))
    }

    /// Switches the adaptive hash index of this table's trees on or off, and of those that it gets later.
    pub fn set_hash_index(&self, on: bool) {
        self.inner.set_hash_index(on);
    }
}
