//! Checks that were recorded, to be replayed: a line each, `seconds,pod,key[,cost]`, in the order of their time.

use std::path::Path;

/// Bytes of a trace.
const TRACE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// One recorded check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Nanoseconds since the start of the trace.
    pub at: u64,
    pub pod: u64,
    pub key: u32,
    pub cost: u64,
}

/// The checks in the file `path`, or what is wrong with it.
pub fn read(path: &Path) -> Result<Vec<Recorded>, String> {
    let unreadable = |error| format!("{} cannot be read: {error}", path.display());
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > TRACE_BYTES_MAX {
        return Err(format!(
            "{} is larger than {TRACE_BYTES_MAX} bytes",
            path.display()
        ));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    parse(&text).map_err(|(line, text)| format!("{}:{line}: {text}", path.display()))
}

/// The checks in `text`, or the line that is wrong and why. Empty lines and those that start with `#` are skipped.
fn parse(text: &str) -> Result<Vec<Recorded>, (usize, &'static str)> {
    let mut recorded: Vec<Recorded> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let one =
            record(line).ok_or((number, "must be seconds,pod,key or seconds,pod,key,cost"))?;
        if recorded.last().is_some_and(|last| last.at > one.at) {
            return Err((number, "is earlier than the line before"));
        }
        recorded.push(one);
    }
    Ok(recorded)
}

fn record(line: &str) -> Option<Recorded> {
    let mut fields = line.split(',').map(str::trim);
    let seconds: f64 = fields.next()?.parse().ok()?;
    let one = Recorded {
        at: (0.0..=1e6)
            .contains(&seconds)
            .then_some((seconds * 1e9) as u64)?,
        pod: fields.next()?.parse().ok()?,
        key: fields.next()?.parse().ok()?,
        cost: match fields.next() {
            Some(cost) => cost.parse().ok()?,
            None => 1,
        },
    };
    fields.next().is_none().then_some(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_checks() {
        let recorded = parse("# a shop\n0.5,3,7\n\n0.5,0,8,2\n").expect("sound");
        assert_eq!(recorded.len(), 2);
        let last = Recorded {
            at: 500_000_000,
            pod: 0,
            key: 8,
            cost: 2,
        };
        assert_eq!(recorded[1], last);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, line) in [
            ("x", 1),
            ("0,0", 1),
            ("0,0,0,1,1", 1),
            ("1,0,0\n0,0,0", 2),
            ("-1,0,0", 1),
        ] {
            assert_eq!(parse(text).expect_err("unsound").0, line, "{text}");
        }
    }
}
