//! Small multiples: panels on one scale, beside and below each other.
//!
//! **Purpose.** Systems are compared by eye when each has a panel of its own and all have the same axes.
//!
//! **Invariants.** All panels of a drawing have the same height and width.
//!
//! **May touch.** What `draw` may touch.

use windfall_measure::svg::{Drawing, Panel, Scale, Width};

/// What a panel needs above for its heading, and below for its axis; the last also has a unit.
const ABOVE: f64 = 34.0;
const BELOW: f64 = 26.0;
const UNIT: f64 = 14.0;
/// What the labels of the left axis need.
const LEFT: f64 = 58.0;
/// The most points of a line: more than these cannot be seen.
const POINTS: usize = 420;

/// What stands below a panel.
#[derive(Debug)]
pub enum Bottom {
    /// Numbers, said so.
    Numbers(fn(f64) -> String),
    /// Names at 0, 1, 2 and so on.
    Names(Vec<String>),
}

/// A panel.
pub struct Cell<'a> {
    /// What stands above it.
    pub heading: String,
    /// Its bottom scale.
    pub x: Scale,
    /// Its left scale.
    pub y: Scale,
    /// What is in it.
    pub draw: Box<dyn Fn(&mut Panel) + 'a>,
}

/// Panels beside and below each other.
pub struct Multiples<'a> {
    /// What it is, for those who cannot see it.
    pub about: &'a str,
    /// How many stand beside each other, on a wide and on a narrow screen.
    pub columns: [usize; 2],
    /// How high each is.
    pub height: f64,
    /// What is kept free on the right of each.
    pub right: f64,
    /// The labels of the left axis.
    pub left_label: fn(f64) -> String,
    /// The labels of the bottom axis.
    pub bottom: Bottom,
    /// Its unit.
    pub unit: &'a str,
}

impl Multiples<'_> {
    /// The drawings.
    pub fn draw(&self, cells: &[Cell<'_>]) -> [Drawing; 2] {
        [(Width::Wide, self.columns[0]), (Width::Narrow, self.columns[1])].map(|(width, columns)| {
            let each = width.units() / columns as f64;
            let mut panels = Vec::new();
            let mut end = 0.0_f64;
            for (n, cell) in cells.iter().enumerate() {
                let (row, column) = ((n / columns) as f64, (n % columns) as f64);
                let top = ABOVE + row * (ABOVE + self.height + BELOW);
                let sides = (column * each + LEFT, (column + 1.0) * each - self.right);
                let mut panel = Panel::within(sides, top, self.height, cell.x, cell.y);
                // On a narrow screen a heading may need the whole width.
                let from = if columns == 1 && width == Width::Narrow { 4.0 } else { sides.0 };
                panel.text(from, top - 13.0, "start", "head", fitting(&cell.heading, sides.1 + 10.0 - from));
                panel.left_axis(self.left_label);
                (cell.draw)(&mut panel);
                match &self.bottom {
                    Bottom::Numbers(label) => panel.bottom_axis("", label),
                    Bottom::Names(names) => {
                        panel.bottom_labels("", (0..).map(f64::from).zip(names.iter().cloned()));
                    }
                }
                end = end.max(panel.bottom() + BELOW);
                if n + 1 == cells.len() {
                    // Once for all, where there is room for it.
                    let right = columns.min(cells.len()) as f64 * each - self.right;
                    panel.text(right, end + 6.0, "end", "tick", self.unit);
                }
                panels.push(panel);
            }
            Drawing::new(width, end + UNIT, self.about, panels)
        })
    }
}

/// A heading, without what stands behind its colon if there is no room for it.
fn fitting(heading: &str, room: f64) -> &str {
    // About as wide as it will be drawn.
    let width = heading.chars().count() as f64 * 7.5;
    heading.split_once(": ").filter(|_| width > room).map_or(heading, |(name, _)| name)
}

/// Fewer values, each made of several, with the length of a stretch among them.
pub fn thinned(values: &[f64], stretch_s: f64, join: fn(&[f64]) -> f64) -> (Vec<f64>, f64) {
    let each = values.len().div_ceil(POINTS).max(1);
    (values.chunks(each).map(join).collect(), stretch_s * each as f64)
}

/// Values of stretches of time as a line of steps.
fn steps(values: &[f64], from_s: f64, stretch_s: f64) -> impl Iterator<Item = (f64, f64)> {
    values.iter().enumerate().flat_map(move |(n, &v)| {
        let at = from_s + n as f64 * stretch_s;
        [(at, v), (at + stretch_s, v)]
    })
}

/// Values of stretches of time, with the area below them.
pub fn curve(panel: &mut Panel, class: &str, values: &[f64], from_s: f64, stretch_s: f64) {
    if values.is_empty() {
        return;
    }
    let points: Vec<_> = steps(values, from_s, stretch_s).map(|(x, y)| (x, 0.0, y)).collect();
    panel.area(&format!("fill own {class}"), &points);
    panel.line(&format!("line own plain {class}"), steps(values, from_s, stretch_s));
}

/// The lowest values, where [`curve`] has means.
pub fn lowest(panel: &mut Panel, class: &str, values: &[f64], stretch_s: f64) {
    panel.line(&format!("line own low {class}"), steps(values, 0.0, stretch_s));
}
