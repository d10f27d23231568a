//! A session of the reference, as its clients use it.

use std::sync::{Arc, Mutex};

use super::{
    super::client::{Answer, Call, Client},
    Database, TrxId,
};

pub(crate) struct Session {
    database: Arc<Mutex<Database>>,
    trx: Option<TrxId>,
    waits: Option<Call>,
}

impl Session {
    pub(crate) fn new(database: Arc<Mutex<Database>>) -> Self {
        Self { database, trx: None, waits: None }
    }
}

impl Client for Session {
    fn call(&mut self, call: &Call) -> Answer {
        assert!(self.waits.is_none(), "a call waits");
        if let Call::Begin(level) = call {
            self.trx = Some(self.database.lock().unwrap().begin(*level));
            return Answer::Done;
        }
        self.waits = Some(*call);
        self.answer()
    }

    fn answer(&mut self) -> Answer {
        let call = self.waits.expect("a call waits");
        let trx = self.trx.expect("a transaction was begun");
        let answer = self.database.lock().unwrap().call(trx, &call);
        if answer != Answer::Waits {
            self.waits = None;
        }
        let is_end = matches!(call, Call::Commit | Call::Rollback);
        if is_end || matches!(answer, Answer::Refused(_) | Answer::Unknown) {
            self.trx = None;
        }
        answer
    }
}
