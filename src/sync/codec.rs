//! Encodes and decodes everything between a pod and the store: names of keys, arguments of scripts, answers, news.
//!
//! Lengths are rounded up to microseconds here, once per batch, and numbers are limited to what a double holds exactly.
//! Decoding returns a `Result`: another program may answer, or another version of this one.

use redis::Value;

use super::error::StoreError;
use tidegate_core::pure::sync::{
    BucketKind, Call, Delta, Group, Heartbeat, HeartbeatReply, KnownUsage, Lane, News, NewsKind,
    Refund, Share, StoreKey, StoreReply, StoreState, Take, TakeReply, Terms,
};
use tidegate_core::pure::{Cells, Span};

/// The longest length that a script receives, in microseconds: seventeen years. A point twice as far in the future is
/// still a point in time to the scripts.
const LENGTH_MAX: u64 = (1 << 49) - 1;
/// The most cells of one window.
const REQUESTS_MAX: u64 = (1 << 51) - 1;
/// The most cells of one key in one call: their number in thousandths still fits.
const CELLS_MAX: u64 = 1 << 41;
/// The largest sequence number.
const SEQUENCE_MAX: u64 = (1 << 52) - 1;
/// Bytes of one key in an answer: three numbers and flags.
const STATE_BYTES: usize = 25;
/// Bytes of one piece of news: its kind, its key, and a length of time.
const NEWS_BYTES: usize = 60;
/// The most pieces of news in one message: two for each key of a batch.
const NEWS_MAX: usize = 200;
/// Bytes of the part of a key's name that identifies the key.
const TAIL_BYTES: usize = 51;
const FLAG_LIVE: u8 = 1;
const FLAG_SLIDING: u8 = 2;
const FLAG_GIVE_BACK: u8 = 4;
const FLAG_CHARGE: u8 = 8;
const FLAG_CARRY: u8 = 16;

/// The keys and arguments of one run of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptRequest {
    /// `KEYS`.
    pub keys: Vec<String>,
    /// `ARGV`.
    pub arguments: Vec<Vec<u8>>,
}

/// The names of keys and channels in the store.
#[derive(Clone, Debug)]
pub struct Names {
    prefix: String,
    sharded: bool,
    incarnation: u128,
}

impl Names {
    /// Names that start with `prefix`, for one pod. With `sharded`, news stays within the lane's shard, as a cluster
    /// permits.
    pub fn new(prefix: &str, sharded: bool, incarnation: u128) -> Self {
        Self {
            prefix: prefix.to_owned(),
            sharded,
            incarnation,
        }
    }

    fn in_lane(&self, lane: Lane, rest: &str) -> String {
        format!("{}:v1:{{{}}}:{rest}", self.prefix, lane.number())
    }

    /// The name of a key.
    pub fn key(&self, key: &StoreKey) -> String {
        self.in_lane(key.lane(), &tail(key))
    }

    /// The name of this pod's record of a group. A group that another one was split into counts as another process.
    pub fn record(&self, group: Group) -> String {
        let incarnation = self.incarnation.wrapping_add(u128::from(group.is_split()));
        self.in_lane(group.lane(), &format!("seq:{incarnation:032x}"))
    }

    /// The channel of the news of a lane.
    pub fn channel(&self, lane: Lane) -> String {
        if self.sharded {
            self.in_lane(lane, "news")
        } else {
            format!("{}:v1:news", self.prefix)
        }
    }

    fn publish(&self, lane: Lane) -> [Vec<u8>; 2] {
        let command = if self.sharded { "SPUBLISH" } else { "PUBLISH" };
        [command.into(), self.channel(lane).into_bytes()]
    }

    /// A run of `apply.lua` for this call.
    pub fn apply(&self, call: &Call) -> ScriptRequest {
        let keys = call.deltas.iter().map(|delta| self.key(&delta.key));
        let mut deltas = Vec::with_capacity(call.deltas.len().saturating_mul(50));
        for delta in &call.deltas {
            let flags = if delta.live { FLAG_LIVE } else { 0 };
            pack_delta(&mut deltas, delta, flags);
        }
        let step = micros(call.news_step);
        let numbers = [call.previous, call.sequence, step].map(|number| number.min(SEQUENCE_MAX));
        let header = numbers.map(u64::to_le_bytes).concat();
        let [command, channel] = self.publish(call.group.lane());
        ScriptRequest {
            keys: std::iter::once(self.record(call.group))
                .chain(keys)
                .collect(),
            arguments: vec![header, command, channel, deltas],
        }
    }

