//! Envoy's local limit: every pod grants the whole limit, whatever the others do.

use tidegate_core::pure::Limit;

use super::tokens::TokenFleet;
use crate::scenario::Scenario;

pub fn fleet(scenario: &Scenario, limit: Limit, seed: u64) -> TokenFleet {
    TokenFleet::new(scenario, limit, limit.requests(), seed)
}

#[cfg(test)]
mod tests {
    use crate::baselines::Baseline::PerPod;
    use crate::baselines::trial::{Trial, at};

    #[test]
    fn every_pod_admits_the_whole_limit() {
        let mut trial = Trial::new(PerPod, 3, "10/second", "");
        for second in 0..3 {
            let checks = (0..3).map(|pod| at(second * 1_000).pod(pod).times(20));
            assert_eq!(checks.map(|checks| trial.ask(checks)).sum::<u64>(), 30);
        }
    }

    #[test]
    fn a_bucket_holds_a_burst_and_is_filled_in_steps() {
        let mut trial = Trial::new(PerPod, 1, "10/second burst 25", "");
        assert_eq!(trial.ask(at(0).times(30)), 25);
        assert_eq!(trial.ask(at(1_000).times(30)), 10);
        assert_eq!(trial.ask(at(1_000).key(1).times(30)), 25, "keys are apart");
        assert_eq!(
            trial.ask(at(4_000).times(40)),
            25,
            "three steps, of which all fit that may"
        );
    }

    #[test]
    fn what_is_larger_than_what_is_left_is_denied() {
        let mut trial = Trial::new(PerPod, 1, "10/second", "");
        assert_eq!(trial.ask(at(0).cells(7)), 1);
        assert_eq!(trial.ask(at(0).cells(7)), 0);
        assert_eq!(trial.ask(at(0).cells(3)), 1);
    }
}
