//! Reading the log back.
//!
//! **Purpose.** Recovery reads group after group from the low-water mark to the end, and determines where the end is.
//!
//! **Invariants.** The end is reported only if no evidence contradicts it: a bad frame below a position known to have
//! been durable is damage (the module documentation of `log` gives the reasoning) (test:
//! `damage_below_the_durable_end_is_reported`). A complete frame of a newer incarnation than that in the control file
//! proves that the control file has lost its newest record (test:
//! `an_older_control_record_never_hides_the_log_of_a_later_incarnation`). Bytes from disk are never trusted: no input
//! makes the reader panic, and memory grows with what the files hold, up to the largest frame (test:
//! `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`). The segment of a position is found by the names of
//! the files, and a segment counts only with a good header (test: `a_damaged_header_before_frames_is_an_error`); the
//! lengths of the files bound what is read.

use super::{
    control::Control,
    frame::{HEADER, Header, LOG_BLOCK_BYTES, Seed},
    segments::{self, Segment},
};
use crate::{
    disk::{Disk, FileName},
    error::{CorruptError, DiskError, Result},
    ids::Lsn,
    sync::Arc,
};

/// The maximum length of one read, in bytes.
const WINDOW_BYTES: usize = 1 << 20;

/// A reader of the log.
#[derive(Debug)]
pub struct LogReader {
    files: LogFiles,
    uuid: [u8; 16],
    seed: Seed,
    /// The newest incarnation, and where it begins.
    incarnation: u32,
    incarnation_start: Lsn,
    /// The position up to which the log is known to have been durable.
    known: Lsn,
    /// The end of a log that was shut down cleanly: nothing above it needs to be examined.
    clean_end: Option<Lsn>,
    /// The known end of the log.
    stop: Option<Lsn>,
    /// Whether the control file has lost one of its records.
    alone: bool,
    /// The stream from `base` on.
    buffer: Vec<u8>,
    base: Lsn,
    /// The start of the next frame.
    at: Lsn,
    /// The incarnation of the previous frame.
    newest: u32,
    /// The segment last found to have a good header.
    entered: Option<Segment>,
    /// The start of the segment with a bad header, or where one is missing, and what is wrong with it.
    blocked: Option<(Lsn, &'static str)>,
    ended: bool,
}

/// The segment files as they were when the reader was made.
#[derive(Debug)]
struct LogFiles {
    disk: Arc<dyn Disk>,
    /// In the order of their starts.
    segments: Vec<Segment>,
}

/// The content of the log at a position.
enum NextFrame {
    /// A frame with a right checksum.
    Whole(Header),
    /// No frame of this log, for this reason: the end of the log, or damage.
    None(&'static str),
}

impl LogReader {
    /// Returns a reader of the log that `control` describes. Reading starts at `from`, the beginning of a frame: the
    /// low-water mark, or any start or end of a group above it.
    ///
    /// # Errors
    /// [`CorruptError::File`] when the control file contradicts itself.
    pub fn new(disk: Arc<dyn Disk>, control: &Control, from: Lsn) -> Result<Self> {
        super::check_control(disk.as_ref(), control)?;
        let segments = segments::list(disk.as_ref())?;
        Ok(Self {
            files: LogFiles { disk, segments },
            uuid: control.uuid,
            seed: Seed::new(&control.uuid),
            incarnation: control.incarnation,
            incarnation_start: control.incarnation_start,
            known: control.durable.max(control.incarnation_start).max(from),
            clean_end: control.clean.then_some(control.durable),
            stop: None,
            alone: control.alone,
            buffer: Vec::new(),
            base: from,
            at: from,
            newest: 0,
            entered: None,
            blocked: None,
            ended: false,
        })
    }

    /// Ends at the end that another reader has found: nothing above it is examined.
    #[must_use]
    pub fn up_to(mut self, end: Lsn) -> Self {
        debug_assert!(self.at <= end, "the log is read up to a position before its beginning");
        self.stop = Some(end);
        self
    }

    /// Returns the next group: its start, its end, and its payload. `None` at the end of the log.
    ///
    /// # Errors
    /// [`CorruptError::Log`] where the log is damaged before its end, and errors of the disk.
    pub(crate) fn next_group(&mut self) -> Result<Option<(Lsn, Lsn, &[u8])>> {
        while !self.ended && self.stop.is_none_or(|stop| self.at < stop) {
            let header = match self.frame()? {
                NextFrame::Whole(header) => header,
                NextFrame::None(what) => {
                    self.bad(what)?;
                    break;
                }
            };
            let start = self.at;
            self.at.0 += header.span() as u64;
            debug_assert!(
                self.at.0 <= self.base.0 + self.buffer.len() as u64,
                "a frame is returned that was not read whole"
            );
            debug_assert!(header.incarnation >= self.newest, "the numbers of incarnations fall");
            self.newest = header.incarnation;
            if header.payload() > 0 {
                let from = (start.0 - self.base.0) as usize + HEADER;
                return Ok(Some((start, self.at, &self.buffer[from..from + header.payload()])));
            }
        }
        Ok(None)
    }

