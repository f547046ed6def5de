//! Which group of the table a key goes to.

use super::*;

/// The group that each of `keys` keys with the same first group goes to.
fn groups_of(keys: usize) -> Vec<usize> {
    let table = Table::new(22, [0, 0]);
    let (now, bucket) = (Nanos::new(1), MovedBucket::at(Nanos::new(9)));
    (0..keys)
        .map(|nth| {
            let key = TableKey {
                high: nth as u64,
                low: 7,
                // Its first group is group 0, its second group 1.
                spread: 0xffff_ffff,
                salt: (nth as u64) << 53,
            };
            table.enter(&table.permit(&key), &key, bucket, now);
            table
                .find(&key)
                .map_or(usize::MAX, |found| found.index / GROUP)
        })
        .collect()
}

#[test]
fn a_key_goes_to_its_first_group_until_that_is_nearly_full() {
    assert_eq!(groups_of(14), [0; 14]);
    assert_eq!(groups_of(22)[14..], [1; 8]);
}
