//! Measurement of the factors that the cost of a drop does not depend on.
//!
//! **Purpose.** Everything that a table can own or have around it is varied, one factor at a time. The statements that
//! drop are measured with little of it, with much of it in another table, and with much of it in their table.
//! `bench drop` compares the results with bounds, and `lab` shows them in its report.
//!
//! **Method.** A factor is measured by its own process, which has three databases that differ only in the amount of the
//! factor and the table that has it, and alternates between them. That process is traced by this one, so one run gives
//! instructions, system calls, counted work and times. No result is compared with a bound here.
//!
//! **What is not measured.** A drop waits for active transactions that have changed or locked the table, so there are
//! none: finished transactions that touched it are measured, and prepared ones in another table. While a statement is
//! single-stepped, purge would reach a table that it must still process: there instructions are not counted. Counting
//! the kernel's own instructions needs processor counters that virtual machines seldom have. Instead the entries into
//! the kernel are counted, which are system calls and page faults, and the thread's processor time is measured,
//! including the kernel's part.

mod concurrent;
mod database;
mod factor;
mod rounds;
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
    median,
    stepped::{self, Seen},
};

pub(crate) use factor::FactorKind;
use rounds::{Answer, SIDES, Sample};

use crate::{
    args::Plant,
    failure::{Failure, Result},
    output,
};

/// Number of factors that a quick run measures concurrently.
const AT_ONCE: usize = 6;
/// The prefix of the part name of a child that measures a factor.
const CHILD: &str = "factor:";

/// Measures factors, each in its own folder below this one, and reports the progress.
pub(crate) fn measure(
    asked: &[FactorKind],
    folder: &Path,
    scale: Scale,
    seed: u64,
    plant: Option<Plant>,
    say: &dyn Fn(&str),
) -> Result<Vec<Factor>> {
    if scale != Scale::Quick {
        return asked.iter().map(|&factor| one(factor, folder, scale, seed, plant, say)).collect();
    }
    // A quick run proves nothing, so concurrent measurements are good enough.
    let mut measured = Vec::new();
    for some in asked.chunks(AT_ONCE) {
        for factor in some {
            say(&in_words(*factor, scale));
        }
        measured.extend(thread::scope(|scope| {
            let measure = |&factor| scope.spawn(move || one(factor, folder, scale, seed, plant, &|_| ()));
            let all: Vec<_> = some.iter().map(measure).collect();
            let panicked = |_| Err(Failure::message("a thread that measures has panicked"));
            all.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect::<Vec<_>>()
        }));
    }
    measured.into_iter().collect()
}

/// Describes the factor and its two amounts.
fn in_words(factor: FactorKind, scale: Scale) -> String {
    let [from, to] = factor.amounts(scale).map(|amount| factor.in_words(amount));
    format!("{}: {from} and {to}", factor.what())
}

fn one(
    factor: FactorKind,
    folder: &Path,
    scale: Scale,
    seed: u64,
    plant: Option<Plant>,
    say: &dyn Fn(&str),
) -> Result<Factor> {
    say(&in_words(factor, scale));
    let dir = folder.join(format!("factor-{}", factor.id()));
    let mut command = Command::new(env::current_exe()?);
    let part = format!("{CHILD}{}:{}", scale.text(), factor.id());
    command.args(["bench", "drop", "--child", &part, "--seed", &seed.to_string(), "--dir"]).arg(&dir);
    if let Some(name) = plant.as_ref().and_then(ValueEnum::to_possible_value) {
        command.args(["--plant-cost", name.get_name()]);
    }
    let failed = |e: &dyn std::fmt::Display| Failure::message(format!("factor {}: {e}", factor.id()));
    let seen = stepped::run(&mut command).map_err(|e| failed(&e))?;
    let answer: Answer = serde_json::from_str(&seen.answer).map_err(|e| failed(&e))?;
    fs::remove_dir_all(&dir)?;
    // The surroundings of a table are in both databases with much: only the first has little.
    let compared = if factor.is_around() { [0, 1] } else { [1, 2] };
    let statements = statements(&answer, &seen, compared).ok_or_else(|| {
        Failure::message(format!(
            "factor {}: not every statement was seen: {answer:?}, {seen:?}",
            factor.id()
        ))
    })?;
    Ok(Factor {
        id: factor.id().into(),
        what: factor.what().into(),
        amounts: factor.amounts(scale).map(|amount| factor.in_words(amount)),
        per: factor.per().map(Into::into),
        is_around: factor.is_around(),
        grows: factor.grows().map(|(figures, why)| (figures.to_vec(), why.into())),
        seen: answer.seen,
        statements,
        others: answer.others,
    })
}

