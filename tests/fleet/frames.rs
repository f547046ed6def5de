//! The reader of Redis frames, and the reader of the records that the store keeps.

use std::collections::BTreeMap;

use tidegate_testing::fleet::books::in_store;
use tidegate_testing::stores::RedisServer;
use tidegate_testing::stores::frame::{length, words};

use super::shared;

/// Every beginning of `frame` is too short, and what follows it does not count.
fn check(frame: &[u8]) {
    for end in 0..frame.len() {
        assert_eq!(length(&frame[..end]), None, "{end} of {frame:?}");
    }
    assert_eq!(length(frame), Some(frame.len()));
    let more = [frame, b"+OK\r\n"].concat();
    assert_eq!(length(&more), Some(frame.len()));
}

#[test]
fn a_frame_ends_where_it_ends() {
    for frame in [
        &b"+OK\r\n"[..],
        b"-ERR no\r\n",
        b":12\r\n",
        b"$5\r\na\r\nbc\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n*1\r\n:1\r\n$0\r\n\r\n",
        b"%1\r\n+a\r\n*1\r\n_\r\n",
        b">2\r\n$7\r\nmessage\r\n#t\r\n",
        b"~1\r\n,1.5\r\n",
        b"!3\r\nERR\r\n",
        b"=7\r\ntxt:abc\r\n",
        b"|1\r\n+ttl\r\n:3\r\n+OK\r\n",
    ] {
        check(frame);
    }
}

#[test]
fn a_request_is_its_words() {
    let array = b"*3\r\n$6\r\nSCRIPT\r\n$4\r\nload\r\n$4\r\na\r\nb\r\n";
    assert_eq!(words(array), [&b"SCRIPT"[..], b"load", b"a\r\nb"]);
    assert_eq!(words(b"PING now\r\n"), [&b"PING"[..], b"now"]);
    assert_eq!(
        words(b">2\r\n+subscribe\r\n:1\r\n"),
        [&b"+subscribe"[..], b":1"]
    );
}

#[test]
fn records_are_summed_over_lanes() {
    let _machine = shared();
    let server = RedisServer::start(&[]);
    // Line ends, zeros and bytes that are no text come through.
    let set = |lane: u8, pod: &str, gross: &str| {
        let script = format!(
            "return redis.call('SET', 'tidegate:v1:{{{lane}}}:seq:{pod}', '\\3\\0\\0\\0\\0\\0\\0\\0{gross}')"
        );
        assert_eq!(server.cli(&["EVAL", &script, "0"]), "OK");
    };
    set(1, "aa", "\\10\\1\\0\\0\\0\\0\\0\\0");
    set(63, "aa", "\\255\\0\\0\\0\\0\\0\\0\\0");
    set(2, "bb", "\\1\\0\\0\\0\\0\\0\\0\\0");
    let gross = in_store(&server);
    let expected = [("aa".to_owned(), 266 + 255), ("bb".to_owned(), 1)];
    assert_eq!(gross, BTreeMap::from(expected));
}
