//! `bench calls`: the cost of single calls.
//!
//! **Purpose.** The processor time and the instructions of a call of each kind: reads by key, scans, cursors, indexes,
//! locking reads, changes, the begin and end of a transaction, and a pair of DDL statements; some of them also as the
//! handler of a SQL server makes them (`handler`). One thread makes the calls, all pages are in the pool, and no commit
//! waits for the log. The budgets are those of a storage engine of a server, and leave room for its adapter.
//!
//! **Method.** Each kind is measured in processes of its own: by a program that is built as one that uses the library
//! usually is, without link-time optimisation (`examples/calls.rs`), and once more with the same code in a shared
//! object that the program loads, as a server loads an engine (`examples/calls_library.rs`). Neither has the allocator
//! that counts. A quick run measures its own program instead, and no shared object.
//!
//! A time of a call is the processor time of the calling thread, the median of rounds, so waits do not count, and
//! neither does the work of background threads: writing the log, the cleaner, purge. The processor time of the whole
//! process for each call, until purge has caught up, is given next to it. Nanoseconds depend on the machine and on its
//! other load. Instructions do not: they are counted by single steps of the calling thread in user space
//! (`windfall_measure::stepped`), between marks, so that preparations do not count. They are the mean of some calls,
//! with their share of rare work. While it is stepped, the calling thread is far slower than the threads in the
//! background, so it finds their work done.
//!
//! Creating and dropping a table is compared with the bare writes of its log, as in `bench create-drop`, with the log
//! written by each statement.

mod cases;
mod handler;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, exit},
};

use serde::{Deserialize, Serialize};
use windfall_measure::{
    Usage, library, median,
    stepped::{self, Count},
    units,
};

use self::cases::{CASES, CREATE_DROP, Caller, Case};
use super::{
    create_drop,
    fixture::{self, MB},
    harness::{Bench, Bound},
};
use crate::{
    args::{BenchArgs, Commit},
    engine::Setup,
    failure::{Failure, Result},
    output::{self, Grid},
};

/// The command that builds the programs that are measured.
const BUILD: &str = "cargo build --profile no-lto -p windfall-cli --no-default-features --example calls --example calls_library";
/// The most nanoseconds that each index may add to an insert.
const EACH_INDEX_NS: f64 = 1_300.0;
/// The most instructions of a point read in a shared object, relative to those in the program: thread-locals are calls
/// there.
const SHARED_OBJECT_OVER_PROGRAM: f64 = 1.1;
/// The least rate of creating and dropping a table, relative to that of the bare writes of the log.
const CREATE_DROP_RATE: f64 = 0.6;

/// The answer of a process that measures a case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Answer {
    /// Nanoseconds of processor time of the calling thread for each call, by round.
    ns: Vec<f64>,
    /// Nanoseconds of processor time of the process for each call, over all rounds, with the work that they have left.
    process_ns: f64,
    /// The calls whose instructions were counted.
    counted: u64,
    /// The rates of creating and dropping a table relative to the bare writes, by round.
    over_bare: Vec<f64>,
}

/// The figures of a case in a program, or in a shared object.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    ns: f64,
    process_ns: f64,
    instructions: f64,
}

/// What was measured of a case.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    id: &'static str,
    what: &'static str,
    budget_ns: Option<f64>,
    program: Figures,
    shared_object: Option<Figures>,
}

/// The programs that are measured.
#[derive(Clone, Debug)]
struct Programs {
    program: PathBuf,
    library: Option<PathBuf>,
}

impl Programs {
    /// Finds the programs; none if they have not been built. A quick run measures this program.
    fn find(options: &BenchArgs) -> Result<Option<Self>> {
        let this = env::current_exe()?;
        if options.quick {
            return Ok(Some(Self { program: this, library: None }));
        }
        let folder = options.programs.clone().or_else(|| Some(this.parent()?.join("../no-lto/examples")));
        let Some(folder) = folder else { return Ok(None) };
        let there = |name: &str| Some(folder.join(name)).filter(|path| path.exists());
        Ok(there("calls").map(|program| Self { program, library: there("libcalls_library.so") }))
    }
}

