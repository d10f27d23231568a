//! Fuzz targets of the log and the control file.
//!
//! **Purpose.** [`records`] decodes any bytes as a group, [`stream`] reads segments of frames and of arbitrary bytes,
//! and [`control`] opens a control file with any bytes in both slots.
//!
//! **Invariants.** Every group that the reader returns is in the segments as a complete frame of the right incarnation,
//! one after the other; an end is returned only at or above the durable position (checked by `log/fuzz.rs::stream`).
//! Re-encoding what was read yields the same bytes (checked by `log/fuzz.rs::records`).

use windfall_sim::SimulatedDisk;

use super::{
    Control, ControlFile, FORMAT_VERSION, GroupReader, GroupWriter, LogReader, Record,
    frame::{self, HEADER, Header, LOG_BLOCK_BYTES, Seed},
    segments::{self, Segment},
};
use crate::{
    disk::{Disk, FileName},
    fuzz_input::Input,
    health::Health,
    ids::{Lsn, PageId, PageNo, SpaceId, TrxId, UndoPos},
    page::{PageOp, PageType},
    sync::Arc,
};

const SEGMENT: u64 = 64 << 10;
const UUID: [u8; 16] = [9; 16];
/// The maximum length of the stream in bytes: some segments.
const LONGEST: usize = 5 * SEGMENT as usize;

/// Decodes any bytes as a group's records.
pub fn records(data: &[u8]) {
    let records: Vec<_> = GroupReader::new(data).map_while(Result::ok).collect();
    let mut writer = GroupWriter::default();
    for record in &records {
        writer.push(record);
    }
    assert!(writer.bytes().len() <= data.len(), "records grow");
    let again: Vec<_> = GroupReader::new(writer.bytes()).map_while(Result::ok).collect();
    assert_eq!(again, records);
    // A group is read whole or not at all, and a group that was read whole has only one encoding if consecutive
    // changes of one page share its id.
    if GroupReader::new(data).all(|record| record.is_ok()) && writer.bytes().len() == data.len() {
        assert_eq!(writer.bytes(), data);
    }
}

/// Returns groups that contain every kind of record.
pub fn records_seeds() -> Vec<Vec<u8>> {
    let id = |n| PageId { space: SpaceId(n), page: PageNo(3) };
    let op = PageOp::Format { kind: PageType::Leaf, level: 0 };
    let groups = [
        vec![Record::Page { id: id(7), op }, Record::Page { id: id(8), op }, Record::Page { id: id(8), op }],
        vec![
            Record::TrxBegin { trx: TrxId(5), first: UndoPos(99) },
            Record::Page { id: id(7), op: PageOp::Write { at: 40, bytes: b"abc" } },
            Record::TrxEnd { trx: TrxId(5), stream: 3 },
        ],
        vec![Record::Drop { spaces: vec![SpaceId(7), SpaceId(9)].into() }],
        vec![Record::FileMade { space: SpaceId(8) }],
        vec![Record::Ceilings { space: SpaceId(100), trx: TrxId(200) }],
        vec![Record::TrxTable { active: vec![(TrxId(5), UndoPos(99)), (TrxId(7), UndoPos(120))] }],
        vec![
            Record::TrxPrepare { trx: TrxId(5), xid: b"name"[..].into() },
            Record::TrxPrepare { trx: TrxId(5), xid: b""[..].into() },
        ],
    ];
    let encode = |group: &Vec<Record<'_>>| {
        let mut writer = GroupWriter::default();
        for record in group {
            writer.push(record);
        }
        writer.bytes().to_vec()
    };
    groups.iter().map(encode).collect()
}

/// Appends a frame to the stream.
fn put_frame(stream: &mut Vec<u8>, incarnation: u32, lag: u64, payload: &[u8]) {
    let lsn = Lsn(stream.len() as u64);
    let header = Header::new(Seed::new(&UUID), lsn, incarnation, Lsn(lsn.0.saturating_sub(lag * 8)), payload);
    stream.extend(frame_of(&header, payload));
}

