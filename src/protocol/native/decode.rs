//! A check out of a JSON body or out of a query.

use std::borrow::Cow;

use percent_encoding::percent_decode;
use smallvec::SmallVec;

use crate::protocol::json;
use crate::protocol::raw_check::{
    ENTRIES_MAX, RawCheck, RawDescriptor, RawEntry, Refusal, excerpt, whole_number,
};

/// The check in a JSON body.
pub fn from_json(body: &[u8]) -> Result<RawCheck<'_>, Refusal> {
    json::parse(body)
}

/// The check in a query of `/v1/forward`, whose values come from the headers of a client's request.
pub fn from_forward_query(query: &str) -> Result<RawCheck<'_>, Refusal> {
    let raw = from_query(query)?;
    Ok(RawCheck {
        forwarded: true,
        ..raw
    })
}

/// The check in a query: one descriptor, with its entries in the order of the query.
pub fn from_query(query: &str) -> Result<RawCheck<'_>, Refusal> {
    let mut raw = RawCheck::default();
    let mut entries: SmallVec<[RawEntry<'_>; 2]> = SmallVec::new();
    let mut reserved: SmallVec<[&str; 4]> = SmallVec::new();
    for pair in query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .take(ENTRIES_MAX + 5)
    {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (percent_decoded(key), percent_decoded(value));
        let name = ["domain", "hits_addend", "peek", "deny_status"]
            .into_iter()
            .find(|name| name.as_bytes() == &*key);
        if entries.iter().any(|entry| entry.key == key)
            || name.is_some_and(|name| reserved.contains(&name))
        {
            let key = String::from_utf8_lossy(&key);
            let what = format!("{key}: given twice, must be given once");
            return Err(Refusal::Malformed(what));
        }
        reserved.extend(name);
        match name {
            Some("domain") => raw.domain = domain(value)?,
            Some("hits_addend") => raw.hits_addend = whole_number("hits_addend", &value)?,
            Some("peek") => raw.peek = flag(&value)?,
            Some(_) => raw.deny_status = Some(status(&value)?),
            None => entries.push(RawEntry { key, value }),
        }
    }
    if entries.is_empty() {
        return Err(Refusal::Malformed(
            "no entry given: add one as key=value, in the order of the rules".to_owned(),
        ));
    }
    raw.descriptors.push(RawDescriptor {
        entries,
        ..RawDescriptor::default()
    });
    Ok(raw)
}

/// One key or value of a query, decoded.
fn percent_decoded(word: &str) -> Cow<'_, [u8]> {
    match word.contains('+') {
        // As forms are encoded: a plus is a space, a real one comes as %2B.
        true => {
            let spaced = word.replace('+', " ");
            Cow::Owned(percent_decode(spaced.as_bytes()).collect())
        }
        false => percent_decode(word.as_bytes()).into(),
    }
}

fn domain(value: Cow<'_, [u8]>) -> Result<Cow<'_, str>, Refusal> {
    let text = match value {
        Cow::Borrowed(bytes) => str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    };
    text.ok_or_else(|| Refusal::Malformed("domain: must be UTF-8".to_owned()))
}

fn flag(value: &[u8]) -> Result<bool, Refusal> {
    match value {
        b"" | b"1" | b"true" => Ok(true),
        b"0" | b"false" => Ok(false),
        _ => {
            let found = excerpt(value);
            Err(Refusal::Malformed(format!(
                "peek: must be true or false, is {found:?}"
            )))
        }
    }
}

fn status(value: &[u8]) -> Result<u16, Refusal> {
    let status = str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok());
    status
        .filter(|status| matches!(status, 400..=599))
        .ok_or_else(|| {
            let found = excerpt(value);
            Refusal::Malformed(format!(
                "deny_status: must be a status from 400 to 599, is {found:?}"
            ))
        })
}
