//! The shell: statements from standard input, several sessions, and its end.

use std::{
    io::{Read as _, Write as _},
    process::{Command, Stdio},
    thread,
};

use serde_json::{Value, json};

use crate::{Folder, Printed};

/// Creates a database with a table of two rows.
pub(crate) fn people() -> Folder {
    let folder = Folder::new();
    folder.call(&["create", "people", "--columns", "name,town"]).served();
    folder.feed(&["load", "people"], "name,town\nada,London\nbob,Oslo\n").served();
    folder
}

impl Folder {
    pub(crate) fn shell(&self, script: &str) -> Printed {
        self.feed(&["shell"], script)
    }

    /// Asserts the answers of a script, one per line.
    #[track_caller]
    fn says(&self, script: &str, answer: &[&str]) {
        let printed = self.shell(script).served();
        assert_eq!(printed.err, "");
        let lines: Vec<&str> = printed.out.lines().collect();
        assert_eq!(numbered(&lines), answer, "{}", printed.out);
    }

    /// Returns the JSON objects of a script, one per line.
    fn objects(&self, arguments: &[&str], script: &str) -> (Printed, Vec<Value>) {
        let printed = self.feed(&[&["--json", "shell"], arguments].concat(), script);
        let objects = printed.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (printed, objects)
    }
}

