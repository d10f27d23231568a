//! Scripts: a sequence of calls by several sessions, and the expected answers.
//!
//! A line is a session, a call and, after `->`, the answer. The levels for which it holds may come first (`RU RC RR SI
//! SER`); without them a line holds for all levels. Calls are
//!
//! - `begin`, or with a level of its own `begin SER`; `commit`, `rollback`
//! - `read ROWS`, `share ROWS` and `lock ROWS`: a plain read, and locking reads
//! - `put KEY=VALUE`, `append KEY=VALUE`, `remove KEY=NUMBER`, `change ROWS VALUE`, `change ROWS +NUMBER`, `delete
//!   ROWS`
//! - `continues`: the result of the waiting call. A waiting call must wait until this line.
//!
//! ROWS are `all`, a key, `KEY..KEY` with both ends, all with a value (`=30`), or with a multiple (`%3`). An answer is
//! `waits`, `deadlock`, `changed`, `unknown`, `nothing`, or rows, with the elements of a list: `1=10 2=20,21`. Without
//! an answer the call must succeed, with any result.

use std::collections::{BTreeMap, BTreeSet};

use super::client::{Answer, Call, Change, Client, Key, Level, Lock, Refusal, Row, Rows, Test};

#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub text: String,
    pub session: usize,
    /// Without one, the waiting call continues.
    pub call: Option<Call>,
    /// Without one, the call must succeed, with any result.
    pub answer: Option<Answer>,
}

/// Returns the lines of a script for a level.
pub(crate) fn parse(script: &str, level: Level) -> Vec<Line> {
    let lines = script.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.filter_map(|line| parse_line(line, level)).collect()
}

fn parse_line(line: &str, level: Level) -> Option<Line> {
    let wrong = || -> ! { panic!("no line of a script: {line:?}") };
    let rest = match line.split_once(": ") {
        None => line,
        Some((levels, rest)) => {
            let levels: Vec<Level> =
                levels.split(' ').map(|name| level_of(name).unwrap_or_else(|| wrong())).collect();
            if !levels.contains(&level) {
                return None;
            }
            rest
        }
    };
    let (call, answer) = match rest.split_once(" -> ") {
        Some((call, answer)) => (call, Some(answer_of(answer).unwrap_or_else(|| wrong()))),
        None => (rest, None),
    };
    let (session, call) = call.split_once(' ').unwrap_or_else(|| wrong());
    let session = session.strip_prefix('T').and_then(|n| n.parse().ok()).unwrap_or_else(|| wrong());
    let call = match call {
        "continues" => None,
        call => Some(call_of(call, level).unwrap_or_else(|| wrong())),
    };
    Some(Line { text: line.to_owned(), session, call, answer })
}

fn level_of(name: &str) -> Option<Level> {
    let names = ["RU", "RC", "RR", "SI", "SER"];
    Some(Level::ALL[names.iter().position(|known| *known == name)?])
}

fn call_of(text: &str, level: Level) -> Option<Call> {
    let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
    let pair = || {
        let (key, value) = rest.split_once('=')?;
        Some((key.parse().ok()?, value.parse().ok()?))
    };
    let change = || {
        let (rows, change) = rest.split_once(' ')?;
        let change = match change.strip_prefix('+') {
            Some(number) => Change::Add(number.parse().ok()?),
            None => Change::Set(change.parse().ok()?),
        };
        Some(Call::Change(rows_of(rows)?, change))
    };
    match verb {
        "begin" if rest.is_empty() => Some(Call::Begin(level)),
        "begin" => level_of(rest).map(Call::Begin),
        "commit" => Some(Call::Commit),
        "rollback" => Some(Call::Rollback),
        "read" => Some(Call::Read(rows_of(rest)?, Lock::Plain)),
        "share" => Some(Call::Read(rows_of(rest)?, Lock::Shared)),
        "lock" => Some(Call::Read(rows_of(rest)?, Lock::Exclusive)),
        "put" => pair().map(|(key, value)| Call::Put(key, value)),
        "remove" => pair().map(|(key, value)| Call::Delete(key, value)),
        "append" => pair().map(|(key, value)| Call::Append(key, value)),
        "change" => change(),
        "delete" => Some(Call::Change(rows_of(rest)?, Change::Delete)),
        _ => None,
    }
}

fn rows_of(text: &str) -> Option<Rows> {
    if text == "all" {
        return Some(Rows::between(0, Key::MAX));
    }
    if let Some(number) = text.strip_prefix('=') {
        return Some(Rows::with(Test::Is(number.parse().ok()?)));
    }
    if let Some(number) = text.strip_prefix('%') {
        return Some(Rows::with(Test::MultipleOf(number.parse().ok()?)));
    }
    match text.split_once("..") {
        Some((first, last)) => Some(Rows::between(first.parse().ok()?, last.parse().ok()?)),
        None => text.parse().ok().map(Rows::key),
    }
}

fn answer_of(text: &str) -> Option<Answer> {
    let row = |text: &str| -> Option<Row> {
        let (key, value) = text.split_once('=')?;
        let value = value.split(',').map(|item| item.parse().ok()).collect::<Option<_>>()?;
        Some((key.parse().ok()?, value))
    };
    Some(match text {
        "waits" => Answer::Waits,
        "deadlock" => Answer::Refused(Refusal::Deadlock),
        "changed" => Answer::Refused(Refusal::Changed),
        "unknown" => Answer::Unknown,
        "nothing" => Answer::Rows(Vec::new()),
        rows => Answer::Rows(rows.split(' ').map(row).collect::<Option<_>>()?),
    })
}

/// Executes a script. A deviation is reported with its line.
pub(crate) fn run<C: Client>(lines: &[Line], mut connect: impl FnMut() -> C) -> Result<(), String> {
    let mut clients: BTreeMap<usize, C> = BTreeMap::new();
    let (mut open, mut waiting) = (BTreeSet::new(), BTreeSet::new());
    for line in lines {
        let Line { text, session, call, answer } = line;
        let came = if let Some(call) = call {
            for waiter in &waiting {
                let client = clients.get_mut(waiter).expect("it has called");
                let came = client.answer();
                if came != Answer::Waits {
                    return Err(format!("before {text:?}: T{waiter} should wait, and is answered {came:?}"));
                }
            }
            clients.entry(*session).or_insert_with(&mut connect).call(call)
        } else {
            let client = clients.get_mut(session).filter(|_| waiting.remove(session));
            client.ok_or_else(|| format!("{text:?}: it does not wait"))?.answer()
        };
        let is_fine = match answer {
            Some(answer) => came == *answer,
            None => matches!(came, Answer::Done | Answer::Rows(_)),
        };
        if !is_fine {
            return Err(format!("{text:?}: it is answered {came:?}"));
        }
        match (call, came) {
            (_, Answer::Waits) => drop(waiting.insert(*session)),
            (Some(Call::Begin(_)), _) => drop(open.insert(*session)),
            (Some(Call::Commit | Call::Rollback), _) | (_, Answer::Refused(_) | Answer::Unknown) => {
                open.remove(session);
            }
            _ => {}
        }
    }
    if !waiting.is_empty() || !open.is_empty() {
        return Err(format!("at the end the sessions {waiting:?} wait, and {open:?} have open transactions"));
    }
    Ok(())
}
