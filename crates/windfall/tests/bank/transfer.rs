//! Transfers: how they are drawn at random, and how they run step by step, so that other clients run in between.

use core::{fmt, str::FromStr};

use rand::{Rng, rngs::StdRng, seq::index};
use windfall::{
    Database, Error, Isolation, Result, Transaction, TransactionOptions, error::TransactionError,
};

use crate::books::{ACCOUNTS, Books, Moves};

/// The end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Commit,
    Rollback,
    /// The handle is dropped without a commit.
    Leave,
    /// The transaction is prepared, and ended through its handle.
    Prepare {
        commits: bool,
    },
    /// The transaction is prepared, its handle is dropped, and it is ended by its name.
    PrepareAndLeave {
        commits: bool,
    },
}

impl End {
    fn commits(self) -> bool {
        matches!(
            self,
            Self::Commit | Self::Prepare { commits: true } | Self::PrepareAndLeave { commits: true }
        )
    }

    fn prepares(self) -> bool {
        matches!(self, Self::Prepare { .. } | Self::PrepareAndLeave { .. })
    }
}

/// A transfer as it was drawn.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    number: u64,
    moves: Moves,
    /// Before the move with this index, another account is changed, and a rollback to a savepoint undoes that.
    detour: Option<(usize, u16)>,
    end: End,
    isolation: Isolation,
}

impl Order {
    pub(crate) fn draw(chance: &mut StdRng, number: u64) -> Self {
        // Occasionally all accounts take part.
        let legs = if chance.random_range(0..16) == 0 { ACCOUNTS } else { chance.random_range(2..6) };
        let accounts = index::sample(chance, ACCOUNTS.into(), legs.into());
        let mut moves: Moves =
            accounts.iter().map(|account| (account as u16, chance.random_range(-50..50))).collect();
        moves[0].1 -= moves.iter().map(|(_, amount)| amount).sum::<i64>();
        let detour = (chance.random_range(0..4) == 0)
            .then(|| (chance.random_range(0..moves.len()), chance.random_range(0..ACCOUNTS)));
        let commits = chance.random_range(0..3) > 0;
        let end = match chance.random_range(0..8) {
            0 => End::Rollback,
            1 => End::Leave,
            2 => End::Prepare { commits },
            3 => End::PrepareAndLeave { commits },
            _ => End::Commit,
        };
        let isolation = Isolation::ALL[chance.random_range(0..Isolation::ALL.len())];
        Self { number, moves, detour, end, isolation }
    }

    /// Returns the name under which it is prepared. The name contains the decision to commit or roll back, so that an
    /// observer that finds it can carry out that decision.
    fn xid(&self) -> Vec<u8> {
        [&[u8::from(self.end.commits())][..], &self.number.to_be_bytes()].concat()
    }
}

/// Returns the number of the transfer with this name, and whether it must be committed.
pub(crate) fn of_xid(xid: &[u8]) -> (u64, bool) {
    let (commits, number) = xid.split_first().expect("a name");
    (u64::from_be_bytes(number.try_into().expect("a number")), *commits == 1)
}

/// Ends a prepared transfer of which only the name is left, as the name demands.
pub(crate) fn end_by_name(db: &Database, xid: &[u8]) -> Result<()> {
    if of_xid(xid).1 { db.commit_prepared(xid).map(drop) } else { db.rollback_prepared(xid) }
}

/// The state of a transfer, as far as its client has reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The transaction is working, or is being prepared if it will be.
    Open {
        prepares: bool,
    },
    Prepared,
    /// The end of the transaction is in progress.
    Ends {
        was_prepared: bool,
        commits: bool,
    },
    Ended {
        commits: bool,
    },
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { prepares } => write!(f, "open {prepares}"),
            Self::Prepared => write!(f, "prepared"),
            Self::Ends { was_prepared, commits } => write!(f, "ends {was_prepared} {commits}"),
            Self::Ended { commits } => write!(f, "ended {commits}"),
        }
    }
}

impl FromStr for Known {
    type Err = String;

