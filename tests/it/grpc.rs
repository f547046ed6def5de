//! Checks over gRPC, with tonic's client, on TCP and on a Unix socket alike. What else there is: `grpc_services.rs`.
//!
//! Limits are per day or slower where a test counts, so that nothing comes back while it does.

use std::collections::BTreeMap;

use prost_types::value::Kind;
use tidegate::protocol::envoy::proto::rate_limit_descriptor::RateLimitOverride;
use tidegate::protocol::envoy::proto::rate_limit_response::rate_limit::Unit;
use tidegate::protocol::envoy::proto::rate_limit_response::{Code, DescriptorStatus};
use tidegate::protocol::envoy::proto::{
    RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitUnit,
};
use tidegate_testing::stores::RedisServer;
use tidegate_testing::{Endpoint, SOON, Sidecar, SidecarSetup, until};

use super::rls::{Rls, SHOULD_RATE_LIMIT, descriptor, letter, request};

pub const RULES: &str = r#"
- domain: api
  descriptors:
    - { key: client, rate_limit: 3/day }
    - { key: named, rate_limit: { name: gold, unit: week, requests_per_unit: 5 } }
    - { key: multiplied, rate_limit: { unit: hour, requests_per_unit: 7, unit_multiplier: 6 } }
    - { key: wide, rate_limit: 10/day }
    - { key: free, rate_limit: { unlimited: true } }
    - { key: closed, rate_limit: { unit: day, requests_per_unit: 0 } }
    - { key: trial, shadow_mode: true, rate_limit: 1/day }
    - { key: huge, rate_limit: { unit: day, requests_per_unit: 10000000000 } }
"#;

/// Where gRPC is listened on.
pub const LISTEN: &str = r#"grpc: ["127.0.0.1:0", "unix:g.sock"]"#;

pub fn start() -> Sidecar {
    SidecarSetup::rules(RULES).listen_also(LISTEN).start()
}

pub fn tcp(sidecar: &Sidecar) -> Rls {
    Rls::connect(&sidecar.door("grpc").unwrap())
}

/// The status of the only descriptor of a check.
fn only(answer: &RateLimitResponse) -> &DescriptorStatus {
    assert_eq!(answer.statuses.len(), 1, "{answer:?}");
    &answer.statuses[0]
}

fn headers(answer: &RateLimitResponse) -> BTreeMap<&str, &str> {
    let headers = answer.response_headers_to_add.iter();
    headers
        .map(|header| (header.key.as_str(), header.value.as_str()))
        .collect()
}

/// Whether a check is denied for being over a bound, in these words, and its descriptors with it.
fn check_denied(rls: &mut Rls, request: RateLimitRequest, words: &str) {
    let count = request.descriptors.len();
    let answer = rls.ask(request).expect(words);
    assert_eq!(answer.overall_code(), Code::OverLimit, "{words}");
    let reason = &answer.dynamic_metadata.as_ref().expect("metadata").fields["reason"];
    assert_eq!(reason.kind, Some(Kind::StringValue(words.to_owned())));
    let codes = answer.statuses.iter().map(DescriptorStatus::code);
    let unsaid = count > 64 || words.starts_with("the message");
    let expected = if unsaid { 0 } else { count };
    assert!(
        codes.eq(std::iter::repeat_n(Code::OverLimit, expected)),
        "{answer:?}"
    );
}

/// Whether a check is refused as no valid one, in these words.
fn check_refused(rls: &mut Rls, request: RateLimitRequest, words: &str) {
    let status = rls.ask(request).expect_err("a refusal");
    assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status:?}");
    assert_eq!(status.message(), words);
}

#[test]
fn the_burst_passes_and_the_next_is_denied_on_tcp_and_unix() {
    let sidecar = start();
    let doors = sidecar.doors("grpc");
    assert_eq!(
        doors.iter().map(Endpoint::kind).collect::<Vec<_>>(),
        ["tcp", "unix"]
    );
    for door in &doors {
        assert_eq!(
            Rls::connect(door).letters("client", door.kind(), 5),
            "aaadd"
        );
    }
}

