//! The history of a database as its clients have seen it: their transactions, call by call, with the moments at which
//! each began and ended.

use core::fmt;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use super::client::{Answer, Call, Client, Key, Level, Lock, Row, Rows};

/// A value of a counter that all clients share: an event that ended at a lower value than another began was before it.
pub(crate) type Moment = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Committed,
    Aborted,
    /// The client got no answer to its commit.
    Unknown,
}

/// A call that read or wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub begin: Moment,
    pub end: Moment,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// All rows from one key to another, both included.
    Read {
        first: Key,
        last: Key,
        lock: Lock,
        rows: Vec<Row>,
    },
    Put(Key, u64),
    Append(Key, u64),
    Delete(Key, u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transaction {
    pub session: usize,
    pub level: Level,
    pub begin: Moment,
    pub steps: Vec<Step>,
    /// When its last call began and ended.
    pub end: (Moment, Moment),
    pub outcome: Outcome,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    pub transactions: Vec<Transaction>,
}

impl History {
    /// Returns the transactions of these clients, in the order in which they began.
    pub(crate) fn of<C: Client>(clients: impl Iterator<Item = Recorder<C>>) -> Self {
        let mut transactions: Vec<_> = clients.flat_map(Recorder::into_transactions).collect();
        transactions.sort_unstable_by_key(|transaction| transaction.begin);
        Self { transactions }
    }

    /// Returns the same history, as if its clients had requested this level.
    pub(crate) fn judged_at(&self, level: Level) -> Self {
        let mut history = self.clone();
        for transaction in &mut history.transactions {
            transaction.level = level;
        }
        history
    }
}

/// A client that records its calls and answers. It supports only the calls of a [`Step`].
pub(crate) struct Recorder<C> {
    client: C,
    session: usize,
    clock: Arc<AtomicU64>,
    /// The call that has no answer yet.
    asked: Option<(Call, Moment)>,
    open: Option<Transaction>,
    ended: Vec<Transaction>,
}

impl<C: Client> Recorder<C> {
    pub(crate) fn new(client: C, session: usize, clock: Arc<AtomicU64>) -> Self {
        Self { client, session, clock, asked: None, open: None, ended: Vec::new() }
    }

    pub(crate) fn client(&mut self) -> &mut C {
        &mut self.client
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.asked.is_some()
    }

    /// Returns its transactions so far. An open one ends here with an unknown outcome.
    fn into_transactions(mut self) -> Vec<Transaction> {
        if self.open.is_some() {
            self.end(Outcome::Unknown, Moment::MAX, Moment::MAX);
        }
        self.ended
    }

    fn moment(&self) -> Moment {
        self.clock.fetch_add(1, SeqCst)
    }

    fn end(&mut self, outcome: Outcome, begin: Moment, end: Moment) {
        let transaction = self.open.take().expect("a transaction is open");
        self.ended.push(Transaction { end: (begin, end), outcome, ..transaction });
    }

    fn heard(&mut self, answer: &Answer) {
        if *answer == Answer::Waits {
            return;
        }
        let (call, begin) = self.asked.take().expect("something was asked");
        let end = self.moment();
        let outcome = match (call, answer) {
            (_, Answer::Refused(_)) | (Call::Rollback, _) => Some(Outcome::Aborted),
            (_, Answer::Unknown) => Some(Outcome::Unknown),
            (Call::Commit, _) => Some(Outcome::Committed),
            _ => None,
        };
        if let Some(outcome) = outcome {
            // A transaction of unknown outcome may still commit later.
            self.end(outcome, begin, if outcome == Outcome::Unknown { Moment::MAX } else { end });
            return;
        }
        let open = self.open.as_mut().expect("a transaction is open");
        match (call, answer) {
            (Call::Read(Rows { first, last, .. }, lock), Answer::Rows(rows)) => {
                let what = What::Read { first, last, lock, rows: rows.clone() };
                open.steps.push(Step { begin, end, what });
            }
            (Call::Pick(_), Answer::Picked(rows)) => {
                open.steps.extend(rows.iter().map(|(row, is_locked)| {
                    let lock = if *is_locked { Lock::Exclusive } else { Lock::Plain };
                    let what = What::Read { first: row.0, last: row.0, lock, rows: vec![row.clone()] };
                    Step { begin, end, what }
                }));
            }
            (Call::Put(..) | Call::Append(..) | Call::Delete(..), _) => {
                let step = open.steps.last_mut().expect("it was noted when it was asked");
                step.end = end;
                // The row was not found.
                if let (Call::Delete(key, _), Answer::Rows(_)) = (call, answer) {
                    let (first, last, rows) = (key, key, Vec::new());
                    step.what = What::Read { first, last, lock: Lock::Exclusive, rows };
                }
            }
            _ => {}
        }
    }
}

impl<C: Client> Client for Recorder<C> {
    fn call(&mut self, call: &Call) -> Answer {
        let begin = self.moment();
        self.asked = Some((*call, begin));
        let written = match *call {
            Call::Put(key, item) => Some(What::Put(key, item)),
            Call::Append(key, item) => Some(What::Append(key, item)),
            Call::Delete(key, item) => Some(What::Delete(key, item)),
            Call::Begin(level) => {
                let (steps, end) = (Vec::new(), (begin, begin));
                let outcome = Outcome::Unknown;
                self.open = Some(Transaction { session: self.session, level, begin, steps, end, outcome });
                None
            }
            Call::Read(..) | Call::Pick(_) | Call::Change(..) | Call::Commit | Call::Rollback => None,
        };
        // Other transactions may read the write before its call returns, or although the call is refused.
        if let Some(what) = written {
            let open = self.open.as_mut().expect("a transaction is open");
            open.steps.push(Step { begin, end: Moment::MAX, what });
        }
        let answer = self.client.call(call);
        self.heard(&answer);
        answer
    }

    fn answer(&mut self) -> Answer {
        let answer = self.client.answer();
        self.heard(&answer);
        answer
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { first, last, lock, rows } => {
                f.write_str(match lock {
                    Lock::Plain => "read ",
                    Lock::Shared => "read locking shared ",
                    Lock::Exclusive => "read locking ",
                })?;
                if first == last {
                    write!(f, "key {first}")?;
                } else if *last == Key::MAX {
                    write!(f, "keys {first}..")?;
                } else {
                    write!(f, "keys {first}..={last}")?;
                }
                for (n, (key, value)) in rows.iter().enumerate() {
                    write!(f, "{} {key} is {value:?}", if n == 0 { ":" } else { "," })?;
                }
                if rows.is_empty() { f.write_str(": nothing") } else { Ok(()) }
            }
            Self::Put(key, item) => write!(f, "put {item} to key {key}"),
            Self::Append(key, item) => write!(f, "appended {item} to key {key}"),
            Self::Delete(key, item) => write!(f, "deleted key {key} ({item})"),
        }
    }
}

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match self.outcome {
            Outcome::Committed => "committed",
            Outcome::Aborted => "aborted",
            Outcome::Unknown => "it is not known how it ended",
        };
        write!(f, "session {}, {}, {outcome}, from {} ", self.session, self.level, self.begin)?;
        match self.end.1 {
            Moment::MAX => f.write_str("on")?,
            end => write!(f, "to {end}")?,
        }
        for (n, step) in self.steps.iter().enumerate() {
            write!(f, "{} {}", if n == 0 { ":" } else { ";" }, step.what)?;
        }
        Ok(())
    }
}
