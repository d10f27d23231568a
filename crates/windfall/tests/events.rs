//! The events that a subscriber of `tracing` gets: of what, with which target and level.

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod common;

use std::{
    fmt::{self, Write as _},
    fs::read_to_string,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use common::small_options;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use windfall::{
    Database, Error, IndexOptions, TableOptions, TransactionOptions,
    disk::FileName,
    error::{LockError, TransactionError},
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

/// The targets that README.md documents.
const TARGETS: [&str; 7] = [
    "windfall::engine",
    "windfall::recovery",
    "windfall::ddl",
    "windfall::locks",
    "windfall::undo",
    "windfall::log",
    "windfall::storage",
];

/// An event.
#[derive(Clone, Debug, Default)]
struct Seen {
    target: String,
    level: String,
    /// The message and the fields.
    text: String,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.text, "{}={value:?} ", field.name()).unwrap();
    }
}

/// Keeps all events.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<Vec<Seen>>>);

impl Subscriber for Keeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("windfall")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut seen = Seen {
            target: metadata.target().into(),
            level: metadata.level().to_string(),
            text: String::new(),
        };
        event.record(&mut seen);
        self.0.lock().unwrap().push(seen);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Keeper {
    /// Runs something, of which these events must come: target, level, and a part of the text.
    fn expect<T>(&self, expected: &[(&str, Level, &str)], run: impl FnOnce() -> T) -> T {
        self.0.lock().unwrap().clear();
        let result = tracing::subscriber::with_default(self.clone(), run);
        let seen = self.0.lock().unwrap();
        for (target, level, text) in expected {
            let target = format!("windfall::{target}");
            let found = seen.iter().find(|event| event.text.contains(text));
            let found = found.unwrap_or_else(|| panic!("no event has {text}: {seen:?}"));
            assert_eq!((&found.target, &found.level), (&target, &level.to_string()), "{found:?}");
        }
        assert!(seen.iter().all(|event| TARGETS.contains(&&*event.target)), "{seen:?}");
        result
    }
}

fn open(disk: &SimulatedDisk, env: &SimulatedEnv) -> Database {
    Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &small_options(), &|_| {}).unwrap()
}

#[test]
fn an_opening_a_recovery_and_a_close_are_reported() {
    let (keeper, disk, env) = (Keeper::default(), SimulatedDisk::new(1), SimulatedEnv::new(1));
    let is_open = ("engine", Level::INFO, "the database is open");
    let db = keeper.expect(&[is_open], || open(&disk, &env));
    db.create_table("t", TableOptions::default()).unwrap().insert(b"k", b"v").unwrap();
    let recovered = ("recovery", Level::INFO, "recovery is complete");
    let disk = disk.restart(Survive::Everything);
    let env = SimulatedEnv::new(2);
    let db =
        keeper.expect(&[recovered, ("recovery", Level::INFO, "log_bytes="), is_open], || open(&disk, &env));
    keeper.expect(&[("engine", Level::INFO, "the database is closed")], || db.close().unwrap());
    // A disk that fails stops the database.
    let db = open(&disk, &env);
    disk.crash();
    keeper.expect(&[("engine", Level::ERROR, "the database stops")], || {
        db.create_table("u", TableOptions::default()).unwrap_err()
    });
}

