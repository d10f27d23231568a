//! The framework of all benchmarks.
//!
//! **Purpose.** A temporary folder, claims with their bounds, facts, and the output as text or JSON.
//!
//! **Invariants.** The exit code is 0 if every claim holds, 1 if one does not (test:
//! `bounds_count_unless_the_run_is_quick`), 2 if a part failed; the other parts are measured and reported nevertheless
//! (test: `a_failed_part_does_not_affect_other_parts`). In a quick run the bounds are not enforced (test:
//! `bounds_count_unless_the_run_is_quick`). A benchmark without a claim fails, unless the run is quick (test:
//! `a_benchmark_without_a_claim_fails_unless_it_is_quick`).

use std::{
    fs,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use windfall_measure::{Machine, units};

use crate::{
    args::BenchArgs,
    engine,
    failure::{Failure, Result},
    output::{self, Grid, quoted},
    sweep::Sweeper,
};

/// The bound that a value is compared with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    /// The maximum of the value.
    AtMost(f64),
    /// The minimum of the value.
    AtLeast(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(bound) => value <= bound,
            Self::AtLeast(bound) => value >= bound,
        }
    }

    fn parts(self) -> (&'static str, f64) {
        match self {
            Self::AtMost(bound) => ("<=", bound),
            Self::AtLeast(bound) => (">=", bound),
        }
    }
}

#[derive(Debug)]
struct Claim {
    id: String,
    /// The value and its bound, if it could be measured; otherwise the facts give the reason.
    measured: Option<(f64, Bound)>,
}

impl Claim {
    fn holds(&self) -> bool {
        self.measured.is_some_and(|(value, bound)| bound.holds(value))
    }
}

/// A running benchmark.
#[derive(Debug)]
pub(super) struct Bench {
    /// The options of the call.
    pub options: BenchArgs,
    folder: PathBuf,
    _sweeper: Sweeper,
    machine: Machine,
    start: Instant,
    claims: Vec<Claim>,
    facts: Vec<(String, Value)>,
    tables: Vec<(String, Grid)>,
    failed: bool,
    /// The names of the parts, while these are listed and not measured.
    listed: Option<Vec<String>>,
}

impl Bench {
    /// Creates the folder of a benchmark.
    pub(super) fn begin(options: &BenchArgs) -> Result<Self> {
        let parent = options.dir.clone().unwrap_or_else(|| "windfall-bench".into());
        let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let made = parent.ancestors().take_while(missing).map(Path::to_path_buf).collect();
        let folder = parent.join(format!("{}-{}", options.name.text(), process::id()));
        fs::create_dir_all(&folder).map_err(|e| {
            Failure::message(format!("{} cannot be created: {e}; give another --dir", folder.display()))
        })?;
        Ok(Self {
            options: options.clone(),
            _sweeper: Sweeper::watch(vec![folder.clone()], made, None),
            machine: Machine::of(&folder),
            folder,
            start: Instant::now(),
            claims: Vec::new(),
            facts: Vec::new(),
            tables: Vec::new(),
            failed: false,
            listed: None,
        })
    }

