//! Errors of calls that cannot be served as they were made.
//!
//! **Purpose.** The error for bad input names the object that the call was for, and the remedy.
//!
//! **Invariants.** The errors can be cloned, and hold nothing (by type).

use std::path::PathBuf;

use super::{Owner, RowHolder};
use crate::{
    ids::{Lsn, SpaceId},
    sync::Arc,
};

/// A call that cannot be served as it was made.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UsageError {
    /// There is no database in this folder, and the options do not allow creating one.
    #[error("there is no database in {folder}: name the folder of one, or set create_if_missing")]
    NoDatabase {
        /// The folder.
        folder: PathBuf,
    },
    /// A key longer than a page allows.
    #[error(
        "{} has {length} bytes, and {owner} takes at most {limit}: make it shorter, or the pages of a new database larger",
        owner.key()
    )]
    KeyTooLong {
        /// The owner of the key.
        owner: Owner,
        /// The length of the key in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A value longer than the format allows.
    #[error("the value has {length} bytes, and {owner} takes at most {limit}: divide it among several rows")]
    ValueTooLong {
        /// The owner of the value.
        owner: Owner,
        /// The length of the value in bytes.
        length: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A row of more fields than a row can be stored as.
    #[error("the row has {fields} fields, and {owner} takes at most {limit} one by one: join short ones")]
    TooManyFields {
        /// The owner of the row.
        owner: Owner,
        /// The number of fields.
        fields: usize,
        /// The limit.
        limit: usize,
    },
    /// A field is to be kept that the row does not have.
    #[error("the row of {owner} has {fields} fields and no field {field} to keep: pass its bytes")]
    NoSuchField {
        /// The owner of the row.
        owner: Owner,
        /// The number of the field, from zero.
        field: usize,
        /// The number of fields that the row has.
        fields: usize,
    },
    /// A payload of an index entry that is too long.
    #[error(
        "the payload of an entry has {length} bytes, and {owner} takes at most {limit}: keep less beside the key"
    )]
    PayloadTooLong {
        /// The index.
        owner: Owner,
        /// The length of the payload in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A payload of an entry in an index without payloads.
    #[error(
        "{owner} was created with IndexOptions::without_payload: pass its entries without a payload, or create the index \
         again with payloads"
    )]
    PayloadNotStored {
        /// The index.
        owner: Owner,
    },
    /// A change of a row without its entry in an index of which the caller supplies the entries.
    #[error(
        "{owner} takes the entries of its rows from the caller: pass that of this row with insert_with, update_with or \
         delete_with, or none for a row that is not in the index"
    )]
    EntryMissing {
        /// The index.
        owner: Owner,
    },
    /// A supplied entry that is not the row's.
    #[error(
        "the entries that were passed for {owner} do not fit the row: the old one must be the one that it has (read it with a \
         lock), the new one must not be there yet, and there is none before an insertion and after a deletion"
    )]
    WrongEntry {
        /// The index.
        owner: Owner,
    },
    /// A supplied entry with the bytes of another row's.
    #[error(
        "{owner} has an entry of another row with the same bytes, of key and row key together: keys of its entries must be \
         self-delimiting, so that none is the beginning of another one"
    )]
    EntryOfOtherRow {
        /// The index.
        owner: Owner,
    },
    /// An entry for an index that makes its entries itself.
    #[error("{owner} makes the entries of its rows from their values: pass no entry for it")]
    EntryNotSupplied {
        /// The index.
        owner: Owner,
    },
    /// A change of a table with an index of which the extractor was not registered.
    #[error(
        "{owner} has entries that the extractor \"{extractor}\" makes, and the database was opened without it: register it with \
         Options::extractor, or drop the index; until then the table can be read and not be changed"
    )]
    ExtractorMissing {
        /// The index.
        owner: Owner,
        /// The name of the extractor.
        extractor: Arc<str>,
    },
    /// A panic of an extractor.
    #[error(
        "the extractor \"{extractor}\" of {owner} has panicked: {what}; nothing was changed: correct the extractor, or keep such \
         values away from it"
    )]
    ExtractorPanicked {
        /// The index.
        owner: Owner,
        /// The name of the extractor.
        extractor: Arc<str>,
        /// The text of the panic.
        what: Arc<str>,
    },
    /// An extractor that makes other entries of a row than it did before.
    #[error(
        "the extractor \"{extractor}\" makes other entries of this row than {owner} has: it must make the same of the same row \
         each time; register the one with which the index was created, or drop the index and create it again"
    )]
    ExtractorDiffers {
        /// The index.
        owner: Owner,
        /// The name of the extractor.
        extractor: Arc<str>,
    },
    /// Two entries of a row with one key.
    #[error(
        "the extractor \"{extractor}\" of {owner} gives one key of a row two payloads: add each key once"
    )]
    ExtractedTwice {
        /// The index.
        owner: Owner,
        /// The name of the extractor.
        extractor: Arc<str>,
    },
    /// More entries of a row than a change may have.
    #[error(
        "the extractor \"{extractor}\" of {owner} makes entries of {bytes} bytes of one row, with its key in each, and a row may \
         have at most {limit}: add fewer or shorter ones"
    )]
    ExtractedTooMuch {
        /// The index.
        owner: Owner,
        /// The name of the extractor.
        extractor: Arc<str>,
        /// The bytes of the entries.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Two entries for one index in one call.
    #[error("{owner} is named twice among the entries of one call: pass one entry for it")]
    EntryTwice {
        /// The index.
        owner: Owner,
    },
    /// A statement that cannot know the entries of rows that exist.
    #[error(
        "{owner} takes the entries of its rows from the caller: add it with create_index_with, with a function that makes \
         them of the rows, or name it in the options of create_table, and load or insert the rows with load_table or insert_with"
    )]
    EntriesUnknown {
        /// The index.
        owner: Owner,
    },
    /// An index that is added, in a group of statements or in the name of a transaction, to a table that may have rows.
    #[error(
        "index {index} of table {table} is filled from the rows, which takes a statement of its own: add it with alter_table or \
         create_index; a group can add it to a table that the group creates or truncates"
    )]
    IndexInGroup {
        /// The table.
        table: Arc<str>,
        /// The index.
        index: Arc<str>,
    },
    /// A number of rows that no batch has.
    #[error("a batch of {rows} rows was asked for: a batch has at least 1 row, and at most {most}")]
    BatchRows {
        /// The number that was asked for.
        rows: usize,
        /// The most rows of a batch.
        most: usize,
    },
    /// Bytes that are no composite key.
    #[error(
        "{key} is no composite key: at byte {at} {what}; only keys that CompositeKey has made have parts"
    )]
    NoCompositeKey {
        /// The bytes, shortened.
        key: Arc<str>,
        /// The position of the part.
        at: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A table has no auto-increment value left.
    #[error(
        "{owner} has no auto-increment value left: {count} were requested from {next} on; lower ones can still be chosen by hand, and \
         truncating the table starts again"
    )]
    AutoIncrementExhausted {
        /// The owner of the auto-increment values.
        owner: Owner,
        /// The number of values that were requested.
        count: u64,
        /// The value that would be next.
        next: u64,
    },
    /// A position of the log that no commit has returned yet.
    #[error(
        "LSN {lsn} is beyond the end of the log, {end}: pass one that a commit of this database has returned"
    )]
    BeyondLog {
        /// The position.
        lsn: Lsn,
        /// The end of the log.
        end: Lsn,
    },
    /// An option out of its range.
    #[error("option {name}: {what}")]
    Option {
        /// The option's name.
        name: &'static str,
        /// A description of the error, and the valid values.
        what: Arc<str>,
    },
    /// The buffer pool has no frame that could be freed: all are latched.
    #[error("the buffer pool of {frames} frames is too small for this work: enlarge it")]
    PoolTooSmall {
        /// The size of the pool in frames.
        frames: usize,
    },
    /// A part of an index key lies too far from the beginning of a value.
    #[error(
        "{}an index takes its key from the first {limit} bytes of a value, and a part of this one lies after them: \
         move it to the front",
        owner.prefix()
    )]
    IndexedPartTooFar {
        /// The owner of the row or the entry.
        owner: Owner,
        /// The number of bytes.
        limit: usize,
    },
    /// The changes of one call do not fit the log buffer.
    #[error(
        "{}one change of {bytes} bytes does not fit the log buffer, which takes {limit}: enlarge log_buffer_size",
        owner.prefix()
    )]
    ChangeTooLong {
        /// The owner of the changed data.
        owner: Owner,
        /// The length of the change's log group in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A statement on more tables than one log group has room for.
    #[error(
        "a statement on {tables} tables takes up to {bytes} bytes of the log at once, and log_buffer_size allows {limit}: \
         enlarge it, or name fewer tables at a time"
    )]
    StatementTooLong {
        /// The number of tables.
        tables: usize,
        /// The most bytes that its log group takes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A load of a temporary table, or a new index of it, while a transaction that has not ended has changed its rows.
    #[error(
        "a transaction that has not ended has changed rows of the temporary table {0}: commit it or roll it back first"
    )]
    TemporaryInUse(Arc<str>),
    /// A load of a temporary table that was to be finished with another one.
    #[error(
        "this load was begun for another temporary table than {0}: finish it with its own table, and begin one for {0}"
    )]
    LoadOfOtherTable(Arc<str>),
    /// A call on a temporary table from within the function that makes the entries of a new index of it.
    #[error(
        "a function that makes the entries of an index cannot call the temporary table that is being altered"
    )]
    CallInAlteration,
    /// A check of a temporary table.
    #[error("{0} is temporary, and only tables of the database are checked: it ends with its session")]
    TemporaryCheck(Owner),
    /// Metadata of a table that is too long.
    #[error(
        "the metadata of a table has {length} bytes, and may have at most {limit}: keep less with the table"
    )]
    MetadataTooLong {
        /// The length of the metadata in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The record of a table is longer than a page of the system tree allows.
    #[error(
        "the definition of table {table} would take {length} bytes, and with this page size it has room for {limit}: drop an \
         index that is not needed, give the indexes shorter names or fewer parts, or keep less metadata with the table"
    )]
    DefinitionTooLong {
        /// The table.
        table: Arc<str>,
        /// The length of its record in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Rows of a new table are not in the order of their keys.
    #[error(
        "{}row {row} has the key {key}, and the one before it {previous}: give the rows in the order of their keys, or have \
         them sorted (create_table_from_unsorted)",
        owner.prefix()
    )]
    NotAscending {
        /// The table.
        owner: Owner,
        /// The number of the row.
        row: u64,
        /// The key of the row, for a message.
        key: Arc<str>,
        /// The key of the row before it, for a message.
        previous: Arc<str>,
    },
    /// A bulk load into a tree that is not empty.
    #[error("only an empty tree can be loaded in bulk")]
    NotEmpty,
    /// A bulk load of a tree with a key that is not above the previous one.
    #[error("the keys of a bulk load must ascend")]
    KeysMustAscend,
    /// A bulk load or a long value is finished, and a part of it could not be written.
    #[error("a part of the bulk load or long value could not be written: write it again from its beginning")]
    Incomplete,
    /// An index cannot be created while transactions have changed too many rows that do not fit it.
    #[error(
        "{}rows that transactions have changed and not committed do not fit the new index, and they are too many to wait for: end \
         these transactions, and create the index again",
        .0.prefix()
    )]
    TooManyDeferred(Owner),
    /// Between the steps of an alteration more changes of rows were noted than there is room for.
    #[error(
        "{}more than {limit} bytes of changes were noted since the new indexes were built, without being applied to them: build \
         them again, and then finish the alteration sooner, or call catch_up from time to time",
        owner.prefix()
    )]
    TooManyNotes {
        /// One of the new indexes.
        owner: Owner,
        /// The limit of the bytes of notes, with 64 bytes for each besides its entry or row. A note of what is noted
        /// already may count again.
        limit: usize,
    },
    /// Indexes are to be built while an alteration of the same table is not finished.
    #[error(
        "table {0} has an alteration in progress, whose new indexes are built and not published: finish it, or drop its handle, and \
         then build other indexes"
    )]
    AlterationOpen(Arc<str>),
    /// A step of an alteration that is finished.
    #[error("the alteration of table {0} is finished: its indexes are there, so drop its handle")]
    AlterationFinished(Arc<str>),
    /// An alteration in two steps that adds no index.
    #[error("the changes of table {0} add no index that could be built: make them with alter_table")]
    NothingToBuild(Arc<str>),
    /// A group of statements finishes an alteration of another database.
    #[error("the alteration of table {0} belongs to another database: finish it in a group of that one")]
    AlterationOfOther(Arc<str>),
    /// A tablespace has as many pages as 32 bits can number.
    #[error("{}tablespace {space} is full: it has all the pages that 32 bits can number", owner.prefix())]
    TablespaceFull {
        /// The owner of the tablespace.
        owner: Owner,
        /// The tablespace.
        space: SpaceId,
    },
    /// There is no memory for a value.
    #[error("{}there is no memory for a value of {bytes} bytes: read it with read_stream", owner.prefix())]
    OutOfMemory {
        /// The owner of the value.
        owner: Owner,
        /// The length of the value in bytes.
        bytes: u64,
    },
    /// The source of a value failed, or ended before the value did.
    #[error("{}the value's source ended early or failed: {what}", owner.prefix())]
    Source {
        /// The owner of the value.
        owner: Owner,
        /// The error of the source.
        what: Arc<str>,
    },
    /// The output to which a value was written failed.
    #[error("{}writing to the output failed: {what}", owner.prefix())]
    Output {
        /// The owner of the value.
        owner: Owner,
        /// The error of the output.
        what: Arc<str>,
    },
    /// A statement or ordered commit from within the source of a value, an observer of lock waits, or a callback of
    /// the order of commits: it might wait for the call or commit that it is in.
    #[error(
        "no statement and no ordered commit can run from within the source of a value, an observer of lock waits, or a callback of an ordered commit: run it when the call has ended"
    )]
    StatementInCall,
    /// A call from within the source of a value, or an observer of lock waits, would wait for a row, possibly for the
    /// call that reads the source, or that waits.
    #[error(
        "{}{holder}, and a call from within the source of a value, or an observer of lock waits, does not wait for it",
        owner.prefix()
    )]
    WaitInCall {
        /// The owner of the row.
        owner: Owner,
        /// The holder of the row.
        holder: RowHolder,
    },
    /// More transactions than a checkpoint can log.
    #[error(
        "{count} transactions are in progress, and log_buffer_size allows no more that change something or are prepared: \
         end some, or enlarge it"
    )]
    TooManyTransactions {
        /// The number of transactions that are in progress.
        count: usize,
    },
    /// No id is left for transactions or tablespaces.
    #[error("the ids are used up: dump the database and load it again")]
    IdsExhausted,
    /// The name of a prepared transaction is empty or too long.
    #[error(
        "the name of a prepared transaction has {length} bytes: give it one of 1 to {limit} that no other has"
    )]
    PreparedName {
        /// The length of the name in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The system starts no more threads.
    #[error(
        "the system starts no thread for the background worker {worker} ({error}): allow the user or the container more threads"
    )]
    NoThread {
        /// The worker.
        worker: &'static str,
        /// The error of the system.
        error: Arc<str>,
    },
    /// An error of the application, which its own closure or its own source of rows returned.
    #[error("{0}")]
    Other(Arc<str>),
}
