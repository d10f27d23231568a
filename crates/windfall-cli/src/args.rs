//! The command line.
//!
//! **Purpose.** Every command with its options, as `clap` parses them. The doc comments are the text of `--help`.
//!
//! **Invariants.** Invalid arguments are rejected here (test: `command_lines_that_make_no_sense`), before anything is
//! opened.

use std::path::PathBuf;

use clap::{Args as Group, Parser, Subcommand, ValueEnum};

/// Windfall: a storage engine in which dropping a table costs the same whatever the buffer pool holds.
#[derive(Debug, Parser)]
#[command(name = "windfall", version, arg_required_else_help = true)]
pub(crate) struct Args {
    /// The folder of the database; `demo` and `bench` make databases of their own.
    #[arg(long, global = true, display_order = 100, value_name = "PATH", default_value = "windfall-data")]
    pub db: PathBuf,

    /// Answer in JSON, for programs.
    #[arg(long, global = true, display_order = 101)]
    pub json: bool,

    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Drop tables under load and measure the effect: prints a table, and writes report.html.
    Demo(DemoArgs),
    /// Measure what the project claims.
    Bench(BenchArgs),
    /// Run the historical experiments on this machine, with the drops of several server versions; writes lab.html.
    #[cfg(feature = "lab")]
    Lab(LabArgs),
    /// Create an empty table (and the database, if there is none).
    Create(CreateArgs),
    /// Load a CSV or TSV file with a header; creates the table if there is none.
    Load(LoadArgs),
    /// Print the row with the given key.
    Get(GetArgs),
    /// Print rows in key order.
    Scan(ScanArgs),
    /// Drop one table, or several in one atomic step.
    Drop {
        /// The tables.
        #[arg(required = true, value_name = "TABLE")]
        tables: Vec<String>,
    },
    /// Empty a table.
    Truncate {
        /// The table.
        table: String,
    },
    /// List the tables.
    Tables,
    /// Work with one database, statement by statement: transactions, in several concurrent sessions.
    Shell(ShellArgs),
    /// Check every page, tree and file of a database that no process has open, or of one of its tables.
    Check {
        /// Check this table alone.
        #[arg(long)]
        table: Option<String>,
    },
    /// Wait for the end of standard input, then remove files and folders.
    #[command(hide = true)]
    Sweep(SweepArgs),
}

/// Options of `sweep`, which this program runs as its own child process.
#[derive(Clone, Debug, Group)]
pub(crate) struct SweepArgs {
    /// The files and folders to remove, folders with all their content.
    #[arg(required = true)]
    pub all: Vec<PathBuf>,
    /// A folder to remove afterwards if it is empty.
    #[arg(long)]
    pub if_empty: Vec<PathBuf>,
}

/// Options of `shell`.
#[derive(Debug, Group)]
pub(crate) struct ShellArgs {
    /// With statements from standard input: continue after a failed statement, instead of stopping at the first.
    #[arg(long)]
    pub keep_going: bool,
}

/// Options of `create`.
#[derive(Debug, Group)]
pub(crate) struct CreateArgs {
    /// The name of the table.
    pub table: String,
    /// The names of its columns, separated by commas.
    #[arg(long, required = true, value_delimiter = ',', value_name = "NAME,...")]
    pub columns: Vec<String>,
    /// The column that is the key [default: the first].
    #[arg(long, value_name = "COLUMN")]
    pub key: Option<String>,
}

/// Options of `load`.
#[derive(Debug, Group)]
pub(crate) struct LoadArgs {
    /// The table to load into.
    pub table: String,
    /// The file; `-`, or no file, means standard input.
    pub file: Option<PathBuf>,
    /// The column that is the key [default: the first]. Keys are ordered by their bytes.
    #[arg(long, value_name = "COLUMN")]
    pub key: Option<String>,
    /// The field separator, as one character or `tab` [default: tab for *.tsv, else a comma].
    #[arg(long, value_name = "CHAR", value_parser = delimiter)]
    pub delimiter: Option<u8>,
    /// Skip bad lines and count them, instead of stopping at the first.
    #[arg(long)]
    pub skip_bad: bool,
    /// Replace the row if its key exists already, instead of reporting the line as bad.
    #[arg(long)]
    pub replace: bool,
    /// The maximum length of a line, including quoted line breaks; a longer one stops the load. A line needs a few
    /// times its length of memory. The header has at most 1m.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "64m")]
    pub max_line: u64,
}