#[test]
fn statements_are_reported() {
    let (keeper, disk, env) = (Keeper::default(), SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let debug = |text| [("ddl", Level::DEBUG, text)];
    let table = keeper.expect(&debug("created"), || db.create_table("t", TableOptions::default()).unwrap());
    table.insert(b"k", b"value").unwrap();
    table.insert(b"l", b"value").unwrap();
    let built = [
        ("ddl", Level::INFO, "an index build begins"),
        ("ddl", Level::INFO, "an index build is complete"),
        ("ddl", Level::DEBUG, "index created"),
    ];
    keeper.expect(&built, || db.create_index("t", "i", IndexOptions::on_value(0..4)).unwrap());
    keeper.expect(&[("ddl", Level::INFO, "an index build failed")], || {
        db.create_index("t", "j", IndexOptions::on_value(0..4).unique()).unwrap_err()
    });
    keeper.expect(&debug("index dropped"), || db.drop_index("t", "i").unwrap());
    keeper.expect(&debug("truncated"), || db.truncate_table("t").unwrap());
    keeper.expect(&debug("renamed"), || db.rename_table("t", "u").unwrap());
    keeper.expect(&debug("dropped"), || db.drop_table("u").unwrap());
}

#[test]
fn waits_and_refusals_are_reported() {
    let (keeper, disk, env) = (Keeper::default(), SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let table = db.create_table("t", TableOptions::default()).unwrap();
    db.set_lock_wait_timeout(Duration::from_secs(3));
    let [one, other] = [(); 2].map(|()| db.begin(TransactionOptions::default()));
    one.table(&table).put(b"a", b"1").unwrap();
    let refused = keeper.expect(&[("locks", Level::INFO, "a long wait for a lock has ended")], || {
        other.table(&table).put(b"a", b"2").unwrap_err()
    });
    assert!(matches!(refused, Error::Lock(LockError::TimedOut { .. })), "{refused}");
    other.rollback().unwrap();
    one.commit().unwrap();

    // Undo that an old view keeps.
    let view = db.begin(TransactionOptions::default().read_only().consistent_snapshot());
    db.set_undo_limit(Some(1 << 20)).unwrap();
    let fill = || loop {
        if let Err(error) = table.put(b"a", &[7; 900]) {
            return error;
        }
    };
    let refused = keeper.expect(&[("undo", Level::WARN, "changes are refused")], fill);
    assert!(matches!(refused, Error::Transaction(TransactionError::UndoFull { .. })), "{refused}");
    // Not once for each change.
    keeper.expect(&[], fill);
    assert!(keeper.0.lock().unwrap().iter().all(|event| !event.text.contains("are refused")));
    view.rollback().unwrap();
}

#[test]
fn a_deadlock_is_reported() {
    let keeper = Keeper::default();
    let env = Arc::new(windfall::env::RealEnv::default());
    let db = Database::open_on(Arc::new(SimulatedDisk::new(1)), env, &small_options(), &|_| {}).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let [one, other] = [(); 2].map(|()| db.begin(TransactionOptions::default()));
    one.table(&table).put(b"a", b"1").unwrap();
    other.table(&table).put(b"b", b"2").unwrap();
    let run = |trx: windfall::Transaction, key: &[u8]| {
        // The thread of the victim reports it.
        tracing::subscriber::with_default(keeper.clone(), || {
            trx.table(&table).put(key, b"3").and(trx.commit().map(drop))
        })
    };
    std::thread::scope(|scope| {
        let one = scope.spawn(|| run(one, b"b"));
        let done = [run(other, b"a"), one.join().unwrap()];
        assert_eq!(done.iter().filter(|done| done.is_err()).count(), 1, "{done:?}");
    });
    let seen = keeper.0.lock().unwrap();
    let found = seen.iter().find(|event| event.text.contains("a deadlock is broken")).expect("the deadlock");
    assert_eq!((&*found.target, &*found.level), ("windfall::locks", "INFO"), "{seen:?}");
}

#[test]
fn damage_and_a_full_disk_are_reported() {
    let (keeper, disk, env) = (Keeper::default(), SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.insert(b"k", b"v").unwrap();
    let info = db.check().unwrap();
    let space = info.trees.iter().find(|tree| tree.table == "t").unwrap().space;
    db.close().unwrap();
    let db = open(&disk, &env);
    assert!(disk.corrupt(FileName::Data(space), 4096 + 100, 1));
    keeper.expect(&[("storage", Level::ERROR, "a damaged page was read")], || {
        db.table("t").unwrap().get(b"k").unwrap_err()
    });

    let other = db.create_table("other", TableOptions::default()).unwrap();
    disk.set_capacity(Some(disk.used()));
    keeper.expect(&[("log", Level::WARN, "changes are refused: the log cannot be extended")], || {
        for n in 0..100_000u32 {
            if other.insert(&n.to_be_bytes(), &[7; 900]).is_err() {
                break;
            }
        }
        env.run_workers(50);
    });
}

/// Files of the product below a folder.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && name != "tests" {
            sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !name.starts_with("test") {
            files.push(path);
        }
    }
}

#[test]
fn every_event_has_a_documented_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = read_to_string(root.join("README.md")).unwrap();
    for target in TARGETS {
        assert!(readme.contains(&format!("| `{target}` |")), "README.md does not describe {target}");
    }
    let mut files = Vec::new();
    for of in ["windfall-base", "windfall-btree", "windfall-engine", "windfall"] {
        sources(&root.join("crates").join(of).join("src"), &mut files);
    }
    let mut events = 0;
    for file in files {
        let text = read_to_string(&file).unwrap();
        for level in ["error!(", "warn!(", "info!(", "debug!("] {
            for (at, _) in text.match_indices(level) {
                if text[..at].ends_with("tracing::") || text[..at].ends_with(' ') {
                    let rest = text[at + level.len()..].trim_start();
                    let is_documented =
                        TARGETS.iter().any(|target| rest.starts_with(&format!("target: \"{target}\"")));
                    assert!(is_documented, "{}: {level}{:.60}", file.display(), rest);
                    events += 1;
                }
            }
        }
    }
    assert!(events > 60, "{events} events");
}
