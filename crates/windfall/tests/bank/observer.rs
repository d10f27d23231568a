//! An outside observer: what clients have said of their transfers, and what must and may be there by that.

use std::collections::BTreeMap;

use windfall::{Database, Result};

use crate::{
    books::audit,
    transfer::{Known, end_by_name, of_xid},
};

/// What is known of each transfer.
#[derive(Clone, Debug, Default)]
pub struct Observer(pub BTreeMap<u64, Known>);

impl Observer {
    pub fn note(&mut self, number: u64, known: Known) {
        self.0.insert(number, known);
    }

    /// How many transfers are under way.
    pub fn unfinished(&self) -> usize {
        self.0.values().filter(|known| !matches!(known, Known::Ended { .. })).count()
    }

    /// Ends what was found prepared as its names say, and looks whether all that was acknowledged is there, and nothing
    /// else. It is known then what became of each transfer.
    ///
    /// # Errors
    /// Those of the database; what is wrong is a panic.
    pub fn settle(&mut self, db: &Database) -> Result<()> {
        let found: BTreeMap<u64, Vec<u8>> =
            db.prepared().into_iter().map(|one| (of_xid(&one.xid).0, one.xid)).collect();
        for number in found.keys() {
            let known = self.0.get(number);
            let fits = matches!(
                known,
                Some(
                    Known::Open { prepares: true } | Known::Prepared | Known::Ends { was_prepared: true, .. }
                )
            );
            assert!(fits, "transfer {number:x} is prepared, and was {known:?}");
        }
        for xid in found.values() {
            end_by_name(db, xid)?;
        }
        let ledger = audit(db)?;
        for number in ledger.keys() {
            assert!(self.0.contains_key(number), "transfer {number:x} is of nobody");
        }
        for (number, known) in &mut self.0 {
            let (is_there, prepared) = (ledger.contains_key(number), found.get(number));
            let may_be = match (*known, prepared) {
                (_, Some(xid)) => [of_xid(xid).1; 2],
                (Known::Open { .. }, None) => [false; 2],
                (Known::Prepared, None) => panic!("transfer {number:x} was prepared, and is not any more"),
                (Known::Ends { was_prepared: false, commits: true }, None) => [false, true],
                (Known::Ends { commits, .. } | Known::Ended { commits }, None) => [commits; 2],
            };
            assert!(
                may_be.contains(&is_there),
                "transfer {number:x}, {known:?}: is in the ledger: {is_there}"
            );
            *known = Known::Ended { commits: is_there };
        }
        assert!(db.prepared().is_empty(), "{:?}", db.prepared());
        Ok(())
    }
}