    fn from_str(text: &str) -> core::result::Result<Self, String> {
        let words: Vec<&str> = text.split(' ').collect();
        let flag = |word: &str| word.parse::<bool>().map_err(|error| format!("{text:?}: {error}"));
        match words[..] {
            ["open", prepares] => Ok(Self::Open { prepares: flag(prepares)? }),
            ["prepared"] => Ok(Self::Prepared),
            ["ends", was_prepared, commits] => {
                Ok(Self::Ends { was_prepared: flag(was_prepared)?, commits: flag(commits)? })
            }
            ["ended", commits] => Ok(Self::Ended { commits: flag(commits)? }),
            _ => Err(format!("{text:?} is no state of a transfer")),
        }
    }
}

/// The callback that receives each new state of a transfer.
pub(crate) type Tell<'a> = &'a mut dyn FnMut(Known);

/// A transfer in progress.
pub(crate) struct Transfer {
    order: Order,
    /// `None` when the handle was dropped.
    open: Option<(Transaction, Books)>,
    done: usize,
}

/// The next step of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The transaction changes accounts and the ledger.
    Work,
    Prepare,
    End,
    Over,
}

impl Transfer {
    pub(crate) fn begin(db: &Database, books: &Books, order: Order, tell: Tell<'_>) -> Self {
        tell(Known::Open { prepares: order.end.prepares() });
        let trx = db.begin(TransactionOptions::default().isolation(order.isolation));
        Self { order, open: Some((trx, books.clone())), done: 0 }
    }

    fn phase(&self) -> Phase {
        match self.done.checked_sub(self.order.moves.len() + 1) {
            None => Phase::Work,
            Some(0) if self.order.end.prepares() => Phase::Prepare,
            Some(n) if n == usize::from(self.order.end.prepares()) => Phase::End,
            Some(_) => Phase::Over,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.phase() == Phase::Over
    }

    /// Returns whether a conflict with other transactions ended it: then it is over, and was rolled back.
    pub(crate) fn gave_way(&self) -> bool {
        self.done == usize::MAX
    }

    /// Does the next step, and reports the state of the transfer before and after it.
    ///
    /// # Errors
    /// The errors of the database, except conflicts with other transactions.
    pub(crate) fn step(&mut self, db: &Database, tell: Tell<'_>) -> Result<()> {
        let (phase, step) = (self.phase(), self.done);
        let (was_prepared, commits) = (self.order.end.prepares(), self.order.end.commits());
        self.done += 1;
        match phase {
            Phase::Work => match self.work(step) {
                Err(error) if is_in_the_way(&error) => {
                    tell(Known::Ends { was_prepared: false, commits: false });
                    self.open = None;
                    self.done = usize::MAX;
                    tell(Known::Ended { commits: false });
                    Ok(())
                }
                done => done,
            },
            Phase::Prepare => {
                self.prepare()?;
                tell(Known::Prepared);
                Ok(())
            }
            Phase::End => {
                tell(Known::Ends { was_prepared, commits });
                self.end(db)?;
                tell(Known::Ended { commits });
                Ok(())
            }
            Phase::Over => unreachable!("it is over"),
        }
    }

    fn work(&self, step: usize) -> Result<()> {
        let (trx, books) = self.open.as_ref().expect("its handle goes later");
        let books = books.within(trx);
        let Order { number, moves, detour, .. } = &self.order;
        if let Some((_, account)) = detour.filter(|(at, _)| *at == step) {
            trx.savepoint("detour")?;
            books.add(account, 7777, *number)?;
            trx.rollback_to("detour")?;
        }
        match moves.get(step) {
            Some((account, amount)) => books.add(*account, *amount, *number),
            None => books.enter(*number, moves),
        }
    }

    fn prepare(&mut self) -> Result<()> {
        let (trx, _) = self.open.as_ref().expect("its handle goes later");
        trx.prepare(&self.order.xid())?;
        if matches!(self.order.end, End::PrepareAndLeave { .. }) {
            self.open = None;
        }
        Ok(())
    }

    fn end(&mut self, db: &Database) -> Result<()> {
        let Some((trx, _)) = self.open.take() else { return end_by_name(db, &self.order.xid()) };
        match self.order.end {
            End::Leave => {
                drop(trx);
                Ok(())
            }
            end if end.commits() => trx.commit().map(drop),
            _ => trx.rollback(),
        }
    }
}

/// Returns whether the error is a conflict with concurrent transactions, which a client must expect.
fn is_in_the_way(error: &Error) -> bool {
    matches!(error, Error::Lock(_) | Error::Transaction(TransactionError::Changed(_)))
}
