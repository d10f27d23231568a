//! Batches of requests, carried out by a few threads that all queues share.
//!
//! **Purpose.** A worker submits many page reads or writes at once and continues; the device sees them together.
//!
//! **Invariants.** Threads are started on demand, up to a limit (test: `few_handles_serve_many_files`). The drop of the
//! disk waits until they have completed every request and ended (checked by `disk/queue.rs::drop`). A request drops its
//! reference to the file before its completion is visible (test:
//! `the_handle_of_a_removed_file_is_closed_and_its_requests_end`). Every request has a completion: a panic during a
//! request becomes its error ([`DiskError::Panicked`]), and the thread continues (test:
//! `a_panic_during_a_request_is_its_error_and_the_thread_continues`). The caller must stop the database then (test:
//! `a_panic_of_an_io_thread_stops_the_database`).

use core::panic::AssertUnwindSafe;
use std::{collections::VecDeque, panic::catch_unwind};

use super::{
    Action, Completion, Queue, Request,
    handles::Handles,
    real::{FolderLease, Inner},
    syscalls::File,
};
use crate::{
    error::DiskError,
    failpoint::SyncPoint,
    health::panic_message,
    sync::{Arc, Event, Mutex, Rank, thread::Thread},
};

/// The threads that carry out requests.
#[derive(Debug)]
pub(super) struct IoThreads {
    limit: usize,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    work: Mutex<Jobs>,
    wake: Event,
    /// Passed before each transfer.
    transfers: SyncPoint,
}

#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    busy: usize,
    threads: Vec<Thread>,
    stopping: bool,
}

/// A request, its file, and the inbox for its completion.
#[derive(Debug)]
struct Job {
    request: Request,
    file: Arc<File>,
    inbox: Arc<Inbox>,
    lease: Arc<FolderLease>,
}

#[derive(Debug)]
struct Inbox {
    done: Mutex<Vec<Completion>>,
    arrived: Event,
}

impl Inbox {
    fn put(&self, completion: Completion) {
        self.done.lock().push(completion);
        self.arrived.notify();
    }
}

impl Job {
    fn run(self, transfers: &SyncPoint) {
        let Self { request: Request { token, offset, action, mut buffer, .. }, file, inbox, lease } = self;
        let transfer = || {
            transfers.pass();
            match action {
                Action::Read => file.transfer(action, offset, &mut buffer),
                Action::Write => {
                    lease.change().and_then(|_change| file.transfer(action, offset, &mut buffer))
                }
            }
        };
        let result = catch_unwind(AssertUnwindSafe(transfer))
            .unwrap_or_else(|panic| Err(DiskError::Panicked { what: panic_message(&*panic).into() }));
        drop(file);
        inbox.put(Completion { token, buffer, result });
    }
}

impl Shared {
    fn serve(&self) {
        loop {
            self.wake.wait(|| {
                let jobs = self.work.lock();
                jobs.stopping || !jobs.waiting.is_empty()
            });
            let mut jobs = self.work.lock();
            if let Some(job) = jobs.waiting.pop_front() {
                jobs.busy += 1;
                debug_assert!(
                    jobs.stopping || jobs.busy <= jobs.threads.len(),
                    "more requests are carried out than there are threads"
                );
                drop(jobs);
                job.run(&self.transfers);
                self.work.lock().busy -= 1;
            } else if jobs.stopping {
                return;
            }
        }
    }
}

impl IoThreads {
    /// Returns the pool without a thread. At most `limit` threads are started, on demand.
    pub(super) fn new(limit: usize) -> Self {
        let shared = Shared {
            work: Mutex::new(Rank::Leaf, Jobs::default()),
            wake: Event::new(),
            transfers: SyncPoint::default(),
        };
        Self { limit: limit.max(1), shared: Arc::new(shared) }
    }

    fn push(&self, job: Job) {
        let mut jobs = self.shared.work.lock();
        debug_assert!(!jobs.stopping, "a request is submitted after the threads have ended");
        jobs.waiting.push_back(job);
        if jobs.threads.len() < self.limit && jobs.busy + jobs.waiting.len() > jobs.threads.len() {
            let shared = self.shared.clone();
            match Thread::spawn("io", move || shared.serve()) {
                Ok(thread) => jobs.threads.push(thread),
                Err(error) => tracing::warn!(target: "windfall::storage", %error, "no further I/O thread"),
            }
        }
        // If the system starts no thread at all, the submitter carries out the request.
        let alone = if jobs.threads.is_empty() { jobs.waiting.pop_back() } else { None };
        drop(jobs);
        match alone {
            Some(job) => job.run(&self.shared.transfers),
            None => self.shared.wake.notify(),
        }
    }

    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        self.shared.work.lock().threads.len()
    }
}

