//! Forward auth: a query that takes values from the headers of its own request.
//!
//! The query of a proxy is written once, in its configuration. nginx cannot encode a client's value into it, and
//! Traefik cannot put anything into it; both pass headers on. So here, and only at `/v1/forward`, a value `@name`
//! stands for that header.

use std::borrow::Cow;
use std::fmt::Write;

use hyper::header::{HeaderMap, HeaderName};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};

use crate::protocol::Refusal;
use tidegate_core::pure::address::address;

/// The query with the headers' values in it, encoded: whatever a client sent stays one value.
pub fn fill(query: &str, headers: &HeaderMap) -> Result<String, Refusal> {
    let mut filled = String::with_capacity(query.len());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        if !filled.is_empty() {
            filled.push('&');
        }
        let named = pair.split_once('=');
        match named.and_then(|(key, value)| Some((key, value.strip_prefix('@')?))) {
            Some((key, name)) => {
                let value = value(name, headers)?;
                let value = percent_encode(&value, NON_ALPHANUMERIC);
                // Writing to a string does not fail.
                let _ = write!(filled, "{key}={value}");
            }
            None => filled.push_str(pair),
        }
    }
    Ok(filled)
}

/// The value of a header; empty if the client did not send it.
fn value<'a>(name: &str, headers: &'a HeaderMap) -> Result<Cow<'a, [u8]>, Refusal> {
    let wrong = |what| Refusal::Malformed(format!("@{name}: {what}"));
    let name = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| wrong("after the @ must be the name of a header"))?;
    let mut values = headers.get_all(&name).iter();
    let last = values
        .next_back()
        .map_or(&b""[..], |value| value.as_bytes());
    Ok(match name.as_str() {
        // A list to which each proxy adds the address it saw. A client can forge all but the nearest proxy's.
        "x-forwarded-for" => {
            let nearest = last.rsplit(|byte| *byte == b',').next();
            without_port(nearest.map_or(last, <[u8]>::trim_ascii))
        }
        // With its query, every request would be a path of its own.
        "x-forwarded-uri" => last
            .split(|byte| *byte == b'?')
            .next()
            .unwrap_or(last)
            .into(),
        _ if values.next().is_some() => {
            return Err(wrong("the header is given twice, must be given once"));
        }
        _ => last.into(),
    })
}

/// An address without its port: with it, each connection would have a bucket of its own.
fn without_port(value: &[u8]) -> Cow<'_, [u8]> {
    let is_bare = value.iter().all(|byte| !matches!(byte, b'[' | b']'));
    let colons = value.iter().filter(|byte| **byte == b':').count();
    match address(value) {
        // As it came: the engine brings it into one spelling.
        Some(_) if is_bare && colons != 1 => value.into(),
        Some(address) => address.to_string().into_bytes().into(),
        None => value.into(),
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    /// With these headers, the query is filled like this.
    fn check(headers: &[(&'static str, &[u8])], query: &str, expected: &str) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        let found = fill(query, &map).unwrap_or_else(|refusal| refusal.to_string());
        assert_eq!(found, expected, "{query} with {headers:?}");
    }

    #[test]
    fn a_value_is_the_headers_and_stays_one() {
        check(&[("k", b"abc")], "domain=d&a=@k", "domain=d&a=abc");
        check(&[("k", b"abc")], "a=@K&b=1", "a=abc&b=1");
        check(&[("k", b"x&peek=1")], "a=@k", "a=x%26peek%3D1");
        check(&[("k", b"1 +%20")], "a=@k", "a=1%20%2B%2520");
        check(&[("k", b"@k")], "a=@k", "a=%40k");
        check(
            &[("k", "\u{e9}\u{fe}".as_bytes())],
            "a=@k",
            "a=%C3%A9%C3%BE",
        );
    }

    #[test]
    fn a_header_that_was_not_sent_is_empty() {
        check(&[], "a=@k&b=@k", "a=&b=");
    }

    #[test]
    fn other_values_are_as_they_are() {
        check(&[("k", b"v")], "&a=%40k&&b=c@k&@k&d=", "a=%40k&b=c@k&@k&d=");
    }

    #[test]
    fn what_is_no_header_or_two_is_refused() {
        let name = "@a b: after the @ must be the name of a header";
        check(&[], "a=@a b", name);
        let twice = "@k: the header is given twice, must be given once";
        check(&[("k", b"1"), ("k", b"2")], "a=@k", twice);
    }

    #[test]
    fn only_the_nearest_proxys_word_counts() {
        let query = "a=@x-forwarded-for";
        check(&[("x-forwarded-for", b"::1")], query, "a=%3A%3A1");
        check(
            &[("x-forwarded-for", b"fake, 10.0.0.1")],
            query,
            "a=10%2E0%2E0%2E1",
        );
        let lines: [(_, &[u8]); 2] = [("x-forwarded-for", b"fake"), ("x-forwarded-for", b"a, b")];
        check(&lines, query, "a=b");
    }

    #[test]
    fn an_address_is_without_its_port() {
        for (sent, expected) in [
            ("192.0.2.7:4711", "192%2E0%2E2%2E7"),
            ("fake, 192.0.2.7:4711", "192%2E0%2E2%2E7"),
            ("[2001:db8::1]:4711", "2001%3Adb8%3A%3A1"),
            ("[2001:db8::1]", "2001%3Adb8%3A%3A1"),
            ("2001:DB8::1", "2001%3ADB8%3A%3A1"),
            ("192.0.2.7:x", "192%2E0%2E2%2E7%3Ax"),
        ] {
            let headers = [("x-forwarded-for", sent.as_bytes())];
            check(&headers, "a=@x-forwarded-for", &format!("a={expected}"));
        }
    }

    #[test]
    fn a_path_is_without_its_query() {
        let headers: [(_, &[u8]); 1] = [("x-forwarded-uri", b"/a?b?c")];
        check(&headers, "p=@x-forwarded-uri", "p=%2Fa");
    }
}
