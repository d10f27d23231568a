//! Tests of the report.
//!
//! **Purpose.** Checks that the page is well formed and loads nothing, that every section is present with its
//! sentences, and that the tables fit.
//!
//! **Method.** The results are synthetic: nothing is measured here.

use std::collections::BTreeSet;

use super::{
    compare, drawings,
    fixture::{all, empty, load},
    page, published,
    ranking::{Measured, Verdict, differences, pairs},
    section::Section,
    style, tables, text,
};
use crate::{
    results::{Load, Percentiles, Results, X1, X1Run, X3},
    system::{PolicyName, System},
};

/// Elements without an end tag.
const VOID: [&str; 2] = ["meta", "!doctype"];

/// Asserts that every element that begins also ends, in order.
fn is_balanced(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    for part in html.split('<').skip(1) {
        let (tag, _) = part.split_once('>').expect("a tag has an end");
        let name = tag.trim_end_matches('/').split([' ', '\n']).next().unwrap_or("");
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "before {}", &part[..part.len().min(80)]);
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

/// Asserts that a page is well formed and complete, and returns it.
fn is_sound(results: &Results) -> String {
    let html = page(results);
    is_balanced(&html);
    for none in ["<script", "http", "url(", "@import", "src=", "NaN", "inf\"", "inf ", "inf×"] {
        assert!(!html.contains(none), "the page has {none:?}");
    }
    assert_eq!(html.matches('<').count(), html.matches('>').count());
    assert!(html.contains("prefers-color-scheme: dark") && html.contains("What made this page"));
    let figures = html.split("<figure>").skip(1);
    for figure in figures {
        let caption = figure.split_once("<figcaption>").expect("a graph has its sentence").1;
        let caption = caption.split("</figcaption>").next().unwrap_or("");
        assert!(caption.len() > 20 && caption.contains('.'), "{caption:?}");
        assert_eq!(figure.matches("<svg class=\"wide\"").count(), 1);
        assert_eq!(figure.matches("<svg class=\"narrow\"").count(), 1);
    }
    html
}

fn fits(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
    }
}

/// Returns results of X1 with only these runs.
fn only_x1(runs: Vec<X1Run>) -> Results {
    let x1 = X1 {
        threads: 1,
        rows: 10,
        pages: 100,
        bookkeeping_pages: 0,
        drop_every_s: 1.0,
        victim_rows: 1,
        runs,
    };
    Results { x1: Some(x1), ..empty() }
}

#[test]
fn the_page_has_all_parts() {
    let html = is_sound(&all());
    for n in 1..=9 {
        assert!(html.contains(&format!("<section id=\"x{n}\">")), "X{n}");
        assert!(html.contains(&format!("href=\"#x{n}\"")), "X{n} in the list of contents");
    }
    let bookkeeping = "page bytes are absent; the bookkeeping is real";
    assert_eq!(html.matches(bookkeeping).count(), 5, "X1, X2, X4, X5 and X6 say what was absent");
    let section = |n: u32| {
        let from = html.split_once(&format!("<section id=\"x{n}\">")).unwrap().1;
        from.split_once("</section>").unwrap().0.to_owned()
    };
    let beside = |n| section(n).matches("Page bytes absent, bookkeeping real.").count();
    let figures = |n| section(n).matches("<figure>").count();
    for n in [1, 2, 5, 6] {
        assert_eq!(beside(n), figures(n), "X{n} says so beside each figure");
    }
    assert_eq!((beside(4), figures(4)), (1, 2), "X4 where the pool is filled");
    assert_eq!([3, 7, 8].map(beside), [0; 3]);
    for said in
        ["2026-11-23 08:56 UTC", "windfall lab --scale quick --seed 7", "A Processor", "251×", "Percona"]
    {
        assert!(html.contains(said), "{said}");
    }
    assert!(section(9).contains(
        "These grow by more than 10 %, or 20 % of time with much elsewhere, or its own bound: bytes-freed by 100,200× (its hash index)."
    ));
    assert!(section(6).contains("The oldest is dropped every 1.00 s"), "as the runs show it");
    for policy in PolicyName::ALL {
        assert!(html.contains(policy.version()), "{policy}");
    }
}

