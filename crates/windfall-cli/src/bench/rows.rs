//! The rows that several engines share, and the interface to read them.
//!
//! **Purpose.** The same rows for every engine of a comparison, and the same interface: reads by key, reads and updates
//! by key.
//!
//! **Invariants.** The number of a row determines its content, in every engine and every run (test:
//! `the_number_of_a_row_determines_it`).

use windfall_measure::Random;

use super::fixture;
use crate::{
    engine::{Database, Table},
    failure::Result,
};

/// The bytes of a value.
pub(super) const VALUE: usize = 100;

/// Returns the row with a number: its key and its value.
pub(super) fn row(id: u64) -> ([u8; 8], [u8; VALUE]) {
    let mut value = [0; VALUE];
    Random::new(id, 77).fill(&mut value);
    (id.to_be_bytes(), value)
}

/// Returns the sum of the bytes of a value, eight at a time.
pub(super) fn sum(value: &[u8]) -> u64 {
    value.as_chunks::<8>().0.iter().fold(0, |sum, eight| sum.wrapping_add(u64::from_le_bytes(*eight)))
}

/// A reader by key: returns the sum of the value, or none if the key is missing.
pub(super) type Read<'a> = Box<dyn FnMut([u8; 8]) -> Result<Option<u64>> + 'a>;

/// Returns a reader of a Windfall table.
pub(super) fn ours(table: &Table) -> Read<'_> {
    let mut value = Vec::new();
    Box::new(move |key| Ok(table.get_into(&key, &mut value)?.then(|| sum(&value))))
}

/// Fills a Windfall table, and writes it to disk.
pub(super) fn fill(db: &Database, rows: u64) -> Result<Table> {
    let table = fixture::table(db, "rows")?;
    for id in 0..rows {
        let (key, value) = row(id);
        table.insert(&key, &value)?;
    }
    db.checkpoint()?;
    Ok(table)
}

/// A store that can be read and updated by key.
pub(super) trait Store {
    /// Returns the sum of the value of a key.
    fn read(&self, key: [u8; 8]) -> Result<Option<u64>>;
    /// Replaces the value of a key.
    fn update(&self, key: [u8; 8], value: &[u8]) -> Result<()>;
}

impl Store for Table {
    fn read(&self, key: [u8; 8]) -> Result<Option<u64>> {
        Ok(self.get(&key)?.map(|value| sum(&value)))
    }

    fn update(&self, key: [u8; 8], value: &[u8]) -> Result<()> {
        Ok(Table::update(self, &key, value)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_row_determines_it() {
        let (key, value) = row(258);
        assert_eq!(key, [0, 0, 0, 0, 0, 0, 1, 2]);
        // The same in each build: a comparison with a database of another run has the same rows.
        assert_eq!(sum(&value), 0x0750_de54_129e_dfdb);
        assert_ne!(row(257).1, value);
    }
}
