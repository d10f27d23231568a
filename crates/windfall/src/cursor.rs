//! Positions among rows.
//!
//! **Purpose.** A cursor over the live rows of a tree: it seeks, goes forward and backward, and lends the row it is at.
//!
//! **Invariants.** It holds no latch between two calls, and passes the table's gate at each that needs more than what
//! was read ahead. When the tablespace it began on was dropped, by a drop or a truncation, every further call fails
//! with [`Error::TableDropped`](crate::error::Error::TableDropped), whatever the table has become. Rows are met in
//! order, each once in one direction; what it lends stays as it was read until it moves.
//!
//! What it sees is decided by its [`Reader`]. Outside of a transaction it has a view from one seek to the next, in a
//! transaction that one's; so the rows that it gives are those of one moment. Where it locks (`locking`) each row is
//! read anew, as it is now.
//!
//! **May touch.** `engine`, `catalog`, `scope`, `transaction`, `tree`.

mod locking;

use crate::{
    catalog::Table,
    engine::Engine,
    error::{CorruptError, Owner, Result},
    ids::{SpaceId, TrxId},
    scope::{Inner, RowLock, Scope},
    store::Tree,
    sync::Arc,
    transaction::{Horizon, ReadView, Sight, Transactions, read, secondary},
    tree,
};

pub(crate) use locking::intention;

pub use crate::tree::Seek;

/// A position among the rows of a table, in the order of their keys.
///
/// A new cursor is nowhere: [`Cursor::next`] goes to the first row, [`Cursor::prev`] to the last. Beyond an end it is
/// at no row, and goes back in from there. After an error it is nowhere, like a new one.
///
/// The rows that it meets between two seeks are those of one moment, in a transaction of the moment that its level
/// says. What the transaction itself changes meanwhile may be met as it was before, for some rows are read ahead;
/// [`Cursor::seek`] looks anew. What it has taken back, by a savepoint or as a statement failed, is not met any more.
///
/// ```
/// # fn main() -> windfall::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("windfall-cursor-{}", std::process::id()));
/// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
/// use windfall::{Seek, TableOptions};
///
/// let towns = db.create_table("towns", TableOptions::default())?;
/// for town in ["Basel", "Genoa", "Oslo"] {
///     towns.insert(town.as_bytes(), b"")?;
/// }
/// let mut cursor = towns.cursor()?;
/// assert!(cursor.seek(Seek::AtLeast(b"C"))?);
/// assert_eq!(cursor.key(), Some(&b"Genoa"[..]));
/// assert!(cursor.prev()?);
/// assert_eq!(cursor.key(), Some(&b"Basel"[..]));
/// assert!(!cursor.prev()?);
/// # db.close()?;
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Cursor {
    engine: Arc<Engine>,
    table: Arc<Table>,
    entries: Entries,
    tree: Arc<Tree>,
    /// Whose tree it is.
    owner: Owner,
    reader: Reader,
    /// What it sees, from one seek to the next.
    view: Option<Arc<ReadView>>,
    /// It keeps its view from one seek to the next, too.
    settled: bool,
    /// Entries of an index are all that is wanted: their rows are not read, unless they are locked.
    covers: bool,
    /// The range it is in was locked as a whole.
    range_locked: bool,
    /// The transactions that had ended before it has read its entries: for reads of an index that lock.
    ended: Option<Horizon>,
    /// The step that has led a locking cursor beyond an end.
    beyond: Option<Move<'static>>,
    /// How often the transaction had taken a part of it back when entries were read ahead.
    taken_back: u64,
    at: At,
    /// The value of a row that has it in pages of its own.
    long: Vec<u8>,
}

/// Who moves a cursor, and what is seen by that.
#[derive(Clone, Debug)]
pub(crate) enum Reader {
    /// The session of a temporary table, in a transaction or not: what it has written.
    Session(Option<Arc<Scope>>),
    /// A call outside of transactions.
    Alone,
    /// A transaction, whose reads may lock.
    Within(Arc<Scope>, Option<RowLock>),
}

/// A position among all entries of the tree, rows or not.
type Entries = tree::Cursor<Arc<Tree>>;

/// What a cursor is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Nothing,
    /// A row whose value lies in its entry.
    Row,
    /// A row whose value has been read from pages of its own.
    LongRow,
}

/// One move of a cursor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Move<'k> {
    To(Seek<'k>),
    Next,
    Prev,
}

impl Move<'_> {
    fn make(self, entries: &mut Entries) -> Result<bool> {
        match self {
            Move::To(place) => entries.seek(place),
            Move::Next => entries.next(),
            Move::Prev => entries.prev(),
        }
    }

    /// The step that goes on in the same direction.
    pub fn on(self) -> Move<'static> {
        match self {
            Self::Next | Self::To(Seek::First | Seek::AtLeast(_) | Seek::Above(_)) => Move::Next,
            Self::Prev | Self::To(Seek::Last | Seek::AtMost(_) | Seek::Below(_)) => Move::Prev,
        }
    }
}

