//! A second reader of the files of a closed database. It follows docs/file-format.md and shares no code with the
//! engine, so it also finds errors that the engine makes both when it writes and when it reads.

use std::collections::{BTreeMap, BTreeSet};

use windfall::{
    disk::{Disk, FileName, Folder},
    ids::SpaceId,
};
use windfall_sim::SimulatedDisk;

use super::{
    Model, Rows,
    entries::{self, Form},
    numbered_rows, without_gaps,
};

const PAGE: usize = 4096;
const SYSTEM: u64 = 1;

type Found<T> = Result<T, String>;

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn bytes_of(disk: &SimulatedDisk, file: FileName) -> Found<Option<Vec<u8>>> {
    let Some(length) = disk.len(file).map_err(|error| error.to_string())? else { return Ok(None) };
    let mut bytes = vec![0; length as usize];
    disk.read(file, 0, &mut bytes).map_err(|error| error.to_string())?;
    Ok(Some(bytes))
}

/// Returns a fence as a node stores it behind a common prefix of this length, and whether it is cut.
fn stored_fence(fence: &[u8], prefix: usize) -> (Vec<u8>, bool) {
    let most = prefix + PAGE / 16;
    if fence.len() <= most {
        return (fence.to_vec(), false);
    }
    ([&fence[..most], &crc32c::crc32c(fence).to_le_bytes()].concat(), true)
}

/// Returns the newest valid slot of the control file.
fn control(disk: &SimulatedDisk) -> Option<Vec<u8>> {
    let bytes = bytes_of(disk, FileName::Control).ok()??;
    let slots = bytes.chunks_exact(4096).filter(|slot| crc32c::crc32c(&slot[..4092]) == u32_at(slot, 4092));
    slots.max_by_key(|slot| u64_at(slot, 32)).map(<[u8]>::to_vec)
}

/// Destroys all of the log below its low-water mark: recovery must not need it.
pub(crate) fn forget_below_the_low_water_mark(disk: &SimulatedDisk) {
    let Some(control) = control(disk) else { return };
    let low_water_mark = u64_at(&control, 56);
    let starts = starts(disk);
    for (n, start) in starts.iter().enumerate() {
        let (file, within) = (FileName::Log(*start), low_water_mark.saturating_sub(*start));
        if starts.get(n + 1).is_some_and(|next| *next <= low_water_mark) {
            disk.remove(file).unwrap();
        } else if within > 0 && disk.len(file).unwrap() >= Some(4096 + within) {
            disk.write(file, 4096, &vec![0xa5; within as usize]).unwrap();
            disk.sync(file).unwrap();
        }
    }
    disk.sync_folder(Folder::Log).unwrap();
}

/// Returns the log positions at which segments begin, in their order.
fn starts(disk: &SimulatedDisk) -> Vec<u64> {
    let files = disk.list(Folder::Log).unwrap().into_iter();
    let mut starts: Vec<u64> = files
        .filter_map(|file| match file {
            FileName::Log(start) => Some(start),
            _ => None,
        })
        .collect();
    starts.sort_unstable();
    starts
}

/// Returns the start of the segment with this log position; the position itself if there is none.
fn start_of(starts: &[u64], at: u64) -> u64 {
    starts.iter().copied().rfind(|start| *start <= at).unwrap_or(at)
}

/// Returns the range of the starts of segments that hold a part of the log if `age` bytes of it are above its low-water
/// mark.
#[allow(dead_code, reason = "only some tests need it")]
pub(crate) fn segments_in_use(disk: &SimulatedDisk, age: u64) -> core::ops::Range<u64> {
    let Some(control) = control(disk) else { return 0..0 };
    let low_water_mark = u64_at(&control, 56);
    start_of(&starts(disk), low_water_mark)..low_water_mark + age
}

/// Returns the low-water mark: the position at which recovery starts to read the log.
#[allow(dead_code, reason = "only some tests need it")]
pub(crate) fn low_water_mark(disk: &SimulatedDisk) -> u64 {
    u64_at(&control(disk).unwrap(), 56)
}

