//! Finds descriptors of one level that hide or replace one another: legal, but hardly ever intended.

use std::collections::BTreeMap;

use super::error::{Spot, quote};
use super::reader::FieldReader;
use tidegate_core::pure::address::address;
use tidegate_core::pure::path;
use tidegate_core::pure::pattern::Pattern;
use tidegate_core::pure::rule::NodeSpec;
use tidegate_core::pure::rules::Forms;

/// The most earlier patterns of one key that a pattern is compared with. It keeps the effort linear.
const PATTERNS_COMPARED_MAX: usize = 256;

/// A node and its position in the configuration.
pub type LocatedNode = (Spot, NodeSpec);

/// Records a fault for each node with the key and value of an earlier one.
pub fn duplicates(reader: &mut FieldReader<'_>, nodes: &[LocatedNode]) {
    let mut seen: BTreeMap<(&str, &str), &Spot> = BTreeMap::new();
    for (spot, node) in nodes.iter().filter(|(_, node)| !node.key.is_empty()) {
        let value = node.value.as_deref().unwrap_or_default();
        if let Some(first) = seen.get(&(node.key.as_str(), value)) {
            let text = format!(
                "has the key and value of {}: keep one",
                first.seen_from(spot)
            );
            reader.fault(spot, text);
        } else {
            seen.insert((&node.key, value), spot);
        }
    }
}

/// Warns of nodes that can never match, and of nodes that replace one another.
pub fn shadowed(reader: &mut FieldReader<'_>, nodes: &[LocatedNode], forms: &Forms) {
    let mut by_key: BTreeMap<&str, Vec<&LocatedNode>> = BTreeMap::new();
    for located in nodes {
        by_key.entry(&located.1.key).or_default().push(located);
    }
    for (key, nodes) in by_key {
        same_form(reader, &nodes, |value| {
            let plain = forms.addresses.plain(key.as_bytes(), value.as_bytes());
            plain.map(|plain| (plain.as_str().to_owned(), "cut to addresses.ipv6_prefix"))
        });
        same_form(reader, &nodes, |value| {
            let is_path = forms.paths.are_everywhere(key) && !value.contains('*');
            is_path.then(|| (normal(value), "in the normal form of paths"))
        });
        covered(reader, &nodes);
    }
}

/// Warns of values that a check never has as they are written, because checks are brought into normal form first.
pub fn formed(reader: &mut FieldReader<'_>, nodes: &[LocatedNode], forms: &Forms) {
    for (spot, node) in nodes {
        let value = node.value.as_deref().unwrap_or_default();
        if let Some(cut) = cut_address(&node.key, value, forms) {
            let text = format!(
                "{value} is cut to {cut} by addresses.ipv6_prefix: this holds for every address in it"
            );
            reader.warn(spot, text);
        }
        if let Some(normal) = unasked_path(&node.key, value, forms) {
            let (value, normal) = (quote(value), quote(&normal));
            let whose = match forms.paths.are_everywhere(&node.key) {
                true => "a check",
                false => "/v1/forward",
            };
            let text = format!(
                "{value} is not a path in normal form: {whose} has {normal} instead (see paths)"
            );
            reader.warn(spot, text);
        }
    }
}

/// The network that an IPv6 address is cut to, if the cut removes something.
fn cut_address(key: &str, value: &str, forms: &Forms) -> Option<String> {
    let plain = forms.addresses.plain(key.as_bytes(), value.as_bytes())?;
    let written = address(value.as_bytes())?.to_canonical();
    let is_cut = written.is_ipv6() && written.to_string() != plain.as_str();
    is_cut.then(|| format!("{}/{}", plain.as_str(), forms.addresses.prefix()))
}

/// The normal form of a path that is written in another form and therefore never matches a check.
fn unasked_path(key: &str, value: &str, forms: &Forms) -> Option<String> {
    let is_pattern = value.contains('*');
    // Where every door normalises paths, the rule's own value is normalised too, unless it is a pattern.
    if !forms.paths.are_anywhere(key) || (forms.paths.are_everywhere(key) && !is_pattern) {
        return None;
    }
    let normal = normal(value);
    let is_met = match is_pattern {
        // A pattern may end in a slash, to match a folder.
        true => normal == value.trim_end_matches('/') || normal == value,
        false => normal == value,
    };
    (!is_met).then_some(normal)
}

fn normal(value: &str) -> String {
    String::from_utf8_lossy(&path::normal(value.as_bytes())).into_owned()
}

/// Warns of values that become equal once `form` has normalised them.
fn same_form(
    reader: &mut FieldReader<'_>,
    nodes: &[&LocatedNode],
    form: impl Fn(&str) -> Option<(String, &'static str)>,
) {
    let mut seen: BTreeMap<String, &Spot> = BTreeMap::new();
    for (spot, node) in nodes {
        let Some((plain, once)) = node.value.as_deref().and_then(&form) else {
            continue;
        };
        if let Some(first) = seen.get(&plain) {
            let first = first.seen_from(spot);
            let text = format!("is {plain} as {first} is, once {once}: this one replaces that one");
            reader.warn(spot, text);
        }
        seen.insert(plain, spot);
    }
}

/// Warns of patterns that follow a wider one, and of a key without a value beside `*`.
fn covered(reader: &mut FieldReader<'_>, nodes: &[&LocatedNode]) {
    let mut wider: Vec<(Pattern, &LocatedNode)> = Vec::new();
    for located in nodes {
        let (spot, node) = located;
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
            reader.warn(spot, text);
        } else if wider.len() < PATTERNS_COMPARED_MAX {
            wider.push((pattern, located));
        }
    }
    let all = wider.iter().map(|(_, located)| located).find(|(_, node)| {
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
        reader.warn(spot, text);
    }
}