/// Runs the benchmark.
pub(super) fn run(bench: &mut Bench) {
    let mut measured = Vec::new();
    for case in &CASES {
        bench.part(case.id, |bench| {
            measured.extend(measure(bench, case)?);
            Ok(())
        });
    }
    report(bench, &measured);
}

/// Measures a case; none if the programs have not been built.
fn measure(bench: &mut Bench, case: &'static Case) -> Result<Option<Measured>> {
    let Some(programs) = Programs::find(&bench.options)? else {
        bench.missing(case.id, &format!("the programs have not been built: {BUILD}"));
        return Ok(None);
    };
    bench.say(case.what);
    let (program, over_bare) = figures(bench, case, &programs.program, None)?;
    let shared_object = match &programs.library {
        Some(library) => Some(figures(bench, case, &programs.program, Some(library))?.0),
        None => None,
    };
    if let Some(budget) = case.budget_ns {
        bench.claim(format!("{}-ns", case.id), program.ns, Bound::AtMost(budget));
    }
    if let Some(over_bare) = over_bare {
        bench.claim(format!("{CREATE_DROP}-over-bare-loop"), over_bare, Bound::AtLeast(CREATE_DROP_RATE));
    }
    let Case { id, what, budget_ns, .. } = *case;
    Ok(Some(Measured { id, what, budget_ns, program, shared_object }))
}

/// Runs a process that measures a case; returns its figures, and the rate of creating and dropping relative to the
/// bare writes of the log, if it was measured.
fn figures(
    bench: &Bench,
    case: &Case,
    program: &Path,
    library: Option<&Path>,
) -> Result<(Figures, Option<f64>)> {
    let dir = bench.database(case.id);
    let mut command = Command::new(program);
    command.args(["bench", "calls", "--child", case.id, "--seed", &bench.options.seed.to_string()]);
    command.arg("--dir").arg(&dir);
    if let Some(library) = library {
        command.arg("--library").arg(library);
    }
    if bench.options.quick {
        command.arg("--quick");
    }
    let seen = stepped::run(&mut command)?;
    std::fs::remove_dir_all(&dir)?;
    let answer: Answer = serde_json::from_str(&seen.answer)?;
    let ([instructions], false) = (&seen.instructions[..], answer.ns.is_empty()) else {
        return Err(Failure::message(format!("the calls were not seen: {answer:?}")));
    };
    let figures = Figures {
        ns: median(&answer.ns),
        process_ns: answer.process_ns,
        instructions: *instructions as f64 / answer.counted as f64,
    };
    Ok((figures, Some(median(&answer.over_bare)).filter(|_| !answer.over_bare.is_empty())))
}

/// Claims what follows from several cases, and makes the table of all that were measured.
fn report(bench: &mut Bench, measured: &[Measured]) {
    let Some(first) = measured.first() else { return };
    if first.shared_object.is_none() {
        bench.fact("shared object", format!("not measured; a full run needs it: {BUILD}"));
    }
    let of = |id: &str| measured.iter().find(|case| case.id == id);
    if let (Some(none), Some(two)) = (of("insert"), of("insert-2-indexes")) {
        let each = (two.program.ns - none.program.ns) / 2.0;
        bench.claim("insert-each-index-ns", each, Bound::AtMost(EACH_INDEX_NS));
    }
    for id in ["point-read-ascending", "point-read-random"] {
        if let Some(Measured { program, shared_object: Some(shared_object), .. }) = of(id) {
            let over_program = shared_object.instructions / program.instructions;
            let claim = format!("{id}-shared-object-over-program");
            bench.claim(claim, over_program, Bound::AtMost(SHARED_OBJECT_OVER_PROGRAM));
        }
    }
    let mut grid = Grid::new([
        "call",
        ">budget ns",
        ">ns",
        ">process ns",
        ">instructions",
        ">shared object ns",
        ">instructions",
    ]);
    let figure = |x: f64| units::count(x.round() as u64);
    let optional = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), figure);
    for Measured { what, budget_ns, program, shared_object, .. } in measured {
        grid.line([
            (*what).to_owned(),
            optional(*budget_ns),
            figure(program.ns),
            figure(program.process_ns),
            figure(program.instructions),
            optional(shared_object.map(|figures| figures.ns)),
            optional(shared_object.map(|figures| figures.instructions)),
        ]);
    }
    bench.table(
        "processor time of the calling thread, that of the whole process, and instructions, for each call",
        grid,
    );
    for case in measured {
        bench.fact(format!("{}: instructions", case.id), case.program.instructions);
    }
    bench.fact("calls", serde_json::json!(measured));
}

