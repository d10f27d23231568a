//! Request queues of the simulated disk.
//!
//! **Purpose.** Requests run in an order that the seed decides, some when they are submitted, others only when their
//! completion is requested. A sync in between does not cover the latter.
//!
//! **Invariants.** A request holds its file from its submission on (test:
//! `the_simulated_disk_conforms_with_every_seed`). A queue that is dropped runs its remaining requests (test:
//! `a_queue_that_is_dropped_runs_its_requests`).

use windfall_base::{
    disk::{Action, Completion, FileName, Queue, Request},
    env::Env as _,
    error::{DiskError, IoOp},
};

use super::{OperationKind, SimulatedDisk, names::InodeId};

#[derive(Debug)]
enum Entry {
    Waiting(Request, InodeId),
    Done(Completion),
}

/// A request queue of the simulated disk.
#[derive(Debug)]
pub(super) struct SimulatedQueue {
    disk: SimulatedDisk,
    entries: Vec<Entry>,
}

impl SimulatedQueue {
    pub(super) fn new(disk: SimulatedDisk) -> Self {
        Self { disk, entries: Vec::new() }
    }

    fn draw(&self, below: usize) -> usize {
        (self.disk.state.lock().chance.random() % below as u64) as usize
    }

    fn accept(&self, file: FileName) -> Result<InodeId, DiskError> {
        let mut state = self.disk.state.lock();
        let id = state.find(file)?;
        state.inode(id).in_progress += 1;
        Ok(id)
    }

    fn carry_out(&self, request: Request, id: InodeId) -> Completion {
        let Request { token, file, offset, action, mut buffer } = request;
        let result = match action {
            Action::Read => self.disk.operate(IoOp::Read, file, OperationKind::Read, |state, _| {
                let out = buffer.bytes_mut();
                let got = state.read(file, id, offset, out)?;
                out[got..].fill(0);
                Ok(())
            }),
            Action::Write => self.disk.operate(IoOp::Write, file, OperationKind::Write, |state, fault| {
                state.write(file, id, offset, buffer.bytes(), fault)
            }),
        };
        let mut state = self.disk.state.lock();
        let inode = state.inode(id);
        assert!(inode.in_progress > 0, "a request ends that was not counted");
        inode.in_progress -= 1;
        drop(state);
        Completion { token, buffer, result }
    }

    fn end(&self, entry: Entry) -> Completion {
        match entry {
            Entry::Waiting(request, id) => self.carry_out(request, id),
            Entry::Done(completion) => completion,
        }
    }
}

impl Queue for SimulatedQueue {
    fn submit(&mut self, batch: Vec<Request>) {
        for request in batch {
            request.count();
            let entry = match self.accept(request.file) {
                Ok(id) if self.draw(2) == 0 => Entry::Done(self.carry_out(request, id)),
                Ok(id) => Entry::Waiting(request, id),
                Err(error) => {
                    let Request { token, buffer, .. } = request;
                    Entry::Done(Completion { token, buffer, result: Err(error) })
                }
            };
            self.entries.push(entry);
        }
    }

    fn complete(&mut self, wait: bool) -> Vec<Completion> {
        if self.entries.is_empty() {
            return Vec::new();
        }
        let count = if wait { 1 + self.draw(self.entries.len()) } else { self.draw(self.entries.len() + 1) };
        (0..count)
            .map(|_| {
                let chosen = self.draw(self.entries.len());
                let entry = self.entries.swap_remove(chosen);
                self.end(entry)
            })
            .collect()
    }

    fn pending(&self) -> usize {
        self.entries.len()
    }
}

impl Drop for SimulatedQueue {
    fn drop(&mut self) {
        for entry in core::mem::take(&mut self.entries) {
            self.end(entry);
        }
    }
}
