//! The cost of the trait interface between tree and pool for a point read, which is nothing; this module measures it.
//!
//! **Purpose.** The tree is written against the traits of [`windfall_btree::tree::store`], so that classic pools can be
//! used below it. [`direct`] is the same point read with Windfall's buffer pool written in: every call of the pool by
//! its concrete name, no type parameter. `windfall bench seam` compares the two, in instructions and in time. This
//! module has no other user.
//!
//! **Invariants.** It does what [`Tree::get_into`](windfall_btree::tree::Tree::get_into) does, step by step: the hint,
//! the descent with its checks, and then the note to the hash index. A change to either must be made to both, or two
//! different things are compared. The product's read and descent are separate functions, because they have several
//! callers; here they have one caller, and attributes keep them from being inlined.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::{path, sync::Arc};

use windfall_base::{
    error::{CorruptError, Error, Owner, Result},
    ids::PageNo,
};
use windfall_btree::{
    page::{Access, EntryHeader, Node},
    tree::{
        hash::{TreeHash, hash_of},
        store::HashIndex as _,
    },
};
use windfall_engine::{
    buffer::{BufferPool, OptimisticRead, Space},
    log::FlushLog,
    store::Tree,
};

use crate::{
    server::{PAGE_SIZE, Server as _, Start, Table, product::Product, rows},
    system::{PolicyName, System},
};

/// The fill factor of the loaded tree's nodes, in percent.
const FILL: usize = 93;

/// A table that is entirely in the pool.
#[derive(Debug)]
pub struct Cached {
    _server: Product,
    table: Arc<Table<BufferPool>>,
}

impl Cached {
    /// Creates a table with rows of these keys and values, in an empty folder.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn load(
        folder: &path::Path,
        hash_index: bool,
        rows: impl ExactSizeIterator<Item = ([u8; 8], [u8; 100])>,
    ) -> Result<Self> {
        let system = System { hash_index, ..System::of(PolicyName::Detach) };
        let pages = (rows.len() * 200 / PAGE_SIZE + 1024) as u64;
        let start = Start { system, folder, pages, log: 256 << 20, flush: FlushLog::Write };
        let server = Product::start(&start)?;
        let table = server.create("cached", false)?;
        let mut loader = table.rows.bulk_load(FILL)?;
        for (n, (key, value)) in rows.enumerate() {
            if n.is_multiple_of(10_000) {
                server.log().wait_for_room(0)?;
            }
            loader.push(&key, rows::HEADER, &value)?;
        }
        let end = loader.finish()?;
        server.commit(end)?;
        Ok(Self { _server: server, table })
    }

    /// Returns the tree with both ways to read it.
    pub fn both(&self) -> Both<'_> {
        let generic = &*self.table.rows;
        let (pool, space, hash) = (&**generic.store(), generic.space(), generic.hash());
        Both { generic, direct: Direct { pool, space, hash, rooted: AtomicBool::new(false) } }
    }
}

/// A tree with both ways to read it.
#[derive(Debug)]
pub struct Both<'a> {
    generic: &'a Tree,
    direct: Direct<'a>,
}

/// A function that reads a key.
pub type Way = fn(&Both<'_>, &[u8], &mut Vec<u8>) -> Result<Option<EntryHeader>>;

/// Reads with the product's tree.
///
/// # Errors
/// Errors of the tree.
#[inline(never)]
pub fn generic(both: &Both<'_>, key: &[u8], value: &mut Vec<u8>) -> Result<Option<EntryHeader>> {
    both.generic.get_into(key, value)
}

/// Reads with the concrete pool.
///
/// # Errors
/// Errors of the tree.
#[inline(never)]
pub fn direct(both: &Both<'_>, key: &[u8], value: &mut Vec<u8>) -> Result<Option<EntryHeader>> {
    both.direct.get_into(key, value)
}

/// A tree with the concrete pool.
#[derive(Debug)]
struct Direct<'a> {
    pool: &'a BufferPool,
    space: &'a Arc<Space>,
    hash: &'a TreeHash,
    rooted: AtomicBool,
}

/// The target of a descent: as in the tree, which has one descent for all targets.
#[derive(Clone, Copy)]
enum Target<'k> {
    Key(&'k [u8]),
    #[expect(dead_code, reason = "point reads know where to; the way there is asked all the same")]
    Below(Option<&'k [u8]>),
}

/// The end of a descent.
struct Path<'a> {
    parent: Option<OptimisticRead<'a>>,
    node: OptimisticRead<'a>,
}

impl<'a> Direct<'a> {
    /// [`Tree::get_into`](windfall_btree::tree::Tree::get_into).
    #[inline(never)]
    fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<EntryHeader>> {
        let hash = self.hash.is_on().then(|| hash_of(key));
        if let Some(hash) = hash
            && let Some(answer) = self.get_by_hint(hash, key, value)
        {
            return Ok(answer);
        }
        loop {
            value.clear();
            let Some(path) = self.descend(Target::Key(key), 0, Access::Point)? else { return Ok(None) };
            let node = Node::new(path.node.page());
            let (slot, found) = node.find(key);
            let header = found.then(|| {
                node.value_into(slot, value);
                node.header(slot)
            });
            let leaf = node.page().id().page;
            let is_there = found || node.contains(key);
            if path.node.is_valid() {
                if !is_there {
                    return Err(self.damaged(leaf, "it does not hold the keys that its parent expects"));
                }
                if let Some(hash) = hash.filter(|_| path.parent.is_some()) {
                    self.hash.note(hash, leaf, slot);
                }
                return Ok(header);
            }
        }
    }

