//! Bad HTTP/2 on the gRPC door, frame by frame: noise, garbage in good frames, and floods. Whatever comes, memory is
//! bounded and a neighbour is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use prost::Message;
use tidegate_testing::{Client, Endpoint, SOON, Sidecar, now, until};

use super::grpc::start;
use super::rls::{Rls, SHOULD_RATE_LIMIT, descriptor, request};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// How long each flood lasts.
const FLOOD: Duration = Duration::from_millis(1_500);
/// How long a neighbour's check may take meanwhile. It takes less than a millisecond in peace.
const NEIGHBOUR_MAX: Duration = Duration::from_secs(2);
/// What floods may add to the memory of the daemon, in kB.
const MEMORY_MAX: u64 = 64 * 1024;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn hello() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes
}

/// A header, spelled out.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        bytes.push(u8::try_from(text.len()).expect("shorter than 127"));
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// The headers of a check.
fn call() -> Vec<u8> {
    [
        vec![0x83, 0x86],
        literal(":path", SHOULD_RATE_LIMIT),
        literal(":authority", "localhost"),
        literal("content-type", "application/grpc"),
        literal("te", "trailers"),
    ]
    .concat()
}

fn message(bytes: &[u8]) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
    framed.extend(bytes);
    framed
}

/// Numbers that are the same in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next()).unwrap() % bound
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

fn door(sidecar: &Sidecar) -> Endpoint {
    sidecar.door("grpc").unwrap()
}

/// Whether checks are answered as ever, and every connection but this one is gone.
fn is_well(sidecar: &Sidecar) {
    let mut rls = Rls::connect(&door(sidecar));
    assert_eq!(rls.letter("free", "well"), 'a');
    until("the connections' end", SOON, || {
        let open = sidecar
            .metrics()
            .of("ratelimit_connections", &[("door", "grpc")]);
        (open == 1.0).then_some(())
    });
}

#[test]
fn noise_is_turned_away() {
    let sidecar = start();
    let mut noise = Noise(7);
    for round in 0..300 {
        let mut client = door(&sidecar).connect();
        if round % 2 == 0 {
            client.send(&hello());
        }
        let length = noise.below(400);
        client.send(&noise.bytes(length));
        client.end_sending();
        let _ = client.receive_any();
    }
    is_well(&sidecar);
}

#[test]
fn frames_of_every_kind_with_garbage_in_them_do_no_harm() {
    let sidecar = start();
    let mut noise = Noise(11);
    for _ in 0..300 {
        let mut client = door(&sidecar).connect();
        let mut bytes = hello();
        bytes.extend(frame(HEADERS, END_HEADERS, 1, &call()));
        for _ in 0..noise.below(8) {
            let (kind, flags) = (noise.bytes(1)[0] % 11, noise.bytes(1)[0]);
            let length = noise.below(64);
            let stream = u32::try_from(noise.below(6)).unwrap();
            bytes.extend(frame(kind, flags, stream, &noise.bytes(length)));
        }
        client.send(&bytes);
        client.end_sending();
        let _ = client.receive_any();
    }
    is_well(&sidecar);
}

#[test]
fn mutated_messages_are_answered_or_refused() {
    let sidecar = start();
    let mut noise = Noise(13);
    let fine = request([
        descriptor(&[("client", "a"), ("b", "c")]),
        descriptor(&[("free", "d")]),
    ]);
    let fine = fine.encode_to_vec();
    let seen = || {
        let metrics = sidecar.metrics();
        let refused = metrics.of("ratelimit_requests_malformed_total", &[("door", "grpc")]);
        (
            refused,
            metrics.of("ratelimit_check_duration_seconds_count", &[]),
        )
    };
    // Fewer on a connection than may be under way at once: none is put off.
    for connection in 1..=20 {
        let mut client = door(&sidecar).connect();
        client.send(&hello());
        for stream in (0..100).map(|nth| 2 * nth + 1) {
            let garbled = garble(&fine, &mut noise);
            client.send(&frame(HEADERS, END_HEADERS, stream, &call()));
            client.send(&frame(DATA, END_STREAM, stream, &message(&garbled)));
        }
        until("every message is answered", SOON, || {
            let (refused, decided) = seen();
            (refused + decided == 100.0 * f64::from(connection)).then_some(())
        });
    }
    let (refused, decided) = seen();
    assert!(
        refused > 100.0 && decided > 100.0,
        "{refused} and {decided}"
    );
    is_well(&sidecar);
}

/// A message with some of its bytes changed, added or cut off, or none.
fn garble(message: &[u8], noise: &mut Noise) -> Vec<u8> {
    let mut garbled = message.to_vec();
    for _ in 0..noise.below(4) {
        let place = noise.below(garbled.len());
        match noise.below(3) {
            0 => garbled[place] = noise.bytes(1)[0],
            1 => garbled.truncate(place.max(1)),
            _ => garbled.insert(place, noise.bytes(1)[0]),
        }
    }
    garbled
}

