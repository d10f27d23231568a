//! Draws random histories.

use windfall::{Isolation, env::Env};
use windfall_sim::SimulatedEnv;

use crate::steps::{
    CURSORS, Call, Ddl, End, Locking, Move, Over, Party, Read, SLOTS, Shape, Step, Which, WriteMode,
};
use crate::value::{FIRSTS, KEYS, UNIQUES, Value};

/// Names of tables, and of prepared transactions.
const NAMES: u64 = 3;
/// Names of savepoints.
const SAVEPOINTS: u64 = 2;

struct Draw {
    chance: SimulatedEnv,
    stamp: u32,
}

/// Returns the steps of a seed's history.
pub(crate) fn draw(seed: u64, steps: usize) -> Vec<Step> {
    let mut draw = Draw { chance: SimulatedEnv::new(seed ^ 0x0d5a), stamp: 0 };
    let create = |name, first, unique| Step::Ddl(Ddl::Create { name, first, unique });
    let mut all = vec![create(0, true, true), create(1, false, true), create(2, false, false)];
    all.push(Step::Ddl(Ddl::CreateTemporary { first: true, unique: true }));
    for _ in 0..24 {
        let (table, key) = (draw.number(4), draw.key());
        let call = Call::Write { table, key, value: draw.value(), mode: WriteMode::Put };
        all.push(Step::Call { by: None, call });
    }
    while all.len() < steps {
        let step = draw.step();
        let behind = draw.behind(&step);
        all.push(step);
        all.extend(behind);
    }
    all
}

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.chance.random() % end
    }

    fn is(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    fn number(&mut self, end: u64) -> u8 {
        self.below(end) as u8
    }

    fn slot(&mut self) -> u8 {
        self.number(SLOTS.into())
    }

    fn party(&mut self) -> Party {
        if self.is(6) { None } else { Some(self.slot()) }
    }

    /// Returns a table, often one of the first, which have all indexes.
    fn table(&mut self) -> u8 {
        match self.below(10) {
            0..=3 => 0,
            9 => self.number(256),
            _ => self.number(4),
        }
    }

    fn key(&mut self) -> u8 {
        self.number(KEYS.into())
    }

    fn value(&mut self) -> Value {
        self.stamp += 1;
        let length = match self.below(12) {
            0..=6 => 6,
            7..=9 => 500 + self.below(300) as u32,
            _ => 3000 + self.below(6000) as u32,
        };
        let (first, unique) = (self.number(FIRSTS.into()), self.number(UNIQUES.into()));
        Value { first, unique, stamp: self.stamp, length }
    }

    fn which(&mut self) -> Which {
        if self.is(2) { Which::First } else { Which::Unique }
    }

    fn locking(&mut self) -> Locking {
        Locking { exclusive: self.is(2), skips: self.is(4) }
    }

    fn call(&mut self) -> Call {
        let (table, key) = (self.table(), self.key());
        match self.below(16) {
            0..=9 => {
                let mode = match self.below(8) {
                    0 | 1 => WriteMode::Insert,
                    2..=5 => WriteMode::Put,
                    6 => WriteMode::Update,
                    _ => WriteMode::Delete,
                };
                Call::Write { table, key, value: self.value(), mode }
            }
            10..=12 => {
                let read = match self.below(4) {
                    0 => Read::Contains,
                    1 => Read::Stream,
                    _ => Read::Get,
                };
                Call::Get { table, key, read }
            }
            _ => Call::Lock { table, key, locking: self.locking() },
        }
    }

    fn range(&mut self, over: Over) -> Shape {
        if self.is(3) {
            return Shape::Range(None);
        }
        let most = match over {
            Over::Rows => KEYS,
            Over::Index(Which::First) | Over::Keys(Which::First) => FIRSTS,
            Over::Index(Which::Unique) | Over::Keys(Which::Unique) => UNIQUES,
        };
        let (one, other) = (self.number(most.into()), self.number(most.into()));
        Shape::Range(Some((one.min(other), one.max(other), one == other || !self.is(3))))
    }

    fn cursor(&mut self) -> Step {
        let over = match self.below(4) {
            0 | 1 => Over::Rows,
            2 => Over::Index(self.which()),
            _ => Over::Keys(self.which()),
        };
        let shape = if self.is(2) { Shape::Cursor } else { self.range(over) };
        let may_lock = !matches!(over, Over::Keys(_));
        let locking = (may_lock && self.is(2)).then(|| self.locking());
        let (place, by, table) = (self.number(CURSORS.into()), self.party(), self.table());
        Step::Open { place, by, table, over, shape, locking }
    }

    fn moving(&mut self) -> (Move, u8) {
        let key = self.key();
        let to = match self.below(14) {
            0..=4 => Move::Next,
            5..=7 => Move::Prev,
            8 => Move::First,
            9 => Move::Last,
            10 => Move::AtLeast(key),
            11 => Move::Above(key),
            12 => Move::AtMost(key),
            _ => Move::Below(key),
        };
        let times = if matches!(to, Move::Next | Move::Prev) { 1 + self.number(4) } else { 1 };
        (to, times)
    }

    fn ddl(&mut self) -> Ddl {
        let (name, other, which) = (self.number(NAMES), self.number(NAMES + 1), self.which());
        let (first, unique) = (!self.is(3), !self.is(3));
        match self.below(24) {
            20.. => Ddl::Create { name, first: true, unique: true },
            0..=5 => Ddl::Create { name, first, unique },
            6 => Ddl::CreateTemporary { first, unique },
            7 if self.is(2) => Ddl::DropTemporary,
            7 | 8 => Ddl::Drop { name },
            9 => Ddl::DropTwo { one: name, other },
            10 | 11 => Ddl::Truncate { name },
            12 => Ddl::Rename { from: name, to: other },
            13 => Ddl::Swap { one: name, other },
            14..=17 => Ddl::CreateIndex { name, which },
            _ => Ddl::DropIndex { name, which },
        }
    }

    fn level(&mut self) -> Isolation {
        Isolation::ALL[self.below(5) as usize]
    }

    /// Some values are large: the rest of such a value is read while the change is in progress.
    fn nested(&mut self) -> Step {
        let (by, table, key, late) = (self.party(), self.table(), self.key(), self.is(2));
        let mut value = self.value();
        if late {
            value.length = 66_000 + self.below(3000) as u32;
        }
        let (inner_by, mut inner) = (self.party(), self.call());
        // Usually both calls use the same row.
        let inner_key = if self.is(3) { self.key() } else { key };
        let meets = |value: Value, unique: u8| Value { unique, ..value };
        match &mut inner {
            Call::Write { table: of, key, value: new, .. } => {
                (*of, *key) = (table, inner_key);
                if self.is(2) {
                    *new = meets(*new, value.unique);
                }
            }
            Call::Get { table: of, key, .. } | Call::Lock { table: of, key, .. } => {
                (*of, *key) = (table, inner_key);
            }
        }
        Step::Nested { by, table, key, value, late, inner: (inner_by, inner) }
    }

    /// Returns the steps that directly follow a step.
    fn behind(&mut self, step: &Step) -> Vec<Step> {
        match *step {
            // A cursor starts soon, before the table has changed.
            Step::Open { place, .. } => {
                let (to, times) = self.moving();
                vec![Step::Move { place, to, times }]
            }
            // Its handle is dropped, and it may be ended by its name.
            Step::Prepare { slot, name } if self.is(2) => {
                let mut steps = vec![Step::End { slot, how: End::Drop }];
                if self.is(2) {
                    steps.push(Step::EndPrepared { name, commits: self.is(3) });
                    if self.is(2) {
                        steps.push(Step::Crash(self.number(6)));
                    }
                }
                steps
            }
            // Cursors may be on trees that this step has dropped.
            Step::Ddl(
                Ddl::Drop { .. } | Ddl::DropTwo { .. } | Ddl::Truncate { .. } | Ddl::DropIndex { .. },
            ) => {
                let moves = (0..CURSORS).map(|place| {
                    let (to, times) = self.moving();
                    Step::Move { place, to, times }
                });
                moves.collect()
            }
            // A crash finds a transaction again if its end was not written to the log.
            Step::End { how: End::RollBack, .. } if self.is(12) => vec![Step::Crash(self.number(6))],
            _ => Vec::new(),
        }
    }

    fn step(&mut self) -> Step {
        let slot = self.slot();
        match self.below(200) {
            0..=23 => Step::Begin { slot, level: self.level(), read_only: self.is(12), snapshot: self.is(3) },
            24..=32 => {
                let how = match self.below(5) {
                    0..=2 => End::Commit,
                    3 => End::RollBack,
                    _ => End::Drop,
                };
                Step::End { slot, how }
            }
            33..=36 => Step::Savepoint { slot, name: self.number(SAVEPOINTS) },
            40..=42 => Step::RollBackTo { slot, name: self.number(SAVEPOINTS) },
            // These have taken the place of savepoints and calls, and draw what those drew: histories that are kept by
            // their seeds stay the same.
            37..=39 => {
                self.number(SAVEPOINTS);
                Step::BeginStatement { slot }
            }
            43..=45 => Step::EndStatement { slot, undo: self.number(SAVEPOINTS) == 0 },
            194..=196 => {
                let _ = (self.party(), self.call());
                Step::BeginStatement { slot }
            }
            197.. => {
                self.party();
                Step::EndStatement { slot, undo: matches!(self.call(), Call::Write { .. }) }
            }
            46 => Step::Release { slot, name: self.number(SAVEPOINTS) },
            47 | 48 => Step::Prepare { slot, name: self.number(NAMES) },
            49 => Step::EndPrepared { name: self.number(NAMES), commits: self.is(2) },
            50..=55 => {
                let many = 1 + self.below(3);
                let calls = (0..many).map(|_| self.call()).collect();
                Step::Statement { slot, calls, fails: self.is(4) }
            }
            56..=62 => self.nested(),
            63..=72 => Step::Race { slot, call: self.call(), ending: self.slot(), commits: self.is(2) },
            73..=84 => self.cursor(),
            85 | 86 => Step::Look { by: self.party(), table: self.table() },
            87..=118 => {
                let (to, times) = self.moving();
                Step::Move { place: self.number(CURSORS.into()), to, times }
            }
            119..=127 => Step::Ddl(self.ddl()),
            128..=133 => Step::Settle(1 + self.number(40)),
            134 => Step::Checkpoint,
            135..=137 => Step::Check { live: self.is(2) },
            138 if self.is(2) => Step::Crash(self.number(6)),
            139 if self.is(6) => Step::Reopen,
            140 => Step::Close { place: self.number(CURSORS.into()) },
            _ => Step::Call { by: self.party(), call: self.call() },
        }
    }
}
