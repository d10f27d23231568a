//! The statements of the shell.
//!
//! **Purpose.** Parses a line as a statement; the text of `help` is here.
//!
//! **Invariants.** A line is parsed to its last word or rejected, with the form that it should have (test:
//! `malformed_statements_are_refused_with_their_syntax`).

use std::time::Duration;

use windfall::{Isolation, LockWaitPolicy};

use super::words::{Word, words};
use crate::output;

/// A parsed line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Statement {
    /// Work of the session.
    Work(Work),
    /// Information to be shown.
    Show(Show),
    /// End the wait of the session of this name.
    Interrupt(String),
    /// Switch to the session of this name.
    Session(String),
    /// Wait until every statement is answered.
    Wait,
    /// List the statements, or describe this one.
    Help(Option<&'static Form>),
    /// End the shell.
    Quit,
}

/// Work that a session does on its own thread.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Work {
    Begin(Begin),
    Commit,
    Rollback,
    Savepoint(String),
    RollbackTo(String),
    Release(String),
    Prepare(Vec<u8>),
    CommitPrepared(Vec<u8>),
    RollbackPrepared(Vec<u8>),
    Get {
        table: String,
        key: Vec<u8>,
        lock: Option<RowLock>,
    },
    /// A new row; with `replace` it replaces an existing row with this key.
    Write {
        table: String,
        key: Vec<u8>,
        fields: Vec<Vec<u8>>,
        replace: bool,
    },
    Delete {
        table: String,
        key: Vec<u8>,
    },
    Scan(Scan),
    Create {
        table: String,
        columns: Vec<String>,
    },
    Drop(Vec<String>),
    Truncate(String),
    Rename {
        from: String,
        to: String,
    },
    Tables,
}

/// The options of a transaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Begin {
    pub isolation: Option<Isolation>,
    pub read_only: bool,
    pub snapshot: bool,
    /// The lock timeout; zero to fail at once.
    pub wait: Option<Duration>,
}

/// The way in which a read locks its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowLock {
    pub for_update: bool,
    pub wait_policy: LockWaitPolicy,
}

/// The rows to read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Scan {
    pub table: String,
    /// Included.
    pub from: Option<Vec<u8>>,
    /// Excluded.
    pub to: Option<Vec<u8>>,
    pub limit: Option<usize>,
    pub reverse: bool,
    pub lock: Option<RowLock>,
}

/// Information that is shown at once, whatever the sessions do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Show {
    Transactions,
    Views,
    Locks,
    Waits,
    Deadlock,
    Prepared,
    Status,
    Sessions,
}

/// The form of a statement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// The first word of the statement.
    pub word: &'static str,
    /// The syntax after the first word.
    pub rest: &'static str,
    /// The effect of the statement.
    pub does: &'static str,
}

const fn form(word: &'static str, rest: &'static str, does: &'static str) -> Form {
    Form { word, rest, does }
}

/// All statements.
pub(super) const FORMS: &[Form] = &[
    form(
        "begin",
        "[read uncommitted | read committed | repeatable read | snapshot | serializable] [read only] [consistent snapshot] \
         [nowait | wait SECONDS]",
        "begins a transaction; without one each statement is a transaction of its own",
    ),
    form("commit", "[prepared XID]", "commits the transaction, or the prepared transaction of that name"),
    form(
        "rollback",
        "[to NAME | prepared XID]",
        "rolls back the transaction, its changes since a savepoint, or the prepared transaction of that name",
    ),
    form("savepoint", "NAME", "sets a savepoint in the transaction"),
    form("release", "NAME", "removes a savepoint, and keeps the changes since it"),
    form(
        "prepare",
        "XID",
        "prepares the transaction, to be committed or rolled back by this name, also after a crash",
    ),
    form("get", "TABLE KEY [for share|update [nowait | skip locked]]", "reads a row"),
    form("put", "TABLE KEY FIELD...", "writes a row, and replaces an existing row with this key"),
    form("insert", "TABLE KEY FIELD...", "writes a new row"),
    form("delete", "TABLE KEY", "deletes a row"),
    form(
        "scan",
        "TABLE [from KEY] [to KEY] [limit N] [reverse] [for share|update [nowait | skip locked]]",
        "reads rows in the order of their keys; the key of `to` is not among them",
    ),
    form("create", "TABLE COLUMN,...", "makes a table; the first column is the key"),
    form("drop", "TABLE...", "drops tables, all or none"),
    form("truncate", "TABLE", "empties a table"),
    form("rename", "TABLE to TABLE", "gives a table another name"),
    form("tables", "", "lists the tables"),
    form("transactions", "", "lists the transactions that have changed or locked something"),
    form("views", "", "lists the read views, the oldest first: purge keeps the versions that they may need"),
    form(
        "locks",
        "",
        "lists the locks that are held, except those of changed rows that no transaction waits for",
    ),
    form("waits", "", "lists the transactions that wait for a lock, and those that they wait for"),
    form(
        "interrupt",
        "NAME",
        "ends the wait of a session's statement for a lock; if that has just ended, the next one",
    ),
    form("deadlock", "", "shows the latest deadlock"),
    form("prepared", "", "lists the transactions that are prepared"),
    form("status", "", "shows how many transactions, locks, waits and deadlocks there are and were"),
    form("session", "NAME", "switches to the session of this name; creates it if there is none"),
    form("sessions", "", "lists the sessions, with their transactions and what they wait for"),
    form("wait", "", "waits until no statement of any session is in progress"),
    form("help", "[WORD]", "lists the statements, or describes one"),
    form("quit", "", "ends the shell; open transactions are rolled back"),
];

