//! Sessions side by side.
//!
//! **Purpose.** Makes sessions, gives their threads work, and knows what each of them is at: idle, under way, or
//! waiting for a lock, and for whom.
//!
//! **Invariants.** A session has one statement under way at most. Whose wait it is, is told by the number of its
//! transaction; a statement that is a transaction of its own gets one when it begins to wait, so a wait of an unknown
//! number belongs to the one that was given last.
//!
//! **May touch.** `worker`, `statement`, `show`, `answer`.

use std::{
    sync::mpsc::{self, Sender},
    thread,
};

use serde_json::json;
use windfall::{Transaction, error::InTheWay, ids::TrxId, transaction::locks::Waiting};

use super::{
    Event,
    answer::Answer,
    show::{self, dash},
    statement::{Work, level},
    worker::{Open, Place, Worker},
};
use crate::{
    engine::Database,
    failure::{Failure, Result},
    output::Grid,
};

/// The name of the first session.
const FIRST: &str = "main";

/// A session, by its place in the order in which they were made.
pub type Seat = usize;

/// A statement that is not answered yet.
#[derive(Debug)]
struct UnderWay {
    line: u64,
    /// The number under which it waits, if it is a transaction of its own.
    alone: Option<TrxId>,
    /// Whom it waits for, if it does.
    behind: Option<InTheWay>,
    /// For whom it was last said to wait.
    said: Option<InTheWay>,
}

#[derive(Debug)]
struct Session {
    name: String,
    place: Place,
    work: Sender<Work>,
    under_way: Option<UnderWay>,
}

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    db: Database,
    events: Sender<Event>,
    all: Vec<Session>,
    current: Seat,
    /// Who was given a statement last.
    last: Seat,
}

