//! File descriptors: raises the soft limit to what the connections need, or lowers the number of connections.
//!
//! A process without free descriptors cannot accept connections. Where the system does not allow as many descriptors as
//! `bounds.connections_max` needs, the pod accepts fewer connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

use super::PAGES_CONNECTIONS_MAX;
use crate::net::connection_slots::SPARE_DESCRIPTORS_MAX;

/// Descriptors besides connections: listeners, the log, the runtime, files that are read, the store's servers.
const OTHERS_MAX: u64 = 64;
/// If the limit is very low, connections for checks get one in so many descriptors.
const CHECKS_PART: u64 = 4;

/// The most connections for checks, if the configuration wants `wanted`.
pub(super) fn connections_max(wanted: usize) -> usize {
    let (wanted, limit) = (as_count(wanted), getrlimit(Resource::Nofile));
    let raised = raised(limit, wanted.saturating_add(reserved()));
    let soft = match raised {
        Some(raised) if setrlimit(Resource::Nofile, raised).is_ok() => raised.current,
        Some(_) | None => limit.current,
    };
    let fitting = fitting(wanted, soft);
    if fitting < wanted {
        warn!(
            connections_max = fitting,
            configured = wanted,
            open_files_max = soft,
            "fewer connections than configured: the system allows too few open files (ulimit -n)"
        );
    }
    usize::try_from(fitting).unwrap_or(usize::MAX)
}

/// The descriptors that are not for checks.
fn reserved() -> u64 {
    // The metrics listener and the admin one.
    let pages = as_count(2 * (PAGES_CONNECTIONS_MAX + SPARE_DESCRIPTORS_MAX));
    OTHERS_MAX.saturating_add(pages)
}

fn as_count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// The limit to set if `needed` descriptors are needed; `None` if the present limit is enough or cannot be raised. In an
/// `Rlimit`, `None` means unlimited.
fn raised(limit: Rlimit, needed: u64) -> Option<Rlimit> {
    let soft = limit.current.filter(|soft| *soft < needed)?;
    let current = limit.maximum.map_or(needed, |hard| hard.min(needed));
    (current > soft).then_some(Rlimit {
        current: Some(current),
        maximum: limit.maximum,
    })
}

/// Of `wanted` connections for checks, as many as `soft` descriptors allow.
fn fitting(wanted: u64, soft: Option<u64>) -> u64 {
    let Some(soft) = soft else {
        return wanted;
    };
    let left = soft.saturating_sub(reserved());
    wanted.min(left.max(soft / CHECKS_PART).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(limits: [Option<u64>; 2], needed: u64, expected: Option<u64>) {
        let [current, maximum] = limits;
        let found = raised(Rlimit { current, maximum }, needed);
        let found = found.map(|found| (found.current, found.maximum));
        let expected = expected.map(|expected| (Some(expected), maximum));
        assert_eq!(found, expected, "{limits:?}, {needed} needed");
    }

    #[test]
    fn a_limit_is_raised_to_what_is_needed_and_allowed() {
        check([Some(1024), Some(4096)], 1200, Some(1200));
        check([Some(1024), None], 1200, Some(1200));
        check([Some(1024), Some(1100)], 1200, Some(1100));
    }

    #[test]
    fn a_limit_is_left_alone_where_it_will_do_or_nothing_can_be_done() {
        check([Some(1200), Some(4096)], 1200, None);
        check([None, None], 1200, None);
        check([Some(1024), Some(1024)], 1200, None);
    }

    #[test]
    fn fewer_connections_are_allowed_where_descriptors_are_few() {
        let left = 1024 - reserved();
        for (soft, expected) in [
            (None, 1024),
            (Some(4096), 1024),
            (Some(1024), left),
            (Some(100), 25),
            (Some(2), 1),
        ] {
            assert_eq!(fitting(1024, soft), expected, "{soft:?}");
        }
        assert_eq!(fitting(10, Some(1024)), 10);
    }
}
