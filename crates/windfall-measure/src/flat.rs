//! The factors on which the cost of a statement must not depend.
//!
//! **Purpose.** A statement is measured in three situations: with little of a factor, with much of it in another table,
//! and with much of it in its own table, all else equal. This module has the figures of the three, their ratios, the
//! delays of other clients meanwhile, and the tables of the report.
//!
//! **Invariants.** [`Figure::of_all`] defines how the samples of a side become one number (test:
//! `one_number_stands_for_all`). A value below one counts as zero (test: `a_ratio_to_nothing_is_more_than_one`). A
//! ratio to zero is the other value plus one: from 0 to 3 is fourfold, and from 0 to 1 is more than from 1 to 1 (test:
//! `a_ratio_to_nothing_is_more_than_one`).
//!
//! **Method.** A ratio compares two numbers that one process measured alternately. A cost that is proportional to the
//! trees or tables of a statement is divided by their number, which [`Factor::per`] names.

use serde::{Deserialize, Serialize};

use crate::{
    Grid, median, p_value,
    units::{count, short, time, times},
};

/// The largest ratio of two costs that counts as flat.
pub const FLAT: f64 = 1.10;
/// The largest flat ratio of times where another table has much of the factor. Instructions, system calls and page
/// faults stay the same there, so the rest is the share of the working set that is in the processor's caches.
pub const FLAT_TIME_BESIDE: f64 = 1.20;

/// A quantity that is measured of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Instructions in user space.
    Instructions,
    /// System calls, except writes and syncs of the log and calls that wake a background thread.
    SystemCalls,
    /// Calls for files and for memory mappings, except those for the log, as the engine counts them.
    Calls,
    /// Number of times that the thread slept until another one woke it. A statement may meet a background thread that
    /// was preempted while it held a mutex; so the mean of many statements is taken.
    Waits,
    /// Page faults.
    PageFaults,
    /// Work that the engine counts itself: frames, latches, list entries, locks, files, waits.
    Work,
    /// Allocation calls.
    Allocations,
    /// Bytes allocated.
    #[serde(rename = "bytes-allocated")]
    Allocated,
    /// Deallocation calls.
    Frees,
    /// Bytes freed.
    #[serde(rename = "bytes-freed")]
    Freed,
    /// Wall-clock time, in nanoseconds.
    Time,
    /// Processor time of the thread, in user space and in the kernel, in nanoseconds.
    ThreadTime,
}

impl Figure {
    /// All figures.
    pub const ALL: [Self; 12] = [
        Self::Instructions,
        Self::SystemCalls,
        Self::Calls,
        Self::Waits,
        Self::PageFaults,
        Self::Work,
        Self::Allocations,
        Self::Allocated,
        Self::Frees,
        Self::Freed,
        Self::Time,
        Self::ThreadTime,
    ];

