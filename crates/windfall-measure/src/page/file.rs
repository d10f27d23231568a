//! A graph as a file of its own.
//!
//! **Purpose.** A graph with its legend and caption as one SVG file, for documents that embed pictures but no markup.
//!
//! **Invariants.** The file loads nothing, and is readable on light and dark backgrounds (test:
//! `a_file_has_all_that_a_page_says_of_a_graph`). It contains its title, its caption and the source of its figures,
//! because a picture is copied without the page around it (test: `a_file_has_all_that_a_page_says_of_a_graph`).

use std::fmt::Write as _;

use super::{DRAWING, Graph, SAMPLE, sample};
use crate::{
    svg::{Width, escape},
    units::wrapped,
};

/// The margin around everything.
const MARGIN: f64 = 16.0;
/// The distance between a sample and its text, and between two entries of the legend.
const BESIDE: f64 = 6.0;
const APART: f64 = 20.0;
/// The line heights of the legend, of the caption, and of the source.
const LEGEND: f64 = 23.0;
const CAPTION: f64 = 20.0;
const FROM: f64 = 18.0;
/// The approximate width of a character in the legend, the caption and the source, with a wide font.
const IN_LEGEND: f64 = 7.9;
const IN_CAPTION: f64 = 7.8;
const IN_FROM: f64 = 6.7;

impl Graph {
    /// Returns the file, for wide screens. `from` names the source of the figures.
    pub fn file(&self, from: &str) -> String {
        let drawing = &self.drawings[0];
        let inner = Width::Wide.units();
        let sample_width = f64::from(SAMPLE) + BESIDE;
        let lines = |text: &str, each: f64| wrapped(text, ((inner - sample_width - 8.0) / each) as usize);
        let (mut body, mut y) = (String::new(), MARGIN);
        let text = |body: &mut String, x: f64, y: f64, class: &str, text: &str| {
            let _ = writeln!(body, r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{}</text>"#, escape(text));
        };
        let left = MARGIN + 4.0;
        text(&mut body, left, y + 14.0, "title", &self.title);
        y += 30.0;
        let mut x = 0.0;
        for (class, name) in &self.legend {
            let names = lines(name, IN_LEGEND);
            let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
            let width = sample_width + longest as f64 * IN_LEGEND;
            if x > 0.0 && x + width > inner {
                (x, y) = (0.0, y + LEGEND);
            }
            let at = left + x;
            let _ = writeln!(
                body,
                r#"<g class="swatch" transform="translate({at:.1} {y:.1})">{}</g>"#,
                sample(class)
            );
            for (n, name) in names.iter().enumerate() {
                y += if n > 0 { CAPTION } else { 0.0 };
                text(&mut body, at + sample_width, y + 12.5, "key", name);
            }
            x += width + APART;
        }
        y += if self.legend.is_empty() { 0.0 } else { LEGEND };
        let _ = write!(body, "<g transform=\"translate({MARGIN} {y:.1})\">\n{}</g>\n", drawing.body());
        y += drawing.height() + 10.0;
        for line in lines(&self.caption, IN_CAPTION) {
            y += CAPTION;
            text(&mut body, left, y, "caption", &line);
        }
        y += 6.0;
        for line in lines(from, IN_FROM) {
            y += FROM;
            text(&mut body, left, y, "from", &line);
        }
        let (width, height) = (inner + 2.0 * MARGIN, y + MARGIN);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"file\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" role=\"img\" aria-labelledby=\"title\">\n<title id=\"title\">{}</title>\n<style>\n\
             {DRAWING}</style>\n<rect class=\"sheet\" x=\"0.5\" y=\"0.5\" width=\"{:.0}\" height=\"{:.0}\" \
             rx=\"8\"/>\n{body}</svg>\n",
            escape(&self.title),
            width - 1.0,
            height - 1.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg::{Drawing, Panel, Scale};

    #[test]
    fn a_file_has_all_that_a_page_says_of_a_graph() {
        let scale = Scale::linear(0.0, 10.0);
        let drawings = [Width::Wide, Width::Narrow].map(|width| {
            let mut panel = Panel::new(width, 20.0, 100.0, scale, scale);
            panel.heading(if width == Width::Wide { "for desks" } else { "for telephones" });
            Drawing::new(width, 140.0, "about", [panel])
        });
        let many = "words and ".repeat(40);
        let graph = Graph {
            title: "a < b".into(),
            legend: (0..9)
                .map(|n| ("dot with circle".into(), format!("entry {n} of a long legend")))
                .chain([("dot with".into(), many.clone())])
                .collect(),
            drawings,
            caption: format!("What to see: {many}the end."),
        };
        let file = graph.file("from & where");
        assert!(file.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && file.ends_with("</svg>\n"));
        for part in
            ["a &lt; b", "entry 8 of", "for desks", "the end.", "from &amp; where", "color-scheme: dark"]
        {
            assert!(file.contains(part), "{part}");
        }
        for none in ["a < b", "for telephones", "url(", "@import", "<script", "NaN"] {
            assert!(!file.contains(none), "{none}");
        }
        // Nothing is drawn outside the sheet.
        let number = |part: &str, name: &str| -> f64 {
            let from = part.split_once(&format!("{name}=\"")).unwrap().1;
            from.split('"').next().unwrap().parse().unwrap()
        };
        let (width, height) = (number(&file, " width"), number(&file, " height"));
        let mut lines = 0;
        for part in file.split("<text ").skip(1) {
            let words = part.split(['>', '<']).nth(1).unwrap();
            let each = if part.contains("\"key\"") { IN_LEGEND } else { IN_CAPTION };
            assert!(number(part, " x") + words.len() as f64 * each <= width, "{words}");
            assert!(number(part, " y") < height);
            lines += usize::from(part.contains("\"caption\""));
        }
        assert!(lines > 2, "a long caption has several lines");
        let entries = file.split("<g class=\"swatch\" transform=\"translate(").skip(1);
        let rows: std::collections::BTreeSet<&str> =
            entries.map(|part| part.split([' ', ')']).nth(1).unwrap()).collect();
        assert!(rows.len() > 1, "a long legend has several lines");
    }
}
