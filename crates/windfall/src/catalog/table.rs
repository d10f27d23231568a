//! A table in memory: its gate and its shape.
//!
//! **Purpose.** What a handle holds. Row calls pass the gate and work on the shape that they find inside; DDL closes
//! the gate, waits until nobody is inside, and puts another shape there.
//!
//! **Invariants.** The shape changes only while the gate is closed and empty, so a row call works on one shape from its
//! beginning to its end. A dropped table's gate is closed for good.
//!
//! **May touch.** `record`, `store`, `sync`, `transaction`.

use smallvec::SmallVec;

use super::{building::Building, numbers::Numbers, record::TableRecord};
use crate::{
    error::{Error, Owner, Result},
    ids::SpaceId,
    store::Tree,
    sync::{
        Arc, Closed, Entered, Gate, Gated,
        atomic::{AtomicBool, Ordering::SeqCst, fence},
        is_nested,
    },
    transaction::row::INDEXED,
    tree::store::HashIndex as _,
};

/// What a table is made of at one time.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Its record.
    pub record: TableRecord,
    /// The tree of the rows.
    pub clustered: Arc<Tree>,
    /// The secondary trees, in the order of the record.
    pub secondaries: Vec<Arc<Tree>>,
    /// One more, while it is being filled: who changes rows notes it there.
    pub building: Option<Arc<Building>>,
}

impl Shape {
    /// All trees, the clustered one first.
    pub fn trees(&self) -> impl Iterator<Item = &Arc<Tree>> {
        core::iter::once(&self.clustered).chain(&self.secondaries)
    }

    /// Whether a row of this value has this key in the index whose tree is in that tablespace.
    pub fn is_indexed(&self, space: SpaceId, index_key: &[u8], value: &[u8]) -> bool {
        let index = self.record.indexes.iter().find(|index| index.space == space);
        let window = &value[..value.len().min(INDEXED)];
        index.is_some_and(|index| index.key.key_of(window) == index_key)
    }

    /// All tablespaces, that of a tree being filled included.
    pub fn spaces(&self) -> impl Iterator<Item = SpaceId> {
        let building = self.building.iter().map(|building| building.tree());
        self.trees().chain(building).map(|tree| tree.space().id())
    }
}

/// A table.
#[derive(Debug)]
pub struct Table {
    shape: Gated<Shape>,
    /// Whether its trees are to have a hash index.
    hashed: AtomicBool,
    numbers: Numbers,
}

/// A row call under way: the table's shape, which stays what it is until the call ends.
pub type Call<'a> = Entered<'a, Shape>;

impl Table {
    /// A table of this shape.
    pub fn new(shape: Shape, hashed: bool) -> Self {
        if hashed {
            shape.trees().for_each(|tree| tree.hash().switch(true));
        }
        Self { shape: Gated::new(shape), hashed: AtomicBool::new(hashed), numbers: Numbers::default() }
    }

    /// Switches the hash indexes of its trees, and of those to come.
    pub fn set_hash_index(&self, on: bool) {
        self.hashed.store(on, SeqCst);
        self.apply_hash_index();
    }

    /// Sees to it that the trees are as they are to be. Whoever changes the one or the other looks at both afterwards.
    fn apply_hash_index(&self) {
        loop {
            fence(SeqCst);
            let on = self.hashed.load(SeqCst);
            let trees: SmallVec<[Arc<Tree>; 4]> = self.look(|shape| shape.trees().cloned().collect());
            for tree in trees.iter().filter(|tree| tree.hash().is_on() != on) {
                tree.hash().switch(on);
            }
            if self.hashed.load(SeqCst) == on {
                return;
            }
        }
    }

    /// Begins a row call, waiting while DDL has the gate closed.
    ///
    /// # Errors
    /// [`Error::TableDropped`].
    pub fn enter(&self) -> Result<Call<'_>> {
        self.shape.enter().ok_or(Error::TableDropped(Owner::Unknown))
    }

    /// Begins a row call that is going to change rows, waiting while DDL has the gate closed, or while more changes
    /// are noted than whoever fills a new secondary tree can look at.
    ///
    /// # Errors
    /// [`Error::TableDropped`].
    pub fn enter_to_change(&self) -> Result<Call<'_>> {
        loop {
            let call = self.enter()?;
            // Who is inside another call holds a row's lock, which the one that makes room may have to wait for.
            let full = call.building.as_ref().filter(|building| building.is_full() && !is_nested());
            let Some(building) = full.cloned() else { return Ok(call) };
            drop(call);
            building.wait_for_room();
        }
    }

    /// A short look at the shape as it is now; it may be another one a moment later.
    pub fn look<R>(&self, look: impl FnOnce(&Shape) -> R) -> R {
        self.shape.look(look)
    }

    /// The tablespace of its rows, by which transactions lock the table.
    pub fn space(&self) -> SpaceId {
        self.look(|shape| shape.clustered.space().id())
    }

    /// A copy of the shape as it is now.
    pub fn shape(&self) -> Shape {
        self.look(Shape::clone)
    }

    /// Its numbers, for a call that has passed the gate.
    pub fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// The gate, for DDL.
    pub fn gate(&self) -> &Gate {
        self.shape.gate()
    }

    /// The shape, for who has closed the gate.
    pub(super) fn closed_shape<'a>(&'a self, closed: &'a Closed<'_>) -> &'a Shape {
        self.shape.get(closed)
    }

    /// Puts another shape in place. Gives the one that was there, which may own trees that nothing names any more.
    pub(super) fn reshape(&self, closed: &mut Closed<'_>, shape: Shape) -> Shape {
        let now = shape.record.clustered;
        let before = self.shape.replace(closed, shape);
        if before.record.clustered != now {
            self.numbers.restart();
        }
        self.apply_hash_index();
        before
    }
}
