//! The lab runs, and writes a page and its figures; two results are compared, and one is drawn.

use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::Folder;

#[test]
fn a_run_of_the_lab_leaves_a_page_and_its_figures() {
    let folder = Folder::new();
    let printed = folder.call(&["lab", "x4", "--scale", "quick", "--out", "out"]).served();
    for words in ["X4", "flush-list-ahi", "detach", "lab.html", "lab.json"] {
        assert!(printed.out.contains(words), "{words}: {}", printed.out);
    }
    assert!(printed.err.contains("x4: lru-scan"), "each run is printed: {}", printed.err);
    let mut left: Vec<_> =
        fs::read_dir(folder.path().join("out")).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["lab.html", "lab.json"], "the servers' files are gone");
    let page = fs::read_to_string(folder.path().join("out/lab.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && !page.contains("<script"));
    assert!(page.contains("windfall lab x4 --scale quick --seed 1 --out out"));
    let figures: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("out/lab.json")).unwrap()).unwrap();
    let runs = figures["x4"]["runs"].as_array().unwrap();
    let walked = |policy: &str| {
        let of = runs.iter().filter(|run| run["system"]["policy"] == policy);
        of.map(|run| run["steps"]["lru_walked"].as_u64().unwrap()).sum::<u64>()
    };
    assert!(walked("lru-scan") > walked("flush-list-ahi") && walked("flush-list-ahi") > 0);
    assert_eq!((walked("flush-list"), walked("detach")), (0, 0));
    assert!(figures.get("x1").is_none());

    let compared = folder.call(&["lab", "compare", "out/lab.json", "out/lab.json"]).served();
    assert!(compared.out.contains("out/lab.json") && compared.out.contains("detach"), "{}", compared.out);

    let drawn = folder.call(&["lab", "draw", "out/lab.json", "--out", "drawn/here"]).served();
    assert_eq!(drawn.out, "drawn/here/x4-published.svg\ndrawn/here/x4-times.svg\ndrawn/here/x4-table.md\n");
    let table = fs::read_to_string(folder.path().join("drawn/here/x4-table.md")).unwrap();
    assert!(table.starts_with("<!-- x4: scale quick -->\n| | ") && table.contains("| `detach` |"), "{table}");
    let svg = fs::read_to_string(folder.path().join("drawn/here/x4-times.svg")).unwrap();
    assert!(svg.starts_with("<svg xmlns=") && svg.contains("prefers-color-scheme: dark"));
    assert!(svg.contains("detach") && svg.contains("scale quick, seed 1"), "whose it is, and from where");
    let one = folder.call(&["lab", "draw", "out/lab.json", "--only", "x4-times", "--json"]).served();
    assert_eq!(one.json(), serde_json::json!(["windfall-lab/x4-times.svg"]));
    assert_eq!(fs::read_dir(folder.path().join("windfall-lab")).unwrap().count(), 1);
    let both = folder.call(&["lab", "draw", "out/lab.json", "--only", "x4", "--out", "drawn"]).served();
    assert_eq!(both.out.lines().count(), 3);

    folder.call(&["lab", "draw", "out/lab.json", "--only", "x4,x1"]).refused(&[
        "out/lab.json",
        "x1",
        "x4-times",
    ]);
    folder.file("file", "");
    folder.call(&["lab", "draw", "out/lab.json", "--out", "file"]).refused(&["file", "--out"]);
    fs::create_dir_all(folder.path().join("taken/x4-times.svg")).unwrap();
    folder.call(&["lab", "draw", "out/lab.json", "--out", "taken"]).refused(&["x4-times.svg", "--out"]);
    let mut empty = figures;
    empty["x4"]["runs"] = serde_json::json!([]);
    folder.file("empty.json", empty.to_string());
    folder.call(&["lab", "draw", "empty.json"]).refused(&[
        "empty.json",
        "nothing to draw",
        "windfall lab all",
    ]);
}

#[test]
fn the_report_shows_the_factors_of_a_drop() {
    let folder = Folder::new();
    let printed = folder.call(&["lab", "x9", "--scale", "quick", "--out", "out"]).served();
    assert!(printed.out.contains("X9") && printed.out.contains("closed-file"), "{}", printed.out);
    let mut left: Vec<_> =
        fs::read_dir(folder.path().join("out")).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["lab.html", "lab.json"]);
    let page = fs::read_to_string(folder.path().join("out/lab.html")).unwrap();
    assert!(page.contains("<section id=\"x9\">") && page.contains("windfall lab x9 --scale quick"));
    let figures: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("out/lab.json")).unwrap()).unwrap();
    assert_eq!(figures["x9"]["factors"].as_array().unwrap().len(), 17);
    assert!(figures.get("x1").is_none());
}

#[test]
fn the_lab_refuses_invalid_requests_with_a_reason() {
    let folder = Folder::new();
    folder.file("other.json", "{}");
    folder.call(&["lab", "compare", "other.json"]).refused(&["compare takes two results"]);
    folder.call(&["lab", "compare", "other.json", "none.json"]).refused(&["other.json", "no result"]);
    folder.call(&["lab", "compare", "none.json", "other.json"]).refused(&["none.json", "cannot be read"]);
    folder.call(&["lab", "draw"]).refused(&["draw takes one result"]);
    folder.call(&["lab", "draw", "other.json"]).refused(&["other.json", "no result", "run it again"]);
    folder.call(&["lab", "draw", "none.json"]).refused(&["none.json", "cannot be read", "lab.json"]);
    folder.call(&["lab", "x2", "--only", "x2"]).refused(&["--only x2", "windfall lab draw"]);
    let missing = folder.call(&["lab", "x3", "--scale", "quick", "--tmpfs", "missing"]);
    missing.refused(&["missing", "--tmpfs", "/dev/shm"]);
    folder.call(&["lab", "x2", "other.json"]).refused(&["other.json", "only `windfall lab compare`"]);
    folder.file("file", "");
    folder.call(&["lab", "x2", "--scale", "quick", "--out", "file"]).refused(&["file", "--out"]);
}

#[test]
fn a_lab_that_is_killed_leaves_no_files() {
    let folder = Folder::new();
    let mut child = folder.command(&["lab", "x2", "--scale", "quick", "--out", "out"]).spawn().unwrap();
    let scratch = folder.path().join(format!("out/windfall-lab-{}", child.id()));
    let await_it = |what: &str, is_done: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !is_done() {
            assert!(start.elapsed() < Duration::from_mins(10), "{what}");
            thread::sleep(Duration::from_millis(5));
        }
    };
    await_it("no job begins", &|| scratch.join("0").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    await_it("the files are still there", &|| !scratch.exists());
}

#[test]
fn a_failed_job_ends_the_run() {
    let folder = Folder::new();
    // The log of the first job is longer than a file may be.
    let limited = "ulimit -f 64; exec \"$0\" lab x4 --scale quick --out out";
    let output = Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_windfall")])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let printed = crate::printed(&output);
    assert_eq!((printed.code, printed.out.as_str()), (2, ""), "{}", printed.err);
    let last = printed.err.lines().last().unwrap();
    assert!(last.starts_with("windfall: the run `lru-scan, ") && last.contains("` has failed: "), "{last}");
    assert_eq!(printed.err.matches("x4: ").count(), 1, "no other job runs: {}", printed.err);
    assert_eq!(fs::read_dir(folder.path().join("out")).unwrap().count(), 0, "no result, no files");
}