impl Cursor {
    pub(crate) fn new(
        engine: Arc<Engine>,
        table: Arc<Table>,
        tree: Arc<Tree>,
        owner: Owner,
        reader: Reader,
    ) -> Self {
        let entries = tree::Cursor::new(tree.clone());
        Self {
            engine,
            table,
            entries,
            tree,
            owner,
            reader,
            view: None,
            settled: false,
            covers: false,
            range_locked: false,
            ended: None,
            beyond: None,
            taken_back: 0,
            at: At::Nothing,
            long: Vec::new(),
        }
    }

    /// One that gives the entries of its index without the values of their rows.
    pub(crate) fn of_entries_alone(self) -> Self {
        Self { covers: true, ..self }
    }

    /// Another one in the same range, which is nowhere yet and sees the same.
    pub(crate) fn another(&self) -> Self {
        let (engine, table, tree) = (self.engine.clone(), self.table.clone(), self.tree.clone());
        let mut new = Self::new(engine, table, tree, self.owner.clone(), self.reader.clone());
        new.entries.keep_within(self.entries.limits().clone());
        let Self { settled, covers, range_locked, .. } = *self;
        Self { view: self.view.clone(), settled, covers, range_locked, ..new }
    }

    /// Goes there. Says whether there is such a row; if not, the cursor is beyond that end.
    ///
    /// # Errors
    /// A dropped table; damage, I/O.
    pub fn seek(&mut self, to: Seek<'_>) -> Result<bool> {
        self.go(Move::To(to), |_| true)
    }

    /// Goes to the next row. Says whether there is one; if not, the cursor is behind the last.
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    #[expect(clippy::should_implement_trait, reason = "a cursor goes both ways and lends what it is at")]
    pub fn next(&mut self) -> Result<bool> {
        self.go(Move::Next, |_| true)
    }

    /// Goes to the row before. Says whether there is one; if not, the cursor is before the first.
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    pub fn prev(&mut self) -> Result<bool> {
        self.go(Move::Prev, |_| true)
    }

    /// Moves, and on over entries that are no rows. An entry that is not wanted is the end: it is neither locked nor
    /// waited for.
    pub(crate) fn go(&mut self, to: Move<'_>, wanted: impl Fn(&[u8]) -> bool) -> Result<bool> {
        self.at = At::Nothing;
        let found = self.find(to, &wanted);
        // What was found ahead was found while the view was there.
        let found = match &self.view {
            Some(view) => view.held(found),
            None => found,
        };
        found.map_err(|error| {
            self.entries.reset();
            self.beyond = None;
            self.at = At::Nothing;
            if !self.settled {
                self.view = None;
            }
            error.of(|_| self.owner.clone())
        })
    }

    fn find(&mut self, to: Move<'_>, wanted: &dyn Fn(&[u8]) -> bool) -> Result<bool> {
        self.engine.check_open()?;
        if let Some(found) = self.find_ahead(to, wanted)? {
            return Ok(found);
        }
        let looks_anew = self.view.is_none() || matches!(to, Move::To(_)) && !self.settled;
        let (scope, lock) = match self.reader.clone() {
            Reader::Session(None) => return self.find_seen(to, TrxId::NONE, wanted),
            Reader::Session(Some(scope)) => {
                return scope.call(|inner| {
                    self.forget_taken_back(inner)?;
                    self.find_seen(to, TrxId::NONE, wanted)
                });
            }
            Reader::Alone => {
                if looks_anew {
                    self.take_view(self.engine.transactions.view().into());
                }
                return self.find_seen(to, TrxId::NONE, wanted);
            }
            Reader::Within(scope, lock) => (scope, lock),
        };
        scope.call(|inner| {
            if let Some(lock) = lock.or_else(|| scope.lock_of_reads().map(RowLock::from)) {
                let found = self.find_locked(&scope, inner, lock, to, wanted)?;
                // What is not there any more may have changed since.
                return scope.check_strict(inner).map(|()| found);
            }
            if looks_anew && let Some(view) = scope.view_of_plain_read(inner) {
                self.take_view(view);
            }
            self.forget_taken_back(inner)?;
            self.find_seen(to, inner.own(), wanted)
        })
    }

