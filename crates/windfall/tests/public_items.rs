//! The list of public items: a change of the API shows in `public-items.txt`, next to the change of the code.
//!
//! The items are those of this crate, and those of the crates below it that it exports. rustdoc lists them as JSON,
//! which is not stable: `RUSTC_BOOTSTRAP` enables it in the pinned compiler.

#![allow(clippy::unwrap_used, reason = "a test panics")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use public_api::{Builder, PublicApi};
use serde_json::Value;
use windfall::{
    Batch, Cursor, CursorMemory, Database, DdlGroup, Index, IndexBatch, IndexCursor, IndexRange,
    InterruptHandle, OneRow, Range, Scratch, Session, Table, TableAlteration, TableLoad, TemporaryLoad,
    TemporaryTable, Transaction, Values,
};

/// The crates below the API.
const BELOW: [&str; 3] = ["windfall-base", "windfall-btree", "windfall-engine"];
/// With this variable, the list is written instead of compared.
const WRITE: &str = "WINDFALL_PUBLIC_ITEMS";

/// The output of rustdoc for a crate.
struct Documented {
    api: PublicApi,
    json: Value,
}

impl Documented {
    fn new(package: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("public-items");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["rustdoc", "--quiet", "--locked", "-p", package, "--lib", "--target-dir"]).arg(&folder);
        cargo.args(["--", "-Zunstable-options", "--output-format", "json"]).env("RUSTC_BOOTSTRAP", "1");
        // The flags with which the test itself was built do not matter here.
        for name in ["CARGO_BUILD_TARGET", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTFLAGS"] {
            cargo.env_remove(name);
        }
        assert!(cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success(), "{package}");
        let file: PathBuf = folder.join("doc").join(package.replace('-', "_") + ".json");
        let json = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let api =
            Builder::from_rustdoc_json(&file).omit_blanket_impls(true).omit_auto_trait_impls(true).build();
        let api = api.expect("the JSON of the compiler that rust-toolchain.toml names can be read");
        Self { api, json: serde_json::from_str(&json).unwrap() }
    }

    /// Returns where an item is defined.
    fn path(&self, id: u64) -> Option<String> {
        let parts = self.json["paths"][id.to_string()]["path"].as_array()?;
        Some(parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("::"))
    }

    /// Returns where the items of other crates that this crate exports are defined.
    fn exported(&self) -> BTreeSet<String> {
        let items = self.json["index"].as_object().unwrap().values();
        let ids = items.filter_map(|item| item["inner"]["use"]["id"].as_u64());
        ids.filter_map(|id| self.path(id)).filter(|path| path.starts_with("windfall_")).collect()
    }

    /// Returns the public items that are among these, or within one of them, a line each. Removes from `wanted` those
    /// that this crate has.
    fn lines_of(&self, wanted: &mut BTreeSet<String>) -> BTreeSet<String> {
        let parents: BTreeMap<u32, u32> =
            self.api.items().filter_map(|item| Some((item.id().0, item.parent_id()?.0))).collect();
        let mut found = BTreeSet::new();
        let mut lines = BTreeSet::new();
        for item in self.api.items() {
            let mut at = Some(item.id().0);
            while let Some(id) = at {
                if let Some(path) = self.path(id.into()).filter(|path| wanted.contains(path)) {
                    found.insert(path);
                    lines.insert(item.to_string());
                }
                at = parents.get(&id).copied();
            }
        }
        wanted.retain(|path| !found.contains(path));
        lines
    }
}

/// Returns the paths of the project that a line mentions.
fn mentioned(line: &str) -> impl Iterator<Item = &str> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let words = line.split(move |letter| !is_part(letter)).map(|word| word.trim_end_matches(':'));
    words.filter(|path| path.starts_with("windfall"))
}

/// Returns whether a name is that of a type or a trait.
fn is_type(name: &str) -> bool {
    name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase)
}

/// Returns the names of the types that a user can name: each exported one, and each one in a public module.
fn nameable(lines: &BTreeSet<String>) -> BTreeSet<&str> {
    let declares = |line: &&String| {
        ["pub use ", "struct ", "enum ", "trait ", "type "].iter().any(|word| line.contains(word))
    };
    let names = lines.iter().filter(declares).filter_map(|line| mentioned(line).next());
    names.filter_map(|path| path.rsplit("::").find(|name| is_type(name))).collect()
}

#[test]
fn the_list_has_every_public_item() {
    let api = Documented::new("windfall");
    let mut wanted = api.exported();
    assert!(wanted.len() > 20, "{wanted:?}");
    let mut is: BTreeSet<String> = api.api.items().map(ToString::to_string).collect();
    for package in BELOW {
        is.extend(Documented::new(package).lines_of(&mut wanted));
    }
    assert!(wanted.is_empty(), "nothing is listed of what is exported: {wanted:?}");

    let names = nameable(&is);
    let hidden: BTreeSet<&str> = is
        .iter()
        .flat_map(|line| mentioned(line))
        // A trait that seals another one has no name for users, on purpose.
        .filter(|path| !path.contains("::sealed::"))
        .filter(|path| path.split("::").find(|name| is_type(name)).is_some_and(|name| !names.contains(name)))
        .collect();
    assert!(hidden.is_empty(), "public items mention types that no user can name: {hidden:#?}");

    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("public-items.txt");
    if env::var_os(WRITE).is_some() {
        let lines: Vec<&str> = is.iter().map(String::as_str).collect();
        fs::write(&file, lines.join("\n") + "\n").unwrap();
    }
    let listed: BTreeSet<String> = fs::read_to_string(&file).unwrap().lines().map(Into::into).collect();
    let (gone, new): (Vec<_>, Vec<_>) = (listed.difference(&is).collect(), is.difference(&listed).collect());
    assert!(
        gone.is_empty() && new.is_empty(),
        "the public items are not those of public-items.txt: no longer public are {gone:#?}, new are {new:#?}. If \
         that is intended, `{WRITE}=1 cargo test -p windfall --test public_items` writes the list again"
    );
}

/// The list contains no auto traits. The documentation of the crate promises these of its handles.
#[test]
fn handles_are_used_from_any_thread() {
    fn is_shared<T: Clone + Send + Sync + 'static>() {}
    fn is_sent<T: Send + 'static>() {}
    is_shared::<Database>();
    is_shared::<Table>();
    is_shared::<Index>();
    is_sent::<Session>();
    is_sent::<Transaction>();
    is_sent::<(Cursor, IndexCursor, CursorMemory)>();
    is_sent::<(Range, IndexRange)>();
    is_sent::<(OneRow, Values, Batch, IndexBatch)>();
    is_sent::<(DdlGroup, TableAlteration, TableLoad)>();
    is_sent::<(TemporaryTable, TemporaryLoad, Scratch)>();
    is_shared::<InterruptHandle>();
}
