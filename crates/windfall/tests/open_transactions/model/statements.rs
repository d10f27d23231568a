//! Statements on tables: they are refused if a transaction has locked the table.

use std::collections::BTreeMap;

use super::locks::{Conflict, index_key};
use super::{Model, Table, TableNo};
use crate::outcome::{Outcome, Refusal};
use crate::steps::{Ddl, Which};
use crate::value::KEYS;

impl Model {
    /// Compares a statement with its possible outcomes, and applies it.
    pub(crate) fn judge_statement(&mut self, ddl: &Ddl, outcome: &Outcome) -> Result<(), String> {
        let allowed = self.statement(ddl);
        super::expect(outcome, &allowed)?;
        if *outcome == Outcome::Done {
            self.make(ddl);
        }
        Ok(())
    }

    fn named(&self, name: u8) -> Result<TableNo, Vec<Outcome>> {
        self.names.get(&name).copied().ok_or_else(|| vec![Refusal::NoTable.into()])
    }

    /// Returns the outcomes: done, or refused if transactions have locks on these tables.
    fn alone_with(&self, tables: &[TableNo]) -> Vec<Outcome> {
        let locked = tables.iter().map(|table| self.locks.table(self.tables[*table].rows, false)).max();
        outcomes(locked.unwrap_or(Conflict::No))
    }

    fn statement(&self, ddl: &Ddl) -> Vec<Outcome> {
        self.try_statement(ddl).unwrap_or_else(|refused| refused)
    }

    fn try_statement(&self, ddl: &Ddl) -> Result<Vec<Outcome>, Vec<Outcome>> {
        Ok(match *ddl {
            Ddl::Create { name, .. } if self.names.contains_key(&name) => vec![Refusal::TableExists.into()],
            Ddl::CreateTemporary { .. } if self.temporary.is_some() => vec![Refusal::TableExists.into()],
            Ddl::DropTemporary if self.temporary.is_none() => vec![Refusal::NoTable.into()],
            Ddl::Create { .. } | Ddl::CreateTemporary { .. } | Ddl::DropTemporary => vec![Outcome::Done],
            Ddl::Drop { name } | Ddl::Truncate { name } => self.alone_with(&[self.named(name)?]),
            Ddl::DropTwo { one, other } => self.alone_with(&[self.named(one)?, self.named(other)?]),
            Ddl::Rename { from, to } => {
                let table = self.named(from)?;
                if self.names.contains_key(&to) {
                    return Err(vec![Refusal::TableExists.into()]);
                }
                self.alone_with(&[table])
            }
            Ddl::Swap { one, other } => {
                let tables = [self.named(one)?, self.named(other)?];
                if one == other { vec![Outcome::Done] } else { self.alone_with(&tables) }
            }
            Ddl::DropIndex { name, which } => {
                let table = self.named(name)?;
                if self.tables[table].index(which).is_none() {
                    return Err(vec![Refusal::NoIndex.into()]);
                }
                self.alone_with(&[table])
            }
            Ddl::CreateIndex { name, which } => {
                let table = self.named(name)?;
                if self.tables[table].index(which).is_some() {
                    return Err(vec![Refusal::IndexExists.into()]);
                }
                self.new_index(table, which)
            }
        })
    }

    fn new_index(&self, table: TableNo, which: Which) -> Vec<Outcome> {
        let rows = self.tables[table].rows;
        let mut locked = self.locks.table(rows, true);
        // The statement also waits for background rollbacks.
        if self.rolls_back {
            locked = locked.max(Conflict::May);
        }
        let may = outcomes(locked);
        if which != Which::Unique || !self.has_twins(table) {
            return may;
        }
        // The error names one of the rows.
        let twins = (0..KEYS).map(|key| Refusal::DuplicateIndexKey(Some(key)).into());
        may.into_iter().filter(|outcome| *outcome != Outcome::Done).chain(twins).collect()
    }

