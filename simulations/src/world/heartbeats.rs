//! Heartbeats on their way to the store and back.

use tidegate_core::pure::sync::{Heartbeat, HeartbeatReply};

use super::World;
use super::events::Event;

impl World<'_> {
    /// The pod gives up a heartbeat that it sent at `sent`.
    pub(super) fn heartbeat_failed(&mut self, pod: usize, sent: u64) {
        let at = sent + self.network.settings.timeout.nanos();
        self.plan(
            at,
            Event::HeartbeatReply {
                pod,
                heartbeat_answered: None,
            },
        );
    }

    pub(super) fn heartbeat_at_store(&mut self, number: usize, sent: u64, heartbeat: &Heartbeat) {
        let Some(incarnation) = self.pods[number].as_ref().map(|pod| pod.incarnation) else {
            return;
        };
        let faults = &self.network.faults;
        let unreachable = self.now < faults.down_until || self.now < faults.hung_until;
        if unreachable || self.network.loses_answer(number, self.now) {
            return self.heartbeat_failed(number, sent);
        }
        let heartbeat_answered = self
            .store
            .heartbeat(incarnation, heartbeat, self.store_us());
        let at = self.now + self.network.hop() + self.network.slowness(self.now);
        self.plan(
            at,
            Event::HeartbeatReply {
                pod: number,
                heartbeat_answered: Some(Box::new(heartbeat_answered)),
            },
        );
    }

    pub(super) fn heartbeat_answered(
        &mut self,
        number: usize,
        heartbeat_answered: Option<Box<HeartbeatReply>>,
    ) {
        let (now, calendar, jitter) = (self.now, self.calendar, self.random.roll());
        if let Some(pod) = &mut self.pods[number] {
            pod.under_way -= 1;
            let moment = pod.moment(now, calendar);
            match heartbeat_answered {
                Some(heartbeat_answered) => {
                    pod.rounds
                        .heartbeat_answered(&pod.engine, &heartbeat_answered, moment)
                }
                None => pod.rounds.heartbeat_failed(&pod.engine, moment.now, jitter),
            }
        }
        self.wake_in_time(number);
        self.stop_when_done(number);
    }
}