#[test]
fn both_doors_have_one_count() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    assert_eq!(rls.letters("client", "both", 2), "aa");
    let path = "/v1/check?domain=api&client=both";
    assert_eq!(sidecar.connect().get(path).status, 200);
    assert_eq!(rls.letter("client", "both"), 'd');
}

#[test]
fn a_status_has_the_limit_what_is_left_and_when_it_is_back() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    let answer = rls.ask(request([descriptor(&[("named", "v")])])).unwrap();
    let status = only(&answer);
    let limit = status.current_limit.as_ref().unwrap();
    assert_eq!(
        (limit.name.as_str(), limit.requests_per_unit, limit.unit()),
        ("gold", 5, Unit::Week)
    );
    assert_eq!((limit.unit_multiplier, status.limit_remaining), (None, 4));
    let reset = status.duration_until_reset.unwrap();
    assert_eq!((reset.seconds, reset.nanos), (7 * 86_400 / 5, 0));

    let answer = rls
        .ask(request([descriptor(&[("multiplied", "v")])]))
        .unwrap();
    let limit = only(&answer).current_limit.clone().unwrap();
    assert_eq!(
        (limit.name.as_str(), limit.unit(), limit.unit_multiplier),
        ("", Unit::Hour, Some(6))
    );

    let answer = rls.ask(request([descriptor(&[("huge", "v")])])).unwrap();
    let limit = only(&answer).current_limit.clone().unwrap();
    assert_eq!(
        (limit.requests_per_unit, only(&answer).limit_remaining),
        (u32::MAX, u32::MAX)
    );
}

#[test]
fn statuses_are_in_the_order_of_descriptors_and_one_denies_all() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    assert_eq!(rls.letters("client", "spent", 3), "aaa");
    let answer = rls.ask(request([
        descriptor(&[("wide", "v")]),
        descriptor(&[("nothing", "v")]),
        descriptor(&[("client", "spent")]),
        descriptor(&[("free", "v")]),
        descriptor(&[("trial", "v")]),
    ]));
    let answer = answer.unwrap();
    assert_eq!(letter(&answer), 'd');
    let codes: Vec<_> = answer.statuses.iter().map(DescriptorStatus::code).collect();
    assert_eq!(
        codes,
        [Code::Ok, Code::Ok, Code::OverLimit, Code::Ok, Code::Ok]
    );
    let limited: Vec<_> = answer
        .statuses
        .iter()
        .map(|status| status.current_limit.is_some())
        .collect();
    assert_eq!(limited, [true, false, true, false, true]);
    let left: Vec<_> = answer
        .statuses
        .iter()
        .map(|status| status.limit_remaining)
        .collect();
    assert_eq!(left, [10, 0, 0, u32::MAX, 1], "a denied check uses nothing");
}

#[test]
fn a_shadow_rule_never_denies_and_a_closed_one_always() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    assert_eq!(rls.letters("trial", "v", 3), "aaa");
    assert_eq!(rls.letters("closed", "v", 2), "dd");
    assert_eq!(rls.letters("nothing", "v", 2), "aa");
    let unknown = RateLimitRequest {
        domain: "unknown".to_owned(),
        ..request([descriptor(&[("client", "v")])])
    };
    assert_eq!(letter(&rls.ask(unknown).unwrap()), 'a');
}

#[test]
fn hits_are_the_requests_or_the_descriptors_and_a_present_zero_looks() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    let mut left = |hits_addend, of_descriptor| {
        let descriptor = RateLimitDescriptor {
            hits_addend: of_descriptor,
            ..descriptor(&[("wide", "hits")])
        };
        let answer = rls
            .ask(RateLimitRequest {
                hits_addend,
                ..request([descriptor])
            })
            .unwrap();
        (letter(&answer), only(&answer).limit_remaining)
    };
    assert_eq!(left(0, None), ('a', 9), "zero is one");
    assert_eq!(left(3, None), ('a', 6));
    assert_eq!(left(3, Some(1)), ('a', 5));
    assert_eq!(left(3, Some(0)), ('a', 5), "a look");
    assert_eq!(left(0, Some(6)), ('d', 5));
    assert_eq!(left(0, Some(u64::MAX)), ('d', 5));
    assert_eq!(left(u32::MAX, None), ('d', 5));
    assert_eq!(left(5, None), ('a', 0));
    assert_eq!(left(0, Some(0)), ('d', 0), "a look that finds nothing left");
}