/// Returns a frame as it is stored in the stream.
fn frame_of(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut frame: Vec<u8> = header.words().iter().flat_map(|word| word.to_le_bytes()).collect();
    frame.extend_from_slice(payload);
    frame.resize(header.span(), 0);
    frame
}

/// Builds the stream that the input describes: frames, zeros, and raw bytes.
fn stream_of(mut input: Input<'_>) -> Vec<u8> {
    let mut stream = Vec::new();
    while !input.is_empty() && stream.len() < LONGEST {
        match input.u8() % 5 {
            0 => {
                let len = input.u8();
                stream.extend_from_slice(input.take(len.into()));
                stream.resize(stream.len().next_multiple_of(8), 0);
            }
            1 | 2 => {
                let (incarnation, lag, len) = (input.u8(), input.u8(), input.u8());
                put_frame(&mut stream, incarnation.into(), lag.into(), input.take(len.into()));
            }
            3 => {
                let (incarnation, lag, len, fill) = (input.u8(), input.u8(), input.u16(), input.u8());
                put_frame(&mut stream, incarnation.into(), lag.into(), &vec![fill; len.into()]);
            }
            _ => stream.resize(stream.len() + usize::from(input.u8()) * 8, 0),
        }
    }
    stream
}

/// Returns a disk with this stream in segments; those that `damage` selects have a bad header or no file. The upper
/// bits of `flags` select which segments are larger, and which end before they are full, where the next one begins:
/// behind that end they have a good frame that is no part of the stream.
fn disk_with(stream: &[u8], flags: u8, damage: u8, incarnation: u32) -> Arc<dyn Disk> {
    let disk = SimulatedDisk::new(1);
    let is_set = |bit: u64| flags >> bit & 1 == 1;
    let is_damaged = |bit: u64| damage >> (bit % 8) & 1 == 1;
    let mut start = 0;
    for number in 0u64.. {
        if start >= stream.len() {
            break;
        }
        let segment = Segment { start: Lsn(start as u64), size: SEGMENT << u8::from(is_set(2 + number % 3)) };
        let (file, room) = (segment.file(), segment.left(segment.start) as usize);
        let used = if is_set(5 + number % 3) { room / 16 * 8 } else { room };
        let mut piece = stream[start..].iter().copied().take(used).collect::<Vec<_>>();
        start += used;
        if is_damaged(number + 4) {
            continue;
        }
        // Without the next segment this one would go on.
        if used < room && start < stream.len() && !is_damaged(number + 5) {
            let payload = b"stale";
            let (seed, lsn) = (Seed::new(&UUID), Lsn(start as u64));
            piece.extend(frame_of(&Header::new(seed, lsn, incarnation, Lsn::ZERO, payload), payload));
        }
        let mut header = segment.header(&UUID);
        header[60] ^= u8::from(is_damaged(number));
        let written = disk
            .create(file)
            .and_then(|()| disk.write(file, 0, &header))
            .and_then(|()| disk.write(file, LOG_BLOCK_BYTES as u64, &piece));
        assert!(written.is_ok(), "the disk takes everything");
    }
    Arc::new(disk)
}

/// A group as it was read: its start, its end, and its payload.
type Group = (Lsn, Lsn, Vec<u8>);

/// Returns the groups that a reader returns, and the end that it found; `None` when it found damage.
fn read(mut reader: LogReader) -> (Vec<Group>, Option<Lsn>) {
    let mut groups = Vec::new();
    loop {
        match reader.next_group() {
            Ok(Some((start, end, payload))) => groups.push((start, end, payload.to_vec())),
            Ok(None) => return (groups, Some(reader.end())),
            Err(_) => return (groups, None),
        }
    }
}

