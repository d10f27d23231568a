//! Calls on an open file: whole transfers, and errors that name the file.
//!
//! **Purpose.** The system may transfer fewer bytes than requested, be interrupted, or refuse memory that is not
//! aligned. Above this module a transfer is whole or an error.
//!
//! **Invariants.** A transfer goes on after a part of it and after an interruption, and ends early only at the end of
//! the file or with an error (test: `a_transfer_goes_on_after_a_part_and_an_interruption`). Optimistic readers may read
//! the words of a page while it is read from disk: they are passed as `&[AtomicU64]`, of which safe code makes no
//! `&[u8]` or `&mut [u8]` (by type). So the one `unsafe` call here passes a raw pointer to the system.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::FallocateFlags,
    io::{Errno, retry_on_intr},
};

use super::{Action, BLOCK_BYTES, IoBuffer};
use crate::{
    error::{DiskError, IoOp},
    memory::{WORD, store_words},
    sync::{
        Arc, Event,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

/// The number of open files, and the event for threads that wait until it is lower.
#[derive(Debug, Default)]
pub(super) struct Open {
    pub count: AtomicUsize,
    pub fewer: Event,
}

/// An open file. The descriptor is closed when the last reference is dropped.
#[derive(Debug)]
pub(super) struct File {
    fd: OwnedFd,
    path: PathBuf,
    direct: bool,
    open: Option<Arc<Open>>,
}

impl File {
    /// Returns an open file, counted in `open` while it exists.
    pub(super) fn new(fd: OwnedFd, path: PathBuf, direct: bool, open: Option<Arc<Open>>) -> Self {
        if let Some(open) = &open {
            open.count.fetch_add(1, SeqCst);
        }
        Self { fd, path, direct, open }
    }

    fn named<T>(&self, action: IoOp, result: io::Result<T>) -> Result<T, DiskError> {
        result.map_err(|error| failed(action, &self.path, error))
    }

    /// Reads from any offset into any memory. Returns the number of bytes read.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize, DiskError> {
        if !self.direct {
            return self.named(IoOp::Read, self.read_whole(offset, out));
        }
        // Direct I/O needs whole blocks in aligned memory.
        let head = (offset % BLOCK_BYTES as u64) as usize;
        let mut blocks = IoBuffer::new(head + out.len());
        let got = self.named(IoOp::Read, self.read_whole(offset - head as u64, blocks.bytes_mut()))?;
        let n = got.saturating_sub(head).min(out.len());
        out[..n].copy_from_slice(&blocks.bytes()[head..head + n]);
        Ok(n)
    }

    fn read_whole(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.fill(out.len(), |at| Ok(rustix::io::pread(&self.fd, &mut out[at..], offset + at as u64)?))
    }

    /// Fills memory by as many calls as needed, up to the end of the file.
    fn fill(&self, len: usize, mut call: impl FnMut(usize) -> io::Result<usize>) -> io::Result<usize> {
        let mut at = 0;
        while at < len {
            match call(at) {
                Ok(0) => break,
                Ok(n) => {
                    debug_assert!(n <= len - at, "a call read more bytes than there was room for");
                    at += n;
                    // A direct read stops inside a block only at the end of the file, and could not continue from
                    // there.
                    if self.direct && n % BLOCK_BYTES != 0 {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(at)
    }

    /// Reads a page straight into its words; bytes past the end of the file are zero.
    pub(super) fn read_page(&self, offset: u64, into: &[AtomicU64]) -> Result<(), DiskError> {
        let length = size_of_val(into);
        let memory = into.as_ptr().cast::<u8>().cast_mut();
        if self.direct && memory.addr() % BLOCK_BYTES != 0 {
            let mut buffer = IoBuffer::new(length);
            self.read(offset, buffer.bytes_mut())?;
            store_words(into, &buffer.bytes()[..length]);
            return Ok(());
        }
        debug_assert!(
            !self.direct || (offset.is_multiple_of(BLOCK_BYTES as u64) && length.is_multiple_of(BLOCK_BYTES)),
            "a direct read of {length} bytes at {offset} is not of whole blocks"
        );
        let got = self.fill(length, |at| {
            // SAFETY: `at` is below the page's length, so the call writes within the words that `into` borrows. They
            // are atomics, which may change under a shared reference, and any bytes are valid in them. No reference
            // to the bytes is formed.
            let n = unsafe {
                let to = memory.add(at).cast();
                libc::pread(self.fd.as_raw_fd(), to, length - at, (offset + at as u64).cast_signed())
            };
            usize::try_from(n).map_err(|_| io::Error::last_os_error())
        });
        let got = self.named(IoOp::Read, got)?;
        let (whole, part) = (got / WORD, got % WORD);
        let [cut, rest @ ..] = &into[whole..] else { return Ok(()) };
        let kept = cut.load(Relaxed).to_le_bytes();
        store_words(core::slice::from_ref(cut), &kept[..part]);
        store_words(rest, &[]);
        Ok(())
    }

    /// Writes all the bytes. For a direct file they must be whole blocks in aligned memory.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        debug_assert!(
            !self.direct
                || (offset.is_multiple_of(BLOCK_BYTES as u64) && bytes.len().is_multiple_of(BLOCK_BYTES)),
            "a direct write of {} bytes at {offset} is not of whole blocks",
            bytes.len()
        );
        debug_assert!(
            !self.direct || bytes.as_ptr().addr().is_multiple_of(BLOCK_BYTES),
            "the memory of a direct write does not begin at a block"
        );
        let mut at = 0;
        while at < bytes.len() {
            match rustix::io::pwrite(&self.fd, &bytes[at..], offset + at as u64) {
                Ok(0) => return self.named(IoOp::Write, Err(io::ErrorKind::WriteZero.into())),
                Ok(n) => at += n,
                Err(Errno::INTR) => {}
                Err(error) => return self.named(IoOp::Write, Err(error.into())),
            }
        }
        Ok(())
    }

    /// Writes bytes that need not be aligned in memory.
    pub(super) fn write_unaligned(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        if !self.direct {
            return self.write(offset, bytes);
        }
        let mut buffer = IoBuffer::new(bytes.len());
        buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        self.write(offset, buffer.bytes())
    }

    /// Carries out a request of a batch.
    pub(super) fn transfer(
        &self,
        action: Action,
        offset: u64,
        buffer: &mut IoBuffer,
    ) -> Result<(), DiskError> {
        debug_assert!(
            !self.direct || offset.is_multiple_of(BLOCK_BYTES as u64),
            "a direct request at {offset} does not begin at a block"
        );
        match action {
            Action::Read => {
                let got = self.named(IoOp::Read, self.read_whole(offset, buffer.bytes_mut()))?;
                buffer.bytes_mut()[got..].fill(0);
                Ok(())
            }
            Action::Write => self.write(offset, buffer.bytes()),
        }
    }

    /// Makes content and length durable.
    pub(super) fn sync(&self) -> Result<(), DiskError> {
        // A failed sync is never repeated: the system may have dropped the pages that it could not write.
        self.named(IoOp::Sync, retry_on_intr(|| rustix::fs::fdatasync(&self.fd)).map_err(Into::into))
    }

    /// Sets the length.
    pub(super) fn truncate(&self, length: u64) -> Result<(), DiskError> {
        self.named(
            IoOp::Truncate,
            retry_on_intr(|| rustix::fs::ftruncate(&self.fd, length)).map_err(Into::into),
        )
    }

    /// Reserves space, and extends the file to the end of the range.
    pub(super) fn preallocate(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        debug_assert!(length > 0, "space is reserved for an empty range");
        let call = || rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), offset, length);
        match retry_on_intr(call) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.fill_with_zeros(offset + length),
            result => self.named(IoOp::Preallocate, result.map_err(Into::into)),
        }
    }

    /// Replaces `fallocate` where it is not supported: writes zeros from the end of the file on, in whole blocks. Holes
    /// before the end stay holes.
    pub(super) fn fill_with_zeros(&self, end: u64) -> Result<(), DiskError> {
        const STEP: u64 = 1 << 20;
        let stat = self.named(IoOp::Preallocate, rustix::fs::fstat(&self.fd).map_err(Into::into))?;
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        if length >= end {
            return Ok(());
        }
        let zeros = IoBuffer::new(STEP as usize);
        // The tail up to the next block boundary lies in the last block, and the space of that block is allocated.
        let mut at = length.next_multiple_of(BLOCK_BYTES as u64);
        while at < end {
            let n = (end - at).next_multiple_of(BLOCK_BYTES as u64).min(STEP);
            self.write(at, &zeros.bytes()[..n as usize])?;
            at += n;
        }
        self.truncate(end)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Some(open) = &self.open {
            let before = open.count.fetch_sub(1, SeqCst);
            debug_assert!(before > 0, "a file that was not counted as open is closed");
            open.fewer.notify();
        }
    }
}

