//! Reads `store`: the address of the fleet's store and how to talk to it. A fault never repeats a URL, because it may
//! hold a password.

use std::time::Duration;

use super::error::Spot;
use super::fields::{RawStore, RawTls};
use super::raw::Field;
use super::reader::{FieldReader, FieldValue};
use super::settings::{StoreSettings, StoreUrl, TlsSettings, Topology};

/// The store, if the file or `REDIS_URL` names one.
pub fn store(
    reader: &mut FieldReader<'_>,
    root: &Spot,
    raw: &Field<RawStore>,
) -> Option<StoreSettings> {
    if raw.found().is_some() {
        let (at, raw) = reader.given(root, ("store", raw))?;
        return section(reader, &at, raw);
    }
    let value = reader.variable("REDIS_URL", "store.url")?;
    url(reader, &value).map(StoreSettings::at)
}

fn section(reader: &mut FieldReader<'_>, at: &Spot, raw: &RawStore) -> Option<StoreSettings> {
    reader.unknown(at, raw);
    let address = reader.text(at, ("url", &raw.url));
    if raw.url.found().is_none() {
        let text = "is missing: give the address of the store, such as redis://127.0.0.1:6379";
        reader.fault(&at.field("url"), text);
    }
    let topology = topology(reader, at, raw);
    let password_file = reader.path(at, ("password_file", &raw.password_file));
    let tls = tls(reader, at, raw);
    let range = Duration::from_millis(1)..=Duration::from_secs(60);
    let timeout = reader.duration(at, ("timeout", &raw.timeout), range);
    let key_prefix = key_prefix(reader, at, raw);
    let hash_key_file = reader.path(at, ("hash_key_file", &raw.hash_key_file));

    let address = address?;
    let default = StoreSettings::at(url(reader, &address)?);
    if let Some(fault) = unfit(&topology, &address.text) {
        reader.fault(&address.spot, fault);
    }
    Some(StoreSettings {
        topology,
        password_file,
        tls,
        timeout: timeout.unwrap_or(default.timeout),
        key_prefix: key_prefix.unwrap_or(default.key_prefix),
        hash_key_file,
        url: default.url,
    })
}

fn topology(reader: &mut FieldReader<'_>, at: &Spot, raw: &RawStore) -> Topology {
    let master = reader.filled(at, ("master", &raw.master));
    let sentinel = Topology::Sentinel {
        master: master.map(|name| name.text).unwrap_or_default(),
    };
    let choices = [
        ("single", &Topology::Single),
        ("sentinel", &sentinel),
        ("cluster", &Topology::Cluster),
    ];
    let choose = reader.choice(at, ("topology", &raw.topology), &choices);
    let choose = choose.unwrap_or(&Topology::Single).clone();
    let is_sentinel = choose == sentinel;
    match raw.master.found() {
        None if is_sentinel => {
            let text = "is missing: give the name of the master that the sentinels know";
            reader.fault(&at.field("master"), text);
        }
        Some((place, _)) if !is_sentinel => {
            let text = "has no meaning here: only topology sentinel has a master";
            reader.fault(&at.field("master").at(place), text);
        }
        None | Some(_) => {}
    }
    choose
}

fn tls(reader: &mut FieldReader<'_>, at: &Spot, raw: &RawStore) -> TlsSettings {
    let absent = RawTls::default();
    let (at, raw) = reader.section(at, ("tls", &raw.tls), &absent);
    let tls = TlsSettings {
        ca_file: reader.path(&at, ("ca_file", &raw.ca_file)),
        cert_file: reader.path(&at, ("cert_file", &raw.cert_file)),
        key_file: reader.path(&at, ("key_file", &raw.key_file)),
    };
    if raw.cert_file.found().is_some() != raw.key_file.found().is_some() {
        let text = "cert_file and key_file go together: give both or neither";
        reader.fault(&at, text);
    }
    tls
}

fn key_prefix(reader: &mut FieldReader<'_>, at: &Spot, raw: &RawStore) -> Option<String> {
    let value = reader.text(at, ("key_prefix", &raw.key_prefix))?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_:.-".contains(&byte);
    if value.text.is_empty() || !value.text.bytes().all(plain) {
        let text = "must be one or more letters, digits, _ : . or -";
        reader.fault(&value.spot, text);
    }
    Some(value.text)
}

