//! `apply.lua`, and `take.lua` with cells that are given back, equal the model of the simulations, on many random
//! histories of a few pods, a few keys and a clock that jumps.
//!
//! The scripts are the real ones but for the line that reads the clock, and they publish into a list, so that nothing they
//! say is lost. `SEED=<number>` repeats one history, `HISTORIES=<number>` runs so many.

use std::collections::HashMap;
use std::{env, thread};

use redis::{Cmd, Connection, Pipeline, Value};
use simulations::store::model::{StoreModel, StoredRecord, StoredValue};
use tidegate::sync::codec::{self, Names, ScriptRequest};
use tidegate_core::pure::sync::{
    BucketKind, Call, Delta, Group, Grouping, KnownUsage, Lane, News, Refund, Share, StoreKey,
    StoreState, Terms,
};
use tidegate_core::pure::{Cells, Span};
use tidegate_testing::Random;
use tidegate_testing::stores::RedisServer;

const HISTORIES: u64 = 100_000;
/// Histories that are sent at once.
const TOGETHER: u64 = 100;
const CLOCK: &str =
    "local time = call('TIME') local now = time[1] * 1000000 + time[2] -- the clock";
const INCARNATIONS: [u128; 2] = [0xa, 0xb << 100];

/// The hashes of `apply.lua` and `take.lua` on a server.
#[derive(Clone, Debug)]
struct Scripts {
    apply: String,
    take: String,
}

/// `body` with what all scripts share, and a clock that is an argument.
fn script(body: &str) -> String {
    let common = include_str!("../../src/sync/lua/common.lua");
    assert_eq!(common.matches(CLOCK).count(), 1, "there is one clock");
    let common = common.replace(CLOCK, "local now = tonumber(ARGV[#ARGV])");
    common + body
}

/// One history: what is sent, and what must come back.
struct History {
    seed: u64,
    random: Random,
    model: StoreModel,
    lane: Lane,
    /// Each with the terms before and after a reload.
    keys: Vec<(StoreKey, [Terms; 2])>,
    now: u64,
    sequences: HashMap<u128, u64>,
    sent: Vec<(u128, Call)>,
    commands: Pipeline,
    expected: Vec<Expected>,
}

#[derive(Debug)]
enum Expected {
    Anything,
    StoreReply(Call, tidegate_core::pure::sync::StoreReply),
    GivenBack(Terms, StoreState),
    News(Vec<News>),
    Key(BucketKind, Option<StoredValue>),
    Record(Option<StoredRecord>),
}

impl History {
    fn new(seed: u64, scripts: &Scripts) -> Self {
        let mut random = Random::new(seed);
        let lane = Lane::new(random.byte());
        let mut keys = Vec::new();
        let constructors: [fn(u64, u128) -> StoreKey; 4] = [
            StoreKey::level,
            StoreKey::caller,
            StoreKey::window,
            StoreKey::level,
        ];
        for (number, constructor) in constructors.into_iter().enumerate() {
            let name =
                u128::from(seed) << 64 | u128::from(number as u64) << 8 | u128::from(lane.number());
            let key = constructor(7, name);
            keys.push((key, [terms(&mut random, &key), terms(&mut random, &key)]));
        }
        let now = 1_700_000_000_000_000 + random.below(1 << 48);
        let mut history = Self {
            seed,
            random,
            model: StoreModel::default(),
            lane,
            keys,
            now,
            sequences: HashMap::new(),
            sent: Vec::new(),
            commands: redis::pipe(),
            expected: Vec::new(),
        };
        for _ in 0..4 + history.random.below(7) {
            history.step(scripts);
        }
        history.compare_values();
        history
    }

    fn names(&self, incarnation: u128) -> Names {
        Names::new(&format!("history{}", self.seed), false, incarnation)
    }

    fn list(&self) -> String {
        format!("news:{}", self.seed)
    }

    fn expect(&mut self, command: Cmd, expected: Expected) {
        self.commands.add_command(command);
        self.expected.push(expected);
    }

