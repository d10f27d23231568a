//! Synthetic results.
//!
//! **Purpose.** Plausible numbers for all experiments, to test the report and to look at it.
//!
//! **Invariants.** The results are the same each time (test: `runs_that_are_in_both_are_held_against_each_other`).

use windfall_measure::{
    Gap, Machine, Random,
    flat::{Cost, Factor, Figure, Gaps, Others, Statement},
};

use crate::{
    policy::Steps,
    results::{
        Load, LockSeen, Mark, Percentiles, Results, Window, X1, X1Run, X2, X2Run, X3, X3Run, X4, X4Run, X5,
        X5Run, X6, X6Run, X7, X7Run, X8, X8Run, X9,
    },
    system::{PolicyName, System},
    watch::{Held, Purpose, Role, Times, Waited},
};

const MS: f64 = 1e6;

/// Results without any experiment.
pub(super) fn empty() -> Results {
    let machine = Machine {
        processor: "A Processor @ 2.10GHz".into(),
        cores: 2,
        memory: 24 << 30,
        kernel: "Linux 6.1.0".into(),
        file_system: "ext4 (rw,relatime)".into(),
        optimised: true,
    };
    Results {
        command: "windfall lab --scale quick --seed 7".into(),
        made_at: 1_795_424_160,
        seconds: 321.5,
        ..Results::new(machine, "quick", 7)
    }
}

/// Results with all experiments.
pub(super) fn all() -> Results {
    Results {
        x1: Some(x1()),
        x2: Some(x2()),
        x3: Some(x3()),
        x4: Some(x4()),
        x5: Some(x5()),
        x6: Some(x6()),
        x7: Some(x7()),
        x8: Some(x8()),
        x9: Some(x9()),
        ..empty()
    }
}

/// Returns the stall of a drop in milliseconds, with a pool of 315,000 pages.
fn stall(system: System) -> f64 {
    let (plain, hashed) = match system.policy {
        PolicyName::LruScanOnce => (31.0, 31.0),
        PolicyName::LruScan => (58.0, 61.0),
        PolicyName::LazyMark => (21.0, 34.0),
        PolicyName::FlushList => (12.5, 12.5),
        PolicyName::FlushListAhi => (44.0, 46.0),
        PolicyName::ExtentAhi => (39.0, 40.0),
        PolicyName::StaleVersion => (0.4, 28.0),
        PolicyName::Detach => (0.02, 0.02),
    };
    let one = if system.hash_index { hashed } else { plain };
    one / f64::from(system.instances).sqrt()
}

fn percentiles(random: &mut Random, count: u64, worst_ms: f64) -> Percentiles {
    let worst = worst_ms * 1e3;
    let p50 = 180.0 + 20.0 * random.unit();
    Percentiles {
        count,
        p50_us: p50,
        p95_us: p50 * 3.0,
        p99_us: (p50 * 6.0).max(worst * 0.05),
        p999_us: (p50 * 11.0).max(worst * 0.7),
        p9999_us: (p50 * 20.0).max(worst * 0.95),
        max_us: (p50 * 40.0).max(worst * 1.05),
    }
}