#[test]
fn every_graph_of_the_page_is_a_file() {
    let files = drawings(&all());
    let names: Vec<&str> = files.iter().map(|(name, _)| name.trim_end_matches(".svg")).collect();
    assert_eq!(
        names,
        [
            "x1-rates",
            "x1-stalls",
            "x1-latencies",
            "x1-published",
            "x1-locks",
            "x1-by-ratio",
            "x1-by-instances",
            "x2-published",
            "x2-growth",
            "x2-times",
            "x2-rates",
            "x3-published",
            "x3-times",
            "x4-published",
            "x4-times",
            "x5-times",
            "x5-ratios",
            "x5-times-hash",
            "x5-ratios-hash",
            "x6-rates",
            "x6-gaps",
            "x6-in-use",
            "x7-times",
            "x7-rates",
            "x8-commits",
        ]
    );
    let html = page(&all());
    assert_eq!(files.len(), html.matches("<figure>").count());
    for (name, svg) in &files {
        is_balanced(svg);
        let sheet = svg.split_once("<rect class=\"sheet\"").unwrap().1;
        for none in ["url(", "@import", "href", "<script", "NaN", "inf\""] {
            assert!(!svg.contains(none), "{name} has {none:?}");
        }
        // Joins text that was broken into lines.
        let whole = |class: &str| {
            let begin = format!("<text class=\"{class}\"");
            let lines = sheet.split(&begin).skip(1);
            lines.map(|line| line.split(['>', '<']).nth(1).unwrap()).collect::<Vec<_>>().join(" ")
        };
        let (from, caption) = (whole("from"), whole("caption"));
        assert!(
            from.contains("scale quick, seed 7, 2026-11-23") && from.contains("A Processor"),
            "{name}: {from}"
        );
        let absent = ["x1", "x2", "x5", "x6"].iter().any(|x| name.starts_with(x)) || name == "x4-times.svg";
        assert!(
            html.contains(&format!("<figcaption>{caption}</figcaption>")),
            "{name} says what the page says"
        );
        assert_eq!(caption.ends_with("bookkeeping real."), absent, "{name}");
    }
    let stalls = &files.iter().find(|(name, _)| name == "x1-stalls.svg").unwrap().1;
    assert!(stalls.contains("3 entries"), "the setting is in the file");
    assert!(drawings(&empty()).is_empty());
}

#[test]
fn the_chapter_has_the_drawings_that_it_shows() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let chapter = std::fs::read_to_string(format!("{docs}/history.md")).unwrap();
    let links = chapter.split("](history/").skip(1).filter_map(|part| part.split_once(')'));
    let shown: BTreeSet<String> = links.map(|(name, _)| name.to_owned()).collect();
    let files = std::fs::read_dir(format!("{docs}/history")).unwrap();
    let there: BTreeSet<String> = files.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(shown, there);
    let drawn: BTreeSet<String> = drawings(&all()).into_iter().map(|(name, _)| name).collect();
    assert!(shown.is_subset(&drawn), "whose names have changed: {:?}", shown.difference(&drawn));
}

#[test]
fn the_chapter_has_the_tables_that_are_written() {
    let chapter = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/history.md");
    let chapter = std::fs::read_to_string(chapter).unwrap();
    let results = Results { scale: "default".into(), ..all() };
    let written = tables(&results);
    assert_eq!((written.len(), chapter.matches("<!-- x").count()), (8, 8));
    for (name, text) in written {
        // Everything except the figures.
        let head: String = text.split_inclusive('\n').take(3).collect();
        assert!(chapter.contains(&head), "{name}: {head}");
        let columns = |line: &str| line.matches(" |").count();
        assert!(
            text.lines().skip(1).all(|line| columns(line) == columns(text.lines().nth(2).unwrap())),
            "{text}"
        );
        assert!(text.lines().count() > 4 && text.contains("| `detach` |"), "{text}");
    }
    assert!(tables(&empty()).is_empty());
}

#[test]
fn parts_may_be_missing() {
    let html = is_sound(&empty());
    assert!(!html.contains("<section id=\"x"));
    let x3 = Results { x3: all().x3, ..empty() };
    let html = is_sound(&x3);
    assert!(html.contains("<section id=\"x3\">") && !html.contains("<section id=\"x1\">"));
    assert!(html.contains("Here lru-scan looks at"), "who walks how much");
    assert!(
        html.contains("10,000 tables there, 10,000 here") && html.contains("2 of 2 published orders show")
    );
    let none = Results { x3: Some(X3 { runs: Vec::new() }), ..empty() };
    is_sound(&none);
    fits(&text(&none));
}

