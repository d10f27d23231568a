//! A part of the page.
//!
//! **Purpose.** What every experiment's part is made of: a title, what is run, graphs, and what has to be said beside
//! them. Its graphs can be had as files, too.
//!
//! **Invariants.** Text is escaped here. A graph that has nothing to show is left out. A file says what its graph's
//! part of the page says above it.
//!
//! **May touch.** `windfall-measure`.

use std::fmt::Write as _;

use windfall_measure::{
    page::{Graph, table},
    svg::escape,
};

/// What has to be said of graphs without the bytes of pages.
const ABSENT: &str = " Page bytes absent, bookkeeping real.";

/// A part of the page.
#[derive(Debug)]
pub struct Section {
    /// Its anchor.
    pub id: &'static str,
    /// Its title.
    pub title: &'static str,
    about: String,
    parts: Vec<Part>,
    /// Whether graphs have to say that the bytes of pages were absent.
    absent: bool,
}

#[derive(Debug)]
enum Part {
    Graph { name: &'static str, graph: Graph },
    Html(String),
}

impl Section {
    /// A part with this anchor and title, and what is run.
    pub fn new(id: &'static str, title: &'static str, about: &str) -> Self {
        let said = Part::Html(format!("<p class=\"about\">{}</p>\n", escape(about)));
        Self { id, title, about: about.to_owned(), parts: vec![said], absent: false }
    }

    /// Adds a graph. Its file is named by the part and this name.
    pub fn graph(&mut self, name: &'static str, graph: Option<Graph>) {
        if let Some(mut graph) = graph {
            if self.absent {
                graph.caption.push_str(ABSENT);
            }
            self.parts.push(Part::Graph { name, graph });
        }
    }

    /// Adds a paragraph, if there is anything to say.
    pub fn says(&mut self, text: &str) {
        if !text.trim().is_empty() {
            self.html(&format!("<p>{}</p>\n", escape(text.trim())));
        }
    }

    /// Adds a paragraph that tells how all of it was run.
    pub fn setting(&mut self, text: &str) {
        self.says(text);
        self.about = format!("{} {}", self.about, text.trim());
    }

    /// Adds what is markup already.
    pub fn html(&mut self, html: &str) {
        self.parts.push(Part::Html(html.to_owned()));
    }

    /// Says that the pages of some runs are bookkeeping alone: here, and beside each graph that is added later.
    pub fn bookkeeping(&mut self, which: &str) {
        self.absent = true;
        self.html(&format!(
            "<p class=\"absent\">{}</p>\n",
            escape(&format!(
                "{which}: their page bytes are absent; the bookkeeping is real: descriptors, page hash, LRU and flush \
                 lists."
            ))
        ));
    }

    /// Adds tables that are shown when one asks for them.
    pub fn folded(&mut self, summary: &str, tables: &[(&[&str], Vec<Vec<String>>)]) {
        let tables = tables.iter().filter(|(_, lines)| !lines.is_empty());
        let html: String = tables.map(|(headings, lines)| table(headings, lines.iter().cloned())).collect();
        if !html.is_empty() {
            self.html(&format!("<details>\n<summary>{}</summary>\n{html}</details>\n", escape(summary)));
        }
    }

    /// The part as the page has it.
    pub fn in_page(&self) -> String {
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

    /// Its graphs as files, by their names; `from` says where the figures come from.
    pub fn files(self, from: &str) -> Vec<(String, String)> {
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
