//! What a pod may ask of the store, one claim per test.

use std::time::Duration;

use tidegate::sync::{ErrorKind, RedisStore};
use tidegate_core::pure::sync::{
    Delta, Heartbeat, HeartbeatReply, KnownUsage, Lane, News, NewsKind, Refund, StoreKey,
    StoreState, Take, Terms,
};
use tidegate_core::pure::{Cells, Limit, Span, Unit};
use tidegate_testing::stores::RedisServer;
use tokio::sync::mpsc;

use crate::world::{RULE, call, counts, delta, per_day, per_second, run, seconds, store_at};

const ALICE: u128 = 0x10;

#[test]
fn a_batch_is_booked_once() {
    let server = RedisServer::start(&[]);
    let store = store_at(&server.url(), 1);
    let alice = StoreKey::level(RULE, ALICE);
    let batch = call(alice.lane(), 0, vec![delta(alice, per_second(1, 100), 60)]);
    run(async {
        let first = store.apply(&batch).await.unwrap();
        assert!(first.applied);
        assert_eq!(
            (first.sequence, first.gross.get(), seconds(first.states[0])),
            (1, 60, 60)
        );
        let again = store.apply(&batch).await.unwrap();
        assert!(!again.applied);
        assert_eq!(
            (again.sequence, again.gross.get(), seconds(again.states[0])),
            (1, 60, 60)
        );
        let other = store_at(&server.url(), 2).apply(&batch).await.unwrap();
        assert_eq!(
            (other.applied, other.gross.get(), seconds(other.states[0])),
            (true, 60, 120)
        );
    });
}

#[test]
fn a_call_without_keys_tells_the_sequence() {
    let server = RedisServer::start(&[]);
    let store = store_at(&server.url(), 1);
    let lane = Lane::new(5);
    run(async {
        assert_eq!(
            store.apply(&call(lane, 0, vec![])).await.unwrap().sequence,
            1
        );
        let behind = store.apply(&call(lane, 7, vec![])).await.unwrap();
        assert_eq!((behind.applied, behind.sequence), (false, 1));
    });
}

#[test]
fn reading_changes_nothing() {
    let server = RedisServer::start(&[]);
    let store = store_at(&server.url(), 1);
    let alice = StoreKey::level(RULE, ALICE);
    let terms = per_second(1, 100);
    run(async {
        assert_eq!(seconds(store.read(alice, terms).await.unwrap()), 0);
        assert_eq!(server.cli(&["DBSIZE"]), "0");
        let batch = call(alice.lane(), 0, vec![delta(alice, terms, 60)]);
        store.apply(&batch).await.unwrap();
        assert_eq!(seconds(store.read(alice, terms).await.unwrap()), 60);
        // On another scale half full is half full.
        assert_eq!(
            seconds(store.read(alice, per_second(1, 200)).await.unwrap()),
            120
        );
        assert_eq!(server.cli(&["DBSIZE"]), "2");
    });
}

#[test]
fn values_do_not_outlive_their_use() {
    let server = RedisServer::start(&[]);
    let store = store_at(&server.url(), 1);
    let alice = StoreKey::level(RULE, ALICE);
    let batch = call(alice.lane(), 0, vec![delta(alice, per_second(1, 100), 60)]);
    run(store.apply(&batch)).unwrap();
    let left = |pattern: &str| {
        let name = server.cli(&["KEYS", pattern]);
        server.cli(&["PTTL", &name]).parse::<u64>().unwrap()
    };
    assert!((75_000..=80_000).contains(&left("*:l:*")));
    assert!((3_595_000..=3_600_000).contains(&left("*:seq:*")));
}

async fn take(store: &RedisStore, key: StoreKey, terms: Terms, cost: u64) -> (bool, StoreState) {
    let take = Take {
        key,
        terms,
        cost: Cells::new(cost),
        charge: false,
    };
    let taken = store.take(&take).await.unwrap();
    (taken.taken, taken.state)
}

