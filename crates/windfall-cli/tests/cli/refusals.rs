//! Invalid calls are rejected with one line and exit code 2; damage is reported with exit code 1.

use std::{fs, io::Write as _, path::PathBuf, process::Stdio, thread, time::Duration};

use crate::Folder;

#[test]
fn a_folder_without_a_database_is_not_made_one_by_reading() {
    let folder = Folder::new();
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
            folder.call(call).refused(&["no database in db", "--db"]);
        }
    };
    nothing();
    assert!(!folder.path().join("db").exists());
    fs::create_dir(folder.path().join("db")).unwrap();
    nothing();
    assert_eq!(fs::read_dir(folder.path().join("db")).unwrap().count(), 0);
}

#[test]
fn names_that_are_not_there_or_taken() {
    let folder = Folder::new();
    folder.call(&["create", "t", "--columns", "a,b"]).served();
    folder.call(&["create", "t", "--columns", "a"]).refused(&["t", "exists"]);
    folder.call(&["scan", "u"]).refused(&["no table u"]);
    folder.call(&["truncate", "u"]).refused(&["no table u"]);
    folder.call(&["drop", "t", "t"]).refused(&["t is named twice"]);
    folder.call(&["get", "t", "1"]).refused(&["t has no row with key 1", "windfall scan t"]);
    folder.call(&["create", "", "--columns", "a"]).refused(&[]);
}

#[test]
fn columns_that_cannot_be() {
    let folder = Folder::new();
    folder.call(&["create", "t", "--columns", "a,a"]).refused(&["two columns are named a"]);
    folder.call(&["create", "t", "--columns", "a,,b"]).refused(&["has no name"]);
    folder.call(&["create", "t", "--columns", "a,b", "--key", "c"]).refused(&["no column c", "a, b"]);
    folder.feed(&["load", "t"], "a,a\n1,2\n").refused(&["line 1", "two columns are named a"]);
    for nothing in ["", "\n\n"] {
        folder.feed(&["load", "t"], nothing).refused(&["line 1", "no columns"]);
    }
    folder.file("packed.csv", b"\x1f\x8b\x08\xff,b\n1,2\n");
    folder.call(&["load", "t", "packed.csv"]).refused(&["packed.csv, line 1", "not text in UTF-8"]);
    folder.feed(&["load", "t"], "a\tb\n1\t2\n").refused(&["line 1", "a\\tb", "control character"]);
    folder.call(&["create", "a\nb", "--columns", "a"]).refused(&["a\\nb", "control character"]);
    folder.feed(&["load", "t", "--key", "c"], "a,b\n1,2\n").refused(&["no column c"]);
    folder.call(&["create", "t", "--columns", "a,b"]).served();
    folder
        .feed(&["load", "t"], "a,c\n1,2\n")
        .refused(&["t has the key a and the column b", "standard input has the key a and the column c"]);
}

#[test]
fn long_quotes_in_messages_are_truncated() {
    let folder = Folder::new();
    folder.call(&["create", "t", "--columns", "a,b"]).served();
    folder.feed(&["load", "t"], &format!("a,b\n{},x\n", "k".repeat(3_000))).served();
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
        let printed = folder.feed(arguments, &input).refused(&[words, "..."]);
        assert!(printed.err.len() < 600, "{} bytes: {}", printed.err.len(), printed.err);
    }
    let name = format!("{}\t", "n".repeat(5_000));
    let printed = folder.call(&["create", &name, "--columns", "a"]).refused(&["nnn...", "control character"]);
    assert!(printed.err.len() < 600, "{}", printed.err);
}

#[test]
fn lines_without_an_end() {
    let folder = Folder::new();
    // The load stops at a header without an end, and at any other such line.
    folder
        .call(&["load", "t", "/dev/zero"])
        .refused(&["/dev/zero, line 1 (the header)", "longer than 1.00 MiB"]);
    let endless = |head: &str, arguments: &[&str]| {
        let mut child =
            folder.command(&[&["load", "t"], arguments].concat()).stdin(Stdio::piped()).spawn().unwrap();
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
    folder.feed(&["load", "t", "--max-line", "1001"], &lines).served();
    folder.feed(&["load", "u", "--max-line", "1000"], &lines).refused(&["line 2", "longer than 1000 B"]);
}

#[test]
fn files_that_cannot_be_read() {
    let folder = Folder::new();
    folder.call(&["load", "t", "nowhere.csv"]).refused(&["nowhere.csv", "cannot be read"]);
    folder.call(&["load", "t", "."]).refused(&["is a folder"]);
    assert!(!folder.path().join("db").exists(), "nothing is made for a file that is not there");
}

#[test]
fn keys_that_are_too_long() {
    let folder = Folder::new();
    let long = "k".repeat(100_000);
    folder.feed(&["load", "t"], &format!("id,a\n{long},1\n")).refused(&["line 2", "key", "100000"]);
    let printed = folder.feed(&["load", "t", "--skip-bad"], &format!("id,a\n{long},1\n2,two\n")).served();
    assert!(printed.out.starts_with("loaded 1 row into"), "{}", printed.out);
}

#[test]
fn command_lines_that_make_no_sense() {
    let folder = Folder::new();
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
        let printed = folder.call(call);
        assert_eq!((printed.code, printed.out.as_str()), (2, ""), "{call:?}");
        assert!(printed.err.contains("--help") || printed.err.contains("Usage"), "{call:?}: {}", printed.err);
    }
    folder.call(&["demo", "--big-table", "2g", "--pool", "1g"]).refused(&["--big-table", "--pool"]);
    folder.call(&["demo", "--seconds", "2", "--drop-every", "9"]).refused(&["--drop-every"]);
}

