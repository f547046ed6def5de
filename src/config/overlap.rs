//! Nodes of one level that stand in each other's way: legal, and hardly ever meant.

use std::collections::BTreeMap;

use super::check::Check;
use super::error::{Spot, quote};
use crate::pure::Addresses;
use crate::pure::pattern::Pattern;
use crate::pure::rule::NodeSpec;

/// Earlier patterns of one key that a pattern is compared with. Keeps the effort linear.
const PATTERNS_COMPARED_MAX: usize = 256;

/// A node and where it stands.
pub type Placed = (Spot, NodeSpec);

/// Two nodes with one key and value: a fault at the later.
pub fn duplicates(check: &mut Check<'_>, nodes: &[Placed]) {
    let mut seen: BTreeMap<(&str, &str), &Spot> = BTreeMap::new();
    for (spot, node) in nodes.iter().filter(|(_, node)| !node.key.is_empty()) {
        let value = node.value.as_deref().unwrap_or_default();
        if let Some(first) = seen.get(&(node.key.as_str(), value)) {
            let text = format!(
                "has the key and value of {}: keep one",
                first.seen_from(spot)
            );
            check.fault(spot, text);
        } else {
            seen.insert((&node.key, value), spot);
        }
    }
}

/// Nodes that can never match, or that replace one another.
pub fn shadowed(check: &mut Check<'_>, nodes: &[Placed], addresses: &Addresses) {
    let mut by_key: BTreeMap<&str, Vec<&Placed>> = BTreeMap::new();
    for placed in nodes {
        by_key.entry(&placed.1.key).or_default().push(placed);
    }
    for (key, nodes) in by_key {
        same_address(check, &nodes, |value| {
            let plain = addresses.plain(key, value)?;
            Some(plain.as_str().to_owned())
        });
        covered(check, &nodes);
    }
}

/// Values that are one address once they are cut to their prefix.
fn same_address(check: &mut Check<'_>, nodes: &[&Placed], plain: impl Fn(&str) -> Option<String>) {
    let mut seen: BTreeMap<String, &Spot> = BTreeMap::new();
    for (spot, node) in nodes {
        let Some(plain) = node.value.as_deref().and_then(&plain) else {
            continue;
        };
        if let Some(first) = seen.get(&plain) {
            let first = first.seen_from(spot);
            let text = format!(
                "is {plain} as {first} is, once cut to addresses.ipv6_prefix: this one replaces that"
            );
            check.warn(spot, text);
        }
        seen.insert(plain, spot);
    }
}

/// Patterns behind a wider one, and a key alone beside `*`.
fn covered(check: &mut Check<'_>, nodes: &[&Placed]) {
    let mut wider: Vec<(Pattern, &Placed)> = Vec::new();
    for placed in nodes {
        let (spot, node) = placed;
        let value = node.value.as_deref().unwrap_or_default();
        let Some(pattern) = Pattern::parse(value) else {
            continue;
        };
        // A `*` in the narrower one is text that only a `*` of the wider one can match: what holds for it holds for
        // whatever it stands for.
        let found = wider.iter().find(|(pattern, _)| pattern.matches(value));
        if let Some((_, (first, _))) = found {
            let text = format!(
                "can never match: {} comes first and takes every such value",
                first.seen_from(spot)
            );
            check.warn(spot, text);
        } else if wider.len() < PATTERNS_COMPARED_MAX {
            wider.push((pattern, placed));
        }
    }
    let all = wider.iter().map(|(_, placed)| placed).find(|(_, node)| {
        node.value
            .as_deref()
            .is_some_and(|value| value.bytes().all(|byte| byte == b'*'))
    });
    let any = nodes.iter().find(|(_, node)| node.value.is_none());
    if let (Some((first, all)), Some((spot, _))) = (all, any) {
        let star = quote(all.value.as_deref().unwrap_or_default());
        let text = format!(
            "can never match: {star} of {} takes every value",
            first.seen_from(spot)
        );
        check.warn(spot, text);
    }
}
