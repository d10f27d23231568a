//! Pages that need nothing but a browser.
//!
//! **Purpose.** The parts that reports of several programs share: the frame of a page, graphs with their captions,
//! tables, tiles, and the section about how the page was made.
//!
//! **Invariants.** A page loads nothing: no script, no font, no address (test:
//! `a_page_loads_nothing_and_no_text_becomes_markup`). Each colour has a value for light and one for dark backgrounds,
//! and each graph a drawing for wide and one for narrow screens (test: `a_page_adapts_to_backgrounds_and_screens`).
//! Text arguments are escaped and cannot become markup (test: `a_page_loads_nothing_and_no_text_becomes_markup`).

mod file;

use std::fmt::Write as _;

use crate::svg::{Drawing, Shape, escape};

/// The style sheet of drawings, on a page and in a file of their own.
const DRAWING: &str = include_str!("drawing.css");

/// Returns a page with this title and this content.
pub fn page(title: &str, body: &str) -> String {
    let mut html = String::from("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    html.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n");
    let _ = write!(html, "<title>{}</title>\n<style>\n", escape(title));
    html.push_str(DRAWING);
    html.push_str(include_str!("style.css"));
    html.push_str("</style>\n</head>\n<body>\n<main>\n");
    html.push_str(body);
    html.push_str("</main>\n</body>\n</html>\n");
    html
}

/// A graph: its title, its legend, its drawing in both widths, its caption.
#[derive(Debug)]
pub struct Graph {
    /// The title.
    pub title: String,
    /// The legend: classes and their meaning.
    pub legend: Vec<(String, String)>,
    /// The drawings, for a wide and for a narrow screen.
    pub drawings: [Drawing; 2],
    /// The caption: what to see in the graph.
    pub caption: String,
}

impl Graph {
    /// Returns the graph with its legend and its caption as HTML.
    pub fn figure(&self) -> String {
        let legend = if self.legend.is_empty() { String::new() } else { legend(&self.legend) };
        format!(
            "<figure>\n{legend}{}{}<figcaption>{}</figcaption>\n</figure>\n",
            self.drawings[0].in_page(),
            self.drawings[1].in_page(),
            escape(&self.caption)
        )
    }
}

/// Returns the legend of some classes as HTML.
pub fn legend(entries: &[(String, String)]) -> String {
    let mut html = String::from("<ul class=\"key\">");
    for (class, text) in entries {
        let _ = write!(html, "<li>{}{}</li>", swatch(class), escape(text));
    }
    html + "</ul>\n"
}

/// Returns a sample of a class as HTML.
pub fn swatch(class: &str) -> String {
    format!(
        "<svg class=\"swatch\" viewBox=\"0 0 {SAMPLE} {SAMPLE}\" aria-hidden=\"true\">{}</svg>",
        sample(class)
    )
}

/// The side length of a sample.
const SAMPLE: u32 = 16;

/// Returns the shapes in the sample of a class.
fn sample(class: &str) -> String {
    let first = class.split(' ').next().unwrap_or("");
    match first {
        "drop" | "gone" | "stall-line" => {
            format!("<line class=\"{class}\" x1=\"8\" x2=\"8\" y1=\"1\" y2=\"15\"/>")
        }
        "fill" => format!("<rect class=\"{class}\" x=\"2\" y=\"3\" width=\"12\" height=\"10\"/>"),
        "line" => format!("<line class=\"{class}\" x1=\"0\" x2=\"16\" y1=\"8\" y2=\"8\"/>"),
        _ => {
            let shape = Shape::of_class(class);
            // An arrow is drawn above its point.
            let y = if shape == Shape::Arrow { 13.0 } else { 8.0 };
            format!("<path class=\"{class}\" d=\"{}\"/>", shape.path(8.0, y))
        }
    }
}

/// Returns prominent figures as HTML: a name, a value, and a remark.
pub fn tiles<'a>(tiles: impl IntoIterator<Item = (&'a str, String, String)>) -> String {
    let mut html = String::from("<dl class=\"tiles\">\n");
    for (name, value, beside) in tiles {
        let _ = writeln!(
            html,
            "<div><dt>{}</dt><dd class=\"value\">{}</dd><dd>{}</dd></div>",
            escape(name),
            escape(&value),
            escape(&beside)
        );
    }
    html + "</dl>\n"
}

