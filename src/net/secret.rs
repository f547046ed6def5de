//! Secrets: comparing one, and making a number that nobody can guess.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Whether `given` is the secret. It compares every byte, so that the time taken does not tell how many were right.
pub fn is_secret(given: &[u8], secret: &[u8]) -> bool {
    let differing = given
        .iter()
        .zip(secret)
        .fold(0, |differing, (a, b)| differing | (a ^ b));
    given.len() == secret.len() && differing == 0
}

/// A number that nobody can guess: the standard library seeds every hash map with fresh ones.
pub fn unguessable() -> u64 {
    RandomState::new().build_hasher().finish()
}
