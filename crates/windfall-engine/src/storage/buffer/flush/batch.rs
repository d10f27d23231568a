//! Writing a batch of copied pages.
//!
//! **Purpose.** The steps of a batch after its pages were copied: the log, the files, the doublewrite file, the data
//! files, and the syncs.
//!
//! **Invariants.** As in the module above: each page is durable in the doublewrite file before a write to its data file
//! begins (test: `first_runs_crash_at_every_operation`), and a page that a failed write may have torn is kept for the
//! next batch (test: `a_page_torn_by_a_failed_write_stays_whole_in_the_doublewrite_file`).

use std::collections::{BTreeMap, BTreeSet};

use super::{Copy, Flusher, Spaces, Torn, Unwritten, trial_writes_from};
use crate::{
    buffer::{BufferPool, Durability},
    disk::{Action, FileName, IoBuffer, Request},
    error::{DiskError, Error, Result},
    ids::PageId,
    page::{self, Page},
};

/// The pages of a batch with a failed write, by their indexes in the batch.
type Failed = BTreeMap<usize, (DiskError, IoBuffer)>;

impl Copy {
    fn is_logged(&self) -> bool {
        self.space.durability() == Durability::Logged
    }
}

impl BufferPool {
    /// Writes a batch. The first `retried` of its pages were torn before it. Other torn pages are latched, so there are
    /// only the `kept` copies: these go into the doublewrite file and not to the data files.
    pub(super) fn write_out(
        &self,
        flusher: &mut Flusher,
        copies: &[Copy],
        mut pages: Vec<(PageId, IoBuffer)>,
        retried: usize,
        kept: &[usize],
    ) -> Result<Unwritten> {
        assert!(pages.len() == copies.len() && retried <= copies.len(), "a batch lists other pages");
        assert!(kept.iter().all(|n| *n < flusher.torn.len()), "a copy is kept of a page that is not torn");
        debug_assert!(
            copies.iter().zip(&pages).all(|(copy, (id, _))| copy.id() == *id),
            "a page goes to the place of another one"
        );
        self.admit(copies)?;
        for (_, buffer) in &mut pages {
            let crc = crc32c::crc32c(&buffer.bytes()[4..self.page_size]);
            buffer.bytes_mut()[..4].copy_from_slice(&crc.to_le_bytes());
        }
        let mut spaces: Spaces<'_> = copies.iter().map(|copy| (copy.space.id(), &copy.space)).collect();
        let mut unwritten = self.create_files_of(copies, &mut spaces);
        self.write_doublewrite(flusher, copies, &pages, &unwritten, kept)?;
        self.preallocate(&spaces, &pages);
        let failed = self.write_in_place(flusher, copies, pages, retried, &mut unwritten)?;
        self.keep_torn(flusher, copies, kept, failed, &mut unwritten);
        // After a failure, too: a page that reached its data file may be torn there while only the doublewrite file has
        // it whole.
        self.sync_files(&spaces)?;
        Ok(unwritten)
    }

    /// Makes the log durable up to the copies, and checks that they may be written.
    fn admit(&self, copies: &[Copy]) -> Result<()> {
        let newest_lsn = copies.iter().filter(|copy| copy.is_logged()).map(|copy| copy.lsn).max();
        if let Some(lsn) = newest_lsn {
            self.context.log.sync_to(lsn)?;
        }
        // A mini-transaction that is left unfinished poisons the database before it releases its latches. A page copied
        // after that is detected here.
        self.context.health.check()?;
        self.check_copies(copies)
    }

    /// Creates the files that are missing. Removes the tablespaces without a file from `spaces`, and returns their
    /// pages.
    fn create_files_of(&self, copies: &[Copy], spaces: &mut Spaces<'_>) -> Unwritten {
        let mut unwritten = Unwritten::new();
        for (id, error) in self.create_files(spaces) {
            spaces.remove(&id);
            let of_it = copies.iter().enumerate().filter(|(_, copy)| copy.space.id() == id);
            unwritten.extend(of_it.map(|(n, _)| (n, Some(error.clone()))));
        }
        unwritten
    }

