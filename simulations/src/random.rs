//! The random numbers of a run, all from its one seed.

use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1};
use rand_pcg::Pcg64Mcg;

/// A stream of random numbers. Streams of one seed with different names are independent.
#[derive(Clone, Debug)]
pub struct SeededRandom(Pcg64Mcg);

impl SeededRandom {
    /// The stream `name` of `seed`.
    pub fn new(seed: u64, name: u64) -> Self {
        // Mix the seed, because neighbouring seeds would make neighbouring states.
        let state = u128::from(mix(seed)) << 64 | u128::from(mix(seed ^ mix(name)));
        Self(Pcg64Mcg::from_seed(state.to_le_bytes()))
    }

    pub fn roll(&mut self) -> u64 {
        self.0.random()
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.random_range(0..bound.max(1))
    }

    pub fn chance(&mut self, part: f64) -> bool {
        part > 0.0 && self.0.random::<f64>() < part
    }

    /// A length of time, exponentially distributed around `mean` nanoseconds.
    pub fn around(&mut self, mean: f64) -> u64 {
        let one: f64 = Exp1.sample(&mut self.0);
        (one * mean) as u64
    }

    pub fn of<D: Distribution<f64>>(&mut self, distribution: &D) -> f64 {
        distribution.sample(&mut self.0)
    }
}

/// A hash of `number` (SplitMix64).
pub const fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
