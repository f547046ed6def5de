//! What is known of each key, without those of which nothing is left to know.

use std::collections::HashMap;

use super::Key;

/// As many are kept before the first look at what can go.
const KEPT_MIN: usize = 10_000;

/// A value for each key.
#[derive(Debug)]
pub struct Kept<V> {
    of: HashMap<Key, V>,
    /// How many there may be before the next look.
    sweep_at: usize,
}

impl<V: Default> Kept<V> {
    pub fn new() -> Self {
        Self {
            of: HashMap::new(),
            sweep_at: KEPT_MIN,
        }
    }

    pub fn get(&self, key: Key) -> Option<&V> {
        self.of.get(&key)
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut V> {
        self.of.get_mut(&key)
    }

    /// The value of `key`, maybe a new one. To make room for that, those go that are not `wanted` any more; a look at
    /// all of them only pays when there are twice as many as it left the last time.
    pub fn entry(&mut self, key: Key, wanted: impl Fn(&V) -> bool) -> &mut V {
        if self.of.len() >= self.sweep_at && !self.of.contains_key(&key) {
            self.of.retain(|_, value| wanted(value));
            self.sweep_at = KEPT_MIN.max(2 * self.of.len());
        }
        self.of.entry(key).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_wanted_goes() {
        let mut kept: Kept<u32> = Kept::new();
        for key in 0..50_000 {
            *kept.entry((0, key), |value| value % 100 == 0) = key;
        }
        assert!(kept.of.len() <= KEPT_MIN, "{} are kept", kept.of.len());
        assert_eq!(kept.get((0, 49_999)), Some(&49_999), "the newest is");
        assert_eq!(kept.get((0, 100)), Some(&100), "what is wanted is");
        assert_eq!(kept.get((0, 101)), None, "what is not wanted is not");
    }
}
