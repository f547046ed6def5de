//! A value for each key, without the keys whose value says nothing any more.

use std::collections::HashMap;

use super::Key;

/// The number of keys before the first cleanup.
const KEYS_MIN: usize = 10_000;

/// A map of keys that removes keys without information.
#[derive(Debug)]
pub struct KeyMap<V> {
    of: HashMap<Key, V>,
    /// The number of keys at which the next cleanup runs.
    sweep_at: usize,
}

impl<V: Default> KeyMap<V> {
    pub fn new() -> Self {
        Self {
            of: HashMap::new(),
            sweep_at: KEYS_MIN,
        }
    }

    pub fn get(&self, key: Key) -> Option<&V> {
        self.of.get(&key)
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut V> {
        self.of.get_mut(&key)
    }

    /// The value of `key`, possibly a new one. Before it adds a key, it may remove the keys that are not `wanted` any more;
    /// it does so only when there are twice as many keys as after the last cleanup.
    pub fn entry(&mut self, key: Key, wanted: impl Fn(&V) -> bool) -> &mut V {
        if self.of.len() >= self.sweep_at && !self.of.contains_key(&key) {
            self.of.retain(|_, value| wanted(value));
            self.sweep_at = KEYS_MIN.max(2 * self.of.len());
        }
        self.of.entry(key).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unwanted_keys_are_removed() {
        let mut key_map: KeyMap<u32> = KeyMap::new();
        for key in 0..50_000 {
            *key_map.entry((0, key), |value| value % 100 == 0) = key;
        }
        assert!(
            key_map.of.len() <= KEYS_MIN,
            "{} are kept",
            key_map.of.len()
        );
        assert_eq!(key_map.get((0, 49_999)), Some(&49_999), "the newest is");
        assert_eq!(key_map.get((0, 100)), Some(&100), "what is wanted is");
        assert_eq!(key_map.get((0, 101)), None, "what is not wanted is not");
    }
}
