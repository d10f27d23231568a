//! The lab: historical experiments on this machine.
//!
//! **Purpose.** Runs the jobs of the requested experiments, each in its own process, and reports the results: a table
//! in the terminal, `lab.html` and `lab.json`; writes the graphs and tables of such a result. The experiments
//! themselves are in the crate `windfall-lab`, except for X9, which is [`factors`].
//!
//! **Invariants.** The servers' files are removed, whatever ends the run (tests:
//! `a_run_of_the_lab_leaves_a_page_and_its_figures`, `a_lab_that_is_killed_leaves_no_files`). A failed job ends the
//! run, because an incomplete experiment allows no comparison (test: `a_failed_job_ends_the_run`).
//!
//! **Method.** Jobs run one at a time.

use std::{
    cell::Cell,
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
    results::{Results, X9},
};
use windfall_measure::{KillOnDrop, Machine, units::bytes};

use crate::{
    args::{LAB_OUT, LabArgs, LabName, LabScale},
    factors::{self, FactorKind},
    failure::{Failure, Result},
    output,
    sweep::Sweeper,
};

/// Executes the command.
pub(crate) fn run(options: &LabArgs, json: bool) -> Result<ExitCode> {
    if let Some(folder) = &options.child {
        return run_job(folder);
    }
    if let Some(name) = options.only.first().filter(|_| options.what != LabName::Draw) {
        return Err(Failure::message(format!("--only {name}: only `windfall lab draw` takes it")));
    }
    match options.what {
        LabName::Compare => return compare(options, json),
        LabName::Draw => return draw(options, json),
        _ => (),
    }
    if let Some(path) = options.results.first() {
        return Err(Failure::message(format!(
            "{}: only `windfall lab compare` and `windfall lab draw` take results",
            path.display()
        )));
    }
    let results = measure(options)?;
    let data = written(&options.out, "lab.json", &(serde_json::to_string_pretty(&results)? + "\n"))?;
    let page = written(&options.out, "lab.html", &report::page(&results))?;
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

/// Writes a file of the report.
fn written(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, text).map_err(|e| {
        Failure::message(format!("{} cannot be written: {e}; give another --out", path.display()))
    })?;
    Ok(path)
}

/// Reads a stored result.
fn read(path: &Path) -> Result<Results> {
    let text = fs::read_to_string(path).map_err(|e| {
        Failure::message(format!("{} cannot be read: {e}; give a lab.json of `windfall lab`", path.display()))
    })?;
    serde_json::from_str(&text).map_err(|e| {
        Failure::message(format!(
            "{} is no result of `windfall lab`, or one of another version: {e}; run it again",
            path.display()
        ))
    })
}

/// Executes a job in a child process: the job is read from standard input, the outcome is written to standard output.
fn run_job(folder: &Path) -> Result<ExitCode> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let job: Job = serde_json::from_str(&text)?;
    let outcome = job.run(folder).map_err(Failure::Engine)?;
    output::print(&(serde_json::to_string(&outcome)? + "\n"))?;
    // Exiting the process frees the server's memory faster.
    process::exit(0);
}

