//! Windowed rules on pods whose calendars differ from the store's.

use tidegate::pure::rule::RuleSpec;
use tidegate::pure::{Algorithm, Limit, Unit};

use super::world::{SECOND, Way, World};

/// A fixed window of 200 a second on three pods that are ahead by so many microseconds, asked at `rate` for so long:
/// the cells admitted in each window but the first and the last.
fn admitted(ahead_us: i64, rate: f64, seconds: u64) -> (Vec<u64>, u64) {
    let spec = RuleSpec {
        algorithm: Algorithm::FixedWindow,
        ..RuleSpec::new(Limit::new(200, Unit::Second, 1, None).expect("a sound limit"))
    };
    let mut world = World::new(3, &spec, Way::GOOD, 5);
    world.calendar = ahead_us * 1_000;
    let begun = world.now();
    for pod in 0..3 {
        world.load(pod, 1, rate / 3.0, (begun, seconds * SECOND));
    }
    world.run_until(begun + seconds * SECOND);
    let ahead = world.calendar;
    let window = |at: u64| at.saturating_add_signed(ahead) / SECOND;
    let first = window(begun) + 1;
    let mut windows = vec![0; usize::try_from(seconds).expect("few") - 2];
    let mut denied = 0;
    for one in &world.decided {
        denied += u64::from(!one.allowed);
        let nth = window(one.at)
            .checked_sub(first)
            .and_then(|nth| usize::try_from(nth).ok());
        if let Some(count) = nth.and_then(|nth| windows.get_mut(nth)) {
            *count += u64::from(one.allowed);
        }
    }
    (windows, denied)
}

#[test]
fn below_the_limit_nothing_is_denied_however_clocks_differ() {
    for ahead_us in [-20_000, -700, -550, -500, -450, 0, 500, 20_000] {
        let (_, denied) = admitted(ahead_us, 120.0, 10);
        assert_eq!(denied, 0, "{ahead_us} µs ahead");
    }
}

#[test]
fn a_window_that_fills_up_at_its_end_leaves_the_next_one_alone() {
    for ahead_us in [-20_000, 0, 5_000, 20_000] {
        let (windows, _) = admitted(ahead_us, 205.0, 40);
        let fewest = windows.iter().min().expect("some");
        assert!(*fewest >= 150, "{ahead_us} µs ahead: {windows:?}");
    }
}

#[test]
fn an_overload_admits_about_the_limit_in_each_window() {
    let (windows, _) = admitted(0, 1_000.0, 12);
    let within = |count: &u64| (190..=240).contains(count);
    assert!(windows.iter().all(within), "{windows:?}");
}