/// Returns the segments of the log from the one with its low-water mark on, each with the log position of its first
/// byte. A segment ends where the next one begins.
fn segments(disk: &SimulatedDisk, control: &[u8]) -> impl Iterator<Item = (u64, FileName, Vec<u8>)> {
    let mut starts = starts(disk);
    let first = start_of(&starts, u64_at(control, 56));
    starts.retain(|start| *start >= first);
    let mut next = first;
    (0..starts.len()).map_while(move |n| {
        let (start, file) = (starts[n], FileName::Log(starts[n]));
        let mut bytes = bytes_of(disk, file).ok()??;
        if let Some(after) = starts.get(n + 1) {
            bytes.truncate(4096 + (after - start) as usize);
        }
        let is_next = start == next;
        next = start + (bytes.len() as u64).saturating_sub(4096);
        is_next.then_some((start, file, bytes))
    })
}

/// Returns the ends of the log's groups, from its low-water mark to its end.
#[allow(dead_code, reason = "only some tests need it")]
pub(crate) fn group_ends(disk: &SimulatedDisk) -> Vec<u64> {
    let Some(control) = control(disk) else { return Vec::new() };
    let (newest, begin, low_water_mark) = (u32_at(&control, 40), u64_at(&control, 48), u64_at(&control, 56));
    let mut stream = Vec::new();
    let mut first = low_water_mark;
    for (start, _, bytes) in segments(disk, &control) {
        first = first.min(start);
        stream.extend_from_slice(bytes.get(4096..).unwrap_or_default());
    }
    let (mut ends, mut at, mut before) = (Vec::new(), low_water_mark, 0);
    while let Some(frame) = stream.get((at - first) as usize..).filter(|rest| rest.len() >= 24) {
        let (length, incarnation) = (u32_at(frame, 0) as usize, u32_at(frame, 16));
        let fits = if at < begin { before..newest } else { newest..newest + 1 };
        if u64_at(frame, 8) != at || !fits.contains(&incarnation) || !(24..=frame.len()).contains(&length) {
            break;
        }
        let parts = [&control[16..32], &frame[..4], &frame[8..length]];
        if parts.iter().fold(0, |sum, part| crc32c::crc32c_append(sum, part)) != u32_at(frame, 4) {
            break;
        }
        at += length.next_multiple_of(8) as u64;
        before = incarnation;
        if length > 24 {
            ends.push(at);
        }
    }
    ends
}

/// Truncates the log at this position.
#[allow(dead_code, reason = "only some tests need it")]
pub(crate) fn end_log(disk: &SimulatedDisk, end: u64) {
    let Some(control) = control(disk) else { return };
    for (start, file, bytes) in segments(disk, &control) {
        let within = 4096 + end.saturating_sub(start) as usize;
        if within < bytes.len() {
            disk.write(file, within as u64, &vec![0; bytes.len() - within]).unwrap();
            disk.sync(file).unwrap();
        }
    }
}

/// A tree as it is in its file.
struct Tree {
    space: u64,
    bytes: Vec<u8>,
    reached: BTreeSet<u32>,
    entries: Rows,
    header: Header,
}

/// What the header of a tablespace says about the table.
#[derive(Clone, Copy, Debug, Default)]
struct Header {
    /// No auto-increment value at or above this was assigned to a row.
    ceiling: u64,
    /// No row id at or above this was requested for a row.
    row_ids: u64,
    /// The number of rows.
    rows: u64,
}

impl Tree {
    /// Returns the entries of a tree.
    fn read(disk: &SimulatedDisk, space: u64) -> Found<Rows> {
        Self::read_with_header(disk, space).map(|(entries, _)| entries)
    }

