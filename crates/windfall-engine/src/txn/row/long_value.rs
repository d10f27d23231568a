//! The overflow chains of long values and fields.
//!
//! **Purpose.** Writes what does not fit into its entry to overflow pages, before the change of the entry.
//!
//! **Invariants.** The undo record of a chain is logged with its first page, so a rollback finds every page of it
//! (checked by `row/long_value.rs::begin_chain`). A call that is blocked afterwards keeps its chains and does not write
//! them again (tests: `a_blocked_call_keeps_the_chain_that_it_has_written`,
//! `a_blocked_call_keeps_the_chains_of_its_own_fields`). Between two pieces of the value the thread
//! holds no latches except key latches (test: `a_source_makes_no_statement_and_waits_for_no_row`).

use super::{
    edit::{Edit, Value, fill},
    target::RowTarget,
};
use crate::{
    buffer::{BufferPool, Durability},
    error::{Error, Result},
    log::LOG_OVERHEAD_BYTES,
    mtr::Mtr,
    sync::LongWork,
    tree::{OverflowRef, OverflowWriter},
    txn::{
        trx::{Transactions, Trx},
        undo::record::{Body, UndoRecord},
    },
};

/// Bytes of log for the begin of a chain, with its undo record and the mark on that in a rollback.
const LOG_BYTES_PER_CHAIN: u64 = 512;
/// Bytes read from a source at once.
const SOURCE_CHUNK_BYTES: usize = 64 << 10;

/// Waits for log space for the first bytes of a value, if the table is logged.
pub(super) fn wait_for_log_space(
    transactions: &Transactions,
    target: &RowTarget<'_>,
    bytes: u64,
) -> Result<()> {
    match target.durability() {
        Durability::Logged => {
            let bytes = 2 * bytes.min(SOURCE_CHUNK_BYTES as u64) + LOG_OVERHEAD_BYTES;
            transactions.log().wait_for_room_interruptibly(bytes)
        }
        Durability::Temporary => Ok(()),
    }
}

/// Returns the overflow chain of a long value, which is written unless it was before.
pub(super) fn ensure_chain<'e: 't, 't>(
    trx: &mut Trx<'e>,
    target: &RowTarget<'t>,
    edit: &mut Edit<'_>,
) -> Result<OverflowRef> {
    let space = target.clustered.space().id();
    match &edit.chains {
        Some((written, chains)) if *written == space => {
            debug_assert!(
                matches!(chains[..], [(0, chain)] if chain.length == edit.length()),
                "a kept chain has another length than its value"
            );
            return Ok(chains[0].1);
        }
        // A source that was read cannot be read again.
        Some(_) if edit.head.is_some() => return Err(Error::TableDropped(target.owner())),
        _ => {}
    }
    let chain = write_value(trx, target, edit)?;
    edit.chains = Some((space, vec![(0, chain)]));
    Ok(chain)
}

/// Begins an overflow chain.
fn begin_chain<'e: 't, 't>(
    trx: &mut Trx<'e>,
    target: &RowTarget<'t>,
) -> Result<OverflowWriter<'t, BufferPool>> {
    let tree = target.clustered;
    let pool = tree.store();
    tree.ensure_root()?;
    if target.durability() == Durability::Logged {
        trx.reserve_log(LOG_BYTES_PER_CHAIN)?;
    }
    let mut tail = trx.tail(target.temporary)?;
    trx.reserve(&mut tail, UndoRecord::OVERFLOW_LENGTH)?;
    let mut mtr = Mtr::begin(pool)?;
    let place = tail.prepare(&mut mtr, UndoRecord::OVERFLOW_LENGTH)?;
    let position = tail.position();
    let writer = tree.begin_overflow(&mut mtr, position.0)?;
    let body = Body::Overflow { space: tree.space().id(), first: writer.first() };
    let previous = trx.previous(&tail);
    let mut record = tail.new_record();
    UndoRecord { trx: trx.writer_id(), previous, body }.encode(&mut record);
    trx.write_undo(&mut mtr, &mut tail, place, record, target.clustered.space().id(), 0);
    debug_assert!(
        trx.previous(&tail) == Some(position),
        "a chain has the stamp of another undo record than the one that names it"
    );
    mtr.commit()?;
    Ok(writer)
}

/// Appends bytes to a chain. Between pieces the thread may have to wait for log space: it holds only the key latch of
/// the row.
fn write_bytes(
    transactions: &Transactions,
    target: &RowTarget<'_>,
    writer: &mut OverflowWriter<'_, BufferPool>,
    bytes: &[u8],
) -> Result<()> {
    for chunk in bytes.chunks(SOURCE_CHUNK_BYTES) {
        wait_for_log_space(transactions, target, chunk.len() as u64)?;
        writer.write(chunk)?;
    }
    Ok(())
}

/// Writes bytes to an overflow chain.
pub(super) fn write_chain<'e: 't, 't>(
    trx: &mut Trx<'e>,
    target: &RowTarget<'t>,
    bytes: &[u8],
) -> Result<OverflowRef> {
    let mut writer = begin_chain(trx, target)?;
    write_bytes(trx.transactions(), target, &mut writer, bytes)?;
    Ok(writer.finish()?.0)
}

/// Copies an overflow chain, piece by piece. No other call may free it meanwhile.
pub(super) fn copy_chain<'e: 't, 't>(
    trx: &mut Trx<'e>,
    target: &RowTarget<'t>,
    chain: OverflowRef,
) -> Result<OverflowRef> {
    let mut writer = begin_chain(trx, target)?;
    let mut reader = target.clustered.read_overflow(chain);
    let length = usize::try_from(chain.length).unwrap_or(SOURCE_CHUNK_BYTES).min(SOURCE_CHUNK_BYTES);
    let mut buffer = vec![0; length];
    while reader.left() > 0 {
        LongWork::check()?;
        let n = reader.read(&mut buffer)?;
        write_bytes(trx.transactions(), target, &mut writer, &buffer[..n])?;
    }
    let copy = writer.finish()?.0;
    debug_assert!(copy.length == chain.length, "the copy of a chain has another length");
    Ok(copy)
}

/// Writes a long value to an overflow chain.
fn write_value<'e: 't, 't>(
    trx: &mut Trx<'e>,
    target: &RowTarget<'t>,
    edit: &mut Edit<'_>,
) -> Result<OverflowRef> {
    let transactions = trx.transactions();
    let mut writer = begin_chain(trx, target)?;
    write_bytes(transactions, target, &mut writer, edit.known().unwrap_or_default())?;
    if let (Some((Value::Source { length, source }, _)), Some(head)) = (&mut edit.value, &edit.head) {
        let mut left = *length - head.len() as u64;
        let mut buffer = vec![0; SOURCE_CHUNK_BYTES];
        while left > 0 {
            let chunk =
                &mut buffer[..usize::try_from(left).unwrap_or(SOURCE_CHUNK_BYTES).min(SOURCE_CHUNK_BYTES)];
            fill(*source, chunk)?;
            write_bytes(transactions, target, &mut writer, chunk)?;
            left -= chunk.len() as u64;
        }
    }
    let chain = writer.finish()?.0;
    debug_assert!(chain.length == edit.length(), "a chain has another length than its value");
    Ok(chain)
}