/// Options of `get`.
#[derive(Debug, Group)]
pub(crate) struct GetArgs {
    /// The table.
    pub table: String,
    /// The key.
    #[arg(allow_negative_numbers = true)]
    pub key: String,
}

/// Options of `scan`.
#[derive(Debug, Group)]
pub(crate) struct ScanArgs {
    /// The table.
    pub table: String,
    /// The first key (included).
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub from: Option<String>,
    /// The last key (excluded).
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub to: Option<String>,
    /// The maximum number of rows.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub limit: Option<usize>,
    /// Print rows in descending key order.
    #[arg(long)]
    pub reverse: bool,
}

/// When a commit is durable, with the values of `innodb_flush_log_at_trx_commit` in `MariaDB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Commit {
    /// Written and synced about once a second.
    #[value(name = "0")]
    Lazy,
    /// Synced at every commit.
    #[value(name = "1")]
    Sync,
    /// Written at every commit, synced about once a second.
    #[value(name = "2")]
    Write,
}

impl Commit {
    /// Returns the number.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Lazy => 0,
            Self::Sync => 1,
            Self::Write => 2,
        }
    }
}

/// Options of `demo`.
#[derive(Clone, Debug, Group)]
pub(crate) struct DemoArgs {
    /// The duration of the measurement: half of it without drops, half of it with.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(2..=86_400))]
    pub seconds: u64,
    /// The folder of the report, and of the database while the demo runs.
    #[arg(long, value_name = "DIR", default_value = "windfall-demo")]
    pub out: PathBuf,
    /// Client threads.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// Rows of the table that the clients work on.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1_000..=100_000_000))]
    pub rows: u32,
    /// The size of the buffer pool, such as 512m or 4g [default: 3g, or half of the memory if that is less].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub pool: Option<u64>,
    /// The size of the one big table that is dropped [default: 1g, or a third of the pool if that is less].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub big_table: Option<u64>,
    /// Seconds between two drops.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    pub drop_every: f64,
    /// Rows of each small table that is dropped.
    #[arg(long, default_value_t = 1_000, value_name = "ROWS")]
    pub small_rows: u32,
    /// When a commit is durable.
    #[arg(long, value_enum, default_value = "1", value_name = "0|1|2")]
    pub flush_log_at_trx_commit: Commit,
    /// The random seed: the same seed gives the same rows and the same sequence of calls.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Keep the database of the demo.
    #[arg(long)]
    pub keep: bool,
}

/// Options of `bench`.
#[derive(Clone, Debug, Group)]
pub(crate) struct BenchArgs {
    /// The benchmark.
    #[arg(value_enum)]
    pub name: BenchName,
    /// Small sizes and short times: only shows that the benchmark runs; no bound is enforced.
    #[arg(long)]
    pub quick: bool,
    /// The folder of the databases while it runs [default: windfall-bench, which is removed afterwards].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The random seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// `foreground`: the length of the artificial stall that checks the sensitivity of the measurement.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 1_000)]
    pub plant_hold_us: u64,
    /// Measure only these parts; a wrong name lists them. `drop`: also factors, which are what the cost of a
    /// drop must not depend on, such as rows.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub only: Vec<String>,
    /// `transactions`: also the part aged-view, in which a read view stays open for thirty minutes, once while no index
    /// key changes and once while keys change. It takes more than an hour, and some tens of gigabytes of disk for the
    /// undo that the view keeps.
    #[arg(long)]
    pub long: bool,
    /// `calls`: the folder of the programs that it measures [default: ../no-lto/examples, from the folder of this
    /// program].
    #[arg(long, value_name = "DIR")]
    pub programs: Option<PathBuf>,
    /// `drop`: an artificial cost in each statement, to check that it is detected.
    #[arg(long, hide = true, value_enum)]
    pub plant_cost: Option<Plant>,
    /// The part that a child process of a benchmark executes.
    #[arg(long, hide = true, value_name = "PART")]
    pub child: Option<String>,
    /// `calls`: the shared object whose code a child process measures.
    #[arg(long, hide = true, value_name = "FILE")]
    pub library: Option<PathBuf>,
}

