//! Tests of the row log.

use windfall_sim::SimulatedEnv;

use super::*;
use crate::{
    catalog::KeyPart,
    engine::{Engine, test_engine::lone_tree},
};

/// Returns a log for indexes with these keys.
fn row_log(tree: &Arc<Tree>, keys: &[Option<KeySpec>]) -> RowLog {
    let filled = |key: &Option<_>| FilledTree { tree: tree.clone(), key: key.clone(), reading: INDEXED };
    let filled = keys.iter().map(filled).collect();
    RowLog::new(filled, NOTES_LIMIT_BYTES, Arc::new(SimulatedEnv::new(1)))
}

fn key_of(offset: u32) -> KeySpec {
    KeySpec { parts: vec![KeyPart::Value { offset, length: 1 }] }
}

fn bytes_of(notes: BTreeSet<Note>) -> Vec<Vec<u8>> {
    notes.into_iter().map(|(_, bytes)| bytes).collect()
}

#[test]
fn a_change_is_noted_for_each_index_whose_entry_it_changes() {
    type Value = Option<&'static [u8]>;
    let (tree, _engine) = lone_tree();
    let row_log = row_log(&tree, &[Some(key_of(0)), None, Some(key_of(1)), None]);
    let of = |notes: BTreeSet<Note>| notes.into_iter().map(|(noted, _)| noted).collect::<Vec<_>>();
    let (first, third) = (Noted::Entry(0), Noted::Entry(2));
    let cases: [(Value, Value, &[Noted]); 6] = [
        (None, Some(b"ab."), &[first, third, Noted::Row]),
        (Some(b"ab."), Some(b"ac."), &[third, third, Noted::Row, Noted::Row]),
        (Some(b"ac."), Some(b"bc."), &[first, first, Noted::Row, Noted::Row]),
        (Some(b"bc."), Some(b"bc!"), &[Noted::Row, Noted::Row]),
        (Some(b"bc!"), Some(b"bc!"), &[]),
        (Some(b"bc!"), None, &[first, third, Noted::Row]),
    ];
    for (before, after, expected) in cases {
        row_log.note(b"row", before, after);
        assert_eq!(of(row_log.take()), expected, "{before:?} becomes {after:?}");
    }
    assert_eq!((row_log.count(), row_log.bytes()), (0, 0));
}

#[test]
fn old_and_new_index_keys_are_noted_once_and_unchanged_ones_are_not() {
    let (tree, _engine) = lone_tree();
    let row_log = row_log(&tree, &[Some(key_of(0))]);
    row_log.note(b"row", None, Some(b"a1"));
    row_log.note(b"row", Some(b"a1"), Some(b"a2"));
    row_log.note(b"row", Some(b"a2"), Some(b"b"));
    row_log.note(b"row", Some(b"b"), None);
    let bytes = row_log.bytes();
    assert_eq!(bytes, 2 * (entry_key(b"a", b"row").len() + NOTE_OVERHEAD_BYTES));
    assert_eq!(bytes_of(row_log.take()), [entry_key(b"a", b"row"), entry_key(b"b", b"row")]);
    assert_eq!(row_log.bytes(), 0);
    for key in [b"c", b"d", b"e"] {
        row_log.note(b"row", None, Some(key));
    }
    assert_eq!(bytes_of(row_log.take_some(2).unwrap()), [entry_key(b"c", b"row"), entry_key(b"d", b"row")]);
    assert_eq!((row_log.count(), row_log.bytes()), (1, entry_key(b"e", b"row").len() + NOTE_OVERHEAD_BYTES));
    row_log.bytes.store(NOTES_LIMIT_BYTES, Relaxed);
    assert!(row_log.is_full());
    row_log.end();
    row_log.wait_for_room();
}

