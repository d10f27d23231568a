//! The tablespaces that the pool may hold pages of.
//!
//! **Purpose.** Eviction knows a frame's tag and needs the page table to take the page out of; recovery, undo and the
//! flusher know a tablespace's number. Both find the tablespace here.
//!
//! **Invariants.** A tablespace is here from its first page on, or earlier. It has one slot while it is here, and
//! frames note the slot; a slot is used again, so the incarnation is compared. A drop does not come here: the
//! reclaimer takes the tablespace out once its frames are back.
//!
//! **May touch.** `space`.

use rustc_hash::FxHashMap;

use super::space::Space;
use crate::{
    error::Result,
    ids::SpaceId,
    sync::{Arc, Rank, RwLock},
};

/// The directory.
#[derive(Debug)]
pub struct Directory(RwLock<Tables>);

#[derive(Debug, Default)]
struct Tables {
    slots: Vec<Option<Arc<Space>>>,
    unused: Vec<u32>,
    by_id: FxHashMap<SpaceId, u32>,
}

impl Default for Directory {
    fn default() -> Self {
        Self(RwLock::new(Rank::Spaces, Tables::default()))
    }
}

impl Directory {
    /// The slot of a tablespace, which is entered if it is not here yet.
    ///
    /// # Errors
    /// [`TableDropped`](crate::error::Error::TableDropped), if it was dropped before.
    pub fn slot_of(&self, space: &Arc<Space>) -> Result<u32> {
        space.slot().map_or_else(|| self.enter(space), Ok)
    }

    fn enter(&self, space: &Arc<Space>) -> Result<u32> {
        let mut tables = self.0.write();
        if let Some(slot) = space.slot() {
            return Ok(slot);
        }
        let slot = tables.unused.last().map_or(tables.slots.len(), |slot| *slot as usize);
        space.set_slot(slot as u32)?;
        if tables.unused.pop().is_none() {
            tables.slots.push(None);
        }
        tables.slots[slot] = Some(space.clone());
        let earlier = tables.by_id.insert(space.id(), slot as u32);
        assert!(earlier.is_none(), "tablespace {} was entered twice", space.id());
        Ok(slot as u32)
    }

    /// Takes tablespaces out.
    pub fn remove(&self, spaces: &[Arc<Space>]) {
        let mut tables = self.0.write();
        for space in spaces {
            if let Some(slot) = tables.by_id.remove(&space.id()) {
                tables.slots[slot as usize] = None;
                tables.unused.push(slot);
            }
        }
    }

    /// The tablespace of a frame's tag.
    pub fn at(&self, slot: u32, id: SpaceId) -> Option<Arc<Space>> {
        self.0.read().slots.get(slot as usize)?.as_ref().filter(|space| space.id() == id).cloned()
    }

    /// The tablespace of this number.
    pub fn get(&self, id: SpaceId) -> Option<Arc<Space>> {
        let tables = self.0.read();
        tables.slots[*tables.by_id.get(&id)? as usize].clone()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Space>> {
        self.0.read().slots.iter().flatten().cloned().collect()
    }
}
