//! Planted violations: each rule must find them, so that a rule that finds nothing elsewhere is known to work.

use super::{
    imports, invariants, rules,
    rules::Found,
    source::{Source, mark_tests},
};

fn parse(path: &str, text: &str) -> Source {
    Source::parse(path, text).expect("the planted file is Rust")
}

/// Returns the lines that a rule reports in a file of the engine.
fn lines(rule: fn(&Source) -> Found, path: &str, text: &str) -> Vec<usize> {
    let found = rule(&parse(&format!("crates/windfall/src/{path}"), text));
    found.into_iter().map(|(line, _)| line).collect()
}

const NONE: [usize; 0] = [];
const NO_SENTENCES: [String; 0] = [];

#[test]
fn imports_upward_are_found_in_every_shape() {
    let up = imports::upward;
    assert_eq!(lines(up, "log/mod.rs", "use crate::buffer::Pool;"), [1]);
    assert_eq!(
        lines(
            up,
            "log/mod.rs",
            "use crate::{\n    error::Error,\n    buffer::{\n        Frame, Pool,\n    },\n};"
        ),
        [4, 4]
    );
    assert_eq!(lines(up, "log/write.rs", "use super::super::mtr;"), [1]);
    assert_eq!(lines(up, "log/write.rs", "fn f() {\n    crate::catalog::open();\n}"), [2]);
    assert_eq!(
        lines(up, "log/mod.rs", "fn f() {\n    run!(x, crate::catalog::open());\n}"),
        [2],
        "inside a macro"
    );
    assert_eq!(lines(up, "log/mod.rs", "mod inner {\n    use super::super::mtr::Mtr;\n}"), [2]);
    assert_eq!(lines(up, "log/mod.rs", "pub(crate) use crate::mtr::Mtr as T;"), [1]);
    assert_eq!(lines(up, "log/mod.rs", "use crate::*;"), [1]);
    assert_eq!(lines(up, "log/mod.rs", "use crate as all;"), [1]);
    assert_eq!(lines(up, "log/mod.rs", "use crate::Error;"), [1], "a re-export of the root hides its layer");
    assert_eq!(lines(up, "cellar.rs", ""), [1], "a module without a layer");
}

#[test]
fn imports_downward_are_free() {
    let up = imports::upward;
    assert_eq!(lines(up, "log/mod.rs", "use crate::{disk::{self, Disk}, error::*, sync::Arc};"), NONE);
    assert_eq!(lines(up, "log/write.rs", "use super::read::Reader; use self::x::Y; use std::io;"), NONE);
    assert_eq!(
        lines(up, "log/mod.rs", "use other::crate_like::buffer; fn f() -> impl Sized + use<> {}"),
        NONE
    );
    assert_eq!(lines(up, "lib.rs", "pub use crate::database::Database;"), NONE);
    assert_eq!(lines(up, "log/mod.rs", "#[cfg(test)]\nmod tests { use crate::database::Database; }"), NONE);
    assert_eq!(lines(up, "log/mod.rs", "// use crate::buffer;\nconst A: &str = \"crate::buffer::x\";"), NONE);
    assert_eq!(lines(up, "table.rs", "use crate::database::Database;"), NONE, "modules of one layer");
}

#[test]
fn the_interface_between_the_tree_and_its_store_is_below_both() {
    let up = imports::upward;
    assert_eq!(lines(up, "tree/node.rs", "use super::store::PageStore; use crate::page::Page;"), NONE);
    assert_eq!(lines(up, "tree/node.rs", "use crate::mtr::Mtr;\nuse crate::buffer::Pool;"), [1, 2]);
    assert_eq!(lines(up, "mtr.rs", "use crate::tree::store::MiniTransaction;"), NONE);
    assert_eq!(lines(up, "tree/store.rs", "use crate::tree::Tree;"), [1]);
}

#[test]
fn the_tree_imports_no_file_and_no_clock_and_a_lock_no_page() {
    let up = imports::upward;
    assert_eq!(lines(up, "tree/node.rs", "use crate::{error::Result, ids::Lsn, sync::Arc};"), NONE);
    assert_eq!(lines(up, "tree/node.rs", "use crate::env::Env;\nuse crate::disk::Disk;"), [1, 2]);
    assert_eq!(lines(up, "tree/node.rs", "use windfall_base::disk::Disk;"), [1]);
    assert_eq!(lines(up, "tree/store.rs", "fn f() {\n    windfall_base::env::now();\n}"), [2]);
    assert_eq!(lines(up, "page/op.rs", "use crate::disk::Disk;"), [1]);
    assert_eq!(lines(up, "txn/locks/mod.rs", "use crate::env::Env;\nuse crate::page::Page;"), [2]);
    assert_eq!(lines(up, "log/mod.rs", "use windfall_btree::page::Page;"), NONE);
}