#[test]
fn little_data_is_shown_too() {
    let system = System::of(PolicyName::LazyMark).hashed();
    let mut some = load(system, 2.0, &[], 1_000.0, 1.0);
    (some.marks, some.locks, some.windows) = (Vec::new(), Vec::new(), Vec::new());
    (some.latency, some.latency_near) = (Percentiles::default(), Percentiles::default());
    let run = |load: &Load| X1Run { system, lru_to_flush: 10, without: load.clone(), with: load.clone() };
    let one = only_x1(vec![run(&some)]);
    let html = is_sound(&one);
    assert!(html.contains("10 entries of the LRU list") && html.contains("hash index is on in all"));
    fits(&text(&one));

    let mut zero = some;
    (zero.rates, zero.gaps_ns, zero.queries) = (Vec::new(), Vec::new(), 0);
    zero.longest_gap.length_ns = 0;
    is_sound(&only_x1(vec![run(&zero)]));
}

#[test]
fn one_system_of_each_is_shown() {
    let mut one = all();
    let only = |system: System| system.policy == PolicyName::StaleVersion;
    one.x1.as_mut().unwrap().runs.retain(|r| only(r.system));
    one.x2.as_mut().unwrap().runs.retain(|r| only(r.system));
    one.x3.as_mut().unwrap().runs.retain(|r| only(r.system));
    one.x4.as_mut().unwrap().runs.retain(|r| only(r.system));
    one.x5.as_mut().unwrap().runs.retain(|r| only(r.system));
    one.x6.as_mut().unwrap().runs.retain(|r| only(r.system));
    one.x7.as_mut().unwrap().runs.retain(|r| only(r.system));
    one.x8.as_mut().unwrap().runs.retain(|r| only(r.system));
    let html = is_sound(&one);
    assert!(!html.contains("published orders show here"), "there is nothing to hold against each other");
    assert_eq!(
        html.matches("No published ratio can be held against these runs").count(),
        4,
        "and it is said"
    );
    fits(&text(&one));
}

#[test]
fn an_order_that_does_not_show_is_said_to() {
    let here = |policy, time| Measured { system: System::of(policy), setting: "longest stall".into(), time };
    let as_published =
        [here(PolicyName::LruScan, 58.0), here(PolicyName::FlushList, 12.0), here(PolicyName::LazyMark, 9.0)];
    let found = pairs(&published::X1, &as_published);
    assert!(found.len() == 3 && found.iter().all(|p| p.verdict() == Verdict::Same));
    assert_eq!(differences(&found), "");

    let otherwise = [
        here(PolicyName::LruScan, 58.0),
        here(PolicyName::FlushList, 12.0),
        here(PolicyName::LazyMark, 24.0),
    ];
    let found = pairs(&published::X1, &otherwise);
    let html = differences(&found);
    assert_eq!(html.matches("Does not reproduce").count(), 1);
    assert!(html.contains("the other way round here: lazy-mark takes 2.00× as long"), "{html}");
    let alike = [here(PolicyName::LruScan, 10.0), here(PolicyName::FlushList, 9.9)];
    assert_eq!(pairs(&published::X1, &alike)[0].verdict(), Verdict::EqualHere);
    assert!(pairs(&published::X1, &[here(PolicyName::LruScan, 0.0)]).is_empty(), "no time, no ratio");
}

#[test]
fn tables_fit_the_terminal() {
    let text = text(&all());
    fits(&text);
    for n in 1..=9 {
        assert!(text.contains(&format!("X{n}: ")), "X{n}");
    }
}