#[test]
fn rows_are_noted_as_they_are_where_a_function_makes_the_entries() {
    let (tree, _engine) = lone_tree();
    let row_log = row_log(&tree, &[None]);
    row_log.note(b"row", None, Some(b"a"));
    row_log.note(b"row", Some(b"a"), Some(b"a"));
    row_log.note(b"row", Some(b"a"), Some(b""));
    row_log.note(b"ro", Some(b"wb"), None);
    let notes = row_log.take();
    let rows: Vec<_> = notes.iter().map(|(_, note)| row_of_note(note)).collect();
    assert_eq!(rows, [(&b"ro"[..], &b"wb"[..]), (b"row", b""), (b"row", b"a")]);
    row_log.note(b"row", Some(b"a"), Some(b"a"));
    assert_eq!((row_log.count(), row_log.bytes()), (0, 0));
}

#[test]
fn notes_beyond_the_memory_go_to_runs() {
    const ROWS: u32 = 200;
    let (tree, engine) = lone_tree();
    let one = 5 + 4 + NOTE_OVERHEAD_BYTES;
    let run = 10 * one;
    let spaces = |log: &RowLog| {
        (0..log.lacks(50)).map(|_| engine.transactions.ids().space().unwrap()).collect::<Vec<_>>()
    };
    let log = row_log(&tree, &[None, Some(key_of(0))]);
    log.wait_no_more(engine.pool.clone(), run, 50 * run);
    assert_eq!(log.lacks(50), 50);
    log.provide(spaces(&log));
    let mut expected = BTreeSet::new();
    for n in 0..ROWS {
        let (row, value) = (n.to_be_bytes(), n.to_le_bytes());
        log.note(&row, None, Some(&value));
        expected.insert((Noted::Row, note_of_row(&row, &value)));
        expected.insert((Noted::Entry(1), entry_key(&value[..1], &row)));
        assert!(log.bytes() < run + 2 * one && !log.is_full(), "{} bytes in memory", log.bytes());
        assert_eq!(log.count(), expected.len());
    }
    assert!(log.runs() > 10 && log.lacks(50) == 0, "{} runs", log.runs());
    let mut taken = BTreeSet::new();
    while log.count() > 0 {
        let some = log.take_some(7).unwrap();
        assert!(!some.is_empty() && some.len() <= 7);
        taken.extend(some);
    }
    assert!(taken == expected && log.check_notes().is_ok());
    // The same notes in several runs are taken once or several times, and none is left out.
    log.provide(spaces(&log));
    for _ in 0..4 {
        for n in 0..40u32 {
            log.note(&n.to_be_bytes(), None, Some(&n.to_le_bytes()));
        }
    }
    log.note(b"last", None, Some(b"last"));
    let mut taken = BTreeSet::new();
    loop {
        let some = log.take_some(7).unwrap();
        let are_all = some.len() < 7;
        taken.extend(some);
        if are_all {
            break;
        }
    }
    assert_eq!((taken.len(), log.count(), log.bytes()), (2 * 41, 0, 0));
    // There is room again, up to the limit, beyond which the log fails and keeps nothing.
    log.provide(spaces(&log));
    let mut noted = 0u32;
    while log.check_notes().is_ok() {
        assert!(log.runs() <= 50);
        log.note(&noted.to_be_bytes(), None, Some(&noted.to_le_bytes()));
        noted += 1;
    }
    assert!(noted > 250, "{noted} rows");
    let failed = log.check_notes().unwrap_err();
    assert!(matches!(failed, Error::Usage(UsageError::TooManyNotes { limit, .. }) if limit == 50 * run));
    log.note(b"row", None, Some(b"value"));
    assert_eq!((log.count(), log.bytes(), log.runs(), log.is_full()), (0, 0, 0, false));
}

/// A log whose runs have up to 50,000 bytes, with room for three of them.
fn log_on_disk(tree: &Arc<Tree>, engine: &Engine) -> (RowLog, usize) {
    const RUN: usize = 50_000;
    let log = row_log(tree, &[None]);
    log.wait_no_more(engine.pool.clone(), RUN, 3 * RUN);
    log.provide((0..3).map(|_| engine.transactions.ids().space().unwrap()).collect());
    (log, 3 * RUN)
}

