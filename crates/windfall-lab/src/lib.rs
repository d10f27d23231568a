//! The lab: historical buffer pools under Windfall's tree, and what they do at a DROP TABLE.
//!
//! **Purpose.** Runs fifteen years of DROP TABLE on one machine, in one run. The tree is Windfall's own, written
//! against the traits of [`windfall_btree::tree::store`]. Its pages are kept by a classic buffer pool, with the lists,
//! the mutexes and the global hash index of the servers of 2005 to 2021. Each policy removes a dropped table from the
//! pool as one of those servers did.
//!
//! **Invariants.** None of this is in the engine: `windfall` does not depend on this crate (by type). A module imports
//! only from modules before it in this list (test: `modules_import_only_from_those_before_them`): [`watch`], [`pool`],
//! [`system`], [`policy`], [`results`], [`server`], [`seam`], [`workload`], [`experiment`], [`report`].
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![allow(clippy::cast_sign_loss, reason = "what is cast here are sizes and times, and not negative")]

pub mod experiment;
pub mod policy;
pub mod pool;
pub mod report;
pub mod results;
pub mod seam;
pub mod server;
pub mod system;
#[cfg(test)]
mod testing;
pub mod watch;
pub mod workload;

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// Returns the texts of a module's files, without their tests.
    fn texts(path: &Path) -> Vec<String> {
        if path.is_dir() {
            return fs::read_dir(path).unwrap().flat_map(|entry| texts(&entry.unwrap().path())).collect();
        }
        let is_test = ["tests.rs", "threads.rs"].iter().any(|name| path.ends_with(name));
        let text = if is_test { String::new() } else { fs::read_to_string(path).unwrap() };
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        vec![code.lines().filter(|line| !line.trim_start().starts_with("//")).collect()]
    }

    fn first_word(text: &str) -> &str {
        let text = text.trim_start();
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default()
    }

    /// Returns the modules of this crate that a text names.
    fn named(text: &str) -> Vec<&str> {
        let mut names = Vec::new();
        for path in text.split("crate::").skip(1) {
            let Some(group) = path.strip_prefix('{') else {
                names.push(first_word(path));
                continue;
            };
            names.push(first_word(group));
            let mut depth = 1;
            for (at, c) in group.char_indices() {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 1 => names.push(first_word(&group[at + 1..])),
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
            }
        }
        names.retain(|name| !name.is_empty());
        names
    }

    #[test]
    fn modules_import_only_from_those_before_them() {
        let text = include_str!("lib.rs");
        // The list is that of the doc.
        let doc: String = text.lines().map_while(|line| line.strip_prefix("//!")).collect();
        let list = doc.split_once("A module imports only").unwrap().1;
        let order: Vec<&str> = list.split("[`").skip(1).map(first_word).collect();
        assert_eq!(order.len(), text.matches("\npub mod ").count());
        let (src, mut modules) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), 0);
        for (n, module) in order.iter().enumerate() {
            let (folder, file) = (src.join(module), src.join(module).with_extension("rs"));
            for text in texts(if folder.is_dir() { &folder } else { &file }) {
                for name in named(&text) {
                    let at = order.iter().position(|other| *other == name);
                    assert!(at.is_some_and(|at| at <= n), "{module} imports from {name}");
                    modules += 1;
                }
            }
        }
        assert!(modules > 50, "{modules}");
        assert_eq!(named("use crate::{a::{b, c}, d, e::f}; crate::g::h()"), ["a", "d", "e", "g"]);
    }
}