#[test]
fn long_files_are_found() {
    let long = "\n".repeat(rules::LINES_MAX + 1);
    assert_eq!(rules::length("crates/a/src/b.rs", &long).len(), 1);
    assert!(rules::length("crates/a/src/b.rs", &long[1..]).is_empty());
    assert!(rules::length("docs/file-format.md", &long).is_empty());
}

#[test]
fn private_words_are_found_in_comments() {
    let lines = |path, text| -> Vec<usize> {
        rules::private_words(path, text).into_iter().map(|(line, _)| line).collect()
    };
    let text = "// The page that is written.\nlet who = 1;\n/// Told by the caller.\n//! It is told so.\n";
    assert_eq!(lines("crates/a/src/b.rs", text), [3, 4]);
    assert_eq!(lines("crates/a/tests/b.rs", text), [3, 4]);
    assert_eq!(lines("docs/b.md", text), NONE);
}

#[test]
fn wide_comments_are_found() {
    let wide = |begin: &str| format!("fn f() {{}}\n{begin}{}", "a".repeat(121 - begin.chars().count()));
    let lines = |path, text: String| -> Vec<usize> {
        rules::width(path, &text).into_iter().map(|(line, _)| line).collect()
    };
    for begin in ["// ", "    /// ", "//! ", "// é"] {
        let found = lines("crates/a/src/b.rs", wide(begin));
        assert_eq!(found, [2], "{begin}");
        let found = lines("crates/a/src/b.rs", wide(begin).replacen("aa", "a", 1));
        assert_eq!(found, NONE, "{begin}");
    }
    for (path, begin) in [("a.md", "// "), ("a.rs", "//! | 0 | "), ("a.rs", "let a = ")] {
        let found = lines(path, wide(begin));
        assert_eq!(found, NONE, "{path}: {begin}");
    }
}

#[test]
fn leftover_markers_are_found() {
    // Concatenated, because this file must keep the rule as well.
    for (a, b) in
        [("// TO", "DO: later"), ("// FIX", "ME"), ("# XX", "X"), ("    dbg", "!(x)"), ("todo", "!()")]
    {
        assert_eq!(rules::left_over(&format!("fn f()\n{a}{b}"))[0].0, 2, "{a}{b}");
    }
    assert_eq!(rules::left_over(&format!("unimplemented{}", "!(\"x\")")).len(), 1);
    assert_eq!(rules::left_over(&format!("// Good enough {} now.", "for")).len(), 1);
    assert_eq!(rules::left_over(&format!("{} now it is empty", "For")).len(), 1);
    assert!(rules::left_over("mktemp x.XXXXXX; todos; waits for nowhere; method!()").is_empty());
}

#[test]
fn modules_without_their_doc_are_found() {
    let doc = rules::module_doc;
    let full = "//! A.\n//!\n//! **Purpose.** B.\n//!\n//! **Invariants.** C.\n";
    assert_eq!(lines(doc, "a.rs", full), NONE);
    assert_eq!(lines(doc, "a.rs", "use std::io;"), [1]);
    assert_eq!(lines(doc, "a.rs", "//! A.\nuse std::io;"), [1]);
    assert_eq!(lines(doc, "a.rs", &full.replace("Invariants", "Notes")), [1]);
    assert_eq!(lines(doc, "a.rs", &full.replace("Purpose", "Aim")), [1]);
    assert_eq!(lines(doc, "a.rs", "//! A.\n//!\n//! **Invariants.** C.\n//!\n//! **Purpose.** B.\n"), [1]);
    let measures = "//! A.\n//!\n//! **Purpose.** B.\n//!\n//! **Method.** C.\n";
    assert!(doc(&parse("crates/windfall-lab/src/a.rs", measures)).is_empty());
    assert!(doc(&parse("crates/windfall/tests/a.rs", "//! What it is for.")).is_empty());
    assert_eq!(doc(&parse("crates/windfall/tests/a.rs", "fn f() {}")).len(), 1);
}