    /// Returns the entries of a tree, and the header of its tablespace. A tree that was never flushed has no file.
    fn read_with_header(disk: &SimulatedDisk, space: u64) -> Found<(Rows, Header)> {
        let Some(bytes) = bytes_of(disk, FileName::Data(SpaceId(space)))? else {
            return Ok((Rows::new(), Header::default()));
        };
        let (reached, entries, header) = (BTreeSet::from([0]), Rows::new(), Header::default());
        let mut tree = Self { space, bytes, reached, entries, header };
        let map = tree.page(0, 1)?.to_vec();
        if &map[32..40] != b"WFSPACE1" || u32_at(&map, 40) as usize != PAGE {
            return Err(format!("the first page of tablespace {space} is none"));
        }
        tree.header = Header { ceiling: u64_at(&map, 48), row_ids: u64_at(&map, 56), rows: u64_at(&map, 64) };
        if map[44..48].iter().chain(&map[72..128]).any(|byte| *byte != 0) {
            return Err(format!("there is something in the header of tablespace {space}"));
        }
        let bit = |n: u32| map[128 + n as usize / 8] & 1 << (n % 8) != 0;
        let used: BTreeSet<u32> = (0..(PAGE as u32 - 128) * 8).filter(|n| bit(*n)).collect();
        if used.contains(&1) {
            tree.node(1, None, &[], None)?;
        }
        if used != tree.reached {
            let (lost, extra) = (used.difference(&tree.reached), tree.reached.difference(&used));
            return Err(format!(
                "tablespace {space}: nothing leads to {lost:?}, not in the map is {extra:?}"
            ));
        }
        Ok((tree.entries, tree.header))
    }

    fn page(&self, number: u32, kind: u8) -> Found<&[u8]> {
        let at = number as usize * PAGE;
        let page =
            self.bytes.get(at..at + PAGE).ok_or_else(|| format!("{}: no page {number}", self.space))?;
        let wrong = |what: &str| Err(format!("page {number} of tablespace {}: {what}", self.space));
        if crc32c::crc32c(&page[4..]) != u32_at(page, 0) {
            return wrong("its checksum is wrong");
        }
        if (u64_at(page, 8), u32_at(page, 24)) != (self.space, number) {
            return wrong("it is another page");
        }
        if page[4] == kind { Ok(page) } else { wrong(&format!("its type is {}, not {kind}", page[4])) }
    }

    fn reach(&mut self, number: u32) -> Found<()> {
        if self.reached.insert(number) { Ok(()) } else { Err(format!("{}: page {number} twice", self.space)) }
    }

    /// Reads everything below a node, which holds the keys from `lower` on and below `upper`.
    fn node(&mut self, number: u32, level: Option<u8>, lower: &[u8], upper: Option<&[u8]>) -> Found<()> {
        self.reach(number)?;
        let is_leaf = self.page(number, 2).is_ok();
        let page = self.page(number, if is_leaf { 2 } else { 3 })?.to_vec();
        let wrong = |what: String| Err(format!("node {number} of tablespace {}: {what}", self.space));
        if level.is_some_and(|level| level != page[5]) || is_leaf != (page[5] == 0) {
            return wrong(format!("its level is {}", page[5]));
        }
        let (slots, prefix) = (u16_at(&page, 28), u16_at(&page, 34));
        let upper_at = 40 + u16_at(&page, 36);
        let upper_end = upper_at + u16_at(&page, 38);
        let first = upper_end.next_multiple_of(8);
        let common = upper.map_or(0, |upper| lower.iter().zip(upper).take_while(|(a, b)| a == b).count());
        if prefix != common {
            return wrong(format!("its prefix has {prefix} bytes, and its fences share {common}"));
        }
        let (below, above) = (stored_fence(lower, prefix), upper.map(|upper| stored_fence(upper, prefix)));
        let flags = u8::from(upper.is_some())
            | u8::from(below.1) << 1
            | u8::from(above.as_ref().is_some_and(|fence| fence.1)) << 2;
        let above = above.map_or(Vec::new(), |fence| fence.0[prefix..].to_vec());
        if page[6] != flags || page[40..upper_at] != below.0 || page[upper_at..upper_end] != above {
            return wrong("its fences are not those of its parent".into());
        }
        let shared = &lower[..prefix];
        let mut keys: Vec<(Vec<u8>, usize)> = Vec::new();
        for slot in 0..slots {
            let at = u16_at(&page, first + 4 * slot);
            let key = match RecordParts::of(&page[at..], is_leaf).suffix {
                suffix if is_leaf || slot > 0 => [shared, suffix].concat(),
                [] => lower.to_vec(),
                _ => return wrong("its first child has a key of its own".into()),
            };
            keys.push((key, at));
        }
        let is_below = |key: &[u8]| upper.is_none_or(|upper| key < upper);
        let inside = keys.iter().all(|(key, _)| key.as_slice() >= lower && is_below(key));
        if !inside || !keys.is_sorted_by(|a, b| a.0 < b.0) {
            return wrong("its keys are out of order or outside its fences".into());
        }
        if is_leaf {
            for (key, at) in keys {
                self.entry(&page, key, at)?;
            }
            return Ok(());
        }
        if keys.first().is_none_or(|(key, _)| key != lower) {
            return wrong("it does not begin with its lower fence".into());
        }
        for (n, (key, at)) in keys.iter().enumerate() {
            let next = keys.get(n + 1).map(|(key, _)| key.as_slice()).or(upper);
            self.node(RecordParts::of(&page[*at..], false).child, Some(page[5] - 1), key, next)?;
        }
        Ok(())
    }

