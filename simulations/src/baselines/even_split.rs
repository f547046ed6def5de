//! Envoy's local limit with a share of the local cluster: every pod fills its buckets with an Nth, rounded up.
//!
//! As in `local_ratelimit_impl.cc`, the fill of a step is divided by the number of pods, and the size of a bucket is not.
//! So an idle bucket lets a whole burst pass at once, on every pod. With more pods than cells, each pod still gets one cell
//! in each window.

use tidegate_core::pure::Limit;

use super::tokens::TokenFleet;
use crate::scenario::Scenario;

pub fn fleet(scenario: &Scenario, limit: Limit, seed: u64) -> TokenFleet {
    let fill = limit.requests().div_ceil((scenario.pods as u64).max(1));
    TokenFleet::new(scenario, limit, fill, seed)
}

#[cfg(test)]
mod tests {
    use crate::baselines::Baseline::EvenSplit;
    use crate::baselines::trial::{Trial, at};

    #[test]
    fn a_client_of_one_pod_is_denied_most_of_its_limit() {
        let mut trial = Trial::new(EvenSplit, 4, "10/second", "");
        assert_eq!(
            trial.ask(at(0).pod(0).times(20)),
            10,
            "an idle bucket is whole"
        );
        // One step in each second: an Nth of ten, rounded up.
        assert_eq!(trial.ask(at(1_000).pod(0).times(20)), 3);
        assert_eq!(trial.ask(at(2_000).pod(0).times(20)), 3);
        assert_eq!(
            trial.ask(at(2_000).pod(1).times(20)),
            10,
            "another pod knows nothing of it"
        );
        assert_eq!(trial.cost().calls, 0);
    }

    #[test]
    fn rounding_up_gives_every_pod_a_cell() {
        let mut trial = Trial::new(EvenSplit, 20, "5/second", "");
        for pod in 0..20 {
            trial.ask(at(0).pod(pod).times(5));
        }
        let admitted: u64 = (0..20)
            .map(|pod| trial.ask(at(1_000).pod(pod).times(5)))
            .sum();
        assert_eq!(admitted, 20, "four times the limit");
    }
}