/// Returns the error of a failed call.
pub fn failed(action: IoOp, path: &Path, error: io::Error) -> DiskError {
    let path = path.to_path_buf();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DiskError::Full { action, path },
        io::ErrorKind::NotFound => DiskError::Missing { path },
        _ => DiskError::Io { action, path, source: Arc::new(error) },
    }
}

/// Refuses a write that is not in whole blocks, for a file that is written in whole blocks only.
///
/// # Errors
/// [`DiskError::Io`] for a part of a block.
pub fn check_blocks(path: &Path, offset: u64, length: usize) -> Result<(), DiskError> {
    if offset.is_multiple_of(BLOCK_BYTES as u64) && length.is_multiple_of(BLOCK_BYTES) {
        return Ok(());
    }
    let source = io::Error::new(io::ErrorKind::InvalidInput, "this file is written in whole blocks of 4 KiB");
    Err(DiskError::Io { action: IoOp::Write, path: path.to_path_buf(), source: Arc::new(source) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_become_ours() {
        let error = |errno: Errno| failed(IoOp::Write, Path::new("x"), errno.into());
        assert!(matches!(error(Errno::NOSPC), DiskError::Full { .. }));
        assert!(matches!(error(Errno::DQUOT), DiskError::Full { .. }));
        assert!(matches!(error(Errno::NOENT), DiskError::Missing { .. }));
        assert!(matches!(error(Errno::IO), DiskError::Io { .. }));
        let is_no_space = |errno| error(errno).is_no_space();
        assert_eq!([Errno::NOSPC, Errno::FBIG, Errno::IO].map(is_no_space), [true, true, false]);
    }

    #[test]
    fn a_transfer_goes_on_after_a_part_and_an_interruption() {
        let path = Path::new("/dev/null");
        let file = File::new(std::fs::File::open(path).unwrap().into(), path.into(), false, None);
        let interrupted = || Err(io::ErrorKind::Interrupted.into());
        let run = |mut calls: Vec<io::Result<usize>>| {
            calls.reverse();
            let mut places = Vec::new();
            let filled = file.fill(10, |at| {
                places.push(at);
                calls.pop().unwrap()
            });
            (filled.map_err(|error| error.kind()), places)
        };
        assert_eq!(run(vec![Ok(3), interrupted(), Ok(5), Ok(2)]), (Ok(10), vec![0, 3, 3, 8]));
        assert_eq!(run(vec![Ok(3), Ok(0)]), (Ok(3), vec![0, 3]), "the end of the file");
        let failed = io::ErrorKind::PermissionDenied;
        assert_eq!(run(vec![Ok(3), Err(failed.into())]), (Err(failed), vec![0, 3]));
    }

    #[test]
    fn zeros_stand_in_for_fallocate() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let std = std::fs::File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        let file = File::new(std.into(), path.clone(), false, None);
        file.write(0, &[7; 5000]).unwrap();
        file.fill_with_zeros(3_000_001).unwrap();
        file.fill_with_zeros(10).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 3_000_001);
        assert!(bytes[..5000].iter().all(|b| *b == 7) && bytes[5000..].iter().all(|b| *b == 0));
    }
}
