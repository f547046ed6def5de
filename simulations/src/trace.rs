//! Reads recorded checks for replay: a line each, `seconds,pod,key[,cost]`, in the order of their time.

use std::path::Path;

/// The most bytes of a trace.
const TRACE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// One recorded check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// Nanoseconds since the start of the trace.
    pub at: u64,
    pub pod: u64,
    pub key: u32,
    pub cost: u64,
}

/// Reads the checks in the file `path`; the error says what is wrong with it.
pub fn read(path: &Path) -> Result<Vec<TraceRecord>, String> {
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

/// Parses the checks in `text`; the error is the wrong line and the reason. Empty lines and lines that start with `#` are
/// skipped.
fn parse(text: &str) -> Result<Vec<TraceRecord>, (usize, &'static str)> {
    let mut records: Vec<TraceRecord> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let one =
            record(line).ok_or((number, "must be seconds,pod,key or seconds,pod,key,cost"))?;
        if records.last().is_some_and(|last| last.at > one.at) {
            return Err((number, "is earlier than the line before"));
        }
        records.push(one);
    }
    Ok(records)
}

fn record(line: &str) -> Option<TraceRecord> {
    let mut fields = line.split(',').map(str::trim);
    let seconds: f64 = fields.next()?.parse().ok()?;
    let one = TraceRecord {
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
        let records = parse("# a shop\n0.5,3,7\n\n0.5,0,8,2\n").expect("sound");
        assert_eq!(records.len(), 2);
        let last = TraceRecord {
            at: 500_000_000,
            pod: 0,
            key: 8,
            cost: 2,
        };
        assert_eq!(records[1], last);
    }

    #[test]
    fn an_error_names_its_line() {
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