    /// Writes the logged pages of a batch, and the `kept` copies, durably to the doublewrite file.
    fn write_doublewrite(
        &self,
        flusher: &mut Flusher,
        copies: &[Copy],
        pages: &[(PageId, IoBuffer)],
        unwritten: &Unwritten,
        kept: &[usize],
    ) -> Result<()> {
        let to_copy = copies.iter().zip(pages).enumerate();
        let to_copy: Vec<_> = to_copy
            .filter(|(n, (copy, _))| copy.is_logged() && !unwritten.contains_key(n))
            .map(|(_, (_, (id, buffer)))| (*id, buffer))
            .collect();
        if !to_copy.is_empty() {
            let kept = kept.iter().map(|n| &flusher.torn[*n]);
            let pages: Vec<_> = kept.map(|torn| (torn.id(), &torn.copy)).chain(to_copy).collect();
            flusher
                .doublewrite
                .write(&*self.context.disk, &mut *flusher.queue, &pages, self.page_size)
                .map_err(|error| self.poison_if_unknown(error))?;
        }
        Ok(())
    }

    /// Writes the pages to their data files, in two parts: each has at most half of the logged pages for which the torn
    /// ones leave room. Returns those with a failed write, and adds those without a write to `unwritten`.
    fn write_in_place(
        &self,
        flusher: &mut Flusher,
        copies: &[Copy],
        pages: Vec<(PageId, IoBuffer)>,
        retried: usize,
        unwritten: &mut Unwritten,
    ) -> Result<Failed> {
        let requests = pages.into_iter().enumerate().filter(|(n, _)| !unwritten.contains_key(n));
        let mut requests: Vec<_> = requests
            .map(|(n, (id, buffer))| Request {
                token: n as u64,
                file: FileName::Data(id.space),
                offset: self.offset(id.page),
                action: Action::Write,
                buffer,
            })
            .collect();
        assert!(
            requests.len() + unwritten.len() == copies.len(),
            "a page of the batch is neither written nor reported as unwritten"
        );
        let half = (flusher.room - flusher.torn.len()).div_ceil(2);
        let takes_room = |n: usize| n >= retried && copies[n].is_logged();
        let mut new = (0..requests.len()).filter(|at| takes_room(requests[*at].token as usize));
        let first = new.nth(half).unwrap_or(requests.len());
        let second = requests.split_off(first);
        let needs_trials = flusher.torn.len() >= trial_writes_from(flusher.room);
        let mut failed = Failed::new();
        for mut part in [requests, second] {
            if failed.range(retried..).next().is_some() {
                unwritten.extend(part.iter().map(|request| (request.token as usize, None)));
                flusher.spare.extend(part.into_iter().map(|request| request.buffer));
                break;
            }
            if needs_trials {
                let is_new = |request: &mut Request| request.token as usize >= retried;
                let new: Vec<_> = part.extract_if(.., is_new).collect();
                part.extend(self.trial_writes(flusher, new, copies, unwritten, &mut failed));
            }
            flusher.write(part, &mut failed);
        }
        if let Some((error, _)) =
            failed.values().find(|(error, _)| matches!(error, DiskError::Panicked { .. }))
        {
            return Err(self.context.health.poison(&error.to_string()));
        }
        debug_assert!(
            failed.keys().all(|n| !unwritten.contains_key(n)),
            "a page is reported as torn and as not written"
        );
        Ok(failed)
    }

    /// Keeps the copies of the pages that are torn from now on: the `kept` ones, and those with a failed write that are
    /// not whole in their data files. Adds all pages with a failed write to `unwritten`.
    fn keep_torn(
        &self,
        flusher: &mut Flusher,
        copies: &[Copy],
        kept: &[usize],
        failed: Failed,
        unwritten: &mut Unwritten,
    ) {
        let torn = core::mem::take(&mut flusher.torn).into_iter().enumerate();
        flusher.torn = torn.filter(|(n, _)| kept.contains(n)).map(|(_, torn)| torn).collect();
        for (n, (error, buffer)) in failed {
            unwritten.insert(n, Some(error));
            let copy = &copies[n];
            if copy.is_logged() && !self.is_whole_in_file(copy.id()) {
                flusher.torn.push(Torn { space: copy.space.clone(), page: copy.page, copy: buffer });
            } else {
                flusher.spare.push(buffer);
            }
        }
        assert!(
            flusher.torn.len() <= flusher.room,
            "{} torn pages are more than a batch has room for, {}",
            flusher.torn.len(),
            flusher.room
        );
        debug_assert!(
            flusher.torn.iter().all(|torn| torn.space.durability() == Durability::Logged),
            "a page of a temporary table takes room in every batch"
        );
        debug_assert!(
            flusher.torn.iter().map(Torn::id).collect::<BTreeSet<_>>().len() == flusher.torn.len(),
            "a torn page has two copies, and one of them is outdated"
        );
    }

