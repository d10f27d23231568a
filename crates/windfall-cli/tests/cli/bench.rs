//! Every benchmark runs in its quick form and answers in the shape that programs rely on. What it measures there
//! proves nothing, so that only the counts are looked at.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    thread,
    time::{Duration, Instant},
};

use crate::Place;

/// Runs a benchmark and looks at the shape of its answer.
#[track_caller]
fn quick(name: &str, more: &[&str]) -> serde_json::Value {
    let place = Place::new();
    let told = place.call(&[&["--json", "bench", name, "--quick"], more].concat());
    assert_eq!(told.code, 0, "a quick run shows that it runs: {}", told.err);
    let json = told.json();
    assert_eq!((&json["bench"], &json["quick"]), (&name.into(), &true.into()));
    let claims = json["claims"].as_array().unwrap();
    for claim in claims {
        assert!(
            claim["id"].is_string() && claim["value"].is_number() && claim["bound"].is_number(),
            "{claim}"
        );
        let (value, bound) = (claim["value"].as_f64().unwrap(), claim["bound"].as_f64().unwrap());
        let holds = if claim["relation"] == "<=" { value <= bound } else { value >= bound };
        assert_eq!(claim["holds"], holds, "{claim}");
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "a benchmark cleans up");
    json
}

/// The claim with a name holds.
#[track_caller]
fn holds(json: &serde_json::Value, id: &str) {
    let claim = json["claims"].as_array().unwrap().iter().find(|c| c["id"] == id).unwrap();
    assert_eq!(claim["holds"], true, "{claim}");
}

#[test]
fn drop() {
    let json = quick("drop", &[]);
    for id in ["frames-outside-catalog", "latches-outside-catalog", "list-entries", "catalog-pages"] {
        holds(&json, id);
    }
    holds(&json, "file-system-calls-but-log");
    holds(&json, "syncs-of-a-group-drop");
    // Some thousands, if every instruction was seen.
    let steps = json["facts"]["instructions of a drop, pool of 64 MB reserved, median"].as_f64().unwrap();
    assert!((1_000.0..1_000_000.0).contains(&steps), "{steps}");
}

#[test]
fn create_drop() {
    holds(&quick("create-drop", &[]), "files-of-small-tables");
}

#[test]
fn foreground_finds_a_planted_hold() {
    // On a machine that has other things to do, the 1 ms of a real run would need as many windows as that has.
    holds(&quick("foreground", &["--plant-hold-us", "10000"]), "planted-hold-is-flagged");
}

#[test]
fn big_file() {
    quick("big-file", &[]);
}

#[test]
fn memory_back() {
    holds(&quick("memory-back", &[]), "live-pages-evicted");
}

#[test]
fn read() {
    quick("read", &[]);
}

#[test]
fn larger_than_memory() {
    quick("larger-than-memory", &[]);
}

#[test]
fn recovery() {
    let seen = quick("recovery", &[]);
    holds(&seen, "synced-acknowledged-rows-lost");
    holds(&seen, "written-acknowledged-rows-lost");
}

#[test]
fn footprint() {
    holds(&quick("footprint", &[]), "hash-indexes-over-budget");
}

#[cfg(feature = "lab")]
#[test]
fn seam() {
    quick("seam", &[]);
}

#[test]
fn transactions() {
    let seen = quick("transactions", &[]);
    holds(&seen, "syncs-per-commit-of-8-threads");
    holds(&seen, "seconds-until-undo-is-gone");
}

/// Puts a tool of that name before the real one, which fails.
fn break_tool(place: &Place, name: &str) -> String {
    let folder = place.path().join("tools");
    fs::create_dir(&folder).unwrap();
    let tool = folder.join(name);
    fs::write(&tool, "#!/bin/sh\necho 'it is broken' >&2\nexit 3\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

#[test]
fn a_part_that_fails_leaves_the_others_standing() {
    let place = Place::new();
    let path = break_tool(&place, "strace");
    let told = place.command(&["--json", "bench", "drop", "--quick"]).env("PATH", path).output().unwrap();
    let told = crate::told(&told);
    assert_eq!(told.code, 2, "{}", told.err);
    let json = told.json();
    let claims = json["claims"].as_array().unwrap();
    let broken = claims.iter().find(|c| c["id"] == "system-calls-but-log").unwrap();
    assert!(broken["value"].is_null() && broken["holds"] == false, "{broken}");
    let why = json["facts"]["system-calls-but-log"].as_str().unwrap();
    assert!(why.contains("it is broken"), "{why}");
    for id in ["list-entries", "instructions-flat", "syncs-of-a-group-drop"] {
        assert!(claims.iter().any(|c| c["id"] == id && c["value"].is_number()), "{id}");
    }
}

#[test]
fn a_benchmark_that_is_killed_leaves_nothing_behind() {
    let place = Place::new();
    let mut child = place.command(&["bench", "footprint", "--dir", "a/b"]).spawn().unwrap();
    let database = place.path().join(format!("a/b/footprint-{}/footprint/windfall.control", child.id()));
    while !database.exists() {
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let start = Instant::now();
    while place.path().join("a").exists() {
        assert!(start.elapsed() < Duration::from_mins(10), "the folder is still there");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn people_get_a_table() {
    let told = Place::new().call(&["bench", "footprint", "--quick"]);
    assert!(told.out.contains("claim") && told.out.contains("too small to prove"), "{}", told.out);
}