#[test]
fn a_bucket_is_taken_from_until_it_is_full() {
    let server = RedisServer::start(&[]);
    let store = store_at(&server.url(), 1);
    let alice = StoreKey::level(RULE, ALICE);
    // One cell an hour: nothing returns meanwhile.
    let hour = Span::seconds(3_600);
    let capacity = hour.times(Cells::new(10));
    let terms = Terms::Level {
        interval: hour,
        capacity,
        debt_max: capacity,
    };
    run(async {
        assert!(take(&store, alice, terms, 7).await.0);
        let (taken, store_state) = take(&store, alice, terms, 4).await;
        assert!(!taken);
        assert_eq!(seconds(store_state).div_ceil(3_600), 7);
        assert!(take(&store, alice, terms, 3).await.0);
        let three = Take {
            key: alice,
            terms,
            cost: Cells::new(3),
            charge: false,
        };
        store.give_back(&Refund::from(&three)).await.unwrap();
        assert!(!take(&store, alice, terms, 4).await.0);
        assert!(take(&store, alice, terms, 3).await.0);
        // The books count what is reported.
        let books = store.apply(&call(alice.lane(), 9, vec![])).await.unwrap();
        assert_eq!((books.sequence, books.gross.get()), (0, 0));
    });
}

#[test]
fn a_window_is_taken_from_until_it_is_full() {
    let server = RedisServer::start(&[]);
    let store = store_at(&server.url(), 1);
    let alice = StoreKey::window(RULE, ALICE);
    run(async {
        assert!(take(&store, alice, per_day(10, false), 7).await.0);
        let (taken, store_state) = take(&store, alice, per_day(10, false), 4).await;
        assert_eq!((taken, counts(store_state)), (false, (7, 0)));
        assert!(take(&store, alice, per_day(10, false), 3).await.0);
        let three = Take {
            key: alice,
            terms: per_day(10, false),
            cost: Cells::new(3),
            charge: false,
        };
        store.give_back(&Refund::from(&three)).await.unwrap();
        assert_eq!(
            counts(store.read(alice, per_day(10, false)).await.unwrap()),
            (7, 0)
        );
    });
}

async fn charge(store: &RedisStore, key: StoreKey, terms: Terms, cost: u64) -> (bool, StoreState) {
    let take = Take {
        key,
        terms,
        cost: Cells::new(cost),
        charge: true,
    };
    let taken = store.take(&take).await.unwrap();
    (taken.taken, taken.state)
}

/// A day's budget: what is not there is debt, of one burst at most.
#[test]
fn what_is_charged_after_the_fact_is_booked_as_debt() {
    let server = RedisServer::start(&[]);
    let store = store_at(&server.url(), 1);
    let alice = StoreKey::level(RULE, ALICE);
    let limit = Limit::new(1_000_000, Unit::Day, 1, None).unwrap();
    let terms = Terms::charging(&limit);
    let cells = |store_state: StoreState| match store_state {
        StoreState::Level { level, capped, .. } => {
            // Some milliseconds pass, and a cell takes 86.
            (
                level.plus(Span::seconds(5)).whole(limit.interval()).get() / 100,
                capped,
            )
        }
        StoreState::Window { .. } => panic!("{store_state:?} is no level"),
    };
    run(async {
        let expected = [
            (600_000, true, 6_000, false),
            (600_000, false, 12_000, false),
            (500_000, false, 17_000, false),
            (600_000, false, 20_000, true),
            (600_000, false, 20_000, true),
        ];
        for (cost, fits, level, capped) in expected {
            let (taken, store_state) = charge(&store, alice, terms, cost).await;
            assert_eq!((taken, cells(store_state)), (fits, (level, capped)));
        }
        // Told as usual, the same cap holds.
        let batch = call(alice.lane(), 0, vec![delta(alice, terms, 300_000)]);
        let store_state = store.apply(&batch).await.unwrap().states[0];
        assert_eq!(cells(store_state), (20_000, true));
        assert_eq!(cells(store.read(alice, terms).await.unwrap()).0, 20_000);
    });
}