    /// A run of `take.lua` for this check.
    pub fn take(&self, take: &Take) -> ScriptRequest {
        let sliding = matches!(take.terms, Terms::Window { sliding: true, .. });
        let flags = [(sliding, FLAG_SLIDING), (take.charge, FLAG_CHARGE)];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set);
        let flags = flags.fold(0, |all, (_, flag)| all | flag);
        self.cells(&Refund::from(take), flags)
    }

    /// A run of `take.lua` that gives cells back. Rounded down, so that it never gives back too much: a part of a
    /// microsecond stays used.
    pub fn give_back(&self, refund: &Refund) -> ScriptRequest {
        let price = Span::nanos(refund.price.get() / 1_000 * 1_000);
        self.cells(&Refund { price, ..*refund }, FLAG_GIVE_BACK)
    }

    fn cells(&self, cells: &Refund, flags: u8) -> ScriptRequest {
        let delta = Delta {
            key: cells.key,
            terms: cells.terms,
            gross: cells.cells,
            price: cells.price,
            billed: cells.cells,
            age: cells.age,
            share: Share::WHOLE,
            live: false,
            known: KnownUsage::assumed(&cells.terms),
        };
        let mut packed = Vec::new();
        pack_delta(&mut packed, &delta, flags);
        let lane = cells.key.lane();
        let [command, channel] = self.publish(lane);
        ScriptRequest {
            keys: vec![self.key(&cells.key)],
            arguments: vec![command, channel, packed],
        }
    }

    /// A run of `heartbeat.lua`.
    pub fn heartbeat(&self, heartbeat: &Heartbeat) -> ScriptRequest {
        let lane = Lane::new(0);
        let expiry_ms = heartbeat
            .expiry
            .get()
            .div_ceil(1_000_000)
            .clamp(1, LENGTH_MAX / 1_000);
        let arguments = [
            format!("{:032x}", self.incarnation),
            expiry_ms.to_string(),
            heartbeat.resets_seen.min(SEQUENCE_MAX).to_string(),
            u8::from(heartbeat.leaving).to_string(),
        ];
        ScriptRequest {
            keys: ["pods", "resets", "reset_count"]
                .map(|name| self.in_lane(lane, name))
                .into(),
            arguments: arguments.map(String::into_bytes).into(),
        }
    }

    /// A run of `reset.lua` for this key. It runs in the first lane, whatever the lane of the key.
    pub fn reset(&self, key: &StoreKey) -> ScriptRequest {
        let lane = Lane::new(0);
        let [command, channel] = self.publish(lane);
        ScriptRequest {
            keys: ["resets", "reset_count"]
                .map(|name| self.in_lane(lane, name))
                .into(),
            arguments: vec![tail(key).into_bytes(), command, channel],
        }
    }
}

/// The part of a key's name that identifies the key: kind, rule and name.
fn tail(key: &StoreKey) -> String {
    let kind = match key.kind {
        BucketKind::Level => 'l',
        BucketKind::Caller => 'c',
        BucketKind::Window => 'w',
    };
    format!("{kind}:{:016x}:{:032x}", key.rule, key.name)
}

/// The key that this part of a name identifies, or `None` if it has another form.
fn key_of_tail(tail: &[u8]) -> Option<StoreKey> {
    let text = str::from_utf8(tail)
        .ok()
        .filter(|text| text.len() == TAIL_BYTES)?;
    let mut parts = text.split(':');
    let kind = match parts.next()? {
        "l" => BucketKind::Level,
        "c" => BucketKind::Caller,
        "w" => BucketKind::Window,
        _ => return None,
    };
    let (rule, name) = (parts.next()?, parts.next()?);
    if parts.next().is_some() || rule.len() != 16 || tail.contains(&b'+') {
        return None;
    }
    Some(StoreKey {
        kind,
        rule: u64::from_str_radix(rule, 16).ok()?,
        name: u128::from_str_radix(name, 16).ok()?,
    })
}

