//! Reads `listen`: the addresses of the doors. Warns of, or refuses, addresses that other hosts can reach.

use std::collections::BTreeMap;

use super::address::Address;
use super::error::{Spot, quote};
use super::fields::RawListen;
use super::raw::{Field, ListField, TextField};
use super::reader::{FieldReader, FieldValue, NamedField};
use super::settings::ListenSettings;

/// An address and its position in the configuration.
type LocatedAddress = (Address, Spot);

/// The addresses of the doors. Without a `listen` section the defaults hold; a section turns off every door it does not
/// name.
pub fn listen(reader: &mut FieldReader<'_>, root: &Spot, raw: &Field<RawListen>) -> ListenSettings {
    let default = if raw.found().is_some() {
        ListenSettings::default().off()
    } else {
        ListenSettings::default()
    };
    let absent = RawListen::default();
    let (at, raw) = reader.section(root, ("listen", raw), &absent);
    let http = door(reader, &at, ("http", &raw.http));
    let grpc = door(reader, &at, ("grpc", &raw.grpc));
    let resp = door(reader, &at, ("resp", &raw.resp));
    let metrics = door(reader, &at, ("metrics", &raw.metrics));
    let admin = door(reader, &at, ("admin", &raw.admin));
    let token_file = reader.path(&at, ("token_file", &raw.token_file));
    let resp_password_file = reader.path(&at, ("resp_password_file", &raw.resp_password_file));

    let doors = [&http, &grpc, &resp, &metrics, &admin];
    once_each(reader, doors.into_iter().flatten().flatten());
    // With a password, only clients that know it can use up limits. The other doors for checks have no password.
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
        reader.warn(spot, text);
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
            reader.fault(spot, text);
        }
    }
    let addresses = |located: Option<Vec<LocatedAddress>>, default| match located {
        Some(located) => located.into_iter().map(|(address, _)| address).collect(),
        None => default,
    };
    ListenSettings {
        http: addresses(http, default.http),
        grpc: addresses(grpc, default.grpc),
        resp: addresses(resp, default.resp),
        metrics: addresses(metrics, default.metrics),
        admin: addresses(admin, default.admin),
        unix_mode: unix_mode(reader, &at, &raw.unix_mode).unwrap_or(default.unix_mode),
        token_file,
        resp_password_file,
    }
}

/// The addresses of one door: those in the variable `TIDEGATE_LISTEN_<DOOR>`, otherwise those in the file.
fn door(
    reader: &mut FieldReader<'_>,
    at: &Spot,
    list: NamedField<'_, ListField<String>>,
) -> Option<Vec<LocatedAddress>> {
    let written = reader.texts(at, list).map(|values| located(reader, values));
    let variable = format!("TIDEGATE_LISTEN_{}", list.0.to_ascii_uppercase());
    let given = reader.variable(&variable, &at.field(list.0).path);
    let given = given.map(|FieldValue { text, spot }| {
        let values = text.split(',').map(|text| FieldValue {
            text: text.trim().to_owned(),
            spot: spot.clone(),
        });
        located(reader, values.collect())
    });
    given.or(written)
}

fn located(reader: &mut FieldReader<'_>, values: Vec<FieldValue>) -> Vec<LocatedAddress> {
    let mut located = Vec::new();
    for FieldValue { text, spot } in values {
        match text.parse::<Address>() {
            Ok(address) => located.push((address, spot)),
            Err(fault) => reader.fault(&spot, format!("{fault}, not {}", quote(&text))),
        }
    }
    located
}

/// Records a fault for each address that two doors share.
fn once_each<'p>(reader: &mut FieldReader<'_>, doors: impl Iterator<Item = &'p LocatedAddress>) {
    let mut taken: BTreeMap<String, &Spot> = BTreeMap::new();
    for (address, spot) in doors.filter(|(address, _)| address.is_exclusive()) {
        let text = address.to_string();
        if let Some(first) = taken.get(&text) {
            let text = format!("{text} is taken by {}", first.seen_from(spot));
            reader.fault(spot, text);
        } else {
            taken.insert(text, spot);
        }
    }
}

/// The permissions of Unix sockets, in octal.
fn unix_mode(reader: &mut FieldReader<'_>, at: &Spot, raw: &TextField) -> Option<u32> {
    let FieldValue { text, spot } = reader.text(at, ("unix_mode", raw))?;
    let octal = (3..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = u32::from_str_radix(&text, 8).ok();
    let mode = mode.filter(|mode| octal && *mode <= 0o777);
    if mode.is_none() {
        let found = quote(&text);
        let text = format!(
            "must be permissions in octal from \"0000\" to \"0777\", such as \"0660\", not {found}"
        );
        reader.fault(&spot, text);
    }
    mode
}
