//! A case: a seed, the number of steps, and the subset of steps that are executed. It is printed as a command that runs
//! just this one again.

use core::{fmt, str::FromStr};
use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::counts::Counts;
use crate::history::{History, Wrong};
use crate::steps::Step;

/// The variable that holds a case.
pub(crate) const VARIABLE: &str = "WINDFALL_OPEN_TRANSACTIONS";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub seed: u64,
    pub steps: usize,
    /// Without a subset, all steps are executed.
    pub only: Option<BTreeSet<usize>>,
}

impl Case {
    pub(crate) fn new(seed: u64, steps: usize) -> Self {
        Self { seed, steps, only: None }
    }

    fn list(&self) -> Vec<(usize, Step)> {
        let mut steps = History::steps(self.seed, self.steps);
        steps.retain(|(at, _)| self.only.as_ref().is_none_or(|only| only.contains(at)));
        steps
    }

    /// Runs it. A panic is also a failure, at an unknown step.
    pub(crate) fn run(&self) -> Result<Counts, Wrong> {
        let steps = self.list();
        catch_unwind(AssertUnwindSafe(|| History::run(self.seed, &steps))).unwrap_or_else(|panic| {
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            Err(Wrong { at: self.steps, what: what.to_owned() })
        })
    }

    /// Returns a part of its steps that also fails: steps are removed, many at a time and then one by one, as long as
    /// the rest still fails.
    pub(crate) fn shrunk(&self, at: usize) -> Self {
        let mut left: Vec<usize> =
            self.list().into_iter().map(|(step, _)| step).filter(|step| *step <= at).collect();
        let with = |steps: &[usize]| Self { only: Some(steps.iter().copied().collect()), ..self.clone() };
        let mut many = left.len().div_ceil(2);
        while many > 0 {
            let mut from = 0;
            let mut has_shrunk = false;
            while from < left.len() {
                let mut less = left.clone();
                less.drain(from..(from + many).min(left.len()));
                if with(&less).run().is_err() {
                    left = less;
                    has_shrunk = true;
                } else {
                    from += many;
                }
            }
            many = if has_shrunk && many == 1 { 1 } else { many / 2 };
        }
        with(&left)
    }

    /// Returns the failure with as few steps as possible, and the command that runs these again.
    pub(crate) fn report(&self, wrong: &Wrong) -> (String, String) {
        let shrunk = self.shrunk(wrong.at);
        let (case, wrong) = match shrunk.run() {
            Err(wrong) => (&shrunk, wrong.what),
            Ok(_) => (self, wrong.what.clone()),
        };
        let steps = case.list().into_iter().map(|(at, step)| format!("{at:5} {step:?}\n"));
        (format!("{wrong}\n{}", steps.collect::<String>()), case.command())
    }

    /// Returns the command that runs it again.
    pub(crate) fn command(&self) -> String {
        format!(
            "{VARIABLE}='{self}' cargo test -p windfall --test open_transactions -- --exact --ignored --nocapture one_case_again"
        )
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={} steps={}", self.seed, self.steps)?;
        if let Some(only) = &self.only {
            let only: Vec<String> = only.iter().map(usize::to_string).collect();
            write!(f, " only={}", only.join(","))?;
        }
        Ok(())
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut case = Self::new(0, 0);
        for part in text.split_whitespace() {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is no KEY=VALUE"))?;
            let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{part:?}: {error}"));
            match key {
                "seed" => case.seed = number(value)?,
                "steps" => case.steps = number(value)? as usize,
                "only" => {
                    let steps = value.split(',').filter(|step| !step.is_empty());
                    case.only =
                        Some(steps.map(|step| Ok(number(step)? as usize)).collect::<Result<_, String>>()?);
                }
                _ => return Err(format!("{key:?} is unknown")),
            }
        }
        Ok(case)
    }
}