/// Who reads a reset of nothing comes back at once, for ever.
#[test]
fn what_can_never_pass_tells_the_window_as_its_reset() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    for (key, hits) in [("closed", None), ("closed", Some(0)), ("client", Some(4))] {
        let asked = RateLimitDescriptor {
            hits_addend: hits,
            ..descriptor(&[(key, "never")])
        };
        let answer = rls.ask(request([asked])).expect("an answer");
        assert_eq!(letter(&answer), 'd', "{key} {hits:?}");
        let reset = only(&answer).duration_until_reset.as_ref();
        assert_eq!(
            reset.map(|reset| reset.seconds),
            Some(86_400),
            "{key} {hits:?}"
        );
        assert_eq!(headers(&answer).get("x-ratelimit-reset"), Some(&"86400"));
        assert_eq!(headers(&answer).get("retry-after"), None);
    }
}

#[test]
fn a_refund_gives_back_and_never_more_than_was_used() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    assert_eq!(rls.letters("client", "refund", 4), "aaad");
    let mut refund = |hits| {
        let descriptor = RateLimitDescriptor {
            hits_addend: Some(hits),
            is_negative_hits: true,
            ..descriptor(&[("client", "refund")])
        };
        let answer = rls.ask(request([descriptor])).unwrap();
        (letter(&answer), only(&answer).limit_remaining)
    };
    assert_eq!(refund(1), ('a', 1));
    assert_eq!(refund(100), ('a', 3));
    assert_eq!(rls.letters("client", "refund", 4), "aaad");
}

fn caller_limit(requests_per_unit: u32, unit: RateLimitUnit, value: &str) -> RateLimitDescriptor {
    RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit,
            unit: unit.into(),
            unit_multiplier: None,
        }),
        ..descriptor(&[("client", value)])
    }
}

#[test]
fn a_limit_that_the_caller_carries_holds_instead_of_the_rule() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    let mut ask = |domain: &str, descriptor| {
        let request = RateLimitRequest {
            domain: domain.to_owned(),
            ..request([descriptor])
        };
        let answer = rls.ask(request).unwrap();
        let limit = only(&answer).current_limit.clone();
        (
            letter(&answer),
            limit.map(|limit| (limit.requests_per_unit, limit.unit())),
        )
    };
    let two = caller_limit(2, RateLimitUnit::Day, "carried");
    let seen: String = (0..3).map(|_| ask("api", two.clone()).0).collect();
    assert_eq!(seen, "aad");
    assert_eq!(ask("api", two.clone()).1, Some((2, Unit::Day)));
    assert_eq!(
        ask("api", caller_limit(2, RateLimitUnit::Day, "other")).0,
        'a'
    );
    assert_eq!(
        ask("unknown", two.clone()).0,
        'a',
        "a domain that is not configured"
    );
    assert_eq!(ask("unknown", two).1, None);
    // One time line for each descriptor: what was used under one limit is used under the next.
    assert_eq!(
        ask("api", caller_limit(1, RateLimitUnit::Day, "carried")).0,
        'd'
    );
    assert_eq!(
        ask("api", caller_limit(0, RateLimitUnit::Day, "none")).0,
        'd'
    );
    assert_eq!(
        rls.letters("client", "carried", 4),
        "aaad",
        "the rule counts for itself"
    );
}

