//! The directory of the tablespaces that the pool may hold pages of.
//!
//! **Purpose.** Eviction has a frame's tag and needs the page table from which to remove the page. Recovery, undo and
//! the flusher have a tablespace's id. All of them find the tablespace here.
//!
//! **Invariants.** A tablespace is entered before its first page comes into the pool (checked by
//! `buffer/invariants.rs::check_frame`). It keeps one slot while it is in the directory, and frames store the slot
//! (checked by `buffer/replace.rs::evict`). Slots are reused, so a look-up compares the tablespace id (checked by
//! `buffer/directory.rs::get`), which is never reused (test: `an_incarnation_is_never_used_twice`). A drop does not
//! touch the directory: the reclaimer removes the tablespace once all its frames are freed (checked by
//! `buffer/invariants.rs::check_frame`).

use rustc_hash::FxHashMap;

use super::space::Space;
use crate::{
    error::Result,
    ids::SpaceId,
    sync::{Arc, Rank, RwLock},
};

/// The directory.
#[derive(Debug)]
pub(super) struct Directory(RwLock<Entries>);

#[derive(Debug, Default)]
struct Entries {
    slots: Vec<Option<Arc<Space>>>,
    unused: Vec<u32>,
    by_id: FxHashMap<SpaceId, u32>,
}

impl Entries {
    fn check_slots(&self) {
        assert!(
            self.by_id.len() + self.unused.len() == self.slots.len(),
            "a slot of the directory is neither used nor unused"
        );
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self(RwLock::new(Rank::Spaces, Entries::default()))
    }
}

impl Directory {
    /// Returns the slot of a tablespace, and enters the tablespace if it is not in the directory yet.
    ///
    /// # Errors
    /// [`TableDropped`](crate::error::Error::TableDropped), if it was dropped before.
    pub(super) fn slot_of(&self, space: &Arc<Space>) -> Result<u32> {
        space.slot().map_or_else(|| self.enter(space), Ok)
    }

    fn enter(&self, space: &Arc<Space>) -> Result<u32> {
        let mut entries = self.0.write();
        if let Some(slot) = space.slot() {
            return Ok(slot);
        }
        let slot = entries.unused.last().map_or(entries.slots.len(), |slot| *slot as usize);
        space.set_slot(slot as u32)?;
        if entries.unused.pop().is_none() {
            entries.slots.push(None);
        }
        assert!(entries.slots[slot].is_none(), "slot {slot} is assigned to a second tablespace");
        entries.slots[slot] = Some(space.clone());
        let earlier = entries.by_id.insert(space.id(), slot as u32);
        assert!(earlier.is_none(), "tablespace {} was entered twice", space.id());
        entries.check_slots();
        Ok(slot as u32)
    }

    /// Removes tablespaces.
    pub(super) fn remove(&self, spaces: &[Arc<Space>]) {
        let mut entries = self.0.write();
        for space in spaces {
            assert!(space.is_dropped(), "tablespace {} leaves the directory and was not dropped", space.id());
            if let Some(slot) = entries.by_id.remove(&space.id()) {
                let removed = entries.slots[slot as usize].take();
                assert!(
                    removed.is_some_and(|removed| Arc::ptr_eq(&removed, space)),
                    "slot {slot} does not hold tablespace {}",
                    space.id()
                );
                entries.unused.push(slot);
            }
        }
        entries.check_slots();
    }

    /// Returns the tablespace of a frame's tag.
    pub(super) fn at(&self, slot: u32, id: SpaceId) -> Option<Arc<Space>> {
        self.0.read().slots.get(slot as usize)?.as_ref().filter(|space| space.id() == id).cloned()
    }

    /// Returns the tablespace with this id.
    pub(super) fn get(&self, id: SpaceId) -> Option<Arc<Space>> {
        let entries = self.0.read();
        let found = entries.slots[*entries.by_id.get(&id)? as usize].clone();
        debug_assert!(
            found.as_ref().is_some_and(|space| space.id() == id),
            "the slot of tablespace {id} holds another one"
        );
        found
    }

    /// Returns all tablespaces, unless the directory is being changed.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn try_all(&self) -> Option<Vec<Arc<Space>>> {
        Some(self.0.try_read()?.slots.iter().flatten().cloned().collect())
    }

    /// Runs `run` as if the directory were being changed.
    #[cfg(test)]
    pub(super) fn locked(&self, run: impl FnOnce()) {
        let _entries = self.0.write();
        run();
    }

    /// Returns all tablespaces.
    pub(super) fn all(&self) -> Vec<Arc<Space>> {
        self.0.read().slots.iter().flatten().cloned().collect()
    }
}