    /// Makes trial writes for these pages: writes back the bytes that are read from their data files. Returns the
    /// requests with a successful trial. The other pages are added to `unwritten`, or to `failed` if the trial has torn
    /// the page in the file. All must be durable in the doublewrite file before: a crash may leave a page that is being
    /// written unreadable.
    fn trial_writes(
        &self,
        flusher: &mut Flusher,
        requests: Vec<Request>,
        copies: &[Copy],
        unwritten: &mut Unwritten,
        failed: &mut Failed,
    ) -> Vec<Request> {
        let unanswered = requests.len() + unwritten.len() + failed.len();
        let mut trials = Vec::new();
        for &Request { token, file, offset, .. } in &requests {
            let mut buffer = flusher.spare.pop().unwrap_or_else(|| IoBuffer::new(self.page_size));
            let place = &mut buffer.bytes_mut()[..self.page_size];
            match self.context.disk.read(file, offset, place) {
                Ok(read) => {
                    // Beyond the end of the file.
                    place[read..].fill(0);
                    trials.push(Request { token, file, offset, action: Action::Write, buffer });
                }
                Err(error) => {
                    unwritten.insert(token as usize, Some(error));
                    flusher.spare.push(buffer);
                }
            }
        }
        let mut refused = BTreeMap::new();
        flusher.write(trials, &mut refused);
        let mut tried = Vec::new();
        for request in requests {
            let n = request.token as usize;
            if let Some((error, buffer)) = refused.remove(&n) {
                flusher.spare.push(buffer);
                if !matches!(error, DiskError::Panicked { .. }) && self.is_whole_in_file(copies[n].id()) {
                    unwritten.insert(n, Some(error));
                } else {
                    failed.insert(n, (error, request.buffer));
                    continue;
                }
            }
            if unwritten.contains_key(&n) {
                flusher.spare.push(request.buffer);
            } else {
                tried.push(request);
            }
        }
        debug_assert!(
            tried.len() + unwritten.len() + failed.len() == unanswered,
            "a page with a trial write is neither written nor reported"
        );
        tried
    }

    /// Returns whether a page that could not be written is whole in its data file, or was never written there. Then it
    /// needs no copy.
    fn is_whole_in_file(&self, id: PageId) -> bool {
        let words = page::blank(self.page_size);
        let found = Page::new(&words);
        let read = self.context.disk.read_page(FileName::Data(id.space), self.offset(id.page), found.words());
        read.is_ok() && (found.is_zero() || found.verify(id).is_ok())
    }

    /// Makes the cheap checks of the pages to be written. A defect that is found here arose in memory, and must not
    /// reach the disk.
    fn check_copies(&self, copies: &[Copy]) -> Result<()> {
        let durable = self.context.log.durable();
        for copy in copies {
            let ahead = (copy.lsn > durable).then_some("its last change is not in the log");
            if let Some(what) = copy.wrong.or(ahead) {
                let id = copy.id();
                return Err(self
                    .context
                    .health
                    .poison(&format!("{id} is not what it should be in memory: {what}")));
            }
        }
        Ok(())
    }

    /// Poisons the database if the error leaves the content of the doublewrite file unknown: a failed sync, or a panic.
    /// Other failures have no lasting effect.
    pub(super) fn poison_if_unknown(&self, error: DiskError) -> Error {
        if error.is_sync_failure() || matches!(error, DiskError::Panicked { .. }) {
            self.context.health.poison(&error.to_string())
        } else {
            error.into()
        }
    }
}
