//! Heartbeats and resets: what `heartbeat.lua` and `reset.lua` do.

use std::collections::BTreeMap;

use tidegate_core::pure::sync::{Heartbeat, HeartbeatReply, StoreKey};

/// The most resets that are remembered.
const RESETS_MAX: usize = 1_024;

/// The live pods, and the keys that were reset.
#[derive(Clone, Debug, Default)]
pub struct LivePods {
    /// The time of each pod's last heartbeat, in milliseconds.
    pods: BTreeMap<u128, u64>,
    resets: Vec<(u64, StoreKey)>,
    count: u64,
}

impl LivePods {
    pub fn heartbeat(
        &mut self,
        incarnation: u128,
        heartbeat: &Heartbeat,
        now_us: u64,
    ) -> HeartbeatReply {
        let (now, expiry) = (now_us / 1_000, heartbeat.expiry.get() / 1_000_000);
        match heartbeat.leaving {
            true => self.pods.remove(&incarnation),
            false => self.pods.insert(incarnation, now),
        };
        // Removes expired pods, and times that are in the future because the clock was set back.
        self.pods
            .retain(|_, at| *at + expiry >= now && *at <= now + expiry);
        let known = match heartbeat.resets_seen > self.count {
            true => 0,
            false => heartbeat.resets_seen,
        };
        let missed = self.resets.iter().filter(|(number, _)| *number > known);
        HeartbeatReply {
            pods: self.pods.len() as u64,
            resets: self.count,
            reset_keys: missed.map(|(_, key)| *key).collect(),
        }
    }

    pub fn reset(&mut self, key: StoreKey) {
        self.count += 1;
        self.resets.retain(|(_, known)| *known != key);
        self.resets.push((self.count, key));
        if self.resets.len() > RESETS_MAX {
            self.resets.remove(0);
        }
    }
}
