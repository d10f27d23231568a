//! The scripts of the histories, drawn from a seed.

use windfall::{env::Env as _, row};
use windfall_sim::SimulatedEnv;

use super::{Alteration, Letters, Many, Model, Nested, Step};

/// Whether the tables of this seed have indexes of all forms, and their rows and definitions change in all ways.
fn is_rich(seed: u64) -> bool {
    // Of a seed with the number of a run in its upper half.
    seed as u32 % 3 == 2
}

/// Returns [`script`], of some seeds with steps of more kinds in the place of others.
#[allow(dead_code, reason = "only some tests need it")]
pub(crate) fn mixed_script(seed: u64, steps: usize) -> Vec<Step> {
    let script = script(seed, steps);
    if !is_rich(seed) {
        return script;
    }
    let chance = SimulatedEnv::new(seed ^ 0x31c4);
    let mut mixed: Vec<Step> = script
        .into_iter()
        .enumerate()
        .flat_map(|(n, step)| instead_of(step, n, &|n| chance.random() % n))
        .collect();
    mixed.truncate(steps + 2);
    mixed
}

/// Returns the letters of a few indexes.
fn letters(draw: &dyn Fn(u64) -> u64) -> Letters {
    ["s", "x", "sx", "is", "s", ""][draw(6) as usize]
}

fn alteration(draw: &dyn Fn(u64) -> u64, name: Option<String>) -> Alteration {
    const NAMES: [(Letters, Letters); 6] =
        [("s", "s2"), ("s2", "s"), ("x", "x2"), ("x2", "x"), ("i", "i2"), ("i2", "i")];
    let one = |names: [Letters; 6]| names[draw(6) as usize];
    Alteration {
        drop: (draw(6) == 0).then(|| one(["s", "x", "i", "s2", "x2", "i2"])),
        rename: (draw(6) == 0).then(|| NAMES[draw(6) as usize]),
        add: (draw(3) > 0).then(|| one(["s", "x", "s", "x", "i", "s2"])),
        metadata: (draw(3) == 0).then(|| [10, 700, 6000][draw(3) as usize]),
        numbers: draw(3) == 0,
        name,
    }
}

/// Returns the steps that take the place of one of [`script`], which is its `n`-th.
fn instead_of(step: Step, n: usize, draw: &dyn Fn(u64) -> u64) -> Vec<Step> {
    let other = |key: &[u8]| [&key[..key.len() - 1], &[b'0' + draw(10) as u8]].concat();
    vec![match step {
        Step::Create(t, _) if draw(4) == 0 => {
            return vec![Step::Create(t.clone(), letters(draw)), Step::LoadInto(t, 20)];
        }
        Step::Create(t, _) => Step::Create(t, letters(draw)),
        Step::Load(t, _, count) => Step::Load(t, ["x", "i", ""][draw(3) as usize], count),
        Step::Truncate(t) if draw(2) == 0 => {
            return vec![Step::Truncate(t.clone()), Step::LoadInto(t, n as u8)];
        }
        Step::Truncate(t) if draw(4) > 0 => Step::TruncatePrefix(t),
        Step::Truncate(_) => Step::TruncatePrefix("t".into()),
        Step::Drop(names) if names.len() == 1 && draw(2) == 0 => Step::DropPrefix(names[0].clone()),
        // Only prefixes and renames name a table with such a name.
        Step::Rename(a, b) if draw(2) == 0 => Step::Rename(a, b + "x"),
        Step::Rename(a, b) => Step::Alter(a, alteration(draw, Some(b))),
        Step::CreateIndex(t, _) if draw(2) == 0 => {
            Step::CreateIndex(t, letters(draw).get(..1).unwrap_or("i"))
        }
        Step::CreateIndex(t, _) | Step::DropIndex(t) => Step::Alter(t, alteration(draw, None)),
        Step::Put(t, key, value) => match draw(6) {
            0 => Step::ChangeKey(t, other(&key), key, value),
            // With a long field that is kept more often than set.
            1 | 2 => {
                let long = (draw(4) == 0).then(|| [&value[..], &vec![n as u8; 2500]].concat());
                let short = (draw(4) > 0).then(|| value[..value.len().min(40)].to_vec());
                Step::Fields(t, key, [short, long])
            }
            _ => Step::Put(t, key, value),
        },
        step => step,
    }]
}

