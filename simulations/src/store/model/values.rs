//! The values in the store, as the scripts write them: little-endian numbers.

use tidegate_core::pure::sync::Family;

const NUMBER_MAX: u64 = 1 << 52;

/// The stored value of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredLevel {
    pub tat: u64,
    pub capacity: u64,
    pub demand: u64,
    pub demand_at: u64,
    pub published_until: u64,
    pub live_until: u64,
}

/// The stored value of windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredWindows {
    pub window: u64,
    pub index: u64,
    pub current: u64,
    pub previous: u64,
    pub published: u64,
}

/// A pod's books in one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneRecord {
    pub sequence: u64,
    pub gross: u64,
}

/// The value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredValue {
    Level(StoredLevel),
    Windows(StoredWindows),
    /// A value that tidegate did not write.
    Poison,
}

/// The value of a lane's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredRecord {
    Record(LaneRecord),
    /// A value that tidegate did not write.
    Poison,
}

impl StoredValue {
    /// Parses the value of a key of this family.
    pub fn of_bytes(family: Family, bytes: &[u8]) -> Self {
        match family {
            Family::Level | Family::Caller => match numbers(bytes) {
                Some(
                    [
                        tat,
                        capacity,
                        demand,
                        demand_at,
                        published_until,
                        live_until,
                    ],
                ) => Self::Level(StoredLevel {
                    tat,
                    capacity,
                    demand,
                    demand_at,
                    published_until,
                    live_until,
                }),
                None => Self::Poison,
            },
            Family::Window => match numbers(bytes) {
                Some([window, index, current, previous, published]) => {
                    Self::Windows(StoredWindows {
                        window,
                        index,
                        current,
                        previous,
                        published,
                    })
                }
                None => Self::Poison,
            },
        }
    }
}

impl StoredRecord {
    /// Parses a record.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        match numbers(bytes) {
            Some([sequence, gross]) => Self::Record(LaneRecord { sequence, gross }),
            None => Self::Poison,
        }
    }
}

/// Parses exactly `N` numbers, each of which the scripts could have written.
fn numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (numbers, rest) = bytes.as_chunks::<8>();
    let numbers: Vec<u64> = numbers
        .iter()
        .map(|number| u64::from_le_bytes(*number))
        .collect();
    let sound = rest.is_empty() && numbers.iter().all(|number| *number < NUMBER_MAX);
    numbers.try_into().ok().filter(|_| sound)
}
