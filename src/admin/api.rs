//! `/admin/v1/...`: the state and the rules of this pod, for operators.
//!
//! On TCP, the Host header must be an address or `localhost`. This refuses requests of a web page whose own host name was
//! made to resolve to this pod. If a token is configured, every request must send it, except the one for the page at `/`,
//! which then asks the user for it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue, WWW_AUTHENTICATE};
use hyper::service::Service;
use hyper::{HeaderMap, Method, Request, StatusCode};
use serde_json::{Value, json};

use super::page::page;
use super::status::Status;
use super::store;
use crate::clock::Clock;
use crate::net::{HttpReply, is_secret, json, method_refusal, refusal};
use crate::telemetry::Telemetry;
use tidegate_core::engine::{Engine, StoreClient};
use tidegate_core::pure::rule::{Consistency, OnStoreError, Report};
use tidegate_core::pure::{Limit, Rule};

/// The scheme before a token.
const BEARER: &[u8] = b"Bearer ";

/// The paths, each with its method.
const PAGES: [(&str, &str); 6] = [
    ("/", "GET"),
    ("/admin/v1/status", "GET"),
    ("/admin/v1/rules", "GET"),
    ("/admin/v1/top", "GET"),
    ("/admin/v1/usage", "GET"),
    ("/admin/v1/keys", "DELETE"),
];

/// The service of the admin listener.
#[derive(Clone)]
pub struct Api {
    /// The engine whose state it shows.
    pub engine: Arc<Engine>,
    /// The state of the daemon.
    pub status: Arc<Status>,
    /// The metrics, and the names of the store's shards.
    pub telemetry: Arc<Telemetry>,
    /// The client for questions to the store.
    pub store: StoreClient,
    /// The longest wait for the store's answer.
    pub store_timeout: Duration,
    /// The bearer token that a request must send.
    pub token: Option<Arc<str>>,
    /// The most keys of each table.
    pub keys_max: usize,
    /// The most bytes of a key.
    pub key_bytes_max: usize,
}

impl Service<Request<Incoming>> for Api {
    type Response = HttpReply;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<HttpReply, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let api = self.clone();
        Box::pin(async move { Ok(api.answer(request).await) })
    }
}

impl Api {
    async fn answer(&self, request: Request<Incoming>) -> HttpReply {
        let (path, method) = (request.uri().path(), request.method());
        if let Some(refusal) = self.refused(request.headers(), path) {
            return refusal;
        }
        let query = request.uri().query().unwrap_or_default();
        match (path, method) {
            ("/", &Method::GET) => page(),
            ("/admin/v1/status", &Method::GET) => json(StatusCode::OK, &self.status()),
            ("/admin/v1/rules", &Method::GET) => json(StatusCode::OK, &self.rules()),
            ("/admin/v1/top", &Method::GET) => self.top(query),
            ("/admin/v1/usage", &Method::GET) => self.usage(query).await,
            ("/admin/v1/keys", &Method::DELETE) => self.reset(query).await,
            _ => match PAGES.iter().find(|(page, _)| *page == path) {
                Some((_, allowed)) => method_refusal(allowed),
                None => {
                    let pages = PAGES.map(|(page, method)| format!("{method} {page}"));
                    let what = format!("there are {}", pages.join(", "));
                    refusal(StatusCode::NOT_FOUND, "NOT_FOUND", &what)
                }
            },
        }
    }

    /// The refusal, if these headers do not permit the request.
    fn refused(&self, headers: &HeaderMap, path: &str) -> Option<HttpReply> {
        if !names_this_host(headers.get(HOST)) {
            let what = "the Host must be localhost or an address";
            return Some(refusal(StatusCode::FORBIDDEN, "HOST_REFUSED", what));
        }
        if path != "/" && !self.is_permitted(headers.get(AUTHORIZATION)) {
            let mut response = refusal(
                StatusCode::UNAUTHORIZED,
                "UNAUTHORIZED",
                "a bearer token is needed",
            );
            response
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return Some(response);
        }
        None
    }

