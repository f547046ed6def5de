//! The pace of news: by how much a level must grow before the store publishes it again.

use crate::pure::sync::NEWS_STEP;
use crate::pure::time::SECOND;
use crate::pure::{Cells, Nanos, Span};

/// Messages that the store delivers per second, to all pods together: each costs it several microseconds.
const DELIVERIES_PER_SECOND: u64 = 50_000;
/// How often the pod sets the step of news, and how soon again while there is too much news.
const NEWS_EVERY: Span = Span::seconds(1);
const NEWS_SOONEST: Span = Span::nanos(125_000_000);
/// The shortest step in a large fleet, beside [`NEWS_STEP`]: the store publishes a key at its limit to a thousand pods ten
/// times a second.
const NEWS_STEP_PER_POD: Span = Span::nanos(100_000);
/// The shortest step in a small fleet, divided by its pods: a pod that holds back a large part of a bucket reports it, and
/// learns of the others, about as often as news would tell it.
const NEWS_STEP_SMALL_FLEET: Span = Span::nanos(250_000_000);
/// The longest step.
const NEWS_STEP_MAX: Span = Span::seconds(10);

/// The step of news. Every pod receives all news, so all pods set about the same step.
#[derive(Debug, Default)]
pub(super) struct NewsPacing {
    /// Messages since the step was last set.
    heard: u64,
    set_at: Nanos,
    step: Span,
}

impl NewsPacing {
    /// Counts a message that was published by the step.
    pub(super) const fn count(&mut self) {
        self.heard = self.heard.saturating_add(1);
    }

    /// The step that was last set.
    pub(super) const fn step(&self) -> Span {
        self.step
    }

    /// Sets by how much a level must grow to be published again: so much that news does not overload the store, which
    /// delivers each message to every pod.
    pub(super) fn set_step(&mut self, pods: u64, now: Nanos) -> Span {
        let elapsed = now.since(self.set_at);
        let deliveries = self.heard.saturating_mul(pods.max(1));
        let too_many = deliveries > DELIVERIES_PER_SECOND && elapsed >= NEWS_SOONEST;
        if elapsed >= NEWS_EVERY || too_many {
            let step = u128::from(self.step.get());
            let a_second = u128::from(deliveries) * u128::from(SECOND) / u128::from(elapsed.get());
            let fitting = step * a_second / u128::from(DELIVERIES_PER_SECOND);
            // At most doubled, because the messages that come now were published under the former step; at most halved,
            // because a pod does not see the news that the step holds back.
            let fitting = u64::try_from(fitting.clamp(step / 2, step * 2)).unwrap_or(u64::MAX);
            self.step = Span::nanos(fitting).max(step_min(pods)).min(NEWS_STEP_MAX);
            self.set_at = now;
            self.heard = 0;
        }
        self.step.max(NEWS_STEP)
    }
}

/// The shortest step in a fleet of so many pods.
fn step_min(pods: u64) -> Span {
    let in_a_large_fleet = NEWS_STEP_PER_POD.times(Cells::new(pods));
    let in_a_small_fleet = Span::nanos(NEWS_STEP_SMALL_FLEET.get() / pods.max(1));
    NEWS_STEP.max(in_a_large_fleet).max(in_a_small_fleet)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The step in milliseconds after each second, by the messages of that second.
    fn steps(pacing: &mut NewsPacing, pods: u64, heard: &[u64]) -> Vec<u64> {
        let step = |(second, heard): (u64, &u64)| {
            pacing.heard = *heard;
            pacing.set_step(pods, Nanos::new(second * SECOND)).get() / 1_000_000
        };
        (1..).zip(heard).map(step).collect()
    }

    #[test]
    fn the_step_is_short_while_there_is_little_news() {
        let new = NewsPacing::default;
        assert_eq!(steps(&mut new(), 100, &[0, 500, 400]), [20, 20, 20]);
        assert_eq!(steps(&mut new(), 1_000, &[0, 50]), [100, 100]);
        assert_eq!(steps(&mut new(), 3, &[0, 50]), [83, 83]);
        assert_eq!(steps(&mut new(), 13, &[0, 50]), [20, 20]);
        let from_the_start = new().set_step(3, Nanos::new(1));
        assert_eq!(from_the_start, NEWS_STEP);
    }

    #[test]
    fn it_grows_with_what_is_too_much_and_shrinks_slowly() {
        let heard = [0, 750, 5_000, 5_000, 500, 0, 0, 0];
        let seen = steps(&mut NewsPacing::default(), 100, &heard);
        assert_eq!(seen, [20, 30, 60, 120, 120, 60, 30, 20]);
        let most = (0..40).map(|_| 1_000_000).collect::<Vec<u64>>();
        let seen = steps(&mut NewsPacing::default(), 100, &most);
        assert_eq!(seen.last(), Some(&10_000));
    }

    #[test]
    fn much_too_much_is_answered_soon_but_not_at_once() {
        let mut pacing = NewsPacing::default();
        let _ = pacing.set_step(100, Nanos::new(SECOND));
        let mut after_ms = |ms: u64| {
            pacing.heard = 600;
            let at = Nanos::new(SECOND + ms * 1_000_000);
            pacing.set_step(100, at).get() / 1_000_000
        };
        assert_eq!(
            [after_ms(10), after_ms(124), after_ms(125), after_ms(200)],
            [20, 20, 40, 40]
        );
    }
}