    fn step(&mut self, scripts: &Scripts) {
        match self.random.below(20) {
            0 => self.now -= self.random.below(3_000_000),
            1 => self.now += self.random.below(200_000_000),
            2..6 => self.now += self.random.below(5_000_000),
            6..15 => self.now += self.random.below(50_000),
            _ => {}
        }
        if self.random.below(12) == 0 {
            self.poison();
        }
        if self.random.below(6) == 0 {
            return self.give_back(scripts);
        }
        let (incarnation, call) = self.next_call();
        let reply = self.model.apply(incarnation, &call, self.now);
        if reply.applied {
            self.sequences.insert(incarnation, call.sequence);
        }
        let request = self.names(incarnation).apply(&call);
        let command = self.command(&scripts.apply, request, 1);
        self.sent.push((incarnation, call.clone()));
        self.expect(command, Expected::StoreReply(call, reply));
    }

    /// Cells are given back: a few, or more than there are.
    fn give_back(&mut self, scripts: &Scripts) {
        let number = self.random.index(self.keys.len());
        let delta = self.delta(number);
        let refund = Refund {
            key: delta.key,
            terms: delta.terms,
            cells: delta.gross,
            price: delta.price,
            age: delta.age,
        };
        let store_state = self.model.give_back(&refund, self.now);
        let request = self.names(INCARNATIONS[0]).give_back(&refund);
        let command = self.command(&scripts.take, request, 0);
        self.expect(command, Expected::GivenBack(refund.terms, store_state));
    }

    fn group(&self) -> Group {
        Grouping::PerLane.group_of(self.lane)
    }

    /// A script's call, which publishes into the history's list; how to publish is the argument of that number.
    fn command(&self, hash: &str, mut request: ScriptRequest, publish: usize) -> Cmd {
        request.arguments[publish] = b"RPUSH".to_vec();
        request.arguments[publish + 1] = self.list().into_bytes();
        request.arguments.push(self.now.to_string().into_bytes());
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(hash)
            .arg(request.keys.len())
            .arg(&request.keys)
            .arg(&request.arguments);
        command
    }

    /// The next call of a pod; or one again, one too early, one that only looks.
    fn next_call(&mut self) -> (u128, Call) {
        let incarnation = self.random.pick(&INCARNATIONS);
        let known = self.sequences.get(&incarnation).copied().unwrap_or(0);
        let (previous, sequence) = match self.random.below(10) {
            0 if !self.sent.is_empty() => {
                return self.sent[self.random.index(self.sent.len())].clone();
            }
            1 => (known + 1, known + 2),
            2 => (known, 0),
            3 => (known, known + 1 + self.random.below(5)),
            _ => (known, known + 1),
        };
        let mut deltas = Vec::new();
        for number in 0..self.keys.len() {
            if self.random.below(2) == 0 {
                deltas.push(self.delta(number));
            }
        }
        (
            incarnation,
            Call {
                group: self.group(),
                previous,
                sequence,
                deltas,
                news_step: Span::nanos(1_000 * self.random.below(5_000_000)),
            },
        )
    }

    fn delta(&mut self, number: usize) -> Delta {
        let (key, choices) = self.keys[number];
        let terms = choices[usize::from(self.random.below(5) == 0)];
        let gross = match self.random.below(8) {
            0 => 0,
            1 => self.random.below(1 << 40),
            _ => self.random.below(30),
        };
        let full = match terms {
            Terms::Level { interval, .. } => interval.times(Cells::new(gross)).get(),
            Terms::Window { window, .. } => window.get(),
        };
        let netted = self.random.below(3) == 0;
        let (price, billed) = if netted {
            (full / 3, gross / 2)
        } else {
            (full, gross)
        };
        let age = match self.random.below(4) {
            0 => self.random.below(full.saturating_mul(3).max(1)),
            1 => u64::MAX,
            _ => self.random.below(1_000_000),
        };
        Delta {
            key,
            terms,
            gross: Cells::new(gross),
            price: Span::nanos(price),
            billed: Cells::new(billed),
            age: Span::nanos(age),
            share: Share::WHOLE,
            live: self.random.below(3) == 0,
            known: KnownUsage {
                level: Span::nanos(self.random.below(full.saturating_mul(2).max(1))),
                cells: Cells::new(self.random.below(40)),
            },
        }
    }

