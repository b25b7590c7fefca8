//! Tables for people.

use std::fmt;

/// On which side of its column a cell stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Writes `rows` in columns as wide as their widest cell, without a line's end at the end.
///
/// # Errors
/// If `f` takes no more.
pub fn table<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    columns: [Align; N],
    rows: &[[String; N]],
) -> fmt::Result {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for (index, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(columns).zip(widths);
        let cells = cells.map(|((cell, align), width)| match align {
            Align::Left => format!("{cell:<width$}"),
            Align::Right => format!("{cell:>width$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        let end = if index == 0 { "" } else { "\n" };
        write!(f, "{end}{}", line.trim_end())?;
    }
    Ok(())
}

/// A number of bytes: `812`, `64.0 KiB`, `1.3 GiB`.
pub fn bytes(count: u64) -> String {
    const EXACT: u64 = 10_000;
    if count < EXACT {
        return count.to_string();
    }
    let mut value = count as f64;
    for unit in ["KiB", "MiB", "GiB"] {
        value /= 1024.0;
        if value < 1024.0 {
            return format!("{value:.1} {unit}");
        }
    }
    format!("{:.1} TiB", value / 1024.0)
}

/// A time in nanoseconds: `0`, `850 ns`, `12.3 us`, `4.6 ms`, `1.5 s`.
pub fn duration(nanos: u64) -> String {
    let value = nanos as f64;
    match nanos {
        0 => "0".to_owned(),
        1..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.1} s", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Shown(Vec<[String; 2]>);

    impl fmt::Display for Shown {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            table(f, [Align::Left, Align::Right], &self.0)
        }
    }

    #[test]
    fn words_stand_left_and_numbers_right() {
        let rows = [["DISK", "BYTES"], ["e0", "12"], ["long name", ""]];
        let shown = Shown(rows.map(|row| row.map(str::to_owned)).to_vec());
        assert_eq!(shown.to_string(), "DISK       BYTES\ne0            12\nlong name");
    }

    #[test]
    fn numbers_are_short_enough_to_compare() {
        assert_eq!([0, 9_999].map(bytes), ["0", "9999"]);
        assert_eq!([10_240, 5 << 20, 3 << 30].map(bytes), ["10.0 KiB", "5.0 MiB", "3.0 GiB"]);
        assert_eq!(bytes(2 << 40), "2.0 TiB");
        assert_eq!([0, 850, 12_345].map(duration), ["0", "850 ns", "12.3 us"]);
        assert_eq!([4_560_000, 1_500_000_000].map(duration), ["4.6 ms", "1.5 s"]);
    }
}
