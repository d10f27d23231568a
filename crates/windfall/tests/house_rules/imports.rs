//! The paths that a file names, in imports or in expressions, and the layers of the engine that they may lead to.

use super::source::{Source, Token};

/// The layers, lowest first. A module imports only from layers below its own. The modules of one line share a layer and
/// may import each other. A submodule is listed only if it has a layer of its own.
///
/// The first are those of `windfall-base`, up to `disk`, of `windfall-btree`, up to `tree`, and of `windfall-engine`,
/// up to `lab`. `tree::store` is the interface between the tree and the store of its pages: the tree calls it, and
/// `store` implements it.
const LAYERS: &[&[&str]] = &[
    &["fuzz_input"],
    &["sync", "row", "keys"],
    &["memory"],
    &["ids"],
    &["error"],
    &["composite"],
    &["failpoint"],
    &["env"],
    &["health"],
    &["disk"],
    &["page"],
    &["tree::store"],
    &["tree"],
    &["txn::locks"],
    &["log"],
    &["buffer"],
    &["checkpoint"],
    &["mtr"],
    &["tablespace"],
    &["store"],
    &["system"],
    &["txn::mvcc"],
    &["txn::undo"],
    &["txn::trx"],
    &["txn::row"],
    &["txn"],
    &["catalog"],
    &["recovery"],
    &["options"],
    &["engine"],
    &["lab"],
    &[
        "database",
        "ddl_group",
        "fields",
        "alteration",
        "load",
        "metrics",
        "check",
        "session",
        "table",
        "auto_increment",
        "index",
        "interrupt",
        "range",
        "cursor",
        "scope",
        "transaction",
        "tx_table",
        "get_many",
        "get_one",
        "sample",
    ],
    &["fuzz"],
];

/// Modules that may import less than their layer allows: the tree is an algorithm over pages, without files and time,
/// and the lock manager does not depend on pages.
const NARROW: &[(&str, &[&str])] = &[
    ("page", &["ids", "keys", "error", "memory", "sync", "fuzz_input"]),
    ("tree::store", &["ids", "keys", "error", "memory", "sync", "page"]),
    ("tree", &["ids", "keys", "error", "memory", "sync", "page", "tree::store", "fuzz_input"]),
    ("txn::locks", &["ids", "keys", "error", "memory", "sync", "env"]),
];

/// Roots of paths that are equivalent: no two crates have a module of the same name.
const ROOTS: [&str; 4] = ["crate", "windfall_base", "windfall_btree", "windfall_engine"];

/// A folder of modules that the root of their crate names, too. It is not part of their paths here.
const FOLDER: &str = "storage";

/// Returns whether a file is part of the engine, that is, of one of the crates with layers.
pub(crate) fn is_engine(source: &Source) -> bool {
    matches!(source.krate.as_str(), "windfall" | "windfall-base" | "windfall-btree" | "windfall-engine")
}

/// A path as it is written in a file, and the line of its last part.
#[derive(Debug)]
pub(crate) struct Named {
    pub path: Vec<String>,
    pub line: usize,
    pub module: usize,
    pub test: bool,
}

/// Returns every path of a file that begins with one of these words or is in a `use`.
pub(crate) fn paths(source: &Source) -> Vec<Named> {
    const STARTS: [&str; 8] =
        ["self", "super", "std", "core", "alloc", "parking_lot", "parking_lot_core", "rustix"];
    let is_start = |word: &str| ROOTS.contains(&word) || STARTS.contains(&word);
    let tokens = &source.tokens;
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let word = tokens[at].text.as_str();
        if word == "use" && is(tokens, at + 1, "<") {
            // `impl Trait + use<'a>` imports nothing.
            at += 1;
        } else if word == "use" {
            at = tree(tokens, at + 1, &[], &mut found);
        } else if is_start(word)
            && is_separator(tokens, at + 1)
            && !follows_name(tokens, at)
            && !is_visibility(tokens, at)
        {
            let first = at;
            let mut path = vec![word.to_string()];
            while is_separator(tokens, at + 1) && tokens.get(at + 3).is_some_and(is_word) {
                at += 3;
                path.push(tokens[at].text.clone());
            }
            found.push(name(path, &tokens[first]));
            at += 1;
        } else {
            at += 1;
        }
    }
    found
}

fn name(path: Vec<String>, token: &Token) -> Named {
    Named { path, line: token.line, module: token.module, test: token.test }
}

