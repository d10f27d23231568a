//! What the cost of a drop does not depend on, measured.
//!
//! **Purpose.** Everything that a table can own or have around it is varied, one thing at a time, and the statements
//! that drop are measured with little of it, with much of it beside their table, and with much of it in their table: by
//! `bench drop`, which compares with the bound, and by `lab`, whose report shows it.
//!
//! **Invariants.** A factor is measured by a process of its own, which has three databases that differ in nothing but
//! how much there is and in which table, and takes turns between them. That process is traced by this one, so one run
//! gives instructions, system calls, counted work and times. No result is compared with a bound here.
//!
//! **What is not measured.** A drop waits for transactions that have changed or locked the table and have not ended, so
//! there is none with such a transaction: those that touched it and have ended are measured, and prepared ones that
//! stand in another table. While a statement is stepped, purge would come to a table that it has still to do: there
//! instructions are not counted. The kernel's own instructions need counters of the processor that virtual machines
//! seldom have: the ways into the kernel are counted instead, which are system calls and page faults, and the thread's
//! processor time is measured, the kernel's part included.
//!
//! **May touch.** `engine`, `args`, `windfall-measure`, child processes.

mod beside;
mod ground;
mod owned;
mod turns;
mod victim;

use std::{
    env, fs,
    path::Path,
    process::{self, Command},
    thread,
};

use clap::ValueEnum;
use windfall_measure::{
    Scale,
    flat::{Cost, Factor, Figure, Statement},
    stepped::{self, Seen},
};

pub use owned::Owned;
use turns::{Answer, SIDES, Sample};

use crate::{
    args::Plant,
    failure::{Failure, Result},
    output,
};

/// How many factors of a quick run are measured at a time.
const AT_ONCE: usize = 6;
/// How the call of a child begins that measures a factor.
const CHILD: &str = "factor:";

/// Measures factors, each in a folder of its own below this one, and says what is being done.
pub fn measure(
    asked: &[Owned],
    folder: &Path,
    scale: Scale,
    seed: u64,
    plant: Option<Plant>,
    say: &dyn Fn(&str),
) -> Result<Vec<Factor>> {
    if scale != Scale::Quick {
        return asked.iter().map(|&owned| one(owned, folder, scale, seed, plant, say)).collect();
    }
    // It proves nothing: what is measured side by side is as good.
    let mut measured = Vec::new();
    for some in asked.chunks(AT_ONCE) {
        for owned in some {
            say(&in_words(*owned, scale));
        }
        measured.extend(thread::scope(|scope| {
            let measure = |&owned| scope.spawn(move || one(owned, folder, scale, seed, plant, &|_| ()));
            let all: Vec<_> = some.iter().map(measure).collect();
            let panicked = |_| Err(Failure::said("a thread that measures has panicked"));
            all.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect::<Vec<_>>()
        }));
    }
    measured.into_iter().collect()
}

/// What is varied, from where to where.
fn in_words(owned: Owned, scale: Scale) -> String {
    let [from, to] = owned.amounts(scale).map(|amount| owned.in_words(amount));
    format!("{}: {from} and {to}", owned.what())
}

fn one(
    owned: Owned,
    folder: &Path,
    scale: Scale,
    seed: u64,
    plant: Option<Plant>,
    say: &dyn Fn(&str),
) -> Result<Factor> {
    say(&in_words(owned, scale));
    let dir = folder.join(format!("factor-{}", owned.id()));
    let mut command = Command::new(env::current_exe()?);
    let part = format!("{CHILD}{}:{}", scale.text(), owned.id());
    command.args(["bench", "drop", "--child", &part, "--seed", &seed.to_string(), "--dir"]).arg(&dir);
    if let Some(name) = plant.as_ref().and_then(ValueEnum::to_possible_value) {
        command.args(["--plant-cost", name.get_name()]);
    }
    let failed = |e: &dyn std::fmt::Display| Failure::said(format!("factor {}: {e}", owned.id()));
    let seen = stepped::run(&mut command).map_err(|e| failed(&e))?;
    let answer: Answer = serde_json::from_str(&seen.answer).map_err(|e| failed(&e))?;
    fs::remove_dir_all(&dir)?;
    let statements = statements(&answer, &seen).ok_or_else(|| {
        Failure::said(format!("factor {}: not every statement was seen: {answer:?}, {seen:?}", owned.id()))
    })?;
    Ok(Factor {
        id: owned.id().into(),
        what: owned.what().into(),
        amounts: owned.amounts(scale).map(|amount| owned.in_words(amount)),
        per: owned.per().map(Into::into),
        is_around: owned.is_around(),
        grows: owned.grows().map(|(figures, why)| (figures.to_vec(), why.into())),
        seen: answer.seen,
        statements,
        others: answer.others,
    })
}

