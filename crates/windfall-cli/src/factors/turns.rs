//! A factor, measured by the process that is traced for it.
//!
//! **Purpose.** Statements in turns with little and with much, each timed and counted, or stepped, or traced; then
//! those with much beside others.
//!
//! **Invariants.** Both sides do the same work: each makes a table with little and one with much, first the one that
//! goes, which so is as old on either side; and what precedes each statement is the same, the last of it a read of its
//! table. So what the making of much leaves in the processor's caches, in the log and in the pool, it leaves on both
//! sides, and nothing differs but which of the two tables goes. Which side comes first changes from round to round. The
//! statements are this thread's, the main one: only that is traced.
//!
//! **May touch.** `ground`, `victim`, `beside`, `engine`, `windfall-measure`.

use std::{hint::black_box, path::Path, time::Instant};

use serde::{Deserialize, Serialize};
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
use crate::{engine::DropWork, failure::Result};

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
    pub each: [f64; 2],
    /// With little, and with much.
    pub samples: [Vec<Sample>; 2],
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
pub fn run(owned: Owned, scale: Scale, folder: &Path, seed: u64) -> Result<Answer> {
    let amounts = owned.amounts(scale);
    let [small, large] = amounts;
    let mut sides = [
        Side::open(owned, [small, large], scale, &folder.join("little"))?,
        Side::open(owned, [large, small], scale, &folder.join("much"))?,
    ];
    let mut answer = Answer::default();
    // What the marks themselves take.
    for count in [Count::Instructions, Count::SystemCalls] {
        mark(count);
        mark(count);
    }
    let rounds = owned.rounds(scale);
    let looks = [(Look::Timed, rounds.timed), (Look::Stepped, rounds.stepped), (Look::Traced, rounds.traced)];
    // With the one that is measured no multiple of 31: that many entries has a block of the engine's queues.
    let before = scale.pick(1, 20, 32);
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
    answer.others = beside::run(&mut sides[1], scale, seed)?;
    Ok(answer)
}

/// Makes the tables of each side, and runs the statements on both.
fn round(
    answer: &mut Answer,
    sides: &mut [Side; 2],
    kinds: &[Kind],
    look: Look,
    before: u32,
    turn: usize,
) -> Result<()> {
    let mut victims = Vec::new();
    for side in &mut *sides {
        victims.push(Victim::make(side, kinds[0])?);
    }
    if answer.seen.is_none()
        && let [Some((what, little)), Some((_, much))] = [sides[0].seen(), sides[1].seen()]
    {
        answer.seen = Some((what.into(), [little, much]));
    }
    let mut counterparts = Vec::new();
    for side in &mut *sides {
        counterparts.push(Victim::counterpart(side, kinds[0])?);
    }
    for &kind in kinds {
        let number = number_of(answer, sides, kind);
        for n in [turn % 2, 1 - turn % 2] {
            let side = &mut sides[n];
            let mut small = Vec::new();
            for _ in 0..before {
                small.push(Victim::before(side)?);
            }
            victims[n].let_go();
            counterparts[n].let_go();
            for victim in &small {
                statement(side, kind, &victim.names())?;
            }
            let names = victims[n].names();
            black_box(side.db.table(names[0])?.get(&0_u64.to_be_bytes())?);
            match look {
                Look::Timed => answer.timed[number].samples[n].push(timed(side, kind, &names)?),
                Look::Stepped => {
                    answer.stepped.push((number, n));
                    marked(Count::Instructions, side, kind, &names)?;
                }
                Look::Traced => {
                    answer.traced.push((number, n));
                    marked(Count::SystemCalls, side, kind, &names)?;
                }
            }
            for victim in small {
                victim.remove(side, kind)?;
            }
        }
    }
    let last = kinds[kinds.len() - 1];
    for (victim, side) in victims.into_iter().zip(&*sides) {
        victim.remove(side, last)?;
    }
    for (counterpart, side) in counterparts.into_iter().zip(&*sides) {
        counterpart.remove_whole(side)?;
    }
    Ok(())
}

/// The number of a statement among those of the answer.
fn number_of(answer: &mut Answer, sides: &[Side; 2], kind: Kind) -> usize {
    let name = kind.text();
    if let Some(number) = answer.timed.iter().position(|timed| timed.name == name) {
        return number;
    }
    let each = [0, 1].map(|n| sides[n].owned.each(kind, sides[n].amount));
    answer.timed.push(Timed { name: name.into(), each, samples: [Vec::new(), Vec::new()] });
    answer.timed.len() - 1
}

fn timed(side: &Side, kind: Kind, names: &[&str]) -> Result<Sample> {
    let before = Usage::of_this_thread();
    let start = Instant::now();
    let report = statement(side, kind, names);
    let took = start.elapsed();
    let used = Usage::of_this_thread().since(before);
    Ok(Sample {
        took_ns: took.as_nanos() as u64,
        thread_ns: used.time_ns,
        page_faults: used.page_faults,
        work: DropWork::of(report?.work),
    })
}

fn marked(count: Count, side: &Side, kind: Kind, names: &[&str]) -> Result<()> {
    mark(count);
    let done = statement(side, kind, names);
    mark(count);
    Ok(done.map(drop)?)
}
