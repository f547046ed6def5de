//! Where a frame of the Redis protocol ends, and what a request says. RESP2 and RESP3.

/// The length of the frame that begins `bytes`, or `None` while its end is missing.
///
/// Bytes that are no frame end with their line: the proxy passes on what it does not understand.
pub fn length(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut open: u64 = 1;
    while open > 0 {
        let line = line(bytes.get(at..)?)?;
        at += line.len() + 2;
        open -= 1;
        let (kind, rest) = line.split_first().unwrap_or((&b'+', &[]));
        let count = number(rest);
        match (kind, count) {
            (b'$' | b'!' | b'=', Some(count @ 0..)) => {
                at += usize::try_from(count).ok()? + 2;
                if bytes.len() < at {
                    return None;
                }
            }
            (b'*' | b'>' | b'~', Some(count @ 0..)) => open += count.unsigned_abs(),
            (b'%', Some(count @ 0..)) => open += 2 * count.unsigned_abs(),
            // Attributes come before the frame that they belong to.
            (b'|', Some(count @ 0..)) => open += 2 * count.unsigned_abs() + 1,
            _ => {}
        }
    }
    (bytes.len() >= at).then_some(at)
}

/// A request as bytes: an array of strings.
pub fn request(words: &[&str]) -> Vec<u8> {
    let strings: String = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()))
        .collect();
    format!("*{}\r\n{strings}", words.len()).into_bytes()
}

/// The words of a request: an array of strings, or a line of words.
pub fn words(frame: &[u8]) -> Vec<&[u8]> {
    let Some(first) = line(frame) else {
        return Vec::new();
    };
    if !first.starts_with(b"*") && !first.starts_with(b">") {
        return first.split(|byte| *byte == b' ').collect();
    }
    let mut words = Vec::new();
    let mut rest = &frame[first.len() + 2..];
    while let Some(line) = line(rest) {
        rest = &rest[line.len() + 2..];
        let length = number(line.get(1..).unwrap_or_default())
            .and_then(|length| usize::try_from(length).ok());
        match length {
            Some(length) if line.starts_with(b"$") && rest.len() >= length + 2 => {
                words.push(&rest[..length]);
                rest = &rest[length + 2..];
            }
            _ => words.push(line),
        }
    }
    words
}

/// The line that begins `bytes`, without its end.
fn line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some(&bytes[..end])
}

fn number(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}