/// Returns what the rule for invariants reports in a file of the engine, next to a module with a test and an assertion.
fn unexecuted(invariants: &str, code: &str) -> Vec<String> {
    let other = "fn read() {}\nfn write(a: [u8; 2]) -> u8 {\n    assert!(a[0] > 0);\n    a[0]\n}\nfn last();\n\
                 #[cfg(test)]\nmod tests {\n    #[test]\n    #[should_panic]\n    fn zero_is_refused() {}\n\
                 fn helper() { assert!(true) }\n}\n";
    let text =
        format!("//! A.\n//!\n//! **Purpose.** B (test: c).\n//!\n//! **Invariants.** {invariants}\n{code}");
    let sources = [parse(LOG, other), parse("crates/windfall-engine/src/storage/log/ring.rs", &text)];
    invariants::unexecuted(&sources).into_iter().map(|broken| broken.to_string()).collect()
}

#[test]
fn invariants_that_nothing_refutes_are_found() {
    let unmarked = |invariants: &str| {
        let begin = "crates/windfall-engine/src/storage/log/ring.rs:5: an invariant without a mark that says what \
                     refutes it: ";
        let sentence = |found: String| found.strip_prefix(begin).expect("no other violation").to_owned();
        unexecuted(invariants, "fn f() { assert!(a) }").into_iter().map(sentence).collect::<Vec<_>>()
    };
    assert_eq!(unmarked("A number rises."), ["A number rises."]);
    for words in ["(of a page)", "by type", "(it was checked by `log/mod.rs::write`)"] {
        assert_eq!(unmarked(&format!("A number rises {words}.")), [format!("A number rises {words}.")]);
    }
    for mark in [
        "(by type)",
        "(test: `zero_is_refused`)",
        "(tests: `zero_is_refused`, `zero_is_refused`)",
        "(checked by `log/mod.rs::write`)",
        "(test:\n//! `zero_is_refused`)",
        "(checked by\n//! `storage/log/mod.rs::write`)",
    ] {
        let text = format!("A number rises {mark}, always. So it does not fall. Thus it is safe.");
        assert_eq!(unmarked(&text), NO_SENTENCES, "{mark}");
    }
    // Each sentence and each list item needs its own; other sections need none.
    assert_eq!(
        unmarked(
            "A is\n//! so. B is so (by type). [`C`] is so.\n//! - `D` is so.\n//! - E is so (by type).\n//!\n\
             //! F is 1.5.\n//!\n//! **Cost.** G is so.\n//!\n//! # Layout\n//! H is so."
        ),
        ["A is so.", "[`C`] is so.", "`D` is so.", "F is 1.5."]
    );
}

#[test]
fn marks_that_name_nothing_are_found() {
    for (mark, what) in [
        ("test: `one_is_refused`", "there is no test `one_is_refused`"),
        ("test: `helper`", "there is no test `helper`"),
        ("test: zero_is_refused", "the mark `(test: zero_is_refused)` has no name in backticks"),
        (
            "checked by log/mod.rs::write",
            "the mark `(checked by log/mod.rs::write)` has no name in backticks",
        ),
        ("checked by `log/mod.rs::read`", "there is no function `log/mod.rs::read` with an assertion"),
        ("checked by `log/mod.rs::last`", "there is no function `log/mod.rs::last` with an assertion"),
        ("checked by `g/mod.rs::write`", "there is no function `g/mod.rs::write` with an assertion"),
        ("checked by `log/mod.rs::helper`", "there is no function `log/mod.rs::helper` with an assertion"),
    ] {
        let found = unexecuted(&format!("A number rises ({mark})."), "fn f() { assert!(a) }");
        assert!(matches!(&found[..], [one] if one.ends_with(what)), "{mark}: {found:?}");
    }
}

#[test]
fn primitives_outside_their_door_are_found() {
    let door = rules::one_door;
    assert_eq!(lines(door, "log/mod.rs", "use std::sync::Arc;"), [1]);
    assert_eq!(lines(door, "log/mod.rs", "use core::sync::atomic::AtomicU64;"), [1]);
    assert_eq!(
        lines(door, "log/mod.rs", "use std::{\n    io,\n    thread,\n    time::{Duration, Instant},\n};"),
        [3, 4]
    );
    assert_eq!(lines(door, "log/mod.rs", "fn f() {\n    ::std::thread::sleep(t);\n}"), [2]);
    assert_eq!(lines(door, "log/mod.rs", "fn f() { m!(std::time::SystemTime::now()) }"), [1]);
    assert_eq!(lines(door, "log/mod.rs", "use std::time;"), [1]);
    assert_eq!(lines(door, "log/mod.rs", "use parking_lot::Mutex;"), [1]);
    assert_eq!(lines(door, "log/mod.rs", "thread_local! { static A: u8 = 1; }"), [1]);
    assert_eq!(lines(door, "log/mod.rs", "use std::thread_local;\nthread_local! { static A: u8 = 1; }"), [1]);
    assert_eq!(
        lines(door, "log/mod.rs", "use crate::sync::thread_local;\nthread_local! { static A: u8 = 1; }"),
        NONE
    );
    assert_eq!(
        lines(door, "log/mod.rs", "use std::{time::Duration, io, cell::Cell}; use crate::sync::Arc;"),
        NONE
    );
    assert_eq!(lines(door, "sync/lock.rs", "use std::sync::Arc;"), NONE);
    assert_eq!(lines(door, "env/real.rs", "use std::time::Instant;"), NONE);
    assert_eq!(lines(door, "log/mod.rs", "#[test]\nfn t() { std::thread::yield_now() }\nfn f() {}"), NONE);
    assert!(door(&parse("crates/windfall-cli/src/main.rs", "use std::time::Instant;")).is_empty());
}