#[test]
fn a_carried_limit_that_cannot_be_is_denied_and_its_field_named() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    let at = "descriptors[0].limit";
    let unit = format!("{at}.unit: must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR");
    check_denied(
        &mut rls,
        request([caller_limit(1, RateLimitUnit::Unknown, "v")]),
        &unit,
    );
    let mut seven = caller_limit(1, RateLimitUnit::Day, "v");
    seven.limit.as_mut().unwrap().unit = 7;
    check_denied(&mut rls, request([seven]), &unit);
    let fast = format!("{at}.requests_per_unit: must be at most 1000000000 per second");
    check_denied(
        &mut rls,
        request([caller_limit(u32::MAX, RateLimitUnit::Second, "v")]),
        &fast,
    );
    let mut none = caller_limit(1, RateLimitUnit::Day, "v");
    none.limit.as_mut().unwrap().unit_multiplier = Some(0);
    let none_text = format!("{at}.unit_multiplier: must be at least 1 (a window needs a length)");
    check_denied(&mut rls, request([none]), &none_text);
}

#[test]
fn headers_follow_the_styles_and_a_denial_says_when_to_retry() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    let answer = rls
        .ask(request([descriptor(&[("client", "headers")])]))
        .unwrap();
    let expected = BTreeMap::from([
        ("ratelimit-policy", "\"api/client\";q=3;w=86400"),
        ("ratelimit", "\"api/client\";r=2;t=28800"),
        ("x-ratelimit-limit", "3"),
        ("x-ratelimit-remaining", "2"),
        ("x-ratelimit-reset", "28800"),
    ]);
    assert_eq!(headers(&answer), expected);
    assert_eq!(rls.letters("client", "headers", 2), "aa");
    let denial = rls
        .ask(request([descriptor(&[("client", "headers")])]))
        .unwrap();
    assert_eq!(headers(&denial)["x-ratelimit-remaining"], "0");
    assert_eq!(headers(&denial)["retry-after"], "28800");
    assert_eq!(headers(&denial)["x-ratelimit-retry-after"], "28800");

    let quiet = SidecarSetup::rules(RULES)
        .listen_also(LISTEN)
        .top("log: { format: json }\nheaders: []");
    let sidecar = quiet.start();
    let answer = tcp(&sidecar)
        .ask(request([descriptor(&[("client", "headers")])]))
        .unwrap();
    assert_eq!(headers(&answer), BTreeMap::new());
}

#[test]
fn metadata_says_what_decided() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    let descriptors = || {
        [
            descriptor(&[("wide", "meta")]),
            descriptor(&[("client", "meta")]),
        ]
    };
    let answer = rls.ask(request(descriptors())).unwrap();
    let fields = |answer: &RateLimitResponse| {
        let fields = answer.dynamic_metadata.clone().unwrap().fields;
        let fields = fields
            .into_iter()
            .map(|(name, value)| (name, value.kind.unwrap()));
        fields.collect::<BTreeMap<_, _>>()
    };
    let seen = fields(&answer);
    assert_eq!(seen["rule"], Kind::StringValue("api/client".to_owned()));
    assert_eq!(seen["source"], Kind::StringValue("local".to_owned()));
    assert_eq!(seen["descriptor"], Kind::NumberValue(1.0));
    assert!(!seen.contains_key("retry_after"));
    for _ in 0..2 {
        rls.ask(request(descriptors())).unwrap();
    }
    let Kind::NumberValue(wait) = fields(&rls.ask(request(descriptors())).unwrap())["retry_after"]
    else {
        panic!("no number");
    };
    assert!((28_000.0..28_800.0).contains(&wait), "{wait}");
    let unmatched = rls.ask(request([descriptor(&[("nothing", "v")])])).unwrap();
    assert_eq!(unmatched.dynamic_metadata, None);
}

#[test]
fn what_is_no_check_is_refused_and_the_field_named() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    let fine = || request([descriptor(&[("client", "v")])]);
    let cases = [
        (
            RateLimitRequest {
                domain: String::new(),
                ..fine()
            },
            "domain: must not be empty",
        ),
        (request([]), "descriptors: must be 1 to 64, are 0"),
    ];
    let count = cases.len() as f64;
    for (request, words) in cases {
        check_refused(&mut rls, request, words);
    }
    // An empty value is a value.
    assert_eq!(rls.letter("client", ""), 'a');
    let malformed = sidecar
        .metrics()
        .of("ratelimit_requests_malformed_total", &[("door", "grpc")]);
    assert_eq!(malformed, count);
}

