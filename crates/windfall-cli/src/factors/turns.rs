//! A factor, measured by the process that is traced for it.
//!
//! **Purpose.** Statements in turns on three sides, each timed and counted, or stepped, or traced; then those with much
//! beside others.
//!
//! **Invariants.** On the first side there is little; the others have much as well, one beside the table that goes, the
//! other in it. Those two do the same work: each makes a table with little and one with much, first the one that goes,
//! which so is as old on either side; and what precedes each statement is the same, the last of it a read of its table.
//! So what the making of much leaves in the processor's caches, in the log and in the pool, it leaves on both, and
//! nothing differs but which of the two tables goes. The order of the sides changes from round to round, and none
//! begins before all that the one before has dropped is gone. Behind each statement a small table is dropped, which is
//! to cost the same whatever went before it. The statements are this thread's, the main one: only that is traced.
//!
//! **May touch.** `ground`, `victim`, `beside`, `engine`, `args`, `windfall-measure`.

use std::{hint::black_box, path::Path};

use serde::{Deserialize, Serialize};
use windfall::DropReport;
use windfall_measure::{
    Scale, Usage,
    flat::Others,
    stepped::{Count, mark},
};

use super::{
    beside,
    ground::Side,
    owned::{Kind, Owned},
    victim::{Victim, run as statement},
};
use crate::{args::Plant, engine::DropWork, failure::Result};

/// How many sides there are: little alone, little beside much, and much beside little.
pub const SIDES: usize = 3;
/// The orders in which they come.
const ORDERS: [[usize; SIDES]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];
/// A request for which glibc consolidates and sorts its free lists, in bytes.
const SORTED_BY: usize = 4096;
/// The statement behind each that is measured.
const NEXT: &str = "next drop";

/// What one statement took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub took_ns: u64,
    pub thread_ns: u64,
    pub page_faults: u64,
    pub work: DropWork,
}

/// A statement that was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timed {
    pub name: String,
    /// How many trees or tables its cost is given for.
    pub each: [f64; SIDES],
    /// Of each side.
    pub samples: [Vec<Sample>; SIDES],
}

/// What the process answers: what it has measured itself, and the order of its marks, so that the tracing process can
/// tell which is which. A mark is of a statement and a side, by their numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    pub timed: Vec<Timed>,
    pub stepped: Vec<(usize, usize)>,
    pub traced: Vec<(usize, usize)>,
    pub seen: Option<(String, [u64; 2])>,
    pub others: Others,
}

/// How a statement is looked at.
#[derive(Clone, Copy)]
enum Look {
    Timed,
    Stepped,
    Traced,
}

/// Measures.
pub fn run(owned: Owned, scale: Scale, folder: &Path, seed: u64, plant: Option<Plant>) -> Result<Answer> {
    let [small, large] = owned.amounts(scale);
    let open = |amounts, name| Side::open(owned, amounts, scale, plant, &folder.join(name));
    let mut sides =
        [open([small, small], "alone")?, open([small, large], "beside")?, open([large, small], "much")?];
    let mut answer = Answer::default();
    // What the marks themselves take.
    for count in [Count::Instructions, Count::SystemCalls] {
        mark(count);
        mark(count);
    }
    let rounds = owned.rounds(scale);
    let looks = [(Look::Timed, rounds.timed), (Look::Stepped, rounds.stepped), (Look::Traced, rounds.traced)];
    let before = scale.pick(1, 20, 30);
    let mut turn = 0;
    for (n, kinds) in owned.statements().iter().enumerate() {
        for (look, times) in looks {
            // In a quick run it is enough to see the first of them step by step.
            let skipped = matches!(look, Look::Stepped) && scale == Scale::Quick && n > 0;
            for _ in 0..if skipped { 0 } else { times } {
                round(&mut answer, &mut sides, kinds, look, before, turn)?;
                turn += 1;
            }
        }
    }
    answer.others = beside::run(&mut sides[SIDES - 1], scale, seed)?;
    Ok(answer)
}

