//! Times at which operations finished.
//!
//! **Purpose.** Operations per second over time, and the longest time in which no client finished one.
//!
//! **Invariants.** Cells of several threads merge without loss, so a gap longer than a cell is known to the nanosecond
//! (test: `a_gap_is_where_no_thread_finished`). A time line either has a length fixed in advance, and ignores
//! operations that finish later (test: `the_ends_count_as_gaps`), or grows until its end is known (test:
//! `a_line_grows_until_its_end_is_known`).
//!
//! **Layout.** Time is divided into cells. A cell keeps the number of operations that finished in it, and the times of
//! the first and the last of them.

use std::time::Duration;

/// The interval that one point of a graph represents.
pub const GRAPH_INTERVAL: Duration = Duration::from_millis(100);
/// The length of a cell.
const CELL_NS: u64 = 250_000;

/// The operations that finished within a cell.
#[derive(Clone, Copy, Debug)]
struct Cell {
    count: u32,
    first: u32,
    last: u32,
}

const EMPTY: Cell = Cell { count: 0, first: u32::MAX, last: 0 };

/// A record of the times at which operations finished.
#[derive(Clone, Debug)]
pub struct Timeline {
    cells: Vec<Cell>,
    length_ns: u64,
}

/// An interval in which nothing finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Gap {
    /// The start of the gap, in nanoseconds since the start of the run.
    pub from_ns: u64,
    /// The length of the gap in nanoseconds.
    pub length_ns: u64,
}

impl Timeline {
    /// Returns an empty time line of this length.
    pub fn new(length: Duration) -> Self {
        let length_ns = length.as_nanos() as u64;
        Self { cells: vec![EMPTY; length_ns.div_ceil(CELL_NS) as usize], length_ns }
    }

    /// Returns an empty time line without an end, which grows until [`Timeline::part`]. Up to the estimated length
    /// `about`, it grows without copying the cells, which would delay an operation.
    pub fn growing(about: Duration) -> Self {
        let cells = about.as_nanos() as u64 / CELL_NS;
        Self { cells: Vec::with_capacity(cells as usize), length_ns: u64::MAX }
    }

    /// Records that an operation finished now. Operations after the end are not part of the run.
    #[inline]
    pub fn finished(&mut self, now_ns: u64) {
        if now_ns >= self.length_ns {
            return;
        }
        let at = (now_ns / CELL_NS) as usize;
        if at >= self.cells.len() {
            self.cells.resize(at + 1, EMPTY);
        }
        let (cell, within) = (&mut self.cells[at], (now_ns % CELL_NS) as u32);
        cell.count += 1;
        cell.first = cell.first.min(within);
        cell.last = cell.last.max(within);
    }

    /// Returns the part between two times as a time line of its own that begins at 0. The times are rounded down to
    /// cells.
    #[must_use]
    pub fn part(&self, from_ns: u64, to_ns: u64) -> Self {
        let [from, to] = [from_ns, to_ns].map(|ns| (ns / CELL_NS) as usize);
        let length = to.saturating_sub(from);
        let there = self.cells.get(from.min(self.cells.len())..to.min(self.cells.len())).unwrap_or_default();
        let mut cells = there.to_vec();
        cells.resize(length, EMPTY);
        Self { cells, length_ns: length as u64 * CELL_NS }
    }

    /// Returns its length in nanoseconds.
    pub fn length_ns(&self) -> u64 {
        self.length_ns
    }

    /// Merges another time line.
    pub fn add(&mut self, other: &Self) {
        if other.cells.len() > self.cells.len() && self.length_ns == u64::MAX {
            self.cells.resize(other.cells.len(), EMPTY);
        }
        debug_assert!(
            self.length_ns == u64::MAX || self.length_ns == other.length_ns,
            "time lines of two lengths are merged, and the rest of one is lost"
        );
        for (mine, theirs) in self.cells.iter_mut().zip(&other.cells) {
            mine.count += theirs.count;
            mine.first = mine.first.min(theirs.first);
            mine.last = mine.last.max(theirs.last);
        }
    }

    /// Returns the number of operations that finished.
    pub fn count(&self) -> u64 {
        self.cells.iter().map(|c| u64::from(c.count)).sum()
    }

    /// Returns the number of operations that finished between two times, in whole cells.
    pub fn count_within(&self, from_ns: u64, to_ns: u64) -> u64 {
        let cell = |ns: u64| ((ns / CELL_NS) as usize).min(self.cells.len());
        self.cells[cell(from_ns)..cell(to_ns).max(cell(from_ns))].iter().map(|c| u64::from(c.count)).sum()
    }