pub(crate) fn script(seed: u64, steps: usize) -> Vec<Step> {
    let chance = SimulatedEnv::new(seed ^ 0x5eed);
    let mut draw = |n: u64| chance.random() % n;
    let name = |draw: &mut dyn FnMut(u64) -> u64| format!("t{}", draw(4));
    let mut script = vec![Step::Create("t0".into(), "i"), Step::Create("t1".into(), "")];
    while script.len() < steps + 2 {
        let table = name(&mut draw);
        let key = format!("key {:03}", draw(60)).into_bytes();
        // The index has few keys. After the key comes the number of the step, so that every value is unique.
        let value = |script: &[Step], length: u64, stamp: u64| -> Vec<u8> {
            let step = (script.len() as u32).to_le_bytes();
            let filler = (0..length).map(|n| ((n / 3) ^ stamp) as u8);
            [(stamp % 6) as u8; 8].into_iter().chain(step).chain(filler).collect()
        };
        let step = match draw(44) {
            0 => Step::Create(table, ["i", ""][draw(2) as usize]),
            1 => Step::Load(table, ["i", ""][draw(2) as usize], script.len() as u8),
            2 => Step::Drop(vec![table]),
            3 => Step::Drop(vec![table, name(&mut draw)]),
            4 => Step::Truncate(table),
            5 => Step::Rename(table, name(&mut draw)),
            6 => Step::Swap(table, name(&mut draw)),
            7 => Step::CreateIndex(table, "i"),
            8 => Step::DropIndex(table),
            9 => Step::Checkpoint,
            10..13 => Step::Settle,
            13..19 => Step::Delete(table, key),
            19 => Step::Scan(table),
            20 | 21 => {
                let length = if draw(3) == 0 { 30_000 } else { draw(600) };
                Step::Temporary(format!("temporary {}", draw(2)), key, value(&script, length, draw(200)))
            }
            22 => Step::EndTemporary((draw(2) == 0).then(|| format!("temporary {}", draw(2)))),
            23 => {
                // Adjacent rows, so that leaves split, or deletions of the same rows, so that leaves merge.
                let (first, rows, length) = (draw(60), 5 + draw(20), 200 + draw(700));
                for n in first..first + rows {
                    let key = format!("row {n:03}").into_bytes();
                    script.push(if length < 450 {
                        Step::Delete(table.clone(), key)
                    } else {
                        Step::Put(table.clone(), key, value(&script, length, n))
                    });
                }
                continue;
            }
            drawn => {
                // Some values need an overflow chain.
                let length = if draw(12) == 0 { 3000 + draw(9000) } else { draw(300) };
                let mut value = value(&script, length, draw(200));
                if length > 3000 && length.is_multiple_of(2) {
                    // Of a row that is written field by field the long field needs the chain.
                    value = row::encode(&[&value[..20], &value[20..]]);
                }
                match drawn {
                    ..40 => Step::Put(table, key, value),
                    40 | 41 => {
                        let mut calls = vec![(table, key, Some(value))];
                        for _ in 0..=draw(6) {
                            let (table, key) = (name(&mut draw), format!("key {:03}", draw(60)).into_bytes());
                            let length = if draw(9) == 0 { 5000 } else { draw(300) };
                            let filler = (0..length).map(|n| (n / 3) as u8);
                            let stamp =
                                [script.len() as u32, calls.len() as u32].map(u32::to_le_bytes).concat();
                            let value = [draw(6) as u8; 8].into_iter().chain(stamp).chain(filler).collect();
                            calls.push((table, key, (draw(4) > 0).then_some(value)));
                        }
                        let start = draw(calls.len() as u64) as usize;
                        let undone = start..start + draw((calls.len() - start) as u64 + 1) as usize;
                        let prepares = (draw(3) == 0).then(|| draw(2) == 0);
                        Step::Transaction(Box::new(Many { calls, undone, prepares, commits: draw(4) > 0 }))
                    }
                    _ => Step::Number(table, value),
                }
            }
        };
        script.push(step);
    }
    script.truncate(steps + 2);
    script
}

