//! What a pod believes of its path to one shard of the store: whether to call the shard now, and when to try again.
//!
//! The shell tells [`Link`] how each call ended, and [`Link`] says whether the next call is worth making. It never
//! calls: the shell does, gives every call a timeout, and counts a timeout as a failure. Several calls may be under way
//! at once, so a call may end in any state of the link. A late success always closes the circuit; a late failure
//! changes nothing while the circuit is open.
//!
//! ```
//! use tidegate_core::pure::sync::{Circuit, Link};
//! use tidegate_core::pure::Nanos;
//! let now = Nanos::new(0);
//! let mut link = Link::new();
//! assert!(link.may_call(now) && !link.is_partitioned());
//! for _ in 0..5 {
//!     link.failed(now, 0);
//! }
//! assert_eq!(link.state(), Circuit::Open);
//! assert!(!link.may_call(now));
//! let probe_at = link.next_at().expect("the end of the cool-down");
//! assert!(link.may_call(probe_at), "one probe");
//! assert!(!link.may_call(probe_at), "and no more");
//! link.succeeded(probe_at);
//! assert_eq!(link.state(), Circuit::Closed);
//! ```

use crate::pure::{Nanos, Span};

/// So many failures within [`FAILURES_WITHIN`] open the circuit.
const FAILURES_MAX: usize = 5;
/// See [`FAILURES_MAX`].
const FAILURES_WITHIN: Span = Span::seconds(10);
/// So many failures in a row are a partition.
const PARTITIONED_AFTER: u32 = 3;
/// How long an open circuit waits before a probe. The wait does not grow with the number of probes, so that all pods
/// come back at about the same time.
const COOL_DOWN: Span = Span::seconds(1);
/// The wait after the first failure in a row. Each further failure doubles it, up to [`PACE_MAX`].
const PACE: Span = Span::nanos(20_000_000);
/// See [`PACE`].
const PACE_MAX: Span = Span::nanos(500_000_000);
/// The time after which the link gives up a probe whose end nobody reported. Otherwise one forgotten call would cut off
/// the pod for good.
const PROBE_MAX: Span = Span::seconds(30);

/// The state of the circuit breaker of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// Calls pass.
    Closed,
    /// One probe is under way.
    HalfOpen,
    /// No call passes.
    Open,
}

