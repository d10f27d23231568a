//! Positions among rows.
//!
//! **Purpose.** A cursor over the live rows of a tree: it seeks, goes forward and backward, and lends the row it is at.
//!
//! **Invariants.** It holds no latch between two calls, and passes the table's gate at each. When the tablespace it
//! began on was dropped, by a drop or a truncation, every further call fails with
//! [`Error::TableDropped`](crate::error::Error::TableDropped), whatever the table has become. Rows that are there all
//! the time are met in order, each once in one direction; what it lends stays as it was read until it moves.
//!
//! **May touch.** `engine`, `catalog`, `transaction`, `tree`.

use crate::{
    catalog::Table,
    engine::Engine,
    error::{Owner, Result},
    store::Tree,
    sync::Arc,
    transaction::read,
    tree,
};

pub use crate::tree::Seek;

/// A position among the rows of a table, in the order of their keys.
///
/// A new cursor is nowhere: [`Cursor::next`] goes to the first row, [`Cursor::prev`] to the last. Beyond an end it is at
/// no row, and goes back in from there. After an error it is nowhere, like a new one.
///
/// It reads some rows ahead, so a row may be given as it was a moment ago; [`Cursor::seek`] looks anew.
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
    at: At,
    /// The value of a row that has it in pages of its own.
    long: Vec<u8>,
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
    pub(crate) fn new(engine: Arc<Engine>, table: Arc<Table>, tree: Arc<Tree>, owner: Owner) -> Self {
        let entries = tree::Cursor::new(tree.clone());
        Self { engine, table, entries, tree, owner, at: At::Nothing, long: Vec::new() }
    }

    /// Another one on the same tree, which is nowhere yet.
    pub(crate) fn another(&self) -> Self {
        Self::new(self.engine.clone(), self.table.clone(), self.tree.clone(), self.owner.clone())
    }

    /// Whether it is nowhere yet.
    pub(crate) fn is_new(&self) -> bool {
        self.entries.is_new()
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

    /// Moves, and on over entries that are no rows. An entry that is not wanted is the end.
    pub(crate) fn go(&mut self, to: Move<'_>, wanted: impl Fn(&[u8]) -> bool) -> Result<bool> {
        self.at = At::Nothing;
        self.find(to, wanted).map_err(|error| {
            self.entries = tree::Cursor::new(self.tree.clone());
            error.of(|_| self.owner.clone())
        })
    }

    fn find(&mut self, to: Move<'_>, wanted: impl Fn(&[u8]) -> bool) -> Result<bool> {
        let Self { engine, table, tree, entries, long, .. } = self;
        engine.check_open()?;
        // While this call lasts nobody reshapes the table; that it was reshaped before shows in the tablespace.
        let _call = table.enter()?;
        tree.space().check_live()?;
        let on = to.on();
        let mut found = to.make(entries)?;
        while found && wanted(entries.key()) {
            self.at = look(tree, entries, long)?;
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
fn look(tree: &Tree, entries: &Entries, long: &mut Vec<u8>) -> Result<At> {
    let Some(header) = entries.header().filter(|header| !header.is_deleted()) else { return Ok(At::Nothing) };
    if !header.is_overflow() {
        return Ok(At::Row);
    }
    long.clear();
    long.extend_from_slice(entries.value());
    let is_there = read::resolve(tree, entries.key(), header, long)?;
    Ok(if is_there { At::LongRow } else { At::Nothing })
}