/// Returns a table as HTML; the first column has names, the others have numbers.
pub fn table(headings: &[&str], lines: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut html = String::from("<div class=\"scroll\"><table>\n<thead><tr>");
    for heading in headings {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(heading));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for line in lines {
        html.push_str("<tr>");
        for (n, cell) in line.iter().enumerate() {
            let cell = escape(cell);
            let _ = if n == 0 {
                write!(html, "<th scope=\"row\">{cell}</th>")
            } else {
                write!(html, "<td>{cell}</td>")
            };
        }
        html.push_str("</tr>\n");
    }
    html + "</tbody>\n</table></div>\n"
}

/// Returns the section about what made a page: names with their values, and the command.
pub fn made_by<'a>(lines: impl IntoIterator<Item = (&'a str, String)>, command: &str) -> String {
    let mut html = String::from("<section>\n<h2>What made this page</h2>\n<dl class=\"made\">\n");
    for (name, value) in lines {
        let _ = writeln!(html, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(&value));
    }
    let _ = write!(
        html,
        "</dl>\n<p>The same again:</p>\n<pre><code>{}</code></pre>\n</section>\n",
        escape(command)
    );
    html
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg::Width;

    #[test]
    fn a_page_loads_nothing_and_no_text_becomes_markup() {
        let graph = Graph {
            title: "t".into(),
            legend: vec![("dot with circle".into(), "<b>".into())],
            drawings: [Width::Wide, Width::Narrow].map(|width| Drawing::new(width, 10.0, "<u>", [])),
            caption: "a < b".into(),
        };
        let html = page("<x>", &(graph.figure() + &table(&["a"], [vec!["<i>".to_owned()]])));
        assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));
        for none in ["<script", "http", "url(", "@import", "<b>", "<i>", "<u>", "<x>", "a < b"] {
            assert!(!html.contains(none), "{none}");
        }
    }

    #[test]
    fn a_page_adapts_to_backgrounds_and_screens() {
        let drawings = [Width::Wide, Width::Narrow].map(|width| Drawing::new(width, 10.0, "d", []));
        let graph = Graph { title: "t".into(), legend: Vec::new(), drawings, caption: "c".into() };
        let html = page("title", &graph.figure());
        assert!(html.contains("content=\"width=device-width, initial-scale=1\""));
        assert!(html.contains("content=\"light dark\""));
        // Every colour is defined twice.
        let (light, dark) = html.split_once("@media (prefers-color-scheme: dark)").unwrap();
        let defined = |css: &str| -> std::collections::BTreeSet<String> {
            let block = css.split_once(":root {").unwrap().1.split_once('}').unwrap().0;
            let colours = block.split(';').filter_map(|each| each.split_once(": #"));
            colours.map(|(name, _)| name.trim().to_owned()).collect()
        };
        assert!(defined(light).len() > 15, "{:?}", defined(light));
        assert_eq!(defined(light), defined(dark));
        let used = DRAWING.split("var(").skip(1).filter_map(|each| each.split([')', ',']).next());
        for name in used.filter(|name| !["--font", "--c"].contains(name)) {
            assert!(defined(dark).contains(name), "{name} has no value for dark backgrounds");
        }
        // One of the two drawings is shown, by the width of the screen.
        assert!(html.contains("<svg class=\"wide\"") && html.contains("<svg class=\"narrow\""));
        assert!(html.contains("svg.narrow { display: none; }"));
        let narrow = html.split_once("@media (max-width: ").unwrap().1;
        assert!(
            narrow.contains("svg.wide { display: none; }")
                && narrow.contains("svg.narrow { display: block; }")
        );
    }

    #[test]
    fn a_swatch_draws_the_shape_of_its_class() {
        assert!(swatch("drop big").contains("<line"));
        assert!(swatch("fill dirty").contains("<rect"));
        assert!(swatch("line c1").contains("<line"));
        let circle = Shape::Circle.path(8.0, 8.0);
        assert!(swatch("dot with circle").contains(&circle) && !swatch("dot with").contains(&circle));
        assert_eq!(Shape::of_class("dot c3 diamond").name(), "diamond");
    }
}