impl Form {
    /// Returns the whole form.
    pub(super) fn text(&self) -> String {
        format!("{} {}", self.word, self.rest).trim_end().to_owned()
    }

    fn find(word: &Word) -> Result<&'static Self, String> {
        FORMS.iter().find(|form| word.is(form.word)).ok_or_else(|| {
            format!("there is no statement {}: `help` lists those there are", output::quoted(&word.bytes))
        })
    }
}

/// The isolation levels, with their names.
const LEVELS: [(&str, Isolation); 5] = [
    ("read uncommitted", Isolation::ReadUncommitted),
    ("read committed", Isolation::ReadCommitted),
    ("repeatable read", Isolation::RepeatableRead),
    ("snapshot", Isolation::Snapshot),
    ("serializable", Isolation::Serializable),
];

/// Returns the name of an isolation level.
pub(super) fn level(isolation: Isolation) -> &'static str {
    LEVELS.iter().find(|(_, level)| *level == isolation).map_or("unknown", |(name, _)| name)
}

/// Parses a line; `None` if it is empty.
///
/// # Errors
/// The reason why it is invalid, in words.
pub(super) fn parse(line: &str) -> Result<Option<Statement>, String> {
    let words = words(line)?;
    let Some((first, rest)) = words.split_first() else { return Ok(None) };
    let form = Form::find(first)?;
    let mut rest = Rest { words: rest, form };
    let statement = match form.word {
        "transactions" => Statement::Show(Show::Transactions),
        "views" => Statement::Show(Show::Views),
        "locks" => Statement::Show(Show::Locks),
        "waits" => Statement::Show(Show::Waits),
        "deadlock" => Statement::Show(Show::Deadlock),
        "prepared" => Statement::Show(Show::Prepared),
        "status" => Statement::Show(Show::Status),
        "sessions" => Statement::Show(Show::Sessions),
        "interrupt" => Statement::Interrupt(rest.name("name of a session")?),
        "session" => Statement::Session(rest.name("name of a session")?),
        "wait" => Statement::Wait,
        "help" => Statement::Help(rest.next().map(Form::find).transpose()?),
        "quit" => Statement::Quit,
        _ => Statement::Work(rest.work()?),
    };
    rest.end()?;
    Ok(Some(statement))
}

/// The words after the first.
struct Rest<'a> {
    words: &'a [Word],
    form: &'static Form,
}

impl<'a> Rest<'a> {
    fn wrong(&self, what: &str) -> String {
        format!("{what}: the form is `{}`", self.form.text())
    }

