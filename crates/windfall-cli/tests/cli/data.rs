//! Tables and rows: what is written can be read.

use serde_json::json;

use crate::Folder;

const CITIES: &str = "id,city,people\n1,Oslo,709000\n2,\"Brno, CZ\",400000\n3,Ύδρα,1900\n";

fn cities() -> Folder {
    let folder = Folder::new();
    folder.file("cities.csv", CITIES);
    folder.call(&["load", "cities", "cities.csv"]).served();
    folder
}

#[test]
fn rows_of_a_file_can_be_read_back() {
    let folder = Folder::new();
    folder.file("cities.csv", CITIES);
    let printed = folder.call(&["load", "cities", "cities.csv"]).served();
    assert_eq!(printed.out, "loaded 3 rows into cities (key: id)\n");
    let printed = folder.call(&["get", "cities", "2"]).served();
    assert_eq!(printed.out, "column  value\nid      2\ncity    Brno, CZ\npeople  400000\n");
    let printed = folder.call(&["--json", "get", "cities", "3"]).served();
    assert_eq!(printed.json(), json!({ "id": "3", "city": "Ύδρα", "people": "1900" }));
    assert_eq!(folder.call(&["scan", "cities"]).served().out, CITIES);
}

#[test]
fn a_scan_has_ends_a_limit_and_two_directions() {
    let folder = cities();
    let ids = |arguments: &[&str]| -> Vec<String> {
        let printed = folder.call(&[&["--json", "scan", "cities"], arguments].concat()).served();
        printed.json().as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&[]), ["1", "2", "3"]);
    assert_eq!(ids(&["--from", "2"]), ["2", "3"]);
    assert_eq!(ids(&["--to", "3"]), ["1", "2"]);
    assert_eq!(ids(&["--reverse", "--limit", "2"]), ["3", "2"]);
    assert_eq!(ids(&["--from", "1", "--to", "3", "--reverse"]), ["2", "1"]);
    assert!(ids(&["--from", "3", "--to", "1"]).is_empty());
    assert!(ids(&["--limit", "0"]).is_empty());
    assert!(ids(&["--from", "9"]).is_empty());
}

#[test]
fn any_column_can_be_the_key_and_lines_can_come_over_a_pipe() {
    let folder = Folder::new();
    let printed =
        folder.feed(&["--json", "load", "t", "-", "--key", "b", "--delimiter", "tab"], "a\tb\nx\t2\ny\t1\n");
    assert_eq!(
        printed.served().json(),
        json!({ "table": "t", "key": "b", "columns": ["a"], "rows": 2, "skipped": 0 })
    );
    assert_eq!(folder.call(&["scan", "t"]).served().out, "b,a\n1,y\n2,x\n");
    folder.file("more.tsv", "a\tb\nz\t3\n");
    folder.call(&["load", "t", "more.tsv", "--key", "b"]).served();
    assert_eq!(folder.call(&["scan", "t", "--from", "3"]).served().out, "b,a\n3,z\n");
}

#[test]
fn a_table_lives_from_create_to_drop() {
    let folder = Folder::new();
    folder.call(&["create", "t", "--columns", "a,b,c", "--key", "b"]).served();
    folder.call(&["create", "u", "--columns", "x"]).served();
    let printed = folder.call(&["tables"]).served();
    assert_eq!(
        printed.out,
        "table  file  indexes  key  columns\nt       0 B  -        b    a, c\nu       0 B  -        x    -\n"
    );
    folder.feed(&["load", "t", "--key", "b"], "a,b,c\n1,2,3\n").served();
    folder.call(&["truncate", "t"]).served();
    assert_eq!(folder.call(&["scan", "t"]).served().out, "b,a,c\n");
    let printed = folder.call(&["--json", "drop", "t", "u"]).served();
    assert_eq!(printed.json()["dropped"], json!(["t", "u"]));
    assert_eq!(folder.call(&["tables"]).served().out, "no tables\n");
    assert_eq!(folder.call(&["--json", "tables"]).served().json(), json!({ "tables": [] }));
}

#[test]
fn a_group_is_dropped_wholly_or_not_at_all() {
    let folder = cities();
    folder.call(&["drop", "cities", "nowhere"]).refused(&["nowhere"]);
    assert_eq!(folder.call(&["scan", "cities"]).served().out, CITIES);
}

