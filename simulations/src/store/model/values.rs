//! The values in the store, as the scripts write them: little-endian numbers.

use tidegate_core::pure::sync::BucketKind;

const NUMBER_MAX: u64 = 1 << 52;

/// The stored value of a bucket. Times are in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredLevel {
    /// When the bucket is empty again.
    pub tat: u64,
    /// The level that a full bucket has, at the last write.
    pub capacity: u64,
    /// How much the fleet asks, in thousandths of cells.
    pub demand: u64,
    /// When the demand was brought up to date.
    pub demand_at: u64,
    /// Until when the other pods know that the bucket is full.
    pub published_until: u64,
    /// Until when every pod reports the key.
    pub live_until: u64,
}

/// The stored value of windows. Times are in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredWindows {
    /// How long a window is.
    pub window: u64,
    /// The number of the current window.
    pub index: u64,
    /// Cells of the current window.
    pub current: u64,
    /// Cells of the window before it.
    pub previous: u64,
    /// 1 if the other pods know that the current window is full.
    pub published: u64,
}

/// A pod's record of one book group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneRecord {
    /// The number of the last batch that was booked.
    pub sequence: u64,
    /// All cells that were booked.
    pub gross: u64,
}

/// The value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredValue {
    /// A bucket's level.
    Level(StoredLevel),
    /// Counts per window.
    Windows(StoredWindows),
    /// A value that tidegate did not write.
    Poison,
}

/// The value of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredRecord {
    /// A sound record.
    Record(LaneRecord),
    /// A value that tidegate did not write.
    Poison,
}

impl StoredValue {
    /// Parses the value of a key of this kind.
    pub fn of_bytes(kind: BucketKind, bytes: &[u8]) -> Self {
        match kind {
            BucketKind::Level | BucketKind::Caller => match numbers(bytes) {
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
            BucketKind::Window => match numbers(bytes) {
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
