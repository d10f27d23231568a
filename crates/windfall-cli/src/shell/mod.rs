//! An interactive shell on one database.
//!
//! **Purpose.** `shell`: reads statements from a terminal or from standard input, passes them to sessions, and prints
//! their answers.
//!
//! **Invariants.** A statement is either answered, or known to wait for a lock, before the next one is read (test:
//! `a_waiting_session_continues_after_the_commit_of_another`). Later answers are printed as soon as they arrive (test:
//! `an_answer_comes_above_the_line_that_is_being_edited`). However the shell ends, open transactions are rolled back
//! first (tests: `open_transactions_are_rolled_back_at_the_end`, `a_signal_ends_it_in_good_order`).

mod answer;
mod input;
mod sessions;
mod show;
mod statement;
mod words;
mod worker;

use std::{
    process::ExitCode,
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};

#[cfg(feature = "fuzz")]
pub(crate) use self::statement::fuzz;
use self::{
    answer::Answer,
    input::{Given, Input},
    sessions::{SessionNo, Sessions},
    statement::{FORMS, Form, Show, Statement},
};
use crate::{
    commands::schema::printable,
    engine::Database,
    failure::{Failure, Result},
    interrupt::{Interrupt, Signal},
    output::Grid,
};

/// The time that a statement which is neither answered nor known to wait may delay the others, while some session waits
/// for a lock: it may wait for that session in another way. At a terminal the time is short, so that the prompt
/// returns; for a script it is long, so that the script takes the same course on a busy machine.
const ANSWER_WAIT: Duration = Duration::from_millis(300);
const ANSWER_WAIT_OF_SCRIPTS: Duration = Duration::from_secs(10);

/// The interval at which waits are polled, at first and at most.
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// An event of the shell.
#[derive(Debug)]
pub(crate) enum Event {
    /// The requested line has arrived.
    Given(Given),
    /// A session has finished its statement.
    Answered(SessionNo, Result<Answer, String>),
    /// A signal was received.
    Signal(Signal),
}

/// Runs the shell. With `keep_going` it continues after a failed statement, even if the input is not a terminal.
///
/// # Errors
/// The answer cannot be written; a signal.
pub(crate) fn run(db: &Database, json: bool, keep_going: bool) -> Result<ExitCode> {
    let (send, events) = mpsc::channel();
    let interrupt = Interrupt::new()?;
    interrupt.watch()?;
    let signals = send.clone();
    thread::Builder::new().name("signals".into()).spawn(move || {
        if interrupt.wait().is_ok()
            && let Some(signal) = Signal::received()
        {
            let _ = signals.send(Event::Signal(signal));
        }
    })?;
    let sessions = Sessions::new(db.clone(), send.clone())?;
    let input = Input::open(send)?;
    let keep_going = keep_going || input.is_terminal();
    let mut shell = Shell {
        db,
        json,
        keep_going,
        sessions,
        input,
        events,
        line: 0,
        failed: false,
        broken: None,
        signal: None,
    };
    shell.serve();
    shell.end();
    match (shell.signal, shell.broken) {
        (_, Some(failure)) => Err(failure),
        (Some(signal), None) => Err(Failure::Stopped(signal, "what was open is rolled back".into())),
        (None, None) if shell.failed && !shell.input.is_terminal() => Ok(ExitCode::FAILURE),
        (None, None) => Ok(ExitCode::SUCCESS),
    }
}

struct Shell<'a> {
    db: &'a Database,
    json: bool,
    keep_going: bool,
    sessions: Sessions,
    input: Input,
    events: Receiver<Event>,
    /// The number of the last line.
    line: u64,
    /// Whether a statement has failed.
    failed: bool,
    /// The failure after which answers can no longer be written.
    broken: Option<Failure>,
    signal: Option<Signal>,
}

