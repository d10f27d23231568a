//! A table in memory: its gate and its shape.
//!
//! **Purpose.** What a handle holds. Row calls pass the gate and work on the shape that they find inside; DDL closes the gate,
//! waits until nobody is inside, and puts another shape there.
//!
//! **Invariants.** The shape changes only while the gate is closed and empty, so a row call works on one shape from its
//! beginning to its end. A dropped table's gate is closed for good.
//!
//! **May touch.** `record`, `store`, `sync`.

use arc_swap::{ArcSwap, Guard};

use super::record::TableRecord;
use crate::{
    error::{Error, Result},
    store::Tree,
    sync::{Arc, Gate, Inside},
};

/// What a table is made of at one time.
#[derive(Debug)]
pub struct Shape {
    /// Its record.
    pub record: TableRecord,
    /// The tree of the rows.
    pub clustered: Arc<Tree>,
    /// The secondary trees, in the order of the record.
    pub secondaries: Vec<Arc<Tree>>,
}

impl Shape {
    /// All trees, the clustered one first.
    pub fn trees(&self) -> impl Iterator<Item = &Arc<Tree>> {
        core::iter::once(&self.clustered).chain(&self.secondaries)
    }
}

/// A table.
#[derive(Debug)]
pub struct Table {
    gate: Gate,
    shape: ArcSwap<Shape>,
}

/// A row call under way.
#[derive(Debug)]
pub struct Call<'a> {
    /// The table's shape, which stays what it is until the call ends.
    pub shape: Guard<Arc<Shape>>,
    _inside: Inside<'a>,
}

impl Table {
    /// A table of this shape.
    pub fn new(shape: Shape) -> Self {
        Self { gate: Gate::new(), shape: ArcSwap::from_pointee(shape) }
    }

    /// Begins a row call, waiting while DDL has the gate closed.
    ///
    /// # Errors
    /// [`Error::TableDropped`].
    pub fn enter(&self) -> Result<Call<'_>> {
        let inside = self.gate.enter_here().ok_or(Error::TableDropped)?;
        Ok(Call { shape: self.shape.load(), _inside: inside })
    }

    /// The shape as it is now; it may be another one a moment later.
    pub fn shape(&self) -> Arc<Shape> {
        self.shape.load_full()
    }

    /// The gate, for DDL and for long calls that look whether they should leave.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Puts another shape in place. The gate is closed and nobody is inside.
    pub(super) fn reshape(&self, shape: Shape) {
        self.shape.store(Arc::new(shape));
    }
}
