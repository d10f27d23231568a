//! X3 and X4: many tables dropped one after the other.
//!
//! **Purpose.** Shows the time of a drop by system and setting, and compares the published ratios with ours.
//!
//! **Method.** Times are compared only within one setting.

use windfall_measure::{
    page::{Graph, table},
    units::{count, short, things, time, times},
};

use super::{
    draw::{Row, Rows, decades},
    published::{self, Published},
    ranking::{self, Measured, ends, mark},
    section::Section,
    style::{self, Names, axis_time, gigabytes},
};
use crate::{
    results::{X3, X3Run, X4, X4Run},
    system::{PolicyName, System},
};

/// Returns the setting of a run of X3.
pub(super) fn x3_setting(run: &X3Run) -> String {
    format!(
        "{}, {} tables, {}",
        run.on,
        count(u64::from(run.tables)),
        things(u64::from(run.threads), "thread")
    )
}

/// Returns the same in short form.
pub(super) fn x3_short(run: &X3Run) -> String {
    format!("{}, {} x {}", run.on, count(u64::from(run.tables)), run.threads)
}

/// Returns the setting of a run of X4.
pub(super) fn x4_setting(run: &X4Run) -> String {
    if run.fill_gb > 0.0 { format!("{}, {} filled", run.on, gigabytes(run.fill_gb)) } else { run.on.clone() }
}

/// A line of a graph: a setting, a system, the time per drop, and the text at the end.
type Line = (String, System, f64, String);

/// Draws rows by setting, with a mark per system.
fn by_setting(title: &str, unit: &str, caption: &str, lines: &[Line], names: Names) -> Option<Graph> {
    if lines.is_empty() {
        return None;
    }
    let mut settings: Vec<&String> = Vec::new();
    for (setting, ..) in lines {
        if !settings.contains(&setting) {
            settings.push(setting);
        }
    }
    let mut rows = Vec::new();
    let mut said = Vec::new();
    for setting in settings {
        rows.push(Row::Head(setting.clone()));
        let mut of: Vec<&Line> = lines.iter().filter(|l| l.0 == *setting).collect();
        of.sort_by_key(|l| l.1);
        for (_, system, ns, note) in &of {
            let hint = format!("{}: {}", names.label(*system), time(*ns));
            rows.push(Row::Line {
                name: names.label(*system),
                class: style::class(system.policy).into(),
                marks: vec![mark(system.policy, *ns, hint)],
                note: note.clone(),
            });
        }
        let times: Vec<_> = of.iter().map(|l| (names.label(l.1), l.2)).collect();
        said.push(ends(&format!("On {setting}"), &times, time));
    }
    let drawings = Rows {
        about: title,
        scale: decades(lines.iter().map(|l| l.2)),
        label: axis_time,
        unit,
        from: None,
        between: false,
    }
    .draw(&rows);
    Some(Graph {
        title: title.to_owned(),
        legend: Vec::new(),
        drawings,
        caption: format!("{caption} {}", said.join(" ")),
    })
}

/// Returns the section of X3.
pub(super) fn x3_section(x3: &X3) -> Section {
    let mut section = Section::new(
        "x3",
        "many small tables",
        &format!(
            "Tables as in the report are made, then dropped by this many threads. The setting of 2010: {}.",
            published::X3_SOURCE
        ),
    );
    let names = Names::of(x3.runs.iter().map(|r| r.system));
    section.setting(names.hash_said());
    // One thread, and the number of tables that is nearest to the report's; on each file system, because the report
    // names none.
    let by_one = || x3.runs.iter().filter(|r| r.threads == 1);
    let tables = by_one().map(|r| r.tables).min_by_key(|n| n.abs_diff(published::X3_TABLES)).unwrap_or(0);
    let here: Vec<Measured> = by_one()
        .filter(|r| r.tables == tables)
        .map(|r| Measured { system: r.system, setting: r.on.clone(), time: r.drop_ns as f64 })
        .collect();
    let figures =
        ["disk", "tmpfs"].map(|setting| published::X3.map(|figure| Published { setting, ..figure }));
    let title = format!(
        "The published ratio beside ours: {} tables there, {} here, one thread",
        count(u64::from(published::X3_TABLES)),
        count(u64::from(tables))
    );
    ranking::part(&mut section, &title, published::X3_SOURCE, &ranking::pairs(&figures.concat(), &here));
    section.says(&walked(x3));
    let lines: Vec<Line> = x3
        .runs
        .iter()
        .map(|r| {
            let each = r.each_drop();
            let note = format!("{} each, {} in all", time(each), time(r.drop_ns as f64));
            (x3_setting(r), r.system, each, note)
        })
        .collect();
    section.graph(
        "times",
        by_setting(
            "The time of dropping all tables, for each table",
            "time for each table, by factors of ten",
            "Left is less.",
            &lines,
            names,
        ),
    );
    section
}

