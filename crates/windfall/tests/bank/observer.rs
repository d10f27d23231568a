//! An outside observer: it collects the clients' reports of their transfers, and derives what must and what may be in
//! the database.

use std::collections::BTreeMap;

use windfall::{Database, Result};

use crate::{
    books::audit,
    transfer::{Known, end_by_name, of_xid},
};

/// The last reported state of each transfer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observer(pub BTreeMap<u64, Known>);

impl Observer {
    pub(crate) fn note(&mut self, number: u64, known: Known) {
        self.0.insert(number, known);
    }

    /// Returns the number of transfers in progress.
    pub(crate) fn unfinished(&self) -> usize {
        self.0.values().filter(|known| !matches!(known, Known::Ended { .. })).count()
    }

    /// Ends each transaction that was found prepared as its name (xid) demands, and checks that all acknowledged
    /// transfers are in the ledger and nothing else is. Afterwards the outcome of each transfer is known.
    ///
    /// # Errors
    /// The errors of the database. A wrong state is a panic.
    pub(crate) fn resolve_outcomes(&mut self, db: &Database) -> Result<()> {
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
            assert!(self.0.contains_key(number), "no client has reported transfer {number:x}");
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
