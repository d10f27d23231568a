//! Writes in two phases: locate, then change.
//!
//! **Purpose.** Between the phases the caller, which has the present entry by then, appends undo in the same
//! mini-transaction.
//!
//! **Invariants.** A [`Located`] guarantees that its leaf is latched and has the requested [`Room`], so the second
//! phase cannot fail (test: `behaves_as_a_map_4k`). Freezes and splits that this requires are done before, in
//! mini-transactions of their own; only then is the leaf latched for the second phase (test:
//! `making_room_for_an_entry_takes_no_more_log_than_is_reserved`). A leaf in which the key was looked for before counts
//! only if it still is that of the key (test: `a_hint_at_another_leaf_is_not_followed`). So does the last leaf of the
//! tree, which is remembered while entries are inserted at its end, so that such inserts need no descent (test:
//! `the_end_of_a_tree_is_found_without_a_descent_and_only_the_end`). Without room a header may be replaced by one that
//! takes no more bytes (checked by `tree/change.rs::set_header`): that is enough to roll a version back, because a
//! version of a transaction has a whole header.
//!
//! **What fails, and when.** [`Tree::seek_for_change`] fails with `KeyTooLong` or `ValueTooLong` before it does
//! anything. It fails with the store's errors if a page cannot be read or allocated, and with damage if a node to be
//! split is damaged, or the leaf in such a way that the second phase would fail. Then the caller's mini-transaction
//! holds no more latches than before and is unchanged, although nodes may have been split or a leaf frozen, which
//! changes no key and no value. The second phase has no errors.

use core::marker::PhantomData;

use super::{
    Tree,
    descent::{Bounds, Target},
    store::{Access, Latched, MiniTransaction, PageStore, Reading},
    structure::{Need, is_underfull},
};
use crate::{
    error::Result,
    ids::PageNo,
    page::{EntryHeader, Node, PageOp, check_change},
    sync::Arc,
};

/// The room that a change needs in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// No more than the present entry takes: for its removal, or for a header that takes no more bytes than its present
    /// one.
    Keep,
    /// For any header of the present entry, if there is one.
    Header,
    /// For an entry with a value of up to this many bytes, whether it is inserted or replaces the present one.
    Value(usize),
}

/// The leaf in which a key was looked for, which most often still is its leaf, and the slot where it is or belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafHint(pub(super) Option<(PageNo, usize)>);

/// The place of a key in a leaf that is latched in a mini-transaction.
#[derive(Debug)]
pub struct Located<'k, S: PageStore> {
    key: &'k [u8],
    leaf: Latched,
    /// A statement on many tables has very many places: they are small.
    slot: u16,
    is_found: bool,
    /// The header of the entry that was found.
    header: EntryHeader,
    room: Room,
    /// The whole fences of the leaf, if one of them is cut.
    bounds: Option<Arc<Bounds>>,
    store: PhantomData<fn(&S)>,
}

