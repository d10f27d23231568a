//! Every benchmark runs in its quick form and answers in the shape that programs rely on. What it measures there
//! proves nothing, so that only the counts are looked at.

use crate::Place;

/// Runs a benchmark and looks at the shape of its answer.
#[track_caller]
fn quick(name: &str, more: &[&str]) -> serde_json::Value {
    let place = Place::new();
    let told = place.call(&[&["--json", "bench", name, "--quick"], more].concat());
    assert!(matches!(told.code, 0 | 1), "{}", told.err);
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
    let all = claims.iter().all(|c| c["holds"] == true);
    assert_eq!(told.code, i32::from(!all), "the exit code says whether every claim holds");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "a benchmark cleans up");
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
}

#[test]
fn create_drop() {
    holds(&quick("create-drop", &[]), "files-of-small-tables");
}

#[test]
fn foreground() {
    quick("foreground", &[]);
}

#[test]
fn foreground_finds_a_planted_hold() {
    let json = quick("foreground", &["--plant-hold-us", "90000"]);
    let claims = json["claims"].as_array().unwrap();
    let gap = claims.iter().find(|c| c["id"] == "chance-of-equal-gap").unwrap();
    assert_eq!(gap["holds"], false, "{gap}");
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
    holds(&quick("recovery", &[]), "acknowledged-rows-lost");
}

#[test]
fn footprint() {
    holds(&quick("footprint", &[]), "hash-indexes-over-budget");
}

#[test]
fn people_get_a_table() {
    let told = Place::new().call(&["bench", "footprint", "--quick"]);
    assert!(told.out.contains("claim") && told.out.contains("too small to prove"), "{}", told.out);
}
