//! The demo runs and writes a report; its numbers are consistent.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use crate::Folder;

const SMALL: [&str; 17] = [
    "demo",
    "--seconds",
    "4",
    "--rows",
    "20000",
    "--pool",
    "64m",
    "--big-table",
    "8m",
    "--drop-every",
    "0.5",
    "--small-rows",
    "100",
    "--threads",
    "4",
    "--out",
    "out",
];

#[test]
fn a_demo_leaves_a_report() {
    let folder = Folder::new();
    let printed = folder.call(&SMALL).served();
    for words in
        ["longest time without a finished call", "with drops", "counted work of the drops", "report.html"]
    {
        assert!(printed.out.contains(words), "{words}: {}", printed.out);
    }
    let left: Vec<_> =
        fs::read_dir(folder.path().join("out")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "the report and its numbers, nothing else: {left:?}");

    let page = fs::read_to_string(folder.path().join("out/report.html")).unwrap();
    assert_eq!(page.matches("<svg class=\"wide\"").count(), 5);
    assert_eq!(page.matches("<svg class=\"narrow\"").count(), 5);
    assert_eq!(page.matches("<figcaption>").count(), 5);
    assert!(page.contains("prefers-color-scheme: dark"));
    for outside in ["http://", "https://", "<script", "<link", "@import", "url("] {
        assert!(!page.contains(outside), "the page asks for {outside}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf"), "a graph has a place that is no number");
    assert_eq!(page.matches('<').count(), page.matches('>').count());
}

#[test]
fn the_numbers_of_a_demo_hang_together() {
    let folder = Folder::new();
    let printed = folder.call(&[&SMALL[..], &["--json"]].concat()).served();
    let json = printed.json();
    let (with, without) = (&json["with_drops"], &json["without_drops"]);
    let drops = with["drops"].as_array().unwrap();
    assert_eq!(drops.len(), 3, "one each half second of two, none at the end");
    assert_eq!(drops.iter().filter(|d| d["big"] == true).count(), 1);
    assert!(without["drops"].as_array().unwrap().is_empty());
    assert_eq!(without["windows_ns"].as_array().unwrap().len(), 3, "the same windows without drops");
    for run in [with, without] {
        let calls = run["calls"].as_u64().unwrap();
        let latency = |part: &str| run["latency"][part]["count"].as_u64().unwrap();
        let recorded = latency("inside") + latency("outside");
        // Calls that end after the end of the run have a latency, and are not part of the time line.
        assert!(calls > 0 && recorded >= calls && recorded < 2 * calls, "{calls} {recorded}");
        for each in ["pool", "calls_per_second_each_100_ms", "longest_gap_ms_each_100_ms"] {
            assert!(!run[each].as_array().unwrap().is_empty(), "{each}");
        }
        let total = (64 << 20) / json["page_size"].as_u64().unwrap();
        for sample in run["pool"].as_array().unwrap() {
            let part = |name: &str| sample[name].as_u64().unwrap();
            // A dirty page of a dropped table counts as both until its frame is reused.
            assert!(part("free") + part("clean") + part("dirty") <= total, "{sample}");
            assert!(part("dropped") <= total, "{sample}");
        }
    }
    let work = &json["drop_work"]["sum"];
    assert_eq!(work["drops"], 3);
    for nothing in ["frames", "latches", "list_entries", "reads", "writes", "syncs", "file_calls"] {
        assert_eq!(work[nothing], 0, "{nothing} outside the system tree: {work}");
    }
}

#[test]
fn an_interrupted_demo_leaves_no_files() {
    let folder = Folder::new();
    let mut child = folder.command(&["demo", "--pool", "64m", "--rows", "100000"]).spawn().unwrap();
    while !folder.path().join("windfall-demo/database/windfall.control").exists() {
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let start = Instant::now();
    while folder.path().join("windfall-demo").exists() {
        assert!(start.elapsed() < Duration::from_mins(10), "the folder is still there");
        thread::sleep(Duration::from_millis(20));
    }
}
