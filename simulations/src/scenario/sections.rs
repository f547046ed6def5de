//! Splits a scenario file into its own sections and those of `sidecar.yaml`.
//!
//! Each of the two readers gets the whole file with the other's sections turned into comments, so that every fault still
//! has the right line and column.

/// The sections of `sidecar.yaml` that a scenario may have.
const SIDECARS: [&str; 5] = ["rules", "sync", "defaults", "bounds", "addresses"];

/// The scenario's own sections, and `sidecar.yaml`'s.
pub fn split(text: &str) -> (String, String) {
    let (mut own, mut sidecar) = (String::new(), String::new());
    let mut is_sidecars = false;
    for line in text.lines() {
        let name = line.split(':').next().unwrap_or_default();
        let starts = line.starts_with(|letter: char| letter.is_ascii_alphabetic());
        if starts {
            is_sidecars = SIDECARS.contains(&name);
        }
        let (kept, left) = match is_sidecars {
            true => (&mut sidecar, &mut own),
            false => (&mut own, &mut sidecar),
        };
        kept.push_str(line);
        kept.push('\n');
        left.push_str("#\n");
    }
    (own, sidecar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_stays_where_it_is() {
        let text = "why: x\nrules:\n  - domain: a\nload:\n- checks_per_second: 1\nsync: { interval: 1s }\n";
        let (own, sidecar) = split(text);
        assert_eq!(own, "why: x\n#\n#\nload:\n- checks_per_second: 1\n#\n");
        assert_eq!(
            sidecar,
            "#\nrules:\n  - domain: a\n#\n#\nsync: { interval: 1s }\n"
        );
    }
}