fn is(tokens: &[Token], at: usize, text: &str) -> bool {
    tokens.get(at).is_some_and(|t| t.text == text)
}

fn is_separator(tokens: &[Token], at: usize) -> bool {
    is(tokens, at, ":") && is(tokens, at + 1, ":")
}

fn is_word(token: &Token) -> bool {
    token.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns whether the path here is that of a `pub(in path)`, which imports nothing.
fn is_visibility(tokens: &[Token], at: usize) -> bool {
    at >= 2 && is(tokens, at - 1, "in") && is(tokens, at - 2, "(")
}

/// Returns whether the word here is a later part of a longer path: `a::core` is not `core`, `::core` is.
fn follows_name(tokens: &[Token], at: usize) -> bool {
    at >= 3 && is_separator(tokens, at - 2) && (is_word(&tokens[at - 3]) || is(tokens, at - 3, ">"))
}

/// Parses one tree of a `use`: adds its paths, and returns its end.
fn tree(tokens: &[Token], mut at: usize, prefix: &[String], found: &mut Vec<Named>) -> usize {
    let mut path = prefix.to_vec();
    let first = at;
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            ":" => at += 1,
            "{" => {
                at += 1;
                while at < tokens.len() && !is(tokens, at, "}") {
                    at = if is(tokens, at, ",") { at + 1 } else { tree(tokens, at, &path, found) };
                }
                return at + 1;
            }
            "*" => {
                found.push(name(path, token));
                return at + 1;
            }
            "as" => at += 2,
            // `a::{self}` names `a`; at the front `self` is the module.
            "self" if !path.is_empty() => at += 1,
            _ if is_word(token) => {
                path.push(token.text.clone());
                at += 1;
            }
            _ => break,
        }
    }
    if at > first {
        found.push(name(path, &tokens[first]));
    }
    at.max(first + 1)
}

/// Resolves a path that begins with a root, `self` or `super` to a path from the root of the crate.
fn resolve(path: &[String], module: &[String]) -> Option<Vec<String>> {
    let mut from = module.to_vec();
    let mut rest = path;
    match path.first()?.as_str() {
        root if ROOTS.contains(&root) => from.clear(),
        "self" => {}
        "super" => drop(from.pop()),
        _ => return None,
    }
    rest = &rest[1..];
    while rest.first().is_some_and(|p| p == "super") {
        from.pop();
        rest = &rest[1..];
    }
    from.extend(rest.iter().cloned());
    Some(from)
}

/// Returns a path from the root without the folder that it may begin with.
fn without_folder(path: &[String]) -> &[String] {
    path.strip_prefix(&[FOLDER.to_owned()]).unwrap_or(path)
}

/// Returns the listed module that a path from the root leads into, and its layer.
fn layer_of(path: &[String]) -> Option<(&'static str, usize)> {
    let path = without_folder(path);
    let two = path.get(..2).map(|p| p.join("::"));
    let find = |name: &str| {
        LAYERS
            .iter()
            .enumerate()
            .find_map(|(layer, modules)| modules.iter().find(|r| **r == name).map(|listed| (*listed, layer)))
    };
    two.and_then(|two| find(&two)).or_else(|| find(path.first()?))
}

/// Reports every import from a higher layer, by line and message.
pub(crate) fn upward(source: &Source) -> Vec<(usize, String)> {
    let own = without_folder(&source.modules[0]);
    if !is_engine(source) || source.test || own.is_empty() {
        return Vec::new();
    }
    let Some((here, layer)) = layer_of(own) else {
        return vec![(1, format!("`{}` has no layer: give it one in LAYERS and in ARCHITECTURE.md", own[0]))];
    };
    let mut broken = Vec::new();
    for named in paths(source).iter().filter(|n| !n.test) {
        let Some(target) = resolve(&named.path, &source.modules[named.module]) else { continue };
        let written = named.path.join("::");
        match layer_of(&target) {
            None => broken.push((
                named.line,
                format!("`{written}` leads to no layer: name the module in which the thing is defined"),
            )),
            Some((there, _)) if there == here => {}
            Some((there, _))
                if NARROW.iter().any(|(listed, may)| *listed == here && !may.contains(&there)) =>
            {
                broken.push((named.line, format!("`{here}` may not import `{there}`: `{written}`")));
            }
            Some((there, other)) if other > layer => {
                broken.push((named.line, format!("import upward, from `{here}` to `{there}`: `{written}`")));
            }
            Some(_) => {}
        }
    }
    broken
}
