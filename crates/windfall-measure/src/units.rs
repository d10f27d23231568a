//! Readable numbers.
//!
//! **Purpose.** Formats counts, times and sizes in suitable units; wraps text into lines.
//!
//! **Invariants.** A count is exact; a time or a size has about three significant digits (test: `numbers_read_well`).

/// Formats a count with commas between thousands.
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

/// Formats a count of things, with their name.
pub fn things(n: u64, name: &str) -> String {
    format!("{} {name}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Formats a number with about three significant digits.
pub fn short(x: f64) -> String {
    let size = x.abs();
    match size {
        _ if x == 0.0 => "0".into(),
        _ if size >= 1000.0 => count(x.round().max(0.0) as u64),
        _ if size >= 100.0 => format!("{x:.0}"),
        _ if size >= 10.0 => format!("{x:.1}"),
        _ if size >= 1.0 => format!("{x:.2}"),
        _ if size >= 0.001 => format!("{x:.3}"),
        _ => format!("{x:.1e}"),
    }
}

/// Formats a time in nanoseconds, in a suitable unit.
pub fn time(ns: f64) -> String {
    match ns {
        _ if ns < 1e3 => format!("{ns:.0} ns"),
        _ if ns < 1e6 => format!("{} µs", short(ns / 1e3)),
        _ if ns < 1e9 => format!("{} ms", short(ns / 1e6)),
        _ => format!("{} s", short(ns / 1e9)),
    }
}

/// Formats a size in bytes, in a suitable unit.
pub fn bytes(n: f64) -> String {
    match n {
        _ if n < 1024.0 => format!("{n:.0} B"),
        _ if n < 1_048_576.0 => format!("{} KiB", short(n / 1024.0)),
        _ if n < 1_073_741_824.0 => format!("{} MiB", short(n / 1_048_576.0)),
        _ => format!("{} GiB", short(n / 1_073_741_824.0)),
    }
}

/// Formats a ratio.
pub fn times(ratio: f64) -> String {
    match ratio {
        _ if !ratio.is_finite() => "-".into(),
        _ if ratio > 0.0 && ratio < 0.1 => format!("{ratio:.3}×"),
        _ if ratio < 10.0 => format!("{ratio:.2}×"),
        _ if ratio < 100.0 => format!("{ratio:.1}×"),
        _ => format!("{}×", count(ratio.round() as u64)),
    }
}

/// Formats a date with its time in UTC, from seconds since 1970.
pub fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March, so that the leap day is the last: Howard Hinnant's `civil_from_days`.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * from_march + 2) / 5 + 1, (from_march + 2) % 12 + 1);
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3_600, rest / 60 % 60)
}

/// Wraps text between words into lines of at most `columns` characters.
pub fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is a first line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > columns {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
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
        assert_eq!(short(0.01 / 34.0), "2.9e-4");
        assert_eq!(
            [time(999.0), time(1500.0), time(2.5e7), time(3e9)],
            ["999 ns", "1.50 µs", "25.0 ms", "3.00 s"]
        );
    }
    #[test]
    fn ratios_and_dates_read_well() {
        assert_eq!(
            [times(0.0512), times(2.0), times(31.25), times(1234.5), times(f64::NAN)],
            ["0.051×", "2.00×", "31.2×", "1,235×", "-"]
        );
        assert_eq!(
            [date(0), date(951_782_399), date(951_782_400), date(1_795_424_160)],
            ["1970-01-01 00:00 UTC", "2000-02-28 23:59 UTC", "2000-02-29 00:00 UTC", "2026-11-23 08:56 UTC"]
        );
    }
}