/// Makes the tables of each side, and runs the statements on all.
fn round(
    answer: &mut Answer,
    sides: &mut [Side; SIDES],
    kinds: &[Kind],
    look: Look,
    before: u32,
    turn: usize,
) -> Result<()> {
    let (mut victims, mut counterparts) = (Vec::new(), Vec::new());
    for side in &mut *sides {
        victims.push(Victim::make(side, kinds[0])?);
    }
    for side in &mut *sides {
        counterparts.push(Victim::counterpart(side, kinds[0])?);
    }
    for &kind in kinds {
        let each = sides.each_ref().map(|side| side.owned.each(kind, side.amount));
        for n in ORDERS[turn % ORDERS.len()] {
            let side = &mut sides[n];
            let next = Victim::small(side)?;
            // Long before a statement that is timed: a list of much fills the processor's caches.
            note_seen(answer, n, side);
            let mut small = Vec::new();
            // Their number changes, as the engine's queues have blocks of 31: not the same statement of each round is
            // to need one.
            for _ in 0..before + (turn % 31) as u32 {
                small.push(Victim::small(side)?);
            }
            for victim in &small {
                statement(side, kind, &victim.names())?;
            }
            if !matches!(look, Look::Timed) {
                // A commit writes what the background has logged by then, and its worker excludes others.
                side.settle()?;
                side.db.flush_log()?;
                note_seen(answer, n, side);
                // glibc sorts what was freed at a request that finds nothing that fits, 60 instructions for each piece.
                // It is not to be a matter of chance which statement makes it; in times it still is.
                black_box(Vec::<u8>::with_capacity(SORTED_BY));
            }
            victims[n].let_go();
            counterparts[n].let_go();
            let names = victims[n].names();
            black_box(side.db.table(names[0])?.get(&0_u64.to_be_bytes())?);
            measured(answer, look, (kind.text(), each), n, || {
                side.planted(&[Plant::Owned, Plant::Around]);
                statement(side, kind, &names)
            })?;
            measured(answer, look, (NEXT, [1.0; SIDES]), n, || {
                side.planted(&[Plant::Next]);
                statement(side, Kind::Drop, &next.names())
            })?;
            for victim in small {
                victim.remove(side, Some(kind))?;
            }
            side.settle()?;
        }
    }
    let last = kinds[kinds.len() - 1];
    for ((victim, counterpart), side) in victims.into_iter().zip(counterparts).zip(&*sides) {
        victim.remove(side, Some(last))?;
        counterpart.remove(side, None)?;
    }
    Ok(())
}

/// Notes how much of what is varied is there: the most where there is little alone, the least where there is much.
fn note_seen(answer: &mut Answer, n: usize, side: &Side) {
    let Some((what, amount)) = side.seen() else { return };
    let (_, [little, much]) = answer.seen.get_or_insert_with(|| (what.into(), [0, u64::MAX]));
    match n {
        0 => *little = amount.max(*little),
        _ => *much = amount.min(*much),
    }
}

/// Runs a statement of a side and looks at it.
fn measured(
    answer: &mut Answer,
    look: Look,
    (name, each): (&str, [f64; SIDES]),
    n: usize,
    statement: impl FnOnce() -> windfall::Result<DropReport>,
) -> Result<()> {
    let known = answer.timed.iter().position(|timed| timed.name == name);
    let number = known.unwrap_or_else(|| {
        answer.timed.push(Timed { name: name.into(), each, samples: Default::default() });
        answer.timed.len() - 1
    });
    match look {
        Look::Timed => answer.timed[number].samples[n].push(timed(statement)?),
        Look::Stepped => {
            answer.stepped.push((number, n));
            marked(Count::Instructions, statement)?;
        }
        Look::Traced => {
            answer.traced.push((number, n));
            marked(Count::SystemCalls, statement)?;
        }
    }
    Ok(())
}

fn timed(statement: impl FnOnce() -> windfall::Result<DropReport>) -> Result<Sample> {
    let (report, took, used) = Usage::while_running(statement);
    Ok(Sample {
        took_ns: took.as_nanos() as u64,
        thread_ns: used.time_ns,
        page_faults: used.page_faults,
        work: DropWork::of(report?.work),
    })
}

fn marked(count: Count, statement: impl FnOnce() -> windfall::Result<DropReport>) -> Result<()> {
    mark(count);
    let done = statement();
    mark(count);
    Ok(done.map(drop)?)
}