/// Reads segments with frames, some of them damaged, under any control record.
pub fn stream(data: &[u8]) {
    if let Some(header) = Header::decode(data) {
        assert!(header.span() <= frame::MAX_FRAME_BYTES + 8);
        let _ = (header.holds(Seed::new(&UUID), data), header.durable());
    }
    let mut input = Input(data);
    let (flags, damage, incarnation) = (input.u8(), input.u8(), u32::from(input.u8()));
    let mut place = || Lsn(u64::from(input.u16()) * 8);
    let (start, durable, low_water_mark) = (place(), place(), place());
    let control = Control {
        uuid: UUID,
        page_size: 4096,
        incarnation,
        incarnation_start: start,
        durable,
        low_water_mark,
        clean: flags & 1 == 1,
        alone: flags & 2 == 2,
        ..Control::default()
    };
    let stream = stream_of(input);
    let disk = disk_with(&stream, flags, damage, incarnation);
    let Ok(reader) = LogReader::new(disk.clone(), &control, low_water_mark) else { return };
    let (groups, end) = read(reader);
    let (mut at, mut newest) = (low_water_mark, 0);
    for (from, to, payload) in &groups {
        assert!(
            *from >= at && to.0 <= stream.len() as u64,
            "groups do not follow one another in the segments"
        );
        let bytes = &stream[from.0 as usize..to.0 as usize];
        let field = |at: usize| u32::from_le_bytes(core::array::from_fn(|n| bytes[at + n]));
        // Checked against the description of a frame, not its decoder.
        let summed = [&UUID[..], &bytes[..4], &bytes[8..HEADER], payload].concat();
        assert_eq!(field(4), crc32c::crc32c(&summed), "the frame at {from}");
        assert!(field(0) as usize == HEADER + payload.len() && bytes[HEADER..].starts_with(payload));
        assert_eq!(bytes[8..16], from.0.to_le_bytes());
        let by = field(16);
        assert!(if *from < start { by >= newest && by < incarnation } else { by == incarnation });
        (at, newest) = (*to, by);
    }
    let Some(end) = end else { return };
    assert!(end >= durable.max(start).max(low_water_mark), "the log ends at {end}, before what was durable");
    if let Ok(again) = LogReader::new(disk, &control, low_water_mark) {
        assert_eq!(read(again.up_to(end)), (groups, Some(end)), "read again up to its end");
    }
}

/// Returns logs of one incarnation and of two, truncated, with a damaged frame, and over several segments of one size
/// and of two.
pub fn stream_seeds() -> Vec<Vec<u8>> {
    // Flags, damage, incarnation; its start, the durable end and the low-water mark in units of 8 bytes.
    let log = |flags: u8, damage: u8, places: [u16; 3], items: &[&[u8]]| {
        let places = places.iter().flat_map(|place| place.to_le_bytes());
        [flags, damage, 2].into_iter().chain(places).chain(items.concat()).collect::<Vec<u8>>()
    };
    let (old, new): (&[u8], &[u8]) = (b"\x01\x01\x00\x05hello", b"\x01\x02\x01\x03abc");
    let (long, marker): (&[u8], &[u8]) = (b"\x03\x02\x02\xf0\xf0\x11", b"\x01\x02\x00\x00");
    let (torn, gap): (&[u8], &[u8]) = (b"\x00\x0ctorn garbage", b"\x04\x08");
    // A frame of a quarter of the room in a segment.
    let length = (SEGMENT as usize - LOG_BLOCK_BYTES) / 4 - HEADER;
    let quarter = [&[3, 2, 0][..], &(length as u16).to_le_bytes(), &[0x22]].concat();
    vec![
        log(0, 0, [0, 0, 0], &[new, new, marker]),
        log(0, 0, [4, 4, 0], &[old, new, torn]),
        log(1, 0, [8, 8, 4], &[old, old, gap, old]),
        log(2, 0, [0, 0, 0], &[new, torn, new, marker]),
        log(0, 0, [0, 4, 0], &[new, long, long, long, marker]),
        log(0, 2, [0, 4, 0], &[new, long, long, new]),
        log(2, 32, [0, 4, 0], &[new, long, long, new]),
        // Segments of two sizes; and some that end before they are full, at a frame or within one.
        log(4, 0, [0, 4, 0], &[new, long, long, long, marker]),
        log(0x20, 0, [0, 4, 0], &[&quarter, &quarter, new, long, long, marker]),
        log(0xa8, 2, [0, 4, 0], &[new, long, long, long, marker]),
    ]
}

