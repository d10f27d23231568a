//! Concurrent sessions.
//!
//! **Purpose.** Creates sessions, passes work to their threads, and tracks the state of each: idle, executing, or
//! waiting for a lock, and for which transactions.
//!
//! **Invariants.** A session executes at most one statement (test: `impossible_statements_are_refused`). A wait is
//! assigned to a session by the number of its transaction (test:
//! `a_waiting_session_continues_after_the_commit_of_another`). A statement outside a transaction gets a number when it
//! begins to wait, so a wait with an unknown number belongs to the session that was last given a statement (test:
//! `statements_of_three_sessions_are_distinguished`).

use std::{
    sync::mpsc::{self, Sender},
    thread,
};

use serde_json::json;
use windfall::{Transaction, Waiting, error::Blockers, ids::TrxId};

use super::{
    Event,
    answer::Answer,
    show::{self, dash},
    statement::{Work, level},
    worker::{Open, SessionTransaction, Worker},
};
use crate::{
    engine::Database,
    failure::{Failure, Result},
    output::Grid,
};

/// The name of the first session.
const FIRST: &str = "main";

/// A session, by its index in the order of creation.
pub(super) type SessionNo = usize;

/// A statement that is not answered yet.
#[derive(Debug)]
struct UnderWay {
    line: u64,
    /// The number of its own transaction while it waits, if it is outside a session transaction.
    alone: Option<TrxId>,
    /// The transactions that it waits for, if it does.
    blockers: Option<Blockers>,
    /// The transactions that the last message said it waits for.
    reported: Option<Blockers>,
}

#[derive(Debug)]
struct Session {
    name: String,
    transaction: SessionTransaction,
    work: Sender<Work>,
    under_way: Option<UnderWay>,
}

/// All sessions.
#[derive(Debug)]
pub(super) struct Sessions {
    db: Database,
    events: Sender<Event>,
    all: Vec<Session>,
    current: SessionNo,
    /// The session that was last given a statement.
    last: SessionNo,
}

