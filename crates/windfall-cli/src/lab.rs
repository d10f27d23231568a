//! The lab: the experiments of history on this machine.
//!
//! **Purpose.** Runs the jobs of the asked experiments, each in a process of its own, and tells what they have shown: a
//! table in the terminal, `lab.html` and `lab.json`. What the experiments are is in the crate `windfall-lab`.
//!
//! **Invariants.** One job at a time has the machine. Nothing is left of the servers' files, whatever ends the run. A
//! job that fails ends it: half an experiment compares nothing.
//!
//! **May touch.** `windfall-lab`, `output`, `sweep`, `child`, the file system.

use std::{
    env, fs,
    io::{self, IsTerminal as _, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{self, Command, ExitCode, Stdio},
    time::{Duration, Instant, SystemTime},
};

use indicatif::{ProgressBar, ProgressStyle};
use windfall_lab::{
    experiment::{self, Experiment, Job, Outcome, Scale, Setting},
    report,
    results::Results,
};
use windfall_measure::Machine;

use crate::{
    args::{LabArgs, LabName, LabScale},
    child::Killed,
    failure::{Failure, Result},
    output,
    sweep::Sweeper,
};

/// Runs what is asked for.
pub fn run(options: &LabArgs, json: bool) -> Result<ExitCode> {
    if let Some(folder) = &options.child {
        return play(folder);
    }
    if options.what == LabName::Compare {
        return compare(options, json);
    }
    if let Some(path) = options.results.first() {
        return Err(Failure::said(format!("{}: only `windfall lab compare` takes results", path.display())));
    }
    let results = measure(options)?;
    let written = |name: &str, text: String| {
        let path = options.out.join(name);
        fs::write(&path, text)
            .map_err(|e| {
                Failure::said(format!("{} cannot be written: {e}; give another --out", path.display()))
            })
            .map(|()| path)
    };
    let page = written("lab.html", report::page(&results))?;
    let data = written("lab.json", serde_json::to_string_pretty(&results)? + "\n")?;
    if json {
        output::print_json(&serde_json::to_value(&results)?)?;
    } else {
        output::print(&format!(
            "{}\nThe graphs are in {}, the figures in {}\n",
            report::text(&results),
            page.display(),
            data.display()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A part that a process of its own plays: the job comes on standard input, the outcome goes to standard output.
fn play(folder: &Path) -> Result<ExitCode> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let job: Job = serde_json::from_str(&text)?;
    let outcome = job.play(folder).map_err(Failure::Engine)?;
    output::print(&(serde_json::to_string(&outcome)? + "\n"))?;
    // What the server keeps in memory goes quicker with the process.
    process::exit(0);
}

fn compare(options: &LabArgs, json: bool) -> Result<ExitCode> {
    let [one, two] = &options.results[..] else {
        return Err(Failure::said(
            "compare takes two results: windfall lab compare before/lab.json after/lab.json",
        ));
    };
    if json {
        return Err(Failure::said("compare is for people: the two files are the JSON"));
    }
    let read = |path: &PathBuf| -> Result<Results> {
        let text = fs::read_to_string(path)
            .map_err(|e| Failure::said(format!("{} cannot be read: {e}", path.display())))?;
        serde_json::from_str(&text)
            .map_err(|e| Failure::said(format!("{} is no result of `windfall lab`: {e}", path.display())))
    };
    let names = [one, two].map(|path| path.display().to_string());
    output::print(&report::compare(&read(one)?, &read(two)?, [&names[0], &names[1]]))?;
    Ok(ExitCode::SUCCESS)
}

/// The experiments that were asked for.
fn experiments(what: LabName) -> Vec<Experiment> {
    match what {
        LabName::All => Experiment::ALL.into(),
        LabName::X1 => vec![Experiment::X1],
        LabName::X2 => vec![Experiment::X2],
        LabName::X3 => vec![Experiment::X3],
        LabName::X4 => vec![Experiment::X4],
        LabName::X5 => vec![Experiment::X5],
        LabName::X6 => vec![Experiment::X6],
        LabName::X7 => vec![Experiment::X7],
        LabName::X8 => vec![Experiment::X8],
        LabName::Compare => Vec::new(),
    }
}

/// Runs all jobs.
fn measure(options: &LabArgs) -> Result<Results> {
    let scale = match options.scale {
        LabScale::Quick => Scale::Quick,
        LabScale::Default => Scale::Default,
        LabScale::Full => Scale::Full,
    };
    let tmpfs = Some(options.tmpfs.clone()).filter(|path| path.is_dir());
    let setting = Setting { scale, seed: options.seed, tmpfs };
    let scratch = Scratch::make(options, setting.tmpfs.as_deref())?;
    let (start, machine) = (Instant::now(), Machine::of(&scratch.disk));
    let asked = experiments(options.what);
    let jobs: Vec<(Experiment, Job)> =
        asked.into_iter().flat_map(|x| x.jobs(&setting).into_iter().map(move |job| (x, job))).collect();
    let progress = Progress::new(jobs.len());
    let mut outcomes = Vec::new();
    for (n, (experiment, job)) in jobs.iter().enumerate() {
        progress.at(n, &format!("{}: {}", experiment.text(), job.in_words()));
        outcomes.push(scratch.play(job, n)?);
    }
    progress.finish();
    let made_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut results = Results {
        command: command(options, scale),
        made_at: made_at.as_secs(),
        seconds: start.elapsed().as_secs_f64(),
        ..Results::new(machine, scale.text(), options.seed)
    };
    experiment::gather(&mut results, &setting, outcomes);
    Ok(results)
}

/// The command that does the same again.
fn command(options: &LabArgs, scale: Scale) -> String {
    let what = experiments(options.what);
    let what = if what.len() > 1 { "all" } else { what.first().map_or("all", |x| x.text()) };
    format!("windfall lab {what} --scale {} --seed {}", scale.text(), options.seed)
}

/// Folders for the servers' files, which go away.
struct Scratch {
    disk: PathBuf,
    memory: Option<PathBuf>,
    _sweeper: Sweeper,
}

impl Scratch {
    fn make(options: &LabArgs, tmpfs: Option<&Path>) -> Result<Self> {
        let name = format!("windfall-lab-{}", process::id());
        let (disk, memory) = (options.out.join(&name), tmpfs.map(|path| path.join(&name)));
        let sweeper =
            Sweeper::watch([disk.clone()].into_iter().chain(memory.clone()).collect(), Vec::new(), None);
        for folder in [Some(&disk), memory.as_ref()].into_iter().flatten() {
            fs::create_dir_all(folder).map_err(|e| {
                Failure::said(format!(
                    "{} cannot be made: {e}; give another --out or --tmpfs",
                    folder.display()
                ))
            })?;
        }
        Ok(Self { disk, memory, _sweeper: sweeper })
    }

    /// Plays a job in a process of its own.
    fn play(&self, job: &Job, number: usize) -> Result<Outcome> {
        let parent = if job.tmpfs().is_some() { self.memory.as_ref() } else { None };
        let folder = parent.unwrap_or(&self.disk).join(number.to_string());
        fs::create_dir_all(&folder)?;
        let mut command = Command::new(env::current_exe()?);
        command.args(["lab", "all", "--child"]).arg(&folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |what: &str| Failure::said(format!("the run `{}` has failed: {what}", job.in_words()));
        let mut child = Killed(command.spawn()?);
        let mut input = child.0.stdin.take().ok_or_else(|| failed("it has no input"))?;
        input.write_all(serde_json::to_string(job)?.as_bytes())?;
        drop(input);
        let (mut answer, mut said) = (String::new(), String::new());
        if let Some(output) = &mut child.0.stdout {
            output.read_to_string(&mut answer)?;
        }
        if let Some(errors) = &mut child.0.stderr {
            errors.read_to_string(&mut said)?;
        }
        let status = child.0.wait()?;
        if !status.success() {
            return Err(failed(said.lines().last().unwrap_or("it said nothing")));
        }
        fs::remove_dir_all(&folder)?;
        Ok(serde_json::from_str(&answer)?)
    }
}

/// One bar over all jobs; on a stream that is no terminal, one line a job.
struct Progress {
    bar: ProgressBar,
    terminal: bool,
}

impl Progress {
    fn new(jobs: usize) -> Self {
        let terminal = io::stderr().is_terminal();
        let bar = if terminal { ProgressBar::new(jobs as u64) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg:44} {wide_bar} {pos}/{len} {elapsed}")
        {
            bar.set_style(style);
        }
        bar.set_length(jobs as u64);
        if terminal {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Self { bar, terminal }
    }

    fn at(&self, done: usize, what: &str) {
        self.bar.set_position(done as u64);
        self.bar.set_message(what.to_owned());
        if !self.terminal {
            eprintln!("{what}");
        }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
