//! The bytes that name what is limited under one rule.
//!
//! Each value is written with its length before it, so that no two lists of values can run into the same bytes: not
//! `("a", "bc")` and `("ab", "c")`, whatever characters a client sends. The engine hashes these bytes with the fleet's
//! key; every pod names a key alike.

/// Writes one value so that it cannot be confused with its neighbours.
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
    // A message is bounded long before a value's length could leave 32 bits.
    let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
    sink(&length.to_le_bytes());
    sink(value);
}
