//! Invalid calls are rejected with one line and exit code 2; damage is reported with exit code 1.

use std::{fs, io::Write as _, path::PathBuf, process::Stdio, thread, time::Duration};

use crate::Place;

#[test]
fn a_folder_without_a_database_is_not_made_one_by_reading() {
    let place = Place::new();
    let nothing = || {
        for call in [
            &["tables"][..],
            &["get", "t", "1"],
            &["scan", "t"],
            &["drop", "t"],
            &["truncate", "t"],
            &["check"],
            &["shell"],
        ] {
            place.call(call).refused(&["no database in db", "--db"]);
        }
    };
    nothing();
    assert!(!place.path().join("db").exists());
    fs::create_dir(place.path().join("db")).unwrap();
    nothing();
    assert_eq!(fs::read_dir(place.path().join("db")).unwrap().count(), 0);
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
    for nothing in ["", "\n\n"] {
        place.feed(&["load", "t"], nothing).refused(&["line 1", "no columns"]);
    }
    place.file("packed.csv", b"\x1f\x8b\x08\xff,b\n1,2\n");
    place.call(&["load", "t", "packed.csv"]).refused(&["packed.csv, line 1", "not text in UTF-8"]);
    place.feed(&["load", "t"], "a\tb\n1\t2\n").refused(&["line 1", "a\\tb", "control character"]);
    place.call(&["create", "a\nb", "--columns", "a"]).refused(&["a\\nb", "control character"]);
    place.feed(&["load", "t", "--key", "c"], "a,b\n1,2\n").refused(&["no column c"]);
    place.call(&["create", "t", "--columns", "a,b"]).served();
    place
        .feed(&["load", "t"], "a,c\n1,2\n")
        .refused(&["t has the key a and the column b", "standard input has the key a and the column c"]);
}

#[test]
fn what_is_quoted_is_cut() {
    let place = Place::new();
    place.call(&["create", "t", "--columns", "a,b"]).served();
    place.feed(&["load", "t"], &format!("a,b\n{},x\n", "k".repeat(3_000))).served();
    let (zeros, long) = ("\0".repeat(5_000), "c".repeat(5_000));
    let many: Vec<String> = (0..20_000).map(|n| format!("column{n}")).collect();
    let many = many.join(",");
    for (arguments, input, words) in [
        (&["load", "u"][..], format!("{zeros}\n1\n"), "\\u{0}"),
        (&["load", "u"], format!("{long},{long}\n"), "two columns are named ccc"),
        (&["load", "u", "--key", "none"], format!("{many}\n"), "no column none"),
        (&["load", "u", "--key", &long], "a,b\n".into(), "no column ccc"),
        (&["load", "t"], format!("{many}\n"), "and 19,9"),
        (&["load", "t"], format!("a,b\n{},x\n", "k".repeat(3_000)), "the key kkk"),
    ] {
        let printed = place.feed(arguments, &input).refused(&[words, "..."]);
        assert!(printed.err.len() < 600, "{} bytes: {}", printed.err.len(), printed.err);
    }
    let name = format!("{}\t", "n".repeat(5_000));
    let printed = place.call(&["create", &name, "--columns", "a"]).refused(&["nnn...", "control character"]);
    assert!(printed.err.len() < 600, "{}", printed.err);
}

