//! Samples of leaves, for statistics.
//!
//! **Purpose.** The statistics of a large table or index, such as the number of different keys, are estimated from some
//! leaves: each costs a descent, however many there are.
//!
//! **Invariants.** No leaf is visited twice, and the entries come in order, also while others change the tree (test:
//! `a_sample_has_each_row_at_most_once`). A sample of all leaves has all rows, and each leaf stands for itself (test:
//! `a_sample_of_all_leaves_is_exact`). The caller runs outside of the table's gate, so that statements do not wait for
//! it (test: `a_sample_ends_when_its_table_is_dropped`).

use crate::{
    cursor::{Batch, EntryRef},
    error::Result,
    index::{Index, IndexBatch},
    store::Tree,
    sync::LongWork,
    table::Table,
    tree::LeafCopy,
    tx_table::Access,
    txn::mvcc::value::inline_fields,
};

impl<A: Access> Table<A> {
    /// Reads a sample of the leaves of the rows: at most this many, each at most once, in the order of their keys.
    /// Passes to `visit` the rows of each leaf, and the number of leaves that it stands for; the sample ends early if
    /// that returns `false`. Returns the number of leaves that were visited. Each costs a descent.
    ///
    /// The sample is a systematic one: at each level the children of a node are equally likely, and a leaf that is more
    /// likely than another one stands for fewer. So the sum over the sample of what was found in a leaf, times what
    /// that stands for, is an estimate for the table; if there are fewer leaves than asked for, all are visited,
    /// except below nodes with many children, and it is exact or nearly so.
    ///
    /// The rows are those that are stored at that moment, as for [`Table::row_count`]: rows that transactions have
    /// inserted and not committed are among them, and those that they have deleted are not. No read view is taken, and
    /// no lock. The value of a row that is stored in overflow pages is not read: it is empty, unless the selected
    /// fields ([`Table::select_fields`]) are all outside of them. In a transaction the sample is one call, which an
    /// interrupt ends; `visit` can make none in it.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-sample-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// # let towns = db.create_table("towns", windfall::TableOptions::default())?;
    /// # (0..1000u32).try_for_each(|n| towns.insert(&n.to_be_bytes(), &[7; 100]))?;
    /// let (mut rows, mut bytes) = (0.0, 0.0);
    /// towns.sample_leaves(20, |leaf, stands_for| {
    ///     rows += stands_for * leaf.len() as f64;
    ///     bytes += stands_for * leaf.iter().map(|(_, value)| value.len() as f64).sum::<f64>();
    ///     true
    /// })?;
    /// assert_eq!(bytes / rows, 100.0);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The table was dropped or truncated; damage, I/O; an interrupt
    /// ([`LockError::Interrupted`](crate::error::LockError::Interrupted)).
    pub fn sample_leaves(&self, leaves: u32, mut visit: impl FnMut(&Batch, f64) -> bool) -> Result<u64> {
        let tree = self.enter()?.clustered.clone();
        let mut rows = Batch::default();
        let sampled = self.sample(&tree, leaves, |leaf, stands_for| {
            rows.clear();
            for (header, key, value) in leaf.entries().filter(|(header, ..)| !header.is_deleted()) {
                let fields = if header.has_fields() { inline_fields(value, self.fields) } else { None };
                let value = if header.is_plain() { value } else { fields.as_deref().unwrap_or(&[]) };
                rows.push(key, value, None);
            }
            Ok(visit(&rows, stands_for))
        });
        sampled.map_err(|error| self.with_owner(error))
    }

    fn sample(
        &self,
        tree: &Tree,
        leaves: u32,
        visit: impl FnMut(&LeafCopy, f64) -> Result<bool>,
    ) -> Result<u64> {
        match self.scope()? {
            None => self.sample_in(tree, leaves, visit),
            Some(scope) => {
                let call = scope.begin_call()?;
                let sampled = self.sample_in(tree, leaves, visit);
                call.finish(sampled)
            }
        }
    }

    fn sample_in(
        &self,
        tree: &Tree,
        leaves: u32,
        mut visit: impl FnMut(&LeafCopy, f64) -> Result<bool>,
    ) -> Result<u64> {
        let Some(distance) = u64::MAX.checked_div(leaves.into()) else { return Ok(0) };
        let mut place = self.engine.env.random() % distance;
        let (mut leaf, mut last, mut visited) = (LeafCopy::default(), None::<Vec<u8>>, 0);
        for _ in 0..leaves {
            LongWork::check()?;
            let is_there = {
                let _call = self.inner.enter()?;
                self.check_readable(tree)?;
                tree.copy_leaf_at(place, &mut leaf)?
            };
            place = place.saturating_add(distance);
            // The same leaf again, or one that was merged with it meanwhile. Fences do not show it: a leaf may store
            // only a part of one, and its neighbour more of it.
            let first = leaf.entries().next().map(|(_, key, _)| key);
            if !is_there || last.as_deref().is_some_and(|last| first.is_none_or(|first| first <= last)) {
                continue;
            }
            visited += 1;
            if !visit(&leaf, (leaf.weight() / f64::from(leaves)).max(1.0))? {
                break;
            }
            if leaf.high().is_none() {
                break;
            }
            if let Some((_, key, _)) = leaf.entries().last() {
                last = Some(key.to_vec());
            }
        }
        Ok(visited)
    }
}

impl<A: Access> Index<A> {
    /// Reads a sample of the leaves of the index, as [`Table::sample_leaves`] does of those of the rows. The entries
    /// are without their rows.
    ///
    /// # Errors
    /// As [`Table::sample_leaves`]; the index was dropped.
    pub fn sample_leaves(&self, leaves: u32, mut visit: impl FnMut(&IndexBatch, f64) -> bool) -> Result<u64> {
        let (mut parts, mut entries) = (self.parts(), IndexBatch::default());
        let sampled = self.table.sample(self.tree(), leaves, |leaf, stands_for| {
            entries.clear();
            for (_, key, value) in leaf.entries().filter(|(header, ..)| !header.is_deleted()) {
                let entry = EntryRef { key, value, row: &[] };
                parts.find(entry)?;
                entries.push(entry, &parts, None);
            }
            Ok(visit(&entries, stands_for))
        });
        sampled.map_err(|error| error.of(|_| self.owner()))
    }
}