/// A length in microseconds, rounded up.
fn micros(span: Span) -> u64 {
    span.get().div_ceil(1_000).min(LENGTH_MAX)
}

fn span(micros: u64) -> Span {
    Span::nanos(micros.saturating_mul(1_000))
}

fn pack_delta(packed: &mut Vec<u8>, delta: &Delta, flags: u8) {
    let (kind, numbers) = match delta.terms {
        Terms::Level {
            interval,
            capacity,
            debt_max,
        } => (
            u8::from(delta.key.kind == BucketKind::Caller),
            [
                micros(delta.price),
                micros(interval),
                micros(capacity),
                micros(debt_max),
                micros(delta.known.level),
            ],
        ),
        Terms::Window {
            window, requests, ..
        } => (
            2,
            [
                delta.billed.get().min(CELLS_MAX),
                micros(window).max(1),
                requests.get().min(REQUESTS_MAX),
                micros(delta.age),
                delta.known.cells.get().min(REQUESTS_MAX),
            ],
        ),
    };
    let carries_over = matches!(
        delta.terms,
        Terms::Window {
            carries_over: true,
            ..
        }
    );
    let carry = if carries_over { FLAG_CARRY } else { 0 };
    packed.extend([kind, flags | carry]);
    packed.extend(delta.gross.get().min(CELLS_MAX).to_le_bytes());
    packed.extend(numbers.map(u64::to_le_bytes).concat());
}

/// Reads the answer of `apply.lua` to `call`.
pub fn reply(value: &Value, call: &Call) -> Result<StoreReply, StoreError> {
    let Value::Array(parts) = value else {
        return Err(StoreError::protocol("the answer is not a list"));
    };
    let [
        applied,
        sequence,
        gross,
        repaired,
        Value::BulkString(packed),
    ] = parts.as_slice()
    else {
        return Err(StoreError::protocol("the answer has other parts"));
    };
    let store_state = packed.chunks(STATE_BYTES).zip(&call.deltas);
    if packed.len() != call.deltas.len().saturating_mul(STATE_BYTES) {
        return Err(StoreError::protocol("the answer is about other keys"));
    }
    Ok(StoreReply {
        applied: number(applied)? == 1,
        sequence: number(sequence)?,
        gross: Cells::new(number(gross)?),
        repaired: number(repaired)?,
        states: store_state
            .map(|(packed, delta)| unpack_store_state(packed, delta.terms))
            .collect::<Result<_, _>>()?,
    })
}

/// Reads the answer of `take.lua`.
pub fn taken(value: &Value, terms: Terms) -> Result<TakeReply, StoreError> {
    let Value::Array(parts) = value else {
        return Err(StoreError::protocol("the answer is not a list"));
    };
    let [taken, Value::BulkString(packed)] = parts.as_slice() else {
        return Err(StoreError::protocol("the answer has other parts"));
    };
    Ok(TakeReply {
        taken: number(taken)? == 1,
        state: unpack_store_state(packed, terms)?,
    })
}

/// Reads the answer of `heartbeat.lua`.
pub(super) fn heartbeat_answered(value: &Value) -> Result<HeartbeatReply, StoreError> {
    let Value::Array(parts) = value else {
        return Err(StoreError::protocol("the answer is not a list"));
    };
    let [pods, resets, Value::Array(keys)] = parts.as_slice() else {
        return Err(StoreError::protocol("the answer has other parts"));
    };
    // Somebody else added a member that is not a key: it is skipped.
    let reset_keys = keys.iter().filter_map(|key| {
        if let Value::BulkString(tail) = key {
            key_of_tail(tail)
        } else {
            None
        }
    });
    Ok(HeartbeatReply {
        pods: number(pods)?,
        resets: number(resets)?,
        reset_keys: reset_keys.collect(),
    })
}

fn number(value: &Value) -> Result<u64, StoreError> {
    let Value::Int(number) = value else {
        return Err(StoreError::protocol(
            "the answer has something else in place of a number",
        ));
    };
    u64::try_from(*number).map_err(|_| StoreError::protocol("a number is below zero"))
}

