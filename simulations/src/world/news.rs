//! News from the store to the pods. A pod may miss news.

use std::rc::Rc;

use tidegate_core::pure::sync::News;

use super::World;
use super::events::Event;

/// News reaches the pods in so many groups, each at its own time.
const NEWS_GROUPS: usize = 8;

impl World<'_> {
    pub(super) fn publish(&mut self, news: Vec<News>) {
        if news.is_empty() {
            return;
        }
        let pods = self.pods.iter().flatten().count();
        self.cost.news += 1;
        self.cost.messages += pods as u64;
        self.store.add_deliveries(pods, self.now);
        let news: Rc<[News]> = news.into();
        for group in 0..NEWS_GROUPS.min(self.pods.len()) {
            let at = self.now + self.network.hop();
            self.plan(
                at,
                Event::News {
                    group,
                    news: Rc::clone(&news),
                },
            );
        }
    }

    pub(super) fn news(&mut self, group: usize, news: &[News]) {
        for number in (group..self.pods.len()).step_by(NEWS_GROUPS) {
            if self.pods[number].is_none() || self.network.loses_news(number, self.now) {
                continue;
            }
            let (now, calendar) = (self.now, self.calendar);
            if let Some(pod) = self.pods[number]
                .as_mut()
                .filter(|pod| pod.paused_until <= now)
            {
                let moment = pod.moment(now, calendar);
                for one in news {
                    pod.rounds.news_received(&pod.engine, *one, moment);
                }
            }
            self.wake_in_time(number);
        }
    }
}