#[test]
fn what_is_charged_after_the_fact_counts_in_its_window() {
    let server = RedisServer::start(&[]);
    let store = store_at(&server.url(), 1);
    let alice = StoreKey::window(RULE, ALICE);
    let terms = per_day(1_000, false);
    run(async {
        for (fits, count) in [(true, 600), (false, 1_200), (false, 1_800)] {
            let (taken, store_state) = charge(&store, alice, terms, 600).await;
            assert_eq!((taken, counts(store_state)), (fits, (count, 0)));
        }
    });
}

#[test]
fn the_window_before_counts_where_it_is_in_sight() {
    let server = RedisServer::start(&[]);
    let store = store_at(&server.url(), 1);
    let alice = StoreKey::window(RULE, ALICE);
    let terms = per_day(1_000, true);
    let Terms::Window { window, .. } = terms else {
        panic!("a window")
    };
    let mut before = delta(alice, terms, 900_000_000);
    before.age = window;
    run(async {
        let store_state = store
            .apply(&call(alice.lane(), 0, vec![before]))
            .await
            .unwrap()
            .states[0];
        assert_eq!(counts(store_state), (0, 900_000_000));
        assert!(!take(&store, alice, terms, 1_000).await.0);
        assert!(take(&store, alice, per_day(1_000, false), 1_000).await.0);
    });
}

/// A report of the window before comes late, and puts that window above its limit.
#[test]
fn a_window_carries_admitted_cells_above_its_limit_into_the_next_one() {
    let server = RedisServer::start(&[]);
    let store = store_at(&server.url(), 1);
    let key = StoreKey::window(RULE, ALICE);
    let Terms::Window {
        window, requests, ..
    } = per_day(1_000, false)
    else {
        panic!("a window")
    };
    let carrying = Terms::Window {
        window,
        requests,
        sliding: false,
        carries_over: true,
    };
    let late = |terms, cells| Delta {
        age: window,
        ..delta(key, terms, cells)
    };
    let steps = [
        (late(carrying, 990), (0, 990)),
        (delta(key, carrying, 5), (5, 990)),
        (late(carrying, 70), (65, 1_060)),
        (late(carrying, 70), (105, 1_130)), // a tenth of the limit, and no more
        (late(carrying, 70), (105, 1_200)),
        (late(per_day(1_000, false), 70), (105, 1_270)),
    ];
    run(async {
        for (previous, (delta, expected)) in (0..).zip(steps) {
            let call = call(key.lane(), previous, vec![delta]);
            let reply = store.apply(&call).await.unwrap();
            assert_eq!(counts(reply.states[0]), expected);
        }
        let refund = |cells| Refund {
            key,
            terms: carrying,
            cells: Cells::new(cells),
            price: Span::ZERO,
            age: window,
        };
        for (cells, expected) in [(100, (105, 1_170)), (100, (75, 1_070)), (500, (5, 570))] {
            let store_state = store.give_back(&refund(cells)).await.unwrap();
            assert_eq!(counts(store_state), expected);
        }
    });
}

/// A neighbour that spoils a value would otherwise free a whole burst each time.
#[test]
fn a_spoilt_value_starts_again_at_what_the_pod_knows_and_never_with_debt() {
    let server = RedisServer::start(&[]);
    let store = store_at(&server.url(), 1);
    let (alice, window) = (StoreKey::level(RULE, ALICE), StoreKey::window(RULE, ALICE));
    let name = |key: &StoreKey| {
        let kind = if key.is_windowed() { 'w' } else { 'l' };
        format!("tidegate:v1:{{16}}:{kind}:{RULE:016x}:{ALICE:032x}")
    };
    let knows = |level, cells| KnownUsage {
        level: Span::seconds(level),
        cells: Cells::new(cells),
    };
    run(async {
        for (previous, spoilt) in [(0, "SET"), (1, "RPUSH")] {
            for key in [&alice, &window] {
                server.cli(&["DEL", &name(key)]);
                server.cli(&[spoilt, &name(key), "rubbish"]);
            }
            let known = if spoilt == "SET" {
                knows(40, 7)
            } else {
                knows(1_000, 1_000)
            };
            let deltas = [
                delta(alice, per_second(1, 100), 2),
                delta(window, per_day(20, false), 2),
            ];
            let deltas = deltas.map(|delta| Delta { known, ..delta }).into();
            let reply = store.apply(&call(alice.lane(), previous, deltas)).await;
            let reply = reply.unwrap();
            let store_state = (seconds(reply.states[0]), counts(reply.states[1]).0);
            let expected = if spoilt == "SET" { (42, 9) } else { (102, 22) };
            assert_eq!((reply.repaired, store_state), (2, expected), "{spoilt}");
        }
        // A check that the store decides knows nothing: the key is full.
        server.cli(&["SET", &name(&alice), "rubbish"]);
        let take = Take {
            key: alice,
            terms: per_second(1, 50),
            cost: Cells::ONE,
            charge: false,
        };
        let taken = store.take(&take).await.unwrap();
        assert_eq!((taken.taken, seconds(taken.state)), (false, 50));
    });
}