fn unpack_store_state(packed: &[u8], terms: Terms) -> Result<StoreState, StoreError> {
    let unpacked = || {
        let (x, rest) = packed.split_first_chunk()?;
        let (y, rest) = rest.split_first_chunk()?;
        let (z, rest) = rest.split_first_chunk()?;
        let [flags] = rest else { return None };
        Some(([*x, *y, *z].map(u64::from_le_bytes), *flags))
    };
    let Some(([x, y, z], flags)) = unpacked() else {
        return Err(StoreError::protocol(
            "a key's part of the answer has another length",
        ));
    };
    Ok(match terms {
        Terms::Level { .. } => StoreState::Level {
            level: span(x),
            demand: y,
            capped: flags & 1 == 1,
        },
        Terms::Window { .. } => StoreState::Window {
            current: Cells::new(x),
            previous: Cells::new(y),
            left: span(z),
        },
    })
}

/// The news in a message. Anybody who can reach the channel can publish there: everything that is not news is skipped.
pub fn news(message: &[u8]) -> impl Iterator<Item = News> {
    message
        .chunks_exact(NEWS_BYTES)
        .take(NEWS_MAX)
        .filter_map(|piece| {
            let (kind, rest) = piece.split_first()?;
            let (tail, length) = rest.split_at_checked(TAIL_BYTES)?;
            let length = span(u64::from_le_bytes(length.try_into().ok()?));
            let kind = match kind {
                b'f' => NewsKind::Full(length),
                b'l' => NewsKind::Live(length),
                b'r' => NewsKind::Reset,
                _ => return None,
            };
            Some(News {
                key: key_of_tail(tail)?,
                kind,
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::pure::sync::Grouping;

    const KEY: StoreKey = StoreKey::caller(7, 0x142);

    #[test]
    fn names_are_what_operators_may_rely_on() {
        let names = Names::new("tidegate", false, 0xabc);
        let key = "tidegate:v1:{2}:c:0000000000000007:00000000000000000000000000000142";
        assert_eq!(names.key(&KEY), key);
        let record = "tidegate:v1:{2}:seq:00000000000000000000000000000abc";
        let group = Grouping::PerLane.group_of(KEY.lane());
        assert_eq!(names.record(group), record);
        let record = "tidegate:v1:{0}:seq:00000000000000000000000000000abc";
        assert_eq!(names.record(Grouping::Whole.group_of(KEY.lane())), record);
        let record = "tidegate:v1:{2}:seq:00000000000000000000000000000abd";
        assert_eq!(names.record(Grouping::Split.group_of(KEY.lane())), record);
        assert_eq!(names.channel(KEY.lane()), "tidegate:v1:news");
        assert_eq!(
            Names::new("x", true, 0).channel(KEY.lane()),
            "x:v1:{2}:news"
        );
    }

    #[test]
    fn a_tail_identifies_its_key_and_nothing_else_does() {
        assert_eq!(key_of_tail(tail(&KEY).as_bytes()), Some(KEY));
        for strange in [
            "",
            "c:7:142",
            "x:0000000000000007:00000000000000000000000000000142",
            "c:000000000000007:000000000000000000000000000000142",
            "c:0000000000000007:+0000000000000000000000000000142",
            "c:000000000000000g:00000000000000000000000000000142",
        ] {
            assert_eq!(key_of_tail(strange.as_bytes()), None, "{strange}");
        }
    }

    #[test]
    fn garbage_is_no_news() {
        let piece =
            |kind: u8, tail: &str| [&[kind][..], tail.as_bytes(), &5_u64.to_le_bytes()].concat();
        let good = piece(b'f', &tail(&KEY));
        let message = [
            good.clone(),
            piece(b'?', &tail(&KEY)),
            piece(b'f', &"x".repeat(51)),
            vec![1; 59],
        ]
        .concat();
        let news_received: Vec<News> = news(&message).collect();
        assert_eq!(
            news_received,
            [News {
                key: KEY,
                kind: NewsKind::Full(Span::nanos(5_000))
            }]
        );
        assert_eq!(news(&good.repeat(NEWS_MAX + 1)).count(), NEWS_MAX);
        assert_eq!(news(&[]).count(), 0);
    }
}
