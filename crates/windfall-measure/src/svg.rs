//! Drawing: scales, axes, lines and areas as SVG text.
//!
//! **Purpose.** The building blocks of the graphs of a report. Colours come from CSS classes alone, so that one drawing
//! fits light and dark backgrounds.
//!
//! **Invariants.** A panel names no colour, whatever is drawn (test: `a_panel_names_no_colour`).

use std::fmt::Write as _;

/// A width of drawings: the text keeps its size, so that it is readable on narrow screens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// Desktop screens.
    Wide,
    /// Telephone screens.
    Narrow,
}

impl Width {
    /// Returns the width in units of the drawing.
    pub fn units(self) -> f64 {
        match self {
            Self::Wide => 880.0,
            Self::Narrow => 360.0,
        }
    }

    /// Returns the approximate number of labels that fit along the bottom.
    fn ticks(self) -> usize {
        match self {
            Self::Wide => 12,
            Self::Narrow => 5,
        }
    }
}

/// A mapping from values to coordinates.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    from: f64,
    to: f64,
    log: bool,
    start: f64,
    end: f64,
}

impl Scale {
    /// Returns a linear scale from one value to another.
    pub fn linear(from: f64, to: f64) -> Self {
        Self { from, to: if to > from { to } else { from + 1.0 }, log: false, start: 0.0, end: 1.0 }
    }

    /// Returns a logarithmic scale, from a power of ten below the least value to one above the greatest.
    pub fn decades(least: f64, greatest: f64) -> Self {
        let from = least.max(1e-3).log10().floor();
        let to = greatest.max(1e-3).log10().ceil().max(from + 1.0);
        Self { from: 10_f64.powf(from), to: 10_f64.powf(to), log: true, start: 0.0, end: 1.0 }
    }

    fn onto(self, start: f64, end: f64) -> Self {
        Self { start, end, ..self }
    }

    /// Returns the coordinate of a value; a value outside the scale is put on the edge.
    pub fn at(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.from) / self.from).log10() / (self.to / self.from).log10()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.start + share.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// Returns round values along the scale.
    fn ticks(&self, about: usize) -> Vec<f64> {
        if self.log {
            let decades = (self.to / self.from).log10().round() as i32;
            return (0..=decades).map(|n| self.from * 10_f64.powi(n)).collect();
        }
        let step = nice_step((self.to - self.from) / about.max(1) as f64);
        let first = (self.from / step).ceil() as i64;
        let last = (self.to / step + 1e-9).floor() as i64;
        (first..=last).map(|n| n as f64 * step).collect()
    }
}

/// Returns the next of 1, 2, 5 times a power of ten.
fn nice_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let head = step / power;
    power * [1.0, 2.0, 5.0, 10.0].into_iter().find(|&n| head <= n + 1e-9).unwrap_or(10.0)
}

/// Returns the least round value that is at least `value`.
pub fn round_up(value: f64) -> f64 {
    let step = nice_step(value.max(1e-9) / 5.0);
    (value / step).ceil() * step
}

/// Escapes text for use between tags and in attributes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A drawing area with two axes.
#[derive(Debug)]
pub struct Panel {
    /// The bottom scale.
    x: Scale,
    /// The left scale.
    y: Scale,
    /// The approximate number of labels that fit along the bottom.
    ticks: usize,
    top: f64,
    bottom: f64,
    body: String,
}

/// The margins of a panel.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;

impl Panel {
    /// Returns a panel from `top`, `height` high.
    pub fn new(width: Width, top: f64, height: f64, x: Scale, y: Scale) -> Self {
        let panel = Self::within((LEFT, width.units() - RIGHT), top, height, x, y);
        Self { ticks: width.ticks(), ..panel }
    }

    /// Returns a panel with its plot between two coordinates, for adjacent panels.
    pub fn within((left, right): (f64, f64), top: f64, height: f64, x: Scale, y: Scale) -> Self {
        let bottom = top + height;
        let ticks = ((right - left) / 58.0).max(2.0) as usize;
        Self { x: x.onto(left, right), y: y.onto(bottom, top), ticks, top, bottom, body: String::new() }
    }

