//! Where a table puts a key. Each process has seeds of its own, so that nobody outside can choose keys that share a place.

/// The upper and the lower 64 bits.
pub const fn halves(whole: u128) -> (u64, u64) {
    ((whole >> 64) as u64, whole as u64)
}

/// 128 seeded bits of a name, in halves.
#[inline]
pub fn mixed(name: u128, seeds: [u64; 2]) -> (u64, u64) {
    let (high, low) = halves(name);
    halves(u128::from(high ^ seeds[0]) * u128::from(low ^ seeds[1] | 1))
}

/// 64 seeded bits of a name, evenly distributed. The halves of [`mixed`] are not: small values are likelier.
#[inline]
pub fn spread(name: u128, seeds: [u64; 2]) -> u64 {
    let (salt, lower) = mixed(name, seeds);
    salt ^ lower
}

/// One of `places`, picked by the lower 32 bits. A multiplication needs no division, and works for any number of places.
#[inline]
pub const fn pick(bits: u64, places: u64) -> usize {
    (((bits & 0xffff_ffff) * places) >> 32) as usize
}
