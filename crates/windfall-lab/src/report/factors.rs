//! X9: the factors that the cost of a drop does not depend on.
//!
//! **Purpose.** Shows the figures of each statement with little and with much of what a table owns, and the gaps of
//! other threads. Only for Windfall: the other systems have no such statement that could be measured by itself.

use windfall_measure::{
    flat::{self, Cost, FLAT, FLAT_TIME_BESIDE, Factor, Figure},
    page::table,
    units::times,
};

use super::section::Section;
use crate::results::X9;

/// Returns the cost with much as a multiple, if it was measured.
fn ratio(factor: &Factor, cost: Option<Cost>) -> String {
    cost.map_or_else(|| "-".into(), |cost| times(factor.shown(&cost)))
}

/// Returns the section of X9.
pub(super) fn section(x9: &X9) -> Section {
    let mut section = Section::new(
        "x9",
        "what the cost of a drop does not depend on",
        "Everything that a table owns or has around it is varied, one thing at a time. Statements are measured in turns, \
         in three databases of one process: with little of it, with much of it in another table, and with much of it in \
         their table. The ratios give the cost with much in their table, divided by the cost with little for figures \
         that are counted, and by the cost with much in another table for times. Of counts the median stands for all \
         that were measured, of times the mean of the smaller half, because other threads and the machine add to the \
         larger half; so do the instructions of a statement that requests memory, because the allocator adds to their \
         larger half.",
    );
    section.says(&grown(&x9.factors));
    for factor in &x9.factors {
        if let Some((figures, why)) = &factor.grows {
            let figures: Vec<&str> = figures.iter().map(|(figure, _)| figure.text()).collect();
            section.says(&format!("With {}, {} cannot be flat: {why}.", factor.what, figures.join(" and ")));
        }
    }
    let lines = x9.factors.iter().flat_map(|factor| {
        factor.statements.iter().map(move |statement| {
            let [from, to] = &factor.amounts;
            let per = factor.per.as_ref().map(|per| format!(" (for each {per})")).unwrap_or_default();
            let mut line =
                vec![format!("{}{per}", factor.what), from.clone(), to.clone(), statement.name.clone()];
            line.extend(Figure::ALL.map(|figure| ratio(factor, statement.cost(figure))));
            line
        })
    });
    let lines: Vec<_> = lines.collect();
    let figures = Figure::ALL.map(Figure::text);
    if !lines.is_empty() {
        section.html(&table(&[&["", "from", "to", "statement"], &figures[..]].concat(), lines));
    }
    let figures = x9.factors.iter().flat_map(|factor| {
        factor.statements.iter().flat_map(move |statement| {
            statement.costs.iter().map(move |cost| {
                let of_each =
                    [cost.alone, cost.small, cost.large].map(|value| flat::value(cost.figure, value));
                let mut line = vec![factor.what.clone(), statement.name.clone(), cost.figure.text().into()];
                line.extend(of_each);
                line.extend([times(cost.other_ratio()), times(cost.ratio())]);
                line
            })
        })
    });
    let figures: Vec<_> = figures.collect();
    let heads = ["", "statement", "", "with little", "much elsewhere", "with much", "elsewhere", "ratio"];
    section.folded("The figures", &[(&heads, figures)]);
    section.says(
        "Meanwhile others read and write another table. The longest time in which each of them finished nothing, in \
         windows that begin with a drop of a table that has much, and in windows of the same load without one, in which \
         other threads take as much processor time as the drop and the background behind it:",
    );
    let effects = x9.factors.iter().filter_map(|factor| {
        let mut line = vec![factor.what.clone()];
        line.extend(flat::effects_of(factor)?);
        Some(line)
    });
    let effects: Vec<_> = effects.collect();
    if !effects.is_empty() {
        let heads = flat::EFFECTS.map(|head| head.trim_start_matches('>'));
        section.html(&table(&[&[""], &heads[..]].concat(), effects));
    }
    section
}

/// Returns the figures that grew by more than the bounds, as a sentence.
fn grown(factors: &[Factor]) -> String {
    let mut grown = Vec::new();
    for factor in factors {
        for figure in Figure::ALL {
            for (place, ratio, bound) in factor.growths(figure) {
                if let Some(most) = factor.most(figure, ratio).filter(|most| *most > bound) {
                    let where_much_is = if place.is_empty() { "" } else { " with much elsewhere" };
                    grown.push(format!(
                        "{}{where_much_is} by {} ({})",
                        figure.text(),
                        times(most),
                        factor.what
                    ));
                }
            }
        }
    }
    let percent = |bound: f64| format!("{:.0} %", (bound - 1.0) * 100.0);
    let bounds = format!(
        "{}, or {} of time with much elsewhere, or its own bound",
        percent(FLAT),
        percent(FLAT_TIME_BESIDE)
    );
    match factors {
        [] => String::new(),
        _ if grown.is_empty() => format!("No figure grows by more than {bounds}."),
        _ => format!("These grow by more than {bounds}: {}.", grown.join("; ")),
    }
}
