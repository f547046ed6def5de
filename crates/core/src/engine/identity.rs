//! The name of a key: 128 bits that every pod of a fleet computes alike, because they also name the key in the store.
//!
//! The fleet's key and a rule's place make the rule's key; that and the values of a descriptor make the name. So two
//! rules never share a name, and the values alone are hashed per check.

use siphasher::sip128::SipHasher13;
use smallvec::SmallVec;

use crate::pure::{Entry, Rule, key};

/// Bytes of a key that are encoded without allocating.
const INLINE_BYTES: usize = 256;

/// What the whole fleet hashes with. Whoever knows it could look for values that share a name, so a fleet that faces
/// strangers sets its own (`store.hash_key_file`).
#[derive(Clone, Copy)]
pub struct FleetKey([u8; 16]);

impl std::fmt::Debug for FleetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FleetKey(..)")
    }
}

impl FleetKey {
    /// The key made of a secret of any length, or of the store's key prefix where there is no secret.
    pub fn derived(secret: &[u8]) -> Self {
        Self(hash(&[0; 16], secret).to_le_bytes())
    }

    /// What the store calls a rule: alike on every pod.
    pub fn rule_id(&self, rule: &Rule) -> u64 {
        // Not a part of the rule's key: that stays secret.
        let RuleKey(key) = self.rule(rule);
        hash(&key, b"id") as u64
    }

    /// The key of one rule.
    pub fn rule(&self, rule: &Rule) -> RuleKey {
        RuleKey(hash(&self.0, rule.place()).to_le_bytes())
    }
}

/// What the keys of one rule are hashed with.
#[derive(Clone, Copy, Debug)]
pub struct RuleKey([u8; 16]);

impl RuleKey {
    /// The name of the key that `entries` make under `rule`.
    pub fn name(&self, rule: &Rule, entries: &[Entry<'_>]) -> u128 {
        let mut bytes: SmallVec<[u8; INLINE_BYTES]> = SmallVec::new();
        for value in rule.key_values(entries) {
            key::write_value(value, |part| bytes.extend_from_slice(part));
        }
        self.name_of(&bytes)
    }

    /// The name of the key that all of `domain` and `entries` make.
    pub fn name_of_all(&self, domain: &str, entries: &[Entry<'_>]) -> u128 {
        let mut bytes: SmallVec<[u8; INLINE_BYTES]> = SmallVec::new();
        let words = entries.iter().flat_map(|entry| [entry.key, entry.value]);
        for word in [domain.as_bytes()].into_iter().chain(words) {
            key::write_value(word, |part| bytes.extend_from_slice(part));
        }
        self.name_of(&bytes)
    }

    /// The name of an encoded key.
    #[inline]
    pub fn name_of(&self, bytes: &[u8]) -> u128 {
        hash(&self.0, bytes)
    }
}

/// A number that stands for a piece of configuration, such as a limit.
pub fn fingerprint(words: &[u64]) -> u128 {
    let bytes: SmallVec<[u8; INLINE_BYTES]> =
        words.iter().flat_map(|word| word.to_le_bytes()).collect();
    hash(&[0xff; 16], &bytes)
}

#[inline]
fn hash(key: &[u8; 16], bytes: &[u8]) -> u128 {
    SipHasher13::new_with_key(key).hash(bytes).as_u128()
}
