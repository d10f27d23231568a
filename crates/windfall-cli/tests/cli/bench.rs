//! Runs every benchmark in its quick form and checks the format of its output. The times of a quick run prove nothing,
//! so only the counts are checked.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::Folder;

/// Runs a benchmark and checks the format of its output.
#[track_caller]
fn quick(name: &str, more: &[&str]) -> serde_json::Value {
    let folder = Folder::new();
    let printed = folder.call(&[&["--json", "bench", name, "--quick"], more].concat());
    assert_eq!(printed.code, 0, "a quick run shows that it runs: {}", printed.err);
    let json = printed.json();
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
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "a benchmark cleans up");
    json
}

/// Asserts that the claim with this id holds.
#[track_caller]
fn holds(json: &serde_json::Value, id: &str) {
    let claim = json["claims"].as_array().unwrap().iter().find(|c| c["id"] == id).unwrap();
    assert_eq!(claim["holds"], true, "{claim}");
}

/// Asserts that a claim that depends on the disk is made, or that the reason is given why not.
#[track_caller]
fn is_claimed_or_no_claim(json: &serde_json::Value, id: &str) {
    let claim = json["claims"].as_array().unwrap().iter().find(|c| c["id"] == id);
    let fact = json["facts"][id].as_str();
    assert!(claim.is_some() != fact.is_some_and(|fact| fact.contains("no claim")), "{claim:?}, {fact:?}");
}

/// Asserts that no thread has waited for a dropping one, or that the build with the feature `drop-waits` is named.
#[track_caller]
fn counts_waits_or_says_how(json: &serde_json::Value, id: &str) {
    if cfg!(feature = "drop-waits") {
        holds(json, id);
    } else {
        let why = json["facts"][id].as_str().unwrap();
        assert!(why.contains("--features drop-waits"), "{why}");
    }
}

#[test]
fn drop() {
    let json = quick("drop", &[]);
    for id in
        ["frames-outside-system-tree", "latches-outside-system-tree", "list-entries", "system-tree-pages"]
    {
        holds(&json, id);
    }
    holds(&json, "file-system-calls-but-log");
    counts_waits_or_says_how(&json, "factors-waits-on-dropping-threads");
    holds(&json, "syncs-of-a-group-drop");
    is_claimed_or_no_claim(&json, "syncs-per-drop-8-threads");
    // Some thousands, if every instruction was counted.
    let steps = json["facts"]["instructions of a drop, pool of 64 MB reserved, median"].as_f64().unwrap();
    assert!((1_000.0..1_000_000.0).contains(&steps), "{steps}");
    table_of_factors(&json);
}