/// Envoy lets a request pass whose check fails: what is over a bound must not fail.
#[test]
fn what_is_over_a_bound_is_denied_and_the_field_named() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    let fine = || request([descriptor(&[("client", "v")])]);
    let long = "k".repeat(1025);
    let cases = [
        (
            RateLimitRequest {
                domain: "d".repeat(1025),
                ..fine()
            },
            "domain: must be at most 1024 bytes, is 1025",
        ),
        (
            RateLimitRequest {
                descriptors: vec![descriptor(&[("client", "b")]); 65],
                ..fine()
            },
            "descriptors: must be 1 to 64, are 65",
        ),
        (
            request([descriptor(&[("client", "b"); 33])]),
            "descriptors[0].entries: must be 1 to 32, are 33",
        ),
        (
            request([descriptor(&[("client", "b")]), descriptor(&[(&long, "b")])]),
            "descriptors[1].entries[0].key: must be at most 1024 bytes, is 1025",
        ),
        (
            request([descriptor(&[("client", &"v".repeat(70_000))])]),
            "the message must be at most 65536 bytes",
        ),
        (
            request([descriptor(&[("client", &"v".repeat(3_000_000))])]),
            "the message must be at most 65536 bytes",
        ),
        // More than is read to its end.
        (
            request([descriptor(&[("client", &"v".repeat(9_000_000))])]),
            "the message must be at most 65536 bytes",
        ),
    ];
    let count = cases.len() as f64;
    for (request, words) in cases {
        check_denied(&mut rls, request, words);
    }
    let malformed = sidecar
        .metrics()
        .of("ratelimit_requests_malformed_total", &[("door", "grpc")]);
    assert_eq!(malformed, count);
    // Nothing of it was used.
    assert_eq!(rls.letters("client", "b", 4), "aaad");
}

/// A descriptor without entries and an entry without a key meet no rule. The descriptors beside them do.
#[test]
fn what_no_rule_can_meet_does_not_fail_the_check() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    for odd in [descriptor::<&str>(&[]), descriptor(&[("", "b")])] {
        let spent = || request([odd.clone(), descriptor(&[("closed", "v")])]);
        let answer = rls.ask(spent()).expect("an answer");
        let codes: Vec<_> = answer.statuses.iter().map(DescriptorStatus::code).collect();
        assert_eq!(codes, [Code::Ok, Code::OverLimit], "{answer:?}");
        assert_eq!(answer.overall_code(), Code::OverLimit);
        let alone = rls.ask(request([odd])).expect("an answer");
        assert_eq!(alone.overall_code(), Code::Ok);
    }
}

#[test]
fn messages_may_be_compressed_and_answers_are_alike() {
    let sidecar = start();
    let (mut plain, mut gzip) = (tcp(&sidecar), tcp(&sidecar).gzip());
    let encoding = |rls: &mut Rls, value: &str| {
        let request = request([descriptor(&[("client", value)])]);
        let answer = rls.answer::<_, RateLimitResponse>(SHOULD_RATE_LIMIT, request);
        let answer = answer.expect("an answer");
        let encoding = answer.metadata().get("grpc-encoding");
        let encoding = encoding.map(|value| value.to_str().unwrap().to_owned());
        (letter(answer.get_ref()), encoding)
    };
    let compressed = Some("gzip".to_owned());
    for expected in ['a', 'a', 'a', 'd'] {
        let found = encoding(&mut gzip, "compressed");
        assert_eq!(found, (expected, compressed.clone()));
    }
    // The same key, whichever way it comes.
    assert_eq!(encoding(&mut plain, "compressed"), ('d', None));
    // A megabyte out of a kilobyte is not made one.
    check_denied(
        &mut gzip,
        request([descriptor(&[("client", &"v".repeat(1_000_000))])]),
        "the message must be at most 65536 bytes",
    );
    assert_eq!(gzip.letter("client", "after"), 'a');
}

