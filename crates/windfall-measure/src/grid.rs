//! Tables on the terminal.
//!
//! **Purpose.** Lines with aligned columns.
//!
//! **Invariants.** A column is as wide as its widest cell, counted in characters (test: `columns_are_aligned`); no line
//! ends in spaces.

use std::fmt::Write as _;

/// A table with aligned columns.
#[derive(Debug)]
pub struct Grid {
    right: Vec<bool>,
    lines: Vec<Vec<String>>,
}

impl Grid {
    /// Returns a grid with these headings. A heading that begins with `>` marks a right-aligned column of numbers.
    pub fn new<'a>(headings: impl IntoIterator<Item = &'a str>) -> Self {
        let (mut right, mut first) = (Vec::new(), Vec::new());
        for heading in headings {
            right.push(heading.starts_with('>'));
            first.push(heading.trim_start_matches('>').to_owned());
        }
        Self { right, lines: vec![first] }
    }

    /// Returns a grid with these headings unchanged, all columns left-aligned.
    pub fn left(headings: &[String]) -> Self {
        Self { right: vec![false; headings.len()], lines: vec![headings.to_vec()] }
    }

    /// Appends a line.
    pub fn line(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.lines.push(cells.into_iter().map(Into::into).collect());
    }

    /// Returns the formatted text.
    pub fn text(&self) -> String {
        let width = |column: usize| {
            self.lines.iter().filter_map(|l| l.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        let mut text = String::new();
        for line in &self.lines {
            let mut row = String::new();
            for ((cell, &width), &right) in line.iter().zip(&widths).zip(&self.right) {
                let gap = " ".repeat(width - cell.chars().count());
                let _ = if right { write!(row, "{gap}{cell}  ") } else { write!(row, "{cell}{gap}  ") };
            }
            let _ = writeln!(text, "{}", row.trim_end());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut grid = Grid::new(["name", ">rows"]);
        grid.line(["a", "1000"]);
        grid.line(["é", "2"]);
        assert_eq!(grid.text(), "name  rows\na     1000\né        2\n");
    }
}