/// Returns whether this part of a benchmark is a factor's.
pub(crate) fn is_part(part: &str) -> bool {
    part.starts_with(CHILD)
}

/// Runs a child: `factor:SCALE:ID`. It exits the process, because that frees the memory of its databases faster.
pub(crate) fn child(part: &str, folder: &Path, seed: u64, plant: Option<Plant>) -> Result<()> {
    let named = part.strip_prefix(CHILD).and_then(|part| part.split_once(':'));
    let known = named.and_then(|(scale, id)| Some((Scale::named(scale)?, FactorKind::named(id)?)));
    let Some((scale, factor)) = known else {
        return Err(Failure::message(format!("there is no part {part}")));
    };
    let answer = rounds::run(factor, scale, folder, seed, plant)?;
    output::print(&(serde_json::to_string(&answer)? + "\n"))?;
    process::exit(0);
}

/// Returns the figures of each statement, and its times on the two sides that are `compared`; none if marks and answer
/// do not match.
fn statements(answer: &Answer, seen: &Seen, compared: [usize; 2]) -> Option<Vec<Statement>> {
    let all_seen =
        seen.instructions.len() == answer.stepped.len() && seen.system_calls.len() == answer.traced.len();
    if !all_seen {
        return None;
    }
    // Whether a thread must be woken depends on whether it sleeps. Wakes are counted as work.
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
            Figure::Calls => sample(|s| s.work.calls_except_log(), side),
            Figure::Waits => sample(|s| s.work.waits, side),
            Figure::PageFaults => sample(|s| s.page_faults, side),
            Figure::Work => sample(|s| s.work.all_except_memory(), side),
            Figure::Allocations => sample(|s| s.work.allocations, side),
            Figure::Allocated => sample(|s| s.work.allocated_bytes, side),
            Figure::Frees => sample(|s| s.work.frees, side),
            Figure::Freed => sample(|s| s.work.freed_bytes, side),
            Figure::Time => sample(|s| s.took_ns, side),
            Figure::ThreadTime => sample(|s| s.thread_ns, side),
        };
        let stepped = of(&answer.stepped, &seen.instructions, 0).len() as u32;
        let there = |kind: &Figure| stepped > 0 || *kind != Figure::Instructions;
        let requests_memory = (0..SIDES).any(|side| median(&values(Figure::Allocations, side)) > 0.0);
        let cost = |kind: Figure| {
            let each = if kind.is_divided() { timed.each } else { [1.0; SIDES] };
            let [alone, small, large] = core::array::from_fn::<f64, SIDES, _>(|n| {
                kind.of_all(&values(kind, n), requests_memory) / each[n]
            });
            Cost { figure: kind, alone, small, large }
        };
        statements.push(Statement {
            name: timed.name.clone(),
            timed: timed.samples[0].len() as u32,
            stepped,
            costs: Figure::ALL.into_iter().filter(there).map(cost).collect(),
            times: compared.map(|side| {
                let times = values(Figure::Time, side);
                times.into_iter().map(|time| time / timed.each[side]).collect()
            }),
        });
    }
    Some(statements)
}