/// An artificial cost in each statement, to check that it is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Plant {
    /// A cost that grows with what the table contains.
    Owned,
    /// A cost that grows with what the database contains.
    Around,
    /// A cost that grows with what the table contains, and is deferred to the next statement.
    Next,
}

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchName {
    /// The counted work and the time of a drop.
    Drop,
    /// Many tables that are created and dropped.
    CreateDrop,
    /// The effect of a drop on other clients.
    Foreground,
    /// The effect of the deletion of a big file on other clients.
    BigFile,
    /// The reuse of the memory of a dropped table.
    MemoryBack,
    /// Point reads of a cached table, compared with other engines.
    Read,
    /// A database several times larger than the pool.
    LargerThanMemory,
    /// The time from a kill until the database is open again.
    Recovery,
    /// The memory of the engine's bookkeeping, the size of entries and files, the disk of a small database.
    Footprint,
    /// The cost of transactions of many calls: of one, of many at once, and with an old read view open.
    Transactions,
    /// The processor time and the instructions of single calls, by a program without link-time optimisation.
    Calls,
    /// The cost of the interface between tree and pool in a point read.
    #[cfg(feature = "lab")]
    Seam,
}

impl BenchName {
    /// Returns the name on the command line.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::CreateDrop => "create-drop",
            Self::Foreground => "foreground",
            Self::BigFile => "big-file",
            Self::MemoryBack => "memory-back",
            Self::Read => "read",
            Self::LargerThanMemory => "larger-than-memory",
            Self::Recovery => "recovery",
            Self::Footprint => "footprint",
            Self::Transactions => "transactions",
            Self::Calls => "calls",
            #[cfg(feature = "lab")]
            Self::Seam => "seam",
        }
    }
}

/// The default output folder of the lab.
#[cfg(feature = "lab")]
pub(crate) const LAB_OUT: &str = "windfall-lab";

/// Options of `lab`.
#[cfg(feature = "lab")]
#[derive(Clone, Debug, Group)]
pub(crate) struct LabArgs {
    /// The experiment or the command.
    #[arg(value_enum)]
    pub what: LabName,
    /// `compare`: two results, each a lab.json; `draw`: one.
    #[arg(value_name = "RESULTS")]
    pub results: Vec<PathBuf>,
    /// `draw`: only these: an experiment such as x1, a drawing such as x1-stalls, or a table such as x1-table.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub only: Vec<String>,
    /// The size of the experiments.
    #[arg(long, value_enum, default_value = "default")]
    pub scale: LabScale,
    /// The folder of the report or the drawings, and of the servers' files while they run.
    #[arg(long, value_name = "DIR", default_value = LAB_OUT)]
    pub out: PathBuf,
    /// A folder in memory, for the runs that the original reports made on a ramdisk [default: /dev/shm; if it is
    /// missing or has too little space, these runs are skipped].
    #[arg(long, value_name = "DIR")]
    pub tmpfs: Option<PathBuf>,
    /// The random seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Execute the run that standard input describes, in this folder: this program starts itself this way for each run.
    #[arg(long, hide = true, value_name = "DIR")]
    pub child: Option<PathBuf>,
}

