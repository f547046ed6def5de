//! What an exact central limiter would have decided, and how far the fleet was from that.

use super::load::AnsweredCheck;

/// Roundings of a level, in cells: far below one.
const ROUNDING: f64 = 1e-6;

/// A limit, in cells and seconds.
#[derive(Clone, Copy, Debug)]
pub struct JudgedLimit {
    pub rate: f64,
    pub burst: f64,
}

/// A level that drains with time, in cells.
#[derive(Clone, Copy, Debug, Default)]
struct JudgedLevel {
    cells: f64,
    at: f64,
}

impl JudgedLevel {
    fn drain(&mut self, limit: JudgedLimit, now: f64) {
        let drained = (now - self.at).max(0.0) * limit.rate;
        self.cells = (self.cells - drained).max(0.0);
        self.at = now;
    }

    fn has_room(&self, limit: JudgedLimit, cost: f64) -> bool {
        self.cells + cost <= limit.burst + ROUNDING
    }
}

/// What became of one key. `checks` and the denials count checks, the rest cells.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FleetVerdict {
    pub checks: u64,
    pub admitted: f64,
    pub denied: u64,
    /// What the limit allows over the run: burst + rate · time.
    pub allowance: f64,
    /// What an exact limiter admits of the same checks.
    pub exact: f64,
    /// What an exact limiter denies.
    pub exact_denied: u64,
    /// The most that any span of time had above burst + rate · span. A check was decided somewhere between its
    /// question and its answer; a span is as long as that allows, so that a slow load is not mistaken for overshoot.
    pub overshoot: f64,
    /// The second at which that was.
    pub overshoot_at: f64,
    /// Denied although what was admitted before left room.
    pub false_denials: u64,
    /// The second of the last false denial.
    pub false_denial_last: f64,
}

impl FleetVerdict {
    /// How far the admitted cells are from what the limit allows, in percent of that.
    pub fn off_allowance(&self) -> f64 {
        (self.admitted / self.allowance - 1.0).abs() * 100.0
    }

    /// How far the admitted cells are from what an exact limiter admits, in percent of that.
    pub fn off_exact(&self) -> f64 {
        (self.admitted / self.exact - 1.0).abs() * 100.0
    }

    /// Checks denied beyond those that an exact limiter denies.
    pub fn denied_beyond(&self) -> f64 {
        self.denied as f64 - (self.exact_denied as f64).min(self.denied as f64)
    }
}

/// Judges the checks of one key, in the order of time, over a run of so many seconds.
pub fn judge(limit: JudgedLimit, asked: &[AnsweredCheck], seconds: f64) -> FleetVerdict {
    let mut verdict = FleetVerdict {
        allowance: limit.burst + limit.rate * seconds,
        ..FleetVerdict::default()
    };
    let (mut exact, mut fleet) = (JudgedLevel::default(), JudgedLevel::default());
    // What was admitted less what had drained by then: before the first check of a span, and the least of it so far.
    let mut least = f64::INFINITY;
    for check in asked {
        let (now, cost) = (check.seconds(), f64::from(check.cost));
        exact.drain(limit, now);
        fleet.drain(limit, now);
        verdict.checks += 1;
        if exact.has_room(limit, cost) {
            exact.cells += cost;
            verdict.exact += cost;
        } else {
            verdict.exact_denied += 1;
        }
        if check.allowed() {
            fleet.cells += cost;
            least = least.min(verdict.admitted - limit.rate * now);
            verdict.admitted += cost;
            let above = verdict.admitted - limit.rate * check.answered_seconds() - least;
            if above - limit.burst > verdict.overshoot {
                verdict.overshoot = above - limit.burst;
                verdict.overshoot_at = now;
            }
        } else {
            verdict.denied += 1;
            if fleet.has_room(limit, cost) {
                verdict.false_denials += 1;
                verdict.false_denial_last = now;
            }
        }
    }
    verdict
}

/// Microseconds that 99 of 100 of these checks took at most.
pub fn p99(asked: &[AnsweredCheck]) -> f64 {
    let mut times: Vec<u32> = asked.iter().map(|check| check.micros).collect();
    times.sort_unstable();
    let nth = (times.len() * 99 / 100).min(times.len().saturating_sub(1));
    times.get(nth).copied().map_or(f64::NAN, f64::from)
}
