//! What this pod grants while a part of the store cannot be told.
//!
//! While a lane is cut off, its keys are decided as their rules' `on_store_error` says. A pod that grants its share of a
//! limit asks a higher price for a cell: a bucket is as long in time as ever, and half full stays half full, so nothing
//! has to be converted when a partition begins or ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use crate::pure::sync::{Lane, Share};

/// This pod's parts of its keys' limits, learned while the store could be told.
#[derive(Debug)]
pub struct Shares {
    /// Of a key that nothing was learned of.
    pub unlearned: Share,
    /// Of the others, by name.
    pub learned: HashMap<u128, Share>,
}

/// Which lanes are cut off, and what to grant then.
#[derive(Debug)]
pub struct Fallback {
    /// One bit for each lane that is cut off.
    lanes: AtomicU64,
    shares: ArcSwap<Shares>,
}

impl Default for Fallback {
    fn default() -> Self {
        Self {
            lanes: AtomicU64::new(0),
            shares: ArcSwap::from_pointee(Shares {
                unlearned: Share::WHOLE,
                learned: HashMap::new(),
            }),
        }
    }
}

impl Fallback {
    /// Whether the store cannot be told of the key `name`.
    #[inline]
    pub fn holds_for(&self, name: u128) -> bool {
        // Ordering: Acquire, after which the shares that were put there before are seen.
        let lanes = self.lanes.load(Ordering::Acquire);
        lanes != 0 && lanes >> Lane::of(name).number() & 1 == 1
    }

    /// This pod's share of the key `name`.
    pub fn share(&self, name: u128) -> Share {
        let shares = self.shares.load();
        shares
            .learned
            .get(&name)
            .copied()
            .unwrap_or(shares.unlearned)
    }

    /// Says which lanes are cut off from now on, by a bit each.
    pub fn set_lanes(&self, lanes: u64) {
        self.lanes.store(lanes, Ordering::Release);
    }

    /// Says what to grant meanwhile.
    pub fn set_shares(&self, shares: Shares) {
        self.shares.store(Arc::new(shares));
    }
}