/// Returns the numbers of list entries that both versions of the report examine, as a sentence.
fn walked(x3: &X3) -> String {
    let of = |policy: PolicyName| {
        let runs = x3.runs.iter().filter(|r| r.system.policy == policy && r.tables > 0);
        runs.map(|r| (x3_setting(r), r.system.hash_index, r.steps.lru_walked as f64 / f64::from(r.tables)))
            .collect::<Vec<_>>()
    };
    let once = of(PolicyName::LruScanOnce);
    for (setting, hash_index, twice) in of(PolicyName::LruScan) {
        let same = once.iter().find(|o| o.0 == setting && o.1 == hash_index && o.2 > 0.0);
        if let Some((.., once)) = same {
            return format!(
                "The report counts the calls of the function that walks the pool: {} as many in the newer version. Here \
                 lru-scan looks at {} entries of LRU lists for each table, lru-scan-once at {}: {} as many ({setting}).",
                times(published::X3_CALLS),
                short(twice),
                short(*once),
                times(twice / once)
            );
        }
    }
    String::new()
}

/// Returns the section of X4.
pub(super) fn x4_section(x4: &X4) -> Section {
    let mut section = Section::new(
        "x4",
        "make and drop in a loop",
        &format!(
            "A table with one column is made and dropped, {} times. The setting of 2013: {}.",
            count(u64::from(x4.loops)),
            published::X4_SOURCE
        ),
    );
    let names = Names::of(x4.runs.iter().map(|r| r.system));
    section.setting(names.hash_said());
    let here: Vec<Measured> = x4
        .runs
        .iter()
        .map(|r| Measured { system: r.system, setting: x4_setting(r), time: r.each_loop() })
        .collect();
    let pairs = ranking::pairs(&published::X4, &here);
    let title = "Published ratios beside ours, with nothing filled";
    ranking::part(&mut section, title, published::X4_SOURCE, &pairs);
    if !pairs.is_empty() {
        let seconds = |s: f64| format!("{} s", short(s));
        let lines = published::X4.iter().filter(|p| p.setting == "disk").map(|p| {
            let ram = published::X4.iter().find(|r| r.policy == p.policy && r.setting == "tmpfs");
            let ram = ram.map_or_else(String::new, |r| seconds(r.seconds));
            vec![p.version.to_owned(), p.policy.to_string(), seconds(p.seconds), ram]
        });
        let also = published::X4_ALSO.iter().map(|&(version, disk, ram)| {
            vec![format!("MySQL {version}"), "-".into(), seconds(disk), seconds(ram)]
        });
        section.html(&format!(
            "<details>\n<summary>All published times of 100,000 loops</summary>\n{}</details>\n",
            table(&["published", "held against", "disk", "ramdisk"], lines.chain(also))
        ));
    }
    if let Some(run) = x4.runs.iter().find(|r| r.fill_gb > 0.0) {
        section.bookkeeping(&format!(
            "Where {} are filled it is with pages of bookkeeping",
            gigabytes(run.fill_gb)
        ));
    }
    let lines: Vec<Line> = x4
        .runs
        .iter()
        .map(|r| {
            let drop = r.each_drop();
            (x4_setting(r), r.system, drop, format!("drop {}, loop {}", time(drop), time(r.each_loop())))
        })
        .collect();
    section.graph(
        "times",
        by_setting(
            "The time of a drop in the loop",
            "mean time of a drop, by factors of ten",
            "Left is less; the loop has the making of the table too.",
            &lines,
            names,
        ),
    );
    section
}
