//! The source rules: this test checks what a program can check about the sources.
//!
//! Every rule is a function from a file to its violations, and every rule has a planted violation in `cases` that it
//! must find. A failure lists `file:line: what is wrong` for the whole workspace at once.

mod cases;
mod imports;
mod invariants;
mod rules;
mod source;

use std::{
    collections::HashSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use source::Source;

/// Returns the folder of the workspace.
fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a crate lies in `crates/`").to_path_buf()
}

/// Returns every text file of the project, as its path from the workspace and its text. Output of builds is not part of
/// the project, and a file that is not text has no lines to check.
fn project_files() -> Vec<(String, String)> {
    let root = workspace();
    let mut files = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the workspace can be read") {
            let entry = entry.expect("the workspace can be read");
            let (path, name) = (entry.path(), entry.file_name());
            let kind = entry.file_type().expect("a file has a type");
            if kind.is_dir() {
                if name != ".git" && name != "target" {
                    folders.push(path);
                }
            } else if kind.is_file()
                && name != ".git"
                && let Ok(text) = fs::read_to_string(&path)
            {
                let path = path.strip_prefix(&root).expect("it was found below the root");
                files.push((path.to_string_lossy().into_owned(), text));
            }
        }
    }
    files.sort();
    files
}

#[test]
fn the_workspace_keeps_the_house_rules() {
    let files = project_files();
    let mut broken = Vec::new();
    let mut sources = Vec::new();
    for (path, text) in &files {
        broken.extend(rules::text(path, text));
        if Path::new(path).extension().is_some_and(|e| e == "rs") {
            sources.push(Source::parse(path, text).unwrap_or_else(|e| panic!("{e}")));
        }
    }
    assert!(sources.iter().any(|s| s.path.ends_with("windfall/src/lib.rs")), "looked in the wrong folder");
    source::mark_tests(&mut sources);
    for source in &sources {
        broken.extend(rules::source(source));
    }
    broken.extend(invariants::unexecuted(&sources));
    let list = broken.iter().fold(String::new(), |mut list, b| {
        let _ = writeln!(list, "{b}");
        list
    });
    assert!(broken.is_empty(), "{} house rules broken:\n{list}", broken.len());
}

/// proptest looks for the inputs that have failed next to the `src` of their test.
#[test]
fn every_kept_input_belongs_to_a_test() {
    let files = project_files();
    let is_there = |path: &str| files.iter().any(|(file, _)| file == path);
    let kept: Vec<_> = files.iter().filter(|(path, _)| path.contains("/proptest-regressions/")).collect();
    assert!(!kept.is_empty(), "no kept input is found");
    for (path, _) in kept {
        let source = path.replace("/proptest-regressions/", "/src/").replace(".txt", ".rs");
        assert!(is_there(&source), "{path} is never read: there is no {source}");
    }
}

/// Returns the names of functions that a document gives in backticks: lower case, with two underscores at least.
fn named_functions(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |name: &&str| {
        name.matches('_').count() >= 2
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    text.split('`').skip(1).step_by(2).filter(is_name)
}

/// Returns the last parts of the names of tests that commands with `--exact` give, in the blocks of commands.
fn tests_run_by_name(text: &str) -> impl Iterator<Item = &str> {
    let commands = text.lines().filter(|line| line.starts_with("$ ") && line.contains(" --exact "));
    commands.filter_map(|line| {
        let command = line.split("  #").next().unwrap_or_default();
        let mut arguments = command.split(" -- ").nth(1)?.split_whitespace();
        arguments.rfind(|argument| !argument.starts_with("--"))?.rsplit("::").next()
    })
}

#[test]
fn every_test_that_a_document_names_exists() {
    let files = project_files();
    let functions: HashSet<&str> = files
        .iter()
        .filter(|(path, _)| Path::new(path).extension().is_some_and(|e| e == "rs"))
        .flat_map(|(_, text)| text.split("fn ").skip(1))
        .filter_map(|text| text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next())
        .collect();
    let (_, invariants) =
        files.iter().find(|(path, _)| path == "docs/invariants.md").expect("the list of the invariants");
    let named: Vec<&str> = named_functions(invariants).collect();
    assert!(named.len() > 150, "only {} names are found in the list", named.len());
    let missing: Vec<&&str> = named.iter().filter(|name| !functions.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/invariants.md names tests that do not exist: {missing:?}");
    let mut count = 0;
    for (path, text) in
        files.iter().filter(|(path, _)| Path::new(path).extension().is_some_and(|e| e == "md"))
    {
        for name in tests_run_by_name(text).filter(|name| *name != "NAME") {
            count += 1;
            assert!(functions.contains(name), "{path} runs a test that does not exist: {name}");
        }
    }
    assert!(count >= 4, "only {count} commands that run one test are found");
}
