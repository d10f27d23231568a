//! A case: a history of the reference. It is printed as a command that runs just this one again.

use core::{fmt, str::FromStr};
use std::sync::{Arc, Mutex};

use super::{
    client::Level,
    guard::mix,
    history::History,
    load::{Load, Shape, run, run_on_threads},
    reference::{Database, Fault, Session},
};

/// The variable that holds a case.
pub(crate) const VARIABLE: &str = "WINDFALL_ISOLATION";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub seed: u64,
    pub shape: Shape,
    /// Without one, there are transactions of every level.
    pub level: Option<Level>,
    pub fault: Option<Fault>,
    pub transactions: usize,
}

impl Case {
    /// Returns its history on the reference.
    pub(crate) fn history(&self) -> History {
        let (clients, load) = self.clients();
        run(clients, &load, self.transactions, mix(&[self.seed, 4]))
    }

    /// Returns its history with one thread per client, which is different in each run.
    pub(crate) fn history_of_threads(&self) -> History {
        let (clients, load) = self.clients();
        run_on_threads(clients, &load, self.transactions, mix(&[self.seed, 4]))
    }

    fn clients(&self) -> (Vec<Session>, Load) {
        let Self { seed, shape, level, fault, .. } = *self;
        let forgetful = mix(&[seed, 1]).is_multiple_of(4);
        let sessions = 2 + mix(&[seed, 2]) % 6;
        let database = Arc::new(Mutex::new(Database::new(mix(&[seed, 3]), fault, forgetful)));
        let levels = level.map_or(Level::ALL.to_vec(), |level| vec![level]);
        let clients = (0..sessions).map(|_| Session::new(database.clone())).collect();
        (clients, Load::new(shape, &levels))
    }

    /// Returns the command that runs it again.
    pub(crate) fn command(&self) -> String {
        format!(
            "{VARIABLE}='{self}' cargo test -p windfall --test isolation -- --exact --ignored --nocapture one_case_again"
        )
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, shape, level, fault, transactions } = self;
        write!(f, "seed={seed} shape={shape:?} transactions={transactions}")?;
        if let Some(level) = level {
            write!(f, " level={level:?}")?;
        }
        fault.map_or(Ok(()), |fault| write!(f, " fault={fault:?}"))
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        fn one_of<T: Copy + fmt::Debug>(all: &[T], text: &str) -> Result<T, String> {
            let found = all.iter().find(|known| format!("{known:?}") == text);
            found.copied().ok_or_else(|| format!("{text:?} is none of {all:?}"))
        }
        let mut case = Self { seed: 0, shape: Shape::Lists, level: None, fault: None, transactions: 100 };
        for part in text.split_whitespace() {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is no KEY=VALUE"))?;
            let number = || value.parse::<u64>().map_err(|error| format!("{part:?}: {error}"));
            match key {
                "seed" => case.seed = number()?,
                "transactions" => case.transactions = number()? as usize,
                "shape" => case.shape = one_of(&[Shape::Lists, Shape::Registers], value)?,
                "level" => case.level = Some(one_of(&Level::ALL, value)?),
                "fault" => case.fault = Some(one_of(&Fault::ALL, value)?),
                _ => return Err(format!("{key:?} is unknown")),
            }
        }
        Ok(case)
    }
}