impl Shell<'_> {
    fn serve(&mut self) {
        while !self.is_over() {
            let Some(line) = self.next_line() else { return };
            let said = match line {
                Err(why) => Err(why),
                Ok(line) => statement::parse(&line),
            };
            match said {
                Ok(None) => {}
                Ok(Some(Statement::Quit)) => return,
                Ok(Some(statement)) => self.execute(statement),
                Err(why) => self.reply(Err(why)),
            }
        }
    }

    fn is_over(&self) -> bool {
        self.signal.is_some() || self.broken.is_some() || (self.failed && !self.keep_going)
    }

    /// Returns the next line, or what is wrong with it; `None` at the end. Answers that arrive meanwhile are printed.
    fn next_line(&mut self) -> Option<Result<String, String>> {
        let name = self.sessions.name_among(self.sessions.current()).unwrap_or("windfall");
        let star = if self.sessions.is_in_transaction() { "*" } else { "" };
        self.input.ask(format!("{name}{star}> "));
        while !self.is_over() {
            match self.events.recv() {
                Ok(Event::Given(given)) => {
                    self.input.given();
                    self.line += u64::from(!matches!(given, Given::End));
                    return match given {
                        Given::Line(line) => Some(Ok(line)),
                        Given::Bad(why) => Some(Err(why)),
                        Given::Cleared => Some(Ok(String::new())),
                        Given::End => {
                            if self.input.is_terminal() {
                                self.print("\n".into());
                            }
                            None
                        }
                        Given::Failed(why) => {
                            self.reply(Err(why));
                            None
                        }
                    };
                }
                Ok(other) => self.handle(other),
                Err(_) => return None,
            }
        }
        None
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Answered(session_no, answer) => {
                let line = self.sessions.answered(session_no);
                self.print_answer(session_no, line, answer);
            }
            Event::Signal(signal) => self.signal = Some(signal),
            // No line is requested at this time.
            Event::Given(_) => self.input.given(),
        }
    }

    fn execute(&mut self, statement: Statement) {
        let session_no = self.sessions.current();
        let answer = match statement {
            Statement::Work(work) => match self.sessions.give(work, self.line) {
                Ok(()) => return self.wait_for_answer(session_no),
                Err(why) => return self.print_answer(session_no, self.line, Err(why)),
            },
            Statement::Show(what) => Ok(self.show(what)),
            Statement::Interrupt(name) => self.interrupt(&name),
            Statement::Session(name) => self.switch_to(&name).map_err(|failure| failure.to_string()),
            Statement::Wait => {
                while self.sessions.are_busy() && !self.is_over() {
                    match self.events.recv() {
                        Ok(event) => self.handle(event),
                        Err(_) => return,
                    }
                }
                if self.is_over() {
                    return;
                }
                Ok(Answer::message("no statement is in progress", json!({ "waited": true })))
            }
            Statement::Help(form) => Ok(help(form)),
            Statement::Quit => return,
        };
        self.reply(answer);
    }

    fn show(&mut self, what: Show) -> Answer {
        self.sessions.update_waits(&self.db.lock_waits());
        let names = |trx| self.sessions.owner(trx);
        match what {
            Show::Transactions => show::transactions(self.db, &names),
            Show::Views => show::views(self.db),
            Show::Locks => show::locks(self.db, &names),
            Show::Waits => show::waits(self.db, &names),
            Show::Deadlock => show::deadlock(self.db),
            Show::Prepared => show::prepared(self.db),
            Show::Status => show::status(self.db),
            Show::Sessions => self.sessions.listing(),
        }
    }

    fn interrupt(&mut self, name: &str) -> std::result::Result<Answer, String> {
        let waits = self.db.lock_waits();
        self.sessions.update_waits(&waits);
        let wait = waits.iter().find(|wait| self.sessions.owner(wait.trx).as_deref() == Some(name));
        if wait.is_some_and(|wait| self.db.interrupt(wait.trx)) {
            return Ok(Answer::message(
                format!("session {name} is interrupted"),
                json!({ "interrupted": name }),
            ));
        }
        Err(format!("there is no session {name} that waits for a lock: `waits` lists those that do"))
    }

    fn switch_to(&mut self, name: &str) -> Result<Answer> {
        printable("name of a session", name)?;
        if name.is_empty() {
            return Err(Failure::message("a session has a name: give it one"));
        }
        let made = self.sessions.switch_to(name)?;
        let text = if made { format!("session {name} is new") } else { format!("session {name}") };
        Ok(Answer::message(text, json!({ "made": made })))
    }

    /// Waits until the given statement is answered, or known to wait for a lock; then for a moment for other statements
    /// that may continue because of it. Their answers are printed after its answer, if they arrive soon.
    fn wait_for_answer(&mut self, given: SessionNo) {
        let (start, mut pause) = (Instant::now(), POLL_INTERVALS.0);
        let mut held = Vec::new();
        while !self.is_over() {
            let waits = self.db.lock_waits();
            self.sessions.update_waits(&waits);
            let patient = start.elapsed() < self.answer_wait();
            let runs = self.sessions.running().any(|session_no| session_no == given);
            if !runs || !patient {
                for event in held.drain(..) {
                    self.handle(event);
                }
            }
            // If no session waits for a lock, a script waits for its statement without a limit.
            let lasts = waits.is_empty() && (runs || !self.input.is_terminal());
            if self.sessions.running().next().is_none() || !(patient || lasts) {
                break;
            }
            match self.events.recv_timeout(pause) {
                Ok(event @ Event::Answered(session_no, _)) if session_no != given && runs && patient => {
                    held.push(event);
                }
                Ok(event) => self.handle(event),
                Err(RecvTimeoutError::Timeout) => pause = POLL_INTERVALS.1.min(pause * 2),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        for event in held {
            self.handle(event);
        }
        for (session_no, line, blockers) in self.sessions.newly_waiting() {
            let name = self.sessions.name(session_no);
            let text = format!("session {name} waits for {blockers}");
            let object = Answer::message("", json!({ "waits_for": show::ids(&blockers) })).object();
            self.say(session_no, line, text, object);
        }
    }

    /// Prints the result of a session's work.
    fn print_answer(&mut self, session_no: SessionNo, line: u64, answer: Result<Answer, String>) {
        let whose = self.sessions.name_among(session_no).map(str::to_owned);
        self.print_answer_of(session_no, line, whose.as_deref(), answer);
    }

    /// Prints the shell's own answer to a line.
    fn reply(&mut self, answer: Result<Answer, String>) {
        self.print_answer_of(self.sessions.current(), self.line, None, answer);
    }

    fn print_answer_of(
        &mut self,
        session_no: SessionNo,
        line: u64,
        whose: Option<&str>,
        answer: Result<Answer, String>,
    ) {
        match answer {
            Ok(answer) if self.json => self.say(session_no, line, String::new(), answer.object()),
            Ok(answer) => {
                let text = answer.text();
                let text = match whose {
                    None => text,
                    Some(name) if text.contains('\n') => format!("{name}:\n{text}"),
                    Some(name) => format!("{name}: {text}"),
                };
                self.say(session_no, line, text, Map::new());
            }
            Err(why) => {
                self.failed = true;
                let whose = whose.map_or_else(String::new, |name| format!("session {name}: "));
                if !self.input.is_terminal() {
                    eprintln!("windfall: line {line}: {whose}{why}");
                    if !self.json {
                        return;
                    }
                }
                let object = Map::from_iter([("error".to_owned(), Value::from(&why[..]))]);
                self.say(session_no, line, format!("error: {whose}{why}"), object);
            }
        }
    }

    /// Prints a message, as text or as JSON.
    fn say(&mut self, session_no: SessionNo, line: u64, text: String, mut object: Map<String, Value>) {
        if self.json {
            object.insert("session".into(), self.sessions.name(session_no).into());
            object.insert("line".into(), line.into());
            self.print(format!("{}\n", Value::Object(object)));
        } else {
            self.print(text + "\n");
        }
    }

    fn print(&mut self, text: String) {
        if self.broken.is_none() {
            self.broken = self.input.print(text).err();
        }
    }

    /// Rolls back open transactions, and waits for statements that continue because of it.
    fn end(&mut self) {
        self.input.leave();
        loop {
            let open = self.sessions.take_idle();
            let ended = open.is_empty();
            for (session_no, transaction) in open {
                let name =
                    self.sessions.name_among(session_no).map_or_else(String::new, |name| format!("{name}: "));
                match transaction.rollback() {
                    Ok(()) => {
                        let object = Answer::message("", json!({ "rolled_back": true })).object();
                        self.say(
                            session_no,
                            self.line,
                            format!("{name}the open transaction is rolled back"),
                            object,
                        );
                    }
                    Err(error) => self.print_answer(session_no, self.line, Err(error.to_string())),
                }
            }
            if !self.await_running() && ended {
                break;
            }
        }
        for (session_no, blockers) in self.sessions.busy() {
            let why = match blockers {
                Some(blockers) => format!(
                    "its statement still waits for {blockers}: it is given up, and rolled back when the database opens again"
                ),
                None => "its statement is still in progress: open the database again to see whether it took effect".into(),
            };
            self.print_answer(session_no, self.line, Err(why));
        }
    }

    /// Returns the time that a statement which is neither answered nor known to wait may delay the others.
    fn answer_wait(&self) -> Duration {
        let wants_an_answer = self.input.is_terminal() || self.signal.is_some();
        if wants_an_answer { ANSWER_WAIT } else { ANSWER_WAIT_OF_SCRIPTS }
    }

    /// Waits for statements that do not wait for a lock, after a signal only for a moment. Returns whether one was
    /// answered.
    fn await_running(&mut self) -> bool {
        let (start, mut answered) = (Instant::now(), false);
        loop {
            while let Ok(event) = self.events.try_recv() {
                answered = true;
                self.handle(event);
            }
            let waits = self.db.lock_waits();
            self.sessions.update_waits(&waits);
            let patient = start.elapsed() < self.answer_wait() || (waits.is_empty() && self.signal.is_none());
            if !patient || self.sessions.running().next().is_none() {
                return answered;
            }
            if let Ok(event) = self.events.recv_timeout(POLL_INTERVALS.1) {
                answered = true;
                self.handle(event);
            }
        }
    }
}

/// Returns the list of statements, or the description of one.
fn help(form: Option<&Form>) -> Answer {
    let object = |form: &Form| json!({ "form": form.text(), "does": form.does });
    if let Some(form) = form {
        return Answer::message(
            format!("{}\n  {}", form.text(), form.does),
            json!({ "help": [object(form)] }),
        );
    }
    let mut grid = Grid::new(["statement", "what it does"]);
    for form in FORMS {
        grid.line([form.word, form.does]);
    }
    let notes = "Quotes '...' and \"...\" hold a word with blanks, or any bytes by \\n \\t \\\\ \\' \\\" \\xHH. `help WORD` \
                 shows its form.\n\
                 Ctrl-C discards a line; while a statement is in progress it ends the shell.";
    Answer::message(grid.text() + notes, json!({ "help": FORMS.iter().map(object).collect::<Vec<_>>() }))
}