#[test]
fn a_poisoned_value_is_repaired() {
    let server = RedisServer::start(&[]);
    let store = store_at(&server.url(), 1);
    let alice = StoreKey::level(RULE, ALICE);
    let name = format!("tidegate:v1:{{16}}:l:{:016x}:{ALICE:032x}", 7);
    server.cli(&["RPUSH", &name, "x"]);
    run(async {
        // It counts as full, and drains.
        assert!(!take(&store, alice, per_second(1, 10), 1).await.0);
        assert_eq!(server.cli(&["TYPE", &name]), "string");
        server.cli(&["SET", &name, "x"]);
        let batch = call(alice.lane(), 0, vec![delta(alice, per_second(1, 10), 1)]);
        assert_eq!(store.apply(&batch).await.unwrap().repaired, 1);
        for name in ["pods", "resets", "reset_count"] {
            let name = format!("tidegate:v1:{{0}}:{name}");
            server.cli(&["SADD", &name, "x"]);
        }
        let heartbeat_answered = store.heartbeat(&heartbeat(0, false)).await.unwrap();
        assert_eq!(
            heartbeat_answered,
            HeartbeatReply {
                pods: 1,
                resets: 0,
                reset_keys: vec![]
            }
        );
        server.cli(&["SET", "tidegate:v1:{0}:reset_count", "x"]);
        store.reset(alice).await.unwrap();
        assert_eq!(
            store.heartbeat(&heartbeat(0, false)).await.unwrap().resets,
            1
        );
    });
}

fn heartbeat(resets_seen: u64, leaving: bool) -> Heartbeat {
    Heartbeat {
        expiry: Span::seconds(600),
        resets_seen,
        leaving,
    }
}

#[test]
fn pods_are_counted_until_they_leave_or_fall_silent() {
    let server = RedisServer::start(&[]);
    let (one, two) = (store_at(&server.url(), 1), store_at(&server.url(), 2));
    run(async {
        assert_eq!(one.heartbeat(&heartbeat(0, false)).await.unwrap().pods, 1);
        assert_eq!(one.heartbeat(&heartbeat(0, false)).await.unwrap().pods, 1);
        assert_eq!(two.heartbeat(&heartbeat(0, false)).await.unwrap().pods, 2);
        assert_eq!(one.heartbeat(&heartbeat(0, true)).await.unwrap().pods, 1);
        // One that last spoke at the epoch, and one from the future.
        let pods = "tidegate:v1:{0}:pods";
        server.cli(&["ZADD", pods, "1000", "old", "9000000000000", "new"]);
        assert_eq!(one.heartbeat(&heartbeat(0, false)).await.unwrap().pods, 2);
        assert!(server.cli(&["PTTL", pods]).parse::<u64>().unwrap() <= 600_000);
    });
}