#[test]
fn expectations_without_a_reason_are_found() {
    let expects = rules::expects;
    assert_eq!(
        lines(expects, "a.rs", "fn f() {\n    x.expect(\"\");\n    y\n        .expect(\"some\");\n}"),
        [2, 4]
    );
    assert_eq!(
        lines(expects, "a.rs", "fn f() { assert!(x.expect(\"\") == 1); v.map(Option::unwrap) }"),
        [1, 1]
    );
    assert_eq!(
        lines(expects, "a.rs", "fn f() { x.expect(\"the caller checked it\"); x.unwrap_or(1); }"),
        NONE
    );
    assert_eq!(
        lines(
            expects,
            "a.rs",
            "// x.expect(\"\")\n/// `x.expect(\"\")`\nconst A: &str = r#\"x.expect(\"\") } \"#;"
        ),
        NONE
    );
}

#[test]
fn test_code_is_distinguished_from_the_rest() {
    let expects = rules::expects;
    let planted = [
        "#[cfg(test)]\nmod tests {\n    const BRACE: char = '}';\n    fn f() { x.expect(\"\"); }\n}",
        "#[cfg(test)]\n#[allow(dead_code)]\npub(crate) const fn f() -> u8 { x.expect(\"\") }",
        "#[cfg(all(test, unix))]\nimpl A<B> { fn f() { x.expect(\"\") } }",
        "#[cfg(test)]\nuse a::{b, c};\n#[test]\nfn t() { x.expect(\"\") }",
        "#[cfg(test)]\nconst A: B = B { c: d.expect(\"\") };",
        "struct A {\n    #[cfg(test)]\n    b: C<D, E>,\n}\n#[cfg(test)]\nfn f() { x.expect(\"\") }",
        "fn f() {\n    #[cfg(test)]\n    x.expect(\"\");\n}",
        "#![cfg(test)]\nfn f() { x.expect(\"\") }",
    ];
    for text in planted {
        assert_eq!(lines(expects, "a.rs", text), NONE, "{text}");
        let after = format!("{text}\nfn last() {{ y.expect(\"\") }}");
        let expected = usize::from(!text.starts_with("#!"));
        assert_eq!(lines(expects, "a.rs", &after).len(), expected, "{after}");
    }
    for text in ["#[cfg(not(test))]", "#[cfg(any(test, unix))]", "#[cfg(feature = \"test\")]", "#[inline]"] {
        assert_eq!(lines(expects, "a.rs", &format!("{text}\nfn f() {{ x.expect(\"\") }}")), [2], "{text}");
    }
}

#[test]
fn files_of_test_modules_are_test_code() {
    let mut sources = [
        parse("crates/windfall/src/log/mod.rs", "#[cfg(test)]\nmod model;\nmod write;"),
        parse("crates/windfall/src/log/model.rs", "fn f() { x.expect(\"\") }"),
        parse("crates/windfall/src/log/model/deep.rs", "fn f() { x.expect(\"\") }"),
        parse("crates/windfall/src/log/write.rs", "fn f() { x.expect(\"\") }"),
        parse("crates/windfall-cli/src/log/model.rs", "fn f() { x.expect(\"\") }"),
        parse("crates/windfall/tests/kill.rs", "fn f() { x.expect(\"\") }"),
    ];
    mark_tests(&mut sources);
    let found: Vec<usize> = sources.iter().map(|s| rules::expects(s).len()).collect();
    assert_eq!(found, [0, 0, 0, 1, 1, 0]);
}

/// A file of the engine, in the folder that paths leave out.
const LOG: &str = "crates/windfall-engine/src/storage/log/mod.rs";