    fn entry(&mut self, page: &[u8], key: Vec<u8>, at: usize) -> Found<()> {
        let RecordParts { info, value, .. } = RecordParts::of(&page[at..], true);
        if info & 4 != 0 {
            return Err(format!("tablespace {}: an entry of {key:?} is left, marked as deleted", self.space));
        }
        let value = match info & 0b10_1000 {
            0 => value.to_vec(),
            0b00_1000 => self.chain(value)?,
            0b10_0000 => self.fields(value)?,
            _ => return Err(format!("an entry of {key:?} has two kinds of value")),
        };
        self.entries.insert(key, value);
        Ok(())
    }

    /// Returns the row of a list of fields: their number, the end of each, and the fields.
    fn fields(&mut self, list: &[u8]) -> Found<Vec<u8>> {
        let (count, mut at) = (usize::from(list[0]), 1 + 2 * usize::from(list[0]));
        let (mut row, mut contents) = ((count as u16).to_le_bytes().to_vec(), Vec::new());
        for n in 0..count {
            let length = u16_at(list, 1 + 2 * n);
            let stored = &list[at..at + (length & 0x7fff)];
            at += stored.len();
            match length {
                0x8014 => contents.extend(self.chain(stored)?),
                0x8000.. => return Err(format!("a reference of {} bytes", stored.len())),
                _ => contents.extend_from_slice(stored),
            }
            row.extend((contents.len() as u32).to_le_bytes());
        }
        if (1..=64).contains(&count) && at == list.len() {
            Ok([row, contents].concat())
        } else {
            Err(format!("a list of {count} fields ends at {at} of {} bytes", list.len()))
        }
    }

    /// Returns a long value, from its chain of overflow pages.
    fn chain(&mut self, reference: &[u8]) -> Found<Vec<u8>> {
        let (length, stamp, mut next) = (u64_at(reference, 0), u64_at(reference, 8), u32_at(reference, 16));
        let mut value = Vec::new();
        for place in 0.. {
            if next == u32::MAX {
                break;
            }
            self.reach(next)?;
            let page = self.page(next, 4)?;
            if (u64_at(page, 32), u32_at(page, 40)) != (stamp, place) {
                return Err(format!("tablespace {}: page {next} belongs to another chain", self.space));
            }
            value.extend_from_slice(&page[48..48 + u32_at(page, 44) as usize]);
            next = u32_at(page, 28);
        }
        if value.len() as u64 == length {
            Ok(value)
        } else {
            Err(format!("a chain of {} bytes", value.len()))
        }
    }
}

/// A record of a node, without the header at its end.
struct RecordParts<'a> {
    info: u8,
    child: u32,
    suffix: &'a [u8],
    value: &'a [u8],
}

impl<'a> RecordParts<'a> {
    fn of(record: &'a [u8], is_leaf: bool) -> Self {
        let mut at = usize::from(is_leaf);
        let mut length = || {
            let [high, low] = [record[at], record[at + 1]].map(usize::from);
            at += 1 + usize::from(high >= 0x80);
            if high >= 0x80 { (high - 0x80) << 8 | low } else { high }
        };
        let suffix = length();
        let info = if is_leaf { record[0] } else { 0 };
        let value = if info & 16 == 0 { 0 } else { length() };
        let child = if is_leaf { 0 } else { u32_at(record, at) };
        let start = if is_leaf { at } else { at + 4 };
        let (suffix, rest) = record[start..].split_at(suffix);
        Self { info, child, suffix, value: &rest[..value] }
    }
}