/// An experiment of the lab.
#[cfg(feature = "lab")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LabName {
    /// All experiments.
    All,
    /// Stalls: tables are dropped under a load of reads and writes (Percona, June 2012).
    X1,
    /// Fill: tables are created and dropped with the pool filled to various degrees (Percona, April 2011).
    X2,
    /// Many tables, dropped by several threads (bug 56332).
    X3,
    /// The loop: a table is created and dropped repeatedly (bug 69316).
    X4,
    /// Pools from 32 to 450 GB (the article on 8.0.23).
    X5,
    /// Retention: the oldest partition is dropped every second.
    X6,
    /// The storm: a table is dropped while all of its pages are in the hash index.
    X7,
    /// The file: a large one is deleted while other clients commit.
    X8,
    /// The factors that the cost of a drop does not depend on: Windfall alone, with little and with much of each.
    X9,
    /// Compare two results.
    Compare,
    /// Write the graphs of a result as SVG files, and its tables in Markdown.
    Draw,
}

/// The size of the experiments of the lab.
#[cfg(feature = "lab")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LabScale {
    /// Only shows that they run; takes seconds.
    Quick,
    /// For 2 cores and 24 GiB of memory; takes ten minutes.
    Default,
    /// As published: hours.
    Full,
}

/// Parses a size such as `4096`, `512k`, `64m` or `8g`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let (digits, unit) = lower.split_at(lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len()));
    let shift = match unit.trim_start() {
        "" | "b" => Some(0),
        "k" | "kb" | "kib" => Some(10),
        "m" | "mb" | "mib" => Some(20),
        "g" | "gb" | "gib" => Some(30),
        "t" | "tb" | "tib" => Some(40),
        _ => None,
    };
    let bytes = shift.and_then(|shift| digits.parse::<u64>().ok()?.checked_mul(1 << shift));
    bytes.ok_or_else(|| "give a number of bytes, such as 4096, 512k, 64m or 8g".into())
}

/// Parses a delimiter.
fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        [one] if one.is_ascii() && !matches!(one, b'"' | b'\n' | b'\r') => Ok(*one),
        _ => Err("give one ASCII character, or `tab`".into()),
    }
}

/// Fuzz target: arbitrary words as a command line.
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz {
    use clap::Parser as _;

    use super::{Args, delimiter, size};

    /// Parses one word per line. The value of an accepted number must match its digits and its unit.
    pub(crate) fn arguments(data: &[u8]) {
        let Ok(text) = str::from_utf8(data) else { return };
        let words: Vec<&str> = text.split('\n').collect();
        let _ = Args::try_parse_from([&["windfall"], &words[..]].concat());
        for word in words {
            if let Ok(bytes) = size(word) {
                let digits: String = word.chars().filter(char::is_ascii_digit).collect();
                let unit =
                    word.chars().find(char::is_ascii_alphabetic).map_or('b', |c| c.to_ascii_lowercase());
                let power = ["b", "k", "m", "g", "t"].iter().position(|u| u.starts_with(unit));
                let number: u128 = digits.parse().unwrap_or(u128::MAX);
                assert_eq!(power.map(|power| number << (10 * power)), Some(bytes.into()), "{word:?}");
            }
            if let Ok(one) = delimiter(word) {
                assert!(one.is_ascii() && (word.len() == 1 || one == b'\t'));
            }
        }
    }

    /// Returns command lines as seeds.
    pub(crate) fn arguments_seeds() -> Vec<Vec<u8>> {
        let lines = [
            "create\nt\n--columns\na,b\n--key\nb",
            "load\nt\n--delimiter\ntab\n--skip-bad\n-",
            "scan\nt\n--limit\n10\n--json",
            "demo\n--pool\n8g\n--seconds\n20",
            "bench\ndrop\nread",
            "16KiB\n64 m\n18446744073709551615\n-1\n+5",
            "drop\na\nb\n--db\nhere",
        ];
        lines.map(|line| line.as_bytes().to_vec()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("64m"), Ok(64 << 20));
        assert_eq!(size("8G"), Ok(8 << 30));
        assert_eq!(size("16KiB"), Ok(16 << 10));
        for bad in ["", "m", "-1", "+1", "1.5g", "12q", "4kbb", "4ib", "99999999999t"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn delimiters_are_read() {
        assert_eq!(delimiter("tab"), Ok(b'\t'));
        assert_eq!(delimiter(";"), Ok(b';'));
        for bad in ["", "ab", "\"", "é"] {
            assert!(delimiter(bad).is_err(), "{bad}");
        }
    }
}
