//! Damage that the disk does not report, in the middle of histories: writes that are lost, lost in a crash although
//! they were synced, or misdirected, and bits that flip at rest. Nothing panics, hangs or recovers without end. Reads
//! return correct data or an error, and other tables continue to work. If no program could detect the damage,
//! reads return data that was there once. docs/testing.md lists which damage is of which kind.

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod guard;
mod history;
mod soak;

use std::{
    collections::{BTreeMap, BTreeSet},
    env::var,
    fmt,
    str::FromStr,
    time::Instant,
};

use guard::{Guard, mix, read_back};
use history::{Indexes, Live, Model, Rows, Step, files, open, script, verify, without_gaps};
use windfall::{
    Database, Error, Result, TableOptions,
    disk::{Disk, FileName, Folder},
    error::{DiskError, LockError, TransactionError},
    ids::SpaceId,
};
use windfall_sim::{Fault, SimulatedDisk, Survive};

const VARIABLE: &str = "WINDFALL_DAMAGE";
/// The length of a history.
const STEPS: usize = 110;

/// The kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Flip,
    /// A data file is missing.
    Gone,
    Lost,
    Forgotten,
    Misdirected,
}

const KINDS: [Kind; 5] = [Kind::Flip, Kind::Gone, Kind::Lost, Kind::Forgotten, Kind::Misdirected];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    seed: u64,
    kind: Kind,
    /// The n-th flip at the end of a history, the n-th file, or the n-th write.
    n: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.seed, self.kind, self.n)
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> core::result::Result<Self, String> {
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [seed, kind, n] = parts[..] else { return Err(format!("{text:?} is not SEED KIND N")) };
        let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text:?}: {error}"));
        let kind = KINDS.into_iter().find(|known| format!("{known:?}") == kind);
        let kind = kind.ok_or_else(|| format!("{text:?} has none of {KINDS:?}"))?;
        Ok(Self { seed: number(seed)?, kind, n: number(n)? })
    }
}

impl Case {
    /// Returns whether the damage happens after the end of the history.
    fn is_at_rest(self) -> bool {
        matches!(self.kind, Kind::Flip | Kind::Gone)
    }

    fn command(&self) -> String {
        format!(
            "{VARIABLE}='{self}' cargo test -p windfall --test damage -- --exact --ignored --nocapture one_case_again"
        )
    }

    /// Returns whether the process is killed at the end, and does not close the database.
    fn is_killed(&self) -> bool {
        mix(&[self.seed, self.n, 7]).is_multiple_of(2)
    }
}

/// All states of the database so far.
#[derive(Default)]
struct Past {
    /// The states, each once, in order.
    states: Vec<Model>,
    /// Every value that a key has ever had, in any table.
    values: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>,
}

impl Past {
    fn see(&mut self, step: &Step, after: &Model) {
        let changed = match step {
            Step::Put(..) | Step::Number(..) | Step::Load(..) | Step::Transaction(_) => tables_of(step),
            _ => Vec::new(),
        };
        let rows = changed.into_iter().filter_map(|table| after.0.get(table)).flat_map(|(_, rows)| rows);
        for (key, value) in rows {
            self.values.entry(key.clone()).or_default().insert(value.clone());
        }
        if self.states.last() != Some(after) {
            self.states.push(after.clone());
        }
    }

    /// Asserts that every row existed at some time.
    fn check(&self, table: &str, rows: &Rows) {
        for (key, value) in rows {
            let known = self.values.get(key);
            let is_known = known.is_some_and(|values| values.contains(value));
            let start = &value[..value.len().min(40)];
            assert!(
                is_known,
                "{table}: {} has never been {} bytes {start:?} of {:?}",
                String::from_utf8_lossy(key),
                value.len(),
                known.map(|values| values.iter().map(Vec::len).collect::<Vec<_>>())
            );
        }
    }
}

/// Returns whether the engine may report damage by this error.
fn tells(error: &Error) -> bool {
    matches!(
        error,
        Error::Corrupt(_)
            | Error::Poisoned(_)
            | Error::Transaction(TransactionError::RollingBack { .. })
            | Error::Lock(LockError::TimedOut { .. })
            | Error::Disk(DiskError::Missing { .. } | DiskError::Io { .. })
    )
}

