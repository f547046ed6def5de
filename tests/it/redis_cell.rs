//! `CL.THROTTLE` against redis-cell itself: the same calls, the same five integers.
//!
//! Both servers run by their own clocks and meet a call a few milliseconds apart, so a cell that comes back just then
//! may be there for one and not yet for the other. That is not guessed at but measured: calls go out in chunks, the
//! time before and after a chunk bounds when either server can have met its calls, and from that follows for each key
//! between which two levels both servers must be. Where every level in between gives one answer, the answers must be
//! equal; where a boundary lies in between, each must be one of the two that are possible, the case is counted apart,
//! and the key is not used again, since the two may have decided differently. Seconds may differ by one.
//!
//! One thing is not equal by intent: redis-cell divides whole microseconds by whole microseconds to find what remains,
//! and so tells of more cells than there are where an interval is short and the burst large. Those cases are known
//! beforehand and are held against what each of the two computes.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Instant;

use tidegate_testing::stores::RedisServer;
use tidegate_testing::{Endpoint, Random, SidecarSetup, now};

const MODULE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/target/tools/redis-cell/libredis_cell.so"
);
const RULES: &str = "- { domain: api, descriptors: [{ key: client, rate_limit: 1/second }] }";

/// Calls that have to be answered alike, and those that may be made until then.
const SAME: usize = 100_000;
const CALLS_MAX: usize = 200_000;
const CHUNK: usize = 200;
const KEYS: usize = 400;
/// Keys that give way to new ones after each chunk.
const RENEWED: usize = 10;
/// Redis forgets a key by whole milliseconds, and by a clock that it reads now and then: a bit early.
const SLACK_NS: i128 = 2_000_000;

#[derive(Clone, Copy, Debug)]
struct Params {
    max_burst: i128,
    count: i128,
    period: i128,
}

#[derive(Clone, Debug)]
struct Call {
    key: usize,
    params: Params,
    quantity: Option<i128>,
}

impl Call {
    fn words(&self, name: u64) -> Vec<String> {
        let Params {
            max_burst,
            count,
            period,
        } = self.params;
        let mut words = vec!["CL.THROTTLE".to_owned(), format!("key-{name}")];
        words.extend([max_burst, count, period].map(|number| number.to_string()));
        words.extend(self.quantity.map(|quantity| quantity.to_string()));
        words
    }
}

impl Params {
    fn interval(self) -> i128 {
        self.period * 1_000_000_000 / self.count
    }

    fn capacity(self) -> i128 {
        self.interval() * (self.max_burst + 1)
    }

    /// GCRA, once more and from its definition: `level` is how long until the key is as if it had never been used.
    fn limits(self, level: i128, quantity: i128) -> bool {
        level + self.interval() * quantity > self.capacity()
    }

