//! The holders of the pool's locks, their purposes and hold times.
//!
//! **Purpose.** Shows the cause of a stall: the holds of the dropping thread compared with those of all others, per
//! lock.
//!
//! **Method.** All instances of a lock count as one.

use windfall_measure::{
    page::Graph,
    svg::Shape,
    units::{count, short, time},
};

use super::{
    draw::{Mark, Row, Rows, decades},
    over_time::Both,
    ranking::ends,
    section::Section,
    style::{self, Names, axis_time},
};
use crate::{
    results::{Load, LockSeen},
    watch::{Held, Purpose, Role},
};

/// Returns the name of a role.
pub(super) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Client => "clients",
        Role::Dropper => "the dropper",
        Role::Cleaner => "the cleaner",
    }
}

/// Returns the name of a purpose.
pub(super) fn purpose_name(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Lookup => "find a page",
        Purpose::Young => "make a page young",
        Purpose::Dirty => "add a dirty page",
        Purpose::Search => "search the hash index",
        Purpose::Hash => "change the hash index",
        Purpose::Load => "take a frame",
        Purpose::Flush => "write pages",
        Purpose::Dictionary => "change the dictionary",
        Purpose::Drop => "remove a dropped table",
    }
}

/// The summed holds and waits of a lock.
#[derive(Debug, Default)]
struct Sum {
    dropper: Option<Held>,
    others: Option<Held>,
    dropper_total: u64,
    waited: u64,
}

fn sum(lock: &LockSeen) -> Sum {
    let mut sum = Sum::default();
    for held in &lock.holds {
        let dropper = held.role == Role::Dropper;
        let longest = if dropper { &mut sum.dropper } else { &mut sum.others };
        if longest.is_none_or(|l| l.times.longest_ns < held.times.longest_ns) {
            *longest = Some(*held);
        }
        sum.dropper_total += if dropper { held.times.total_ns } else { 0 };
    }
    let waits = lock.waits.iter().filter(|w| w.role != Role::Dropper && w.holder == Role::Dropper);
    sum.waited = waits.map(|w| w.times.longest_ns).max().unwrap_or(0);
    sum
}

fn with_locks<'a>(runs: &'a [Both<'a>]) -> impl Iterator<Item = (&'a Both<'a>, &'a Load)> {
    runs.iter().filter_map(|r| Some((r, r.with?))).filter(|(_, load)| !load.locks.is_empty())
}

/// Draws the longest holds of each lock.
pub(super) fn graph(runs: &[Both<'_>], names: Names) -> Option<Graph> {
    let mut rows = Vec::new();
    let (mut values, mut longest) = (Vec::new(), Vec::new());
    for (run, load) in with_locks(runs) {
        rows.push(Row::Head(names.heading(run.system)));
        let class = style::class(run.system.policy);
        for lock in &load.locks {
            let sum = sum(lock);
            let mut marks = Vec::new();
            if let Some(held) = sum.others {
                let ns = held.times.longest_ns as f64;
                let hint = format!(
                    "{} to {}: longest {}",
                    role_name(held.role),
                    purpose_name(held.purpose),
                    time(ns)
                );
                marks.push(Mark { value: ns, shape: Shape::Square, class: "dot hollow".into(), hint });
            }
            if sum.waited > 0 {
                let ns = sum.waited as f64;
                let hint = format!("longest wait of another thread for the dropper: {}", time(ns));
                marks.push(Mark { value: ns, shape: Shape::Triangle, class: "dot none".into(), hint });
            }
            if let Some(held) = sum.dropper {
                let ns = held.times.longest_ns as f64;
                let hint = format!("the dropper to {}: longest {}", purpose_name(held.purpose), time(ns));
                marks.push(Mark {
                    value: ns,
                    shape: Shape::Circle,
                    class: style::dot(run.system.policy),
                    hint,
                });
                longest.push((format!("{} ({})", names.label(run.system), lock.name), ns));
            }
            if marks.is_empty() {
                continue;
            }
            values.extend(marks.iter().map(|m| m.value));
            let note = match (sum.dropper, sum.others) {
                (Some(d), Some(o)) => {
                    format!("{} / {}", time(d.times.longest_ns as f64), time(o.times.longest_ns as f64))
                }
                (Some(d), None) => time(d.times.longest_ns as f64),
                (None, Some(o)) => format!("- / {}", time(o.times.longest_ns as f64)),
                (None, None) => String::new(),
            };
            rows.push(Row::Line { name: lock.name.clone(), class: class.into(), marks, note });
        }
    }
    if values.is_empty() {
        return None;
    }
    let drawings = Rows {
        about: "The longest time that each lock was held by the dropper and by others",
        scale: decades(values),
        label: axis_time,
        unit: "longest hold, by factors of ten",
        from: None,
        between: true,
    }
    .draw(&rows);
    let none = runs.iter().filter(|r| r.with.is_some_and(|l| l.locks.is_empty()));
    let none: Vec<String> = none.map(|r| names.label(r.system)).collect();
    let none = if none.is_empty() {
        String::new()
    } else {
        format!(" No lock of a pool to show: {}.", none.join(", "))
    };
    Some(Graph {
        title: "Lock hold times".into(),
        legend: vec![
            ("dot with circle".into(), "longest hold of the dropping thread".into()),
            ("dot hollow square".into(), "longest hold of all others".into()),
            ("dot none triangle".into(), "longest wait of another thread for the dropper".into()),
        ],
        drawings,
        caption: format!(
            "A circle far right of its square is a lock that a drop holds longer than any other thread does. At the end of a \
             line: the dropper / others. {}{none}",
            ends("Longest hold of the dropper", &longest, time)
        ),
    })
}

/// Adds tables of all holds and waits, folded.
pub(super) fn tables(section: &mut Section, runs: &[Both<'_>], names: Names) {
    for (run, load) in with_locks(runs) {
        let holds = load.locks.iter().flat_map(|lock| {
            lock.holds.iter().map(|h| {
                let share = h.times.total_ns as f64 / load.length_ns.max(1) as f64 * 100.0;
                vec![
                    lock.name.clone(),
                    role_name(h.role).into(),
                    purpose_name(h.purpose).into(),
                    count(h.times.count),
                    time(h.times.total_ns as f64),
                    format!("{}%", short(share)),
                    time(h.times.longest_ns as f64),
                ]
            })
        });
        let waits = load.locks.iter().flat_map(|lock| {
            lock.waits.iter().map(|w| {
                vec![
                    lock.name.clone(),
                    role_name(w.role).into(),
                    purpose_name(w.purpose).into(),
                    format!("{}, to {}", role_name(w.holder), purpose_name(w.held_for)),
                    count(w.times.count),
                    time(w.times.total_ns as f64),
                    time(w.times.longest_ns as f64),
                ]
            })
        });
        let name = names.label(run.system);
        section.folded(
            &format!("{name}: the holders of its locks, and the threads that waited for them"),
            &[
                (&["lock", "held by", "to", "times", "together", "of the run", "longest"], holds.collect()),
                (&["lock", "waiting", "to", "holder", "times", "together", "longest"], waits.collect()),
            ],
        );
    }
}
