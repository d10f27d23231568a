//! The words of a line.
//!
//! **Purpose.** Splits a line at its blanks, and parses quoted words.
//!
//! **Invariants.** Any bytes can be written, and a word has exactly the bytes that are written (test:
//! `every_byte_can_be_said`): nothing is omitted and nothing is guessed. A quoted word is never a keyword (test:
//! `a_keyword_stands_without_quotes`).

/// A word of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// The bytes of the word.
    pub bytes: Vec<u8>,
    /// Whether it was quoted.
    pub quoted: bool,
}

impl Word {
    /// Returns whether it is this keyword, in any case.
    pub(super) fn is(&self, keyword: &str) -> bool {
        !self.quoted && self.bytes.eq_ignore_ascii_case(keyword.as_bytes())
    }
}

/// Splits a line into words, up to a `#` at the start of one, which starts a comment.
///
/// # Errors
/// An unclosed quote, a quote within a word, or an unknown escape; in words.
pub(super) fn words(line: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace());
        match rest.bytes().next() {
            None | Some(b'#') => return Ok(words),
            Some(quote @ (b'\'' | b'"')) => {
                let (bytes, behind) = quoted(&rest.as_bytes()[1..], quote)?;
                // A slice after an ASCII character begins at a character boundary.
                rest = &rest[rest.len() - behind..];
                if rest.bytes().next().is_some_and(|next| !next.is_ascii_whitespace()) {
                    return Err(
                        "a word continues after its closing quote: put a blank between two words".into()
                    );
                }
                words.push(Word { bytes, quoted: true });
            }
            Some(_) => {
                let end = rest.find(|c: char| c.is_ascii_whitespace()).unwrap_or(rest.len());
                let (word, behind) = rest.split_at(end);
                if word.contains(['\'', '"']) {
                    return Err(format!(
                        "a quote stands within the word {}: put the whole word in quotes, and a backslash before a quote in \
                         it",
                        crate::output::quoted(word.as_bytes())
                    ));
                }
                words.push(Word { bytes: word.as_bytes().to_vec(), quoted: false });
                rest = behind;
            }
        }
    }
}

/// Reads up to the closing quote. Returns the bytes, and the number of bytes after the quote.
fn quoted(text: &[u8], quote: u8) -> Result<(Vec<u8>, usize), String> {
    let mut said = Vec::new();
    let mut rest = text;
    loop {
        match rest {
            [] => return Err(format!("the quote {} is never closed", quote as char)),
            [end, behind @ ..] if *end == quote => return Ok((said, behind.len())),
            [b'\\', b'x', high, low, behind @ ..] if let Some(byte) = byte(*high, *low) => {
                said.push(byte);
                rest = behind;
            }
            [b'\\', escape, behind @ ..] if let Some(byte) = escaped(*escape) => {
                said.push(byte);
                rest = behind;
            }
            [b'\\', ..] => {
                return Err("a backslash in quotes begins one of \\n \\t \\\\ \\' \\\" and \\xHH, with two hex digits; for \
                            itself write it twice"
                    .into());
            }
            [byte, behind @ ..] => {
                said.push(*byte);
                rest = behind;
            }
        }
    }
}

fn escaped(escape: u8) -> Option<u8> {
    match escape {
        b'n' => Some(b'\n'),
        b't' => Some(b'\t'),
        b'\\' | b'\'' | b'"' => Some(escape),
        _ => None,
    }
}

fn byte(high: u8, low: u8) -> Option<u8> {
    let digit = |c: u8| (c as char).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
}

/// Returns a quoted word with these bytes; any bytes can be quoted.
#[cfg(any(test, feature = "fuzz"))]
pub(super) fn in_quotes(bytes: &[u8]) -> String {
    let mut text = String::from("'");
    for &byte in bytes {
        match byte {
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\\' | b'\'' => text.extend(['\\', byte as char]),
            b' '..=b'~' => text.push(byte as char),
            _ => text.extend(["\\x".to_owned(), format!("{byte:02x}")]),
        }
    }
    text + "'"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn said(line: &str) -> Vec<Vec<u8>> {
        words(line).unwrap().into_iter().map(|word| word.bytes).collect()
    }

    #[test]
    fn a_line_falls_into_words() {
        assert_eq!(
            said("  put\tt  é a#b \\n # comment 'open\r"),
            [&b"put"[..], b"t", "é".as_bytes(), b"a#b", b"\\n"]
        );
        assert!(said(" \t\r").is_empty());
        assert!(said("# all").is_empty());
        assert_eq!(
            said(r#"'a "b"' "it's" '' "\"\'\\\n\t" '# é'"#),
            [&b"a \"b\""[..], b"it's", b"", b"\"'\\\n\t", "# é".as_bytes()]
        );
        assert_eq!(said(r"'\x00\xfF\x7a'"), [b"\x00\xffz"]);
    }

    #[test]
    fn a_keyword_stands_without_quotes() {
        let words = words("Get 'get'").unwrap();
        assert!(words[0].is("get") && !words[1].is("get") && !words[0].is("gets"));
    }

    #[test]
    fn ambiguous_quoting_is_refused() {
        for (line, what) in [
            ("put 'a", "never closed"),
            ("put 'a\\'", "never closed"),
            ("put \"a'", "never closed"),
            ("put O'Brien", "O'Brien"),
            ("put 'a'b", "after its closing quote"),
            ("put 'a''b'", "after its closing quote"),
            (r"'\q'", "backslash"),
            (r"'\x1'", "backslash"),
            (r"'\xg0'", "backslash"),
            ("'\\", "backslash"),
        ] {
            let why = words(line).unwrap_err();
            assert!(why.contains(what), "{line}: {why}");
        }
    }

    #[test]
    fn every_byte_can_be_said() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(said(&in_quotes(&all)), [all]);
    }
}