/// The bytes of a slot that have a meaning.
const SLOT: usize = 96;

/// Opens the control file, each slot sealed or not, and the log that it describes.
pub fn control(data: &[u8]) {
    let mut input = Input(data);
    let flags = input.u8();
    let disk = SimulatedDisk::new(1);
    let file = FileName::Control;
    let mut written = disk.create(file);
    for (n, place) in [(0, 0), (1, LOG_BLOCK_BYTES as u64)] {
        let mut slot = [0; LOG_BLOCK_BYTES];
        let taken = input.take(SLOT);
        slot[..taken.len()].copy_from_slice(taken);
        if flags >> n & 1 == 0 {
            frame::seal(&mut slot);
        }
        written = written.and_then(|()| disk.write(file, place, &slot));
    }
    assert!(written.is_ok(), "the disk takes everything");
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let Ok(mut opened) = ControlFile::open(disk.clone(), Health::new()) else { return };
    let control = opened.control().clone();
    let again = ControlFile::open(disk.clone(), Health::new()).map(|file| file.control().clone());
    assert!(again.is_ok_and(|again| again == control), "opening changes nothing");
    if let Ok(mut reader) = LogReader::new(disk.clone(), &control, control.low_water_mark) {
        // There is no segment: the end of a log that was never written, or damage.
        assert!(!matches!(reader.next_group(), Ok(Some(_))));
    }
    if opened.update(|control| control.checkpoint.0 ^= 1).is_err() {
        assert!(
            data.windows(8).any(|bytes| bytes == [0xff; 8]),
            "only the last sequence number has no next one"
        );
        return;
    }
    let changed = Control { checkpoint: Lsn(control.checkpoint.0 ^ 1), alone: false, ..control };
    let again = ControlFile::open(disk, Health::new()).map(|file| file.control().clone());
    assert!(again.is_ok_and(|again| again == changed), "the newest record is read");
}

/// Returns control files: new, after some use, with one damaged slot, of another version.
pub fn control_seeds() -> Vec<Vec<u8>> {
    let young = Control { uuid: UUID, page_size: 4096, ..Control::default() };
    let grown = Control {
        incarnation: 4,
        incarnation_start: Lsn(4096),
        low_water_mark: Lsn(800),
        checkpoint: Lsn(800),
        durable: Lsn(8192),
        space_ceiling: 1016,
        trx_ceiling: 5000,
        system_made: true,
        ..young.clone()
    };
    let slot = |control: &Control, sequence| control.encode(sequence)[..SLOT].to_vec();
    let pair = |flags: u8, a: Vec<u8>, b: Vec<u8>| [vec![flags], a, b].concat();
    let mut other = slot(&young, 7);
    other[8] = FORMAT_VERSION as u8 + 1;
    vec![
        pair(0, slot(&young, 0), slot(&young, 1)),
        pair(0, slot(&grown, 8), slot(&young, 7)),
        pair(1, slot(&grown, 8), slot(&grown, 7)),
        pair(0, slot(&grown, 8), other),
        pair(0, slot(&Control { clean: true, ..grown.clone() }, u64::MAX), slot(&grown, 7)),
    ]
}

/// Appends a group to the log of a disk, as its last writer would have; `None` when that is impossible.
pub fn append(disk: &SimulatedDisk, group: &[u8]) -> Option<()> {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let control = ControlFile::open(shared.clone(), Health::new()).ok()?.control().clone();
    let mut reader = LogReader::new(shared, &control, control.low_water_mark).ok()?;
    while reader.next_group().ok()?.is_some() {}
    let end = reader.end();
    let all = segments::list(disk).ok()?;
    let segment = all[segments::find(&all, end)?];
    let header = Header::new(Seed::new(&control.uuid), end, control.incarnation, control.durable, group);
    if group.is_empty() || header.span() as u64 > segment.left(end) {
        return None;
    }
    let frame = frame_of(&header, group);
    disk.write(segment.file(), segment.offset(end), &frame).ok()
}