    /// Puts something under a name that is no value of ours, or at least none we wrote.
    fn poison(&mut self) {
        let incarnation = self.random.pick(&INCARNATIONS);
        let (key, _) = self.random.pick(&self.keys);
        let of_record = self.random.below(3) == 0;
        let name = if of_record {
            self.names(incarnation).record(self.group())
        } else {
            self.names(incarnation).key(&key)
        };
        let bytes: Option<Vec<u8>> = match self.random.below(6) {
            0 => None,
            1 => Some(b"short".to_vec()),
            2 => Some(Vec::new()),
            3 => Some(vec![0xff; self.random.pick(&[16, 40, 48])]),
            4 => Some(vec![b'x'; 5_000]),
            _ => Some(self.random.pick(&[16, 40, 48])).map(|length| vec![0; length]),
        };
        let mut delete = redis::cmd("DEL");
        delete.arg(&name);
        self.expect(delete, Expected::Anything);
        let mut put = redis::cmd(if bytes.is_some() { "SET" } else { "RPUSH" });
        put.arg(&name).arg(bytes.as_deref().unwrap_or(b"item"));
        self.expect(put, Expected::Anything);
        if of_record {
            let kept = bytes.map_or(StoredRecord::Poison, |bytes| StoredRecord::of_bytes(&bytes));
            self.model.records.insert((self.group(), incarnation), kept);
        } else {
            let kept = bytes.map_or(StoredValue::Poison, |bytes| {
                StoredValue::of_bytes(key.kind, &bytes)
            });
            self.model.keys.insert(key, kept);
        }
        // What a pod believes of its record is settled by the next answer.
        let record = self.model.records.get(&(self.group(), incarnation));
        let sequence = match record {
            Some(StoredRecord::Record(record)) => record.sequence,
            Some(StoredRecord::Poison) | None => 0,
        };
        self.sequences.insert(incarnation, sequence);
    }

    /// At the end: everything kept, and all news published.
    fn compare_values(&mut self) {
        let mut news = redis::cmd("LRANGE");
        news.arg(self.list()).arg(0).arg(-1);
        let store_state = self.model.news.clone();
        self.expect(news, Expected::News(store_state));
        for (key, _) in self.keys.clone() {
            let mut get = redis::cmd("MGET");
            get.arg(self.names(0).key(&key));
            let kept = self.model.keys.get(&key).copied();
            self.expect(get, Expected::Key(key.kind, kept));
        }
        for incarnation in INCARNATIONS {
            let mut get = redis::cmd("MGET");
            get.arg(self.names(incarnation).record(self.group()));
            let kept = self
                .model
                .records
                .get(&(self.group(), incarnation))
                .copied();
            self.expect(get, Expected::Record(kept));
        }
    }
}

fn terms(random: &mut Random, key: &StoreKey) -> Terms {
    if key.is_windowed() {
        return Terms::Window {
            window: Span::nanos(random.pick(&[
                1,
                1_000,
                1_000_000_000,
                60_000_000_000,
                86_400_000_000_000,
            ])),
            requests: Cells::new(random.pick(&[0, 1, 20, 1_000_000])),
            sliding: false,
            carries_over: random.below(4) > 0,
        };
    }
    let interval = random.pick(&[1, 333, 1_000_000, 10_000_000, 12_000_000_001, u64::MAX]);
    let capacity = interval.saturating_mul(random.pick(&[1, 3, 20, 1_000]));
    Terms::Level {
        interval: Span::nanos(interval),
        capacity: Span::nanos(capacity),
        debt_max: Span::nanos(random.pick(&[interval, capacity, capacity.min(60_000_000_000)])),
    }
}