/// A history with a damaged write, as far as it has run.
struct Damaged {
    disk: SimulatedDisk,
    past: Past,
    model: Model,
    /// The files that the damage affects: where the write should have gone, and where it went. Empty if it has not
    /// happened.
    files: Vec<FileName>,
    /// Whether it affects more than the tables of these files: the system tree, undo, or anything that is no data file.
    is_shared: bool,
    /// Tables with a failed step, so that the state of their rows is unknown.
    doubtful: BTreeSet<String>,
    stopped: bool,
}

fn tables_of(step: &Step) -> Vec<&String> {
    match step {
        Step::Create(t, _)
        | Step::Load(t, ..)
        | Step::Number(t, _)
        | Step::Truncate(t)
        | Step::CreateIndex(t, _)
        | Step::DropIndex(t)
        | Step::Put(t, ..)
        | Step::Delete(t, _)
        | Step::Scan(t) => vec![t],
        Step::Drop(names) => names.iter().collect(),
        Step::Rename(a, b) | Step::Swap(a, b) => vec![a, b],
        Step::Transaction(many) => many.tables().collect(),
        _ => Vec::new(),
    }
}

/// Returns a history that writes many pages.
fn steps(seed: u64) -> impl Iterator<Item = Step> {
    let script = script(seed, STEPS).into_iter().enumerate();
    script.map(|(n, step)| if n % 8 == 7 { Step::Checkpoint } else { step })
}

/// Returns the target of a misdirected write: in its own file or in another one, at a page boundary or not.
fn astray(disk: &SimulatedDisk, luck: u64) -> (Option<FileName>, u64) {
    let files: Vec<FileName> =
        [Folder::Root, Folder::Log, Folder::Data].iter().flat_map(|f| disk.list(*f).unwrap()).collect();
    let file = files.get((luck % (files.len() as u64 + 2)) as usize).copied();
    let length = file.and_then(|file| disk.len(file).unwrap()).unwrap_or(60_000).max(512);
    let offset = (luck >> 16) % length;
    (file, offset / if luck >> 60 == 0 { 512 } else { 4096 } * if luck >> 60 == 0 { 512 } else { 4096 })
}

/// Runs a history with a damaged write.
fn hurt(case: Case) -> Damaged {
    let disk = SimulatedDisk::new(case.seed);
    let mut hurt = Damaged {
        disk: disk.clone(),
        past: Past::default(),
        model: Model::default(),
        files: Vec::new(),
        is_shared: false,
        doubtful: BTreeSet::new(),
        stopped: false,
    };
    let mut live = open(&disk, case.seed).unwrap();
    let mut left = if mix(&[case.seed, case.n]).is_multiple_of(3) { 2 } else { usize::MAX };
    let mut planned = None;
    for (n, step) in steps(case.seed).enumerate() {
        if n == 40 && !case.is_at_rest() {
            let (file, offset) = astray(&disk, mix(&[case.seed, case.n, 3]));
            planned = file;
            let fault = match case.kind {
                Kind::Lost => Fault::LostWrite,
                Kind::Forgotten => Fault::ForgottenWrite,
                _ => Fault::MisdirectedWrite { file, offset },
            };
            disk.fail_nth(case.n, fault, false);
        }
        let after = hurt.model.after(&step);
        let done = live.apply(&step);
        if disk.failures() > 0 && hurt.files.is_empty() {
            hurt.files.extend(disk.failed().map(|(_, file)| file));
            if case.kind == Kind::Misdirected {
                hurt.files.push(planned.unwrap_or(hurt.files[0]));
            }
            // Determined now, because a file that is being deleted does not stay.
            hurt.is_shared = is_shared(&disk, &hurt.files);
        }
        match (after, done) {
            (Some(after), Ok(())) => {
                hurt.past.see(&step, &after);
                hurt.model = after;
            }
            (after, Err(error)) => {
                let is_refused = after.is_none() && matches!(error, Error::Schema(_));
                assert!(is_refused || tells(&error) && !hurt.files.is_empty(), "{step:?}: {error:?}");
                if let (Some(after), false) = (after, is_refused) {
                    hurt.past.see(&step, &after);
                    hurt.doubtful.extend(tables_of(&step).into_iter().cloned());
                }
                hurt.stopped |= matches!(error, Error::Poisoned(_));
            }
            (None, Ok(())) => panic!("{step:?} should have been refused"),
        }
        if !hurt.files.is_empty() {
            left -= 1;
        }
        if left == 0 || hurt.stopped {
            break;
        }
    }
    if case.is_killed() {
        disk.crash();
    } else if let Err(error) = live.close() {
        assert!(tells(&error) && !hurt.files.is_empty(), "closing: {error:?}");
    }
    hurt
}

