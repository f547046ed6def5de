//! Refunds on their way to the store and back. A lost refund is not resent.

use tidegate_core::engine::sync::RoundTrip;
use tidegate_core::pure::sync::{Refund, StoreState};

use super::World;
use super::events::Event;

/// How many call timeouts a pod waits for the answer; see `sync/script.rs`.
const TIMEOUTS: u64 = 3;

impl World<'_> {
    pub(super) fn give_back(&mut self, pod: usize, refund: Refund) {
        let sent = self.now;
        self.cost.calls += 1;
        self.cost.updates += 1;
        let at = sent + self.network.hop();
        match self.network.loses_request(pod, sent) {
            true => self.not_given_back(pod, sent, refund),
            false => self.plan(at, Event::RefundAtStore { pod, sent, refund }),
        }
    }

    /// The pod gives up a refund that it sent at `sent`.
    fn not_given_back(&mut self, pod: usize, sent: u64, refund: Refund) {
        let at = sent + TIMEOUTS * self.network.settings.timeout.nanos();
        let store_state = None;
        self.plan(
            at,
            Event::GivenBack {
                pod,
                sent,
                refund,
                store_state,
            },
        );
    }

    pub(super) fn refund_at_store(&mut self, pod: usize, sent: u64, refund: Refund) {
        if self.now < self.network.faults.down_until {
            // No server listens: the refusal comes at once.
            let (at, store_state) = (self.now + self.network.hop(), None);
            return self.plan(
                at,
                Event::GivenBack {
                    pod,
                    sent,
                    refund,
                    store_state,
                },
            );
        }
        let ready = self.network.faults.hung_until;
        let served = self.store.served(1, self.now, ready) + self.network.slowness(self.now);
        self.plan(served, Event::RefundServed { pod, sent, refund });
    }

    pub(super) fn refund_served(&mut self, pod: usize, sent: u64, refund: Refund) {
        let now = self.now;
        if now < self.network.faults.down_until {
            return self.not_given_back(pod, sent, refund); // the store went down during the call
        }
        let now_us = self.store_us();
        let (store_state, news) = self.store.give_back(refund, now, now_us);
        self.publish(news);
        let at = now + self.network.hop();
        let is_late = at > sent + TIMEOUTS * self.network.settings.timeout.nanos();
        if is_late || self.network.loses_answer(pod, now) {
            return self.not_given_back(pod, sent, refund);
        }
        let store_state = Some(store_state);
        self.plan(
            at,
            Event::GivenBack {
                pod,
                sent,
                refund,
                store_state,
            },
        );
    }

    pub(super) fn given_back(
        &mut self,
        number: usize,
        sent: u64,
        refund: &Refund,
        store_state: Option<StoreState>,
    ) {
        let (now, calendar, jitter) = (self.now, self.calendar, self.random.roll());
        if let Some(pod) = &mut self.pods[number] {
            pod.under_way -= 1;
            let back = pod.moment(now, calendar);
            let trip = RoundTrip {
                sent: pod.at(sent),
                back,
            };
            let (rounds, engine) = (&mut pod.rounds, &pod.engine);
            match store_state {
                Some(store_state) => {
                    rounds.refund_answered(engine, refund, store_state, trip);
                    rounds.request_answered(engine, refund.key.lane(), back.now);
                }
                None => rounds.refund_failed(engine, refund.key, back.now, jitter),
            }
        }
        self.check_books_now_and_then(number);
        self.wake_in_time(number);
        self.stop_when_done(number);
    }
}