    /// Returns the coordinates of a value.
    pub fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (self.x.at(x), self.y.at(y))
    }

    /// Returns the coordinate of its lower edge.
    pub fn bottom(&self) -> f64 {
        self.bottom
    }

    /// Draws text at coordinates of the drawing. `anchor` is `start`, `middle` or `end`.
    pub fn text(&mut self, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
        let text = escape(text);
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        );
    }

    /// Draws a heading above the panel.
    pub fn heading(&mut self, text: &str) {
        self.text(self.x.start, self.top - 8.0, "start", "head", text);
    }

    /// Draws the left axis with grid lines.
    pub fn left_axis(&mut self, label: impl Fn(f64) -> String) {
        let (from, to) = (self.x.start, self.x.end);
        // A label needs its height, however low the panel is.
        let height = self.bottom - self.top;
        let ticks = self.y.ticks((height / 26.0).clamp(2.0, 5.0) as usize);
        let each = (18.0 * ticks.len().saturating_sub(1) as f64 / height).ceil().max(1.0) as usize;
        for (n, value) in ticks.into_iter().enumerate() {
            let y = self.y.at(value);
            let _ = writeln!(
                self.body,
                r#"<line class="grid" x1="{from:.1}" x2="{to:.1}" y1="{y:.1}" y2="{y:.1}"/>"#
            );
            if n.is_multiple_of(each) {
                self.text(from - 6.0, y + 4.0, "end", "tick", &label(value));
            }
        }
    }

    /// Draws the bottom axis, with the unit at its end.
    pub fn bottom_axis(&mut self, unit: &str, label: impl Fn(f64) -> String) {
        let ticks = self.x.ticks(self.ticks);
        self.bottom_labels(unit, ticks.into_iter().map(|value| (value, label(value))));
    }

    /// Draws the bottom axis with these labels.
    pub fn bottom_labels(&mut self, unit: &str, labels: impl IntoIterator<Item = (f64, String)>) {
        let (from, to, y) = (self.x.start, self.x.end, self.bottom);
        let _ = writeln!(
            self.body,
            r#"<line class="axis" x1="{from:.1}" x2="{to:.1}" y1="{y:.1}" y2="{y:.1}"/>"#
        );
        for (value, label) in labels {
            self.text(self.x.at(value), y + 16.0, "middle", "tick", &label);
        }
        if !unit.is_empty() {
            self.text(to, y + 32.0, "end", "tick", unit);
        }
    }

    /// Draws grid lines upwards from the labels of the bottom axis.
    pub fn bottom_grid(&mut self) {
        for value in self.x.ticks(self.ticks) {
            let x = self.x.at(value);
            self.stroke("grid", (x, self.top), (x, self.bottom));
        }
    }

    /// Draws a straight line between two points of the drawing.
    pub fn stroke(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let _ = writeln!(
            self.body,
            r#"<line class="{class}" x1="{:.1}" x2="{:.1}" y1="{:.1}" y2="{:.1}"/>"#,
            from.0, to.0, from.1, to.1
        );
    }

    /// Draws a line through points.
    pub fn line(&mut self, class: &str, points: impl IntoIterator<Item = (f64, f64)>) {
        let path = self.path(points);
        let _ = writeln!(self.body, r#"<path class="{class}" d="{path}"/>"#);
    }

    fn path(&self, points: impl IntoIterator<Item = (f64, f64)>) -> String {
        let mut path = String::new();
        let mut last = (String::new(), String::new());
        for (x, y) in points {
            let (x, y) = (format!("{:.1}", self.x.at(x)), format!("{:.1}", self.y.at(y)));
            // Step lines are long: an unchanged coordinate is not written again.
            let _ = match (x == last.0, y == last.1) {
                (true, true) => Ok(()),
                _ if path.is_empty() => write!(path, "M{x} {y}"),
                (true, false) => write!(path, "V{y}"),
                (false, true) => write!(path, "H{x}"),
                (false, false) => write!(path, "L{x} {y}"),
            };
            last = (x, y);
        }
        path
    }

    /// Draws an area between a lower and an upper line.
    pub fn area(&mut self, class: &str, points: &[(f64, f64, f64)]) {
        let upper = points.iter().map(|&(x, _, high)| (x, high));
        let lower = points.iter().rev().map(|&(x, low, _)| (x, low));
        let path = self.path(upper.chain(lower));
        let _ = writeln!(self.body, r#"<path class="{class}" d="{path}Z"/>"#);
    }

    /// Draws a line from top to bottom, with a tooltip.
    pub fn vertical(&mut self, class: &str, x: f64, hint: &str) {
        let (x, top, bottom, hint) = (self.x.at(x), self.top, self.bottom, escape(hint));
        let _ = writeln!(
            self.body,
            r#"<line class="{class}" x1="{x:.1}" x2="{x:.1}" y1="{top:.1}" y2="{bottom:.1}"><title>{hint}</title></line>"#
        );
    }

    /// Draws a mark at a point, with a tooltip.
    pub fn mark(&mut self, shape: Shape, class: &str, (x, y): (f64, f64), hint: &str) {
        let (path, hint) = (shape.path(self.x.at(x), self.y.at(y)), escape(hint));
        let _ = writeln!(self.body, r#"<path class="{class}" d="{path}"><title>{hint}</title></path>"#);
    }

    /// Draws text next to a point, on the side where it fits.
    pub fn label(&mut self, (x, y): (f64, f64), class: &str, text: &str) {
        let (x, y) = (self.x.at(x), self.y.at(y));
        // The approximate width of the text.
        let width = text.chars().count() as f64 * 7.4;
        let is_right_half = x > f64::midpoint(self.x.start, self.x.end);
        let (anchor, x) = if is_right_half || x + 9.0 + width > self.x.end {
            ("end", f64::max(x - 9.0, (self.x.start + width).min(self.x.end)))
        } else {
            ("start", x + 9.0)
        };
        self.text(x, (y - 6.0).max(self.top + 11.0), anchor, class, text);
    }

    /// Returns what was drawn.
    pub fn finish(self) -> String {
        self.body
    }
}

/// The shape of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A circle.
    Circle,
    /// A square.
    Square,
    /// A triangle.
    Triangle,
    /// A triangle that points down to its point.
    Arrow,
    /// A square on its corner.
    Diamond,
    /// A triangle upside down.
    Down,
    /// An upright cross.
    Plus,
    /// A cross of two diagonals.
    Cross,
    /// A horizontal bar.
    Bar,
}

impl Shape {
    /// All shapes, with the names that a class uses for them.
    const NAMED: [(&str, Self); 9] = [
        ("circle", Self::Circle),
        ("square", Self::Square),
        ("triangle", Self::Triangle),
        ("stall", Self::Arrow),
        ("diamond", Self::Diamond),
        ("down", Self::Down),
        ("plus", Self::Plus),
        ("cross", Self::Cross),
        ("bar", Self::Bar),
    ];

    /// Returns the name, as the last word of a class.
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, shape)| *shape == self).map_or("square", |(name, _)| name)
    }

    /// Returns the shape that the last word of a class names; a square, if it names none.
    pub fn of_class(class: &str) -> Self {
        let last = class.rsplit(' ').next();
        Self::NAMED.iter().find(|(name, _)| Some(*name) == last).map_or(Self::Square, |(_, shape)| *shape)
    }

    /// Returns its SVG path at a point.
    pub fn path(self, x: f64, y: f64) -> String {
        match self {
            Self::Circle => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z", x - 4.0),
            Self::Square => format!("M{:.1} {:.1}h7v7h-7Z", x - 3.5, y - 3.5),
            Self::Triangle => format!("M{x:.1} {:.1}l4.5 8h-9Z", y - 5.0),
            Self::Arrow => format!("M{x:.1} {:.1}l5 -9h-10Z", y - 1.0),
            Self::Diamond => format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5Z", y - 5.0),
            Self::Down => format!("M{x:.1} {:.1}l4.5 -8h-9Z", y + 5.0),
            Self::Plus => {
                format!("M{:.1} {:.1}h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5Z", x - 1.5, y - 5.0)
            }
            Self::Cross => format!(
                "M{:.1} {:.1}l2 2l2 -2l2.4 2.4l-2 2l2 2l-2.4 2.4l-2 -2l-2 2l-2.4 -2.4l2 -2l-2 -2Z",
                x - 2.0,
                y - 4.4
            ),
            Self::Bar => format!("M{:.1} {:.1}h10v4h-10Z", x - 5.0, y - 2.0),
        }
    }
}

