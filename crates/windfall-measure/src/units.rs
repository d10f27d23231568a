//! Numbers as people read them.
//!
//! **Purpose.** Counts, times and sizes, short and in the unit that suits them.
//!
//! **Invariants.** A count is exact; a time or a size has about three significant digits.
//!
//! **May touch.** Nothing.

/// A count with commas between thousands.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count of things, with their name.
pub fn things(n: u64, name: &str) -> String {
    format!("{} {name}{}", count(n), if n == 1 { "" } else { "s" })
}

/// A number with about three significant digits.
pub fn short(x: f64) -> String {
    let size = x.abs();
    match size {
        _ if x == 0.0 => "0".into(),
        _ if size >= 1000.0 => count(x.round().max(0.0) as u64),
        _ if size >= 100.0 => format!("{x:.0}"),
        _ if size >= 10.0 => format!("{x:.1}"),
        _ if size >= 1.0 => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}

/// A time in nanoseconds, in the unit that suits it.
pub fn time(ns: f64) -> String {
    match ns {
        _ if ns < 1e3 => format!("{ns:.0} ns"),
        _ if ns < 1e6 => format!("{} µs", short(ns / 1e3)),
        _ if ns < 1e9 => format!("{} ms", short(ns / 1e6)),
        _ => format!("{} s", short(ns / 1e9)),
    }
}

/// A size in bytes, in the unit that suits it.
pub fn bytes(n: f64) -> String {
    match n {
        _ if n < 1024.0 => format!("{n:.0} B"),
        _ if n < 1_048_576.0 => format!("{} KiB", short(n / 1024.0)),
        _ if n < 1_073_741_824.0 => format!("{} MiB", short(n / 1_048_576.0)),
        _ => format!("{} GiB", short(n / 1_073_741_824.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            [count(0), count(999), count(1_000), count(12_345_678)],
            ["0", "999", "1,000", "12,345,678"]
        );
        assert_eq!(
            [things(0, "row"), things(1, "row"), things(2_000, "row")],
            ["0 rows", "1 row", "2,000 rows"]
        );
        assert_eq!([short(0.0), short(0.25), short(12.34), short(4321.0)], ["0", "0.250", "12.3", "4,321"]);
        assert_eq!(
            [time(999.0), time(1500.0), time(2.5e7), time(3e9)],
            ["999 ns", "1.50 µs", "25.0 ms", "3.00 s"]
        );
    }
}