/// Takes a string from the front. Its length is stored before it, in `size` bytes.
fn string<'a>(record: &mut &'a [u8], size: usize) -> Found<&'a [u8]> {
    let head = take(record, size)?;
    let length = if size == 2 { u16_at(head, 0) } else { u32_at(head, 0) as usize };
    take(record, length)
}

fn take<'a>(record: &mut &'a [u8], length: usize) -> Found<&'a [u8]> {
    record.split_off(..length).ok_or_else(|| "a record of a table is cut off".to_owned())
}

/// The record of a table.
struct TableRecord {
    /// The tablespace of the rows.
    rows: u64,
    /// The tablespace of the metadata, if they have a tree of their own.
    metadata: Option<u64>,
    indexes: Vec<IndexRecord>,
}

/// The record of an index.
struct IndexRecord {
    name: String,
    space: u64,
    is_unique: bool,
    entries: EntryForm,
}

#[derive(Debug, PartialEq, Eq)]
enum EntryForm {
    /// The parts of the key: kind, and two numbers.
    OfValue(Vec<(u8, u32, u32)>),
    /// The usual length of the index part.
    Supplied(usize),
    /// The usual length of the index part, of entries that have no payloads.
    SuppliedAlone(usize),
    /// The name of the extractor.
    Extracted(String),
}

impl TableRecord {
    /// Reads a record. The metadata, if they have a tree of their own, are read on the way.
    fn read(disk: &SimulatedDisk, mut record: &[u8]) -> Found<Self> {
        let record = &mut record;
        take(record, 17)?;
        let rows = u64_at(take(record, 8)?, 0);
        let metadata = match record.first_chunk() {
            Some([255, 255, 255, 255]) => {
                let space = u64_at(take(record, 12)?, 4);
                let entries = Tree::read(disk, space)?;
                if entries.keys().ne([b"m"]) {
                    return Err(format!(
                        "the metadata in tablespace {space} have the keys {:?}",
                        entries.keys()
                    ));
                }
                Some(space)
            }
            _ => string(record, 4).map(|_| None)?,
        };
        let count = u16_at(take(record, 2)?, 0);
        let indexes = (0..count).map(|_| IndexRecord::read(record)).collect::<Found<_>>()?;
        if record.is_empty() {
            Ok(Self { rows, metadata, indexes })
        } else {
            Err("a record of a table is too long".into())
        }
    }

    /// Returns all of its tablespaces.
    fn spaces(&self) -> impl Iterator<Item = u64> {
        let others = self.indexes.iter().map(|index| index.space).chain(self.metadata);
        core::iter::once(self.rows).chain(others)
    }
}

impl IndexRecord {
    fn read(record: &mut &[u8]) -> Found<Self> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string());
        let name = text(string(record, 4)?)?;
        let space = u64_at(take(record, 8)?, 0);
        let is_unique = match take(record, 1)?[0] {
            0 => false,
            1 => true,
            other => return Err(format!("an index is unique: {other}")),
        };
        let entries = match take(record, 1)?[0] {
            0 => {
                let parts = (0..u16_at(take(record, 2)?, 0)).map(|_| {
                    let part = take(record, 9)?;
                    Ok((part[0], u32_at(part, 1), u32_at(part, 5)))
                });
                EntryForm::OfValue(parts.collect::<Found<_>>()?)
            }
            1 => EntryForm::Supplied(u16_at(take(record, 2)?, 0)),
            3 => EntryForm::SuppliedAlone(u16_at(take(record, 2)?, 0)),
            2 => EntryForm::Extracted(text(string(record, 4)?)?),
            form => return Err(format!("an index has entries of form {form}")),
        };
        Ok(Self { name, space, is_unique, entries })
    }

    /// Returns the entries of these rows, with their values. The definition must be that of an index with this name.
    fn entries_of(&self, rows: &Rows) -> Found<Rows> {
        let form = Form::of(&self.name);
        let is_defined = match &self.entries {
            EntryForm::OfValue(parts) => form == Form::Value && parts[..] == [(0, 0, 8)],
            EntryForm::Supplied(usual) => form == Form::Supplied && *usual == usize::from(entries::USUAL),
            EntryForm::SuppliedAlone(_) => false,
            EntryForm::Extracted(extractor) => form == Form::Extracted && extractor == entries::EXTRACTOR,
        };
        if !is_defined || self.is_unique != (form == Form::Supplied) {
            return Err(format!("the index {} is defined by {:?}", self.name, self.entries));
        }
        let of_row = |(key, value): (&Vec<u8>, &Vec<u8>)| -> Vec<(Vec<u8>, Vec<u8>)> {
            match form {
                Form::Value => vec![(index_entry(key, value), Vec::new())],
                Form::Supplied => {
                    let made = entries::supplied_of(key, value);
                    made.map(|made| supplied_entry(&made.key, &made.payload, key)).into_iter().collect()
                }
                Form::Extracted => {
                    let tags = entries::tags(key, value).into_iter();
                    tags.map(|(byte, number, payload)| (extracted_entry(byte, number, key), payload))
                        .collect()
                }
            }
        };
        Ok(rows.iter().flat_map(of_row).collect())
    }
}