impl Circuit {
    /// The value of the metric.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Circuit;
    /// assert_eq!([Circuit::Closed, Circuit::HalfOpen, Circuit::Open].map(Circuit::number), [0, 1, 2]);
    /// ```
    pub const fn number(self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::HalfOpen => 1,
            Self::Open => 2,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum LinkState {
    Closed {
        /// The times of the latest failures, oldest first.
        failures: [Option<Nanos>; FAILURES_MAX],
        /// The link allows no call before this time.
        paced_until: Option<Nanos>,
    },
    HalfOpen {
        /// When the link gives up the probe.
        until: Nanos,
    },
    Open {
        /// The end of the cool-down.
        until: Nanos,
    },
}

impl LinkState {
    const FRESH: Self = Self::Closed {
        failures: [None; FAILURES_MAX],
        paced_until: None,
    };

    fn open(now: Nanos, jitter: u64) -> Self {
        Self::Open {
            until: now.after(jittered(COOL_DOWN, jitter)),
        }
    }
}

/// The path to one shard of the store.
#[derive(Clone, Debug)]
pub struct Link {
    state: LinkState,
    failed_in_a_row: u32,
    last_success: Option<Nanos>,
    trip: Span,
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// A path of which nothing is known yet. It may be called at once and is not partitioned.
    pub const fn new() -> Self {
        Self {
            state: LinkState::FRESH,
            failed_in_a_row: 0,
            last_success: None,
            trip: Span::ZERO,
        }
    }

    /// Adds the time that one answer took to the moving average, with a weight of a quarter.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Link;
    /// use tidegate_core::pure::Span;
    /// let mut link = Link::new();
    /// (0..40).for_each(|_| link.took(Span::nanos(8_000)));
    /// assert!((7_900..=8_000).contains(&link.trip().get()));
    /// ```
    pub fn took(&mut self, trip: Span) {
        let quarter = |span: Span| Span::nanos(span.get() >> 2);
        self.trip = self.trip.less(quarter(self.trip)).plus(quarter(trip));
    }

    /// The time that answers take: a moving average.
    pub const fn trip(&self) -> Span {
        self.trip
    }

    /// Whether a call is worth making now. After a cool-down the first `true` stands for the probe, so ask only before
    /// a call.
    pub fn may_call(&mut self, now: Nanos) -> bool {
        match self.state {
            LinkState::Closed { paced_until, .. } => paced_until.is_none_or(|until| now >= until),
            LinkState::Open { until } | LinkState::HalfOpen { until } => {
                let probe = now >= until;
                if probe {
                    self.state = LinkState::HalfOpen {
                        until: now.after(PROBE_MAX),
                    };
                }
                probe
            }
        }
    }

    /// When [`Self::may_call`] is worth asking again; `None` if it is now.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Link;
    /// use tidegate_core::pure::Nanos;
    /// let mut link = Link::new();
    /// assert_eq!(link.next_at(), None);
    /// link.failed(Nanos::new(0), 0);
    /// assert_eq!(link.next_at(), Some(Nanos::new(20_000_000)));
    /// ```
    pub const fn next_at(&self) -> Option<Nanos> {
        match self.state {
            LinkState::Closed { paced_until, .. } => paced_until,
            LinkState::Open { until } | LinkState::HalfOpen { until } => Some(until),
        }
    }

    /// Takes note of an answered call. It closes the circuit, whichever call it was. While the circuit is closed, it
    /// cancels the latest failure: a path on which most calls succeed is worth calling, however many calls there are.
    pub fn succeeded(&mut self, now: Nanos) {
        self.failed_in_a_row = 0;
        self.last_success = Some(now);
        self.state = match self.state {
            LinkState::Closed { failures, .. } => {
                // Empty slots come first, the latest failure is last.
                let [first, second, third, fourth, _] = failures;
                LinkState::Closed {
                    failures: [None, first, second, third, fourth],
                    paced_until: None,
                }
            }
            LinkState::Open { .. } | LinkState::HalfOpen { .. } => LinkState::FRESH,
        };
    }

    /// Takes note of a call without a proper answer. `jitter` is any random number: it spreads the probes of pods that
    /// failed together.
    pub fn failed(&mut self, now: Nanos, jitter: u64) {
        self.failed_in_a_row = self.failed_in_a_row.saturating_add(1);
        self.state = match self.state {
            LinkState::Closed { failures, .. } => {
                let [_, first, second, third, fourth] = failures;
                if first.is_some_and(|first| now.since(first) <= FAILURES_WITHIN) {
                    LinkState::open(now, jitter)
                } else {
                    LinkState::Closed {
                        failures: [first, second, third, fourth, Some(now)],
                        paced_until: Some(now.after(pace(self.failed_in_a_row))),
                    }
                }
            }
            // The link takes it for the end of the probe. If it is another call, the probe's success still closes.
            LinkState::HalfOpen { .. } => LinkState::open(now, jitter),
            // The call was sent before the circuit opened. Sixty-four calls that time out together are one outage.
            LinkState::Open { until } => LinkState::Open { until },
        };
    }

    /// The state of the circuit breaker.
    pub const fn state(&self) -> Circuit {
        match self.state {
            LinkState::Closed { .. } => Circuit::Closed,
            LinkState::HalfOpen { .. } => Circuit::HalfOpen,
            LinkState::Open { .. } => Circuit::Open,
        }
    }

    /// Whether rules use their fallback: from three failures in a row on, or while the circuit is not closed, until the
    /// next success.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Link;
    /// use tidegate_core::pure::Nanos;
    /// let mut link = Link::new();
    /// let partitioned = [1, 2, 3].map(|at| { link.failed(Nanos::new(at), 0); link.is_partitioned() });
    /// assert_eq!(partitioned, [false, false, true]);
    /// link.succeeded(Nanos::new(4));
    /// assert!(!link.is_partitioned());
    /// ```
    pub const fn is_partitioned(&self) -> bool {
        match self.state {
            LinkState::Closed { .. } => self.failed_in_a_row >= PARTITIONED_AFTER,
            LinkState::HalfOpen { .. } | LinkState::Open { .. } => true,
        }
    }

    /// Whether the last call failed.
    pub const fn is_failing(&self) -> bool {
        self.failed_in_a_row > 0
    }

    /// When the store last answered.
    pub const fn last_success(&self) -> Option<Nanos> {
        self.last_success
    }
}

/// The wait after the last of so many failures in a row.
fn pace(failed_in_a_row: u32) -> Span {
    let doublings = failed_in_a_row.saturating_sub(1).min(16);
    let pace = PACE.get().checked_shl(doublings).unwrap_or(u64::MAX);
    Span::nanos(pace).min(PACE_MAX)
}

/// Between 75 % and 125 % of `span`.
fn jittered(span: Span, jitter: u64) -> Span {
    let thousandths = jitter.checked_rem(501).unwrap_or(0).saturating_add(750);
    let nanos = span.get().saturating_mul(thousandths);
    Span::nanos(nanos.checked_div(1_000).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jitter that does not change a cool-down.
    const NONE: u64 = 250;

    fn ms(ms: u64) -> Nanos {
        Nanos::new(ms * 1_000_000)
    }

    fn opened() -> Link {
        let mut link = Link::new();
        (0..5).for_each(|_| link.failed(ms(0), NONE));
        link
    }

    #[test]
    fn a_link_never_heard_of_may_call_and_is_not_partitioned() {
        let mut link = Link::new();
        assert!(link.may_call(ms(0)));
        assert_eq!(link.next_at(), None);
        assert_eq!(link.state(), Circuit::Closed);
        assert!(!link.is_partitioned());
        assert_eq!(link.last_success(), None);
    }

    #[test]
    fn retries_wait_twice_as_long_each_time_up_to_half_a_second() {
        let waits = [1, 2, 3, 4, 5, 6, 7, u32::MAX].map(|k| pace(k).get() / 1_000_000);
        assert_eq!(waits, [20, 40, 80, 160, 320, 500, 500, 500]);
        let mut link = Link::new();
        link.failed(ms(0), 0);
        assert!(!link.may_call(ms(19)));
        assert!(link.may_call(ms(20)));
        link.failed(ms(20), 0);
        assert_eq!(link.next_at(), Some(ms(60)));
        link.succeeded(ms(60));
        assert_eq!(link.next_at(), None);
        assert_eq!(link.last_success(), Some(ms(60)));
    }

    #[test]
    fn five_failures_within_ten_seconds_open_it() {
        let mut link = Link::new();
        for at in [0, 2_500, 5_000, 7_500] {
            link.failed(ms(at), NONE);
        }
        assert_eq!(link.state(), Circuit::Closed);
        link.failed(ms(10_000), NONE);
        assert_eq!(link.state(), Circuit::Open);
        assert_eq!(link.next_at(), Some(ms(11_000)));
    }

    #[test]
    fn an_answer_makes_up_for_a_failure() {
        let mut link = Link::new();
        for at in 0..1_000 {
            link.failed(ms(at), NONE);
            link.succeeded(ms(at));
        }
        assert_eq!(link.state(), Circuit::Closed, "every other call fails");
        for at in 0..4 {
            link.succeeded(ms(1_000 + at));
            link.failed(ms(1_000 + at), NONE);
            link.failed(ms(1_000 + at), NONE);
        }
        assert_eq!(link.state(), Circuit::Open, "two of three fail");
    }

    #[test]
    fn five_failures_in_more_than_ten_seconds_do_not() {
        let mut link = Link::new();
        for at in [0, 2_500, 5_000, 7_500, 10_001] {
            link.failed(ms(at), NONE);
        }
        assert_eq!(link.state(), Circuit::Closed);
        assert!(link.is_partitioned());
    }

    #[test]
    fn exactly_one_probe_passes_after_the_cool_down() {
        let mut link = opened();
        assert!(!link.may_call(ms(999)));
        assert!(link.may_call(ms(1_000)));
        assert_eq!(link.state(), Circuit::HalfOpen);
        assert!(link.is_partitioned());
        assert!(!link.may_call(ms(1_001)));
        link.succeeded(ms(1_002));
        assert_eq!(link.state(), Circuit::Closed);
        assert!(link.may_call(ms(1_002)) && link.may_call(ms(1_002)));
        assert!(!link.is_partitioned());
    }

    #[test]
    fn a_failed_probe_is_followed_by_another_a_second_later() {
        let mut link = opened();
        for _ in 0..6 {
            let at = link.next_at().expect("open");
            assert!(link.may_call(at));
            link.failed(at, NONE);
            assert_eq!(link.next_at(), Some(at.after(COOL_DOWN)));
        }
    }

    #[test]
    fn jitter_is_a_quarter_either_way() {
        let spans = [0, 250, 500, 501].map(|jitter| jittered(COOL_DOWN, jitter).get() / 1_000_000);
        assert_eq!(spans, [750, 1_000, 1_250, 750]);
        let most = jittered(COOL_DOWN, u64::MAX).get();
        assert!((750_000_000..=1_250_000_000).contains(&most));
    }

    #[test]
    fn a_late_failure_does_not_lengthen_a_cool_down() {
        let mut link = opened();
        (0..60).for_each(|_| link.failed(ms(500), NONE));
        assert_eq!(link.next_at(), Some(ms(1_000)));
    }

    #[test]
    fn a_late_success_closes() {
        let mut link = opened();
        link.succeeded(ms(10));
        assert_eq!(link.state(), Circuit::Closed);
        link.failed(ms(11), NONE);
        assert_eq!(link.state(), Circuit::Closed, "the slate is clean");
    }

    #[test]
    fn a_probe_nobody_reports_is_followed_by_another() {
        let mut link = opened();
        assert!(link.may_call(ms(1_000)));
        let again = ms(1_000).after(PROBE_MAX);
        assert_eq!(link.next_at(), Some(again));
        assert!(!link.may_call(again.before(Span::nanos(1))));
        assert!(link.may_call(again));
        assert!(!link.may_call(again));
    }
}
