//! The answers of the shell.
//!
//! **Purpose.** An answer as text, and as one JSON object for programs.
//!
//! **Invariants.** Both have the same content, and format bytes as everywhere in this crate (test:
//! `rows_are_shown_by_their_columns`).

use serde_json::{Map, Value, json};
use windfall_measure::units;

use crate::{
    columns::{self, Columns},
    output::{self, Grid},
};

/// The result of a statement.
#[derive(Debug)]
pub(crate) enum Answer {
    /// A message, as text and as JSON.
    Message(String, Map<String, Value>),
    /// Rows of a table.
    Rows { columns: Option<Columns>, rows: Vec<(Vec<u8>, Vec<u8>)> },
}

impl Answer {
    /// Returns a message. Its JSON is an object.
    pub(crate) fn message(text: impl Into<String>, object: Value) -> Self {
        let object = match object {
            Value::Object(object) => object,
            other => Map::from_iter([("answer".to_owned(), other)]),
        };
        Self::Message(text.into(), object)
    }

    /// Returns a list under a name, which is a grid as text; `none` is the text of an empty list.
    pub(crate) fn list(name: &str, none: &str, grid: &Grid, list: Vec<Value>) -> Self {
        let text = if list.is_empty() { none.to_owned() } else { grid.text() };
        Self::message(text, json!({ name: list }))
    }

    /// Returns the text, without the last line break.
    pub(crate) fn text(&self) -> String {
        let text = match self {
            Self::Message(text, _) => text.clone(),
            Self::Rows { rows, .. } if rows.is_empty() => "no rows".into(),
            Self::Rows { columns, rows } => {
                let names: Vec<String> = columns.as_ref().map_or_else(
                    || vec!["key".into(), "value".into()],
                    |c| c.names().map(|name| output::text(name.as_bytes())).collect(),
                );
                // A heading that begins with `>` marks a column of numbers; names must not be parsed so.
                let mut grid = Grid::left(&names);
                for (key, value) in rows {
                    let fields = columns.as_ref().zip(columns::fields(value));
                    let fields = fields.filter(|(c, fields)| fields.len() == c.others.len());
                    let fields = fields.map_or_else(|| vec![&value[..]], |(_, fields)| fields);
                    grid.line(std::iter::once(&key[..]).chain(fields).map(output::text));
                }
                grid.text() + &units::things(rows.len() as u64, "row")
            }
        };
        text.trim_end().to_owned()
    }

    /// Returns the JSON object.
    pub(crate) fn object(self) -> Map<String, Value> {
        match self {
            Self::Message(_, object) => object,
            Self::Rows { columns, rows } => {
                let rows = rows.iter().map(|(key, value)| columns::object(columns.as_ref(), key, value));
                Map::from_iter([("rows".to_owned(), rows.collect())])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shown_by_their_columns() {
        let columns = Columns { key: "id".into(), others: vec![">name".into()] };
        let value = columns::encode(&[b"Ann"]).unwrap();
        let rows = vec![(b"7".to_vec(), value), (b"8".to_vec(), b"?".to_vec())];
        let answer = Answer::Rows { columns: Some(columns), rows };
        assert_eq!(answer.text(), "id  >name\n7   Ann\n8   ?\n2 rows");
        let object = Value::from(answer.object());
        assert_eq!(object, json!({ "rows": [{ "id": "7", ">name": "Ann" }, { "key": "8", "value": "?" }] }));
        let answer = Answer::Rows { columns: None, rows: vec![(b"k".to_vec(), b"\xff".to_vec())] };
        assert_eq!(answer.text(), "key  value\nk    \\xff\n1 row");
        assert_eq!(Answer::Rows { columns: None, rows: vec![] }.text(), "no rows");
    }
}
