//! The random source of the tests: splitmix64. The same seed gives the same numbers in every run.

/// A sequence of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not zero.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// An index of a list that has `length` items.
    pub fn index(&mut self, length: usize) -> usize {
        let length = u64::try_from(length).expect("a length");
        usize::try_from(self.below(length)).expect("below a length")
    }

    /// One of these, which are not none.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    pub const fn byte(&mut self) -> u8 {
        self.number().to_le_bytes()[0]
    }

    /// Evenly from 0 up to 1, without 1.
    pub const fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the published generator for the seed 1234567.
    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        for expected in [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ] {
            assert_eq!(random.number(), expected);
        }
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut random = Random::new(1);
        for end in 1..=1_000 {
            assert!(random.below(end) < end);
            assert!((0.0..1.0).contains(&random.unit()));
        }
    }
}