impl Sessions {
    /// Returns one session. Answers go to `events`.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(super) fn new(db: Database, events: Sender<Event>) -> Result<Self> {
        let mut sessions = Self { db, events, all: Vec::new(), current: 0, last: 0 };
        sessions.switch_to(FIRST)?;
        Ok(sessions)
    }

    /// Switches to the session of this name. Returns whether it was created.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(super) fn switch_to(&mut self, name: &str) -> Result<bool> {
        if let Some(known) = self.all.iter().position(|session| session.name == name) {
            self.current = known;
            return Ok(false);
        }
        let (transaction, session_no) = (SessionTransaction::default(), self.all.len());
        let (work, given) = mpsc::channel::<Work>();
        let (worker, events) = (Worker::new(self.db.clone(), transaction.clone()), self.events.clone());
        let run = move || {
            for work in given {
                // The send fails only when the receiver has ended.
                let _ = events.send(Event::Answered(session_no, worker.run(work)));
            }
        };
        thread::Builder::new().name(format!("session {session_no}")).spawn(run).map_err(|error| {
            Failure::message(format!("the system starts no thread for the session {name}: {error}"))
        })?;
        self.all.push(Session { name: name.to_owned(), transaction, work, under_way: None });
        self.current = session_no;
        Ok(true)
    }

    /// Returns the session that receives statements.
    pub(super) fn current(&self) -> SessionNo {
        self.current
    }

    /// Returns a session's name, if there is more than one session.
    pub(super) fn name_among(&self, session_no: SessionNo) -> Option<&str> {
        (self.all.len() > 1).then(|| self.name(session_no))
    }

    /// Returns a session's name.
    pub(super) fn name(&self, session_no: SessionNo) -> &str {
        &self.all[session_no].name
    }

    /// Returns whether the current session has an open transaction.
    pub(super) fn is_in_transaction(&self) -> bool {
        self.all[self.current].transaction.state().is_some()
    }

    /// Passes a statement to the current session.
    ///
    /// # Errors
    /// The session's previous statement is not answered yet.
    pub(super) fn give(&mut self, work: Work, line: u64) -> Result<(), String> {
        let session = &mut self.all[self.current];
        if let Some(under_way) = &session.under_way {
            let waits =
                under_way.blockers.as_ref().map_or_else(String::new, |b| format!(", which waits for {b}"));
            return Err(format!(
                "its last statement is still in progress{waits}: `wait` for it, or go to another `session`"
            ));
        }
        session.work.send(work).map_err(|_| "the thread of this session has ended")?;
        session.under_way = Some(UnderWay { line, alone: None, blockers: None, reported: None });
        self.last = self.current;
        Ok(())
    }

    /// Notes that a session has answered. Returns the line number of the statement.
    pub(super) fn answered(&mut self, session_no: SessionNo) -> u64 {
        self.all[session_no].under_way.take().map_or(0, |under_way| under_way.line)
    }

    /// Updates which statements wait for a lock.
    pub(super) fn update_waits(&mut self, waits: &[Waiting]) {
        for under_way in self.all.iter_mut().filter_map(|session| session.under_way.as_mut()) {
            under_way.blockers = None;
        }
        for wait in waits {
            let session_no = self.session_no_of(wait.trx).or_else(|| {
                let session = &mut self.all[self.last];
                let has_number = session.transaction.state().is_some_and(|open| open.id.is_some());
                let under_way = session.under_way.as_mut().filter(|u| u.alone.is_none() && !has_number)?;
                under_way.alone = Some(wait.trx);
                Some(self.last)
            });
            if let Some(under_way) = session_no.and_then(|session_no| self.all[session_no].under_way.as_mut())
            {
                under_way.blockers = Some(wait.blockers.clone());
            }
        }
    }

    /// Returns the session of a transaction.
    fn session_no_of(&self, trx: TrxId) -> Option<SessionNo> {
        self.all.iter().position(|session| {
            let own = session.transaction.state().and_then(|open| open.id);
            own == Some(trx) || session.under_way.as_ref().is_some_and(|u| u.alone == Some(trx))
        })
    }

    /// Returns whether any statement is not answered yet.
    pub(super) fn are_busy(&self) -> bool {
        self.all.iter().any(|session| session.under_way.is_some())
    }

    /// Returns the sessions that execute a statement and are not known to wait.
    pub(super) fn running(&self) -> impl Iterator<Item = SessionNo> {
        self.busy().into_iter().filter(|(_, blockers)| blockers.is_none()).map(|(session_no, _)| session_no)
    }

    /// Returns the waits that have not been reported yet: the session, the line, and the transactions that it waits
    /// for.
    pub(super) fn newly_waiting(&mut self) -> Vec<(SessionNo, u64, Blockers)> {
        let mut all = Vec::new();
        for (session_no, session) in self.all.iter_mut().enumerate() {
            if let Some(under_way) = &mut session.under_way
                && let Some(blockers) = under_way.blockers.clone()
                && under_way.reported.as_ref() != Some(&blockers)
            {
                under_way.reported = Some(blockers.clone());
                all.push((session_no, under_way.line, blockers));
            }
        }
        all
    }

    /// Takes the transactions of sessions that execute no statement, to end them.
    pub(super) fn take_idle(&mut self) -> Vec<(SessionNo, Transaction)> {
        let idle = self.all.iter().enumerate().filter(|(_, session)| session.under_way.is_none());
        idle.filter_map(|(session_no, session)| Some((session_no, session.transaction.take()?))).collect()
    }

    /// Returns the sessions that execute a statement, and the transactions that they wait for, if any.
    pub(super) fn busy(&self) -> Vec<(SessionNo, Option<Blockers>)> {
        let busy = self.all.iter().enumerate();
        busy.filter_map(|(session_no, session)| {
            Some((session_no, session.under_way.as_ref()?.blockers.clone()))
        })
        .collect()
    }

    /// Returns the name of the session that a transaction belongs to.
    pub(super) fn owner(&self, trx: TrxId) -> Option<String> {
        self.session_no_of(trx).map(|session_no| self.name(session_no).to_owned())
    }

    /// Returns the list of sessions.
    pub(super) fn listing(&self) -> Answer {
        let mut grid = Grid::new(["session", "transaction", "level", "statement"]);
        let mut list = Vec::new();
        for (session_no, session) in self.all.iter().enumerate() {
            let open = session.transaction.state();
            let level = open.map(|Open { isolation, .. }| level(isolation));
            let id = open.and_then(|open| open.id);
            let transaction = match (open, id) {
                (None, _) => "-".into(),
                (Some(_), None) => "open".into(),
                (Some(_), Some(id)) => id.to_string(),
            };
            let blockers = session.under_way.as_ref().and_then(|u| u.blockers.as_ref());
            let statement = match (&session.under_way, blockers) {
                (None, _) => "-".into(),
                (Some(_), None) => "in progress".into(),
                (Some(_), Some(blockers)) => format!("waits for {blockers}"),
            };
            grid.line([session.name.clone(), transaction, dash(level), statement]);
            list.push(json!({
                "name": session.name,
                "current": session_no == self.current,
                "open": open.is_some(),
                "transaction": id.map(|id| id.0),
                "level": level,
                "under_way": session.under_way.is_some(),
                "waits_for": blockers.map(show::ids),
            }));
        }
        Answer::list("sessions", "", &grid, list)
    }
}