#[test]
fn help_and_version_are_answers() {
    let folder = Folder::new();
    assert!(folder.call(&["--help"]).served().out.contains("demo"));
    assert!(folder.call(&["--version"]).served().out.starts_with("windfall "));
}

#[test]
fn a_path_that_is_not_a_database_is_refused() {
    let folder = Folder::new();
    fs::write(folder.path().join("db"), "just a file").unwrap();
    for call in [&["tables"][..], &["create", "t", "--columns", "a"]] {
        folder.call(call).refused(&["db is a file"]);
    }
}

#[test]
fn an_answer_that_cannot_be_written_is_an_error() {
    let folder = Folder::new();
    folder.feed(&["load", "t"], "a,b\n1,2\n").served();
    for call in [&["tables"][..], &["scan", "t"], &["--json", "scan", "t"], &["get", "t", "1"], &["check"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let printed = crate::printed(&folder.command(call).stdout(full).output().unwrap());
        printed.refused(&["the answer cannot be written"]);
        // A reader that closes the pipe early is not a failure.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let printed = crate::printed(&folder.command(call).stdout(writer).output().unwrap());
        assert_eq!((printed.code, printed.err.as_str()), (0, ""), "{call:?}");
    }
}

#[test]
fn a_database_in_use_is_refused() {
    let folder = Folder::new();
    let mut child = folder.command(&["load", "t"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"a,b\n1,2\n").unwrap();
    while !folder.path().join("db/windfall.control").exists() {
        thread::sleep(Duration::from_millis(5));
    }
    folder.call(&["tables"]).refused(&["db is in use by another process"]);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    folder.call(&["tables"]).served();
}

#[test]
fn a_control_file_that_is_lost_is_damage() {
    let folder = Folder::new();
    folder.feed(&["load", "t"], "a,b\n1,2\n").served();
    fs::remove_file(folder.path().join("db/windfall.control")).unwrap();
    let printed = folder.call(&["check"]);
    assert_eq!(printed.code, 1, "out: {}\nerr: {}", printed.out, printed.err);
    for words in ["db/windfall.control", "missing", "restore", "backup"] {
        assert!(printed.out.contains(words), "{words}: {}", printed.out);
    }
    for call in [&["tables"][..], &["create", "u", "--columns", "a"]] {
        folder.call(call).refused(&["db/windfall.control", "missing", "restore", "backup"]);
    }
}

#[test]
fn a_folder_that_may_not_be_looked_into_is_not_called_empty() {
    let folder = Folder::new();
    // A user with all permissions could read any folder, but even that user cannot resolve a circular symbolic link.
    std::os::unix::fs::symlink("db", folder.path().join("db")).unwrap();
    for call in [&["tables"][..], &["check"]] {
        let printed = folder.call(call).refused(&["db", "symbolic links"]);
        assert!(!printed.err.contains("no database"), "{}", printed.err);
    }
    folder.call(&["create", "t", "--columns", "a"]).refused(&["db cannot be created"]);
}

/// Returns the largest data file of a database.
fn largest_data_file(folder: &Folder) -> PathBuf {
    let files = fs::read_dir(folder.path().join("db/data")).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (entry.metadata().unwrap().len(), entry.path())
    });
    files.max().expect("a database has data files").1
}

#[test]
fn damage_is_found_and_is_no_refusal() {
    let folder = Folder::new();
    let rows: Vec<String> = (0..5_000).map(|n| format!("{n},{}", "x".repeat(100))).collect();
    folder.feed(&["load", "t"], &format!("id,a\n{}\n", rows.join("\n"))).served();
    folder.call(&["check"]).served();
    let path = largest_data_file(&folder);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    for byte in &mut bytes[middle..middle + 64] {
        *byte ^= 0x55;
    }
    fs::write(&path, bytes).unwrap();
    // A page that was written last would be repaired from its copy in the doublewrite file.
    let copies = folder.path().join("db/windfall.doublewrite");
    let length = fs::metadata(&copies).unwrap().len();
    fs::write(&copies, vec![0; length as usize]).unwrap();
    let printed = folder.call(&["check"]);
    assert_eq!(printed.code, 1, "out: {}\nerr: {}", printed.out, printed.err);
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    assert!(printed.out.contains(&name), "the finding names {name}: {}", printed.out);
    let printed = folder.call(&["--json", "check"]);
    assert_eq!((printed.code, &printed.json()["sound"]), (1, &false.into()));
}

#[test]
fn leaked_missing_and_foreign_files_are_reported() {
    let folder = Folder::new();
    folder.feed(&["load", "t"], "id,a\n1,x\n").served();
    let data = folder.path().join("db/data");
    let foreign = data.join("notes.txt");
    fs::write(&foreign, "mine").unwrap();
    let printed = folder.call(&["check"]).served();
    assert!(printed.out.contains("notes.txt") && printed.out.contains("sound"), "{}", printed.out);
    let leaked = data.join("00000000000fffff.tree");
    let table = largest_data_file(&folder);
    fs::copy(&table, &leaked).unwrap();
    let printed = folder.call(&["--json", "check"]);
    assert_eq!((printed.code, &printed.json()["sound"]), (1, &false.into()), "{}", printed.out);
    assert!(
        printed.json()["findings"][0].as_str().unwrap().contains("00000000000fffff.tree"),
        "{}",
        printed.out
    );
    assert!(printed.json()["foreign"][0].as_str().unwrap().contains("notes.txt"), "{}", printed.out);
    assert_eq!(fs::read(&foreign).unwrap(), b"mine");
    fs::remove_file(&table).unwrap();
    let printed = folder.call(&["check"]);
    assert_eq!(printed.code, 1, "out: {}\nerr: {}", printed.out, printed.err);
    assert!(printed.out.contains("missing"), "{}", printed.out);
}