    /// What remains, as both count it.
    fn remaining(self, level: i128, quantity: i128, limited: bool) -> Remaining {
        let taken = if limited {
            0
        } else {
            self.interval() * quantity
        };
        let left = (self.capacity() - level - taken).max(0);
        Remaining {
            ours: left / self.interval(),
            theirs: (left / 1_000) / (self.interval() / 1_000),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remaining {
    ours: i128,
    theirs: i128,
}

fn random_params(random: &mut Random) -> Params {
    Params {
        max_burst: random.pick(&[0, 1, 2, 4, 9, 15, 99, 999]),
        count: random.pick(&[1, 2, 3, 7, 10, 30, 60, 100, 1_000]),
        period: random.pick(&[1, 10, 60, 3_600, 86_400, 2_592_000]),
    }
}

fn random_quantity(random: &mut Random, params: Params) -> Option<i128> {
    match random.below(10) {
        0 => Some(0),
        1 => Some(1),
        2 => Some(random.pick(&[2, 3, 5])),
        3 => Some(params.max_burst + random.pick(&[0, 1, 2])),
        _ => None,
    }
}

/// A connection that sends many calls before it reads the answers.
struct Pipe {
    write: TcpStream,
    read: BufReader<TcpStream>,
}

impl Pipe {
    fn to(address: SocketAddr) -> Self {
        let write = TcpStream::connect(address).unwrap();
        write.set_nodelay(true).unwrap();
        let read = BufReader::new(write.try_clone().unwrap());
        Self { write, read }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.read.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn five(&mut self) -> Vec<i128> {
        let head = self.line();
        assert_eq!(head, "*5");
        (0..5).map(|_| self.line()[1..].parse().unwrap()).collect()
    }
}

fn encoded(words: &[String]) -> String {
    let words: String = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()))
        .collect();
    format!("*{}\r\n{words}", words.matches('$').count())
}

/// How a comparison went.
#[derive(Debug, Default)]
struct Tally {
    same: usize,
    /// A cell came back between the two.
    boundary: usize,
    /// redis-cell answered more cells than there are.
    rounded: usize,
    limited: usize,
}

/// What is known of a key: between which points, on the test's clock, its TAT lies on both servers, and its level after
/// the last call at most. Levels only fall until the next.
#[derive(Clone, Copy, Debug)]
struct Line {
    earliest: i128,
    latest: i128,
    level: i128,
}

impl Tally {
    const fn calls(&self) -> usize {
        self.same + self.boundary + self.rounded
    }

    /// Compares one call's answers, and says what is known of the key after it. `None`: not enough.
    fn compare(
        &mut self,
        call: &Call,
        (theirs, ours): (&[i128], &[i128]),
        line: Line,
        (begun, ended): (i128, i128),
    ) -> Option<Line> {
        let (params, quantity) = (call.params, call.quantity.unwrap_or(1));
        let low = (line.earliest - ended - SLACK_NS).max(0);
        let high = (line.latest - begun).clamp(0, line.level);
        let shown =
            || format!("{call:?}: redis-cell {theirs:?}, tidegate {ours:?}, level {low} to {high}");
        // Both are as they can be, each by itself.
        let ends = [low, high].map(|level| params.limits(level, quantity));
        for (five, remaining) in [
            (theirs, (|both| both.theirs) as fn(Remaining) -> i128),
            (ours, |both| both.ours),
        ] {
            let limited = five[0] == 1;
            assert!(ends.contains(&limited), "{}", shown());
            let [most, least] =
                [low, high].map(|level| remaining(params.remaining(level, quantity, limited)));
            assert!((least..=most).contains(&five[2]), "{}", shown());
            assert_eq!(five[1], params.max_burst + 1, "{}", shown());
        }
        let [at_low, at_high] = [low, high].map(|level| params.remaining(level, quantity, ends[0]));
        if ends[0] != ends[1] || at_low != at_high {
            self.boundary += 1;
            return None;
        }
        assert_eq!(theirs[0], ours[0], "{}", shown());
        assert!((theirs[3] - ours[3]).abs() <= 1, "{}", shown());
        assert!((theirs[4] - ours[4]).abs() <= 1, "{}", shown());
        assert_eq!(theirs[3] < 0, ours[3] < 0, "{}", shown());
        self.limited += usize::from(ends[0]);
        match theirs[2] == ours[2] {
            true => self.same += 1,
            false => self.rounded += 1,
        }
        let price = call.params.interval() * quantity;
        Some(match ends[0] || quantity == 0 {
            true => Line {
                level: high,
                ..line
            },
            false => Line {
                earliest: line.earliest.max(begun) + price,
                latest: line.latest.max(ended) + price,
                level: high + price,
            },
        })
    }
}

/// A key in use.
#[derive(Clone, Copy, Debug)]
struct Key {
    name: u64,
    params: Params,
    line: Line,
}

/// Both servers, and the keys that both are asked.
struct Comparison {
    pipes: [Pipe; 2],
    random: Random,
    keys: Vec<Key>,
    names: u64,
    tally: Tally,
    begun: Instant,
}

impl Comparison {
    fn new(addresses: [SocketAddr; 2]) -> Self {
        let mut comparison = Self {
            pipes: addresses.map(Pipe::to),
            random: Random::new(7),
            keys: Vec::new(),
            names: 0,
            tally: Tally::default(),
            begun: now(),
        };
        comparison.keys = (0..KEYS).map(|_| comparison.fresh_key()).collect();
        comparison
    }

    fn fresh_key(&mut self) -> Key {
        self.names += 1;
        let line = Line {
            earliest: 0,
            latest: 0,
            level: 0,
        };
        Key {
            name: self.names,
            params: random_params(&mut self.random),
            line,
        }
    }

    fn call(&mut self) -> Call {
        let key = self.random.index(KEYS);
        // Mostly a key's own limit; now and then another caller's, who shares its time line.
        let params = match self.random.below(8) {
            0 => random_params(&mut self.random),
            _ => self.keys[key].params,
        };
        let quantity = random_quantity(&mut self.random, params);
        Call {
            key,
            params,
            quantity,
        }
    }

    fn nanos(&self) -> i128 {
        i128::try_from(self.begun.elapsed().as_nanos()).unwrap()
    }

    /// Sends as many calls to both, and compares.
    fn chunk(&mut self) {
        let calls: Vec<Call> = (0..CHUNK).map(|_| self.call()).collect();
        let encoded = calls
            .iter()
            .map(|call| encoded(&call.words(self.keys[call.key].name)));
        let bytes: String = encoded.collect();
        let sent = self.nanos();
        for pipe in &mut self.pipes {
            pipe.write.write_all(bytes.as_bytes()).unwrap();
        }
        let [theirs, ours] = &mut self.pipes;
        let answers: Vec<_> = calls.iter().map(|_| theirs.five()).collect();
        let answers: Vec<_> = answers
            .into_iter()
            .map(|five| (five, ours.five()))
            .collect();
        let read = self.nanos();
        let mut retired = [false; KEYS];
        for (call, (theirs, ours)) in calls.iter().zip(&answers) {
            // What follows a boundary in its chunk stands on unknown ground.
            if retired[call.key] {
                self.tally.boundary += 1;
                continue;
            }
            let line = &mut self.keys[call.key].line;
            match self
                .tally
                .compare(call, (theirs, ours), *line, (sent, read))
            {
                Some(known) => *line = known,
                None => retired[call.key] = true,
            }
        }
        // Some keys are forgotten while they still mean something: new ones begin all the time.
        for _ in 0..RENEWED {
            retired[self.random.index(KEYS)] = true;
        }
        for key in (0..KEYS).filter(|key| retired[*key]) {
            self.keys[key] = self.fresh_key();
        }
    }
}

#[test]
fn a_hundred_thousand_calls_are_answered_as_redis_cell_answers_them() {
    assert!(
        Path::new(MODULE).exists(),
        "no redis-cell here: run `make tools`"
    );
    let redis = RedisServer::start(&["--loadmodule", MODULE]);
    let sidecar = SidecarSetup::rules(RULES)
        .listen_also(r#"resp: ["127.0.0.1:0"]"#)
        .start();
    let Some(Endpoint::Tcp(address)) = sidecar.door("resp") else {
        panic!("a door on TCP");
    };
    let mut comparison = Comparison::new([redis.address().parse().unwrap(), address]);
    while comparison.tally.same < SAME {
        comparison.chunk();
        let tally = &comparison.tally;
        assert!(tally.calls() < CALLS_MAX, "{tally:?}");
    }
    let Comparison { tally, begun, .. } = comparison;
    let (calls, took) = (tally.calls(), begun.elapsed());
    eprintln!("redis-cell: {calls} calls compared in {took:?}: {tally:?}");
    let limited = SAME / 5..SAME * 4 / 5;
    assert!(limited.contains(&tally.limited), "{tally:?}");
}

/// What redis-cell has no sound answer to is refused, and by name.
#[test]
fn what_redis_cell_answers_nonsense_to_is_refused() {
    let sidecar = SidecarSetup::rules(RULES)
        .listen_also(r#"resp: ["127.0.0.1:0"]"#)
        .start();
    let Some(Endpoint::Tcp(address)) = sidecar.door("resp") else {
        panic!("a door on TCP");
    };
    let mut pipe = Pipe::to(address);
    let max = i64::MAX;
    for (words, expected) in [
        // redis-cell: a limit of -9223372036854775808.
        (
            format!("u {max} {max} 1"),
            "-ERR count: must be at most 1000000000 per second",
        ),
        // redis-cell: limited, and there is nothing to wait for.
        (
            "u 15 0 60".to_owned(),
            "-ERR count: must be at least 1, is 0",
        ),
        (
            "u 15 30 0".to_owned(),
            "-ERR period: must be at least 1, is 0",
        ),
        (
            "u -2 30 60".to_owned(),
            "-ERR max_burst: must be at least 0, is -2",
        ),
        (
            "u 15 -30 60".to_owned(),
            "-ERR count: must be at least 1, is -30",
        ),
        (
            format!("u {max} 1 1"),
            "-ERR period: count, period and max_burst make a bucket that takes over 100 years to empty",
        ),
        (
            format!("u 15 30 {max}"),
            "-ERR period: count, period and max_burst make a bucket that takes over 100 years to empty",
        ),
        (
            "u 15 30 abc".to_owned(),
            "-ERR period: must be a whole number, is \"abc\"",
        ),
    ] {
        pipe.write
            .write_all(format!("CL.THROTTLE {words}\r\n").as_bytes())
            .unwrap();
        assert_eq!(pipe.line(), expected, "{words}");
    }
    for quantity in [i64::MAX, i64::MIN] {
        pipe.write
            .write_all(format!("CL.THROTTLE u 15 30 60 {quantity}\r\n").as_bytes())
            .unwrap();
        let limited = i128::from(quantity > 0);
        assert_eq!(pipe.five(), [limited, 16, 16, -1, 0], "{quantity}");
    }
}
