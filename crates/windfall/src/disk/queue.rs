//! Batches of requests, carried out by a few threads that all queues share.
//!
//! **Purpose.** A worker hands over many page reads or writes at once and goes on; the device sees them together.
//!
//! **Invariants.** Threads are started when there is work for them, at most as many as allowed, and have ended, every
//! request done, before the disk is gone. A request's share of its file is dropped before its completion is seen.
//!
//! **May touch.** `error`, `sync`.

use std::collections::VecDeque;

use super::{
    Action, Completion, Queue, Request,
    handles::Handles,
    real::{Inner, Tenure},
    system::File,
};
use crate::sync::{Arc, Event, Mutex, Rank, thread::Thread};

/// The threads that carry out requests.
#[derive(Debug)]
pub struct IoThreads {
    limit: usize,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    work: Mutex<Jobs>,
    wake: Event,
}

#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    busy: usize,
    threads: Vec<Thread>,
    stopping: bool,
}

/// A request, its file, and where its completion goes.
#[derive(Debug)]
struct Job {
    request: Request,
    file: Arc<File>,
    inbox: Arc<Inbox>,
    tenure: Arc<Tenure>,
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
    fn run(self) {
        let Self { request: Request { token, offset, action, mut buffer, .. }, file, inbox, tenure } = self;
        let result = match action {
            Action::Read => file.transfer(action, offset, &mut buffer),
            Action::Write => tenure.change().and_then(|_change| file.transfer(action, offset, &mut buffer)),
        };
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
                drop(jobs);
                job.run();
                self.work.lock().busy -= 1;
            } else if jobs.stopping {
                return;
            }
        }
    }
}

impl IoThreads {
    /// No thread yet; at most `limit` later.
    pub fn new(limit: usize) -> Self {
        let shared = Shared { work: Mutex::new(Rank::Leaf, Jobs::default()), wake: Event::new() };
        Self { limit: limit.max(1), shared: Arc::new(shared) }
    }

    fn push(&self, job: Job) {
        let mut jobs = self.shared.work.lock();
        jobs.waiting.push_back(job);
        if jobs.threads.len() < self.limit && jobs.busy + jobs.waiting.len() > jobs.threads.len() {
            let shared = self.shared.clone();
            match Thread::spawn("io", move || shared.serve()) {
                Ok(thread) => jobs.threads.push(thread),
                Err(error) => tracing::warn!(%error, "no further I/O thread"),
            }
        }
        // Where the system gives no thread at all, the submitter does the work.
        let alone = if jobs.threads.is_empty() { jobs.waiting.pop_back() } else { None };
        drop(jobs);
        match alone {
            Some(job) => job.run(),
            None => self.shared.wake.notify(),
        }
    }

    #[cfg(test)]
    pub fn running(&self) -> usize {
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
    }
}

/// A queue of the real disk.
#[derive(Debug)]
pub struct RealQueue {
    disk: Arc<Inner>,
    inbox: Arc<Inbox>,
    pending: usize,
}

impl RealQueue {
    /// A queue with nothing in it. It keeps the folder locked as long as it lives.
    pub fn new(disk: Arc<Inner>) -> Self {
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
                    let tenure = self.disk.tenure().clone();
                    self.disk.threads().push(Job { request, file, inbox, tenure });
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
        self.pending -= done.len();
        done
    }

    fn pending(&self) -> usize {
        self.pending
    }
}