impl Sessions {
    /// One session. Answers go to `events`.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn new(db: Database, events: Sender<Event>) -> Result<Self> {
        let mut sessions = Self { db, events, all: Vec::new(), current: 0, last: 0 };
        sessions.go_to(FIRST)?;
        Ok(sessions)
    }

    /// Goes to the session of this name. Says whether it was made.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn go_to(&mut self, name: &str) -> Result<bool> {
        if let Some(known) = self.all.iter().position(|session| session.name == name) {
            self.current = known;
            return Ok(false);
        }
        let (place, seat) = (Place::default(), self.all.len());
        let (work, given) = mpsc::channel::<Work>();
        let (worker, events) = (Worker::new(self.db.clone(), place.clone()), self.events.clone());
        let run = move || {
            for work in given {
                // Who does not listen any more has ended.
                let _ = events.send(Event::Answered(seat, worker.run(work)));
            }
        };
        thread::Builder::new().name(format!("session {seat}")).spawn(run).map_err(|error| {
            Failure::said(format!("the system starts no thread for the session {name}: {error}"))
        })?;
        self.all.push(Session { name: name.to_owned(), place, work, under_way: None });
        self.current = seat;
        Ok(true)
    }

    /// The session that statements go to.
    pub fn current(&self) -> Seat {
        self.current
    }

    /// A session's name, where there is more than one.
    pub fn name_among(&self, seat: Seat) -> Option<&str> {
        (self.all.len() > 1).then(|| self.name(seat))
    }

    /// A session's name.
    pub fn name(&self, seat: Seat) -> &str {
        &self.all[seat].name
    }

    /// Whether the current session has a transaction open.
    pub fn is_in_transaction(&self) -> bool {
        self.all[self.current].place.look().is_some()
    }

    /// Gives a statement to the current session.
    ///
    /// # Errors
    /// Another one is under way.
    pub fn give(&mut self, work: Work, line: u64) -> Result<(), String> {
        let session = &mut self.all[self.current];
        if let Some(under_way) = &session.under_way {
            let waits =
                under_way.behind.as_ref().map_or_else(String::new, |b| format!(", which waits for {b}"));
            return Err(format!(
                "its last statement is still under way{waits}: `wait` for it, or go to another `session`"
            ));
        }
        session.work.send(work).map_err(|_| "the thread of this session has ended")?;
        session.under_way = Some(UnderWay { line, alone: None, behind: None, said: None });
        self.last = self.current;
        Ok(())
    }

    /// Notes that a session has answered. Gives the number of the line that the statement stood in.
    pub fn answered(&mut self, seat: Seat) -> u64 {
        self.all[seat].under_way.take().map_or(0, |under_way| under_way.line)
    }

    /// Looks who waits for a lock.
    pub fn look(&mut self, waits: &[Waiting]) {
        for under_way in self.all.iter_mut().filter_map(|session| session.under_way.as_mut()) {
            under_way.behind = None;
        }
        for wait in waits {
            let seat = self.seat_of(wait.trx).or_else(|| {
                let session = &mut self.all[self.last];
                let has_number = session.place.look().is_some_and(|open| open.id.is_some());
                let under_way = session.under_way.as_mut().filter(|u| u.alone.is_none() && !has_number)?;
                under_way.alone = Some(wait.trx);
                Some(self.last)
            });
            if let Some(under_way) = seat.and_then(|seat| self.all[seat].under_way.as_mut()) {
                under_way.behind = Some(wait.behind.clone());
            }
        }
    }

    /// Whose transaction this is.
    fn seat_of(&self, trx: TrxId) -> Option<Seat> {
        self.all.iter().position(|session| {
            let own = session.place.look().and_then(|open| open.id);
            own == Some(trx) || session.under_way.as_ref().is_some_and(|u| u.alone == Some(trx))
        })
    }

    /// Whether any statement is under way.
    pub fn are_busy(&self) -> bool {
        self.all.iter().any(|session| session.under_way.is_some())
    }

    /// Those whose statements are under way and not seen to wait.
    pub fn running(&self) -> impl Iterator<Item = Seat> {
        self.busy().into_iter().filter(|(_, behind)| behind.is_none()).map(|(seat, _)| seat)
    }

    /// Those who wait and of whom that was not said: the session, the line, and whom it waits for.
    pub fn newly_waiting(&mut self) -> Vec<(Seat, u64, InTheWay)> {
        let mut all = Vec::new();
        for (seat, session) in self.all.iter_mut().enumerate() {
            if let Some(under_way) = &mut session.under_way
                && let Some(behind) = under_way.behind.clone()
                && under_way.said.as_ref() != Some(&behind)
            {
                under_way.said = Some(behind.clone());
                all.push((seat, under_way.line, behind));
            }
        }
        all
    }

    /// Takes the transactions of sessions that have no statement under way, to end them.
    pub fn take_idle(&mut self) -> Vec<(Seat, Transaction)> {
        let idle = self.all.iter().enumerate().filter(|(_, session)| session.under_way.is_none());
        idle.filter_map(|(seat, session)| Some((seat, session.place.take()?))).collect()
    }

    /// Those whose statements are under way, and whom they wait for if they do.
    pub fn busy(&self) -> Vec<(Seat, Option<InTheWay>)> {
        let busy = self.all.iter().enumerate();
        busy.filter_map(|(seat, session)| Some((seat, session.under_way.as_ref()?.behind.clone()))).collect()
    }

    /// The name of the session that a transaction belongs to.
    pub fn owner(&self, trx: TrxId) -> Option<String> {
        self.seat_of(trx).map(|seat| self.name(seat).to_owned())
    }

    /// The list of them.
    pub fn listing(&self) -> Answer {
        let mut grid = Grid::new(["session", "transaction", "level", "statement"]);
        let mut list = Vec::new();
        for (seat, session) in self.all.iter().enumerate() {
            let open = session.place.look();
            let level = open.map(|Open { isolation, .. }| level(isolation));
            let id = open.and_then(|open| open.id);
            let transaction = match (open, id) {
                (None, _) => "-".into(),
                (Some(_), None) => "open".into(),
                (Some(_), Some(id)) => id.to_string(),
            };
            let behind = session.under_way.as_ref().and_then(|u| u.behind.as_ref());
            let statement = match (&session.under_way, behind) {
                (None, _) => "-".into(),
                (Some(_), None) => "under way".into(),
                (Some(_), Some(behind)) => format!("waits for {behind}"),
            };
            grid.line([session.name.clone(), transaction, dash(level), statement]);
            list.push(json!({
                "name": session.name,
                "current": seat == self.current,
                "open": open.is_some(),
                "transaction": id.map(|id| id.0),
                "level": level,
                "under_way": session.under_way.is_some(),
                "waits_for": behind.map(show::ids),
            }));
        }
        Answer::list("sessions", "", &grid, list)
    }
}