#[test]
fn the_limit_of_notes_is_exact() {
    let overhead = ROW_KEY_LENGTH_BYTES + NOTE_OVERHEAD_BYTES;
    // Short ones, those as long as a run, longer ones, and a mixture.
    for lengths in [&[4][..], &[50_000 - overhead - 4], &[64 << 10], &[4, 30_000, 10, 64 << 10, 900]] {
        let (tree, engine) = lone_tree();
        let (log, limit) = log_on_disk(&tree, &engine);
        let (mut held, mut in_memory) = (0, 0);
        for n in 0u32.. {
            let length = lengths[n as usize % lengths.len()];
            let one = 4 + length + overhead;
            log.note(&n.to_be_bytes(), None, Some(&vec![b'.'; length]));
            if held + one > limit {
                break;
            }
            held += one;
            in_memory = if in_memory + one < 50_000 { in_memory + one } else { 0 };
            assert!(log.check_notes().is_ok(), "{lengths:?}: it fails with {held} of {limit} bytes");
            assert_eq!((log.count(), log.bytes()), (n as usize + 1, in_memory), "{lengths:?}");
            // A note that is in memory already takes no room.
            if in_memory > 0 {
                log.note(&n.to_be_bytes(), None, Some(&vec![b'.'; length]));
                assert_eq!((log.count(), log.bytes()), (n as usize + 1, in_memory), "{lengths:?}");
            }
        }
        let failed = log.check_notes().unwrap_err();
        let is_right =
            matches!(failed, Error::Usage(UsageError::TooManyNotes { limit: of, .. }) if of == limit);
        assert!(is_right && log.count() == 0, "{lengths:?}: {failed}");
    }
}

/// As after a step of the alteration that has failed.
#[test]
fn notes_that_were_read_and_not_applied_count_towards_the_limit() {
    let (tree, engine) = lone_tree();
    let (log, limit) = log_on_disk(&tree, &engine);
    let one = 4 + 4 + ROW_KEY_LENGTH_BYTES + NOTE_OVERHEAD_BYTES;
    let note = |n: usize| log.note(&(n as u32).to_be_bytes(), None, Some(b"4444"));
    let of_runs = 2 * (limit / 3).div_ceil(one);
    (0..of_runs).for_each(note);
    assert_eq!((log.runs(), log.bytes()), (2, 0));
    log.put_back(log.take_some(10).unwrap());
    assert_eq!((log.runs(), log.count()), (1, of_runs));
    (of_runs..limit / one).for_each(note);
    assert!(log.check_notes().is_ok() && log.count() == limit / one);
    note(limit / one);
    assert!(matches!(log.check_notes(), Err(Error::Usage(UsageError::TooManyNotes { .. }))));
    log.put_back(BTreeSet::from([(Noted::Row, note_of_row(b"row", b""))]));
    assert_eq!(log.count(), 0);
}

#[test]
fn a_slow_write_of_a_run_keeps_no_writer_waiting() {
    let (tree, engine) = lone_tree();
    let (log, limit) = log_on_disk(&tree, &engine);
    // Another thread has not written its run yet.
    let other = Writing { runs: 1, notes: 700, bytes: limit / 3 };
    log.notes.lock().writing.add(other);
    assert!(log.notes.lock().spaces.pop().is_some());
    let one = 4 + 4 + ROW_KEY_LENGTH_BYTES + NOTE_OVERHEAD_BYTES;
    let fit = (limit - other.bytes) / one;
    for n in 0..fit as u32 {
        log.note(&n.to_be_bytes(), None, Some(b"4444"));
        assert!(log.check_notes().is_ok() && !log.is_full(), "note {n} of {fit}");
        assert!(log.bytes() < limit / 3, "{} bytes in memory", log.bytes());
    }
    assert_eq!((log.count(), log.runs()), (700 + fit, 1));
    log.note(b"next", None, Some(b"4444"));
    assert!(matches!(log.check_notes(), Err(Error::Usage(UsageError::TooManyNotes { .. }))));
    // Without a tablespace notes stay in memory.
    let log = row_log(&tree, &[None]);
    log.wait_no_more(engine.pool.clone(), limit / 3, limit);
    (0..limit as u32 / one as u32).for_each(|n| log.note(&n.to_be_bytes(), None, Some(b"4444")));
    assert!(log.check_notes().is_ok() && log.bytes() > limit - one && log.runs() == 0);
}

