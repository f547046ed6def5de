//! `listen`: where the doors are, and whether that is safe.

use std::collections::BTreeMap;

use super::address::Address;
use super::check::{Check, Named, Word};
use super::error::{Spot, quote};
use super::fields::RawListen;
use super::raw::{Field, List, Text};
use super::settings::Listen;

/// An address and where it was written.
type Placed = (Address, Spot);

/// Where the doors are. A door that a present section does not name is off; without the section the defaults hold.
pub fn listen(check: &mut Check<'_>, root: &Spot, raw: &Field<RawListen>) -> Listen {
    let default = if raw.found().is_some() {
        Listen::default().off()
    } else {
        Listen::default()
    };
    let absent = RawListen::default();
    let (at, raw) = check.section(root, ("listen", raw), &absent);
    let http = door(check, &at, ("http", &raw.http));
    let grpc = door(check, &at, ("grpc", &raw.grpc));
    let resp = door(check, &at, ("resp", &raw.resp));
    let metrics = door(check, &at, ("metrics", &raw.metrics));
    let admin = door(check, &at, ("admin", &raw.admin));
    let token_file = check.path(&at, ("token_file", &raw.token_file));
    let resp_password_file = check.path(&at, ("resp_password_file", &raw.resp_password_file));

    let doors = [&http, &grpc, &resp, &metrics, &admin];
    once_each(check, doors.into_iter().flatten().flatten());
    // A password keeps strangers from using limits up; the other checks have none.
    let guarded = resp_password_file.is_some();
    let resp_open = resp.iter().flatten().filter(|_| !guarded);
    for (address, spot) in [&http, &grpc]
        .into_iter()
        .flatten()
        .flatten()
        .chain(resp_open)
        .filter(|(address, _)| !address.is_local())
    {
        let text =
            format!("{address} is open to other hosts: whoever reaches it can use up limits");
        check.warn(spot, text);
    }
    if token_file.is_none() {
        for (address, spot) in admin
            .iter()
            .flatten()
            .filter(|(address, _)| !address.is_local())
        {
            let text = format!(
                "{address} is open to other hosts: give listen.token_file, or listen on loopback"
            );
            check.fault(spot, text);
        }
    }
    let addresses = |placed: Option<Vec<Placed>>, default| match placed {
        Some(placed) => placed.into_iter().map(|(address, _)| address).collect(),
        None => default,
    };
    Listen {
        http: addresses(http, default.http),
        grpc: addresses(grpc, default.grpc),
        resp: addresses(resp, default.resp),
        metrics: addresses(metrics, default.metrics),
        admin: addresses(admin, default.admin),
        unix_mode: unix_mode(check, &at, &raw.unix_mode).unwrap_or(default.unix_mode),
        token_file,
        resp_password_file,
    }
}

/// The addresses of one door: those in `TIDEGATE_LISTEN_` and its name, or those written.
fn door(check: &mut Check<'_>, at: &Spot, list: Named<'_, List<String>>) -> Option<Vec<Placed>> {
    let written = check.words(at, list).map(|words| placed(check, words));
    let variable = format!("TIDEGATE_LISTEN_{}", list.0.to_ascii_uppercase());
    let given = check.variable(&variable, &at.field(list.0).path);
    let given = given.map(|Word { text, spot }| {
        let words = text.split(',').map(|text| Word {
            text: text.trim().to_owned(),
            spot: spot.clone(),
        });
        placed(check, words.collect())
    });
    given.or(written)
}

fn placed(check: &mut Check<'_>, words: Vec<Word>) -> Vec<Placed> {
    let mut placed = Vec::new();
    for Word { text, spot } in words {
        match text.parse::<Address>() {
            Ok(address) => placed.push((address, spot)),
            Err(fault) => check.fault(&spot, format!("{fault}, not {}", quote(&text))),
        }
    }
    placed
}

/// Two doors cannot share an address.
fn once_each<'p>(check: &mut Check<'_>, doors: impl Iterator<Item = &'p Placed>) {
    let mut taken: BTreeMap<String, &Spot> = BTreeMap::new();
    for (address, spot) in doors.filter(|(address, _)| address.is_exclusive()) {
        let text = address.to_string();
        if let Some(first) = taken.get(&text) {
            let text = format!("{text} is taken by {}", first.seen_from(spot));
            check.fault(spot, text);
        } else {
            taken.insert(text, spot);
        }
    }
}

/// Permissions, in octal.
fn unix_mode(check: &mut Check<'_>, at: &Spot, raw: &Text) -> Option<u32> {
    let Word { text, spot } = check.word(at, ("unix_mode", raw))?;
    let octal = (3..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = u32::from_str_radix(&text, 8).ok();
    let mode = mode.filter(|mode| octal && *mode <= 0o777);
    if mode.is_none() {
        let found = quote(&text);
        let text = format!(
            "must be permissions in octal from \"0000\" to \"0777\", such as \"0660\", not {found}"
        );
        check.fault(&spot, text);
    }
    mode
}