    /// Returns the folder of a database of this benchmark.
    pub(super) fn database(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the machine that it runs on.
    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns a size: the real one, or the one of a quick run.
    pub(super) fn size<T>(&self, real: T, quick: T) -> T {
        if self.options.quick { quick } else { real }
    }

    /// Returns a time in seconds: the real one, or the one of a quick run.
    pub(super) fn seconds(&self, real: f64, quick: f64) -> Duration {
        Duration::from_secs_f64(self.size(real, quick))
    }

    /// Reports the progress on standard error.
    pub(super) fn say(&self, what: &str) {
        eprintln!("[{:6.1} s] {what}", self.start.elapsed().as_secs_f64());
    }

    /// Compares a value with a bound.
    pub(super) fn claim(&mut self, id: impl Into<String>, value: f64, bound: Bound) {
        self.claims.push(Claim { id: id.into(), measured: Some((value, bound)) });
    }

    /// Records a measured value that is not a claim.
    pub(super) fn fact(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.facts.push((name.into(), value.into()));
    }

    /// Appends a table to the text output. The JSON output has its content as a fact.
    pub(super) fn table(&mut self, title: impl Into<String>, grid: Grid) {
        self.tables.push((title.into(), grid));
    }

    /// Records that something could not be measured: a claim that does not hold, except in a quick run.
    pub(super) fn missing(&mut self, id: &str, why: &str) {
        self.fact(id, format!("not measured: {why}"));
        if !self.options.quick {
            self.claims.push(Claim { id: id.into(), measured: None });
        }
    }

    /// Claims that no thread waited for a lock or latch of a dropping thread; `None` in a build that does not count
    /// these waits.
    pub(super) fn claim_no_drop_waits(&mut self, id: &str, waits: Option<u64>) {
        match waits {
            Some(waits) => self.claim(id, waits as f64, Bound::AtMost(0.0)),
            None => self.fact(id, format!("no claim: {}", engine::NO_DROP_WAITS)),
        }
    }

    /// Refuses a name of `--only` that is none of the parts. `parts` calls [`Bench::part`] for each of them.
    pub(super) fn check_only(&mut self, parts: impl FnOnce(&mut Self)) -> Result<()> {
        if self.options.only.is_empty() {
            return Ok(());
        }
        self.listed = Some(Vec::new());
        parts(self);
        let known = self.listed.take().unwrap_or_default();
        match self.options.only.iter().find(|name| !known.contains(name)) {
            None => Ok(()),
            Some(name) => {
                let (name, known) = (quoted(name.as_bytes()), known.join(", "));
                Err(Failure::message(format!("--only {name}: choose from {known}")))
            }
        }
    }

    /// Measures a part, unless `--only` names others. If it fails, the result lacks this part only.
    pub(super) fn part(&mut self, name: &str, measure: impl FnOnce(&mut Self) -> Result<()>) {
        self.part_in_pieces(name, &[], measure);
    }

    /// As [`Bench::part`], for a part that consists of pieces: `--only` may name some of these.
    pub(super) fn part_in_pieces(
        &mut self,
        name: &str,
        pieces: &[&str],
        measure: impl FnOnce(&mut Self) -> Result<()>,
    ) {
        let mut names = pieces.iter().chain([&name]);
        if let Some(listed) = &mut self.listed {
            return listed.extend(names.map(|&name| name.to_owned()));
        }
        let only = &self.options.only;
        if !only.is_empty() && !names.any(|name| only.iter().any(|asked| asked == name)) {
            return;
        }
        if let Err(failure) = measure(self) {
            self.say(&format!("{name} failed: {failure}"));
            self.fact(name, format!("failed: {failure}"));
            self.claims.push(Claim { id: name.into(), measured: None });
            self.failed = true;
        }
    }

    /// Prints the result and returns the exit code.
    pub(super) fn end(self, json: bool) -> Result<ExitCode> {
        let name = self.options.name.text();
        if self.claims.is_empty() && !self.options.quick {
            return Err(Failure::message(format!("bench {name} has measured nothing")));
        }
        if json {
            let claims: Vec<Value> = self
                .claims
                .iter()
                .map(|c| {
                    let (value, bound) = c.measured.unzip();
                    let (relation, bound) = bound.map(Bound::parts).unzip();
                    json!({
                        "id": c.id, "value": value, "bound": bound, "relation": relation, "holds": c.holds(),
                    })
                })
                .collect();
            output::print_json(&json!({
                "bench": name,
                "version": env!("CARGO_PKG_VERSION"),
                "quick": self.options.quick,
                "seed": self.options.seed,
                "seconds": self.start.elapsed().as_secs_f64(),
                "machine": self.machine,
                "claims": claims,
                "facts": self.facts.iter().cloned().collect::<Map<_, _>>(),
            }))?;
        } else {
            output::print(&self.text())?;
        }
        Ok(ExitCode::from(self.code()))
    }

    fn code(&self) -> u8 {
        match self.claims.iter().all(Claim::holds) {
            _ if self.failed => 2,
            false if !self.options.quick => 1,
            _ => 0,
        }
    }

    fn text(&self) -> String {
        let mut text = format!("\n{}\n\n", self.machine.line());
        if self.options.quick {
            text += "a quick run: sizes and times are too small to prove anything, and no bound counts\n\n";
        }
        let mut grid = Grid::new(["claim", ">value", "", ">bound", "holds"]);
        for claim in &self.claims {
            let holds = if claim.holds() { "yes" } else { "NO" };
            let Some((value, bound)) = claim.measured else {
                grid.line([claim.id.as_str(), "-", "", "-", holds]);
                continue;
            };
            let (relation, bound) = bound.parts();
            grid.line([claim.id.as_str(), &figure(value), relation, &figure(bound), holds]);
        }
        text += &grid.text();
        text.push('\n');
        let mut grid = Grid::new(["measured", "value"]);
        for (name, value) in &self.facts {
            let value = match value {
                Value::String(text) => text.clone(),
                Value::Number(n) => n.as_f64().map_or_else(|| n.to_string(), figure),
                // Shown as a table.
                Value::Array(_) | Value::Object(_) => continue,
                other => other.to_string(),
            };
            grid.line([name.clone(), value]);
        }
        text += &grid.text();
        for (title, grid) in &self.tables {
            for part in ["\n", title, "\n\n", &grid.text()] {
                text.push_str(part);
            }
        }
        text
    }
}

/// Formats a number: a count in full, others shortened.
fn figure(x: f64) -> String {
    if x.fract() == 0.0 && x >= 0.0 { units::count(x as u64) } else { units::short(x) }
}

/// Returns the rate of a call per second: repeats it for `time`, 64 times between two readings of the clock.
pub(super) fn rate(time: Duration, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    let mut calls = 0_u64;
    loop {
        for _ in 0..64 {
            call()?;
        }
        calls += 64;
        let taken = start.elapsed();
        if taken >= time {
            return Ok(calls as f64 / taken.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Args, Command};

    #[test]
    fn bounds_are_inclusive_and_refuse_nan() {
        assert!(Bound::AtMost(1.2).holds(1.2) && !Bound::AtMost(1.2).holds(1.21));
        assert!(Bound::AtLeast(0.9).holds(0.9) && !Bound::AtLeast(0.9).holds(0.89));
        assert!(!Bound::AtMost(0.0).holds(f64::NAN) && !Bound::AtLeast(0.0).holds(f64::NAN));
    }

    /// Begins a benchmark with these options, below a folder.
    fn begin(folder: &Path, options: &[&str]) -> Bench {
        let dir = folder.join("work");
        let call = ["windfall", "bench", "drop", "--dir", dir.to_str().unwrap()];
        let Command::Bench(options) = Args::parse_from(call.iter().chain(options)).command else {
            unreachable!("it was asked for");
        };
        Bench::begin(&options).unwrap()
    }

    #[test]
    fn a_failed_part_does_not_affect_other_parts() {
        let folder = tempfile::tempdir().unwrap();
        let mut bench = begin(folder.path(), &["--quick"]);
        bench.part("first", |bench| {
            bench.claim("holds", 1.0, Bound::AtMost(1.0));
            Err(Failure::message("no more"))
        });
        bench.part("second", |bench| {
            bench.claim("holds, too", 1.0, Bound::AtMost(1.0));
            Ok(())
        });
        let claims: Vec<_> = bench.claims.iter().map(|c| (c.id.as_str(), c.holds())).collect();
        assert_eq!(claims, [("holds", true), ("first", false), ("holds, too", true)]);
        assert_eq!(bench.facts, [("first".to_owned(), "failed: no more".into())]);
        assert_eq!(bench.code(), 2);
        assert!(folder.path().join("work").exists());
        drop(bench);
        assert!(!folder.path().join("work").exists());
    }

    #[test]
    fn a_build_that_counts_no_waits_makes_no_claim_about_them_and_names_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let mut bench = begin(folder.path(), &[]);
        bench.claim_no_drop_waits("counted", Some(0));
        assert_eq!((bench.code(), bench.facts.len()), (0, 0));
        bench.claim_no_drop_waits("one wait", Some(1));
        assert_eq!((bench.code(), bench.facts.len()), (1, 0));
        let mut bench = begin(folder.path(), &[]);
        bench.claim_no_drop_waits("not counted", None);
        assert_eq!(bench.code(), 0);
        let (id, why) = &bench.facts[0];
        assert!(id == "not counted" && why.as_str().unwrap().contains("--features drop-waits"), "{why}");
    }

    #[test]
    fn a_benchmark_without_a_claim_fails_unless_it_is_quick() {
        let folder = tempfile::tempdir().unwrap();
        let error = begin(folder.path(), &[]).end(true).unwrap_err().to_string();
        assert!(error.contains("bench drop has measured nothing"), "{error}");
        assert!(begin(folder.path(), &["--quick"]).end(true).is_ok());
    }

    #[test]
    fn bounds_count_unless_the_run_is_quick() {
        let folder = tempfile::tempdir().unwrap();
        for (options, code) in [(&[][..], 1), (&["--quick"], 0)] {
            let mut bench = begin(folder.path(), options);
            assert_eq!(bench.code(), 0);
            bench.claim("is above", 2.0, Bound::AtMost(1.0));
            assert_eq!(bench.code(), code);
        }
    }
}