    /// Returns whether two rows have the same key in the unique index.
    fn has_twins(&self, table: TableNo) -> bool {
        let mut count: BTreeMap<u8, u32> = BTreeMap::new();
        for value in (0..KEYS).filter_map(|key| self.newest_value(table, key)) {
            *count.entry(index_key(value, Which::Unique)).or_default() += 1;
        }
        count.values().any(|count| *count > 1)
    }

    fn make(&mut self, ddl: &Ddl) {
        self.seq += 1;
        let is_logged = match *ddl {
            Ddl::CreateTemporary { .. } | Ddl::DropTemporary => false,
            Ddl::Swap { one, other } => one != other,
            _ => true,
        };
        if is_logged {
            self.undone.clear();
        }
        match *ddl {
            Ddl::Create { name, first, unique } => {
                let table = self.new_table(false, first, unique);
                self.names.insert(name, table);
            }
            Ddl::CreateTemporary { first, unique } => {
                self.temporary = Some(self.new_table(true, first, unique));
            }
            Ddl::DropTemporary => {
                if let Some(table) = self.temporary.take() {
                    self.forget_table(table);
                }
            }
            Ddl::Drop { name } => self.drop_named(name),
            Ddl::DropTwo { one, other } => {
                self.drop_named(one);
                self.drop_named(other);
            }
            Ddl::Truncate { name } => {
                let table = self.names[&name];
                self.drop_trees(table);
                let rows = self.new_tree();
                let indexes = self.tables[table].indexes.clone();
                let indexes = indexes.into_iter().map(|(which, _)| (which, self.new_tree())).collect();
                let table = &mut self.tables[table];
                (table.rows, table.indexes) = (rows, indexes);
                table.versions.clear();
            }
            Ddl::Rename { from, to } => {
                let table = self.names.remove(&from).expect("there is one");
                self.names.insert(to, table);
            }
            Ddl::Swap { one, other } => {
                let (a, b) = (self.names[&one], self.names[&other]);
                self.names.extend([(one, b), (other, a)]);
            }
            Ddl::CreateIndex { name, which } => {
                let tree = self.new_tree();
                let table = self.names[&name];
                self.tables[table].indexes.push((which, tree));
            }
            Ddl::DropIndex { name, which } => {
                let table = self.names[&name];
                let tree = self.tables[table].index(which).expect("there is one");
                self.tables[table].indexes.retain(|(known, _)| *known != which);
                self.gone.insert(tree);
            }
        }
    }

    fn new_table(&mut self, temporary: bool, first: bool, unique: bool) -> TableNo {
        let rows = self.new_tree();
        let mut indexes = Vec::new();
        if first {
            indexes.push((Which::First, self.new_tree()));
        }
        if unique {
            indexes.push((Which::Unique, self.new_tree()));
        }
        if temporary {
            // A temporary table is never too new for a read view.
            self.created_at.extend(indexes.iter().map(|(_, tree)| (*tree, 0)).chain([(rows, 0)]));
        }
        let versions = BTreeMap::new();
        let table = Table { temporary, is_dropped: false, has_handle: true, rows, indexes, versions };
        self.tables.push(table);
        self.tables.len() - 1
    }

    fn drop_trees(&mut self, table: TableNo) {
        let table = &self.tables[table];
        self.gone.extend(table.indexes.iter().map(|(_, tree)| *tree).chain([table.rows]));
    }

    fn drop_named(&mut self, name: u8) {
        if let Some(table) = self.names.remove(&name) {
            self.forget_table(table);
        }
    }

    pub(crate) fn forget_table(&mut self, table: TableNo) {
        self.drop_trees(table);
        self.tables[table].is_dropped = true;
        self.tables[table].versions.clear();
    }
}

fn outcomes(locked: Conflict) -> Vec<Outcome> {
    match locked {
        Conflict::No => vec![Outcome::Done],
        Conflict::May => vec![Outcome::Done, Refusal::Busy.into()],
        Conflict::Must => vec![Refusal::Busy.into()],
    }
}