    /// Returns its name.
    pub fn text(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::SystemCalls => "system-calls",
            Self::Calls => "calls",
            Self::Waits => "waits",
            Self::PageFaults => "page-faults",
            Self::Work => "work",
            Self::Allocations => "allocations",
            Self::Allocated => "bytes-allocated",
            Self::Frees => "frees",
            Self::Freed => "bytes-freed",
            Self::Time => "time",
            Self::ThreadTime => "thread-time",
        }
    }

    /// Returns whether it is a count, and so does not depend on the load of the machine.
    pub fn is_count(self) -> bool {
        !matches!(self, Self::Time | Self::ThreadTime)
    }

    /// Returns whether every statement must have none of it; then the maximum counts, not the median.
    pub fn must_be_zero(self) -> bool {
        matches!(self, Self::SystemCalls | Self::Calls)
    }

    /// Reduces all samples of one side to one number: the maximum of what must be zero, the mean of rare events, the
    /// mean of the smaller half of times, the median of other counts. The larger half of times contains the delays by
    /// other threads and by the machine: of 42 times of 3 µs each, the medians of two equal sides differ by 4 to 11 %
    /// (standard error), these means by 2 to 5 %. A cost that only some statements have is in the larger half;
    /// [`Statement::p_value`] tests all times.
    ///
    /// Instructions are treated as times if the statement `requests_memory`: the larger half contains the work of the
    /// allocator on its lists. A truncation takes 9,700 instructions and up to 5,000 more for its 11 requests, with
    /// little as with much. A cost that less than half of such statements have does not show in their instructions, and
    /// one that more than half of them have shows in part.
    pub fn of_all(self, values: &[f64], requests_memory: bool) -> f64 {
        match self {
            Self::Waits => mean(values),
            Self::Time | Self::ThreadTime => mean_of_smaller_half(values),
            Self::Instructions if requests_memory => mean_of_smaller_half(values),
            _ if self.must_be_zero() => largest(values),
            _ => median(values),
        }
    }

    /// Returns whether the figure is divided by the number of trees or tables if the factor has a [`Factor::per`].
    pub fn is_divided(self) -> bool {
        !self.must_be_zero() && self != Self::Waits
    }
}

/// A figure in the three situations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The quantity.
    pub figure: Figure,
    /// With the small amount in its table, and nothing more in the database.
    pub alone: f64,
    /// With the small amount in its table and the large amount in another one.
    pub small: f64,
    /// With the large amount in its table and the small amount in another one.
    pub large: f64,
}

impl Cost {
    /// Returns the ratio of much to little in its own table. A count is compared with [`Self::alone`], a time with
    /// [`Self::small`], because the same work precedes both there.
    pub fn ratio(&self) -> f64 {
        growth(if self.figure.is_count() { self.alone } else { self.small }, self.large)
    }

    /// Returns the ratio of much to little in another table.
    pub fn other_ratio(&self) -> f64 {
        growth(self.alone, self.small)
    }

    /// Returns the largest of the three values.
    pub fn largest(&self) -> f64 {
        largest(&[self.alone, self.small, self.large])
    }
}

/// The largest allowed ratios of a figure: with much in the table, and with much in another one.
pub type Bounds = [f64; 2];

/// One of the two ratios of a cost.
pub type Ratio = fn(&Cost) -> f64;

fn growth(from: f64, to: f64) -> f64 {
    match (from < 1.0, to < 1.0) {
        (true, true) => 1.0,
        (true, false) => to + 1.0,
        (false, _) => to.max(1.0) / from,
    }
}

/// The costs of a statement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Statement {
    /// The name of the statement.
    pub name: String,
    /// Number of statements that were timed and counted on each of the three sides.
    pub timed: u32,
    /// Number of statements that were single-stepped to count instructions.
    pub stepped: u32,
    /// The costs, in the order of [`Figure::ALL`]; without instructions if no statement was single-stepped.
    pub costs: Vec<Cost>,
    /// The time of each statement in nanoseconds, on the side with less of the factor and on the one with more: with
    /// much in another table and with much in its own, or alone and with much around it
    /// ([`Factor::is_around`]). Per tree or table where the costs are.
    pub times: [Vec<f64>; 2],
}

impl Statement {
    /// Returns the cost in one figure.
    pub fn cost(&self, figure: Figure) -> Option<Cost> {
        self.costs.iter().copied().find(|cost| cost.figure == figure)
    }

    /// Returns the probability that the times on the side with more are this much longer by chance, if their true ratio
    /// to those on the side with less is `times`.
    pub fn p_value(&self, times: f64) -> f64 {
        let [less, more] = &self.times;
        let allowed: Vec<f64> = less.iter().map(|time| time * times).collect();
        p_value(&allowed, more)
    }
}

/// The longest gaps, in nanoseconds, in which clients of another table finished no operation: one per time window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gaps {
    /// In windows without a drop, in which other threads use the same processor time.
    pub without: Vec<f64>,
    /// In windows that begin with a drop.
    pub with: Vec<f64>,
}

