//! The list of public items: a change of the API shows in `public-items.txt`, beside the change of the code.
//!
//! The items are those of this crate, and those of the crates below it that it exports. The compiler lists them: its
//! documentation in JSON is not stable, so the pinned compiler is told to provide it nevertheless.

#![allow(clippy::unwrap_used, reason = "a test panics")]

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use public_api::Builder;
use serde_json::Value;

/// The crates with exported items.
const CRATES: [&str; 3] = ["windfall", "windfall-base", "windfall-engine"];
/// With this variable, the list is written instead of compared.
const WRITE: &str = "WINDFALL_PUBLIC_ITEMS";

/// Returns the documentation of a crate.
fn documented(package: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("public-items");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["rustdoc", "--quiet", "-p", package, "--lib", "--target-dir"]).arg(&folder);
    cargo.args(["--", "-Zunstable-options", "--output-format", "json"]).env("RUSTC_BOOTSTRAP", "1");
    assert!(cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success(), "{package}");
    folder.join("doc").join(package.replace('-', "_") + ".json")
}

/// Returns the public items of a crate, a line each.
fn items(documented: &Path) -> Vec<String> {
    let api = Builder::from_rustdoc_json(documented)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .unwrap();
    api.items().map(ToString::to_string).collect()
}

/// Returns the full paths of the items of other crates that a crate exports.
fn exported(documented: &Path) -> BTreeSet<String> {
    let json: Value = serde_json::from_str(&fs::read_to_string(documented).unwrap()).unwrap();
    let items = json["index"].as_object().unwrap().values();
    let ids = items.filter_map(|item| item["inner"]["use"]["id"].as_u64());
    let path = |id: u64| {
        let parts = json["paths"][id.to_string()]["path"].as_array()?;
        Some(parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("::"))
    };
    ids.filter_map(path).filter(|path| path.starts_with("windfall_")).collect()
}

/// Returns whether a line is about an item that is, or is in, one of these: by the first path of the project in it.
fn is_of(line: &str, exported: &BTreeSet<String>) -> bool {
    let Some(at) = line.find("windfall_") else { return false };
    let path = &line[at..];
    exported.iter().any(|item| {
        path.strip_prefix(item.as_str())
            .is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
    })
}

#[test]
fn the_list_has_every_public_item() {
    let [api, below @ ..] = CRATES.map(documented);
    let exported = exported(&api);
    assert!(exported.len() > 15, "{exported:?}");
    let mut list = items(&api);
    for documented in &below {
        list.extend(items(documented).into_iter().filter(|line| is_of(line, &exported)));
    }
    let list = list.join("\n") + "\n";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("public-items.txt");
    if env::var_os(WRITE).is_some() {
        fs::write(&file, &list).unwrap();
    }
    let listed = fs::read_to_string(&file).unwrap();
    let (listed, is): (BTreeSet<&str>, BTreeSet<&str>) = (listed.lines().collect(), list.lines().collect());
    let (gone, new): (Vec<_>, Vec<_>) = (listed.difference(&is).collect(), is.difference(&listed).collect());
    assert!(
        gone.is_empty() && new.is_empty(),
        "the public items are not those of public-items.txt: no longer public are {gone:#?}, new are {new:#?}. If \
         that is intended, `{WRITE}=1 cargo test -p windfall --test public_items` writes the list again"
    );
}