/// A whole drawing.
#[derive(Clone, Debug)]
pub struct Drawing {
    width: Width,
    height: f64,
    about: String,
    body: String,
}

impl Drawing {
    /// Returns a drawing of panels; `about` is its description for screen readers.
    pub fn new(width: Width, height: f64, about: &str, panels: impl IntoIterator<Item = Panel>) -> Self {
        let body = panels.into_iter().map(Panel::finish).collect();
        Self { width, height, about: about.to_owned(), body }
    }

    /// Returns its height.
    pub fn height(&self) -> f64 {
        self.height
    }

    /// Returns its content.
    pub fn body(&self) -> &str {
        &self.body
    }

    /// Returns the drawing as an element of a page.
    pub fn in_page(&self) -> String {
        let class = match self.width {
            Width::Wide => "wide",
            Width::Narrow => "narrow",
        };
        let (units, height, about) = (self.width.units(), self.height, escape(&self.about));
        format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {units:.0} {height:.0}\" role=\"img\" \
             aria-label=\"{about}\">\n{}</svg>\n",
            self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(Scale::linear(0.0, 30.0).ticks(6), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]);
        assert_eq!(Scale::decades(3.0, 700.0).ticks(0), [1.0, 10.0, 100.0, 1000.0]);
        assert!((round_up(0.37) - 0.4).abs() < 1e-9);
        assert!((round_up(43_210.0) - 50_000.0).abs() < 1e-6, "{}", round_up(43_210.0));
    }

    #[test]
    fn a_path_contains_only_changes() {
        let scale = Scale::linear(0.0, 10.0);
        let panel = Panel::within((0.0, 100.0), 0.0, 100.0, scale, scale);
        let path = panel.path([(0.0, 0.0), (0.0, 0.0), (1.0, 0.0), (1.0, 5.0), (2.0, 6.0)]);
        assert_eq!(path, "M0.0 100.0H10.0V50.0L20.0 40.0");
    }

    #[test]
    fn values_outside_are_put_on_the_edge() {
        let scale = Scale::linear(0.0, 10.0).onto(100.0, 200.0);
        assert_eq!([scale.at(-5.0), scale.at(5.0), scale.at(50.0)], [100.0, 150.0, 200.0]);
    }

    #[test]
    fn a_panel_names_no_colour() {
        let scale = Scale::linear(0.0, 10.0);
        let mut panel = Panel::new(Width::Wide, 20.0, 100.0, scale, Scale::decades(1.0, 100.0));
        panel.heading("a heading");
        panel.left_axis(|v| format!("{v} s"));
        panel.bottom_axis("seconds", |v| v.to_string());
        panel.bottom_grid();
        panel.stroke("stem c1", (1.0, 2.0), (3.0, 4.0));
        panel.line("line with", [(0.0, 1.0), (5.0, 50.0)]);
        panel.area("fill with", &[(0.0, 1.0, 2.0), (5.0, 1.0, 50.0)]);
        panel.vertical("drop", 3.0, "a hint");
        panel.label((5.0, 50.0), "note", "a note");
        for (_, shape) in Shape::NAMED {
            panel.mark(shape, "dot with", (5.0, 5.0), "a mark");
        }
        let drawing = Drawing::new(Width::Wide, 150.0, "about", [panel]).in_page();
        for none in ["fill=", "stroke=", "style=", "color", "rgb", "#"] {
            assert!(!drawing.contains(none), "{none} is in {drawing}");
        }
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
    }
}
