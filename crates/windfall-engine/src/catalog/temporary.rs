//! Temporary tables, which have neither a name nor a record.
//!
//! **Purpose.** A temporary table exists as long as its owner holds it. Of its statements, only the allocation of
//! tablespace ids is logged.
//!
//! **Invariants.** The owner runs one statement on its table at a time, except that several threads may drop it
//! (checked by `sync/gate.rs::begin_to_close`). A truncation replaces all trees while the gate is closed, so a call
//! finds the rows of before or none (test: `calls_on_a_temporary_table_go_on_while_it_is_truncated`), and a transaction
//! has nothing to roll back in the trees that were dropped (test:
//! `a_temporary_table_without_a_session_is_renamed_truncated_and_dropped`).

use super::{
    definition::TableDefinition,
    plan::Closing,
    record::Metadata,
    state::Catalog,
    statement::{DropReport, Dropped},
    table::Table,
};
use crate::{
    buffer::{Durability, Space},
    error::Result,
    store::Tree,
    sync::{Arc, work},
};

impl Catalog {
    /// Makes a table without a name or a record. It exists as long as its owner holds it.
    ///
    /// # Errors
    /// [`SchemaError`](crate::error::SchemaError) for the names of its indexes.
    pub fn temporary_table(&self, definition: &TableDefinition) -> Result<Arc<Table>> {
        Self::check_metadata(&definition.metadata)?;
        // It is never stored.
        let metadata = Metadata::Inline(definition.metadata.clone());
        let record = self.new_record_with(definition, metadata)?;
        let space = &mut |id| Ok(Arc::new(Space::new(id, Durability::Temporary)));
        Ok(self.new_table(self.schema(record, space)?))
    }

    /// Truncates a temporary table: it gets new tablespaces, and the old ones are dropped. Waits for the calls on the
    /// table that are in progress. The caller owns the table, and runs no other statement on it meanwhile.
    ///
    /// # Errors
    /// [`StatementInCall`](crate::error::UsageError::StatementInCall); the log accepts no more records.
    pub fn truncate_temporary(&self, table: &Arc<Table>) -> Result<DropReport> {
        Self::check_outside()?;
        let mut record = table.with_schema(|schema| schema.record.clone());
        record.version += 1;
        self.renew_trees(&mut record)?;
        DropReport::of(|| {
            let mut closing = Closing { table, record: Some(Box::new(record)) };
            let mut closed = table.gate().close();
            let trees = table.closed_schema(&closed).tree_count();
            self.change_closed(&mut closing, &mut closed, None, &[], None);
            Ok(Dropped { trees, lsn: None })
        })
    }

    /// Drops a temporary table: no record, no log. The first call passes it to the background to be freed; each call
    /// waits for the calls on the table that are in progress.
    pub fn drop_temporary(&self, table: &Arc<Table>) -> DropReport {
        let (trees, work) = work::in_drop(|| {
            table.gate().close_permanently();
            let (trees, dropped) = table.with_schema(|schema| {
                let detach = |tree: &Arc<Tree>| self.pool.detach(tree.space(), None);
                (schema.trees().count(), schema.trees().map(detach).fold(false, core::ops::BitOr::bitor))
            });
            if dropped {
                table.restart_counters();
                self.retired.table(table.clone());
            }
            trees
        });
        DropReport { trees, work, lsn: None }
    }
}