    fn is_permitted(&self, given: Option<&HeaderValue>) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let given = given
            .and_then(|value| value.as_bytes().split_at_checked(BEARER.len()))
            // In HTTP the scheme is not case-sensitive.
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(BEARER))
            .map_or(&b""[..], |(_, given)| given);
        is_secret(given, token.as_bytes())
    }

    fn status(&self) -> Value {
        let (figures, now) = (self.engine.figures(), Clock::get().moment().now);
        json!({
            "pod": self.status.pod_id(),
            "incarnation": format!("{:032x}", self.status.incarnation()),
            "version": env!("CARGO_PKG_VERSION"),
            "ready": self.status.is_ready(),
            "configuration": self.status.configuration().json(),
            "rules": self.engine.snapshot().rules().all().len(),
            "keys": {
                "held": self.engine.keys_held(),
                "max": self.keys_max,
                "tables": self.engine.keys_by_table().into_iter().collect::<BTreeMap<_, _>>(),
                "tracked": figures.keys,
            },
            "store": store::json(&figures, &self.telemetry, now),
            "pods": figures.pods.max(1),
            "books": store::books(&figures.books),
        })
    }

    fn rules(&self) -> Value {
        let snapshot = self.engine.snapshot();
        json!({ "version": snapshot.version(), "rules": snapshot.rules().all().iter().map(rule_json).collect::<Vec<_>>() })
    }
}

pub(super) fn limit_json(limit: &Limit) -> Value {
    json!({
        "requests_per_unit": limit.requests(),
        "unit": limit.unit().name(),
        "unit_multiplier": limit.unit_multiplier(),
        "burst": limit.burst().get(),
    })
}

fn rule_json(rule: &Rule) -> Value {
    let spec = &rule.spec;
    let descriptors: Vec<Value> = rule
        .steps()
        .iter()
        .map(|step| json!({ "key": step.key, "value": step.value }))
        .collect();
    json!({
        "rule": rule.label,
        "name": spec.name,
        "descriptors": descriptors,
        "limit": spec.limit.as_ref().map(limit_json),
        "unlimited": spec.limit.is_none(),
        "algorithm": spec.algorithm.name(),
        "shadow_mode": spec.shadow,
        "quota_mode": spec.quota,
        "count_rejected": spec.count_rejected,
        "replaces": spec.replaces,
        "consistency": match spec.consistency {
            Consistency::Local => "local",
            Consistency::Hybrid => "hybrid",
            Consistency::Strict => "strict",
        },
        "on_store_error": match spec.on_store_error {
            OnStoreError::LocalShare => "local_share",
            OnStoreError::LocalFull => "local_full",
            OnStoreError::Allow => "allow",
            OnStoreError::Deny => "deny",
        },
        "report": match spec.report {
            Report::Contested => "contested",
            Report::Always => "always",
        },
    })
}

/// Whether the Host is `localhost` or an address, with or without a port. Over a Unix socket curl sends `localhost`.
fn names_this_host(host: Option<&HeaderValue>) -> bool {
    let Some(host) = host.and_then(|host| host.to_str().ok()) else {
        return false;
    };
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap_or_default(),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
    let port_is_one = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    port_is_one && (name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_localhost_name_this_host() {
        let names = |host: &'static str| names_this_host(Some(&HeaderValue::from_static(host)));
        for host in [
            "localhost",
            "LOCALHOST:7601",
            "127.0.0.1",
            "10.1.2.3:7601",
            "[::1]",
            "[::1]:7601",
        ] {
            assert!(names(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:7601",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "[evil",
            "[::1",
            "[::1].evil.example",
            "[::1]7601",
            "localhost:x",
        ] {
            assert!(!names(host), "{host}");
        }
        assert!(!names_this_host(None));
    }
}