/// Checks the figures of each factor of `bench drop`.
fn table_of_factors(json: &serde_json::Value) {
    let factors = json["facts"]["factors"].as_array().unwrap();
    let ids: Vec<&str> = factors.iter().map(|factor| factor["id"].as_str().unwrap()).collect();
    assert_eq!(
        ids,
        [
            "rows",
            "clean-pages",
            "dirty-pages",
            "hash-index",
            "indexes",
            "long-values",
            "history",
            "purge",
            "handles",
            "no-handle",
            "cursors",
            "prepared",
            "group",
            "large-group",
            "catalog",
            "open-file",
            "closed-file",
        ]
    );
    for factor in factors {
        let id = factor["id"].as_str().unwrap();
        let statements = factor["statements"].as_array().unwrap();
        let names: Vec<&str> = statements.iter().map(|s| s["name"].as_str().unwrap()).collect();
        let expected: &[&str] = match id {
            "group" | "large-group" => &["drop", "next drop"],
            "hash-index" => &["drop", "next drop", "truncate"],
            "indexes" | "purge" => &["drop", "next drop", "truncate", "drop index"],
            _ => &["drop index", "next drop", "drop", "truncate"],
        };
        assert_eq!(names, expected, "{id}");
        for statement in statements {
            assert!(statement["timed"].as_u64().unwrap() > 0, "{statement}");
            let costs = statement["costs"].as_array().unwrap();
            let cost = |figure: &str| {
                let cost = costs.iter().find(|cost| cost["figure"] == figure);
                cost.map(|cost| ["alone", "small", "large"].map(|side| cost[side].as_f64().unwrap()))
            };
            let is_stepped = statement["stepped"].as_u64().unwrap() > 0;
            assert_eq!(cost("instructions").is_some(), is_stepped, "{id}: {statement}");
            let figures = ["page-faults", "work", "bytes-allocated", "bytes-freed", "time", "thread-time"];
            assert!(figures.iter().all(|figure| cost(figure).is_some()), "{id}: {statement}");
            assert_eq!(cost("system-calls"), Some([0.0; 3]), "{id}: {statement}");
            // A statement frees next to nothing, whatever its table owned.
            let freed = cost("bytes-freed").unwrap();
            assert!(freed.iter().all(|&freed| freed < 4096.0), "{id}: {statement}");
            if let Some(instructions) = cost("instructions") {
                assert!(instructions.iter().all(|&n| n > 500.0), "{id}: {statement}");
            }
        }
        let gaps = |who: &str, when: &str| factor["others"][who][when].as_array().unwrap().clone();
        let windows = gaps("readers", "with").len();
        assert!(windows > 0 && gaps("writers", "without").len() == windows);
        let waits = if cfg!(feature = "drop-waits") { serde_json::json!(0) } else { serde_json::Value::Null };
        assert_eq!(factor["others"]["waits_on_drops"], waits, "{id}");
        // The factor was present.
        if ["dirty-pages", "hash-index", "history", "purge", "cursors", "prepared", "catalog"].contains(&id)
            || ["open-file", "closed-file"].contains(&id)
        {
            let seen: Vec<u64> =
                factor["seen"][1].as_array().unwrap().iter().map(|seen| seen.as_u64().unwrap()).collect();
            assert!(seen[1] > seen[0], "{id}: {seen:?}");
        }
    }
    for id in ["rows-instructions", "hash-index-memory", "closed-file-counts-beside", "open-file-time"] {
        assert!(json["claims"].as_array().unwrap().iter().any(|claim| claim["id"] == id), "{id}");
    }
}

#[test]
fn a_planted_cost_proportional_to_the_data_is_found() {
    let value = |json: &serde_json::Value, id: &str| {
        let claim = json["claims"].as_array().unwrap().iter().find(|claim| claim["id"] == id).unwrap();
        assert_eq!(claim["holds"], claim["value"].as_f64().unwrap() <= claim["bound"].as_f64().unwrap());
        claim["value"].as_f64().unwrap()
    };
    let ids = ["rows-instructions", "rows-instructions-beside"];
    let of = |planted: &str| {
        let json = quick("drop", &["--only", "rows", "--plant-cost", planted]);
        ids.map(|id| value(&json, id) > 3.0)
    };
    assert_eq!([of("owned"), of("around"), of("next")], [[true, false], [true, true], [true, false]]);
}

#[test]
fn one_factor_of_a_drop_can_be_had_alone() {
    let json = quick("drop", &["--only", "handles,cursors"]);
    assert_eq!(json["facts"]["factors"].as_array().unwrap().len(), 2);
    let refused = Folder::new().call(&["bench", "drop", "--quick", "--only", "nonsense"]);
    refused.refused(&["nonsense", "counted-work", "hash-index"]);
    let refused = Folder::new().call(&["bench", "create-drop", "--only", "many-small-tables,rows"]);
    refused.refused(&["--only rows", "choose from files-of-small-tables, create-drop-over-bare-loop"]);
}

#[test]
fn create_drop() {
    holds(&quick("create-drop", &[]), "files-of-small-tables");
}

