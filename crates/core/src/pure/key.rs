//! The bytes that name what is limited under one rule.
//!
//! Each value follows its length, so that no two lists of values have the same bytes, such as `("a", "bc")` and
//! `("ab", "c")`, whatever characters a client sends. The engine hashes these bytes with the fleet's key, so every pod
//! computes the same name for a key.

/// Writes one value after its length, so that it cannot run into its neighbours.
///
/// ```
/// use tidegate_core::pure::key;
/// let mut one = Vec::new();
/// key::write_value("a", |bytes| one.extend_from_slice(bytes));
/// key::write_value("bc", |bytes| one.extend_from_slice(bytes));
/// let mut other = Vec::new();
/// key::write_value("ab", |bytes| other.extend_from_slice(bytes));
/// key::write_value("c", |bytes| other.extend_from_slice(bytes));
/// assert_ne!(one, other);
/// ```
pub fn write_value(value: &(impl AsRef<[u8]> + ?Sized), mut sink: impl FnMut(&[u8])) {
    let value = value.as_ref();
    // The doors bound a message far below the length that 32 bits can hold.
    let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
    sink(&length.to_le_bytes());
    sink(value);
}