    /// Returns the operations per second in each interval of length `interval`.
    pub fn rates(&self, interval: Duration) -> Vec<f64> {
        let cells = (interval.as_nanos() as u64 / CELL_NS).max(1) as usize;
        let per_second = |part: &[Cell]| {
            let seconds = (part.len() as u64 * CELL_NS) as f64 / 1e9;
            part.iter().map(|c| f64::from(c.count)).sum::<f64>() / seconds
        };
        self.cells.chunks(cells).map(per_second).collect()
    }

    /// Returns every interval in which nothing finished, from the start of the run to its end.
    fn gaps(&self) -> impl Iterator<Item = Gap> {
        let mut last = 0;
        let ends = self.cells.iter().enumerate().filter(|(_, c)| c.count > 0).map(|(at, c)| {
            let start = at as u64 * CELL_NS;
            (start + u64::from(c.first), start + u64::from(c.last))
        });
        ends.chain([(self.length_ns, self.length_ns)]).map(move |(first, next)| {
            let gap = Gap { from_ns: last, length_ns: first.saturating_sub(last) };
            last = next;
            gap
        })
    }

    /// Returns the longest gap.
    pub fn longest_gap(&self) -> Gap {
        self.gaps().max_by_key(|g| g.length_ns).unwrap_or_default()
    }

    /// Returns the longest gap that overlaps an interval.
    pub fn longest_gap_within(&self, from_ns: u64, to_ns: u64) -> Gap {
        let overlaps = |g: &Gap| g.from_ns < to_ns && g.from_ns + g.length_ns > from_ns;
        self.gaps().filter(overlaps).max_by_key(|g| g.length_ns).unwrap_or_default()
    }

    /// Returns the longest gap that begins in each interval of length `interval`, in nanoseconds.
    pub fn gap_per(&self, interval: Duration) -> Vec<f64> {
        let interval_ns = interval.as_nanos() as u64;
        let mut longest = vec![0.0; self.length_ns.div_ceil(interval_ns) as usize];
        for gap in self.gaps() {
            if let Some(at) = longest.get_mut((gap.from_ns / interval_ns) as usize) {
                *at = f64::max(*at, gap.length_ns as f64);
            }
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_gap_is_where_no_thread_finished() {
        let mut one = Timeline::new(Duration::from_millis(100));
        let mut two = one.clone();
        (0..100).filter(|ms| !(20..40).contains(ms)).for_each(|ms| one.finished(ms * MS));
        (0..100).filter(|ms| !(30..50).contains(ms)).for_each(|ms| two.finished(ms * MS + 7));
        one.add(&two);
        assert_eq!(one.count(), 160);
        assert_eq!(one.longest_gap(), Gap { from_ns: 29 * MS + 7, length_ns: 11 * MS - 7 });
        assert_eq!(one.longest_gap_within(50 * MS, 60 * MS).length_ns, MS - 7);
        assert_eq!(one.count_within(30 * MS, 40 * MS), 0);
    }

    #[test]
    fn the_ends_count_as_gaps() {
        let mut line = Timeline::new(Duration::from_millis(10));
        assert_eq!(line.longest_gap(), Gap { from_ns: 0, length_ns: 10 * MS });
        line.finished(4 * MS);
        line.finished(11 * MS);
        assert_eq!(line.longest_gap(), Gap { from_ns: 4 * MS, length_ns: 6 * MS });
        assert_eq!(line.gap_per(Duration::from_millis(5)), [6e6, 0.0]);
    }

    #[test]
    fn a_line_grows_until_its_end_is_known() {
        let mut one = Timeline::growing(Duration::from_millis(50));
        let mut two = Timeline::growing(Duration::ZERO);
        (0..30).for_each(|ms| one.finished(ms * MS));
        (40..90).for_each(|ms| two.finished(ms * MS));
        one.add(&two);
        assert_eq!(one.count(), 80);
        let part = one.part(20 * MS, 50 * MS);
        assert_eq!((part.length_ns(), part.count()), (30 * MS, 20));
        assert_eq!(part.longest_gap(), Gap { from_ns: 9 * MS, length_ns: 11 * MS });
        assert_eq!(one.part(80 * MS, 120 * MS).longest_gap(), Gap { from_ns: 9 * MS, length_ns: 31 * MS });
        assert_eq!(one.part(200 * MS, 210 * MS).longest_gap().length_ns, 10 * MS);
    }

    #[test]
    fn rates_are_per_second() {
        let mut line = Timeline::new(Duration::from_millis(200));
        (0..100).for_each(|ms| line.finished(ms * MS));
        assert_eq!(line.rates(Duration::from_millis(100)), [1000.0, 0.0]);
    }
}
