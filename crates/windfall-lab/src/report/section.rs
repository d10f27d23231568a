//! A section of the page.
//!
//! **Purpose.** The elements of every experiment's section: a title, a description of the runs, graphs, and the
//! remarks that belong to them. Its graphs are also available as files.
//!
//! **Invariants.** Text is escaped here, and a graph without content is left out (test:
//! `text_is_escaped_and_missing_graphs_are_left_out`). The file of a graph contains the remarks that the page has above
//! it (test: `every_graph_of_the_page_is_a_file`).

use std::fmt::Write as _;

use windfall_measure::{
    page::{Graph, table},
    svg::escape,
};

/// The remark for graphs without the bytes of pages.
const ABSENT: &str = " Page bytes absent, bookkeeping real.";

/// A section of the page.
#[derive(Debug)]
pub(super) struct Section {
    /// The anchor.
    pub id: &'static str,
    /// The title.
    pub title: &'static str,
    about: String,
    parts: Vec<Part>,
    /// Whether graphs must say that the bytes of pages were absent.
    absent: bool,
}

#[derive(Debug)]
enum Part {
    Graph { name: &'static str, graph: Graph },
    Html(String),
}

impl Section {
    /// Creates a section with this anchor and title, and a description of the runs.
    pub(super) fn new(id: &'static str, title: &'static str, about: &str) -> Self {
        let said = Part::Html(format!("<p class=\"about\">{}</p>\n", escape(about)));
        Self { id, title, about: about.to_owned(), parts: vec![said], absent: false }
    }

    /// Adds a graph. Its file is named after the section and this name.
    pub(super) fn graph(&mut self, name: &'static str, graph: Option<Graph>) {
        if let Some(mut graph) = graph {
            if self.absent {
                graph.caption.push_str(ABSENT);
            }
            self.parts.push(Part::Graph { name, graph });
        }
    }

    /// Adds a paragraph, if the text is not blank.
    pub(super) fn says(&mut self, text: &str) {
        if !text.trim().is_empty() {
            self.html(&format!("<p>{}</p>\n", escape(text.trim())));
        }
    }

    /// Adds a paragraph about the setting of all runs.
    pub(super) fn setting(&mut self, text: &str) {
        self.says(text);
        self.about = format!("{} {}", self.about, text.trim());
    }

    /// Adds text that is markup already.
    pub(super) fn html(&mut self, html: &str) {
        self.parts.push(Part::Html(html.to_owned()));
    }

    /// Adds a remark that the pages of some runs are bookkeeping only: here, and to each graph that is added later.
    pub(super) fn bookkeeping(&mut self, which: &str) {
        self.absent = true;
        self.html(&format!(
            "<p class=\"absent\">{}</p>\n",
            escape(&format!(
                "{which}: their page bytes are absent; the bookkeeping is real: descriptors, page hash, LRU and flush \
                 lists."
            ))
        ));
    }

    /// Adds tables that are folded until a reader opens them.
    pub(super) fn folded(&mut self, summary: &str, tables: &[(&[&str], Vec<Vec<String>>)]) {
        let tables = tables.iter().filter(|(_, lines)| !lines.is_empty());
        let html: String = tables.map(|(headings, lines)| table(headings, lines.iter().cloned())).collect();
        if !html.is_empty() {
            self.html(&format!("<details>\n<summary>{}</summary>\n{html}</details>\n", escape(summary)));
        }
    }

    /// Returns the section as HTML for the page.
    pub(super) fn in_page(&self) -> String {
        let mut html = format!(
            "<section id=\"{}\">\n<h2>{}: {}</h2>\n",
            self.id,
            self.id.to_uppercase(),
            escape(self.title)
        );
        for part in &self.parts {
            let _ = match part {
                Part::Graph { graph, .. } => {
                    write!(html, "<h3>{}</h3>\n{}", escape(&graph.title), graph.figure())
                }
                Part::Html(text) => write!(html, "{text}"),
            };
        }
        html + "</section>\n"
    }

    /// Returns the graphs as files, with their names; `from` is the source of the figures.
    pub(super) fn files(self, from: &str) -> Vec<(String, String)> {
        let Self { id, about, parts, .. } = self;
        let from = format!("{about} {from}");
        let file = |part| match part {
            Part::Graph { name, graph } => {
                let title = format!("{}: {}", id.to_uppercase(), graph.title);
                Some((format!("{id}-{name}.svg"), Graph { title, ..graph }.file(&from)))
            }
            Part::Html(_) => None,
        };
        parts.into_iter().filter_map(file).collect()
    }
}
