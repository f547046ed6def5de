//! Addresses in their plain form, so that one client has one key.
//!
//! `::ffff:192.0.2.7` is the IPv4 client `192.0.2.7`. An IPv6 client owns a whole prefix and could use a new address
//! for every request, so the plain form keeps only the prefix. It has no port, because a client has a new one for every
//! connection. A value that is not an address stays as it is.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Which entries hold addresses, and how many bits of an IPv6 address name a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    keys: Vec<String>,
    mask: u128,
    prefix: u8,
}

impl Default for Addresses {
    fn default() -> Self {
        Self::new(vec!["remote_address".to_owned()], 64)
    }
}

impl Addresses {
    /// The entries named in `keys` hold addresses. An IPv6 address is cut to `prefix` bits (128 and above keep all of
    /// it).
    pub fn new(keys: Vec<String>, prefix: u8) -> Self {
        let host_bits = u32::from(128_u8.saturating_sub(prefix));
        Self {
            keys,
            mask: u128::MAX.checked_shl(host_bits).unwrap_or(0),
            prefix,
        }
    }

    /// The bits of an IPv6 address that name a client.
    pub const fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether the values of `key` are addresses.
    ///
    /// ```
    /// use tidegate_core::pure::Addresses;
    /// assert!(Addresses::default().are_under(b"remote_address"));
    /// assert!(!Addresses::default().are_under(b"user"));
    /// ```
    #[inline]
    pub fn are_under(&self, key: &[u8]) -> bool {
        self.keys.iter().any(|known| known.as_bytes() == key)
    }

    /// The plain form of `value`, if `key` holds addresses and `value` is one.
    ///
    /// ```
    /// use tidegate_core::pure::Addresses;
    /// let addresses = Addresses::default();
    /// let plain = |value: &[u8]| addresses.plain(b"remote_address", value).map(|plain| plain.as_str().to_owned());
    /// assert_eq!(plain(b"::ffff:192.0.2.7").as_deref(), Some("192.0.2.7"));
    /// assert_eq!(plain(b"2001:db8:1:2:3::4").as_deref(), Some("2001:db8:1:2::"));
    /// assert_eq!(plain(b"192.0.2.7:51234").as_deref(), Some("192.0.2.7"));
    /// assert_eq!(plain(b"not an address"), None);
    /// ```
    #[inline]
    pub fn plain(&self, key: &[u8], value: &[u8]) -> Option<PlainAddress> {
        if !self.are_under(key) {
            return None;
        }
        let address = match address(value)?.to_canonical() {
            IpAddr::V4(v4) => IpAddr::V4(v4),
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & self.mask)),
        };
        let mut plain = PlainAddress::default();
        write!(plain, "{address}").ok()?;
        Some(plain)
    }
}

/// The address in `value`, which may have brackets and a port.
///
/// ```
/// use tidegate_core::pure::address::address;
/// let ports: [&[u8]; 3] = [b"::1", b"[::1]", b"[::1]:443"];
/// assert!(ports.iter().all(|value| address(value).is_some_and(|address| address.is_loopback())));
/// ```
pub fn address(value: &[u8]) -> Option<IpAddr> {
    if value.len() > ADDRESS_BYTES_MAX {
        return None;
    }
    let text = std::str::from_utf8(value).ok()?;
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    if let Some(bare) = bare {
        return bare.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    let with_port = || text.parse::<SocketAddr>().ok();
    let address = text.parse::<IpAddr>().ok();
    address.or_else(|| with_port().map(|address| address.ip()))
}

/// The longest address with brackets, a scope and a port.
const ADDRESS_BYTES_MAX: usize = 64;
/// The longest plain address.
const PLAIN_BYTES_MAX: usize = 45;

/// An address in its plain form, held without allocating.
#[derive(Clone, Copy, Debug)]
pub struct PlainAddress {
    bytes: [u8; PLAIN_BYTES_MAX],
    length: usize,
}

impl Default for PlainAddress {
    fn default() -> Self {
        Self {
            bytes: [0; PLAIN_BYTES_MAX],
            length: 0,
        }
    }
}

impl PlainAddress {
    /// The address as text.
    pub fn as_str(&self) -> &str {
        self.bytes
            .get(..self.length)
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
            .unwrap_or_default()
    }
}

impl Write for PlainAddress {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let end = self.length.saturating_add(part.len());
        self.bytes
            .get_mut(self.length..end)
            .ok_or(fmt::Error)?
            .copy_from_slice(part.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(prefix: u8, value: &str, expected: Option<&str>) {
        let addresses = Addresses::new(vec!["ip".to_owned()], prefix);
        assert_eq!(
            addresses
                .plain(b"ip", value.as_bytes())
                .as_ref()
                .map(PlainAddress::as_str),
            expected,
            "{value}"
        );
    }

    #[test]
    fn an_ipv4_address_is_itself_however_it_is_wrapped() {
        check(64, "192.0.2.7", Some("192.0.2.7"));
        check(64, "::ffff:192.0.2.7", Some("192.0.2.7"));
        check(64, "::FFFF:c000:207", Some("192.0.2.7"));
    }

    #[test]
    fn an_ipv6_address_is_cut_to_its_prefix() {
        check(64, "2001:DB8::1", Some("2001:db8::"));
        check(56, "2001:db8:0:12ff::1", Some("2001:db8:0:1200::"));
        check(128, "2001:db8::1", Some("2001:db8::1"));
        check(0, "2001:db8::1", Some("::"));
        check(
            128,
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            Some("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        );
    }

    #[test]
    fn a_port_makes_no_other_client() {
        for value in ["192.0.2.7:80", "192.0.2.7:65535", "[::ffff:192.0.2.7]:80"] {
            check(64, value, Some("192.0.2.7"));
        }
        for value in ["[2001:db8::1]:80", "[2001:db8::1]:0", "[2001:db8::1]"] {
            check(64, value, Some("2001:db8::"));
        }
    }

    #[test]
    fn what_is_no_address_stays_as_it_came() {
        for value in [
            "",
            "localhost",
            "192.0.2.7:",
            "192.0.2.7:65536",
            "[192.0.2.7]",
            "[::1]:",
            "fe80::1%eth0",
            "1.2.3",
            "010.0.0.1",
        ] {
            check(64, value, None);
        }
        assert!(Addresses::default().plain(b"user", b"192.0.2.7").is_none());
    }
}