/// Runs a child process: the case of this name, in this program or in the shared object that is named.
pub(super) fn child(part: &str, options: &BenchArgs) -> Result<()> {
    let Some(path) = &options.library else { return child_here(part, options) };
    // SAFETY: the parent names `examples/calls_library.rs`, whose function has this type, and whose initialisers are
    // those of the standard library.
    let ended = unsafe { library::call(path, c"windfall_measure_calls") }?;
    if ended == 0 { Ok(()) } else { Err(Failure::message(format!("{} has failed", path.display()))) }
}

/// Measures a case in this process, prints the answer and exits, because that frees the memory of the database faster.
pub(crate) fn child_here(part: &str, options: &BenchArgs) -> Result<()> {
    let dir = options.dir.as_deref().ok_or_else(|| Failure::message("a child needs --dir"))?;
    let case = CASES.iter().find(|case| case.id == part);
    let case = case.ok_or_else(|| Failure::message(format!("there is no part {part}")))?;
    let answer = measured_here(case, dir, options)?;
    output::print(&(serde_json::to_string(&answer)? + "\n"))?;
    exit(0);
}

fn measured_here(case: &Case, dir: &Path, options: &BenchArgs) -> Result<Answer> {
    let (rows, rounds, shorter) = if options.quick { (5_000, 3, 20) } else { (500_000, 9, 1) };
    let commit = if case.id == CREATE_DROP { Commit::Write } else { Commit::Lazy };
    let db = Setup::with_pool(1024 * MB).commit(commit).log(1024 * MB).open(dir)?;
    let caller = Caller::load(db, rows, case.indexes, options.seed)?;
    caller.db.checkpoint()?;
    fixture::await_purge(&caller.db)?;
    let mut calls = (case.prepare)(&caller)?;
    let [timed, counted] = case.calls.map(|calls| calls / shorter);
    // The first round is not counted: it brings code and pages into the caches.
    calls(timed)?;
    fixture::await_purge(&caller.db)?;
    let mut answer = Answer { counted, ..Answer::default() };
    let before = Usage::of_this_process();
    for _ in 0..rounds {
        let before = Usage::of_this_thread();
        calls(timed)?;
        let used = Usage::of_this_thread().since(before);
        answer.ns.push(used.time_ns as f64 / timed as f64);
    }
    fixture::await_purge(&caller.db)?;
    let used = Usage::of_this_process().since(before);
    answer.process_ns = used.time_ns as f64 / (timed * rounds) as f64;
    // An empty pair of marks measures the cost of the marks themselves.
    stepped::mark(Count::Instructions);
    stepped::mark(Count::Instructions);
    stepped::mark(Count::Instructions);
    let done = calls(counted);
    stepped::mark(Count::Instructions);
    done?;
    if case.id == CREATE_DROP {
        for _ in 0..rounds {
            let pairs = create_drop::pairs(&caller.db, timed as u32, &dir.join("bare.log"))?;
            answer.over_bare.push(pairs.engine_rate / pairs.bare_rate);
        }
    }
    Ok(answer)
}
