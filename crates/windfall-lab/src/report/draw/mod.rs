//! The kinds of drawings of the report.
//!
//! **Purpose.** Small multiples, rows of marks, and curves with names at their ends. Texts are as long as fits on both
//! kinds of screens.
//!
//! **Invariants.** Each is drawn for a wide and for a narrow screen (test: `the_page_has_all_parts`). A value that
//! cannot be placed is left out (test: `little_data_is_shown_too`).

mod curves;
mod multiples;
mod rows;

pub(super) use curves::{Curve, Curves};
pub(super) use multiples::{Bottom, Cell, Multiples, curve, lowest, thinned};
pub(super) use rows::{Mark, Row, Rows};
use windfall_measure::svg::Scale;

/// Returns a logarithmic scale that contains these values; zeros are at its lower end.
pub(super) fn decades(values: impl IntoIterator<Item = f64>) -> Scale {
    let (least, most) = values
        .into_iter()
        .filter(|v| v.is_finite() && *v > 0.0)
        .fold((f64::MAX, 0.0), |(least, most), v| (f64::min(least, v), f64::max(most, v)));
    if most > 0.0 { Scale::decades(least, most) } else { Scale::decades(1.0, 10.0) }
}