impl Gaps {
    /// Appends the windows of `other`.
    pub fn add(&mut self, other: &Self) {
        self.without.extend(&other.without);
        self.with.extend(&other.with);
    }

    /// Returns the longer gap of each window, of these and of those of other clients in the same windows.
    #[must_use]
    pub fn longer(&self, other: &Self) -> Self {
        debug_assert_eq!(
            (self.without.len(), self.with.len()),
            (other.without.len(), other.with.len()),
            "the gaps are not those of the same windows"
        );
        let longer = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a.max(*b)).collect();
        Self { without: longer(&self.without, &other.without), with: longer(&self.with, &other.with) }
    }

    /// Returns the probability that the gaps with a drop are this much longer by chance.
    pub fn p_value(&self) -> f64 {
        p_value(&self.without, &self.with)
    }
}

/// The effect of drops with much of the factor on other clients.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Others {
    /// Gaps of the readers of another table.
    pub readers: Gaps,
    /// Gaps of the writers of another table.
    pub writers: Gaps,
    /// Number of waits of these clients for something that a dropping thread held, if they were counted.
    pub waits_on_drops: Option<u64>,
    /// Processor time of a drop and of the background work in the window that begins with it, in nanoseconds.
    pub drop_ns: u64,
}

/// Something that exists in a table or around it, and the costs of statements with little and with much of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Factor {
    /// The short name of the factor.
    pub id: String,
    /// A description of what is varied.
    pub what: String,
    /// The two amounts in words: little, and much.
    pub amounts: [String; 2],
    /// The unit that costs are divided by, such as each tree or each table; none for the whole statement.
    pub per: Option<String>,
    /// Whether it exists around the table and never in it: then both sides with much have the same amount of it.
    pub is_around: bool,
    /// The figures that cannot be flat, each with the largest allowed ratios with much in the table and with much in
    /// another one, and the reason.
    pub grows: Option<(Vec<(Figure, Bounds)>, String)>,
    /// Evidence that the factor was present in each round, as the engine or the system counts it: the maximum with
    /// little and nothing more in the database, and the minimum with much.
    pub seen: Option<(String, [u64; 2])>,
    /// The statements.
    pub statements: Vec<Statement>,
    /// The effect on other clients.
    pub others: Others,
}

impl Factor {
    /// Returns the ways in which a figure can grow: a name, the ratio, and the largest allowed ratio.
    pub fn growths(&self, figure: Figure) -> Vec<(&'static str, Ratio, f64)> {
        let usual = [FLAT, if figure.is_count() { FLAT } else { FLAT_TIME_BESIDE }];
        let [in_table, beside] = self.own_bounds(figure).unwrap_or(usual);
        let in_table: (_, Ratio, _) = ("", Cost::ratio, in_table);
        let beside: (_, Ratio, _) = ("-beside", Cost::other_ratio, beside);
        if self.is_around { vec![beside] } else { vec![in_table, beside] }
    }

    /// Returns the largest allowed ratios of a figure that cannot be flat, with much in the table and with much in
    /// another one.
    pub fn own_bounds(&self, figure: Figure) -> Option<Bounds> {
        let (figures, _) = self.grows.as_ref()?;
        figures.iter().find(|(grows, _)| *grows == figure).map(|(_, bounds)| *bounds)
    }

    /// Returns the largest ratio that the times of the side with more may have to those of the side with less.
    pub fn time_bound(&self) -> f64 {
        let [in_table, beside] = self.own_bounds(Figure::Time).unwrap_or([FLAT, FLAT_TIME_BESIDE]);
        if self.is_around { beside } else { in_table }
    }