    fn next(&mut self) -> Option<&'a Word> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    /// Takes the next word, which must exist.
    fn word(&mut self, what: &str) -> Result<&'a [u8], String> {
        self.next().map(|word| &word.bytes[..]).ok_or_else(|| self.wrong(&format!("the {what} is missing")))
    }

    fn bytes(&mut self, what: &str) -> Result<Vec<u8>, String> {
        self.word(what).map(<[u8]>::to_vec)
    }

    fn name(&mut self, what: &str) -> Result<String, String> {
        text(self.word(what)?, what)
    }

    fn all(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.words).iter().map(|word| word.bytes.clone()).collect()
    }

    /// Takes these keywords, if they are next.
    fn takes(&mut self, keywords: &str) -> bool {
        let mut left = self.words;
        for keyword in keywords.split(' ') {
            match left.split_first() {
                Some((first, rest)) if first.is(keyword) => left = rest,
                _ => return false,
            }
        }
        self.words = left;
        true
    }

    fn end(&self) -> Result<(), String> {
        self.words.first().map_or(Ok(()), |word| {
            Err(self.wrong(&format!("{} is one word too many", output::quoted(&word.bytes))))
        })
    }

    fn work(&mut self) -> Result<Work, String> {
        let word = self.form.word;
        Ok(match word {
            "begin" => Work::Begin(self.begin()?),
            "commit" if self.takes("prepared") => Work::CommitPrepared(self.bytes("name")?),
            "commit" => Work::Commit,
            "rollback" if self.takes("prepared") => Work::RollbackPrepared(self.bytes("name")?),
            "rollback" if self.takes("to") => Work::RollbackTo(self.name("name of a savepoint")?),
            "rollback" => Work::Rollback,
            "savepoint" => Work::Savepoint(self.name("name of a savepoint")?),
            "release" => Work::Release(self.name("name of a savepoint")?),
            "prepare" => Work::Prepare(self.bytes("name")?),
            "get" => Work::Get { table: self.table()?, key: self.bytes("key")?, lock: self.lock() },
            "put" | "insert" => Work::Write {
                table: self.table()?,
                key: self.bytes("key")?,
                fields: self.all(),
                replace: word == "put",
            },
            "delete" => Work::Delete { table: self.table()?, key: self.bytes("key")? },
            "scan" => Work::Scan(self.scan()?),
            "create" => Work::Create { table: self.table()?, columns: self.columns()? },
            "drop" => {
                let first = self.table()?;
                let others = self.all().into_iter().map(|name| text(&name, "table"));
                Work::Drop(std::iter::once(Ok(first)).chain(others).collect::<Result<_, _>>()?)
            }
            "truncate" => Work::Truncate(self.table()?),
            "rename" => {
                let from = self.table()?;
                if !self.takes("to") {
                    return Err(self.wrong("`to` and the new name are missing"));
                }
                Work::Rename { from, to: self.name("new name")? }
            }
            "tables" => Work::Tables,
            other => unreachable!("{other} is in the list of forms"),
        })
    }

    fn table(&mut self) -> Result<String, String> {
        self.name("table")
    }

    fn lock(&mut self) -> Option<RowLock> {
        let for_update = self.takes("for update");
        if !for_update && !self.takes("for share") {
            return None;
        }
        let wait_policy = if self.takes("nowait") {
            LockWaitPolicy::NoWait
        } else if self.takes("skip locked") {
            LockWaitPolicy::SkipLocked
        } else {
            LockWaitPolicy::Wait
        };
        Some(RowLock { for_update, wait_policy })
    }

    fn begin(&mut self) -> Result<Begin, String> {
        let mut begin = Begin::default();
        while let Some(word) = self.words.first() {
            let again = if self.takes("read only") {
                std::mem::replace(&mut begin.read_only, true)
            } else if self.takes("consistent snapshot") {
                std::mem::replace(&mut begin.snapshot, true)
            } else if self.takes("nowait") {
                begin.wait.replace(Duration::ZERO).is_some()
            } else if self.takes("wait") {
                let seconds = self.word("number of seconds")?;
                let wait = str::from_utf8(seconds)
                    .ok()
                    .and_then(|text| Duration::try_from_secs_f64(text.parse().ok()?).ok())
                    .ok_or_else(|| {
                        self.wrong(&format!("{} is no number of seconds", output::quoted(seconds)))
                    })?;
                begin.wait.replace(wait).is_some()
            } else if let Some((_, level)) = LEVELS.iter().find(|(name, _)| self.takes(name)) {
                begin.isolation.replace(*level).is_some()
            } else {
                return self.end().map(|()| begin);
            };
            if again {
                let word = output::quoted(&word.bytes);
                return Err(self.wrong(&format!("what {word} says was said before")));
            }
        }
        Ok(begin)
    }

    fn scan(&mut self) -> Result<Scan, String> {
        let mut scan = Scan { table: self.table()?, ..Scan::default() };
        while let Some(word) = self.words.first() {
            let again = if self.takes("from") {
                scan.from.replace(self.bytes("key after `from`")?).is_some()
            } else if self.takes("to") {
                scan.to.replace(self.bytes("key after `to`")?).is_some()
            } else if self.takes("limit") {
                let limit = self.word("number after `limit`")?;
                let number = str::from_utf8(limit).ok().and_then(|text| text.parse().ok());
                let number = number
                    .ok_or_else(|| self.wrong(&format!("{} is no number of rows", output::quoted(limit))))?;
                scan.limit.replace(number).is_some()
            } else if self.takes("reverse") {
                std::mem::replace(&mut scan.reverse, true)
            } else if let Some(lock) = self.lock() {
                scan.lock.replace(lock).is_some()
            } else {
                return self.end().map(|()| scan);
            };
            if again {
                let word = output::quoted(&word.bytes);
                return Err(self.wrong(&format!("what {word} says was said before")));
            }
        }
        Ok(scan)
    }

    /// Parses names with commas between them, and optional blanks.
    fn columns(&mut self) -> Result<Vec<String>, String> {
        let mut list = self.word("list of columns")?.to_vec();
        for word in self.all() {
            if !list.ends_with(b",") && !word.starts_with(b",") {
                return Err(self.wrong(&format!("a comma is missing before {}", output::quoted(&word))));
            }
            list.extend(word);
        }
        Ok(text(&list, "list of columns")?.split(',').map(str::to_owned).collect())
    }
}