#[test]
fn a_bad_line_is_named_by_its_number() {
    let folder = Folder::new();
    let bad = "id,name\n1,one\n2\n3,three\n1,again\n,none\n";
    let printed = folder.feed(&["load", "t"], bad);
    printed.refused(&["line 3", "1 field,", "header has 2", "nothing was loaded"]);
    folder.call(&["get", "t", "1"]).refused(&["no table t"]);

    let printed = folder.feed(&["load", "t", "--skip-bad"], bad).served();
    assert_eq!(printed.out, "loaded 2 rows into t (key: id), left out 3 bad lines\n");
    for what in
        ["line 3: it has 1 field,", "line 5: the key 1 is there already", "line 6: its key (id) is empty"]
    {
        assert!(printed.err.contains(what), "{what}: {}", printed.err);
    }
    assert_eq!(folder.call(&["scan", "t"]).served().out, "id,name\n1,one\n3,three\n");

    // The table existed before: the rows above the bad line stay.
    let printed = folder.feed(&["load", "t"], "id,name\n4,four\n3,other\n");
    printed.refused(&["line 3", "the key 3 is there already", "the row before it is loaded"]);
    let printed = folder.feed(&["load", "t"], "id,name\n5,five\n6,six\n3,other\n");
    printed.refused(&["line 4", "2 rows before it are loaded"]);
    folder.feed(&["load", "t"], "id,name\n3,other\n").refused(&["line 2", "nothing was loaded"]);
    assert_eq!(folder.call(&["get", "t", "4", "--json"]).served().json()["name"], "four");
    folder.feed(&["load", "t", "--replace"], "id,name\n3,other\n").served();
    assert_eq!(folder.call(&["get", "t", "3", "--json"]).served().json()["name"], "other");
}

#[test]
fn line_numbers_count_the_lines_within_quotes() {
    let folder = Folder::new();
    let printed = folder.feed(&["load", "t"], "id,text\n1,\"two\nlines\"\n2,a,b\n");
    printed.refused(&["line 4", "3 fields"]);
    folder.feed(&["load", "t"], "id,text\n1,\"two\nlines\"\n").served();
    assert_eq!(
        folder.call(&["get", "t", "1"]).served().out,
        "column  value\nid      1\ntext    two\\nlines\n"
    );
}

#[test]
fn a_quote_that_is_never_closed_swallows_no_lines() {
    let folder = Folder::new();
    let cut = "id,text\n1,one\n2,\"two\n3,three\n";
    folder.feed(&["load", "t"], cut).refused(&["line 3", "never closed", "nothing was loaded"]);
    let printed = folder.feed(&["load", "t", "--skip-bad"], cut).served();
    assert_eq!(printed.out, "loaded 1 row into t (key: id), left out 1 bad line\n");
    folder.feed(&["load", "u"], "\"id,text\n1,one\n").refused(&["line 1", "never closed"]);
    // The last line needs no line break, and a quote within a field is a character.
    folder.feed(&["load", "u"], "id,text\n1,\"one\"").served();
    folder.feed(&["load", "u"], "id,text\n2,5\" pipe").served();
    assert_eq!(folder.call(&["scan", "u"]).served().out, "id,text\n1,one\n2,\"5\"\" pipe\"\n");
    assert_eq!(folder.feed(&["load", "v"], "id,text").served().out, "loaded 0 rows into v (key: id)\n");
}

#[test]
fn files_of_other_systems_are_read() {
    let folder = Folder::new();
    folder.file("t.csv", "\u{feff}\"id\", name \r\n1,one\r\n2,\"t\r\nwo\"\r\n");
    folder.call(&["load", "t", "t.csv"]).served();
    assert_eq!(folder.call(&["scan", "t"]).served().out, "id,name\n1,one\n2,\"t\r\nwo\"\n");
}

#[test]
fn blanks_around_the_names_of_columns_do_not_count() {
    let folder = Folder::new();
    folder.call(&["create", "t", "--columns", "a, b"]).served();
    folder.feed(&["load", "t"], "a,b\n-1,x\n").served();
    assert_eq!(folder.call(&["--json", "get", "t", "-1"]).served().json(), json!({ "a": "-1", "b": "x" }));
    assert_eq!(folder.call(&["scan", "t", "--from", "-1", "--to", "-2"]).served().out, "a,b\n-1,x\n");
}

#[test]
fn bytes_that_are_no_text_survive() {
    let folder = Folder::new();
    folder.file("bytes.csv", b"id,raw\n1,\xff\xfe\n");
    folder.call(&["load", "t", "bytes.csv"]).served();
    assert_eq!(folder.call(&["--json", "get", "t", "1"]).served().json()["raw"], json!({ "hex": "fffe" }));
    assert!(folder.call(&["get", "t", "1"]).served().out.contains("\\xff\\xfe"));
}

#[test]
fn long_values_survive() {
    let folder = Folder::new();
    let long = "x".repeat(3_000_000);
    folder.feed(&["load", "t"], &format!("id,text\n1,{long}\n")).served();
    assert_eq!(folder.call(&["--json", "get", "t", "1"]).served().json()["text"], json!(long));
}

#[test]
fn a_sound_database_is_called_sound() {
    let folder = cities();
    let printed = folder.call(&["check"]).served();
    assert!(printed.out.starts_with("sound: "), "{}", printed.out);
    let printed = folder.call(&["--json", "check"]).served();
    assert_eq!(printed.json()["sound"], true);
    assert_eq!(printed.json()["findings"], json!([]));
    assert!(printed.json()["checked"]["pages"].as_u64() > Some(0), "{}", printed.out);
    // One of its tables: fewer trees, and a table that must exist.
    let trees = printed.json()["checked"]["trees"].as_u64();
    let printed = folder.call(&["--json", "check", "--table", "cities"]).served();
    assert_eq!(printed.json()["sound"], true);
    assert!(printed.json()["checked"]["trees"].as_u64() < trees, "{}", printed.out);
    folder.call(&["check", "--table", "none"]).refused(&["no table none"]);
}
