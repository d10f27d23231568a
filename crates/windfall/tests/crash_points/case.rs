//! A case: a history, its crash points, and what survives. It is printed as a command that runs just this case again.

use core::{fmt, str::FromStr};

use windfall::FlushLog;
use windfall_sim::Survive;

/// The variable that holds a case.
pub(crate) const VARIABLE: &str = "WINDFALL_CRASH";

/// A history, which these fields determine completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct History {
    pub seed: u64,
    /// The steps of its last run.
    pub steps: usize,
    pub mode: FlushLog,
    /// The number of crashes and recoveries before the run that is crashed at every point.
    pub before: u32,
    pub script: Script,
}

/// What a history consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// Statements and changes of rows of all kinds.
    Mixed,
    /// Changes of rows that build high trees, and calls within calls.
    High,
    /// Groups of statements.
    Groups,
}

/// A crash point: before or during this disk operation, and what survives.
pub(crate) type CrashPoint = (u64, Survive);

/// A history and its crashes. The first crash interrupts the history, each later one the recovery from the previous
/// crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub history: History,
    pub crashes: Vec<CrashPoint>,
    /// The log position at which the log of the first crash is truncated: the end of one of the groups of a write.
    pub group: Option<u64>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let History { seed, steps, mode, before, script } = self.history;
        write!(f, "seed={seed} steps={steps} mode={mode:?} before={before}")?;
        match script {
            Script::Mixed => {}
            Script::High => write!(f, " trees=high")?,
            Script::Groups => write!(f, " statements=groups")?,
        }
        if let Some(group) = self.group {
            write!(f, " group={group}")?;
        }
        for (operation, survive) in &self.crashes {
            write!(f, " crash={operation}:{survive}")?;
        }
        Ok(())
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut case = Self {
            history: History { seed: 0, steps: 0, mode: FlushLog::Sync, before: 0, script: Script::Mixed },
            crashes: Vec::new(),
            group: None,
        };
        for part in text.split_whitespace() {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is no KEY=VALUE"))?;
            let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{part:?}: {error}"));
            match key {
                "seed" => case.history.seed = number(value)?,
                "group" => case.group = Some(number(value)?),
                "steps" => case.history.steps = number(value)? as usize,
                "before" => case.history.before = number(value)? as u32,
                "trees" if value == "high" => case.history.script = Script::High,
                "statements" if value == "groups" => case.history.script = Script::Groups,
                "mode" => {
                    let modes = [FlushLog::Sync, FlushLog::Write, FlushLog::Lazy];
                    let mode = modes.into_iter().find(|mode| format!("{mode:?}") == value);
                    case.history.mode = mode.ok_or_else(|| format!("{part:?} is none of {modes:?}"))?;
                }
                "crash" => {
                    let (operation, survive) = value
                        .split_once(':')
                        .ok_or_else(|| format!("{part:?} is no crash=OPERATION:SURVIVE"))?;
                    case.crashes.push((number(operation)?, survive.parse()?));
                }
                _ => return Err(format!("{part:?} is unknown")),
            }
        }
        Ok(case)
    }
}

impl Case {
    /// Returns the command that runs it again.
    pub(crate) fn command(&self) -> String {
        format!(
            "{VARIABLE}='{self}' cargo test -p windfall --test crash_points -- --exact --ignored --nocapture one_case_again"
        )
    }

    /// Parses the case from such a command.
    pub(crate) fn of_command(command: &str) -> Result<Self, String> {
        let (_, rest) = command.split_once(&format!("{VARIABLE}='")).ok_or("it names no case")?;
        rest.split_once('\'').ok_or("it has no end")?.0.parse()
    }
}