fn compare(options: &LabArgs, json: bool) -> Result<ExitCode> {
    let [one, two] = &options.results[..] else {
        return Err(Failure::message(
            "compare takes two results: windfall lab compare before/lab.json after/lab.json",
        ));
    };
    if json {
        return Err(Failure::message("compare is for people: the two files are the JSON"));
    }
    let names = [one, two].map(|path| path.display().to_string());
    output::print(&report::compare(&read(one)?, &read(two)?, [&names[0], &names[1]]))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the graphs and tables of a result as files.
fn draw(options: &LabArgs, json: bool) -> Result<ExitCode> {
    let [path] = &options.results[..] else {
        return Err(Failure::message("draw takes one result: windfall lab draw windfall-lab/lab.json"));
    };
    let results = read(path)?;
    let mut drawings = report::drawings(&results);
    drawings.extend(report::tables(&results));
    let name = |(file, _): &(String, String)| file.split('.').next().unwrap_or_default().to_owned();
    let has = |drawing: &(String, String), only: &str| {
        let name = name(drawing);
        name == only || name.split('-').next() == Some(only)
    };
    if let Some(only) = options.only.iter().find(|only| !drawings.iter().any(|d| has(d, only))) {
        let names: Vec<String> = drawings.iter().map(name).collect();
        return Err(Failure::message(format!(
            "{} has no drawing {}; it has {}, and `windfall lab all` measures what there is",
            path.display(),
            output::quoted(only.as_bytes()),
            if names.is_empty() { "none".into() } else { output::listed(&names) }
        )));
    }
    drawings.retain(|d| options.only.is_empty() || options.only.iter().any(|only| has(d, only)));
    if drawings.is_empty() {
        return Err(Failure::message(format!(
            "{} has nothing to draw: no run is in it; `windfall lab all` makes one that has",
            path.display()
        )));
    }
    fs::create_dir_all(&options.out).map_err(|e| {
        Failure::message(format!("{} cannot be created: {e}; give another --out", options.out.display()))
    })?;
    let mut paths = Vec::new();
    for (name, svg) in &drawings {
        paths.push(written(&options.out, name, svg)?.display().to_string());
    }
    if json {
        output::print_json(&paths.into())?;
    } else {
        output::print(&(paths.join("\n") + "\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the requested experiments.
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
        // Measured here, see [`measure`].
        LabName::X9 | LabName::Compare | LabName::Draw => Vec::new(),
    }
}

/// Returns the factors of X9, if it was requested.
fn varied(what: LabName) -> &'static [FactorKind] {
    if matches!(what, LabName::All | LabName::X9) { &FactorKind::ALL } else { &[] }
}

/// Runs all jobs.
fn measure(options: &LabArgs) -> Result<Results> {
    let scale = match options.scale {
        LabScale::Quick => Scale::Quick,
        LabScale::Default => Scale::Default,
        LabScale::Full => Scale::Full,
    };
    let usual = Path::new(TMPFS);
    let folder = options.tmpfs.as_deref().unwrap_or(usual);
    let wrong = unfit(FolderInfo::of(folder));
    if let (Some(given), Some(wrong)) = (&options.tmpfs, &wrong) {
        return Err(Failure::message(refused(given, usual, wrong)));
    }
    let tmpfs = wrong.is_none().then(|| folder.to_owned());
    let jobs_with = |tmpfs: Option<PathBuf>| -> (Setting, Vec<(Experiment, Job)>) {
        let setting = Setting { scale, seed: options.seed, tmpfs };
        let asked = experiments(options.what).into_iter();
        let jobs = asked.flat_map(|x| x.jobs(&setting).into_iter().map(move |job| (x, job))).collect();
        (setting, jobs)
    };
    if let Some(wrong) = wrong
        && jobs_with(Some(usual.into())).1.iter().any(|(_, job)| job.tmpfs().is_some())
    {
        eprintln!("{}", without_memory(usual, &wrong));
    }
    let (setting, jobs) = jobs_with(tmpfs);
    let scratch = Scratch::make(options, setting.tmpfs.as_deref())?;
    let (start, machine) = (Instant::now(), Machine::of(&scratch.disk));
    let varied = varied(options.what);
    let progress = Progress::new(jobs.len() + varied.len());
    let mut outcomes = Vec::new();
    for (n, (experiment, job)) in jobs.iter().enumerate() {
        progress.at(n, &format!("{}: {}", experiment.text(), job.in_words()));
        outcomes.push(scratch.run_job(job, n)?);
    }
    let (done, at) = (jobs.len(), Cell::new(0));
    let say = |what: &str| progress.at(done + at.replace(at.get() + 1), &format!("x9: {what}"));
    let factors = factors::measure(varied, &scratch.disk, scale, options.seed, None, &say)?;
    progress.finish();
    let made_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut results = Results {
        command: command(options, scale),
        made_at: made_at.as_secs(),
        seconds: start.elapsed().as_secs_f64(),
        x9: (!factors.is_empty()).then_some(X9 { factors }),
        ..Results::new(machine, scale.text(), options.seed)
    };
    experiment::gather(&mut results, &setting, outcomes);
    Ok(results)
}

/// The folder in memory that exists on most machines.
const TMPFS: &str = "/dev/shm";

/// The minimum free space there: logs and files of some servers, one after the other.
const IN_MEMORY: u64 = 512 << 20;

/// The file system of a folder.
struct FolderInfo {
    /// The type of the file system, with its options.
    file_system: String,
    /// Free bytes.
    free: u64,
}

impl FolderInfo {
    /// Returns none if it is not a folder.
    fn of(folder: &Path) -> Option<Self> {
        let stat = rustix::fs::statvfs(folder).ok().filter(|_| folder.is_dir())?;
        Some(Self { file_system: Machine::of(folder).file_system, free: stat.f_bavail * stat.f_frsize })
    }
}

/// Returns what is wrong with a folder for the runs in memory, if anything. A ramfs has no limit, and does not report
/// its free space.
fn unfit(folder: Option<FolderInfo>) -> Option<String> {
    let Some(FolderInfo { file_system, free }) = folder else { return Some("is no folder".into()) };
    let is = |kind| file_system.starts_with(kind);
    if !is("tmpfs") && !is("ramfs") {
        Some(format!("is on {file_system}, not in memory"))
    } else if is("tmpfs") && free < IN_MEMORY {
        Some(format!("has {} free, and it takes {}", bytes(free as f64), bytes(IN_MEMORY as f64)))
    } else {
        None
    }
}

fn refused(given: &Path, usual: &Path, wrong: &str) -> String {
    format!(
        "{}: --tmpfs {wrong}; give one in memory, or leave it out for {}",
        given.display(),
        usual.display()
    )
}

fn without_memory(usual: &Path, wrong: &str) -> String {
    format!(
        "windfall: {} {wrong}: what the reports ran on a ramdisk is left out; give a folder in memory with --tmpfs",
        usual.display()
    )
}

/// Returns the command that repeats the run. The folders are included, because they determine the file systems.
fn command(options: &LabArgs, scale: Scale) -> String {
    let what = experiments(options.what);
    let what = match (&what[..], options.what) {
        ([only], _) => only.text(),
        (_, LabName::X9) => "x9",
        _ => "all",
    };
    let mut command = format!("windfall lab {what} --scale {} --seed {}", scale.text(), options.seed);
    let out = Some(&options.out).filter(|out| out.as_path() != Path::new(LAB_OUT));
    let tmpfs = options.tmpfs.as_ref().filter(|tmpfs| tmpfs.as_path() != Path::new(TMPFS));
    for (option, folder) in [("--tmpfs", tmpfs), ("--out", out)] {
        if let Some(folder) = folder {
            command = format!("{command} {option} {}", shell_word(&folder.display().to_string()));
        }
    }
    command
}

/// Quotes a word for a shell.
fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:=@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Temporary folders for the servers' files.
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
                Failure::message(format!(
                    "{} cannot be created: {e}; give another --out or --tmpfs",
                    folder.display()
                ))
            })?;
        }
        Ok(Self { disk, memory, _sweeper: sweeper })
    }

    /// Executes a job in its own process.
    fn run_job(&self, job: &Job, number: usize) -> Result<Outcome> {
        let parent = if job.tmpfs().is_some() { self.memory.as_ref() } else { None };
        let folder = parent.unwrap_or(&self.disk).join(number.to_string());
        fs::create_dir_all(&folder)?;
        let mut command = Command::new(env::current_exe()?);
        command.args(["lab", "all", "--child"]).arg(&folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed =
            |what: &str| Failure::message(format!("the run `{}` has failed: {what}", job.in_words()));
        let mut child = KillOnDrop(command.spawn()?);
        let mut input = child.0.stdin.take().ok_or_else(|| failed("it has no input"))?;
        input.write_all(serde_json::to_string(job)?.as_bytes())?;
        drop(input);
        let (answer, said) = child.read_output()?;
        let status = child.0.wait()?;
        if !status.success() {
            return Err(failed(said.lines().last().unwrap_or("it said nothing")));
        }
        fs::remove_dir_all(&folder)?;
        Ok(serde_json::from_str(&answer)?)
    }
}