/// Returns bytes as they are in a key that something follows.
fn terminated(bytes: &[u8]) -> Vec<u8> {
    let escaped = bytes.iter().flat_map(|byte| match byte {
        0 => vec![0, 255],
        byte => vec![*byte],
    });
    escaped.chain([0, 0]).collect()
}

/// Returns the key of a row's entry in an index on the first eight bytes of the value.
fn index_entry(key: &[u8], value: &[u8]) -> Vec<u8> {
    [&terminated(&value[..value.len().min(8)])[..], key].concat()
}

/// Returns the key and the value of a supplied entry.
fn supplied_entry(part: &[u8], payload: &[u8], key: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let value = if part.len() == usize::from(entries::USUAL) && payload.is_empty() {
        Vec::new()
    } else {
        [&(part.len() as u16).to_le_bytes(), payload].concat()
    };
    ([part, key].concat(), value)
}

/// Returns the key of an extracted entry with a text of one byte and a number in descending order.
fn extracted_entry(byte: u8, number: i64, key: &[u8]) -> Vec<u8> {
    let bytes = number.unsigned_abs().to_be_bytes();
    let digits = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
    let head = if number < 0 { 0x30 - digits.len() as u8 } else { 0x30 + digits.len() as u8 };
    let ascending =
        core::iter::once(head).chain(digits.iter().map(|byte| if number < 0 { !byte } else { *byte }));
    let part: Vec<u8> = ascending.map(|byte| !byte).collect();
    [&[0x58][..], &terminated(&[byte]), &part, &[0], key].concat()
}

/// Returns the table of each tablespace that belongs to one.
#[allow(dead_code, reason = "only some tests need it")]
pub(crate) fn owners(disk: &SimulatedDisk) -> Found<BTreeMap<u64, String>> {
    let mut owners = BTreeMap::new();
    for (key, value) in Tree::read(disk, SYSTEM)? {
        if let Some((b't', name)) = key.split_first() {
            let name = String::from_utf8_lossy(name);
            owners.extend(TableRecord::read(disk, &value)?.spaces().map(|space| (space, name.to_string())));
        }
    }
    Ok(owners)
}

/// Checks the log of a cleanly closed database. Its segments are one run without gaps from the segment with the
/// low-water mark on, except a few below it that are kept for recycling. Each begins where the one before ends, and has
/// the size that its header records. No file that was being created is left.
fn check_log(disk: &SimulatedDisk) -> Found<()> {
    /// The most segments that may be kept below the low-water mark.
    const KEPT: usize = 2;
    for file in [FileName::NewControl, FileName::NewDoublewrite] {
        if disk.len(file).unwrap().is_some() {
            return Err(format!("{file} is left"));
        }
    }
    let control = control(disk).ok_or("there is no control file")?;
    let starts = starts(disk);
    let first = start_of(&starts, u64_at(&control, 56));
    let (kept, chain): (Vec<u64>, Vec<u64>) = starts.into_iter().partition(|start| *start < first);
    if kept.len() > KEPT {
        return Err(format!("segments {kept:?} are left below the low-water mark, in segment {first}"));
    }
    for (n, start) in chain.iter().enumerate() {
        let bytes = bytes_of(disk, FileName::Log(*start))?.unwrap_or_default();
        let header = bytes.get(..4096).ok_or_else(|| format!("segment {start} has no header"))?;
        let is_whole = crc32c::crc32c(&header[..4092]) == u32_at(header, 4092);
        if !is_whole || u64_at(header, 32) != *start || u64_at(header, 40) != bytes.len() as u64 {
            return Err(format!("segment {start} of {} bytes has the header of another one", bytes.len()));
        }
        let end = start + bytes.len() as u64 - 4096;
        if chain.get(n + 1).is_some_and(|next| *next > end) {
            return Err(format!("segment {start} ends at {end}, in {chain:?}"));
        }
    }
    Ok(())
}

