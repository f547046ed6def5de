//! Seeds that once failed and are run from then on: `simulations/regressions.txt`, a line each with `scenario seed` and
//! the reason.

const REGRESSIONS: &str = include_str!("../regressions.txt");

/// The seeds of `scenario`.
pub fn of(scenario: &str) -> impl Iterator<Item = u64> + '_ {
    all()
        .filter(move |(name, _)| *name == scenario)
        .map(|(_, seed)| seed)
}

/// Every scenario and seed.
pub fn all() -> impl Iterator<Item = (&'static str, u64)> {
    let lines = REGRESSIONS.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?, words.next()?.parse().ok()?))
    })
}