/// Returns a load with a stall after each of its marks.
pub(super) fn load(system: System, seconds: f64, marks_s: &[f64], rate: f64, factor: f64) -> Load {
    let mut random = Random::new(7, system.policy as u64 + marks_s.len() as u64);
    let stall_ns = stall(system) * factor * MS;
    let interval = 0.1;
    let mut rates = Vec::new();
    let mut gaps = Vec::new();
    let (mut longest, mut at) = (0.0, 0.0);
    for n in 0..(seconds / interval) as u32 {
        let from = f64::from(n) * interval;
        let mark = marks_s.iter().copied().find(|&m| m >= from && m < from + interval);
        let hit = mark.is_some();
        let mut gap = 0.5 * MS + random.unit() * 1.2 * MS;
        let mut now = rate * (0.93 + 0.1 * random.unit());
        if hit {
            gap += stall_ns * (0.8 + 0.2 * random.unit());
            now *= (1.0 - stall_ns / 1e9 / interval).max(0.02);
        }
        if gap > longest {
            (longest, at) = (gap, mark.unwrap_or(from));
        }
        rates.push(now);
        gaps.push(gap);
    }
    let worst = longest / MS;
    let steps = Steps { lru_walked: 315_000, flush_walked: 100_000, freed: 12, ..Steps::default() };
    let lost = (1.0 - stall_ns / 1e8).max(0.05);
    let windows = (1..12).map(|n| f64::from(n) * seconds / 12.0).map(|at| {
        let stall = if marks_s.is_empty() { 0.0 } else { stall_ns } + (0.8 + 0.1 * random.unit()) * MS;
        let rate = rate * (0.99 + 0.02 * random.unit()) * if marks_s.is_empty() { 1.0 } else { lost };
        Window { at_ns: (at * 1e9) as u64, rate, gap_ns: stall as u64, p9999_ns: (stall * 1.1) as u64 }
    });
    let windows: Vec<Window> = windows.collect();
    Load {
        length_ns: (seconds * 1e9) as u64,
        interval_ns: (interval * 1e9) as u64,
        rates,
        gaps_ns: gaps,
        longest_gap: Gap { from_ns: (at * 1e9) as u64, length_ns: longest as u64 },
        queries: (rate * seconds) as u64,
        latency: percentiles(&mut random, (rate * seconds) as u64, worst),
        latency_near: percentiles(&mut random, (rate * 0.1) as u64, worst),
        windows,
        marks: marks_s
            .iter()
            .map(|s| Mark { at_ns: (s * 1e9) as u64, took_ns: (stall_ns * 1.3 + 0.6 * MS) as u64, steps })
            .collect(),
        locks: if system.policy == PolicyName::Detach { Vec::new() } else { locks(system, stall_ns) },
    }
}

fn times(count: u64, each: f64, longest: f64) -> Times {
    Times { count, total_ns: (count as f64 * each) as u64, longest_ns: longest as u64 }
}

fn locks(system: System, stall_ns: f64) -> Vec<LockSeen> {
    let held = |role, purpose, times| Held { role, purpose, times };
    let main = match system.policy {
        PolicyName::LazyMark | PolicyName::StaleVersion => "LRU list",
        _ => "buffer pool",
    };
    let waited = |purpose, longest: f64| Waited {
        role: Role::Client,
        purpose,
        holder: Role::Dropper,
        held_for: Purpose::Drop,
        times: times(40, longest / 2.0, longest),
    };
    let first = LockSeen {
        name: main.into(),
        holds: vec![
            held(Role::Client, Purpose::Lookup, times(9_000_000, 160.0, 9_000.0)),
            held(Role::Client, Purpose::Young, times(200_000, 300.0, 24_000.0)),
            held(Role::Cleaner, Purpose::Flush, times(4_000, 40_000.0, 1.2 * MS)),
            held(Role::Dropper, Purpose::Drop, times(30, stall_ns, stall_ns * 1.2)),
        ],
        waits: vec![waited(Purpose::Lookup, stall_ns * 1.1), waited(Purpose::Young, stall_ns * 0.9)],
    };
    let flush = LockSeen {
        name: "flush list".into(),
        holds: vec![
            held(Role::Client, Purpose::Dirty, times(700_000, 210.0, 12_000.0)),
            held(Role::Dropper, Purpose::Drop, times(30, stall_ns * 0.2, stall_ns * 0.3)),
        ],
        waits: vec![waited(Purpose::Dirty, stall_ns * 0.2)],
    };
    let hash = LockSeen {
        name: "page hash".into(),
        holds: vec![held(Role::Client, Purpose::Lookup, times(8_000_000, 90.0, 7_000.0))],
        waits: Vec::new(),
    };
    vec![first, flush, hash]
}

