//! Pages that are found by their tags, of which each has any number, and listed by author and date: two indexes of
//! which extractors make the entries.
//!
//! Run it with `cargo run --release -p windfall --example tags`.

use std::path::Path;

use windfall::{
    CompositeKey, CompositePart, Database, ExtractedEntries, IndexOptions, Options, Result, TableOptions,
    error::UsageError, row,
};

/// The value of a page: its author, its day as a number, its tags, and its text.
fn page(author: &str, day: u32, tags: &str, text: &str) -> Vec<u8> {
    row::encode(&[author.as_bytes(), &day.to_be_bytes(), tags.as_bytes(), text.as_bytes()])
}

/// Returns a field of a page as a text. A page with another one is refused: its call fails.
fn text(value: &[u8], field: usize) -> Result<&str> {
    let field = row::field(value, field).unwrap_or_default();
    core::str::from_utf8(field).map_err(|error| UsageError::Other(error.to_string().into()).into())
}

/// Makes an entry for each tag of a page; a page without tags has none.
fn tags(_key: &[u8], value: &[u8], entries: &mut ExtractedEntries) -> Result<()> {
    for tag in text(value, 2)?.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
        entries.add((tag.to_lowercase(),));
    }
    Ok(())
}

/// Makes an entry of author and day, the latest day first.
fn by_author(_key: &[u8], value: &[u8], entries: &mut ExtractedEntries) -> Result<()> {
    let day = row::field(value, 1).and_then(|day| Some(u32::from_be_bytes(day.try_into().ok()?)));
    entries.add((text(value, 0)?, CompositePart::from(day).descending()));
    Ok(())
}

/// Runs the example in a database in this folder.
///
/// # Errors
/// The errors of the database.
pub(crate) fn run(folder: &Path) -> Result<()> {
    let options = Options::default().buffer_pool_size(64 << 20);
    let options = options.extractor("tags, in lower case", tags).extractor("author, latest first", by_author);
    let db = Database::open(folder, options)?;
    let options = TableOptions::default()
        .index("tag", IndexOptions::extracted("tags, in lower case"))
        .index("author", IndexOptions::extracted("author, latest first"));
    let pages = db.create_table("pages", options)?;
    pages.insert(b"btrees", &page("Ada", 20_260_104, "Storage, trees", "Nodes are pages."))?;
    pages.insert(b"undo", &page("Ada", 20_261_128, "storage, transactions", "Old versions are kept."))?;
    pages.insert(b"draft", &page("Edgar", 20_260_301, "", "Nothing yet."))?;

    let by_tag = pages.index("tag")?;
    let tagged = |tag: &str| -> Result<Vec<Vec<u8>>> {
        by_tag.get(&by_tag.key((tag,)))?.map(|page| Ok(page?.key)).collect()
    };
    assert_eq!(tagged("storage")?, [&b"btrees"[..], b"undo"]);
    pages.update(b"undo", &page("Ada", 20_261_128, "transactions", "Old versions are kept."))?;
    assert_eq!(tagged("storage")?, [b"btrees"]);

    // The latest page of an author: the first entry that begins with the name.
    let by_author = pages.index("author")?;
    let latest = by_author.get(&by_author.key(("Ada",)))?.next().transpose()?.expect("Ada has pages");
    assert_eq!(latest.key, b"undo");
    let parts: Vec<_> = CompositeKey::parts(&latest.index_key).collect::<Result<_>>()?;
    println!("the latest page of {} is of {}", parts[0], parts[1]);
    db.close()
}

#[cfg(not(test))]
fn main() -> Result<()> {
    let folder = std::env::temp_dir().join("windfall-example-tags");
    let _ = std::fs::remove_dir_all(&folder);
    run(&folder)
}
