//! A part of the page.
//!
//! **Purpose.** What every experiment's part is made of: a title, what is run, graphs, and what has to be said beside
//! them.
//!
//! **Invariants.** Text is escaped here. A graph that has nothing to show is left out.
//!
//! **May touch.** `windfall-measure`.

use std::fmt::Write as _;

use windfall_measure::{
    page::{Graph, table},
    svg::escape,
};

/// A part of the page.
#[derive(Debug)]
pub struct Section {
    html: String,
    /// Whether graphs have to say that the bytes of pages were absent.
    absent: bool,
}

impl Section {
    /// A part with this anchor and title, and what is run.
    pub fn new(id: &str, title: &str, about: &str) -> Self {
        let html = format!(
            "<section id=\"{id}\">\n<h2>{}: {}</h2>\n<p class=\"about\">{}</p>\n",
            id.to_uppercase(),
            escape(title),
            escape(about)
        );
        Self { html, absent: false }
    }

    /// Adds a graph.
    pub fn graph(&mut self, graph: Option<Graph>) {
        if let Some(graph) = graph {
            let mut graph = graph;
            if self.absent {
                graph.caption.push_str(" Page bytes absent, bookkeeping real.");
            }
            let _ = write!(self.html, "<h3>{}</h3>\n{}", escape(&graph.title), graph.figure());
        }
    }

    /// Adds a paragraph, if there is anything to say.
    pub fn says(&mut self, text: &str) {
        if !text.trim().is_empty() {
            let _ = writeln!(self.html, "<p>{}</p>", escape(text.trim()));
        }
    }

    /// Adds what is markup already.
    pub fn html(&mut self, html: &str) {
        self.html.push_str(html);
    }

    /// Says that the pages of some runs are bookkeeping alone: here, and beside each graph that is added later.
    pub fn bookkeeping(&mut self, which: &str) {
        self.absent = true;
        let _ = writeln!(
            self.html,
            "<p class=\"absent\">{}</p>",
            escape(&format!(
                "{which}: their page bytes are absent; the bookkeeping is real: descriptors, page hash, LRU and flush \
                 lists."
            ))
        );
    }

    /// Adds tables that are shown when one asks for them.
    pub fn folded(&mut self, summary: &str, tables: &[(&[&str], Vec<Vec<String>>)]) {
        let tables = tables.iter().filter(|(_, lines)| !lines.is_empty());
        let html: String = tables.map(|(headings, lines)| table(headings, lines.iter().cloned())).collect();
        if !html.is_empty() {
            let _ =
                writeln!(self.html, "<details>\n<summary>{}</summary>\n{html}</details>", escape(summary));
        }
    }

    /// The whole.
    pub fn end(self) -> String {
        self.html + "</section>\n"
    }
}
