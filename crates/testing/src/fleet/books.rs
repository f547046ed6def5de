//! The books: each admitted cell is accounted for exactly once.

use std::collections::BTreeMap;

use crate::stores::StoreUnderTest;
use crate::wait::{now, until};

use super::load::AnsweredCheck;
use super::pods::{FleetPod, SETTLES_WITHIN, SidecarFleet};

/// Where the cells are that a pod has admitted, as its admin interface says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodBooks {
    pub incarnation: String,
    /// In the store's books.
    pub settled: u64,
    /// To be reported.
    pub pending: u64,
    /// Reported, and not yet answered.
    pub in_flight: u64,
    /// Not reported: they cannot matter to the other pods.
    pub silent: u64,
    /// Given up, and counted as lost.
    pub lost: u64,
}

impl PodBooks {
    pub fn of(pod: &FleetPod) -> Self {
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
pub enum AllowedLoss {
    /// Nothing.
    None,
    /// What the pods have counted as lost.
    Counted,
}

/// Gross cells by incarnation, summed over the records of its book groups in the store.
pub fn in_store(store: &dyn StoreUnderTest) -> BTreeMap<String, u64> {
    let mut gross = BTreeMap::new();
    for (key, value) in store.values("tidegate:v1:{*}:seq:*") {
        let incarnation = key.rsplit(':').next().unwrap_or_default();
        *gross.entry(incarnation.to_owned()).or_default() += gross_of(&value);
    }
    gross
}

/// The cells that the store has of a pod. One whose server refuses calls over several slots goes on under the next number.
fn settled_for(gross: &BTreeMap<String, u64>, incarnation: &str) -> u64 {
    let number = u128::from_str_radix(incarnation, 16).expect("an incarnation");
    let next = format!("{:032x}", number.wrapping_add(1));
    let of = |name: &str| gross.get(name).copied().unwrap_or(0);
    of(incarnation) + of(&next)
}

/// The second of two numbers of eight bytes, lowest byte first: a sequence, and the gross cells.
fn gross_of(record: &[u8]) -> u64 {
    let bytes: [u8; 16] = record.try_into().expect("a record of 16 bytes");
    let (_, gross) = bytes.split_at(8);
    u64::from_le_bytes(gross.try_into().expect("eight bytes"))
}

/// Cells that a pod admitted.
fn admitted(asked: &[AnsweredCheck], pod: usize) -> u64 {
    let of_pod = asked.iter().filter(|check| usize::from(check.pod) == pod);
    let allowed = of_pod.filter(|check| check.allowed());
    allowed.map(|check| u64::from(check.cost)).sum()
}

/// The first pod whose books are wrong, if there is one.
fn fault(
    fleet: &SidecarFleet,
    store: &dyn StoreUnderTest,
    asked: &[AnsweredCheck],
    loss: AllowedLoss,
) -> Option<String> {
    let all: Vec<PodBooks> = fleet.pods.iter().map(PodBooks::of).collect();
    for (nth, books) in all.iter().enumerate() {
        let admitted = admitted(asked, nth);
        // What is pending may stay so: the pod does not report a key that is used within its even share.
        let lost = books.lost > 0 && loss == AllowedLoss::None;
        if books.in_flight > 0 || lost || books.sum() != admitted {
            return Some(format!("pod {nth} admitted {admitted} and says {books:?}"));
        }
    }
    let gross = in_store(store);
    let missing = all
        .iter()
        .enumerate()
        .find(|(_, books)| settled_for(&gross, &books.incarnation) != books.settled);
    missing.map(|(nth, books)| format!("pod {nth} says {books:?}, the store {gross:?}"))
}

/// Waits until nothing is under way and every cell that was admitted is accounted for, on each pod and in the store.
/// Fails if that takes too long.
pub fn balance(
    fleet: &SidecarFleet,
    store: &dyn StoreUnderTest,
    asked: &[AnsweredCheck],
    loss: AllowedLoss,
) {
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
