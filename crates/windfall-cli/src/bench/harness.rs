//! What every benchmark needs.
//!
//! **Purpose.** A folder that goes away, claims with their bounds, facts, the answer for people and for programs.
//!
//! **Invariants.** Exit code 0 if every claim holds, 1 if one does not. A bench without a claim is a failure.
//!
//! **May touch.** `measure`, `output`, the file system.

use std::{
    fs,
    path::PathBuf,
    process::{self, ExitCode},
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};

use crate::{
    args::BenchArgs,
    failure::{Failure, Result},
    measure::Machine,
    output::{self, Grid},
};

/// What a value is compared with.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// The value must not be above.
    AtMost(f64),
    /// The value must not be below.
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
    value: f64,
    bound: Bound,
}

/// A running benchmark.
#[derive(Debug)]
pub struct Bench {
    /// How it was called.
    pub options: BenchArgs,
    folder: PathBuf,
    parent_made: bool,
    machine: Machine,
    start: Instant,
    claims: Vec<Claim>,
    facts: Map<String, Value>,
}

impl Bench {
    /// Makes the folder of a benchmark.
    pub fn begin(options: &BenchArgs) -> Result<Self> {
        let parent = options.dir.clone().unwrap_or_else(|| "windfall-bench".into());
        let parent_made = !parent.exists();
        let folder = parent.join(format!("{}-{}", options.name.text(), process::id()));
        fs::create_dir_all(&folder).map_err(|e| {
            Failure::said(format!("{} cannot be made: {e}; give another --dir", folder.display()))
        })?;
        let machine = Machine::of(&folder);
        let (claims, facts) = (Vec::new(), Map::new());
        Ok(Self {
            options: options.clone(),
            folder,
            parent_made,
            machine,
            start: Instant::now(),
            claims,
            facts,
        })
    }

    /// The folder of a database of this benchmark.
    pub fn database(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The machine it runs on.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// A size: the real one, or the one of a quick run.
    pub fn size<T>(&self, real: T, quick: T) -> T {
        if self.options.quick { quick } else { real }
    }

    /// A time in seconds: the real one, or the one of a quick run.
    pub fn seconds(&self, real: f64, quick: f64) -> Duration {
        Duration::from_secs_f64(self.size(real, quick))
    }

    /// Says what is being done.
    pub fn say(&self, what: &str) {
        eprintln!("[{:6.1} s] {what}", self.start.elapsed().as_secs_f64());
    }

    /// Compares a value with a bound.
    pub fn claim(&mut self, id: impl Into<String>, value: f64, bound: Bound) {
        self.claims.push(Claim { id: id.into(), value, bound });
    }

    /// Keeps something that was measured beside the claims.
    pub fn fact(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.facts.insert(name.into(), value.into());
    }

    /// Says that something could not be measured: a claim that does not hold, except in a quick run.
    pub fn missing(&mut self, id: &str, why: &str) {
        self.fact(id, format!("not measured: {why}"));
        if !self.options.quick {
            self.claim(id, f64::NAN, Bound::AtMost(0.0));
        }
    }

    /// The answer.
    pub fn end(self, json: bool) -> Result<ExitCode> {
        let name = self.options.name.text();
        if self.claims.is_empty() && !self.options.quick {
            return Err(Failure::said(format!("bench {name} has measured nothing")));
        }
        let all_hold = self.claims.iter().all(|c| c.bound.holds(c.value));
        if json {
            let claims: Vec<Value> = self
                .claims
                .iter()
                .map(|c| {
                    let (relation, bound) = c.bound.parts();
                    json!({
                        "id": c.id, "value": c.value, "bound": bound, "relation": relation,
                        "holds": c.bound.holds(c.value),
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
                "facts": self.facts,
            }))?;
        } else {
            self.print();
        }
        Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }

    fn print(&self) {
        println!("{}\n", self.machine.line());
        if self.options.quick {
            println!("a quick run: sizes and times are too small to prove anything\n");
        }
        let mut grid = Grid::new(["claim", ">value", "", ">bound", "holds"]);
        for claim in &self.claims {
            let (relation, bound) = claim.bound.parts();
            let holds = if claim.bound.holds(claim.value) { "yes" } else { "NO" };
            grid.line([
                claim.id.as_str(),
                &output::short(claim.value),
                relation,
                &output::short(bound),
                holds,
            ]);
        }
        println!("{}", grid.text(0));
        let mut grid = Grid::new(["measured", "value"]);
        for (name, value) in &self.facts {
            let value = match value {
                Value::String(text) => text.clone(),
                Value::Number(n) => n.as_f64().map_or_else(|| n.to_string(), output::short),
                other => other.to_string(),
            };
            grid.line([name.clone(), value]);
        }
        print!("{}", grid.text(0));
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // What cannot be removed stays: the result does not depend on it.
        let _ = fs::remove_dir_all(&self.folder);
        if self.parent_made
            && let Some(parent) = self.folder.parent()
        {
            let _ = fs::remove_dir(parent);
        }
    }
}

/// How often something can be done per second: calls it for a time, 64 times between two looks at the clock.
pub fn rate(time: Duration, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
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
    use super::*;

    #[test]
    fn bounds_include_themselves_and_refuse_what_was_not_measured() {
        assert!(Bound::AtMost(1.2).holds(1.2) && !Bound::AtMost(1.2).holds(1.21));
        assert!(Bound::AtLeast(0.9).holds(0.9) && !Bound::AtLeast(0.9).holds(0.89));
        assert!(!Bound::AtMost(0.0).holds(f64::NAN) && !Bound::AtLeast(0.0).holds(f64::NAN));
    }
}
