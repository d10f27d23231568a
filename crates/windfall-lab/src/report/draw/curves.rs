//! Curves over a few settings, with their names at their ends.
//!
//! **Purpose.** Shows how a time grows with the fill, the pool or a setting, for several systems in one panel.
//!
//! **Invariants.** Names do not overlap (test: `names_are_spread`): where curves end close together, their names are
//! spread and joined to the curves by leader lines.

use windfall_measure::svg::{Drawing, Panel, Scale, Shape};

use super::{Bottom, Cell, Multiples};

/// The minimum distance of two names.
const APART: f64 = 13.5;
/// The width reserved for a name.
const NAME: f64 = 104.0;

/// A curve.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    /// The name at its end; none if this is empty.
    pub name: String,
    /// The class of its colour, and further classes of its line.
    pub class: String,
    /// The classes of its marks.
    pub dot: String,
    /// The shape of its marks.
    pub shape: Shape,
    /// The values of the curve, each with the number of the setting.
    pub points: Vec<(usize, f64)>,
    /// The tooltip of a mark.
    pub hint: fn(f64) -> String,
}

/// Panels of curves.
pub(crate) struct Curves<'a> {
    /// The text alternative of the drawing.
    pub about: &'a str,
    /// The number of panels per row, on a wide and on a narrow screen.
    pub columns: [usize; 2],
    /// The height of each panel.
    pub height: f64,
    /// The labels of the left axis.
    pub left_label: fn(f64) -> String,
    /// The names of the settings.
    pub settings: Vec<String>,
    /// The quantity that is set.
    pub unit: &'a str,
    /// Whether there are names at the ends.
    pub named: bool,
}

impl Curves<'_> {
    /// Returns the drawings: panels with a heading, a scale and curves.
    pub(crate) fn draw(&self, panels: Vec<(String, Scale, Vec<Curve>)>) -> [Drawing; 2] {
        let last = self.settings.len().saturating_sub(1) as f64;
        let margin = if self.named { 0.15 } else { 0.35 };
        let x = Scale::linear(-margin, last + margin);
        let all = Multiples {
            about: self.about,
            columns: self.columns,
            height: self.height,
            right: if self.named { NAME } else { 12.0 },
            left_label: self.left_label,
            bottom: Bottom::Names(self.settings.clone()),
            unit: self.unit,
        };
        let cells: Vec<Cell<'_>> = panels
            .into_iter()
            .map(|(heading, y, curves)| Cell {
                heading,
                x,
                y,
                draw: Box::new(move |panel| draw(panel, &curves, self.height)),
            })
            .collect();
        all.draw(&cells)
    }
}

fn draw(panel: &mut Panel, curves: &[Curve], height: f64) {
    let mut ends = Vec::new();
    for curve in curves {
        let points = curve.points.iter().filter(|(_, v)| v.is_finite()).map(|&(n, v)| (n as f64, v));
        panel.line(&format!("line own {}", curve.class), points.clone());
        for (n, value) in points.clone() {
            panel.mark(curve.shape, &curve.dot, (n, value), &(curve.hint)(value));
        }
        if let Some(end) = points.clone().next_back().filter(|_| !curve.name.is_empty()) {
            ends.push((panel.place(end), curve));
        }
    }
    ends.sort_by(|a, b| a.0.1.total_cmp(&b.0.1));
    let places =
        spread(&ends.iter().map(|e| e.0.1).collect::<Vec<_>>(), panel.bottom() - height, panel.bottom());
    for (((x, y), curve), place) in ends.into_iter().zip(places) {
        let right = panel.place((f64::MAX, 0.0)).0 + 6.0;
        panel.stroke("line leader", (x + 6.0, y), (right - 2.0, place));
        let class = curve.class.split(' ').next().unwrap_or("");
        panel.text(right, place + 4.0, "start", &format!("end {class}"), &curve.name);
    }
}

/// Returns places near the wanted ones, in their order, apart from each other, and within the panel if they fit.
fn spread(wanted: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut places = Vec::with_capacity(wanted.len());
    let mut least = top;
    for &y in wanted {
        let place = f64::max(y, least);
        places.push(place);
        least = place + APART;
    }
    let mut most = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(most);
        most = *place - APART;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spread() {
        let places = spread(&[10.0, 11.0, 99.0, 100.0, 100.0], 0.0, 100.0);
        assert!(places.windows(2).all(|p| p[1] - p[0] >= APART - 1e-9), "{places:?}");
        assert!(places.iter().all(|p| (0.0..=100.0).contains(p)), "{places:?}");
        assert_eq!(spread(&[10.0, 50.0], 0.0, 100.0), [10.0, 50.0]);
    }
}