fn text(bytes: &[u8], what: &str) -> Result<String, String> {
    String::from_utf8(bytes.to_vec())
        .map_err(|_| format!("the {what} is not text in UTF-8: {}", output::quoted(bytes)))
}

/// Fuzz target: arbitrary lines as statements.
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz {
    use super::{
        super::words::{in_quotes, words},
        FORMS, parse,
    };

    /// Parses one statement per line. The result must be the same when every quoted word is quoted again by
    /// [`in_quotes`].
    pub(crate) fn statements(data: &[u8]) {
        let Ok(text) = str::from_utf8(data) else { return };
        for line in text.split('\n') {
            let Ok(read) = words(line) else {
                assert!(parse(line).is_err(), "{line:?}");
                continue;
            };
            let parts = read.iter().map(|word| match str::from_utf8(&word.bytes) {
                Ok(bare) if !word.quoted => bare.to_owned(),
                _ => in_quotes(&word.bytes),
            });
            let again = parts.collect::<Vec<_>>().join("  ");
            assert_eq!(words(&again).as_ref(), Ok(&read), "{line:?}");
            assert_eq!(parse(&again), parse(line), "{line:?}");
            if let Some(first) = read.first() {
                let known = FORMS.iter().any(|form| first.is(form.word));
                assert!(known || parse(line).is_err(), "{line:?}");
            }
        }
    }

    /// Returns statements as seeds.
    pub(crate) fn statements_seeds() -> Vec<Vec<u8>> {
        let lines = [
            "begin serializable read only consistent snapshot wait 1.5\nbegin nowait\nBEGIN Read Committed",
            "commit\ncommit prepared 'x y'\nrollback to s\nrollback prepared \"\\x00\\xff\"\nprepare x",
            "savepoint s # here\nrelease s\nsession b\nsessions\nwait\nhelp scan\nquit",
            "get t 'it\\'s' for update\nput t 1 \"a b\" ''\ninsert t 1\ndelete t '\\n\\t\\\\\\\"'",
            "scan t from a to b limit 10 reverse for share\nscan 'scan'",
            "create t id, name ,town\ndrop a b\ntruncate t\nrename a to b\ntables\nlocks\nwaits\ndeadlock\nstatus",
        ];
        lines.map(|line| line.as_bytes().to_vec()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn work(line: &str) -> Work {
        match parse(line).unwrap().unwrap() {
            Statement::Work(work) => work,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_transaction_begins_with_the_given_options() {
        assert_eq!(work("begin"), Work::Begin(Begin::default()));
        assert_eq!(
            work("BEGIN serializable Read Only consistent snapshot wait 0.5"),
            Work::Begin(Begin {
                isolation: Some(Isolation::Serializable),
                read_only: true,
                snapshot: true,
                wait: Some(Duration::from_millis(500)),
            })
        );
        let nowait = Begin { wait: Some(Duration::ZERO), ..Begin::default() };
        assert_eq!(work("begin nowait"), Work::Begin(nowait));
        for (name, isolation) in LEVELS {
            let begin = Begin { isolation: Some(isolation), ..Begin::default() };
            assert_eq!(work(&format!("begin {name}")), Work::Begin(begin));
            assert_eq!(level(isolation), name);
        }
    }

    #[test]
    fn rows_are_named_by_their_keys() {
        let (table, key) = ("t".to_owned(), b"k".to_vec());
        let get = |lock| Work::Get { table: table.clone(), key: key.clone(), lock };
        assert_eq!(work("get t k"), get(None));
        let lock = |for_update, wait_policy| get(Some(RowLock { for_update, wait_policy }));
        assert_eq!(work("get t k for share"), lock(false, LockWaitPolicy::Wait));
        assert_eq!(work("get 't' \"k\" FOR update"), lock(true, LockWaitPolicy::Wait));
        assert_eq!(work("get t k for update nowait"), lock(true, LockWaitPolicy::NoWait));
        assert_eq!(work("get t k for share skip locked"), lock(false, LockWaitPolicy::SkipLocked));
        let write = |fields: &[&[u8]], replace| Work::Write {
            table: table.clone(),
            key: key.clone(),
            fields: fields.iter().map(|f| f.to_vec()).collect(),
            replace,
        };
        assert_eq!(work(r"put t k 'a b' '\x00'"), write(&[b"a b", b"\0"], true));
        assert_eq!(work("insert t k"), write(&[], false));
        assert_eq!(work("delete t k"), Work::Delete { table: table.clone(), key: key.clone() });
        assert_eq!(
            work("scan t reverse to z from a for update limit 3"),
            Work::Scan(Scan {
                table: table.clone(),
                from: Some(b"a".to_vec()),
                to: Some(b"z".to_vec()),
                limit: Some(3),
                reverse: true,
                lock: Some(RowLock { for_update: true, wait_policy: LockWaitPolicy::Wait }),
            })
        );
        assert_eq!(work("scan t"), Work::Scan(Scan { table, ..Scan::default() }));
    }

    #[test]
    fn columns_have_commas_between_them() {
        let columns = |line: &str| match work(line) {
            Work::Create { columns, .. } => columns,
            other => panic!("{other:?}"),
        };
        for line in ["create t a,b", "create t a, b", "create t a ,b", "create t a , b"] {
            assert_eq!(columns(line), ["a", "b"], "{line}");
        }
        assert_eq!(columns("create t id, 'full name'"), ["id", "full name"]);
        assert!(parse("create t a b").unwrap_err().contains("a comma is missing before b"));
    }

    #[test]
    fn the_rest_is_read() {
        assert_eq!(parse("  # nothing"), Ok(None));
        assert_eq!(work("commit"), Work::Commit);
        assert_eq!(work("commit prepared x"), Work::CommitPrepared(b"x".to_vec()));
        assert_eq!(work("rollback"), Work::Rollback);
        assert_eq!(work("rollback to s"), Work::RollbackTo("s".into()));
        assert_eq!(work(r"rollback prepared '\xff'"), Work::RollbackPrepared(vec![0xff]));
        assert_eq!(work("drop a b"), Work::Drop(vec!["a".into(), "b".into()]));
        assert_eq!(work("rename a TO b"), Work::Rename { from: "a".into(), to: "b".into() });
        assert_eq!(parse("Session b"), Ok(Some(Statement::Session("b".into()))));
        assert_eq!(parse("help"), Ok(Some(Statement::Help(None))));
        for form in FORMS {
            assert_eq!(parse(&format!("help {}", form.word)), Ok(Some(Statement::Help(Some(form)))));
        }
    }

    #[test]
    fn malformed_statements_are_refused_with_their_syntax() {
        for (line, what) in [
            ("select 1", "no statement select"),
            ("'get' t k", "no statement get"),
            (
                "get",
                "the table is missing: the form is `get TABLE KEY [for share|update [nowait | skip locked]]`",
            ),
            ("get t", "the key is missing"),
            ("get t k for", "for is one word too many"),
            ("get t k 'for' update", "for is one word too many"),
            ("put", "the table is missing"),
            ("put t", "the key is missing"),
            ("commit prepared", "the name is missing"),
            ("commit now", "now is one word too many"),
            ("rollback to", "the name of a savepoint is missing"),
            ("begin read", "read is one word too many"),
            ("begin snapshot serializable", "what serializable says was said before"),
            ("begin wait", "the number of seconds is missing"),
            ("begin wait soon", "soon is no number of seconds"),
            ("begin wait -1", "-1 is no number of seconds"),
            ("begin nowait wait 1", "was said before"),
            ("scan t limit x", "x is no number of rows"),
            ("scan t limit -1", "-1 is no number of rows"),
            ("scan t from", "the key after `from` is missing"),
            ("scan t reverse reverse", "what reverse says was said before"),
            ("scan t k", "k is one word too many"),
            ("rename a b", "`to` and the new name are missing"),
            ("drop", "the table is missing"),
            (r"get '\xff' k", "the table is not text in UTF-8"),
            ("tables t", "t is one word too many: the form is `tables`"),
            ("help me", "no statement me"),
            ("get t 'k", "never closed"),
        ] {
            let why = parse(line).unwrap_err();
            assert!(why.contains(what), "{line}: {why}");
        }
    }
}