    /// Returns the total waits per side of each statement, and the number of statements on a side.
    pub fn waits(&self) -> impl Iterator<Item = ([f64; 3], f64)> {
        self.statements.iter().map(|statement| {
            let timed = f64::from(statement.timed);
            let means =
                statement.cost(Figure::Waits).map_or([0.0; 3], |cost| [cost.alone, cost.small, cost.large]);
            (means.map(|mean| mean * timed), timed)
        })
    }

    /// Returns the ratio that tables show for a cost.
    pub fn shown(&self, cost: &Cost) -> f64 {
        if self.is_around { cost.other_ratio() } else { cost.ratio() }
    }

    /// Returns the largest ratio of a figure over its statements.
    pub fn most(&self, figure: Figure, of: Ratio) -> Option<f64> {
        let costs = self.statements.iter().filter_map(|statement| statement.cost(figure));
        costs.map(|cost| of(&cost)).max_by(f64::total_cmp)
    }
}

/// Figures that the table of costs shows, each with its ratio.
const SHOWN: [(Figure, &str); 5] = [
    (Figure::Instructions, ">instr."),
    (Figure::Allocated, ">alloc. B"),
    (Figure::Freed, ">freed B"),
    (Figure::Work, ">work"),
    (Figure::Time, ">time"),
];

/// The headings of the first columns.
const HEADS: [&str; 4] = ["factor", ">from", ">to", "statement"];

/// Returns the first cells of a line for each factor and statement; the factor is only in its first line.
fn lines(factors: &[Factor]) -> impl Iterator<Item = (Vec<String>, &Factor, &Statement)> {
    factors.iter().flat_map(|factor| {
        factor.statements.iter().enumerate().map(move |(n, statement)| {
            let of_factor = [&factor.id, &factor.amounts[0], &factor.amounts[1]];
            let mut line = of_factor.map(|text| if n == 0 { text.clone() } else { String::new() }).to_vec();
            line.push(statement.name.clone());
            (line, factor, statement)
        })
    })
}

/// Returns the table of costs: a line per factor and statement, with the figures for much of the factor and their
/// ratios.
pub fn costs(factors: &[Factor]) -> Grid {
    let shown = SHOWN.iter().flat_map(|(_, head)| [*head, ">"]);
    let mut grid = Grid::new(HEADS.into_iter().chain(shown).chain([">calls", ">time beside"]));
    for (mut line, factor, statement) in lines(factors) {
        for (figure, _) in SHOWN {
            let cost = statement.cost(figure);
            line.push(cost.map_or_else(|| "-".into(), |cost| value(figure, cost.large)));
            line.push(cost.map_or_else(|| "-".into(), |cost| times(factor.shown(&cost))));
        }
        let calls = statement.cost(Figure::SystemCalls);
        line.push(calls.map_or_else(|| "-".into(), |cost| value(Figure::SystemCalls, cost.large)));
        line.push(statement.cost(Figure::Time).map_or_else(|| "-".into(), |cost| times(cost.other_ratio())));
        grid.line(line);
    }
    grid
}

/// Returns the table of ratios: a line per factor and statement that fits the terminal. Of figures that belong together
/// the largest ratio is shown.
pub fn ratios(factors: &[Factor]) -> Grid {
    const TOGETHER: [(&[Figure], &str); 4] = [
        (&[Figure::Instructions], ">instr."),
        (&[Figure::SystemCalls, Figure::Calls, Figure::Waits, Figure::PageFaults, Figure::Work], ">counts"),
        (&[Figure::Allocations, Figure::Allocated, Figure::Frees, Figure::Freed], ">memory"),
        (&[Figure::Time, Figure::ThreadTime], ">time"),
    ];
    let mut grid = Grid::new(HEADS.into_iter().chain(TOGETHER.map(|(_, head)| head)).chain([">takes"]));
    for (mut line, factor, statement) in lines(factors) {
        for (figures, _) in TOGETHER {
            let costs = figures.iter().filter_map(|figure| statement.cost(*figure));
            let most = costs.map(|cost| factor.shown(&cost)).max_by(f64::total_cmp);
            line.push(most.map_or_else(|| "-".into(), times));
        }
        line.push(statement.cost(Figure::Time).map_or_else(|| "-".into(), |cost| time(cost.large)));
        grid.line(line);
    }
    grid
}