    /// Returns the position up to which it has read: once there is no further group, the end of the log.
    pub fn end(&self) -> Lsn {
        self.at
    }

    /// Returns the frame that begins here.
    fn frame(&mut self) -> Result<NextFrame> {
        if !self.fill(HEADER)? {
            return Ok(NextFrame::None("the log stops"));
        }
        let from = (self.at.0 - self.base.0) as usize;
        let Some(header) = Header::decode(&self.buffer[from..]) else {
            return Ok(NextFrame::None("the frame has an impossible header"));
        };
        if header.lsn != self.at {
            return Ok(NextFrame::None("the frame carries another LSN"));
        }
        let fits = if self.at < self.incarnation_start {
            header.incarnation >= self.newest && header.incarnation < self.incarnation
        } else {
            header.incarnation == self.incarnation
        };
        if !fits {
            if header.incarnation > self.incarnation && self.fill(header.span())? {
                let from = (self.at.0 - self.base.0) as usize;
                if header.holds(self.seed, &self.buffer[from..from + header.span()]) {
                    return Err(self.outdated(self.at).into());
                }
            }
            return Ok(NextFrame::None("the frame was written by another incarnation of the log"));
        }
        if !self.fill(header.span())? {
            return Ok(NextFrame::None("the log stops within a frame"));
        }
        // Filling may have moved the buffer.
        let from = (self.at.0 - self.base.0) as usize;
        let whole = header.holds(self.seed, &self.buffer[from..from + header.span()]);
        Ok(if whole { NextFrame::Whole(header) } else { NextFrame::None("the frame's checksum is wrong") })
    }

    /// Makes sure that this many bytes from here on are in the buffer. Returns whether the log has them.
    fn fill(&mut self, bytes: usize) -> Result<bool> {
        loop {
            debug_assert!(self.base <= self.at, "the next frame lies before the buffer");
            let consumed = (self.at.0 - self.base.0) as usize;
            debug_assert!(consumed <= self.buffer.len(), "the next frame lies after the buffer");
            if self.buffer.len() - consumed >= bytes {
                return Ok(true);
            }
            self.buffer.drain(..consumed);
            self.base = self.at;
            let next = Lsn(self.base.0 + self.buffer.len() as u64);
            let Some((segment, _)) = self.files.segment(next) else {
                self.blocked = Some((next, "the segment is missing"));
                return Ok(false);
            };
            if self.entered != Some(segment) {
                if let Err(what) = Segment::read(self.files.disk.as_ref(), &self.uuid, segment.start)? {
                    self.blocked = Some((segment.start, what));
                    return Ok(false);
                }
                self.entered = Some(segment);
            }
            self.files.read_on(next, WINDOW_BYTES, &mut self.buffer)?;
            if next.0 == self.base.0 + self.buffer.len() as u64 {
                return Ok(false);
            }
        }
    }

    /// Decides what a bad frame here means: either the log ends here, or it is damaged.
    fn bad(&mut self, what: &'static str) -> Result<()> {
        let lost = self.blocked.is_some_and(|(start, _)| start < self.known);
        let proof = if self.at < self.known || lost {
            Some(self.known)
        } else if self.clean_end == Some(self.at) {
            None
        } else {
            self.proof()?
        };
        let Some(durable) = proof else {
            assert!(self.at >= self.known, "the log ends below a position that was durable");
            self.ended = true;
            return Ok(());
        };
        let path = |file| self.files.disk.path(file);
        let why = self.blocked.map_or_else(String::new, |(start, why)| {
            format!(" ({}: {why})", path(FileName::Log(start.0)).display())
        });
        let what = format!("{what}{why}, although the log was durable up to LSN {durable}");
        let file = path(self.files.name(self.at));
        if self.alone {
            let what = format!(
                "one of its two records is damaged, and the log is not whole from where the other one begins ({}: LSN \
                 {}: {what}); so the damaged one was the newer: restore the database from a backup",
                file.display(),
                self.at
            );
            return Err(CorruptError::File { file: path(FileName::Control), what: what.into() }.into());
        }
        Err(CorruptError::Log { file, lsn: self.at, what: what.into() }.into())
    }

    /// Returns the error for a frame that was written after the control file's newest record was lost.
    fn outdated(&self, lsn: Lsn) -> CorruptError {
        let what = format!(
            "its newest record is damaged or lost: the log continues at LSN {lsn} beyond what the older one records, \
             and commits there would be lost: restore the database from a backup"
        );
        CorruptError::File { file: self.files.disk.path(FileName::Control), what: what.into() }
    }