/// Returns the rows of a table as a scan reads them, after comparison with the past of each row by scan and by key.
fn rows_of(case: Case, db: &Database, name: &str, past: &Past) -> Result<Rows> {
    let table = db.table(name)?;
    let rows = table.rows()?.collect::<Result<Rows>>();
    let mut single = Rows::new();
    let mut first = None;
    for key in past.values.keys() {
        match table.get(key) {
            Ok(value) => drop(value.map(|value| single.insert(key.clone(), value))),
            Err(error) => first = first.or(Some(error)),
        }
    }
    let rows = without_gaps(rows?).0;
    // A log record does not contain the page content on which it depends: on a page that has lost a write, it may
    // produce anything.
    if case.is_at_rest() {
        past.check(name, &single);
        past.check(name, &rows);
    }
    first.map_or(Ok(rows), Err)
}

/// The effects that damage may have on a database.
struct Allowed {
    /// The database may refuse to open, or stop.
    everything: bool,
    /// The database may be in an earlier state.
    earlier: bool,
    /// Whether rows of the affected tables may be from earlier times, without an error.
    stale: bool,
}

/// Returns whether one of these files is shared by all tables: the system tree, or anything that is no data file of a
/// tree.
fn is_shared(disk: &SimulatedDisk, files: &[FileName]) -> bool {
    files.iter().any(|file| match file {
        FileName::Data(space) => *space == SpaceId::SYSTEM || !files::is_tree(disk, space.0),
        _ => true,
    })
}

fn allowed(case: Case, files: &[FileName], is_shared: bool) -> Allowed {
    Allowed {
        everything: is_shared,
        // Only what is written after it proves where the log ends.
        earlier: case.is_killed() && files.iter().any(|file| matches!(file, FileName::Log(_))),
        stale: !case.is_at_rest(),
    }
}

/// Opens what is left and checks it. Returns what was reported: nothing, damage of one table, or damage of everything.
fn look(
    case: Case,
    disk: &SimulatedDisk,
    hurt: &Damaged,
    files: &[FileName],
    is_shared: bool,
) -> &'static str {
    let Damaged { past, model, doubtful, .. } = hurt;
    let allowed = allowed(case, files, is_shared);
    let live = match open(disk, case.seed) {
        Ok(live) => live,
        Err(error) => {
            assert!(tells(&error), "opening says {error:?}");
            // A file that replay must change and that cannot be read keeps the database closed, with an error that
            // names the file.
            let is_named = files.iter().any(|file| error.to_string().contains(&file.to_string()));
            assert!(
                allowed.everything || hurt.stopped || is_named,
                "{files:?} concern some, and nothing opens: {error}"
            );
            return "refused";
        }
    };
    let mut wrong: BTreeMap<String, String> = BTreeMap::new();
    // The wrong tables for which no call returned an error.
    let mut silent = BTreeSet::new();
    let mut is_told = false;
    let names: BTreeSet<String> = live.db.tables().unwrap().into_iter().map(|info| info.name).collect();
    let mut seen = Model::default();
    for name in names.iter().chain(model.0.keys().filter(|name| !names.contains(*name))) {
        match rows_of(case, &live.db, name, past) {
            Ok(rows) => {
                if model.0.get(name).map(|(_, rows)| rows) != Some(&rows) {
                    wrong.insert(name.clone(), format!("{} rows", rows.len()));
                    silent.insert(name);
                }
                seen.0.insert(name.clone(), (Indexes::new(), rows));
            }
            Err(error) => {
                // The error that a table does not exist does not count as a report of damage.
                is_told |= tells(&error);
                wrong.insert(name.clone(), error.to_string());
                assert!(tells(&error) || matches!(error, Error::Schema(_)), "{name}: {error:?}");
            }
        }
    }
    let is_earlier = || past.states.iter().any(|state| same_rows(state, &seen));
    // The database continues to work, or returns an error with the reason.
    let is_usable = is_usable(&live);
    let check = live.db.check();
    is_told |= check.as_ref().map_or(true, |report| !report.findings.is_empty());
    let closed = live.close();
    assert!(is_usable || allowed.everything || hurt.stopped, "nothing works any more");
    if let Err(error) = closed {
        assert!(tells(&error), "closing says {error:?}");
    }
    if !allowed.everything {
        let owners = files::owners(disk).unwrap();
        let concerned: BTreeSet<&String> = files
            .iter()
            .filter_map(|file| match file {
                FileName::Data(SpaceId(space)) => owners.get(space),
                _ => None,
            })
            .chain(doubtful)
            .collect();
        // A table that a misdirected write or a bit flip has hit must report it. Only the table that missed its write
        // may be silent.
        let missed = match files[0] {
            FileName::Data(SpaceId(space)) if allowed.stale => owners.get(&space),
            _ => None,
        };
        let made_up = silent.iter().find(|name| Some(**name) != missed && !doubtful.contains(**name));
        assert!(made_up.is_none(), "{files:?}: nothing tells that {made_up:?} is wrong: {wrong:?}");
        for (name, what) in &wrong {
            assert!(concerned.contains(name), "{files:?} are of {concerned:?}, and wrong is {name}: {what}");
        }
    }
    let untold = !is_told && !wrong.is_empty() && doubtful.is_empty();
    assert!(
        !untold || allowed.stale || allowed.earlier && is_earlier(),
        "nothing reports {files:?}, and wrong is {wrong:?}"
    );
    match (wrong.is_empty(), is_told) {
        (true, false) => "whole",
        (_, true) => "reported",
        (false, false) if is_earlier() => "earlier",
        _ => "stale",
    }
}