/// Returns the lines of a file of the engine with an import from a higher layer.
fn upward(text: &str) -> Vec<usize> {
    imports::upward(&parse(LOG, text)).into_iter().map(|(line, _)| line).collect()
}

#[test]
fn a_folder_that_the_root_names_hides_no_import() {
    for path in
        ["crate::storage::buffer", "super::buffer", "windfall_engine::buffer", "super::super::catalog"]
    {
        assert_eq!(upward(&format!("use {path}::Pool;\n")), [1], "{path}");
    }
    assert_eq!(upward("use crate::disk::Disk;\nuse super::log::Log;\n"), NONE);
    assert_eq!(imports::upward(&parse("crates/windfall-engine/src/storage/mod.rs", "pub mod log;\n")), []);
}

#[test]
fn only_tests_ask_for_points_within_statements() {
    let found = |path: &str, text: &str| rules::testing(path, text).len();
    let asked = "windfall-engine = { path = \"../windfall-engine\", features = [\"testing\"] }\n";
    assert_eq!(
        found("crates/windfall/Cargo.toml", &format!("[dependencies]\n[dev-dependencies]\n{asked}")),
        0
    );
    assert_eq!(
        found("crates/windfall/Cargo.toml", &format!("[dependencies]\n{asked}[dev-dependencies]\n")),
        1
    );
    assert_eq!(found("crates/windfall-cli/Cargo.toml", &format!("[dev-dependencies]\n{asked}")), 1);
    let passed_on = "[features]\ntesting = [\"windfall-base/testing\"]\n";
    assert_eq!(found("crates/windfall-engine/Cargo.toml", passed_on), 0);
    assert_eq!(found("crates/windfall/Cargo.toml", passed_on), 1);
    assert_eq!(found("crates/windfall-base/Cargo.toml", "[features]\ntesting = []\n"), 0);
}

#[test]
fn a_broken_rule_names_its_place() {
    let broken = rules::source(&parse(LOG, "use crate::buffer::Pool;\n"));
    let import = format!("{LOG}:1: import upward, from `log` to `buffer`: `crate::buffer::Pool`");
    assert!(broken.iter().any(|b| b.to_string() == import), "{broken:?}");
    let broken = rules::text("a.sh", &["# TO", "DO"].concat());
    assert!(broken.last().is_some_and(|b| b.to_string().starts_with("a.sh:1: left over")));
    assert!(Source::parse("a.rs", "fn f( {").is_err_and(|e| e.starts_with("a.rs:1: not Rust")));
}

#[test]
fn the_lab_names_its_module_of_the_engine_only() {
    let found = |path: &str, text: &str| -> Vec<usize> {
        rules::lab_boundary(path, text).into_iter().map(|(line, _)| line).collect()
    };
    let own = "use windfall_engine::lab::{self, Log};\nuse windfall_btree::page::Page;\n";
    let others = "use windfall_engine::log::Log;\nuse windfall_engine as engine;\nuse windfall_engine::{lab, log};\nuse windfall_base::Error;\n";
    assert_eq!(found("crates/windfall-lab/src/pool/mod.rs", own), []);
    assert_eq!(found("crates/windfall-lab/src/pool/mod.rs", others), [1, 2, 3, 4]);
    assert_eq!(found("crates/windfall/src/lib.rs", others), []);
}

#[test]
fn only_the_command_asks_for_the_lab() {
    let found = |path: &str, text: &str| -> Vec<usize> {
        rules::lab(path, text).into_iter().map(|(line, _)| line).collect()
    };
    let engine = "[features]\nlab = [\"windfall-engine/lab\"]\n# The lab asks.\n[dependencies]\nwindfall-lab = \"0.1\"\n";
    assert_eq!(found("crates/windfall/Cargo.toml", engine), [5]);
    let always = "[dependencies]\nwindfall-lab = { path = \"../windfall-lab\", version = \"0.1.0\" }\n";
    assert_eq!(found("crates/windfall-cli/Cargo.toml", always), [2]);
    let asked = "[dependencies]\nwindfall = { path = \"../windfall\", features = [\"lab\"] }\n";
    assert_eq!(found("crates/windfall-capi/Cargo.toml", asked), [2]);
    assert_eq!(found("crates/windfall/src/lib.rs", always), []);
    let tree = "[features]\nlab = []\n[dependencies]\nwindfall-lab = \"0.1\"\n";
    assert_eq!(found("crates/windfall-btree/Cargo.toml", tree), [4]);
}
