//! The bounded memory that recovery takes for tables that were created and dropped in the log.
//!
//! **Purpose.** Recovery keeps one bit for each, however many there were.
//!
//! **Invariants.** The logs are written directly, one group per record.

use super::{unfinished::scanned, *};
use crate::ids::PageId;

fn made(space: u64) -> Record<'static> {
    Record::FileMade { space: SpaceId(space) }
}

fn changed(space: u64) -> Record<'static> {
    let id = PageId { space: SpaceId(space), page: PageNo(1) };
    Record::Page { id, op: PageOp::Write { at: AT as u32, bytes: b"changed" } }
}

fn dropped(spaces: &[u64]) -> Record<'static> {
    Record::Drop { spaces: spaces.iter().map(|space| SpaceId(*space)).collect() }
}

#[test]
fn a_table_that_was_dropped_is_a_bit() {
    // Changes that purge was making when the drop was logged follow it, and so may the record of the file. A change of
    // another tablespace is placed between, because only the first of several changes in a row is examined.
    let of_one =
        |space| [changed(space), made(space), dropped(&[space]), changed(10), changed(space), made(space)];
    let came_and_went = (1000..3000).flat_map(of_one);
    let others = [changed(10), made(10), made(11), changed(20_000), made(10), dropped(&[12, 13])];
    let behind: Vec<_> = others.into_iter().chain(came_and_went).chain([changed(10)]).collect();
    let found = scanned(&[], &[], &behind);
    let changed: Vec<_> = found.changed.iter().map(|space| space.0).collect();
    assert_eq!(changed, [10, 20_000]);
    assert_eq!(found.made.keys().map(|space| space.0).collect::<Vec<_>>(), [10, 11]);
    assert!(found.made[&SpaceId(10)] < found.made[&SpaceId(11)], "the first group that records it is kept");
    assert_eq!((found.dropped.len(), found.dropped.words()), (2002, 1 + 32));
    assert!([12, 13, 1000, 2999].iter().all(|space| found.dropped.contains(SpaceId(*space))));
    assert!([10, 11, 14, 999, 3000].iter().all(|space| !found.dropped.contains(SpaceId(*space))));
}
