//! The output of commands.
//!
//! **Purpose.** Aligned tables as text, JSON for programs, and bytes in both.
//!
//! **Invariants.** Bytes that are text stay text; others are escaped in text, and are `{"hex": ".."}` in JSON, so that
//! nothing is lost (test: `bytes_are_distinguished_from_text`).

use std::{
    fmt::Write as _,
    io::{self, BufWriter, StdoutLock, Write},
    str,
};

use serde_json::{Value, json};
pub(crate) use windfall_measure::Grid;
use windfall_measure::units;

use crate::failure::{Failure, Result};

/// The buffered standard output.
pub(crate) type Out = BufWriter<StdoutLock<'static>>;

/// Returns standard output.
pub(crate) fn out() -> Out {
    BufWriter::new(io::stdout().lock())
}

/// Prints a value as JSON, and a line break.
pub(crate) fn print_json(value: &Value) -> Result<()> {
    print(&format!("{value:#}\n"))
}

/// Prints text unchanged.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = out();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Answer)
}

/// Formats bytes as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) if !text.contains(char::is_control) => text.to_owned(),
        Ok(text) => text
            .chars()
            .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.into() })
            .collect(),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

/// The maximum number of characters in a quotation, and of names in a list.
const QUOTED: usize = 60;
const LISTED: usize = 8;

/// Formats bytes for a message: only their beginning, if they are many.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    // One more character than is shown indicates that there are more.
    let end = match str::from_utf8(bytes) {
        Ok(text) => text.char_indices().nth(QUOTED + 1).map_or(text.len(), |(end, _)| end),
        Err(_) => bytes.len().min(QUOTED + 1),
    };
    let text = text(&bytes[..end]);
    match text.char_indices().nth(QUOTED) {
        None => text,
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

/// Formats names for a message: only the first ones, if they are many.
pub(crate) fn listed(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(LISTED).map(|name| quoted(name.as_bytes())).collect();
    let more = names.len() - shown.len();
    let shown = shown.join(", ");
    if more == 0 { shown } else { format!("{shown}, ... and {} more", units::count(more as u64)) }
}

/// Returns bytes as JSON.
pub(crate) fn value(bytes: &[u8]) -> Value {
    str::from_utf8(bytes).map_or_else(|_| json!({ "hex": hex(bytes) }), Into::into)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotations_are_cut() {
        let long = "é".repeat(QUOTED);
        assert_eq!(quoted(long.as_bytes()), long);
        assert_eq!(quoted(format!("{long}é").as_bytes()), format!("{long}..."));
        assert_eq!(quoted(&[0xff; 2]), "\\xff\\xff");
        assert_eq!(quoted(&[0xff; 1_000]), format!("{}...", "\\xff".repeat(QUOTED / 4)));
        let names: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        assert_eq!(listed(&names[..3]), "0, 1, 2");
        assert_eq!(listed(&names), "0, 1, 2, 3, 4, 5, 6, 7, ... and 2 more");
    }

    #[test]
    fn bytes_are_distinguished_from_text() {
        assert_eq!(text(b"a\tb"), "a\\tb");
        assert_eq!(text(b"\xff"), "\\xff");
        assert_eq!(value(b"\xff\x01"), json!({ "hex": "ff01" }));
        assert_eq!(value("é".as_bytes()), json!("é"));
    }
}
