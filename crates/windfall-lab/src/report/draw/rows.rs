//! Rows of marks along one scale.
//!
//! **Purpose.** A line per system, with its marks at their values and its figures at the end: like a bar chart, but
//! with more than one value per system. The figures are in a separate column, so that nothing is drawn over them.

use windfall_measure::svg::{Drawing, Panel, Scale, Shape, Width};

/// The width for names and for figures on a wide screen.
const NAMES: f64 = 186.0;
const NOTES: f64 = 208.0;
/// The height of a line, of a line below its name, and of a heading.
const LINE: f64 = 25.0;
const LINE_BELOW: f64 = 42.0;
const HEAD: f64 = 30.0;

/// A mark.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    /// The value of the mark.
    pub value: f64,
    /// The shape of the mark.
    pub shape: Shape,
    /// The CSS classes of the mark.
    pub class: String,
    /// The tooltip.
    pub hint: String,
}

/// A line, or a heading between lines.
#[derive(Clone, Debug)]
pub(crate) enum Row {
    /// A heading.
    Head(String),
    /// A line.
    Line {
        /// The name of the line.
        name: String,
        /// The class of its colour.
        class: String,
        /// The marks of the line.
        marks: Vec<Mark>,
        /// The figures of the line.
        note: String,
    },
}

/// Rows.
#[derive(Debug)]
pub(crate) struct Rows<'a> {
    /// The text alternative of the drawing.
    pub about: &'a str,
    /// The scale.
    pub scale: Scale,
    /// The labels of the scale.
    pub label: fn(f64) -> String,
    /// The unit of the scale.
    pub unit: &'a str,
    /// The value of a line through all rows, from which stems are drawn to the marks; without it, from the left edge.
    pub from: Option<f64>,
    /// Whether stems only join the marks of a row to each other.
    pub between: bool,
}

impl Rows<'_> {
    /// Returns the drawings for both screens.
    pub(crate) fn draw(&self, rows: &[Row]) -> [Drawing; 2] {
        [Width::Wide, Width::Narrow].map(|width| {
            let wide = width == Width::Wide;
            let line = if wide { LINE } else { LINE_BELOW };
            let height: f64 = rows.iter().map(|r| if matches!(r, Row::Head(_)) { HEAD } else { line }).sum();
            let (left, right) =
                if wide { (NAMES, width.units() - NOTES) } else { (24.0, width.units() - 28.0) };
            // Rows have their own positions: the left scale of the panel is its height.
            let y = Scale::linear(0.0, height.max(1.0));
            let mut panel = Panel::within((left, right), 6.0, height.max(1.0), self.scale, y);
            panel.bottom_grid();
            if let Some(from) = self.from {
                panel.vertical("one", from, &(self.label)(from));
            }
            let mut top = 6.0;
            for row in rows {
                match row {
                    Row::Head(text) => {
                        let at = if wide { 8.0 } else { 4.0 };
                        panel.text(at, top + 19.0, "start", "group", text);
                        top += HEAD;
                    }
                    Row::Line { name, class, marks, note } => {
                        let middle = if wide { top + line / 2.0 } else { top + line - 12.0 };
                        let text = if wide { middle + 4.0 } else { top + 14.0 };
                        panel.text(if wide { 8.0 } else { 4.0 }, text, "start", "name", name);
                        panel.text(width.units() - 4.0, text, "end", "value", note);
                        self.line(&mut panel, class, marks, middle, height + 6.0);
                        top += line;
                    }
                }
            }
            panel.bottom_axis(self.unit, self.label);
            let end = panel.bottom() + 40.0;
            Drawing::new(width, end, self.about, [panel])
        })
    }

    fn line(&self, panel: &mut Panel, class: &str, marks: &[Mark], middle: f64, bottom: f64) {
        let marks: Vec<&Mark> = marks.iter().filter(|m| m.value.is_finite()).collect();
        let places = || marks.iter().map(|m| panel.place((m.value, 0.0)).0);
        let (first, last) = places().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
        if marks.is_empty() {
            return;
        }
        let start = match self.from {
            _ if self.between => first,
            Some(from) => panel.place((from, 0.0)).0,
            None => panel.place((f64::MIN, 0.0)).0,
        };
        panel.stroke(&format!("stem {class}"), (start.min(first), middle), (start.max(last), middle));
        for mark in marks {
            panel.mark(mark.shape, &mark.class, (mark.value, bottom - middle), &mark.hint);
        }
    }
}