fn check(expected: &Expected, value: &Value) -> Result<(), String> {
    let found = match expected {
        Expected::Anything => return Ok(()),
        Expected::StoreReply(call, reply) => match codec::reply(value, call) {
            Ok(found) if found == *reply => return Ok(()),
            found => format!("{found:?}"),
        },
        Expected::GivenBack(terms, store_state) => match codec::taken(value, *terms) {
            Ok(found) if found.taken && found.state == *store_state => return Ok(()),
            found => format!("{found:?}"),
        },
        Expected::News(news) => {
            let messages = strings(value).ok_or("no list")?;
            let found = messages.into_iter().flatten().flat_map(codec::news);
            let found: Vec<News> = found.collect();
            if found == *news {
                return Ok(());
            }
            format!("{found:?}")
        }
        // A value of another type reads as none.
        Expected::Key(kind, kept) => {
            match single(value).map(|bytes| StoredValue::of_bytes(*kind, bytes)) {
                None if matches!(kept, None | Some(StoredValue::Poison)) => return Ok(()),
                found if found == *kept => return Ok(()),
                found => format!("{found:?}"),
            }
        }
        Expected::Record(kept) => match single(value).map(StoredRecord::of_bytes) {
            None if matches!(kept, None | Some(StoredRecord::Poison)) => return Ok(()),
            found if found == *kept => return Ok(()),
            found => format!("{found:?}"),
        },
    };
    Err(format!("expected {expected:?}\nfound {found}"))
}

/// The items of a list of strings.
fn strings(value: &Value) -> Option<Vec<Option<&[u8]>>> {
    let Value::Array(values) = value else {
        return None;
    };
    Some(values.iter().map(string).collect())
}

fn string(value: &Value) -> Option<&[u8]> {
    if let Value::BulkString(bytes) = value {
        Some(bytes)
    } else {
        None
    }
}

/// The only item of a list, unless it is none.
fn single(value: &Value) -> Option<&[u8]> {
    strings(value)?.first().copied().flatten()
}

fn run(connection: &mut Connection, seeds: impl Iterator<Item = u64>, scripts: &Scripts) {
    let histories: Vec<History> = seeds.map(|seed| History::new(seed, scripts)).collect();
    let mut commands = redis::pipe();
    for command in histories
        .iter()
        .flat_map(|history| history.commands.cmd_iter())
    {
        commands.add_command(command.clone());
    }
    let answers: Vec<Value> = commands.query(connection).expect("answers");
    let mut answers = answers.iter();
    for history in &histories {
        for (step, expected) in history.expected.iter().enumerate() {
            let answer = answers.next().expect("an answer");
            if let Err(difference) = check(expected, answer) {
                panic!(
                    "step {step}: {difference}\nagain: SEED={} cargo test --test store histories",
                    history.seed
                );
            }
        }
    }
}

/// A connection to a database of its own, and the scripts' hashes there.
fn connect(server: &RedisServer, database: u64) -> (Connection, Scripts) {
    let url = format!("{}/{database}", server.url());
    let client = redis::Client::open(url).expect("a client");
    let mut connection = client.get_connection().expect("a connection");
    let mut load = |body: &str| {
        let mut load = redis::cmd("SCRIPT");
        let hash = load.arg("LOAD").arg(script(body)).query(&mut connection);
        hash.expect("a hash")
    };
    let scripts = Scripts {
        apply: load(include_str!("../../src/sync/lua/apply.lua")),
        take: load(include_str!("../../src/sync/lua/take.lua")),
    };
    (connection, scripts)
}

#[test]
fn the_scripts_equal_the_model_on_random_histories() {
    let server = RedisServer::start(&[]);
    let number = |name: &str| {
        env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    if let Some(seed) = number("SEED") {
        let (mut connection, scripts) = connect(&server, 0);
        return run(&mut connection, seed..=seed, &scripts);
    }
    let last = number("HISTORIES").unwrap_or(HISTORIES);
    // Two at a time: while the server works for one, the other checks.
    thread::scope(|scope| {
        for worker in 0..2 {
            let (mut connection, scripts) = connect(&server, worker);
            scope.spawn(move || {
                let firsts = (worker * TOGETHER..last).step_by(2 * TOGETHER as usize);
                for first in firsts {
                    run(&mut connection, first..last.min(first + TOGETHER), &scripts);
                    // What is over makes room.
                    let _: () = redis::cmd("FLUSHDB")
                        .query(&mut connection)
                        .expect("flushed");
                }
            });
        }
    });
}
