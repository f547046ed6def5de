//! The load has the rate, the shares and the keys that a test asks for.

use tidegate_testing::Random;
use tidegate_testing::fleet::load::{CheckStream, FleetLoad, ScheduledCheck, answer};
use tidegate_testing::fleet::scenarios::Zipf;

#[test]
fn a_stream_has_its_rate_its_shares_and_its_time() {
    let shares = [0.9, 0.05, 0.05];
    let stream = CheckStream {
        rate: 1_000.0,
        shares: &shares,
        from: 2.0,
        to: 12.0,
        seed: 1,
    };
    let load = FleetLoad::one(3).stream(stream);
    for (share, arrivals) in shares.iter().zip(&load.arrivals) {
        let expected = 10_000.0 * share;
        let off = (arrivals.len() as f64 - expected).abs();
        assert!(
            off < 4.0 * expected.sqrt(),
            "{} of {expected}",
            arrivals.len()
        );
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at));
        let within = |arrival: &ScheduledCheck| (2.0..12.0).contains(&arrival.at.as_secs_f64());
        assert!(arrivals.iter().all(within));
    }
    let again = FleetLoad::one(3).stream(stream);
    assert_eq!(format!("{load:?}"), format!("{again:?}"));
}

#[test]
fn an_answer_is_whole_with_its_body() {
    let whole = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\nhi";
    for end in 0..whole.len() {
        assert_eq!(answer(&whole[..end]), None);
    }
    assert_eq!(answer(whole), Some((429, whole.len())));
}

#[test]
fn the_first_key_is_the_hottest() {
    let (zipf, mut random) = (Zipf::new(100), Random::new(1));
    let mut counts = vec![0; 100];
    for _ in 0..10_000 {
        counts[zipf.pick(&mut random) as usize] += 1;
    }
    assert!((1_800..2_100).contains(&counts[0]), "{counts:?}");
    assert!(
        (800..1_100).contains(&counts[1]) && counts[99] > 0,
        "{counts:?}"
    );
}