    #[expect(clippy::option_option, reason = "no answer is not the answer that there is no entry")]
    fn get_by_hint(&self, hash: u64, key: &[u8], value: &mut Vec<u8>) -> Option<Option<EntryHeader>> {
        let (page, hint) = self.hash.hint(hash)?;
        let Ok(reading) = self.pool.read(self.space, page, Access::Point) else { return None };
        let node = Node::new(reading.page());
        if !node.is_leaf() || !node.has_prefix_of(key) || reading.is_unverified() {
            return None;
        }
        value.clear();
        let (slot, found) = if node.is_at(hint, key) { (hint, true) } else { node.find(key) };
        if found {
            node.value_into(slot, value);
            let header = node.header(slot);
            if !reading.is_valid() {
                return None;
            }
            if slot != hint {
                self.hash.note(hash, page, slot);
            }
            return Some(Some(header));
        }
        (node.contains(key) && reading.is_valid()).then_some(None)
    }

    fn is_rooted(&self) -> Result<bool> {
        if self.rooted.load(Relaxed) {
            return Ok(true);
        }
        self.space.check_live()?;
        let rooted = self.space.has_pages();
        self.rooted.store(rooted, Relaxed);
        Ok(rooted)
    }

    /// `Tree::descend`.
    #[inline(never)]
    fn descend(&self, target: Target<'_>, level: u8, access: Access) -> Result<Option<Path<'a>>> {
        if !self.is_rooted()? {
            return Ok(None);
        }
        loop {
            if let Some(path) = self.try_descend(target, level, access)? {
                return Ok(path);
            }
        }
    }

    /// `Tree::try_descend`.
    #[inline]
    #[expect(clippy::option_option, reason = "an attempt that failed is not a tree that is too low")]
    fn try_descend(&self, target: Target<'_>, level: u8, access: Access) -> Result<Option<Option<Path<'a>>>> {
        let at_level = |level| if level == 0 { access } else { Access::Point };
        let mut parent: Option<OptimisticRead<'_>> = None;
        let mut page = PageNo::ROOT;
        let mut node = self.pool.read(self.space, page, Access::Point)?;
        let mut expected = None;
        let mut slot = 0;
        loop {
            let view = Node::new(node.page());
            let at = view.level();
            let fits = if at == 0 { view.is_leaf() } else { view.is_inner() };
            if !fits || expected.is_some_and(|expected| expected != at) {
                if node.is_valid() {
                    return Err(self.damaged(page, "it is not a node of the level that its parent expects"));
                }
                return Ok(None);
            }
            if node.is_unverified()
                && let Some(parent) = &parent
                && !self.verify_child(parent.clone(), slot, node.clone())?
            {
                return Ok(None);
            }
            if at <= level {
                return Ok(node.is_valid().then(|| (at == level).then_some(Path { parent, node })));
            }
            slot = match target {
                Target::Key(key) => view.child_slot(key),
                Target::Below(key) => view.child_slot_below(key),
            };
            page = view.child(slot);
            if !node.is_valid() {
                return Ok(None);
            }
            let child = self.pool.read(self.space, page, at_level(at - 1));
            if !node.is_valid() {
                return Ok(None);
            }
            expected = Some(at - 1);
            parent = Some(core::mem::replace(&mut node, child?));
        }
    }

    #[cold]
    fn verify_child(
        &self,
        parent: OptimisticRead<'_>,
        slot: usize,
        node: OptimisticRead<'_>,
    ) -> Result<bool> {
        let fits = Node::new(parent.page()).is_parent_of(slot, Node::new(node.page()));
        let page = node.page().id().page;
        if !parent.is_valid() || !node.is_valid() {
            return Ok(false);
        }
        if !fits {
            return Err(self.damaged(page, "it does not hold the keys that its parent expects"));
        }
        node.mark_verified();
        Ok(true)
    }

    fn damaged(&self, page: PageNo, what: &str) -> Error {
        let what = format!("page {page}: {what}").into();
        CorruptError::Structure { owner: Owner::Unknown, space: self.space.id(), what }.into()
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn both_read_the_same() {
        const ROWS: u64 = 20_000;
        for hash_index in [false, true] {
            let folder = TempDir::new().unwrap();
            // Every other key is present.
            let row = |n: u32| ((u64::from(n) * 2).to_be_bytes(), [n as u8; 100]);
            let cached = Cached::load(folder.path(), hash_index, (0..ROWS as u32).map(row)).unwrap();
            let both = cached.both();
            assert!(both.generic.height().unwrap() > 1);
            let (mut one, mut two) = (Vec::new(), Vec::new());
            // The second pass uses hints, if there are any.
            for n in (0..2 * ROWS + 10).chain(0..2 * ROWS + 10) {
                let key = n.to_be_bytes();
                let found = generic(&both, &key, &mut one).unwrap();
                assert_eq!(direct(&both, &key, &mut two).unwrap(), found);
                assert_eq!((found.is_some(), &two), (n < 2 * ROWS && n % 2 == 0, &one));
                assert!(found.is_none() || one == [(n / 2) as u8; 100]);
            }
            assert_eq!(both.generic.hash().bytes() > 0, hash_index);
        }
    }
}