#[test]
fn foreground_finds_a_planted_hold() {
    // On a machine with other load, a hold of 1 ms would be found only with the many windows of a real run.
    let seen = quick("foreground", &["--plant-hold-us", "10000"]);
    holds(&seen, "planted-hold-is-flagged");
    counts_waits_or_says_how(&seen, "waits-on-dropping-threads");
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
    let seen = quick("footprint", &[]);
    holds(&seen, "hash-indexes-over-budget");
    let builds = ["random", "random-one-transaction", "ascending", "bulk"];
    let claims = seen["claims"].as_array().unwrap();
    let value = |id: &str| claims.iter().find(|claim| claim["id"] == id).unwrap()["value"].as_f64().unwrap();
    for build in builds {
        // The keys of the row and of the index, and an overhead.
        assert!((8.0..100.0).contains(&value(&format!("{build}-entry-bytes-in-leaf"))), "{claims:?}");
        for kind in ["entry", "row"] {
            let fill = value(&format!("{build}-{kind}-fill"));
            assert!(fill > 0.4 && fill <= 1.0, "{build}, {kind}: {fill}");
        }
    }
    // An ordered build leaves less free than a random one.
    assert!(value("ascending-row-fill") > value("random-row-fill"), "{claims:?}");
    for (name, trees) in [("entries", 2), ("rows of 200 bytes", 1)] {
        let built = seen["facts"][name].as_array().unwrap();
        assert_eq!(built.len(), builds.len() * 2 * trees, "{name}");
        for built in built {
            let of = |name: &str| built["sizes"][name].as_u64().unwrap();
            assert!(
                of("page_bytes") <= of("file_bytes") && of("leaf_bytes") <= of("leaf_capacity"),
                "{built}"
            );
        }
    }
    let disk = |name: &str| seen["facts"][name].as_u64().unwrap();
    assert!(disk("disk with the loaded table, bytes") > 1 << 20, "{seen}");
    assert!(value("empty-database-bytes") > 0.0 && value("database-bytes-after-drop") > 0.0);
}

#[test]
fn calls() {
    let seen = quick("calls", &[]);
    let measured = seen["facts"]["calls"].as_array().unwrap();
    let names: Vec<&str> = measured.iter().map(|case| case["id"].as_str().unwrap()).collect();
    let expected = [
        "point-read-ascending",
        "point-read-random",
        "scan",
        "scan-batch",
        "seek-again",
        "seek-new-cursor",
        "range-again",
        "index-entry-and-row",
        "index-entry-alone",
        "index-batch-alone",
        "locking-read",
        "locking-read-lent",
        "update-plain-column",
        "update-with-plain-column",
        "update-with-index-key",
        "insert",
        "insert-1-index",
        "insert-2-indexes",
        "insert-with-1-index",
        "begin-get-end",
        "restart-get-end",
        "create-drop",
    ];
    assert_eq!(names, expected);
    let instructions = |id: &str| {
        let case = measured.iter().find(|case| case["id"] == id).unwrap();
        assert!(case["program"]["ns"].as_f64().unwrap() > 0.0 && case["shared_object"].is_null(), "{case}");
        case["program"]["instructions"].as_f64().unwrap()
    };
    assert!(expected.into_iter().all(|id| (50.0..1_000_000.0).contains(&instructions(id))), "{measured:?}");
    // The order holds in every build.
    for [less, more] in [
        ["scan", "seek-again"],
        ["range-again", "seek-new-cursor"],
        ["seek-again", "seek-new-cursor"],
        ["index-entry-alone", "index-entry-and-row"],
        ["update-with-plain-column", "update-with-index-key"],
        ["point-read-ascending", "restart-get-end"],
        ["restart-get-end", "begin-get-end"],
        ["point-read-ascending", "locking-read"],
        ["insert", "insert-2-indexes"],
    ] {
        assert!(instructions(less) < instructions(more), "{less} and {more}: {measured:?}");
    }
    let claims = seen["claims"].as_array().unwrap();
    for id in ["scan-ns", "insert-each-index-ns", "create-drop-over-bare-loop"] {
        assert!(claims.iter().any(|claim| claim["id"] == id), "{id}");
    }
    let is_of_shared_object = |id: &str| id.ends_with("-shared-object-over-program");
    assert!(claims.iter().all(|claim| !is_of_shared_object(claim["id"].as_str().unwrap())), "{claims:?}");
}