    /// Steps over what was read ahead, as long as the view says what it is: neither the table nor the transaction is
    /// needed for that, but not to be over. `None` where more has to be looked at.
    fn find_ahead(&mut self, to: Move<'_>, wanted: &dyn Fn(&[u8]) -> bool) -> Result<Option<bool>> {
        let Some(view) = self.view.as_ref().filter(|_| self.covers || matches!(self.owner, Owner::Table(_)))
        else {
            return Ok(None);
        };
        let up = match to {
            Move::To(_) => return Ok(None),
            Move::Next => true,
            Move::Prev => false,
        };
        match &self.reader {
            Reader::Within(scope, lock) if lock.is_none() && scope.lock_of_reads().is_none() => {
                if scope.call(|inner| Ok(inner.taken_back()))? != self.taken_back {
                    return Ok(None);
                }
            }
            Reader::Alone => {}
            _ => return Ok(None),
        }
        self.tree.space().check_live()?;
        while let Some(header) = self.entries.ahead(up) {
            if !view.sees(header.trx) || header.is_overflow() && !header.is_deleted() {
                break;
            }
            to.make(&mut self.entries)?;
            if !wanted(self.entries.key()) {
                return Ok(Some(false));
            }
            if !header.is_deleted() {
                self.at = At::Row;
                return Ok(Some(true));
            }
        }
        Ok(None)
    }

    /// What was read ahead is of no account if the transaction has taken a part of it back since: it may be of that.
    /// Reads that lock look at each row anew anyway.
    fn forget_taken_back(&mut self, inner: &Inner) -> Result<()> {
        if inner.taken_back() != self.taken_back {
            self.entries.forget_ahead()?;
            self.taken_back = inner.taken_back();
        }
        Ok(())
    }

    fn take_view(&mut self, view: Arc<ReadView>) {
        self.view = Some(view);
    }

    fn find_seen(&mut self, to: Move<'_>, own: TrxId, wanted: &dyn Fn(&[u8]) -> bool) -> Result<bool> {
        // While this call lasts nobody reshapes the table; that it was reshaped before shows in the tablespace.
        let call = self.table.enter()?;
        self.tree.space().check_live()?;
        let sight = self.view.as_ref().map_or(Sight::Newest, |view| Sight::View(view, own));
        sight.check_known(self.tree.space().born(), || self.owner.clone())?;
        let Self { engine, tree, entries, long, owner, covers, .. } = self;
        let (transactions, space) = (&engine.transactions, tree.space().id());
        let is_index = call.clustered.space().id() != space;
        let on = to.on();
        let mut found = to.make(entries)?;
        while found && wanted(entries.key()) {
            let Some(header) = entries.header() else { break };
            let is_seen = sight.sees(header.trx);
            self.at = if !is_index {
                look(transactions, tree, entries, sight, long)?
            } else if is_seen && header.is_deleted() {
                At::Nothing
            } else if is_seen && *covers {
                At::Row
            } else {
                let (index_key, key) = split(entries.key(), space, || owner.clone())?;
                let is_there = transactions.get_in(&call.clustered, key, sight, true, long)?
                    && call.is_indexed(space, &index_key, long);
                if is_there { At::LongRow } else { At::Nothing }
            };
            if self.at != At::Nothing {
                return Ok(true);
            }
            found = on.make(entries)?;
        }
        Ok(false)
    }

    /// The key and the value of the row that the cursor is at.
    pub fn row(&self) -> Option<(&[u8], &[u8])> {
        let value = match self.at {
            At::Nothing => return None,
            At::Row => self.entries.value(),
            At::LongRow => &self.long,
        };
        Some((self.entries.key(), value))
    }

    /// The key of the row that the cursor is at.
    pub fn key(&self) -> Option<&[u8]> {
        self.row().map(|(key, _)| key)
    }

    /// The value of the row that the cursor is at.
    pub fn value(&self) -> Option<&[u8]> {
        self.row().map(|(_, value)| value)
    }
}

/// What an entry is; its value is read if it lies elsewhere.
fn look(
    transactions: &Transactions,
    tree: &Tree,
    entries: &Entries,
    sight: Sight<'_>,
    long: &mut Vec<u8>,
) -> Result<At> {
    let Some(header) = entries.header() else { return Ok(At::Nothing) };
    if sight.sees(header.trx) && (header.is_deleted() || !header.is_overflow()) {
        return Ok(if header.is_deleted() { At::Nothing } else { At::Row });
    }
    long.clear();
    long.extend_from_slice(entries.value());
    if let Sight::Newest = sight {
        let is_there = read::resolve(tree, entries.key(), header, long)?;
        return Ok(if is_there { At::LongRow } else { At::Nothing });
    }
    let is_there = transactions.value_in(tree, entries.key(), header, sight, true, long)?;
    Ok(if is_there { At::LongRow } else { At::Nothing })
}

/// Index key and row key of an entry.
pub(crate) fn split(entry: &[u8], space: SpaceId, owner: impl FnOnce() -> Owner) -> Result<(Vec<u8>, &[u8])> {
    secondary::split(entry).ok_or_else(|| {
        let what = "an entry of a secondary index makes no sense".into();
        CorruptError::Structure { owner: owner(), space, what }.into()
    })
}