/// Formats a value of a figure.
pub fn value(figure: Figure, value: f64) -> String {
    match figure {
        Figure::Time | Figure::ThreadTime => time(value),
        _ if value >= 100.0 || value.fract() == 0.0 => count(value.round() as u64),
        _ => short(value),
    }
}

/// The headings of the table of effects on other clients, without the first, which is the factor.
pub const EFFECTS: [&str; 9] = [
    ">windows",
    ">readers",
    ">with drop",
    ">longest",
    ">writers",
    ">with drop",
    ">longest",
    ">waits",
    ">drop takes",
];

/// Returns the effects of drops with much of the factor on other clients, in the order of [`EFFECTS`]: the median of
/// the longest gaps, the same in windows with a drop, and the longest of these.
pub fn effects_of(factor: &Factor) -> Option<Vec<String>> {
    let Others { readers, writers, waits_on_drops, drop_ns } = &factor.others;
    if readers.with.is_empty() {
        return None;
    }
    let of = |gaps: &Gaps| [median(&gaps.without), median(&gaps.with), largest(&gaps.with)].map(time);
    let mut cells = vec![count(readers.with.len() as u64)];
    cells.extend(of(readers).into_iter().chain(of(writers)));
    cells.extend([waits_on_drops.map_or_else(|| "-".into(), count), time(*drop_ns as f64)]);
    Some(cells)
}