#[test]
fn lines_without_an_end() {
    let place = Place::new();
    // The load stops at a header without an end, and at any other such line.
    place
        .call(&["load", "t", "/dev/zero"])
        .refused(&["/dev/zero, line 1 (the header)", "longer than 1.00 MiB"]);
    let endless = |head: &str, arguments: &[&str]| {
        let mut child =
            place.command(&[&["load", "t"], arguments].concat()).stdin(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(head.as_bytes()).unwrap();
        let piece = "x".repeat(1 << 16);
        let written = (0..2_000).take_while(|_| pipe.write_all(piece.as_bytes()).is_ok()).count();
        drop(pipe);
        (crate::printed(&child.wait_with_output().unwrap()), written << 16)
    };
    let (printed, written) = endless("a,b\n1,one\n2,\"", &["--max-line", "1m"]);
    printed.refused(&["line 3", "longer than 1.00 MiB", "quote", "--max-line", "nothing was loaded"]);
    assert!(written < 2 << 20, "{written} bytes were read");
    let (printed, written) = endless("a,b\n1,", &["--skip-bad"]);
    printed.refused(&["line 2", "longer than 64.0 MiB"]);
    assert!(written < 65 << 20, "{written} bytes were read");
    // The length counts from the start of the line, wherever it is in the file.
    let lines = format!("a,b\n1,{}\n", "x".repeat(998));
    place.feed(&["load", "t", "--max-line", "1001"], &lines).served();
    place.feed(&["load", "u", "--max-line", "1000"], &lines).refused(&["line 2", "longer than 1000 B"]);
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
    let printed = place.feed(&["load", "t", "--skip-bad"], &format!("id,a\n{long},1\n2,two\n")).served();
    assert!(printed.out.starts_with("loaded 1 row into"), "{}", printed.out);
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
        let printed = place.call(call);
        assert_eq!((printed.code, printed.out.as_str()), (2, ""), "{call:?}");
        assert!(printed.err.contains("--help") || printed.err.contains("Usage"), "{call:?}: {}", printed.err);
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
    for call in [&["tables"][..], &["create", "t", "--columns", "a"]] {
        place.call(call).refused(&["db is a file"]);
    }
}

#[test]
fn an_answer_that_cannot_be_written_is_an_error() {
    let place = Place::new();
    place.feed(&["load", "t"], "a,b\n1,2\n").served();
    for call in [&["tables"][..], &["scan", "t"], &["--json", "scan", "t"], &["get", "t", "1"], &["check"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let printed = crate::printed(&place.command(call).stdout(full).output().unwrap());
        printed.refused(&["the answer cannot be written"]);
        // A reader that closes the pipe early is not a failure.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let printed = crate::printed(&place.command(call).stdout(writer).output().unwrap());
        assert_eq!((printed.code, printed.err.as_str()), (0, ""), "{call:?}");
    }
}

#[test]
fn a_database_in_use_is_refused() {
    let place = Place::new();
    let mut child = place.command(&["load", "t"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"a,b\n1,2\n").unwrap();
    while !place.path().join("db/windfall.control").exists() {
        thread::sleep(Duration::from_millis(5));
    }
    place.call(&["tables"]).refused(&["db is in use by another process"]);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    place.call(&["tables"]).served();
}

#[test]
fn a_control_file_that_is_lost_is_damage() {
    let place = Place::new();
    place.feed(&["load", "t"], "a,b\n1,2\n").served();
    fs::remove_file(place.path().join("db/windfall.control")).unwrap();
    let printed = place.call(&["check"]);
    assert_eq!(printed.code, 1, "out: {}\nerr: {}", printed.out, printed.err);
    for words in ["db/windfall.control", "missing", "restore", "backup"] {
        assert!(printed.out.contains(words), "{words}: {}", printed.out);
    }
    for call in [&["tables"][..], &["create", "u", "--columns", "a"]] {
        place.call(call).refused(&["db/windfall.control", "missing", "restore", "backup"]);
    }
}

#[test]
fn a_folder_that_may_not_be_looked_into_is_not_called_empty() {
    let place = Place::new();
    // A user with all permissions could read any folder, but even that user cannot resolve a circular symbolic link.
    std::os::unix::fs::symlink("db", place.path().join("db")).unwrap();
    for call in [&["tables"][..], &["check"]] {
        let printed = place.call(call).refused(&["db", "symbolic links"]);
        assert!(!printed.err.contains("no database"), "{}", printed.err);
    }
    place.call(&["create", "t", "--columns", "a"]).refused(&["db cannot be made"]);
}

/// Returns the largest data file of a database.
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
    // A page that was written last would be repaired from its copy in the doublewrite file.
    let copies = place.path().join("db/windfall.doublewrite");
    let length = fs::metadata(&copies).unwrap().len();
    fs::write(&copies, vec![0; length as usize]).unwrap();
    let printed = place.call(&["check"]);
    assert_eq!(printed.code, 1, "out: {}\nerr: {}", printed.out, printed.err);
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    assert!(printed.out.contains(&name), "the finding names {name}: {}", printed.out);
    let printed = place.call(&["--json", "check"]);
    assert_eq!((printed.code, &printed.json()["sound"]), (1, &false.into()));
}

#[test]
fn leaked_missing_and_foreign_files_are_reported() {
    let place = Place::new();
    place.feed(&["load", "t"], "id,a\n1,x\n").served();
    let data = place.path().join("db/data");
    let foreign = data.join("notes.txt");
    fs::write(&foreign, "mine").unwrap();
    let printed = place.call(&["check"]).served();
    assert!(printed.out.contains("notes.txt") && printed.out.contains("sound"), "{}", printed.out);
    let leaked = data.join("00000000000fffff.tree");
    let table = largest_data_file(&place);
    fs::copy(&table, &leaked).unwrap();
    let printed = place.call(&["--json", "check"]);
    assert_eq!((printed.code, &printed.json()["sound"]), (1, &false.into()), "{}", printed.out);
    assert!(
        printed.json()["findings"][0].as_str().unwrap().contains("00000000000fffff.tree"),
        "{}",
        printed.out
    );
    assert!(printed.json()["foreign"][0].as_str().unwrap().contains("notes.txt"), "{}", printed.out);
    assert_eq!(fs::read(&foreign).unwrap(), b"mine");
    fs::remove_file(&table).unwrap();
    let printed = place.call(&["check"]);
    assert_eq!(printed.code, 1, "out: {}\nerr: {}", printed.out, printed.err);
    assert!(printed.out.contains("missing"), "{}", printed.out);
}
