//! Every job of every experiment, at the smallest scale.
//!
//! **Purpose.** Checks that all jobs run, and that their results have the properties that do not depend on the
//! machine.
//!
//! **Method.** Nothing is asserted about times, except that there are some.

use tempfile::TempDir;

use super::*;
use crate::results::Mark;

fn setting() -> Setting {
    Setting { scale: Scale::Quick, seed: 1, tmpfs: Some(std::env::temp_dir()) }
}

fn run_jobs(experiment: Experiment) -> Vec<Outcome> {
    let mut jobs = experiment.jobs(&setting());
    assert!(!jobs.is_empty());
    // One of each kind of job: the others are the same with other numbers.
    if experiment == Experiment::X1 {
        jobs.truncate(9);
    }
    let run = |job: &Job| {
        let folder = TempDir::new().unwrap();
        // A job is passed to its process as text.
        let text = serde_json::to_string(job).unwrap();
        let read: Job = serde_json::from_str(&text).unwrap();
        assert_eq!(&read, job);
        let outcome = read.run(folder.path()).unwrap_or_else(|e| panic!("{}: {e}", job.in_words()));
        let answer = serde_json::to_string(&outcome).unwrap();
        serde_json::from_str(&answer).unwrap()
    };
    jobs.iter().map(run).collect()
}

#[test]
fn x2_to_x5_count_the_steps_of_the_policies() {
    for outcome in
        [Experiment::X2, Experiment::X3, Experiment::X4, Experiment::X5].into_iter().flat_map(run_jobs)
    {
        let (system, filled, drops, steps) = match outcome {
            Outcome::X2(run) => (run.system, run.pages, run.ended_ns.len() as u64, run.steps),
            Outcome::X3(run) => (run.system, 0, u64::from(run.tables), run.steps),
            Outcome::X4(run) => (run.system, pages_of_gb(run.fill_gb), u64::from(run.loops), run.steps),
            Outcome::X5(run) => (run.system, run.pages, u64::from(run.tables * run.rounds), run.steps),
            _ => unreachable!(),
        };
        // Besides the fill there is one page of the dictionary: the tables are empty, except those that are hashed.
        let walk = (filled + 1) * drops;
        let walks = match system.policy {
            PolicyName::LruScan => 2,
            PolicyName::LruScanOnce
            | PolicyName::LazyMark
            | PolicyName::FlushListAhi
            | PolicyName::ExtentAhi => 1,
            PolicyName::StaleVersion => u64::from(system.hash_index),
            PolicyName::FlushList | PolicyName::Detach => 0,
        };
        if system.hash_index {
            let expected = walks * walk..=2 * walks * walk;
            assert!(expected.contains(&steps.lru_walked), "{system}, {drops} of {walk}: {steps:?}");
        } else {
            assert_eq!(steps.lru_walked, walks * walk, "{system}, {drops} drops: {steps:?}");
        }
        let flushes =
            matches!(system.policy, PolicyName::FlushList | PolicyName::FlushListAhi | PolicyName::ExtentAhi);
        // One page in ten of the fill is dirty and stays so; that of the dictionary is dirty unless it was written
        // meanwhile.
        let least = u64::from(flushes) * (filled / 10) * drops;
        let most = u64::from(flushes) * (filled / 10 + 1) * drops;
        assert!((least..=most).contains(&steps.flush_walked), "{system}, {drops} drops: {steps:?}");
        if system.policy == PolicyName::Detach {
            assert_eq!(steps, crate::policy::Steps::default(), "{system}");
        }
    }
}

#[test]
fn x1_x6_x7_and_x8_show_a_load_and_its_statements() {
    for outcome in
        [Experiment::X1, Experiment::X6, Experiment::X7, Experiment::X8].into_iter().flat_map(run_jobs)
    {
        let (system, load, drops) = match outcome {
            Outcome::X1(run) => {
                let (quiet, windows) = (run.without, run.with.windows.len());
                assert!(quiet.queries > 0 && quiet.marks.is_empty() && windows > 0, "{}", run.system);
                assert_eq!((quiet.windows.len(), run.with.marks.len()), (windows, windows), "{}", run.system);
                (run.system, run.with, true)
            }
            Outcome::X6(run) => {
                let touched = |mark: &Mark| mark.steps.freed + mark.steps.unflushed;
                let forgets = !matches!(run.system.policy, PolicyName::StaleVersion | PolicyName::Detach);
                assert!(run.load.marks.iter().all(|mark| (touched(mark) > 0) == forgets), "{}", run.system);
                (run.system, run.load, run.drops)
            }
            Outcome::X7(run) => {
                assert!(run.pages > 100 && run.entries > 0, "{}", run.system);
                // Windfall's index has slots, which rows may share; the others have an entry per row.
                let rows = u64::from(hash_index::rows_of(Scale::Quick));
                assert!(run.system.policy == PolicyName::Detach || run.entries == rows, "{}", run.system);
                (run.system, run.load, true)
            }
            Outcome::X8(run) => {
                // On a busy machine the clients may get no turn before the drop.
                assert!(run.gone_after_ns > 0 && run.rate_before.is_finite(), "{}", run.system);
                (run.system, run.load, true)
            }
            _ => unreachable!(),
        };
        assert!(load.queries > 0 && load.latency.count > 0, "{system}");
        assert_eq!(!load.marks.is_empty(), drops, "{system}");
        assert_eq!(load.locks.is_empty(), system.policy == PolicyName::Detach, "{system}");
        if system.policy == PolicyName::Detach {
            assert!(load.marks.iter().all(|mark| mark.steps == crate::policy::Steps::default()));
        }
    }
}

#[test]
fn outcomes_are_gathered_by_experiment() {
    let machine = windfall_measure::Machine::of(Path::new("."));
    let mut results = Results::new(machine, Scale::Quick.text(), 1);
    let outcomes = run_jobs(Experiment::X4);
    let count = outcomes.len();
    gather(&mut results, &setting(), outcomes);
    assert_eq!(results.x4.map(|x4| x4.runs.len()), Some(count));
    assert!(results.x1.is_none());
}
