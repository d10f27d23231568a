//! What cannot be served is refused with one line and exit code 2; damage is told with exit code 1.

use std::{fs, path::PathBuf};

use crate::Place;

#[test]
fn a_folder_without_a_database_is_not_made_one_by_reading() {
    let place = Place::new();
    for call in
        [&["tables"][..], &["get", "t", "1"], &["scan", "t"], &["drop", "t"], &["truncate", "t"], &["check"]]
    {
        place.call(call).refused(&["no database in db", "--db"]);
    }
    assert!(!place.path().join("db").exists());
}

#[test]
fn names_that_are_not_there_or_taken() {
    let place = Place::new();
    place.call(&["create", "t", "--columns", "a,b"]).served();
    place.call(&["create", "t", "--columns", "a"]).refused(&["t", "exists"]);
    place.call(&["scan", "u"]).refused(&["no table u"]);
    place.call(&["truncate", "u"]).refused(&["no table u"]);
    place.call(&["drop", "t", "t"]).refused(&["t is named twice"]);
    place.call(&["get", "t", "1"]).refused(&["t has no row with key 1", "windfall scan t"]);
    place.call(&["create", "", "--columns", "a"]).refused(&[]);
}

#[test]
fn columns_that_cannot_be() {
    let place = Place::new();
    place.call(&["create", "t", "--columns", "a,a"]).refused(&["two columns are named a"]);
    place.call(&["create", "t", "--columns", "a,,b"]).refused(&["has no name"]);
    place.call(&["create", "t", "--columns", "a,b", "--key", "c"]).refused(&["no column c", "a, b"]);
    place.feed(&["load", "t"], "a,a\n1,2\n").refused(&["line 1", "two columns are named a"]);
    place.feed(&["load", "t"], "").refused(&["line 1"]);
    place.feed(&["load", "t", "--key", "c"], "a,b\n1,2\n").refused(&["no column c"]);
    place.call(&["create", "t", "--columns", "a,b"]).served();
    place.feed(&["load", "t"], "a,c\n1,2\n").refused(&["t has the key a and the columns b"]);
}

#[test]
fn files_that_cannot_be_read() {
    let place = Place::new();
    place.call(&["load", "t", "nowhere.csv"]).refused(&["nowhere.csv", "cannot be read"]);
    place.call(&["load", "t", "."]).refused(&["is a folder"]);
    assert!(!place.path().join("db").exists(), "nothing is made for a file that is not there");
}

#[test]
fn keys_that_are_too_long() {
    let place = Place::new();
    let long = "k".repeat(100_000);
    place.feed(&["load", "t"], &format!("id,a\n{long},1\n")).refused(&["line 2", "key", "100000"]);
    let told = place.feed(&["load", "t", "--skip-bad"], &format!("id,a\n{long},1\n2,two\n")).served();
    assert!(told.out.starts_with("loaded 1 rows"), "{}", told.out);
}

#[test]
fn command_lines_that_make_no_sense() {
    let place = Place::new();
    for call in [
        &["nonsense"][..],
        &["get", "t"],
        &["create", "t"],
        &["drop"],
        &["scan", "t", "--limit", "many"],
        &["load", "t", "f", "--delimiter", "ab"],
        &["demo", "--pool", "12q"],
        &["demo", "--threads", "0"],
        &["bench", "nothing"],
    ] {
        let told = place.call(call);
        assert_eq!((told.code, told.out.as_str()), (2, ""), "{call:?}");
        assert!(told.err.contains("--help") || told.err.contains("Usage"), "{call:?}: {}", told.err);
    }
    place.call(&["demo", "--big-table", "2g", "--pool", "1g"]).refused(&["--big-table", "--pool"]);
    place.call(&["demo", "--seconds", "2", "--drop-every", "9"]).refused(&["--drop-every"]);
}

#[test]
fn help_and_version_are_answers() {
    let place = Place::new();
    assert!(place.call(&["--help"]).served().out.contains("demo"));
    assert!(place.call(&["--version"]).served().out.starts_with("windfall "));
}

#[test]
fn what_is_no_database_is_refused() {
    let place = Place::new();
    fs::write(place.path().join("db"), "just a file").unwrap();
    let told = place.call(&["tables"]);
    assert_eq!(told.code, 2, "{}", told.err);
    assert_eq!(told.err.lines().count(), 1, "{}", told.err);
}

/// The largest data file of a database.
fn largest_data_file(place: &Place) -> PathBuf {
    let files = fs::read_dir(place.path().join("db/data")).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (entry.metadata().unwrap().len(), entry.path())
    });
    files.max().expect("a database has data files").1
}

#[test]
fn damage_is_found_and_is_no_refusal() {
    let place = Place::new();
    let rows: Vec<String> = (0..5_000).map(|n| format!("{n},{}", "x".repeat(100))).collect();
    place.feed(&["load", "t"], &format!("id,a\n{}\n", rows.join("\n"))).served();
    place.call(&["check"]).served();
    let path = largest_data_file(&place);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    for byte in &mut bytes[middle..middle + 64] {
        *byte ^= 0x55;
    }
    fs::write(&path, bytes).unwrap();
    let told = place.call(&["check"]);
    assert_eq!(told.code, 1, "out: {}\nerr: {}", told.out, told.err);
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    assert!(told.out.contains(&name), "the finding names {name}: {}", told.out);
    let told = place.call(&["--json", "check"]);
    assert_eq!((told.code, &told.json()["sound"]), (1, &false.into()));
}