impl<S: PageStore> Tree<S> {
    /// Finds the place of a key and latches its leaf, which has the requested room, in `mtr`.
    ///
    /// `mtr` must not hold a page of this tree, nor a page that is latched after trees (undo, allocation maps): the
    /// descent and the splits would wait for it for ever.
    ///
    /// # Errors
    /// See the module.
    pub fn seek_for_change<'k>(
        &self,
        mtr: &mut S::MiniTransaction<'_>,
        key: &'k [u8],
        room: Room,
    ) -> Result<Located<'k, S>> {
        self.check_key(key)?;
        self.check_inline(if let Room::Value(length) = room { length } else { 0 })?;
        self.ensure_root()?;
        if S::freezes_at_once() {
            self.freeze(key, 1)?;
        }
        loop {
            let Some((path, bounds)) = self.reach_with_fences(Target::Key(key), 0, Access::Point)? else {
                return Err(self.damaged(PageNo::ROOT, "the root has vanished"));
            };
            let Some(leaf) = mtr.upgrade(&self.space, &path.node)? else { continue };
            debug_assert!(
                Node::new(mtr.page(leaf)).contains(key) != Some(false),
                "the leaf that was latched is not that of the key"
            );
            let found = Node::new(mtr.page(leaf)).find(key);
            match self.place(mtr, leaf, bounds.map(Arc::new), key, found, room) {
                Ok(Some(place)) => return Ok(place),
                Ok(None) => mtr.unlatch(leaf),
                Err(error) => {
                    mtr.unlatch(leaf);
                    return Err(error);
                }
            }
            self.make_room(key, room)?;
        }
    }

    /// As [`Tree::seek_for_change`], after the key was looked for: without another descent, if the key still belongs in
    /// the same leaf, and that has room.
    ///
    /// # Errors
    /// As [`Tree::seek_for_change`].
    pub fn seek_for_change_near<'k>(
        &self,
        mtr: &mut S::MiniTransaction<'_>,
        key: &'k [u8],
        room: Room,
        hint: LeafHint,
    ) -> Result<Located<'k, S>> {
        let hint = hint.0.or_else(|| self.end_for(key));
        let place = hint.and_then(|(page, slot)| self.place_by_hint(mtr, key, room, (page, slot)));
        let place = place.map_or_else(|| self.seek_for_change(mtr, key, room), Ok)?;
        if !place.is_found {
            self.note_end(mtr, &place);
        }
        Ok(place)
    }

    /// Latches a leaf that is hinted at and returns the place of the key there, if it belongs there and there is room.
    /// An error is left to the descent.
    fn place_by_hint<'k>(
        &self,
        mtr: &mut S::MiniTransaction<'_>,
        key: &'k [u8],
        room: Room,
        (page, hint): (PageNo, usize),
    ) -> Option<Located<'k, S>> {
        let has_limits = self.check_key(key).is_ok()
            && self.check_inline(if let Room::Value(length) = room { length } else { 0 }).is_ok();
        if !has_limits || S::freezes_at_once() {
            return None;
        }
        let reading = self.store.read(&self.space, page, Access::Point).ok()?;
        let node = Node::new(reading.page());
        // A page that has not been verified against its parent yet may be stale.
        if !node.is_leaf() || node.has_cut_fence() || reading.is_unverified() {
            return None;
        }
        let found = match node.is_at_or_before(hint, key) {
            Some(is_at) => (hint, is_at),
            None if node.contains(key) == Some(true) => node.find(key),
            None => return None,
        };
        let leaf = mtr.upgrade(&self.space, &reading).ok()??;
        debug_assert!(
            Node::new(mtr.page(leaf)).contains(key) == Some(true),
            "the leaf that was latched is not that of the key"
        );
        debug_assert_eq!(Node::new(mtr.page(leaf)).find(key), found, "a key is elsewhere than at its hint");
        let place = self.place(mtr, leaf, None, key, found, room);
        if !matches!(place, Ok(Some(_))) {
            mtr.unlatch(leaf);
        }
        place.ok()?
    }

    /// Notes the leaf of a new entry at the end of the tree; one at another place ends a series of such.
    fn note_end(&self, mtr: &S::MiniTransaction<'_>, place: &Located<'_, S>) {
        let node = Node::new(mtr.page(place.leaf));
        let is_end = place.slot() == node.count() && !node.has_upper();
        self.end_leaf.set(is_end.then(|| mtr.page_no(place.leaf)));
    }

    /// Returns the place of a key at the end of the tree, if the last entry was inserted there and the key is behind
    /// it.
    pub(super) fn end_for(&self, key: &[u8]) -> Option<(PageNo, usize)> {
        let page = self.end_leaf.get()?;
        let reading = self.store.read(&self.space, page, Access::Point).ok()?;
        let node = Node::new(reading.page());
        let slot = node.count();
        let is_end =
            !node.has_upper() && !reading.is_unverified() && node.is_at_or_before(slot, key).is_some();
        if is_end && reading.is_valid() {
            return Some((page, slot));
        }
        self.end_leaf.set(None);
        None
    }

    /// Returns the place of a key, which was searched, in its leaf, which is latched; `None` if the leaf has no room.
    fn place<'k>(
        &self,
        mtr: &S::MiniTransaction<'_>,
        leaf: Latched,
        bounds: Option<Arc<Bounds>>,
        key: &'k [u8],
        (slot, found): (usize, bool),
        room: Room,
    ) -> Result<Option<Located<'k, S>>> {
        let node = Node::new(mtr.page(leaf));
        let need = Need::leaf(key, room);
        let present = found.then_some(slot);
        if need.is_some_and(|need| !need.fits(node, present)) {
            return Ok(None);
        }
        debug_assert!(slot <= node.count(), "a key's place lies beyond the slots of its leaf");
        check_change(node, present, need.map_or(0, |need| need.record_bytes(node, present)))
            .map_err(|what| self.damaged(mtr.page_no(leaf), what))?;
        let header = if found { node.header(slot) } else { EntryHeader::UNVERSIONED };
        let slot = slot as u16;
        Ok(Some(Located { key, leaf, slot, is_found: found, header, room, bounds, store: PhantomData }))
    }
}