/// One bar over all jobs; on a stream that is not a terminal, one line per job.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> LabArgs {
        LabArgs {
            what: LabName::X3,
            results: Vec::new(),
            only: Vec::new(),
            scale: LabScale::Quick,
            out: LAB_OUT.into(),
            tmpfs: None,
            seed: 7,
            child: None,
        }
    }

    #[test]
    fn the_printed_command_repeats_the_run() {
        let text = |options: LabArgs| command(&options, Scale::Quick);
        assert_eq!(text(options()), "windfall lab x3 --scale quick --seed 7");
        let usual = LabArgs { tmpfs: Some(TMPFS.into()), ..options() };
        assert_eq!(text(usual), "windfall lab x3 --scale quick --seed 7");
        let others = LabArgs { tmpfs: Some("/mnt/ram".into()), out: "my lab's".into(), ..options() };
        assert_eq!(
            text(others),
            "windfall lab x3 --scale quick --seed 7 --tmpfs /mnt/ram --out 'my lab'\\''s'"
        );
    }

    #[test]
    fn a_folder_in_memory_has_to_be_in_memory_and_to_have_room() {
        let on =
            |file_system: &str, free| unfit(Some(FolderInfo { file_system: file_system.to_owned(), free }));
        assert_eq!(on("tmpfs (rw)", IN_MEMORY), None);
        assert_eq!(on("ramfs (rw)", 0), None);
        let bad = [
            (unfit(None), "is no folder"),
            (on("tmpfs", IN_MEMORY / 2), "has 256 MiB free"),
            (on("ext4 (rw)", IN_MEMORY), "is on ext4 (rw), not in memory"),
        ];
        let (folder, usual) = (Path::new("/other"), Path::new(TMPFS));
        for (wrong, what) in bad {
            let wrong = wrong.unwrap();
            for said in [without_memory(folder, &wrong), refused(folder, usual, &wrong)] {
                assert!([what, "/other", "--tmpfs"].iter().all(|part| said.contains(part)), "{said}");
            }
        }
        let folder = tempfile::tempdir().unwrap();
        assert!(FolderInfo::of(folder.path()).is_some_and(|info| info.free > 0));
        assert!(FolderInfo::of(&folder.path().join("none")).is_none());
    }
}