    /// Searches above this position for a frame that proves that the log was durable beyond it. A frame in a segment
    /// with a bad header is proof as well: the header was durable before any frame of the segment was written.
    fn proof(&self) -> Result<Option<Lsn>> {
        let mut window = vec![0; WINDOW_BYTES + HEADER];
        let mut frame = Vec::new();
        for (n, segment) in self.files.segments.iter().enumerate() {
            let (start, end) = (segment.start, self.files.limit(n));
            if end <= self.at {
                continue;
            }
            // Segments are written in order, so one that is missing before a written one was retired, below a low-water
            // mark that the control file recorded once.
            let behind = |bad| bad == start || self.alone && bad < start;
            let blocked = self.blocked.is_some_and(|(bad, _)| behind(bad));
            let mut at = start.max(Lsn(self.at.0 + 8));
            while at < end {
                let window = self.files.window(at, &mut window)?;
                for from in candidates(window, at) {
                    let lsn = Lsn(at.0 + from as u64);
                    let Some(header) = Header::decode(&window[from..]) else { continue };
                    let proves = header.durable() > Some(self.at) || blocked && lsn < end;
                    let later = header.incarnation > self.incarnation;
                    if !later && (header.incarnation < self.incarnation || !proves) {
                        continue;
                    }
                    frame.clear();
                    self.files.read_through(lsn, header.span(), &mut frame)?;
                    if header.holds(self.seed, &frame) {
                        if later {
                            return Err(self.outdated(lsn).into());
                        }
                        return Ok(header.durable().max(Some(lsn)));
                    }
                }
                at.0 += WINDOW_BYTES as u64;
            }
        }
        Ok(None)
    }
}

impl LogFiles {
    /// Returns where the part of the stream in a segment ends.
    fn limit(&self, n: usize) -> Lsn {
        let end = self.segments[n].end();
        self.segments.get(n + 1).map_or(end, |next| end.min(next.start))
    }

    /// Returns the segment that contains a position, and where its part of the stream ends.
    fn segment(&self, at: Lsn) -> Option<(Segment, Lsn)> {
        let n = segments::find(&self.segments, at)?;
        let limit = self.limit(n);
        (at < limit).then_some((self.segments[n], limit))
    }

    /// Returns the name of the segment that contains a position, or should.
    fn name(&self, at: Lsn) -> FileName {
        segments::find(&self.segments, at).map_or(FileName::Log(at.0), |n| self.segments[n].file())
    }

    /// Reads the stream from a position on, as much as is contiguous and fits, without checking the segment headers.
    fn window<'w>(&self, at: Lsn, window: &'w mut [u8]) -> Result<&'w [u8]> {
        let mut length = 0;
        while length < window.len() {
            let read = self.read_into(Lsn(at.0 + length as u64), &mut window[length..])?;
            if read == 0 {
                break;
            }
            length += read;
        }
        Ok(&window[..length])
    }

    /// Appends this many bytes of the stream, or as many as are contiguous, without checking the segment headers.
    fn read_through(&self, at: Lsn, bytes: usize, out: &mut Vec<u8>) -> Result<()> {
        let wanted = out.len() + bytes;
        while out.len() < wanted {
            let had = out.len();
            let next = Lsn(at.0 + (bytes - (wanted - had)) as u64);
            self.read_on(next, wanted - had, out)?;
            if out.len() == had {
                break;
            }
        }
        Ok(())
    }

    /// Appends the bytes of one segment from a position on. A missing segment has none.
    fn read_on(&self, at: Lsn, at_most: usize, out: &mut Vec<u8>) -> Result<(), DiskError> {
        let had = out.len();
        let left = self.segment(at).map_or(0, |(_, limit)| limit.0 - at.0);
        // Bounds the memory: one chunk at a time, whatever length a frame claims.
        out.resize(had + at_most.min(WINDOW_BYTES).min(left as usize), 0);
        let read = self.read_into(at, &mut out[had..]);
        out.truncate(had + read.as_ref().map_or(0, |n| *n));
        read.map(drop)
    }

    /// Reads the bytes of one segment from a position on, and returns their number. A missing segment has none.
    fn read_into(&self, at: Lsn, out: &mut [u8]) -> Result<usize, DiskError> {
        let Some((segment, limit)) = self.segment(at) else { return Ok(0) };
        let most = out.len().min((limit.0 - at.0) as usize);
        match self.disk.read(segment.file(), segment.offset(at), &mut out[..most]) {
            Err(DiskError::Missing { .. }) => Ok(0),
            read => read,
        }
    }
}

/// The content of a block that was never written.
static ZEROS: [u8; LOG_BLOCK_BYTES + HEADER] = [0; LOG_BLOCK_BYTES + HEADER];

/// Returns where in these bytes, which begin at `at`, a frame may begin: its LSN is in its header. Most of what lies
/// above the end of the log was never written, and a block of zeros holds none.
fn candidates(window: &[u8], at: Lsn) -> impl Iterator<Item = usize> {
    let starts = window.len().saturating_sub(HEADER - 1).min(WINDOW_BYTES);
    let blocks = (0..starts).step_by(LOG_BLOCK_BYTES).filter(move |block| {
        // The field of a header that begins in this block may be in the next one.
        let block = &window[*block..(block + LOG_BLOCK_BYTES + HEADER).min(window.len())];
        *block != ZEROS[..block.len()]
    });
    blocks.flat_map(move |block| (block..(block + LOG_BLOCK_BYTES).min(starts)).step_by(8)).filter(
        move |from| {
            let lsn = at.0 + *from as u64;
            window[from + 8..from + 16] == lsn.to_le_bytes()
        },
    )
}