#[test]
fn calls_need_their_programs() {
    let folder = Folder::new();
    let call = ["--json", "bench", "calls", "--only", "scan", "--programs", "nowhere"];
    let printed = folder.call(&call);
    assert_eq!(printed.code, 1, "{}", printed.err);
    let json = printed.json();
    let claim = &json["claims"].as_array().unwrap()[0];
    assert!(claim["value"].is_null() && claim["holds"] == false, "{claim}");
    let why = json["facts"]["scan"].as_str().unwrap();
    assert!(why.contains("cargo build --profile no-lto") && why.contains("--example calls"), "{why}");
    // A shared object that cannot be loaded fails its part, with the reason.
    let call = ["bench", "calls", "--child", "scan", "--dir", "db", "--library", "/missing.so"];
    folder.call(&call).refused(&["/missing.so"]);
}

#[cfg(feature = "lab")]
#[test]
fn seam() {
    quick("seam", &[]);
}

#[test]
fn transactions() {
    let seen = quick("transactions", &[]);
    is_claimed_or_no_claim(&seen, "syncs-per-commit-of-8-threads");
    holds(&seen, "seconds-until-undo-is-gone");
}

#[test]
fn a_long_run_compares_the_ages_of_a_view() {
    let seen = quick("transactions", &["--long", "--only", "aged-view"]);
    let claims = seen["claims"].as_array().unwrap();
    let ids: Vec<&str> = claims.iter().map(|claim| claim["id"].as_str().unwrap()).collect();
    assert_eq!(
        ids,
        ["no-key-changes", "keys-change"].map(|id| format!("throughput-beside-aged-view-over-young-{id}"))
    );
    let kept =
        |what: &str| seen["facts"][format!("{what}: undo that it keeps by then, bytes")].as_f64().unwrap();
    assert!(kept("no key changes") > 0.0 && kept("keys change") > 0.0, "{seen}");
    // A usual run does not have the part.
    let refused = Folder::new().call(&["bench", "transactions", "--quick", "--only", "aged-view"]);
    refused.refused(&["aged-view", "choose from reads, commits, mix, views, undo"]);
}

/// Puts a failing tool of that name before the real one in the search path.
fn break_tool(folder: &Folder, name: &str) -> String {
    let tools = folder.path().join("tools");
    fs::create_dir(&tools).unwrap();
    let tool = tools.join(name);
    fs::write(&tool, "#!/bin/sh\necho 'it is broken' >&2\nexit 3\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", tools.display(), std::env::var("PATH").unwrap())
}

#[test]
fn a_failed_part_leaves_the_claims_of_other_parts() {
    let folder = Folder::new();
    let path = break_tool(&folder, "strace");
    let only = "system-calls-but-log,counted-work,instructions-flat,syncs-of-a-group-drop";
    let call = ["--json", "bench", "drop", "--quick", "--only", only];
    let printed = folder.command(&call).env("PATH", path).output().unwrap();
    let printed = crate::printed(&printed);
    assert_eq!(printed.code, 2, "{}", printed.err);
    let json = printed.json();
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
fn a_benchmark_that_is_killed_leaves_no_files() {
    let folder = Folder::new();
    // The second time as by Ctrl-C on a terminal, which sends a signal to the whole process group.
    for is_interrupted in [false, true] {
        let mut command = folder.command(&["bench", "footprint", "--dir", "a/b"]);
        let mut child = command.process_group(0).spawn().unwrap();
        let database = folder.path().join(format!("a/b/footprint-{}/memory/windfall.control", child.id()));
        while !database.exists() {
            thread::sleep(Duration::from_millis(5));
        }
        if is_interrupted {
            kill_process_group(Pid::from_child(&child), Signal::INT).unwrap();
        } else {
            child.kill().unwrap();
        }
        child.wait().unwrap();
        let start = Instant::now();
        while folder.path().join("a").exists() {
            assert!(start.elapsed() < Duration::from_mins(10), "the folder is still there");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn people_get_a_table() {
    let printed = Folder::new().call(&["bench", "footprint", "--quick"]);
    assert!(printed.out.contains("claim") && printed.out.contains("too small to prove"), "{}", printed.out);
}