fn same_rows(a: &Model, b: &Model) -> bool {
    a.0.len() == b.0.len() && a.0.iter().zip(&b.0).all(|(a, b)| a.0 == b.0 && a.1.1 == b.1.1)
}

/// Returns whether a new table can be created and written.
fn is_usable(live: &Live) -> bool {
    let made = live.db.create_table("afterwards", TableOptions::default());
    let put = made.and_then(|table| table.put(b"the database", b"works"));
    live.env.run_workers(150);
    if let Err(error) = &put {
        assert!(tells(error), "{error:?}");
    }
    put.is_ok()
}

/// Runs a case. Returns what was reported, or `None` if its damage has not happened.
fn run(case: Case) -> Option<&'static str> {
    let hurt = hurt(case);
    let left = hurt.disk.restart(Survive::Random(case.n));
    let (files, is_shared) = match case.kind {
        Kind::Flip => {
            // Every other flip hits the pages of tables.
            let data = left.list(Folder::Data).unwrap();
            let own: BTreeSet<FileName> =
                data.into_iter().filter(|file| !is_shared(&left, &[*file])).collect();
            let (file, _) = left.flip(|file| case.n.is_multiple_of(2) || own.contains(&file))?;
            (vec![file], !own.contains(&file))
        }
        Kind::Gone => {
            let file = *left.list(Folder::Data).unwrap().get(case.n as usize - 1)?;
            let is_shared = is_shared(&left, &[file]);
            left.remove(file).unwrap();
            left.sync_folder(Folder::Data).unwrap();
            (vec![file], is_shared)
        }
        Kind::Lost | Kind::Forgotten | Kind::Misdirected => (hurt.files.clone(), hurt.is_shared),
    };
    (!files.is_empty()).then(|| look(case, &left, &hurt, &files, is_shared))
}

/// Damages one history in one way, at every n-th place (`every`), until there is none left. Counts the outcomes.
fn enumerate(seed: u64, kind: Kind, every: u64, most: u64, counts: &mut BTreeMap<&'static str, u64>) {
    let guard = Guard::new();
    for n in (1 + seed % every..=most * every).step_by(every as usize) {
        let case = Case { seed, kind, n };
        let Some(outcome) = guard.run(&case.command(), || run(case)) else { break };
        *counts.entry(outcome).or_default() += 1;
    }
}

fn all(kind: Kind, seeds: core::ops::Range<u64>, every: u64, most: u64) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for seed in seeds {
        enumerate(seed, kind, every, most, &mut counts);
    }
    println!("{kind:?}: {counts:?}");
    counts
}

#[test]
fn bits_flip_at_rest() {
    let counts = all(Kind::Flip, 1..7, 1, 60);
    assert!(counts["reported"] > 50 && !counts.contains_key("stale"), "{counts:?}");
}

#[test]
fn files_are_missing() {
    let counts = all(Kind::Gone, 40..70, 1, 99);
    assert!(counts["refused"] > 100 && !counts.contains_key("stale"), "{counts:?}");
}