/// Returns the table of effects on other clients: a line per factor.
pub fn effects_on_clients(factors: &[Factor]) -> Grid {
    let mut grid = Grid::new(["factor"].into_iter().chain(EFFECTS));
    for factor in factors {
        if let Some(cells) = effects_of(factor) {
            grid.line([factor.id.clone()].into_iter().chain(cells));
        }
    }
    grid
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn mean_of_smaller_half(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    mean(&values[..values.len().div_ceil(2)])
}

/// Returns the largest of some non-negative figures; zero if there are none.
pub fn largest(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(0.0, f64::max)
}

/// Returns the windows of all factors together: those of readers and those of writers. The load is the same with each
/// factor.
pub fn together(factors: &[Factor]) -> [Gaps; 2] {
    let mut all = [Gaps::default(), Gaps::default()];
    for factor in factors {
        all[0].add(&factor.others.readers);
        all[1].add(&factor.others.writers);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factor() -> Factor {
        let cost = |figure, small, large| Cost { figure, alone: small / 2.0, small, large };
        let times = [vec![10.0; 9], vec![12.0; 9]];
        let statement = |name: &str, costs| Statement {
            name: name.into(),
            timed: 9,
            stepped: 1,
            costs,
            times: times.clone(),
        };
        Factor {
            id: "rows".into(),
            what: "rows of the table".into(),
            amounts: ["1".into(), "1,000".into()],
            per: None,
            is_around: false,
            grows: None,
            seen: None,
            statements: vec![
                statement("drop", vec![cost(Figure::Instructions, 1000.0, 1010.0)]),
                statement("truncate", vec![cost(Figure::Instructions, 1000.0, 1500.0)]),
            ],
            others: Others {
                readers: Gaps { without: vec![1e5; 9], with: vec![1e5; 9] },
                writers: Gaps { without: vec![1e5; 9], with: vec![2e5; 9] },
                waits_on_drops: Some(2),
                drop_ns: 3_000,
            },
        }
    }

    #[test]
    fn a_ratio_to_nothing_is_more_than_one() {
        assert_eq!(
            [growth(0.0, 0.0), growth(0.0, 0.9), growth(0.0, 1.0), growth(0.0, 3.0)],
            [1.0, 1.0, 2.0, 4.0]
        );
        assert_eq!([growth(2.0, 3.0), growth(4.0, 0.0), growth(1.0, 1.0)], [1.5, 0.25, 1.0]);
        let most =
            |figure| [Cost::ratio, Cost::other_ratio, Cost::largest].map(|of| factor().most(figure, of));
        assert_eq!(most(Figure::Instructions), [Some(3.0), Some(2.0), Some(1500.0)]);
        assert_eq!(most(Figure::Time), [None; 3]);
        let time = Cost { figure: Figure::Time, alone: 1.0, small: 2.0, large: 3.0 };
        assert_eq!(time.ratio(), 1.5);
        let grows = Factor { grows: Some((vec![(Figure::Work, [2.0, 3.0])], "so it is".into())), ..factor() };
        let bounds = |factor: &Factor, figure| {
            factor.growths(figure).into_iter().map(|(_, _, bound)| bound).collect::<Vec<_>>()
        };
        assert_eq!(bounds(&grows, Figure::Work), [2.0, 3.0]);
        assert_eq!(
            [factor().time_bound(), Factor { is_around: true, ..factor() }.time_bound()],
            [FLAT, FLAT_TIME_BESIDE]
        );
        assert_eq!(bounds(&factor(), Figure::Work), [FLAT; 2]);
        assert_eq!(bounds(&factor(), Figure::Time), [FLAT, FLAT_TIME_BESIDE]);
        assert_eq!(bounds(&Factor { is_around: true, ..factor() }, Figure::Work), [FLAT]);
    }

    #[test]
    fn one_number_stands_for_all() {
        let of_all = |figure: Figure| figure.of_all(&[9.0, 1.0, 2.0, 90.0, 3.0], false);
        assert_eq!(of_all(Figure::Work), 3.0);
        assert_eq!(of_all(Figure::Calls), 90.0);
        assert_eq!(of_all(Figure::Waits), 21.0);
        assert_eq!(of_all(Figure::Time), 2.0);
        assert_eq!(of_all(Figure::Instructions), 3.0);
        assert_eq!(Figure::Instructions.of_all(&[9.0, 1.0, 2.0, 90.0, 3.0], true), 2.0);
        // The median shows a cost that more than half of the statements have.
        assert_eq!(Figure::Instructions.of_all(&[1.0, 5.0, 1.0, 5.0, 5.0], false), 5.0);
        assert_eq!(Figure::Time.of_all(&[4.0, 2.0], false), 2.0);
    }

    #[test]
    fn times_may_be_so_many_times_as_long() {
        let statement = &factor().statements[0];
        assert!(statement.p_value(1.1) < 0.001 && statement.p_value(1.3) > 0.99);
        let gaps = |with: &[f64]| Gaps { without: vec![1.0; 2], with: with.to_vec() };
        assert_eq!(gaps(&[1.0, 4.0]).longer(&gaps(&[2.0, 3.0])), gaps(&[2.0, 4.0]));
        let cost = Cost { figure: Figure::Waits, alone: 0.0, small: 1.0, large: 2.0 };
        let waits =
            Factor { statements: vec![Statement { costs: vec![cost], ..statement.clone() }], ..factor() };
        assert_eq!(waits.waits().collect::<Vec<_>>(), [([0.0, 9.0, 18.0], 9.0)]);
    }

    #[test]
    fn the_tables_have_a_line_for_each() {
        let all = [factor(), factor()];
        let text = costs(&all).text();
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(text.contains("2.02×") && text.contains("3.00×"), "{text}");
        let text = ratios(&all).text();
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(text.contains("3.00×") && text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let text = effects_on_clients(&all).text();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("200 µs") && text.trim_end().ends_with("3.00 µs"), "{text}");
        let [readers, writers] = together(&all);
        assert_eq!((readers.with.len(), writers.without.len()), (18, 18));
        assert!(readers.p_value() > 0.4 && writers.p_value() < 0.001);
    }
}