/// Floods the door from two connections at a time, while a neighbour asks. Says how often the flood was cut off.
fn flood(attack: impl Fn(&mut Client, &AtomicBool) + Send + Sync + 'static) -> u64 {
    let sidecar = start();
    let mut neighbour = Rls::connect(&door(&sidecar));
    assert_eq!(neighbour.letter("free", "warm"), 'a');
    let before = sidecar.process("VmRSS");
    let (done, cut) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let attack = Arc::new(attack);
    let attackers: Vec<_> = (0..2)
        .map(|_| {
            let (attack, done, cut) = (Arc::clone(&attack), Arc::clone(&done), Arc::clone(&cut));
            let door = door(&sidecar);
            thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let mut client = door.connect();
                    client.send(&hello());
                    attack(&mut client, &done);
                    cut.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let begun = now();
    let (mut asked, mut slowest) = (0_u32, Duration::ZERO);
    while begun.elapsed() < FLOOD {
        let asking = now();
        assert_eq!(neighbour.letter("free", "neighbour"), 'a');
        slowest = slowest.max(asking.elapsed());
        asked += 1;
    }
    let after = sidecar.process("VmRSS");
    done.store(true, Ordering::Relaxed);
    for attacker in attackers {
        attacker.join().unwrap();
    }
    eprintln!("{asked} checks, the slowest {slowest:?}; memory {before} kB, then {after} kB");
    assert!(slowest < NEIGHBOUR_MAX, "a neighbour waited {slowest:?}");
    assert!(after < before + MEMORY_MAX, "{before} kB became {after} kB");
    drop(neighbour);
    is_well(&sidecar);
    cut.load(Ordering::Relaxed)
}

#[test]
fn requests_that_are_taken_back_at_once_starve_nobody() {
    let call = call();
    let cut = flood(move |client, done| {
        client.patience(Duration::from_millis(100));
        let mut stream = 1;
        // More at once than may be pending.
        loop {
            let mut bytes = Vec::new();
            for _ in 0..200 {
                bytes.extend(frame(HEADERS, END_HEADERS, stream, &call));
                bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
                stream += 2;
            }
            if done.load(Ordering::Relaxed) || !client.send(&bytes) {
                return;
            }
        }
    });
    assert!(cut > 2, "the flood went on: {cut}");
}

#[test]
fn headers_that_never_end_are_cut_off() {
    let cut = flood(|client, done| {
        client.send(&frame(HEADERS, 0, 1, &call()));
        let more = frame(
            CONTINUATION,
            0,
            1,
            &literal("x", &"y".repeat(100)).repeat(100),
        );
        // A megabyte is a hundred times what headers may have.
        for _ in 0..100 {
            if done.load(Ordering::Relaxed) || !client.send(&more) {
                return;
            }
        }
        assert!(client.receive_any().is_some(), "a goodbye");
    });
    assert!(cut > 2, "the flood went on: {cut}");
}

#[test]
fn pings_and_settings_without_end_starve_nobody() {
    flood(|client, done| {
        // The answers are not read: when nothing more fits, the daemon does not take any more either.
        client.patience(Duration::from_millis(100));
        let ping = frame(PING, 0, 0, &[0; 8]).repeat(200);
        let settings = frame(SETTINGS, 0, 0, &[]).repeat(200);
        while !done.load(Ordering::Relaxed) && client.send(&ping) && client.send(&settings) {}
    });
}

#[test]
fn who_never_reads_is_let_go() {
    let sidecar = start();
    let mut client = door(&sidecar).connect();
    client.patience(Duration::from_secs(1));
    client.send(&hello());
    let ping = frame(PING, 0, 0, &[0; 8]).repeat(1000);
    while client.send(&ping) {}
    is_well(&sidecar);
    drop(client);
}

/// Of two bytes each: as messages they are forty times as long.
#[test]
fn descriptors_without_end_are_bounded() {
    flood(|client, done| {
        client.patience(Duration::from_millis(100));
        let many = [0x12, 0].repeat(30_000);
        for stream in (0..40).map(|nth: u32| 2 * nth + 1) {
            client.send(&frame(HEADERS, END_HEADERS, stream, &call()));
            for piece in message(&many).chunks(16_000) {
                if !client.send(&frame(DATA, 0, stream, piece)) {
                    return;
                }
            }
            // The connection's window has to open again, or the daemon ends it.
            thread::park_timeout(Duration::from_millis(30));
        }
        until("the end", SOON, || {
            done.load(Ordering::Relaxed).then_some(())
        });
    });
}

#[test]
fn requests_that_are_never_finished_are_bounded_and_given_up() {
    flood(|client, done| {
        // As many as there may be, each with half a message, and then one more for as long as it lasts.
        let half = &message(&[0; 1000])[..500];
        for stream in (0..400).map(|nth: u32| 2 * nth + 1) {
            client.send(&frame(HEADERS, END_HEADERS, stream, &call()));
            if !client.send(&frame(DATA, 0, stream, half)) {
                return;
            }
        }
        until("the end", SOON, || {
            done.load(Ordering::Relaxed).then_some(())
        });
    });
}