#[test]
fn writes_are_lost() {
    let counts = all(Kind::Lost, 10..18, 2, 80);
    assert!(counts["reported"] > 5, "{counts:?}");
}

#[test]
fn writes_are_forgotten_by_the_crash() {
    let counts = all(Kind::Forgotten, 20..24, 2, 80);
    assert!(counts["reported"] > 5, "{counts:?}");
}

#[test]
fn writes_land_elsewhere() {
    let counts = all(Kind::Misdirected, 30..44, 1, 80);
    assert!(counts["reported"] > 50, "{counts:?}");
}

#[test]
fn an_undamaged_database_is_complete() {
    for seed in 1..9 {
        let hurt = hurt(Case { seed, kind: Kind::Lost, n: u64::MAX });
        assert!(hurt.files.is_empty() && hurt.doubtful.is_empty());
        let left = hurt.disk.restart(Survive::Random(seed));
        verify(&left, seed, &[hurt.model], &format!("seed {seed}, without damage"));
    }
}

/// Runs the case in the variable `WINDFALL_DAMAGE`, as a failure prints it.
#[test]
#[ignore = "needs a case"]
fn one_case_again() {
    let case: Case = var(VARIABLE).expect("a case in WINDFALL_DAMAGE").parse().unwrap();
    let outcome = Guard::new().run(&case.command(), || run(case));
    println!("{case}: {outcome:?}");
}

/// Runs new cases until the time is over.
#[test]
#[ignore = "runs for a given time"]
fn soak() {
    soak::soak("damages", |seed, end| {
        let kind = KINDS[mix(&[seed]) as usize % 5];
        let mut counts = BTreeMap::new();
        if Instant::now() < end {
            enumerate(seed, kind, 1 + mix(&[seed, 1]) % 7, 12, &mut counts);
        }
        counts.values().sum()
    });
}

#[test]
fn a_case_is_read_as_it_is_written() {
    for kind in KINDS {
        let case = Case { seed: 7, kind, n: 99 };
        assert_eq!(case.to_string().parse(), Ok(case));
        assert_eq!(read_back(&case.command()).parse(), Ok(case));
    }
    assert!("7 Rust 3".parse::<Case>().is_err());
}

/// A page is whole, in its place, and older than a split. A key that it does not contain any more, or not yet, must not
/// be taken for absent, and its old rows must not be taken for current ones.
#[test]
fn a_page_from_before_a_split_is_reported() {
    const PAGE: usize = 4096;
    // No leaf has room for the values that come later.
    const EARLIER: &[u8] = &[1; 60];
    const LATER: &[u8] = &[2; 240];
    let key = |n: u32| n.to_be_bytes();
    let disk = SimulatedDisk::new(1);
    let Live { db, env, .. } = open(&disk, 1).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let put_all = |keys: &mut dyn Iterator<Item = u32>, value: &[u8]| {
        keys.for_each(|n| table.put(&key(n), value).unwrap());
        db.checkpoint().unwrap();
        env.run_workers(200);
        db.checkpoint().unwrap();
    };
    put_all(&mut (0..800).step_by(2), EARLIER);
    let report = db.check().unwrap();
    let file = FileName::Data(report.trees.iter().find(|tree| tree.table == "t").unwrap().space);
    let bytes = || {
        let mut bytes = vec![0; disk.len(file).unwrap().unwrap() as usize];
        disk.read(file, 0, &mut bytes).unwrap();
        bytes
    };
    let before = bytes();
    put_all(&mut (0..800), LATER);
    drop(table);
    db.close().unwrap();
    let now = bytes();
    let mut leaves = 0;
    for (n, old) in before.chunks(PAGE).enumerate() {
        let is_leaf = old[4] == 2;
        if !is_leaf || now[n * PAGE..][..PAGE] == *old {
            continue;
        }
        leaves += 1;
        let disk = disk.restart(Survive::Everything);
        disk.write(file, (n * PAGE) as u64, old).unwrap();
        disk.sync(file).unwrap();
        let Live { db, env: _env, .. } = open(&disk, 2).unwrap();
        let table = db.table("t").unwrap();
        let mut reported = 0;
        for row in 0..800 {
            match table.get(&key(row)) {
                Ok(found) => {
                    assert_eq!(found.as_deref(), Some(LATER), "row {row}, of page {n} or another one");
                }
                Err(_) => reported += 1,
            }
        }
        assert!(reported > 0, "page {n} is from before");
    }
    assert!(leaves > 5, "{leaves} leaves were split");
}
