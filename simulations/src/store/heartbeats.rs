//! Signs of life and resets: what `heartbeat.lua` and `reset.lua` do.

use std::collections::BTreeMap;

use tidegate_core::pure::sync::{Heartbeat, HeartbeatReply, StoreKey};

/// Resets that are remembered.
const RESETS_MAX: usize = 1_024;

/// Who is alive, and what was reset.
#[derive(Clone, Debug, Default)]
pub struct Beats {
    /// Milliseconds of the last sign of life.
    pods: BTreeMap<u128, u64>,
    resets: Vec<(u64, StoreKey)>,
    count: u64,
}

impl Beats {
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
        // Those gone, and those of a clock that was set back since.
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