/// The address in `value`, if it is one.
fn url(reader: &mut FieldReader<'_>, value: &FieldValue) -> Option<StoreUrl> {
    let fault = match value.text.split_once("://") {
        Some(("redis" | "rediss", rest)) if !names_hosts(rest) => {
            Some("must name a host, and a port from 1 to 65535 if any: redis://127.0.0.1:6379")
        }
        Some(("unix", path)) if !path.starts_with('/') => {
            Some("must name an absolute path: unix:///run/redis.sock")
        }
        Some((scheme @ ("redis" | "rediss" | "unix"), rest)) => match database(scheme, rest) {
            Some(_) => None,
            None => {
                Some("must end in the number of a database, or have none: redis://127.0.0.1:6379/1")
            }
        },
        Some(_) | None => Some("must be a URL that starts with redis://, rediss:// or unix://"),
    };
    if let Some(fault) = fault {
        reader.fault(&value.spot, fault);
        return None;
    }
    Some(StoreUrl::new(value.text.clone()))
}

/// The database in a URL, 0 if there is none; `None` if it is not a number.
fn database(scheme: &str, rest: &str) -> Option<u32> {
    let open = rest.rsplit_once('@').map_or(rest, |(_, open)| open);
    let (before, query) = open.split_once('?').unwrap_or((open, ""));
    let named = match scheme {
        "unix" => query.split('&').find_map(|pair| pair.strip_prefix("db=")),
        _ => before.split_once('/').map(|(_, name)| name),
    };
    match named {
        None => Some(0),
        Some("") if scheme != "unix" => Some(0),
        Some(name) if name.bytes().all(|byte| byte.is_ascii_digit()) => name.parse().ok(),
        Some(_) => None,
    }
}

/// What is wrong with `url` for this topology, if anything.
fn unfit(topology: &Topology, url: &str) -> Option<&'static str> {
    let (scheme, rest) = url.split_once("://")?;
    let elsewhere = database(scheme, rest) != Some(0);
    match topology {
        Topology::Single => None,
        Topology::Sentinel { .. } if scheme == "unix" => {
            Some("must name the hosts of sentinels with topology sentinel, not a socket")
        }
        Topology::Cluster if scheme == "unix" || elsewhere => {
            Some("must name hosts and no database but 0 with topology cluster")
        }
        Topology::Sentinel { .. } | Topology::Cluster => None,
    }
}

/// Whether `rest` of a URL is `[user:password@]host[:port],...[/database]`.
fn names_hosts(rest: &str) -> bool {
    let open = rest.rsplit_once('@').map_or(rest, |(_, open)| open);
    let hosts = open.split(['/', '?']).next().unwrap_or_default();
    hosts.split(',').all(|host| {
        // The colons of an IPv6 address stand within brackets.
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => (name, Some(port)),
            Some(_) | None => (host, None),
        };
        !name.is_empty()
            && !name.contains(char::is_whitespace)
            && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_hosts() {
        for (rest, expected) in [
            ("127.0.0.1:6379", true),
            ("redis", true),
            ("user:p@ss:word@redis:6379/3", true),
            ("[::1]:6379", true),
            ("[::1]", true),
            ("a:26379,b:26379", true),
            ("", false),
            (":6379", false),
            ("redis:", false),
            ("redis:0", false),
            ("redis:70000", false),
            ("a,,b", false),
            ("user:secret@", false),
        ] {
            assert_eq!(names_hosts(rest), expected, "{rest}");
        }
    }

    #[test]
    fn a_database_is_a_number() {
        for (scheme, rest, expected) in [
            ("redis", "h", Some(0)),
            ("redis", "h/", Some(0)),
            ("redis", "h:1/3", Some(3)),
            ("redis", "u:p/w@h/3?x=y", Some(3)),
            ("redis", "h/abc", None),
            ("redis", "h/-1", None),
            ("redis", "h/1/2", None),
            ("redis", "h/99999999999", None),
            ("unix", "/run/r.sock", Some(0)),
            ("unix", "/run/r.sock?user=ada&db=2", Some(2)),
            ("unix", "/run/r.sock?db=x", None),
            ("unix", "/run/r.sock?db=", None),
        ] {
            assert_eq!(database(scheme, rest), expected, "{scheme}://{rest}");
        }
    }
}