/// Returns how many pages of a data file are leaves.
#[allow(dead_code, reason = "only some tests need it")]
pub(crate) fn leaves(disk: &SimulatedDisk, file: FileName) -> usize {
    let bytes = bytes_of(disk, file).ok().flatten().unwrap_or_default();
    bytes.chunks_exact(PAGE).filter(|page| page[4] == 2).count()
}

/// Returns whether a data file is a tree, judged by its valid pages: an undo slice has only pages of its own type.
#[allow(dead_code, reason = "only some tests need it")]
pub(crate) fn is_tree(disk: &SimulatedDisk, space: u64) -> bool {
    let bytes = bytes_of(disk, FileName::Data(SpaceId(space))).ok().flatten().unwrap_or_default();
    let is_whole = |page: &&[u8]| crc32c::crc32c(&page[4..]) == u32_at(page, 0) && u64_at(page, 8) == space;
    bytes.chunks_exact(PAGE).filter(is_whole).any(|page| (1..=4).contains(&page[4]))
}

/// Returns the content of the files. Every tree must be valid, every allocation map exact, every index that of its
/// rows, and every file must have an owner.
pub(crate) fn read(disk: &SimulatedDisk) -> Found<Model> {
    let mut model = Model::default();
    let mut named = BTreeSet::from([SYSTEM]);
    let mut made = BTreeSet::from([SYSTEM]);
    for (key, value) in Tree::read(disk, SYSTEM)? {
        match key.split_first() {
            Some((b't', name)) => {
                let record = TableRecord::read(disk, &value)?;
                if let Some(space) = record.spaces().find(|space| !named.insert(*space)) {
                    return Err(format!("tablespace {space} has two owners"));
                }
                let (rows, Header { ceiling, row_ids, rows: counted }) =
                    Tree::read_with_header(disk, record.rows)?;
                if counted != rows.len() as u64 {
                    return Err(format!(
                        "{} has {} rows, and {counted} in its header",
                        record.rows,
                        rows.len()
                    ));
                }
                for index in &record.indexes {
                    if Tree::read(disk, index.space)? != index.entries_of(&rows)? {
                        return Err(format!(
                            "the index in tablespace {} is not that of its rows",
                            index.space
                        ));
                    }
                }
                let count = numbered_rows(&rows);
                if count > 0 && row_ids <= count {
                    return Err(format!(
                        "{}: {count} rows with an id, and a ceiling of {row_ids}",
                        record.rows
                    ));
                }
                let (rows, last) = without_gaps(rows);
                if last > 0 && ceiling <= last {
                    return Err(format!("{}: a row {last}, and a ceiling of {ceiling}", record.rows));
                }
                let indexes = record.indexes.into_iter().map(|index| index.name).collect();
                model.0.insert(String::from_utf8_lossy(name).into_owned(), (indexes, rows));
            }
            Some((b'u', _)) => drop(named.insert(u64_at(&value, 0))),
            Some((b'f', space)) => {
                let space = space.try_into().map_err(|_| "a record of a file is no number".to_owned())?;
                made.insert(u64::from_be_bytes(space));
            }
            _ => return Err(format!("a record of nothing: {key:?}")),
        }
    }
    let there: BTreeSet<u64> = disk
        .list(Folder::Data)
        .unwrap()
        .iter()
        .filter_map(|file| if let FileName::Data(space) = file { Some(space.0) } else { None })
        .collect();
    if let Some(leak) = there.difference(&named).next() {
        return Err(format!("the file of tablespace {leak} has no owner"));
    }
    check_log(disk)?;
    match named.intersection(&made).find(|space| !there.contains(space)) {
        Some(space) if *space != SYSTEM => Err(format!("the file of tablespace {space} is missing")),
        _ => Ok(model),
    }
}
