//! The shell in a pseudo-terminal: the prompt, the editor, the history, and output while a line is edited.

use std::{
    fs,
    io::{BufReader, Read as _, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crate::{
    Folder,
    shell::{people, signal},
};

/// The shell in a pseudo-terminal.
struct Terminal {
    child: Child,
    keys: Option<ChildStdin>,
    shown: mpsc::Receiver<u8>,
    screen: String,
}

impl Terminal {
    /// Returns `None` if there is no program that creates one.
    fn open(folder: &Folder, state: &Path) -> Option<Self> {
        let works = Command::new("script").arg("--version").output().is_ok_and(|o| o.status.success());
        if !works {
            eprintln!("skipped: `script` of util-linux, which makes a pseudo-terminal, is not here");
            return None;
        }
        let shell = format!(
            "stty -g; sh -c 'echo pid $$; exec \"$0\" --db db shell' '{}'; code=$?; stty -g; exit $code",
            env!("CARGO_BIN_EXE_windfall")
        );
        let mut child = Command::new("script")
            .args(["--quiet", "--return", "--flush", "--command", &shell, "/dev/null"])
            .current_dir(folder.path())
            .envs([("TERM", "xterm"), ("XDG_STATE_HOME", state.to_str().unwrap())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, shown) = mpsc::channel();
        let out = child.stdout.take().unwrap();
        thread::spawn(move || {
            for byte in BufReader::new(out).bytes().map_while(Result::ok) {
                if send.send(byte).is_err() {
                    break;
                }
            }
        });
        let keys = child.stdin.take();
        Some(Self { child, keys, shown, screen: String::new() })
    }

    /// Waits until this text appears, after the text that was waited for before. Returns the output before it.
    #[track_caller]
    fn sees(&mut self, what: &str) -> String {
        let limit = Instant::now() + Duration::from_mins(10);
        let mut bytes = std::mem::take(&mut self.screen).into_bytes();
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if text.ends_with(what) {
                return text;
            }
            match self.shown.recv_timeout(limit.saturating_duration_since(Instant::now())) {
                Ok(byte) => bytes.push(byte),
                Err(error) => panic!("{what:?} does not come ({error}): {text:?}"),
            }
        }
    }

    fn types(&mut self, keys: &str) {
        self.keys.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    fn ends(mut self) -> i32 {
        let code = self.child.wait().unwrap().code().unwrap();
        drop(self.keys.take());
        code
    }
}

#[test]
fn people_get_a_prompt_and_a_history() {
    let folder = people();
    let state = tempfile::tempdir().unwrap();
    let Some(mut terminal) = Terminal::open(&folder, state.path()) else { return };
    terminal.sees("windfall> ");
    terminal.types("begin\r");
    terminal.sees("begun, repeatable read");
    terminal.sees("windfall*> ");
    terminal.types("put people ada Paris\r");
    terminal.sees("windfall*> ");
    terminal.types("session b\r");
    terminal.sees("session b is new");
    terminal.sees("b> ");
    // A failure is reported, and the shell continues.
    terminal.types("nonsense\r");
    terminal.sees("error: there is no statement nonsense");
    terminal.sees("b> ");
    // Ctrl-C discards a line.
    terminal.types("put people bob nowhere\x03");
    terminal.sees("b> ");
    terminal.types("put people ada Rome\r");
    terminal.sees("session b waits for transaction");
    terminal.sees("b> ");
    terminal.types("session main\r");
    terminal.sees("main*> ");
    terminal.types("commit\r");
    terminal.sees("main: committed");
    terminal.sees("b: put");
    terminal.sees("main> ");
    terminal.types("begin\r");
    terminal.sees("main*> ");
    // Ctrl-D ends the shell.
    terminal.types("\x04");
    terminal.sees("main: the open transaction is rolled back");
    assert_eq!(terminal.ends(), 0);
    assert_eq!(folder.shell("get people ada\n").served().out, "name  town\nada   Rome\n1 row\n");

    let kept = fs::read_to_string(state.path().join("windfall/history")).unwrap();
    assert!(kept.contains("\nput people ada Rome\n") && !kept.contains("nowhere"), "{kept}");
    // The next shell has the history: the second line from the end is `commit`.
    let mut terminal = Terminal::open(&folder, state.path()).unwrap();
    terminal.sees("windfall> ");
    terminal.types("\x1b[A\x1b[A\r");
    terminal.sees("error: no transaction is open");
    terminal.sees("windfall> ");
    terminal.types("quit\r");
    assert_eq!(terminal.ends(), 0);
}

#[test]
fn an_answer_comes_above_the_line_that_is_being_edited() {
    let folder = people();
    let state = tempfile::tempdir().unwrap();
    let Some(mut terminal) = Terminal::open(&folder, state.path()) else { return };
    terminal.sees("windfall> ");
    terminal.types("begin\rput people ada Paris\rsession b\rbegin wait 1\rput people ada Rome\r");
    terminal.sees("session b waits for transaction");
    terminal.sees("b*> ");
    terminal.types("get people bo");
    terminal.sees("bo");
    // The lock timeout expires while this is typed.
    terminal.sees("error: session b: lock wait timeout exceeded after");
    terminal.sees("get people bo");
    terminal.types("b\r");
    terminal.sees("Oslo");
    terminal.types("quit\r");
    assert_eq!(terminal.ends(), 0);
}

#[test]
fn without_a_place_for_the_history_it_works_and_says_so() {
    let folder = people();
    let state = tempfile::tempdir().unwrap();
    fs::write(state.path().join("windfall"), "a file where the folder should be").unwrap();
    let Some(mut terminal) = Terminal::open(&folder, state.path()) else { return };
    terminal.sees("the history is not kept: ");
    terminal.sees("windfall> ");
    terminal.types("get people ada\r");
    terminal.sees("London");
    terminal.sees("windfall> ");
    terminal.types("quit\r");
    assert_eq!(terminal.ends(), 0);
}

#[test]
fn a_signal_within_a_line_leaves_the_terminal_as_it_was() {
    let folder = people();
    let state = tempfile::tempdir().unwrap();
    let Some(mut terminal) = Terminal::open(&folder, state.path()) else { return };
    let before = terminal.sees("\r\n");
    terminal.sees("pid ");
    let process = terminal.sees("\r\n").trim().parse().unwrap();
    terminal.sees("windfall> ");
    terminal.types("begin\r");
    terminal.sees("windfall*> ");
    terminal.types("put people a");
    terminal.sees("people a");
    signal(process, "TERM");
    terminal.sees("the open transaction is rolled back\r\n");
    terminal.sees("stopped by SIGTERM; what was open is rolled back\r\n");
    assert_eq!(terminal.sees("\r\n"), before);
    assert_eq!(terminal.ends(), 143);
}