impl<S: PageStore> Tree<S> {
    /// Freezes or splits the leaf of a key, in mini-transactions of its own, until it has this room, which may be that
    /// of several entries with as many bytes. The caller must hold no page of this tree.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn make_room(&self, key: &[u8], room: Room) -> Result<()> {
        let Some(need) = Need::leaf(key, room) else { return Ok(()) };
        self.freeze_full_leaf(key)?;
        self.split(&need, 0)
    }
}

/// The place of a key relative to a leaf that is already latched.
#[derive(Debug)]
pub enum Adjacent<'k, S: PageStore> {
    /// The key belongs in the same leaf.
    Place(Located<'k, S>),
    /// The key belongs in the same leaf, which has no room for it.
    NoRoom,
}

impl<S: PageStore> Tree<S> {
    /// Finds the place of another key in the leaf of `other`, which `mtr` holds; `None` if the key belongs in another
    /// leaf. A change at one place shifts the later places in the leaf.
    ///
    /// # Errors
    /// Damage if a change of the leaf would fail.
    pub fn seek_adjacent<'k>(
        &self,
        mtr: &S::MiniTransaction<'_>,
        other: &Located<'_, S>,
        key: &'k [u8],
        room: Room,
    ) -> Result<Option<Adjacent<'k, S>>> {
        let is_here = Node::new(mtr.page(other.leaf)).contains(key);
        let is_between = |bounds: &Arc<Bounds>| bounds.contains(key);
        // The caller relies on it: a descent to a leaf that it has latched would wait for ever.
        if !is_here.unwrap_or_else(|| other.bounds.as_ref().is_some_and(is_between)) {
            return Ok(None);
        }
        let found = Node::new(mtr.page(other.leaf)).find(key);
        let place = self.place(mtr, other.leaf, other.bounds.clone(), key, found, room)?;
        Ok(Some(place.map_or(Adjacent::NoRoom, Adjacent::Place)))
    }
}

