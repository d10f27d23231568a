//! The process that measures a factor, and is traced meanwhile.
//!
//! **Purpose.** Executes statements alternately on three sides, which are databases with different amounts of the
//! factor. Each statement is timed and counted, or single-stepped, or traced. At the end, tables with much of the
//! factor are dropped under a load of other clients.
//!
//! **Method.** The first side has little of the factor; the others also have much of it, one in a table other than the
//! dropped one, the other in the dropped table. Those two do the same work. Each creates a table with little and one
//! with much, first the one to be dropped, so that it has the same age on either side. The same work precedes each
//! statement, the last of it a read of its table. So the creation of the large amount leaves the same traces in the
//! processor's caches, in the log and in the pool of both, and the only difference is which of the two tables is
//! dropped. The order of the sides changes from round to round, and none begins before the background work of the
//! previous drops is done. After each statement a small table is dropped, which must cost the same whatever was dropped
//! before it. The drop of a group leaves nothing else in the processor's caches: the sides on which one table was
//! dropped read as much memory before the next drop, which on the side with the group follows at once. The statements
//! run on the main thread, because only that is traced.

use std::{hint::black_box, path::Path};

use serde::{Deserialize, Serialize};
use windfall::DropReport;
use windfall_measure::{
    Scale, Usage,
    flat::Others,
    stepped::{Count, mark},
};

use super::{
    concurrent,
    database::Side,
    factor::{FactorKind, Kind},
    victim::{Victim, run as statement},
};
use crate::{args::Plant, engine::DropWork, failure::Result};

/// Number of sides: little alone, little with much in another table, and much with little in another table.
pub(super) const SIDES: usize = 3;
/// The orders of the sides.
const ORDERS: [[usize; SIDES]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];
/// The size of a request at which glibc consolidates and sorts its free lists, in bytes.
const SORTED_BY: usize = 4096;
/// The bytes of a line of the processor's caches.
const CACHE_LINE: usize = 64;
/// The bytes, estimated from times, that the drop of each table of a group brings into the processor's caches.
const READ_A_TABLE: usize = 4 << 10;
/// The statement after each measured one.
const NEXT: &str = "next drop";

/// The cost of one statement.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    pub took_ns: u64,
    pub thread_ns: u64,
    pub page_faults: u64,
    pub work: DropWork,
}

/// The measurements of a statement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Timed {
    pub name: String,
    /// The number of trees or tables that its cost is divided by.
    pub each: [f64; SIDES],
    /// The samples of each side.
    pub samples: [Vec<Sample>; SIDES],
}

/// The result of the process: its own measurements, and the order of its marks, so that the tracing process can assign
/// them. A mark belongs to a statement and a side, by their numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Answer {
    pub timed: Vec<Timed>,
    pub stepped: Vec<(usize, usize)>,
    pub traced: Vec<(usize, usize)>,
    pub seen: Option<(String, [u64; 2])>,
    pub others: Others,
}

/// The kind of a measurement.
#[derive(Clone, Copy)]
enum Method {
    Timed,
    Stepped,
    Traced,
}

/// Measures a factor.
pub(super) fn run(
    factor: FactorKind,
    scale: Scale,
    folder: &Path,
    seed: u64,
    plant: Option<Plant>,
) -> Result<Answer> {
    let [small, large] = factor.amounts(scale);
    let open = |amounts, name| Side::open(factor, amounts, scale, plant, &folder.join(name));
    let mut sides =
        [open([small, small], "alone")?, open([small, large], "beside")?, open([large, small], "much")?];
    let mut answer = Answer::default();
    // An empty pair of marks measures the cost of the marks themselves.
    for count in [Count::Instructions, Count::SystemCalls] {
        mark(count);
        mark(count);
    }
    let rounds = factor.rounds(scale);
    let methods =
        [(Method::Timed, rounds.timed), (Method::Stepped, rounds.stepped), (Method::Traced, rounds.traced)];
    let before = scale.pick(1, 20, 30);
    let tables = if factor.is_group() { large } else { 0 };
    let memory = vec![1; tables as usize * READ_A_TABLE];
    let mut turn = 0;
    for (n, kinds) in factor.statements().iter().enumerate() {
        for (method, times) in methods {
            // In a quick run single-stepping the first list is enough.
            let skipped = matches!(method, Method::Stepped) && scale == Scale::Quick && n > 0;
            for _ in 0..if skipped { 0 } else { times } {
                round(&mut answer, &mut sides, kinds, method, (before, turn), &memory)?;
                turn += 1;
            }
        }
    }
    answer.others = concurrent::run(&mut sides[SIDES - 1], scale, seed)?;
    Ok(answer)
}