fn x1() -> X1 {
    let marks: Vec<f64> = (1..12).map(|n| f64::from(n) * 5.0 + 0.03).collect();
    let mut runs = Vec::new();
    let mut add = |system: System, lru_to_flush: u32| {
        let factor = if system.policy == PolicyName::FlushList { 3.0 / f64::from(lru_to_flush) } else { 1.0 };
        let rate = 21_000.0 - 300.0 * f64::from(system.policy as u8);
        let [without, with] = [&[], &marks[..]].map(|marks| load(system, 60.0, marks, rate, factor));
        runs.push(X1Run { system, lru_to_flush, without, with });
    };
    for policy in PolicyName::ALL {
        for ratio in [3, 5, 10] {
            add(System::of(policy), ratio);
        }
        for instances in [4, 8, 10] {
            if policy != PolicyName::Detach {
                add(System { instances, ..System::of(policy) }, 3);
            }
        }
    }
    add(System::of(PolicyName::LazyMark).hashed(), 3);
    X1 {
        threads: 8,
        rows: 2_000_000,
        pages: 315_000,
        bookkeeping_pages: 280_000,
        drop_every_s: 5.0,
        victim_rows: 1_000,
        runs,
    }
}

fn x2() -> X2 {
    let mut runs = Vec::new();
    for policy in PolicyName::ALL {
        for fill_gb in [21.0, 52.0, 104.0] {
            let pages = (fill_gb * 65_536.0) as u64;
            let stale = policy == PolicyName::StaleVersion || policy == PolicyName::Detach;
            let grows = if stale { 1.0 } else { pages as f64 / 315_000.0 };
            let each = stall(System::of(policy)) * MS * grows + 0.06 * MS;
            runs.push(X2Run {
                system: System::of(policy),
                fill_gb,
                pages,
                create_ns: 900_000_000,
                drop_ns: (each * 1_000.0) as u64,
                ended_ns: (1..=1_000_u64)
                    .map(|n| (each * (n as f64 + (n * n) as f64 / 9_000.0)) as u64)
                    .collect(),
                steps: Steps { lru_walked: pages * 2_000, ..Steps::default() },
            });
        }
    }
    X2 { tables: 1_000, runs }
}

fn x3() -> X3 {
    let mut runs = Vec::new();
    for (on, tables, threads) in
        [("disk", 10_000, 1), ("tmpfs", 10_000, 1), ("tmpfs", 40_000, 4), ("tmpfs", 40_000, 8)]
    {
        for policy in PolicyName::ALL {
            let each = stall(System::of(policy)) * MS / 4.0 + if on == "disk" { 0.4 * MS } else { 0.02 * MS };
            let walks = if policy == PolicyName::LruScanOnce { 1 } else { 2 };
            runs.push(X3Run {
                system: System::of(policy),
                on: on.into(),
                tables,
                threads,
                create_ns: 3_000_000_000,
                drop_ns: (each * f64::from(tables)) as u64,
                latency: percentiles(&mut Random::new(3, 0), u64::from(tables), each / MS * 1.5),
                steps: Steps { lru_walked: u64::from(tables) * 5_000 * walks, ..Steps::default() },
            });
        }
    }
    X3 { runs }
}

fn x4() -> X4 {
    let mut runs = Vec::new();
    for (on, fill_gb) in [("disk", 0.0), ("tmpfs", 0.0), ("disk", 60.0)] {
        for policy in PolicyName::ALL {
            let flat = policy == PolicyName::StaleVersion || policy == PolicyName::Detach;
            let grows = if fill_gb > 0.0 && !flat { 12.0 } else { 0.001 };
            let drop = stall(System::of(policy)) * MS * grows + 0.05 * MS;
            runs.push(X4Run {
                system: System::of(policy),
                on: on.into(),
                fill_gb,
                loops: 2_000,
                total_ns: (2_000.0 * (drop + 0.3 * MS)) as u64,
                drop_ns: (2_000.0 * drop) as u64,
                steps: Steps::default(),
            });
        }
    }
    X4 { loops: 2_000, runs }
}