impl Drop for IoThreads {
    fn drop(&mut self) {
        let threads = {
            let mut jobs = self.shared.work.lock();
            jobs.stopping = true;
            core::mem::take(&mut jobs.threads)
        };
        self.shared.wake.notify();
        drop(threads);
        debug_assert!(
            {
                let jobs = self.shared.work.lock();
                jobs.waiting.is_empty() && jobs.busy == 0
            },
            "the threads have ended before every request was carried out"
        );
    }
}

/// A queue of the real disk.
#[derive(Debug)]
pub(super) struct RealQueue {
    disk: Arc<Inner>,
    inbox: Arc<Inbox>,
    pending: usize,
}

impl RealQueue {
    /// Returns an empty queue. It keeps the folder locked as long as it lives.
    pub(super) fn new(disk: Arc<Inner>) -> Self {
        let inbox = Inbox { done: Mutex::new(Rank::Leaf, Vec::new()), arrived: Event::new() };
        Self { disk, inbox: Arc::new(inbox), pending: 0 }
    }

    fn handles(&self) -> &Handles {
        self.disk.handles()
    }
}

impl Queue for RealQueue {
    fn submit(&mut self, batch: Vec<Request>) {
        for request in batch {
            request.count();
            self.pending += 1;
            let inbox = self.inbox.clone();
            match self.handles().get_for_queue(request.file) {
                Ok(file) => {
                    let lease = self.disk.lease().clone();
                    self.disk.threads().push(Job { request, file, inbox, lease });
                }
                Err(error) => {
                    let Request { token, buffer, .. } = request;
                    inbox.put(Completion { token, buffer, result: Err(error) });
                }
            }
        }
    }

    fn complete(&mut self, wait: bool) -> Vec<Completion> {
        if wait && self.pending > 0 {
            self.inbox.arrived.wait(|| !self.inbox.done.lock().is_empty());
        }
        let done = core::mem::take(&mut *self.inbox.done.lock());
        debug_assert!(done.len() <= self.pending, "more completions arrived than there were requests");
        debug_assert!(!wait || self.pending == 0 || !done.is_empty(), "a wait ended without a completion");
        self.pending -= done.len();
        done
    }

    fn pending(&self) -> usize {
        self.pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        disk::{Disk, FileName, IoBuffer, RealDisk, RealDiskOptions},
        ids::SpaceId,
    };

    #[test]
    fn a_panic_during_a_request_is_its_error_and_the_thread_continues() {
        let folder = tempfile::tempdir().unwrap();
        let options = RealDiskOptions { io_threads: 1, ..RealDiskOptions::default() };
        let disk = RealDisk::open(folder.path(), options).unwrap();
        let file = FileName::Data(SpaceId(20));
        disk.create(file).unwrap();
        let mut queue = disk.queue();
        let request = |token, offset| Request {
            token,
            file,
            offset,
            action: Action::Write,
            buffer: IoBuffer::new(4096),
        };
        let mut transfers = 0;
        disk.0.threads().shared.transfers.set(move || {
            transfers += 1;
            assert!(transfers != 2, "a panic on purpose");
        });
        queue.submit(vec![request(1, 0), request(2, 4096), request(3, 8192)]);
        let mut done = Vec::new();
        while queue.pending() > 0 {
            done.extend(queue.complete(true));
        }
        done.sort_by_key(|completion| completion.token);
        // The requests before and after it are not affected. The panic has removed the function.
        let [first, trapped, last] = &done[..] else { panic!("{} completions", done.len()) };
        assert!(first.result.is_ok() && last.result.is_ok());
        let message = trapped.result.as_ref().unwrap_err().to_string();
        assert_eq!(message, "an I/O thread has panicked: a panic on purpose");
        assert_eq!(disk.len(file).unwrap(), Some(12288), "the others were written");
    }
}