/// Creates the tables of each side, and runs the statements on all.
fn round(
    answer: &mut Answer,
    sides: &mut [Side; SIDES],
    kinds: &[Kind],
    method: Method,
    (before, turn): (u32, usize),
    memory: &[u8],
) -> Result<()> {
    let (mut victims, mut counterparts) = (Vec::new(), Vec::new());
    for side in &mut *sides {
        victims.push(Victim::make(side, kinds[0])?);
    }
    for side in &mut *sides {
        counterparts.push(Victim::counterpart(side, kinds[0])?);
    }
    for &kind in kinds {
        let each = sides.each_ref().map(|side| side.factor.each(kind, side.amount));
        for n in ORDERS[turn % ORDERS.len()] {
            let side = &mut sides[n];
            let next = Victim::small(side)?;
            let owners = [&victims[n], &counterparts[n]];
            make_dirty_again(side, owners)?;
            // Long before the timed statement, because reading a large amount fills the processor's caches.
            note_seen(answer, n, side);
            let mut small = Vec::new();
            // Their number varies, because the engine's queues allocate blocks of 31 entries: otherwise the same
            // statement of each round would allocate one.
            for _ in 0..before + (turn % 31) as u32 {
                small.push(Victim::small(side)?);
            }
            for victim in &small {
                statement(side, kind, &victim.names())?;
            }
            if !matches!(method, Method::Timed) {
                // A commit writes pending log records of the background, and the background worker excludes other
                // threads.
                side.wait_until_idle()?;
                while make_dirty_again(side, owners)? {
                    side.wait_until_idle()?;
                }
                side.db.flush_log()?;
                note_seen(answer, n, side);
                // glibc sorts the freed memory at a request that finds no fitting piece, 60 instructions per piece.
                // This request triggers the sort outside the counted statements; with timed ones it remains a matter of
                // chance which statement has it.
                black_box(Vec::<u8>::with_capacity(SORTED_BY));
            }
            victims[n].release();
            counterparts[n].release();
            let names = victims[n].names();
            black_box(side.db.table(names[0])?.get(&0_u64.to_be_bytes())?);
            measured(answer, method, (kind.text(), each), n, || {
                side.planted(&[Plant::Owned, Plant::Around]);
                statement(side, kind, &names)
            })?;
            if n < SIDES - 1 {
                memory.iter().step_by(CACHE_LINE).for_each(|byte| _ = black_box(*byte));
            }
            measured(answer, method, (NEXT, [1.0; SIDES]), n, || {
                side.planted(&[Plant::Next]);
                statement(side, Kind::Drop, &next.names())
            })?;
            for victim in small {
                victim.remove(side, Some(kind))?;
            }
            side.wait_until_idle()?;
        }
    }
    let last = kinds[kinds.len() - 1];
    for ((victim, counterpart), side) in victims.into_iter().zip(counterparts).zip(&*sides) {
        victim.remove(side, Some(last))?;
        counterpart.remove(side, None)?;
    }
    Ok(())
}

/// Makes pages of the victim and its counterpart dirty again, if these are the factor and have been written. Returns
/// whether they had been.
fn make_dirty_again(side: &Side, owners: [&Victim; 2]) -> Result<bool> {
    let is_written = Victim::is_written(side);
    if is_written {
        owners.iter().try_for_each(|owner| owner.dirty_again(side))?;
    }
    Ok(is_written)
}

/// Records the present amount of the factor: the maximum on the side with little, the minimum on those with much.
fn note_seen(answer: &mut Answer, n: usize, side: &Side) {
    let Some((what, amount)) = side.seen() else { return };
    let (_, [little, much]) = answer.seen.get_or_insert_with(|| (what.into(), [0, u64::MAX]));
    match n {
        0 => *little = amount.max(*little),
        _ => *much = amount.min(*much),
    }
}

/// Runs a statement of a side and measures it.
fn measured(
    answer: &mut Answer,
    method: Method,
    (name, each): (&str, [f64; SIDES]),
    n: usize,
    statement: impl FnOnce() -> windfall::Result<DropReport>,
) -> Result<()> {
    let known = answer.timed.iter().position(|timed| timed.name == name);
    let number = known.unwrap_or_else(|| {
        answer.timed.push(Timed { name: name.into(), each, samples: Default::default() });
        answer.timed.len() - 1
    });
    match method {
        Method::Timed => answer.timed[number].samples[n].push(timed(statement)?),
        Method::Stepped => {
            answer.stepped.push((number, n));
            marked(Count::Instructions, statement)?;
        }
        Method::Traced => {
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
