//! Nodes of one level that stand in each other's way: legal, and hardly ever meant.

use std::collections::BTreeMap;

use super::check::Check;
use super::error::{Spot, quote};
use tidegate_core::pure::address::address;
use tidegate_core::pure::path;
use tidegate_core::pure::pattern::Pattern;
use tidegate_core::pure::rule::NodeSpec;
use tidegate_core::pure::rules::Forms;

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
pub fn shadowed(check: &mut Check<'_>, nodes: &[Placed], forms: &Forms) {
    let mut by_key: BTreeMap<&str, Vec<&Placed>> = BTreeMap::new();
    for placed in nodes {
        by_key.entry(&placed.1.key).or_default().push(placed);
    }
    for (key, nodes) in by_key {
        same_form(check, &nodes, |value| {
            let plain = forms.addresses.plain(key.as_bytes(), value.as_bytes());
            plain.map(|plain| (plain.as_str().to_owned(), "cut to addresses.ipv6_prefix"))
        });
        same_form(check, &nodes, |value| {
            let is_path = forms.paths.are_everywhere(key) && !value.contains('*');
            is_path.then(|| (normal(value), "in the normal form of paths"))
        });
        covered(check, &nodes);
    }
}

/// Values that checks do not have as they are written: legal, and seldom known.
pub fn formed(check: &mut Check<'_>, nodes: &[Placed], forms: &Forms) {
    for (spot, node) in nodes {
        let value = node.value.as_deref().unwrap_or_default();
        if let Some(cut) = cut_address(&node.key, value, forms) {
            let text = format!(
                "{value} is cut to {cut} by addresses.ipv6_prefix: this holds for every address in it"
            );
            check.warn(spot, text);
        }
        if let Some(normal) = unasked_path(&node.key, value, forms) {
            let (value, normal) = (quote(value), quote(&normal));
            let whose = match forms.paths.are_everywhere(&node.key) {
                true => "a check",
                false => "/v1/forward",
            };
            let text = format!(
                "{value} is no path in normal form: {whose} never has it, but {normal} (see paths)"
            );
            check.warn(spot, text);
        }
    }
}

/// The network that an IPv6 address is cut to, if that is less than was written.
fn cut_address(key: &str, value: &str, forms: &Forms) -> Option<String> {
    let plain = forms.addresses.plain(key.as_bytes(), value.as_bytes())?;
    let written = address(value.as_bytes())?.to_canonical();
    let is_cut = written.is_ipv6() && written.to_string() != plain.as_str();
    is_cut.then(|| format!("{}/{}", plain.as_str(), forms.addresses.prefix()))
}

/// The normal form of a path that is not written in it, and that no check put in normal form therefore meets.
fn unasked_path(key: &str, value: &str, forms: &Forms) -> Option<String> {
    let is_pattern = value.contains('*');
    // What is no pattern is put in normal form itself, where every door does it.
    if !forms.paths.are_anywhere(key) || (forms.paths.are_everywhere(key) && !is_pattern) {
        return None;
    }
    let normal = normal(value);
    let is_met = match is_pattern {
        // A pattern may ask for a folder.
        true => normal == value.trim_end_matches('/') || normal == value,
        false => normal == value,
    };
    (!is_met).then_some(normal)
}

fn normal(value: &str) -> String {
    String::from_utf8_lossy(&path::normal(value.as_bytes())).into_owned()
}

/// Values that are one once they are brought into their form.
fn same_form(
    check: &mut Check<'_>,
    nodes: &[&Placed],
    form: impl Fn(&str) -> Option<(String, &'static str)>,
) {
    let mut seen: BTreeMap<String, &Spot> = BTreeMap::new();
    for (spot, node) in nodes {
        let Some((plain, once)) = node.value.as_deref().and_then(&form) else {
            continue;
        };
        if let Some(first) = seen.get(&plain) {
            let first = first.seen_from(spot);
            let text = format!("is {plain} as {first} is, once {once}: this one replaces that");
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
        let found = wider
            .iter()
            .find(|(pattern, _)| pattern.matches(value.as_bytes()));
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