/// Returns a history of trees that become high and low again: keys so long that a node has few of them, phases of
/// inserts and of deletions, and calls within calls.
#[allow(dead_code, reason = "only some tests need it")]
pub(crate) fn script_of_high_trees(seed: u64, steps: usize) -> Vec<Step> {
    const ROWS: u64 = 99;
    let chance = SimulatedEnv::new(seed ^ 0x41e5);
    let draw = |n: u64| chance.random() % n;
    let mut script = vec![Step::Create("t0".into(), "i"), Step::Create("t1".into(), "")];
    while script.len() < steps + 2 {
        let n = script.len() as u64;
        // Neighbours share a prefix, so that separators are long. The keys of inner nodes share none.
        let key = |n: u64| {
            let group = SimulatedEnv::new(n / 12).random() as u32;
            format!("{group:08x}{:.>680}", n % 12).into_bytes()
        };
        let value = |length: u64, stamp: u64| -> Vec<u8> {
            [stamp as u8 % 6; 8]
                .into_iter()
                .chain((n as u32).to_le_bytes())
                .chain((0..length).map(|_| stamp as u8))
                .collect()
        };
        let table = format!("t{}", draw(5) / 4);
        let is_ebb = n % 340 >= 120;
        script.push(match draw(40) {
            0 => Step::Checkpoint,
            1..4 => Step::Settle,
            4 => Step::CreateIndex(table, "i"),
            5 if !is_ebb => Step::DropIndex(table),
            6..9 if !is_ebb => {
                let (first, second) = (draw(60), draw(59));
                let within =
                    (format!("t{}", draw(2)), key((first + 1 + second) % 60), value(draw(5000), draw(200)));
                let (value, fails) = (value(5000 + draw(8000), draw(200)), draw(4) == 0);
                Step::Nested(Box::new(Nested { table, key: key(first), value, within, fails }))
            }
            // In key order, in alternating tables, so that few rows are left.
            _ if is_ebb => Step::Delete(format!("t{}", n % 2), key(n % ROWS)),
            _ => {
                // Some rows are adjacent.
                let (first, rows) = (draw(ROWS), if draw(3) == 0 { 12 } else { 1 });
                let put = |n| Step::Put(table.clone(), key(n % ROWS), value(draw(300), draw(200)));
                script.extend((first..first + rows).map(put));
                continue;
            }
        });
    }
    script.truncate(steps + 2);
    script
}

/// Returns a history of groups of statements on a few tables, which get rows in between.
#[allow(dead_code, reason = "only some tests need it")]
pub(crate) fn script_of_groups(seed: u64, steps: usize) -> Vec<Step> {
    let chance = SimulatedEnv::new(seed ^ 0x6409);
    let draw = |n: u64| chance.random() % n;
    let name = || format!("t{}", draw(5));
    let by = || if is_rich(seed) { ["i", "s", "x"][draw(3) as usize] } else { "i" };
    let mut script = vec![Step::Create("t0".into(), "i"), Step::Create("t1".into(), "")];
    let mut model = script.iter().try_fold(Model::default(), |model, step| model.after(step)).unwrap();
    while script.len() < steps + 2 {
        let stamp = (script.len() as u32).to_le_bytes();
        let statement = |_| match draw(12) {
            0..3 => Step::Create(name(), if draw(2) == 0 { by() } else { "" }),
            3 => Step::Drop(vec![name()]),
            4 => Step::Truncate(name()),
            5 if is_rich(seed) => {
                let alteration = alteration(&draw, (draw(2) == 0).then(name));
                Step::Alter(name(), Alteration { add: None, numbers: false, ..alteration })
            }
            5 => Step::DropIndex(name()),
            6..9 => Step::Rename(name(), name()),
            _ => Step::Swap(name(), name()),
        };
        let step = match draw(9) {
            // Of a few random statements most are refused, so they are drawn until they are not, with some patience.
            0..3 => {
                let draw_group = |_| Step::Group((0..2 + draw(4)).map(statement).collect());
                let mut drawn = (0..40).map(draw_group);
                drawn.find(|group| model.after(group).is_some()).unwrap_or_else(|| draw_group(0))
            }
            3 => Step::Checkpoint,
            4 => Step::Settle,
            5 => Step::CreateIndex(name(), by()),
            6 => Step::Number(name(), [&[1; 8][..], &stamp].concat()),
            _ => {
                let value = [&[draw(6) as u8; 8][..], &stamp, &vec![7; draw(400) as usize]].concat();
                Step::Put(name(), format!("key {:03}", draw(60)).into_bytes(), value)
            }
        };
        model = model.after(&step).unwrap_or(model);
        script.push(step);
    }
    script
}