#[test]
fn what_is_no_message_is_refused_like_what_is_no_check() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    // Its first field is a number, where a check has a text.
    let number = prost_types::Timestamp {
        seconds: 1,
        nanos: 0,
    };
    let status = rls.call::<_, RateLimitResponse>(SHOULD_RATE_LIMIT, number);
    let status = status.expect_err("a refusal");
    assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status:?}");
    assert_eq!(rls.letter("client", "after"), 'a');
}

#[test]
fn checks_are_counted_like_those_of_the_other_door() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    assert_eq!(rls.letters("client", "counted", 4), "aaad");
    let metrics = sidecar.metrics();
    assert_eq!(metrics.decided("api/client"), (3.0, 1.0));
    assert_eq!(
        metrics.of("ratelimit_check_duration_seconds_count", &[]),
        4.0
    );
    assert_eq!(
        metrics.of("ratelimit_connections", &[("door", "grpc")]),
        1.0
    );
}

/// Without its store a strict rule goes by `on_store_error`, and a denial is an answer: Envoy would let an error pass.
#[test]
fn a_strict_rule_without_its_store_is_answered_as_it_says() {
    let rules = r#"
- domain: api
  descriptors:
    - { key: closed, consistency: strict, on_store_error: deny, rate_limit: 3/day }
    - { key: alone, consistency: strict, on_store_error: local_full, rate_limit: 3/day }
"#;
    let top = "log: { format: json }\nstore: { url: \"redis://127.0.0.1:1\", timeout: 50ms }";
    let sidecar = SidecarSetup::rules(rules)
        .listen_also(LISTEN)
        .top(top)
        .start();
    let mut rls = tcp(&sidecar);
    let answer = rls.ask(request([descriptor(&[("closed", "v")])])).unwrap();
    assert_eq!(
        (letter(&answer), only(&answer).code()),
        ('d', Code::OverLimit)
    );
    let source = &answer.dynamic_metadata.as_ref().unwrap().fields["source"].kind;
    assert_eq!(source, &Some(Kind::StringValue("fallback".to_owned())));
    assert_eq!(headers(&answer)["retry-after"], "1");
    assert_eq!(rls.letters("alone", "v", 4), "aaad");
    let json = r#"{"domain":"api","descriptors":[{"entries":[{"key":"closed","value":"v"}]}]}"#;
    assert_eq!(sidecar.connect().post("/json", json).status, 429);
    assert_eq!(sidecar.connect().post("/v1/check", json).status, 503);
}

#[test]
fn a_strict_rule_is_decided_by_the_store() {
    let redis = RedisServer::start(&[]);
    let rules = r#"
- domain: api
  descriptors:
    - { key: client, consistency: strict, rate_limit: 3/day }
"#;
    let top = format!(
        "log: {{ format: json }}\nstore: {{ url: \"{}\" }}",
        redis.url()
    );
    let sidecar = SidecarSetup::rules(rules)
        .listen_also(LISTEN)
        .top(&top)
        .start();
    let mut rls = tcp(&sidecar);
    let mut ask = |value: &str| {
        rls.ask(request([descriptor(&[("client", value)])]))
            .unwrap()
    };
    let source = |answer: &RateLimitResponse| {
        answer.dynamic_metadata.as_ref().unwrap().fields["source"]
            .kind
            .clone()
    };
    let strict = Some(Kind::StringValue("strict".to_owned()));
    until("an answer of the store", SOON, || {
        (source(&ask("warm")) == strict).then_some(())
    });
    let answers: Vec<_> = (0..4).map(|_| ask("v")).collect();
    assert_eq!(answers.iter().map(letter).collect::<String>(), "aaad");
    assert!(answers[..3].iter().all(|answer| source(answer) == strict));
}
