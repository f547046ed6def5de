//! The books: every admitted cell is somewhere, once.

use std::collections::BTreeMap;

use crate::redis::Store;
use crate::redis::server::{now, until};

use super::fleet::{Fleet, Pod, SETTLES_WITHIN};
use super::load::Asked;

/// What a pod says of the cells it has admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Books {
    pub incarnation: String,
    /// In the store's books.
    pub settled: u64,
    /// To be sent.
    pub pending: u64,
    /// Sent, and not known to have arrived.
    pub in_flight: u64,
    /// Kept back: they cannot matter to the others.
    pub silent: u64,
    /// Given up, and counted.
    pub lost: u64,
}

impl Books {
    pub fn of(pod: &Pod) -> Self {
        let status = pod.sidecar.admin("/admin/v1/status");
        let number = |name: &str| {
            let number = status["books"][name].as_u64();
            number.unwrap_or_else(|| panic!("no books.{name} in {status:#}"))
        };
        let incarnation = status["incarnation"].as_str();
        Self {
            incarnation: incarnation
                .unwrap_or_else(|| panic!("no incarnation in {status:#}"))
                .to_owned(),
            settled: number("settled"),
            pending: number("pending"),
            in_flight: number("in_flight"),
            silent: number("silent"),
            lost: number("lost"),
        }
    }

    pub fn sum(&self) -> u64 {
        self.settled + self.pending + self.in_flight + self.silent + self.lost
    }
}

/// What may be missing in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing.
    None,
    /// What the pods have counted as lost.
    Counted,
}

/// Gross cells by incarnation, summed over the lanes' records in the store.
pub fn in_store(store: &dyn Store) -> BTreeMap<String, u64> {
    let mut gross = BTreeMap::new();
    for (key, value) in store.values("tidegate:v1:{*}:seq:*") {
        let incarnation = key.rsplit(':').next().unwrap_or_default();
        *gross.entry(incarnation.to_owned()).or_default() += gross_of(&value);
    }
    gross
}

/// The second of two numbers of eight bytes, lowest byte first: a sequence, and the gross cells.
fn gross_of(record: &[u8]) -> u64 {
    let bytes: [u8; 16] = record.try_into().expect("a record of 16 bytes");
    let (_, gross) = bytes.split_at(8);
    u64::from_le_bytes(gross.try_into().expect("eight bytes"))
}

/// Cells that a pod admitted.
fn admitted(asked: &[Asked], pod: usize) -> u64 {
    let of_pod = asked.iter().filter(|check| usize::from(check.pod) == pod);
    let allowed = of_pod.filter(|check| check.allowed());
    allowed.map(|check| u64::from(check.cost)).sum()
}

/// What is not as it should be, if anything.
fn fault(fleet: &Fleet, store: &dyn Store, asked: &[Asked], loss: Loss) -> Option<String> {
    let all: Vec<Books> = fleet.pods.iter().map(Books::of).collect();
    for (nth, books) in all.iter().enumerate() {
        let admitted = admitted(asked, nth);
        // What is pending may stay so: a key that is used within the even share is not told.
        let lost = books.lost > 0 && loss == Loss::None;
        if books.in_flight > 0 || lost || books.sum() != admitted {
            return Some(format!("pod {nth} admitted {admitted} and says {books:?}"));
        }
    }
    let gross = in_store(store);
    let missing = all.iter().enumerate().find(|(_, books)| {
        let settled = gross.get(&books.incarnation).copied();
        settled.unwrap_or(0) != books.settled
    });
    missing.map(|(nth, books)| format!("pod {nth} says {books:?}, the store {gross:?}"))
}

/// Waits until nothing is under way and every cell that was admitted is accounted for, on each pod and in the store.
/// Fails if that does not come.
pub fn balance(fleet: &Fleet, store: &dyn Store, asked: &[Asked], loss: Loss) {
    let begun = now();
    until("books that balance", SETTLES_WITHIN * 2, || {
        let fault = fault(fleet, store, asked, loss);
        let late = begun.elapsed() > SETTLES_WITHIN;
        assert!(
            fault.is_none() || !late,
            "the books do not balance: {fault:?}"
        );
        fault.is_none().then_some(())
    });
}