fn x5() -> X5 {
    let mut runs = Vec::new();
    let hashed = [PolicyName::ExtentAhi, PolicyName::StaleVersion, PolicyName::Detach];
    let all = PolicyName::ALL.map(System::of).into_iter();
    for system in all.chain(hashed.map(|policy| System::of(policy).hashed())) {
        let policy = system.policy;
        for pool_gb in [32.0, 64.0, 128.0, 256.0, 450.0] {
            let pages = (pool_gb * 65_536.0) as u64;
            let stale = policy == PolicyName::StaleVersion && !system.hash_index;
            let flat = stale || policy == PolicyName::Detach;
            let grows = if flat { 1.0 } else { pages as f64 / 315_000.0 };
            let each = stall(system) * MS * grows + 0.5 * MS;
            let tables = if each > 2_000.0 * MS { 20 } else { 100 };
            runs.push(X5Run {
                system,
                pool_gb,
                pages,
                lru_entries: pages * 95 / 100,
                flush_entries: pages / 4,
                tables,
                rounds: 1,
                total_ns: (each * f64::from(tables)) as u64,
                drop_latency: percentiles(&mut Random::new(5, 0), 100, each / MS),
                steps: Steps::default(),
            });
        }
    }
    X5 { threads: 8, runs }
}

fn x6() -> X6 {
    let mut runs = Vec::new();
    let marks: Vec<f64> = (10..30).map(|n| f64::from(n) + 0.4).collect();
    for policy in PolicyName::ALL {
        for drops in [true, false] {
            let system = System::of(policy);
            let load = load(system, 30.0, if drops { &marks } else { &[] }, 60_000.0, 1.6);
            let bytes = |s: u64| (if drops { s.min(10) } else { s }) * 14_000_000 + 12_000_000;
            let rows = load.queries;
            runs.push(X6Run { system, drops, load, rows, used_bytes: (0..=30).map(bytes).collect() });
        }
    }
    X6 { threads: 4, kept: 10, runs }
}

fn x7() -> X7 {
    let run = |policy| {
        let system = System::of(policy).hashed();
        let mut load = load(system, 6.0, &[3.0], 45_000.0, 3.0);
        for mark in &mut load.marks {
            mark.steps.unhashed = 60_000;
            mark.steps.hash_entries = 9_000_000;
        }
        X7Run { system, pages: 65_536, entries: 9_800_000, load }
    };
    X7 { threads: 8, runs: PolicyName::ALL.map(run).to_vec() }
}

fn x8() -> X8 {
    let run = |policy| {
        let system = System::of(policy);
        let last = policy == PolicyName::Detach;
        let gone = if last { 4.2 } else { 0.8 };
        let mut load = load(system, 20.0, &[8.0], 9_000.0, 1.0);
        for n in 80..(80.0 + gone * 10.0) as usize {
            load.rates[n] = if last { 8_600.0 } else { 390.0 };
        }
        X8Run {
            system,
            load,
            gone_after_ns: (gone * 1e9) as u64,
            rate_before: 9_000.0,
            rate_during: if last { 8_600.0 } else { 390.0 },
        }
    };
    let some = [PolicyName::LruScan, PolicyName::FlushList, PolicyName::StaleVersion, PolicyName::Detach];
    X8 { threads: 8, file_bytes: 4 << 30, runs: some.map(run).to_vec() }
}

fn x9() -> X9 {
    let cost = |figure| Cost { figure, alone: 4_990.0, small: 5_000.0, large: 5_040.0 };
    let statement = |name: &str| Statement {
        name: name.into(),
        timed: 40,
        stepped: 3,
        costs: Figure::ALL.map(cost).into(),
        times: [vec![5_000.0; 40], vec![5_040.0; 40]],
    };
    let factor = |id: &str, what: &str, to: &str| Factor {
        id: id.into(),
        what: what.into(),
        amounts: ["1,000".into(), to.into()],
        per: None,
        is_around: false,
        grows: None,
        seen: None,
        statements: ["drop index", "drop", "truncate"].map(statement).into(),
        others: Others {
            readers: Gaps { without: vec![2e5; 16], with: vec![2.1e5; 16] },
            writers: Gaps { without: vec![4e5; 16], with: vec![3.9e5; 16] },
            waits_on_drops: Some(0),
            drop_ns: 20_000,
        },
    };
    let mut grown = factor("hash-index", "its hash index", "512 MiB");
    for cost in &mut grown.statements[1].costs {
        if cost.figure == Figure::Freed {
            cost.large = 5e8;
        }
    }
    X9 { factors: vec![factor("rows", "rows of the table", "1,000,000"), grown] }
}