impl<S: PageStore> Located<'_, S> {
    fn slot(&self) -> usize {
        self.slot.into()
    }

    /// Returns the entry's version header; `None` if the key has no entry. A delete-marked entry counts as present.
    pub fn header(&self) -> Option<EntryHeader> {
        self.is_found.then_some(self.header)
    }

    /// Replaces the content of `value` by the entry's value.
    pub fn value_into(&self, mtr: &S::MiniTransaction<'_>, value: &mut Vec<u8>) {
        value.clear();
        if self.is_found {
            Node::new(mtr.page(self.leaf)).value_into(self.slot(), value);
        }
    }

    /// Returns the length of the entry's value; `None` if the key has no entry.
    pub fn value_len(&self, mtr: &S::MiniTransaction<'_>) -> Option<usize> {
        self.is_found.then(|| Node::new(mtr.page(self.leaf)).value_range(self.slot()).1)
    }

    /// Returns the latched leaf, which is shared with the places that [`Tree::seek_adjacent`] has found.
    pub fn leaf(&self) -> Latched {
        self.leaf
    }

    /// Releases the leaf, unchanged.
    pub fn release(self, mtr: &mut S::MiniTransaction<'_>) {
        mtr.unlatch(self.leaf);
    }

    /// Inserts the entry. There must be none, and the value must fit the requested room.
    pub fn insert(&mut self, mtr: &mut S::MiniTransaction<'_>, header: EntryHeader, value: &[u8]) {
        assert!(!self.is_found, "an entry is inserted where one exists");
        self.assert_room(value);
        let prefix = Node::new(mtr.page(self.leaf)).prefix_len();
        mtr.apply(
            self.leaf,
            &PageOp::LeafInsert { slot: self.slot, header, suffix: &self.key[prefix..], value },
        );
        debug_assert!(
            Node::new(mtr.page(self.leaf)).is_at(self.slot(), self.key),
            "an inserted entry is not in its slot"
        );
        (self.is_found, self.header) = (true, header);
    }

    /// Replaces header and value of the entry, which must exist. The value must fit the requested room. Returns whether
    /// the entry takes fewer bytes than before, and the leaf should be merged as after [`Located::remove`].
    pub fn replace(&mut self, mtr: &mut S::MiniTransaction<'_>, header: EntryHeader, value: &[u8]) -> bool {
        assert!(self.is_found, "an entry is replaced where none exists");
        self.assert_room(value);
        let before = self.live_bytes(mtr);
        mtr.apply(self.leaf, &PageOp::LeafReplace { slot: self.slot, header, value });
        debug_assert_eq!(
            Node::new(mtr.page(self.leaf)).value_range(self.slot()).1,
            value.len(),
            "the new value of an entry has another length"
        );
        (self.is_found, self.header) = (true, header);
        self.live_bytes(mtr) < before && self.should_merge(mtr, self.slot())
    }

    /// Replaces the version header of the entry, which must exist. The header must fit the requested room. Returns
    /// whether the entry takes fewer bytes than before, and the leaf should be merged as after [`Located::remove`].
    pub fn set_header(&mut self, mtr: &mut S::MiniTransaction<'_>, header: EntryHeader) -> bool {
        assert!(self.is_found, "an entry is marked where none exists");
        let node = Node::new(mtr.page(self.leaf));
        let has_room = match self.room {
            Room::Keep => node.takes_header(self.slot(), header),
            Room::Header => true,
            Room::Value(length) => node.value_range(self.slot()).1 <= length,
        };
        assert!(has_room, "a header that takes more bytes was not announced when its place was located");
        let before = self.live_bytes(mtr);
        mtr.apply(self.leaf, &PageOp::LeafHeader { slot: self.slot, header });
        debug_assert_eq!(
            Node::new(mtr.page(self.leaf)).header(self.slot()),
            header,
            "the new header of an entry is another one"
        );
        (self.is_found, self.header) = (true, header);
        self.live_bytes(mtr) < before && self.should_merge(mtr, self.slot())
    }

    /// Removes the entry, which must exist. Returns whether the leaf has become so empty that [`Tree::maintain`] should
    /// be called after the commit of the mini-transaction.
    pub fn remove(self, mtr: &mut S::MiniTransaction<'_>) -> bool {
        assert!(self.is_found, "an entry is removed where none exists");
        mtr.apply(self.leaf, &PageOp::NodeRemove { slot: self.slot });
        self.should_merge(mtr, Node::new(mtr.page(self.leaf)).count())
    }

    /// Returns whether a merge of the leaf should be tried after a change. `turn` is different after each of many
    /// changes of a leaf: a merge that failed is not tried again after each of them.
    fn should_merge(&self, mtr: &S::MiniTransaction<'_>, turn: usize) -> bool {
        let node = Node::new(mtr.page(self.leaf));
        // A root has no neighbour.
        mtr.page_no(self.leaf) != PageNo::ROOT
            && is_underfull(node)
            && (node.count() < 8 || turn.is_multiple_of(8))
    }

    /// Returns the bytes of all entries of the leaf.
    fn live_bytes(&self, mtr: &S::MiniTransaction<'_>) -> usize {
        Node::new(mtr.page(self.leaf)).live_bytes()
    }

    /// Returns whether the entry, which must exist, takes as many bytes as it would with a value of this length and any
    /// header, so that the leaf needs no room for that.
    pub fn has_room_for(&self, mtr: &S::MiniTransaction<'_>, length: usize) -> bool {
        debug_assert!(self.is_found, "an entry that does not exist has room");
        let need = Need::leaf(self.key, Room::Value(length));
        let node = Node::new(mtr.page(self.leaf));
        need.is_some_and(|need| need.record_bytes(node, Some(self.slot())) <= node.record_bytes(self.slot()))
    }

    fn assert_room(&self, value: &[u8]) {
        assert!(
            matches!(self.room, Room::Value(length) if value.len() <= length),
            "a value of {} bytes was not announced when its place was located",
            value.len()
        );
    }
}