/// The values of a row as a reader of chosen fields reads them are noted once for all trees with these fields.
#[test]
fn rows_are_noted_with_each_choice_of_fields() {
    let (tree, _engine) = lone_tree();
    let (one, other) = (FieldSet::NONE.with(1), FieldSet::ALL.cut_at(9));
    let filled = |reading| FilledTree { tree: tree.clone(), key: None, reading };
    let filled = vec![filled(one), filled(INDEXED), filled(other), filled(one)];
    let row_log = RowLog::new(filled, NOTES_LIMIT_BYTES, Arc::new(SimulatedEnv::new(1)));
    assert_eq!(Follower::readings(&row_log), [one, other]);
    let places = [one, INDEXED, other].map(|reading| row_log.noted_with(reading));
    assert_eq!(places, [Noted::Read(0), Noted::Row, Noted::Read(1)]);
    row_log.note(b"row", None, Some(b"first"));
    let note_read = |reading, sides: [Option<&str>; 2]| {
        let note = |value: &str| [&*row_log.begin_note(b"row"), value.as_bytes()].concat();
        let [before, after] = sides.map(|value| value.map(note));
        row_log.note_read(reading, before, after);
    };
    note_read(1, [Some("one"), Some("two")]);
    note_read(1, [Some("same"), Some("same")]);
    note_read(0, [Some("one"), None]);
    let expected =
        [(Noted::Row, "first"), (Noted::Read(0), "one"), (Noted::Read(1), "one"), (Noted::Read(1), "two")];
    let expected = expected.map(|(noted, value)| (noted, note_of_row(b"row", value.as_bytes())));
    assert_eq!(row_log.bytes(), expected.iter().map(super::bytes_of).sum::<usize>());
    assert_eq!(row_log.take(), BTreeSet::from(expected));
    row_log.end();
    note_read(0, [Some("one"), None]);
    assert_eq!(row_log.count(), 0);
}

#[test]
fn long_notes_are_taken_few_at_a_time() {
    const LONG: usize = TAKEN_BYTES / 2;
    let (tree, engine) = lone_tree();
    for run in [usize::MAX, LONG, 3 * LONG] {
        let log = row_log(&tree, &[None]);
        log.wait_no_more(engine.pool.clone(), run, usize::MAX);
        log.provide((0..7).map(|_| engine.transactions.ids().space().unwrap()).collect());
        for n in 0..7u8 {
            log.note(&[n], None, Some(&vec![n; if n == 6 { 3 * LONG } else { LONG }]));
        }
        let taken: Vec<usize> = (0..5).map(|_| log.take_some(10).unwrap().len()).collect();
        assert_eq!((taken, log.count()), (vec![2, 2, 2, 1, 0], 0));
    }
}

/// Values are not read if there is no room for their notes.
#[test]
fn a_log_without_room_for_values_fails_before_they_are_read() {
    let (tree, engine) = lone_tree();
    let each = (3 + ROW_KEY_LENGTH_BYTES + NOTE_OVERHEAD_BYTES) as u64;
    for (excess, runs) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let (log, limit) = log_on_disk(&tree, &engine);
        let held = if runs == 0 { 1_000 } else { 60_000 };
        log.note(b"row", None, Some(&vec![b'.'; held - each as usize]));
        assert_eq!((log.count(), log.runs()), (1, runs));
        let left = (limit - held) as u64 - 2 * each;
        let has_room = log.has_room_for(b"row", &[left / 2, left - left / 2 + excess]);
        assert_eq!((has_room, log.has_ended(), log.count()), (excess == 0, excess > 0, 1 - excess as usize));
        let failed = log.check_notes();
        let is_right =
            matches!(failed, Err(Error::Usage(UsageError::TooManyNotes { limit: of, .. })) if of == limit);
        assert!(if excess == 0 { failed.is_ok() } else { is_right }, "{failed:?}");
        assert!(!log.has_room_for(b"row", &[u64::MAX, u64::MAX]) && log.check_notes().is_err());
    }
    // A build in one step has no limit: its changes wait.
    assert!(row_log(&tree, &[None]).has_room_for(b"row", &[u64::MAX]));
}
