//! Points that must have been before themselves: strongly connected components of points, and in each a short cycle
//! with the fewest misses (read-write dependencies), which gives it the narrowest name.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Kind, Report,
    facts::Facts,
    points::{Edge, Part, Points, Why},
    words,
};

/// The number of points of a component from which a search for a cycle begins.
const STARTS: usize = 24;

/// The edges that a search uses.
#[derive(Clone, Copy)]
struct Layer {
    widest: Why,
    by_the_clock: bool,
}

impl Layer {
    fn has(self, edge: &Edge) -> bool {
        edge.why <= self.widest && (self.by_the_clock || edge.why != Why::Time)
    }
}

/// From the narrowest names to the widest. Anomalies that do not depend on the clock come first.
const LAYERS: [(bool, Why); 8] = [
    (false, Why::Write),
    (false, Why::Read),
    (false, Why::Miss),
    (false, Why::PredicateMiss),
    (true, Why::Write),
    (true, Why::Read),
    (true, Why::Miss),
    (true, Why::PredicateMiss),
];

pub(super) fn find(facts: &Facts<'_>, points: &Points, report: &mut Report) {
    let mut reported: FxHashSet<u32> = FxHashSet::default();
    for (by_the_clock, widest) in LAYERS {
        let layer = Layer { widest, by_the_clock };
        for component in components(points, layer) {
            if component.iter().any(|point| reported.contains(point)) {
                continue;
            }
            reported.extend(&component);
            let inside: FxHashSet<u32> = component.iter().copied().collect();
            let cycles = component.iter().take(STARTS);
            let cycles = cycles.filter_map(|start| cheapest(points, *start, &inside, layer));
            if let Some((_, cycle)) = cycles.min_by_key(|(cost, _)| *cost) {
                let kind = name(points, &cycle);
                report.add(kind, || words::cycle(facts, points, &cycle));
            }
        }
    }
}

/// Returns the components of more than one point, by Tarjan's algorithm with an explicit stack.
fn components(points: &Points, layer: Layer) -> Vec<Vec<u32>> {
    const NEW: u32 = u32::MAX;
    let count = points.all.len();
    // For each point: when it was reached, the earliest point that it reaches, and whether its component is open.
    let (mut reached, mut low, mut open) = (vec![NEW; count], vec![0; count], vec![false; count]);
    let (mut stack, mut path, mut found) = (Vec::new(), Vec::new(), Vec::new());
    let mut time = 0;
    for root in 0..count as u32 {
        if reached[root as usize] != NEW {
            continue;
        }
        path.push((root, points.begins[root as usize]));
        while let Some((point, next)) = path.last_mut() {
            let (at, point) = (*point as usize, *point);
            if reached[at] == NEW {
                (reached[at], low[at], open[at]) = (time, time, true);
                time += 1;
                stack.push(point);
            }
            if *next == points.begins[at + 1] {
                path.pop();
                if let Some((before, _)) = path.last() {
                    low[*before as usize] = low[*before as usize].min(low[at]);
                }
                if low[at] == reached[at] {
                    let from = stack.iter().rposition(|on| *on == point).expect("it was put there");
                    let component = stack.split_off(from);
                    for on in &component {
                        open[*on as usize] = false;
                    }
                    if component.len() > 1 {
                        found.push(component);
                    }
                }
                continue;
            }
            let edge = &points.edges[*next];
            *next += 1;
            let to = edge.to as usize;
            if !layer.has(edge) {
                continue;
            }
            if reached[to] == NEW {
                path.push((edge.to, points.begins[to]));
            } else if open[to] {
                low[at] = low[at].min(reached[to]);
            }
        }
    }
    found
}

/// Returns the cost of an edge in a cycle: fewer misses are better, then fewer edges of reads or writes. Any number of
/// moments between two transactions costs the same as one.
fn cost(points: &Points, edge: &Edge) -> u64 {
    match edge.why {
        Why::Time if points.all[edge.from as usize].part == Part::Moment => 0,
        Why::Own | Why::Time => 1,
        Why::Write => 1_000,
        Why::Read => 1_001,
        Why::Miss => 1_000_000,
        Why::PredicateMiss => 1_000_001,
    }
}

/// Returns the cheapest path within a component from a point to itself (Dijkstra).
fn cheapest(points: &Points, start: u32, inside: &FxHashSet<u32>, layer: Layer) -> Option<(u64, Vec<Edge>)> {
    let mut best: FxHashMap<u32, (u64, Edge)> = FxHashMap::default();
    let mut ahead = BinaryHeap::from([Reverse((0, start))]);
    while let Some(Reverse((so_far, point))) = ahead.pop() {
        if point == start && so_far > 0 {
            break;
        }
        if best.get(&point).is_some_and(|(known, _)| *known < so_far) {
            continue;
        }
        for edge in points.edges(point).iter().filter(|edge| layer.has(edge) && inside.contains(&edge.to)) {
            let sum = so_far + cost(points, edge);
            if best.get(&edge.to).is_none_or(|(known, _)| sum < *known) {
                best.insert(edge.to, (sum, *edge));
                ahead.push(Reverse((sum, edge.to)));
            }
        }
    }
    let total = best.get(&start)?.0;
    let mut cycle = Vec::new();
    let mut at = start;
    loop {
        let edge = best[&at].1;
        cycle.push(edge);
        at = edge.from;
        if at == start {
            break;
        }
    }
    cycle.reverse();
    Some((total, cycle))
}

fn name(points: &Points, cycle: &[Edge]) -> Kind {
    let count = |why: Why| cycle.iter().filter(|edge| edge.why == why).count();
    let misses = count(Why::Miss) + count(Why::PredicateMiss);
    let written: Vec<&Edge> = cycle.iter().filter(|edge| edge.why == Why::Write).collect();
    let is_snapshot = |point: u32| points.all[point as usize].part == Part::Snapshot;
    match (misses, count(Why::Read)) {
        // It replaced a version that was newer than its snapshot.
        (0, 0) if written.iter().any(|edge| is_snapshot(edge.to)) => Kind::LostUpdate,
        (0, 0) => Kind::WriteCycle,
        (0, _) => Kind::CircularFlow,
        (1, 0) if is_lost_update(points, cycle, &written) => Kind::LostUpdate,
        (1, _) => Kind::ReadSkew,
        _ if !has_adjacent_misses(cycle) => Kind::LongFork,
        _ if count(Why::PredicateMiss) > 0 => Kind::Phantom,
        _ => Kind::WriteSkew,
    }
}

/// Returns whether one transaction has read the version that the other replaced, and has then replaced the other's
/// version.
fn is_lost_update(points: &Points, cycle: &[Edge], written: &[&Edge]) -> bool {
    let miss = cycle.iter().find(|edge| edge.why >= Why::Miss);
    let (Some(miss), [write]) = (miss, written) else { return false };
    let reader = points.all[miss.from as usize].transaction;
    miss.key == write.key
        && points.all[write.to as usize].transaction == reader
        && points.all[miss.to as usize].transaction == points.all[write.from as usize].transaction
}

/// Returns whether two misses follow each other, also from the end to the start. Only points of the same transaction
/// may be between them.
fn has_adjacent_misses(cycle: &[Edge]) -> bool {
    let steps: Vec<bool> =
        cycle.iter().filter(|edge| edge.why != Why::Own).map(|edge| edge.why >= Why::Miss).collect();
    (0..steps.len()).any(|n| steps[n] && steps[(n + 1) % steps.len()])
}