#[test]
fn a_reset_is_told_to_those_who_ask_later() {
    let server = RedisServer::start(&[]);
    let store = store_at(&server.url(), 1);
    let keys = [
        StoreKey::level(RULE, 0x10),
        StoreKey::window(RULE, 0x21),
        StoreKey::caller(RULE, 0x32),
    ];
    run(async {
        let batch = call(
            keys[0].lane(),
            0,
            vec![delta(keys[0], per_second(1, 100), 60)],
        );
        store.apply(&batch).await.unwrap();
        for key in keys {
            store.reset(key).await.unwrap();
        }
        assert_eq!(
            seconds(store.read(keys[0], per_second(1, 100)).await.unwrap()),
            0
        );
        let all = store.heartbeat(&heartbeat(0, false)).await.unwrap();
        assert_eq!((all.resets, all.reset_keys), (3, keys.to_vec()));
        let last = store.heartbeat(&heartbeat(2, false)).await.unwrap();
        assert_eq!(last.reset_keys, keys[2..]);
        assert_eq!(
            store
                .heartbeat(&heartbeat(3, false))
                .await
                .unwrap()
                .reset_keys,
            []
        );
        // A pod that has seen another store hears of all.
        assert_eq!(
            store
                .heartbeat(&heartbeat(9, false))
                .await
                .unwrap()
                .reset_keys,
            keys
        );
    });
}

#[test]
fn a_script_is_loaded_when_it_is_gone() {
    let server = RedisServer::start(&[]);
    let store = store_at(&server.url(), 1);
    run(async {
        for previous in 0..3 {
            let reply = store
                .apply(&call(Lane::new(1), previous, vec![]))
                .await
                .unwrap();
            assert!(reply.applied);
            server.cli(&["SCRIPT", "FLUSH"]);
        }
    });
}

#[test]
fn news_is_heard_by_every_pod() {
    let mut server = RedisServer::start(&[]);
    let (one, two) = (store_at(&server.url(), 1), store_at(&server.url(), 2));
    let (alice, window) = (StoreKey::level(RULE, ALICE), StoreKey::window(RULE, ALICE));
    let mut full = delta(alice, per_second(1, 100), 150);
    full.live = true;
    run(async {
        let (sender, mut news) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            two.listen(move |news| {
                let _ = sender.send(news);
            })
            .await
        });
        subscribed(&server).await;
        let deltas = vec![full, delta(window, per_day(5, false), 5)];
        one.apply(&call(alice.lane(), 0, deltas)).await.unwrap();
        one.reset(alice).await.unwrap();
        let live = NewsKind::Live(Span::seconds(10));
        assert_eq!(
            receive_news(&mut news).await,
            News {
                key: alice,
                kind: live
            }
        );
        let store_state = receive_news(&mut news).await;
        assert_eq!(
            store_state,
            News {
                key: alice,
                kind: NewsKind::Full(Span::seconds(150))
            }
        );
        let store_state = receive_news(&mut news).await;
        assert!(store_state.key == window && matches!(store_state.kind, NewsKind::Full(_)));
        assert_eq!(
            receive_news(&mut news).await,
            News {
                key: alice,
                kind: NewsKind::Reset
            }
        );
        // What others say there is passed over, and a new server is found.
        server.cli(&["PUBLISH", "tidegate:v1:news", "good morning"]);
        server.restart();
        subscribed(&server).await;
        // The first call meets the connection of before.
        let cut = one.reset(window).await.unwrap_err();
        assert_eq!(cut.kind, ErrorKind::Cut);
        one.reset(window).await.unwrap();
        assert_eq!(
            receive_news(&mut news).await,
            News {
                key: window,
                kind: NewsKind::Reset
            }
        );
    });
}

async fn receive_news(news: &mut mpsc::UnboundedReceiver<News>) -> News {
    let news_received = tokio::time::timeout(Duration::from_secs(20), news.recv());
    news_received.await.expect("news in time").expect("news")
}

/// Waits until somebody listens.
async fn subscribed(server: &RedisServer) {
    let listens = || {
        server
            .cli(&["PUBSUB", "NUMSUB", "tidegate:v1:news"])
            .ends_with('1')
    };
    for _ in 0..2_000 {
        if listens() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody listens");
}