/// Whether this part of a benchmark is a factor's.
pub fn is_part(part: &str) -> bool {
    part.starts_with(CHILD)
}

/// What a child does: `factor:SCALE:ID`. It ends the process: what its databases keep in memory goes quicker with it.
pub fn child(part: &str, folder: &Path, seed: u64, plant: Option<Plant>) -> Result<()> {
    let named = part.strip_prefix(CHILD).and_then(|part| part.split_once(':'));
    let known = named.and_then(|(scale, id)| Some((Scale::named(scale)?, Owned::named(id)?)));
    let Some((scale, owned)) = known else { return Err(Failure::said(format!("there is no part {part}"))) };
    let answer = turns::run(owned, scale, folder, seed, plant)?;
    output::print(&(serde_json::to_string(&answer)? + "\n"))?;
    process::exit(0);
}

/// The figures of each statement; none if marks and answer do not fit each other.
fn statements(answer: &Answer, seen: &Seen) -> Option<Vec<Statement>> {
    let all_seen =
        seen.instructions.len() == answer.stepped.len() && seen.system_calls.len() == answer.traced.len();
    if !all_seen {
        return None;
    }
    // Whether a thread has to be woken depends on whether it sleeps. Wakes are counted work.
    let expected = |call: &stepped::Call| call.is_write_or_sync() || call.is_wake;
    let others = |calls: &stepped::SystemCalls| {
        calls.iter().filter(|(call, _)| !expected(call)).map(|(_, count)| *count).sum::<u64>()
    };
    let calls: Vec<u64> = seen.system_calls.iter().map(others).collect();
    let mut statements = Vec::new();
    for (n, timed) in answer.timed.iter().enumerate() {
        let of = |marks: &[(usize, usize)], counts: &[u64], side: usize| -> Vec<f64> {
            let pairs = marks.iter().zip(counts).filter(|(mark, _)| **mark == (n, side));
            pairs.map(|(_, count)| *count as f64).collect()
        };
        let sample = |get: fn(&Sample) -> u64, side: usize| -> Vec<f64> {
            timed.samples[side].iter().map(|sample| get(sample) as f64).collect()
        };
        let values = |figure, side| match figure {
            Figure::Instructions => of(&answer.stepped, &seen.instructions, side),
            Figure::SystemCalls => of(&answer.traced, &calls, side),
            Figure::Calls => sample(|s| s.work.calls_but_log(), side),
            Figure::Waits => sample(|s| s.work.waits, side),
            Figure::PageFaults => sample(|s| s.page_faults, side),
            Figure::Work => sample(|s| s.work.but_memory(), side),
            Figure::Allocations => sample(|s| s.work.allocations, side),
            Figure::Allocated => sample(|s| s.work.allocated_bytes, side),
            Figure::Frees => sample(|s| s.work.frees, side),
            Figure::Freed => sample(|s| s.work.freed_bytes, side),
            Figure::Time => sample(|s| s.took_ns, side),
            Figure::ThreadTime => sample(|s| s.thread_ns, side),
        };
        let stepped = of(&answer.stepped, &seen.instructions, 0).len() as u32;
        let there = |kind: &Figure| stepped > 0 || *kind != Figure::Instructions;
        let cost = |kind: Figure| {
            let each = if kind.is_divided() { timed.each } else { [1.0; SIDES] };
            let [alone, small, large] =
                core::array::from_fn::<f64, SIDES, _>(|n| kind.of_all(&values(kind, n)) / each[n]);
            Cost { figure: kind, alone, small, large }
        };
        statements.push(Statement {
            name: timed.name.clone(),
            timed: timed.samples[0].len() as u32,
            stepped,
            costs: Figure::ALL.into_iter().filter(there).map(cost).collect(),
            times: [1, 2].map(|side| {
                let times = values(Figure::Time, side);
                times.into_iter().map(|time| time / timed.each[side]).collect()
            }),
        });
    }
    Some(statements)
}