/// Replaces the numbers of transactions, which differ in each run, by numbers in the order of appearance; and several
/// blanks by one, because the numbers differ in length.
fn numbered(lines: &[&str]) -> Vec<String> {
    let mut met: Vec<String> = Vec::new();
    let mut number = |word: &str| -> String {
        let digits = word.trim_end_matches([',', ':']);
        if digits.len() < 5 || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return word.to_owned();
        }
        let at = met.iter().position(|known| known == digits).unwrap_or_else(|| {
            met.push(digits.to_owned());
            met.len() - 1
        });
        format!("T{}{}", at + 1, &word[digits.len()..])
    };
    lines.iter().map(|line| line.split_whitespace().map(&mut number).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn rows_are_written_and_read() {
    let folder = people();
    folder.says(
        "# a comment, and a line with nothing\n\n\
         put people 'eve \\'x\\'' \"a\\tb\"\n\
         insert people cat Rome # behind a statement\n\
         GET people cat\n\
         get people nobody\n\
         delete people bob\n\
         delete people bob\n\
         scan people\n\
         scan people from b to e reverse limit 1\n\
         scan people from c to b\n\
         scan people limit 0\n",
        &[
            "put",
            "inserted",
            "name town",
            "cat Rome",
            "1 row",
            "no rows",
            "deleted",
            "no row",
            "name town",
            "ada London",
            "cat Rome",
            "eve 'x' a\\tb",
            "3 rows",
            "name town",
            "cat Rome",
            "1 row",
            "no rows",
            "no rows",
        ],
    );
    assert_eq!(folder.call(&["--json", "get", "people", "eve 'x'"]).served().json()["town"], "a\tb");
}

#[test]
fn tables_come_and_go() {
    let folder = people();
    folder.says(
        "create k id\nput k 1\nscan k\ncreate t id, a ,b\nrename t to u\ntruncate people\nscan people\ndrop k u\ntables\n",
        &[
            "created k (key: id)",
            "put",
            "id",
            "1",
            "1 row",
            "created t (key: id)",
            "renamed t to u",
            "truncated people",
            "no rows",
            "dropped k, u",
            "table file indexes key columns",
            "people 0 B - name town",
        ],
    );
}

#[test]
fn a_waiting_session_continues_after_the_commit_of_another() {
    let folder = people();
    folder.says(
        "begin\nput people ada Paris\n\
         session b\nget people ada\nput people ada Turin\nsessions\nwaits\n\
         session main\nget people ada\ncommit\nget people ada\n\
         session b\nsessions\n",
        &[
            "begun, repeatable read",
            "put",
            "session b is new",
            "b:",
            "name town",
            "ada London",
            "1 row",
            "session b waits for transaction T1",
            "session transaction level statement",
            "main T1 repeatable read -",
            "b - - waits for transaction T1",
            "transaction session waits for lock",
            "T2 b transaction T1 row \"ada\" of tablespace 16, exclusive",
            "session main",
            "main:",
            "name town",
            "ada Paris",
            "1 row",
            "main: committed",
            "b: put",
            "main:",
            "name town",
            "ada Turin",
            "1 row",
            "session b",
            "session transaction level statement",
            "main - - -",
            "b - - -",
        ],
    );
}

#[test]
fn statements_of_three_sessions_are_distinguished() {
    let folder = people();
    let (printed, objects) = folder.objects(
        &[],
        "begin\nput people ada 1\nsession b\nput people ada 2\nsession c\ntruncate people\nsession d\nput people ada 4\n\
         sessions\nsession main\ncommit\nwait\n",
    );
    printed.served();
    assert_eq!(objects.last().unwrap(), &json!({ "session": "main", "line": 12, "waited": true }));
    let waits: Vec<_> = objects.iter().filter(|o| o.get("waits_for").is_some()).collect();
    let first = |name: &str| {
        waits.iter().find(|o| o["session"] == name).unwrap_or_else(|| panic!("{name}: {objects:?}"))
    };
    assert_eq!((&first("b")["line"], &first("c")["line"]), (&json!(4), &json!(6)));
    let sessions = objects.iter().find_map(|o| o.get("sessions")).unwrap();
    assert_eq!(sessions[0]["under_way"], false);
    assert!(sessions[1]["waits_for"].is_array() && sessions[2]["waits_for"].is_array(), "{sessions}");
    for (name, line) in [("b", 4), ("c", 6), ("d", 8)] {
        let done =
            |o: &&Value| o["session"] == name && (o.get("put").is_some() || o.get("truncated").is_some());
        let answers: Vec<_> = objects.iter().filter(done).collect();
        assert_eq!(answers.len(), 1, "{name}: {objects:?}");
        assert_eq!(answers[0]["line"], line, "{name}");
    }
}

#[test]
fn a_deadlock_ends_one_transaction_and_says_so() {
    let folder = people();
    let printed = folder.feed(
        &["shell", "--keep-going"],
        "begin\nput people ada 1\n\
         session b\nbegin\nput people bob 2\nput people ada 2\n\
         session main\nput people bob 1\ncommit\n\
         session b\ncommit\ndeadlock\nscan people\n",
    );
    assert_eq!(printed.code, 1, "{}", printed.err);
    let err: Vec<&str> = printed.err.lines().collect();
    assert_eq!(err.len(), 2, "{}", printed.err);
    assert!(err[0].starts_with("windfall: line 8: session main: a deadlock: "), "{}", printed.err);
    assert!(err[0].ends_with("; the transaction is over"), "{}", printed.err);
    assert_eq!(
        err[1],
        "windfall: line 9: no transaction is open: `begin` one first".replace("9: ", "9: session main: ")
    );
    let lines: Vec<&str> = printed.out.lines().collect();
    let lines = numbered(&lines);
    let from = lines.iter().position(|line| line == "b: committed").unwrap();
    assert_eq!(lines[from - 2..from], ["b: put", "session b"]);
    assert_eq!(
        lines[from + 1..],
        [
            "transaction T1 waited for transaction T2: row \"bob\" of tablespace 16, exclusive",
            "it held row \"ada\" of tablespace 16, exclusive; its weight in rows and locks: 3",
            "transaction T2 waited for transaction T1: row \"ada\" of tablespace 16, exclusive",
            "it held row \"bob\" of tablespace 16, exclusive; its weight in rows and locks: 3",
            "transaction T1 was rolled back",
            "b:",
            "name town",
            "ada 2",
            "bob 2",
            "2 rows",
        ]
    );
}

#[test]
fn a_wait_is_interrupted() {
    let folder = people();
    let printed = folder.feed(
        &["shell", "--keep-going"],
        "begin\nput people ada 1\nsession b\nbegin\nput people bob 2\nput people ada 2\nsession main\ninterrupt b\nwait\n\
         interrupt b\ninterrupt\nsession b\ncommit\n",
    );
    assert_eq!(printed.code, 1, "{}", printed.err);
    let err: Vec<&str> = printed.err.lines().collect();
    assert_eq!(err.len(), 3, "{}", printed.err);
    assert!(
        err[0].starts_with("windfall: line 6: session b: another thread interrupted the call"),
        "{}",
        printed.err
    );
    assert!(
        err[1].ends_with("there is no session b that waits for a lock: `waits` lists those that do"),
        "{}",
        printed.err
    );
    assert!(
        err[2].ends_with("the name of a session is missing: the form is `interrupt NAME`"),
        "{}",
        printed.err
    );
    assert!(
        printed.out.contains("session b is interrupted\n") && printed.out.contains("b: committed\n"),
        "{}",
        printed.out
    );
}

#[test]
fn a_part_of_a_transaction_is_rolled_back() {
    let folder = people();
    folder.says(
        "begin snapshot\nput people ada 1\nsavepoint s\nput people ada 2\nsavepoint u\ndelete people bob\nrollback to s\n\
         get people ada\nrelease s\nscan people\nrollback\nget people ada\n",
        &[
            "begun, snapshot",
            "put",
            "savepoint s",
            "put",
            "savepoint u",
            "deleted",
            "rolled back to s",
            "name town",
            "ada 1",
            "1 row",
            "released s",
            "name town",
            "ada 1",
            "bob Oslo",
            "2 rows",
            "rolled back",
            "name town",
            "ada London",
            "1 row",
        ],
    );
}

#[test]
fn a_prepared_transaction_waits_for_another_run() {
    let folder = people();
    folder.says(
        "begin\nput people ada 1\nprepare 'x \\x00'\nprepared\nsession b\nbegin\nput people bob 2\nprepare y\nsessions\n",
        &[
            "begun, repeatable read",
            "put",
            "prepared as x \\u{0}",
            "name transaction",
            "x \\u{0} T1",
            "session b is new",
            "b: begun, repeatable read",
            "b: put",
            "b: prepared as y",
            "session transaction level statement",
            "main - - -",
            "b - - -",
        ],
    );
    // The row is still locked, and a wait for it is abandoned at the end of the script.
    let printed = folder.shell("put people ada 3\n");
    assert_eq!((printed.code, printed.err.lines().count()), (1, 1), "{}", printed.err);
    assert!(printed.err.contains("its statement still waits for transaction"), "{}", printed.err);
    assert!(printed.out.starts_with("session main waits for transaction "), "{}", printed.out);
    folder.says(
        "commit prepared 'x \\x00'\nrollback prepared y\nprepared\nscan people\n",
        &[
            "committed x \\u{0}",
            "rolled back y",
            "no prepared transactions",
            "name town",
            "ada 1",
            "bob Oslo",
            "2 rows",
        ],
    );
}

#[test]
fn open_transactions_are_rolled_back_at_the_end() {
    let folder = people();
    for end in ["", "quit\nput people bob 9\n"] {
        folder.says(
            &format!("begin\nput people ada 1\nsession b\nput people ada 2\nsession c\nbegin\n{end}"),
            &[
                "begun, repeatable read",
                "put",
                "session b is new",
                "session b waits for transaction T1",
                "session c is new",
                "c: begun, repeatable read",
                "main: the open transaction is rolled back",
                "c: the open transaction is rolled back",
                // The statement that this unblocks continues.
                "b: put",
            ],
        );
        let printed = folder.shell("scan people\nput people ada London\n").served();
        assert_eq!(printed.out, "name  town\nada   2\nbob   Oslo\n2 rows\nput\n");
    }
    assert_eq!(folder.call(&["--json", "check"]).served().json()["sound"], true);
}

#[test]
fn a_script_stops_at_the_first_failure_unless_it_is_to_go_on() {
    let folder = people();
    let script = "begin\nput people ada 1\nput nowhere 1 2\nput people bob 1\ncommit\nnonsense\n";
    let printed = folder.shell(script);
    assert_eq!((printed.code, &printed.err[..]), (1, "windfall: line 3: there is no table nowhere\n"));
    assert_eq!(printed.out, "begun, repeatable read\nput\nthe open transaction is rolled back\n");
    let printed = folder.feed(&["shell", "--keep-going"], script);
    assert_eq!(printed.code, 1);
    assert_eq!(
        printed.err,
        "windfall: line 3: there is no table nowhere\nwindfall: line 6: there is no statement nonsense: `help` lists those \
         there are\n"
    );
    assert_eq!(printed.out, "begun, repeatable read\nput\nput\ncommitted\n");
    // A failure of a statement that had to wait is reported with its line.
    let printed = folder.shell(
        "begin\nput people ada 1\nsession b\nbegin snapshot consistent snapshot\nput people ada 2\nsession main\ncommit\n\
         put people bob 3\n",
    );
    assert_eq!(printed.code, 1);
    assert!(
        printed.err.starts_with("windfall: line 5: session b: a row of table people has changed"),
        "{}",
        printed.err
    );
    assert!(
        printed.out.ends_with("main: committed\nb: the open transaction is rolled back\n"),
        "{}",
        printed.out
    );
}

#[test]
fn impossible_statements_are_refused() {
    let folder = people();
    let lines = [
        ("commit", "no transaction is open"),
        ("rollback", "no transaction is open"),
        ("savepoint s", "no transaction is open"),
        ("rollback to s", "no transaction is open"),
        ("release s", "no transaction is open"),
        ("prepare x", "no transaction is open"),
        ("commit prepared x", "no transaction is prepared as \"x\""),
        ("rollback prepared x", "no transaction is prepared as \"x\""),
        ("get people ada for share", "`begin` one first"),
        ("scan people for update", "`begin` one first"),
        ("put people ada", "people takes the key name, then town: after the key there are 0 fields"),
        ("put people ada a b", "there are 2 fields"),
        ("insert people ada a", "duplicate key in table people"),
        ("get nowhere 1", "no table nowhere"),
        ("create people a", "a table people exists already"),
        ("create u a,a", "two columns are named a"),
        ("create u a,,b", "has no name"),
        ("create 'a\\nb' a", "control character"),
        ("drop people people", "people is named twice"),
        ("drop people nowhere", "nowhere"),
        ("truncate nowhere", "no table nowhere"),
        ("rename nowhere to u", "no table nowhere"),
        ("rename people to 'a\\tb'", "control character"),
        ("session ''", "a session has a name"),
        ("session 'a\\nb'", "control character"),
        ("help me", "no statement me"),
        ("get people", "the key is missing: the form is `get TABLE KEY"),
        ("get people 'ada", "never closed"),
        ("begin read only", ""),
        ("begin", "a transaction is open"),
        ("put people ada 1", "is read-only"),
        ("drop people", "`drop` is no part of a transaction"),
        ("truncate people", "`truncate` is no part of a transaction"),
        ("rename people to u", "`rename` is no part of a transaction"),
        ("create u a", "`create` is no part of a transaction"),
        ("rollback to s", "no savepoint \"s\""),
        ("release s", "no savepoint \"s\""),
        ("prepare ''", "name"),
        ("commit", ""),
        ("begin nowait", ""),
        ("put people ada 1", ""),
        ("session b", ""),
        ("begin nowait", ""),
        ("put people ada 2", "session b: the lock is held or requested by transaction"),
        ("rollback", ""),
        ("begin wait 0.05", ""),
        ("put people ada 2", "session b: lock wait timeout exceeded after"),
        ("wait", ""),
        ("rollback", ""),
        ("put people ada 2", ""),
        ("get people ada", "session b: its last statement is still in progress, which waits for transaction"),
    ];
    let script: Vec<&str> = lines.iter().map(|(line, _)| *line).collect();
    let printed = folder.feed(&["shell", "--keep-going"], &script.join("\n"));
    assert_eq!(printed.code, 1, "{}", printed.err);
    let mut err: Vec<&str> = printed.err.lines().collect();
    for (n, (line, what)) in lines.iter().enumerate().filter(|(_, (_, what))| !what.is_empty()) {
        let begins = format!("windfall: line {}: ", n + 1);
        let at = err.iter().position(|e| e.starts_with(&begins));
        let said = err.remove(at.unwrap_or_else(|| panic!("{line} was not refused: {}", printed.err)));
        assert!(said.contains(what), "{line}: {what:?} is not in {said}");
    }
    assert!(err.is_empty(), "refused, too: {err:?}");
    assert_eq!(folder.shell("scan people\n").served().out, "name  town\nada   2\nbob   Oslo\n2 rows\n");
}

#[test]
fn lines_that_are_no_lines() {
    let folder = people();
    let feed = |bytes: &[u8]| {
        let mut child = folder.command(&["shell", "--keep-going"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let bytes = bytes.to_vec();
        // The shell may end before it has read everything.
        let writer = thread::spawn(move || drop(pipe.write_all(&bytes)));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        crate::printed(&output)
    };
    let printed = feed(b"put people x \xff\nput people '\\xff' ok");
    assert_eq!((printed.code, &printed.out[..]), (1, "put\n"));
    assert!(
        printed.err.contains("line 1: the line is not text in UTF-8") && printed.err.contains("\\xHH"),
        "{}",
        printed.err
    );
    let printed = feed(&[&b"put people x "[..], &vec![b'x'; 17 << 20]].concat());
    assert_eq!((printed.code, &printed.out[..]), (1, ""));
    assert!(printed.err.contains("line 1: the line is longer than 16.0 MiB"), "{}", printed.err);
}

#[test]
fn transactions_and_views_are_listed() {
    let folder = people();
    let (printed, objects) = folder.objects(
        &[],
        "begin\nget people ada\ntransactions\nviews\nput people ada 1\nsession b\nbegin\nput people bob 2\nprepare b1\n\
         transactions\nviews\nsession main\ncommit\nviews\nrollback prepared b1\ntransactions\n",
    );
    printed.served();
    let lists = |name: &str| -> Vec<Vec<Value>> {
        objects.iter().filter_map(|o| o.get(name)?.as_array().cloned()).collect()
    };
    let [none, both, gone] = &lists("transactions")[..] else { panic!("{objects:?}") };
    assert_eq!((none.len(), both.len(), gone.len()), (0, 2, 0));
    let known = |of: &Value| [&of["session"], &of["state"], &of["name"], &of["changes"]].map(Clone::clone);
    assert_eq!(known(&both[0]), [json!("main"), json!("open"), json!(null), json!(true)]);
    assert_eq!(known(&both[1])[1..], [json!("prepared"), json!("b1"), json!(true)]);
    assert!(both.iter().all(|one| one["age_s"].as_f64().is_some_and(|age| age < 60.0)), "{both:?}");
    let [one, old, over] = &lists("views")[..] else { panic!("{objects:?}") };
    assert_eq!((one.len(), old.len(), over.len()), (1, 1, 0));
    assert_eq!((&one[0]["transactions_since"], &old[0]["transactions_since"]), (&json!(0), &json!(2)));
}

#[test]
fn a_shell_makes_no_database() {
    let folder = Folder::new();
    folder.call(&["shell"]).refused(&["no database in db", "--db"]);
    assert!(!folder.path().join("db").exists());
}

#[test]
fn programs_get_one_object_a_line() {
    let folder = people();
    let (printed, objects) = folder.objects(
        &["--keep-going"],
        "begin serializable\nget people ada\nput people '\\xff' x\nnonsense\ncommit\nscan people from c\nget people no\n\
         sessions\nprepared\ndeadlock\nlocks\nwaits\nstatus\nhelp wait\ntables\nsession b\nbegin\n",
    );
    assert_eq!(printed.code, 1);
    let line = |n: usize| {
        let mut objects = objects.iter().filter(|o| o["line"] == n);
        let mut object = objects.next().unwrap_or_else(|| panic!("line {n}: {}", printed.out)).clone();
        object.as_object_mut().unwrap().remove("line");
        object
    };
    let main = |mut object: Value| {
        object["session"] = "main".into();
        object
    };
    assert_eq!(line(1), main(json!({ "begun": "serializable" })));
    assert_eq!(line(2), main(json!({ "rows": [{ "name": "ada", "town": "London" }] })));
    assert_eq!(line(3), main(json!({ "put": true })));
    assert!(line(4)["error"].as_str().unwrap().contains("no statement nonsense"));
    assert_eq!(line(5), main(json!({ "committed": true })));
    assert_eq!(line(6), main(json!({ "rows": [{ "name": { "hex": "ff" }, "town": "x" }] })));
    assert_eq!(line(7), main(json!({ "rows": [] })));
    assert_eq!(line(8)["sessions"][0]["name"], "main");
    assert_eq!(line(9), main(json!({ "prepared": [] })));
    assert_eq!(line(10), main(json!({ "deadlock": null })));
    assert_eq!(line(11), main(json!({ "locks": [] })));
    assert_eq!(line(12), main(json!({ "waits": [] })));
    assert_eq!(line(13)["status"]["deadlocks"], 0);
    assert_eq!(line(14)["help"][0]["form"], "wait");
    assert_eq!(line(15)["tables"][0]["name"], "people");
    assert_eq!(line(16), json!({ "session": "b", "made": true }));
    assert_eq!(objects.last().unwrap(), &json!({ "session": "b", "line": 17, "rolled_back": true }));
    assert_eq!(objects.len(), 18);
    // Standard error has the failure, too.
    assert_eq!(printed.err.lines().count(), 1, "{}", printed.err);
}

#[test]
fn locks_and_numbers_are_shown() {
    let folder = people();
    let printed = folder
        .shell("begin\nget people ada for update\nscan people from b for share\nlocks\nstatus\nhelp\nhelp Scan\n")
        .served();
    for what in [
        "main     table of tablespace 16, intention exclusive",
        "main     row \"ada\" of tablespace 16, exclusive",
        "against inserts",
        "\nactive_transactions      1\n",
        "\nhelp          lists the statements, or describes one\n",
        "scan TABLE [from KEY] [to KEY] [limit N] [reverse] [for share|update [nowait | skip locked]]\n",
    ] {
        assert!(printed.out.contains(what), "{what:?} is not in\n{}", printed.out);
    }
}

/// Sends a signal to a process.
pub(crate) fn signal(process: u32, name: &str) {
    let number = process.to_string();
    assert!(Command::new("kill").args(["-s", name, &number]).status().unwrap().success());
}

#[test]
fn a_signal_ends_it_in_good_order() {
    let folder = people();
    for (name, code) in [("TERM", 143), ("INT", 130)] {
        let mut child = folder.command(&["shell"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(b"begin\nput people ada 1\n").unwrap();
        let mut out = child.stdout.take().unwrap();
        let mut seen = [0; 27];
        out.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"begun, repeatable read\nput\n");
        signal(child.id(), name);
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        let printed = crate::printed(&child.wait_with_output().unwrap());
        assert_eq!((printed.code, &rest[..]), (code, "the open transaction is rolled back\n"));
        assert_eq!(printed.err, format!("windfall: stopped by SIG{name}; what was open is rolled back\n"));
        drop(pipe);
    }
    assert_eq!(folder.shell("get people ada\n").served().out, "name  town\nada   London\n1 row\n");
}

#[test]
fn a_table_of_a_program_takes_raw_values() {
    let folder = Folder::new();
    let options = windfall::Options::default().buffer_pool_size(16 << 20);
    let db = windfall::Database::open(folder.path().join("db"), options).unwrap();
    db.create_table("raw", windfall::TableOptions::default()).unwrap();
    db.close().unwrap();
    folder.says("put raw k 'a b'\nget raw k\n", &["put", "key value", "k a b", "1 row"]);
    for fields in ["", "a b"] {
        let printed = folder.shell(&format!("put raw k {fields}\n"));
        assert_eq!(printed.code, 1);
        assert!(
            printed.err.contains("line 1: raw has no columns") && printed.err.contains("one value"),
            "{}",
            printed.err
        );
    }
}

#[test]
fn an_answer_has_a_longest_length() {
    let folder = Folder::new();
    let long = "x".repeat(8 << 20);
    let rows: String = (1..=9).map(|n| n.to_string() + "," + &long + "\n").collect();
    folder.feed(&["load", "t"], &("id,text\n".to_owned() + &rows)).served();
    let printed = folder.shell("scan t\n");
    assert_eq!((printed.code, &printed.out[..]), (1, ""));
    assert!(printed.err.contains("more than 64.0 MiB: give a limit"), "{}", printed.err);
    let printed = folder.shell("scan t limit 1\n").served();
    assert!(printed.out.len() > 8 << 20);
}