#[test]
fn runs_that_are_in_both_are_held_against_each_other() {
    let mut other = all();
    for run in &mut other.x5.as_mut().unwrap().runs {
        run.total_ns *= 2;
    }
    other.x8 = None;
    other.x2.as_mut().unwrap().runs.retain(|r| r.fill_gb < 60.0);
    let text = compare(&all(), &other, ["before.json", "after.json"]);
    fits(&text);
    assert!(text.contains("A: before.json") && text.contains("B: after.json"));
    let x5 = text.split("\nX5\n").nth(1).unwrap().split("\n\n").next().unwrap();
    assert_eq!(x5.lines().skip(1).filter(|l| l.ends_with("2.00×")).count(), 55, "{x5}");
    let alone = text.split("Only in A:").nth(1).unwrap();
    assert!(alone.contains("X8: detach") && alone.contains("X2: lru-scan (104 GB)"));
    assert!(text.contains("\nX9\n") && text.contains("truncate, 512 MiB"));
    assert!(!text.contains("Only in B") && !text.contains("They are of different"));
    // Totals over all tables of a run are compared per table.
    let mut larger = all();
    larger.scale = "full".into();
    let x2 = larger.x2.as_mut().unwrap();
    x2.tables *= 10;
    x2.runs.iter_mut().for_each(|run| run.drop_ns *= 30);
    let text = compare(&all(), &larger, ["a", "b"]);
    assert!(text.contains("They are of different scales, quick and full"), "{text}");
    let x2 = text.split("\nX2\n").nth(1).unwrap().split("\n\n").next().unwrap();
    assert!(x2.lines().skip(1).all(|line| line.ends_with("3.00×")), "{x2}");
    assert!(compare(&empty(), &all(), ["a", "b"]).contains("No run is in both."));
}

#[test]
fn text_is_escaped_and_missing_graphs_are_left_out() {
    let mut section = Section::new("x1", "a < b", "<i>");
    section.says("<b>");
    section.setting("<u>");
    section.bookkeeping("<em>");
    section.folded("<s>", &[(&["<tt>"], vec![vec!["<q>".to_owned()]])]);
    section.graph("missing", None);
    let html = section.in_page();
    is_balanced(&html);
    for none in ["a < b", "<i>", "<b>", "<u>", "<em>", "<s>", "<tt>", "<q>", "<figure>"] {
        assert!(!html.contains(none), "{none} is in {html}");
    }
    assert!(section.files("from").is_empty());
}

#[test]
fn stalls_are_differences_and_few_windows_show_nothing() {
    let run = |policy, windows| {
        let system = System::of(policy);
        let marks: Vec<f64> = (1..12).map(f64::from).collect();
        let [mut without, mut with] = [&[], &marks[..]].map(|marks| load(system, 12.0, marks, 20_000.0, 1.0));
        without.windows.truncate(windows);
        with.windows.truncate(windows);
        X1Run { system, lru_to_flush: 3, without, with }
    };
    let of =
        |windows| page(&only_x1([PolicyName::LruScan, PolicyName::Detach].map(|p| run(p, windows)).into()));
    let (differs, same) =
        ("A drop shows in the 100 ms after it with", "cannot be distinguished from the same times");
    let html = of(11);
    assert!(html.contains(&format!("{differs} lru-scan, 3:1. ")), "{html}");
    assert!(html.contains(&format!("{same} without drops with detach, 3:1.")), "{html}");
    let html = of(7);
    assert!(!html.contains(differs) && !html.contains(same));
}

#[test]
fn the_time_of_fewer_tables_is_that_for_100() {
    let x5_of = |tables: u32| {
        let mut results = Results { x5: all().x5, ..empty() };
        for run in &mut results.x5.as_mut().unwrap().runs {
            (run.tables, run.total_ns) = (tables, u64::from(tables) * run.pages);
        }
        results
    };
    let (fewer, all) = (x5_of(20), x5_of(100));
    assert_eq!(drawings(&fewer), drawings(&all));
    assert_eq!(drawings(&all).len(), 4);
    assert!(page(&fewer).contains("fewer tables were dropped, 20 at least; the times are those for 100."));
}

#[test]
fn each_system_has_its_own_colour_and_shape() {
    let different =
        |of: fn(PolicyName) -> &'static str| PolicyName::ALL.into_iter().map(of).collect::<BTreeSet<_>>();
    assert_eq!(different(style::class).len(), PolicyName::ALL.len());
    assert_eq!(different(|policy| style::shape(policy).name()).len(), PolicyName::ALL.len());
}

#[test]
#[ignore = "writes an example page, for changes of its appearance"]
fn an_example_page() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/lab-example");
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(format!("{folder}/lab.html"), page(&all())).unwrap();
    std::fs::write(format!("{folder}/lab.txt"), text(&all())).unwrap();
    for (name, svg) in drawings(&all()) {
        std::fs::write(format!("{folder}/{name}"), svg).unwrap();
    }
}
