//! Small multiples: panels on one scale, in rows and columns.
//!
//! **Purpose.** Systems are easy to compare by eye when each has its own panel and all have the same axes. All panels
//! of a drawing have the same height and width.

use windfall_measure::svg::{Drawing, Panel, Scale, Width};

/// The height above a panel for its heading, and below it for its axis; the last one also has a unit.
const ABOVE: f64 = 34.0;
const BELOW: f64 = 26.0;
const UNIT: f64 = 14.0;
/// The width for the labels of the left axis.
const LEFT: f64 = 58.0;
/// The maximum number of points of a line: more cannot be seen.
const POINTS: usize = 420;

/// The labels below a panel.
#[derive(Debug)]
pub(crate) enum Bottom {
    /// Numbers, formatted by this function.
    Numbers(fn(f64) -> String),
    /// Names at 0, 1, 2 and so on.
    Names(Vec<String>),
}

/// A panel.
pub(crate) struct Cell<'a> {
    /// The heading.
    pub heading: String,
    /// The scale of the bottom axis.
    pub x: Scale,
    /// The scale of the left axis.
    pub y: Scale,
    /// Draws the contents.
    pub draw: Box<dyn Fn(&mut Panel) + 'a>,
}

/// Panels in rows and columns.
pub(crate) struct Multiples<'a> {
    /// The text alternative of the drawing.
    pub about: &'a str,
    /// The number of panels per row, on a wide and on a narrow screen.
    pub columns: [usize; 2],
    /// The height of each panel.
    pub height: f64,
    /// The margin on the right of each panel.
    pub right: f64,
    /// The labels of the left axis.
    pub left_label: fn(f64) -> String,
    /// The labels of the bottom axis.
    pub bottom: Bottom,
    /// The unit of the bottom axis.
    pub unit: &'a str,
}

impl Multiples<'_> {
    /// Returns the drawings for both screens.
    pub(crate) fn draw(&self, cells: &[Cell<'_>]) -> [Drawing; 2] {
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
                    // Only once, where it fits.
                    let right = columns.min(cells.len()) as f64 * each - self.right;
                    panel.text(right, end + 6.0, "end", "tick", self.unit);
                }
                panels.push(panel);
            }
            Drawing::new(width, end + UNIT, self.about, panels)
        })
    }
}

/// Returns the heading, without the part after its colon if the whole does not fit.
fn fitting(heading: &str, room: f64) -> &str {
    // The approximate width of the drawn text.
    let width = heading.chars().count() as f64 * 7.5;
    heading.split_once(": ").filter(|_| width > room).map_or(heading, |(name, _)| name)
}

/// Joins several values into one, and returns the new values with the length of their interval.
pub(crate) fn thinned(values: &[f64], interval_s: f64, join: fn(&[f64]) -> f64) -> (Vec<f64>, f64) {
    let each = values.len().div_ceil(POINTS).max(1);
    (values.chunks(each).map(join).collect(), interval_s * each as f64)
}

/// Returns the values of intervals of time as a step line.
fn steps(values: &[f64], from_s: f64, interval_s: f64) -> impl Iterator<Item = (f64, f64)> {
    values.iter().enumerate().flat_map(move |(n, &v)| {
        let at = from_s + n as f64 * interval_s;
        [(at, v), (at + interval_s, v)]
    })
}

/// Draws the values of intervals of time, with the area below them.
pub(crate) fn curve(panel: &mut Panel, class: &str, values: &[f64], from_s: f64, interval_s: f64) {
    if values.is_empty() {
        return;
    }
    let points: Vec<_> = steps(values, from_s, interval_s).map(|(x, y)| (x, 0.0, y)).collect();
    panel.area(&format!("fill own {class}"), &points);
    panel.line(&format!("line own plain {class}"), steps(values, from_s, interval_s));
}

/// Draws the minimum values, where [`curve`] draws means.
pub(crate) fn lowest(panel: &mut Panel, class: &str, values: &[f64], interval_s: f64) {
    panel.line(&format!("line own low {class}"), steps(values, 0.0, interval_s));
}
