//! `/admin/v1/...`: what is in force and how it stands, for operators.
//!
//! On TCP a request must name this host by address or as `localhost`: a page that a browser was tricked into loading
//! from a name of its own is refused. With a token every request must carry it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::IpAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue, WWW_AUTHENTICATE};
use hyper::service::Service;
use hyper::{Method, Request, StatusCode};
use serde_json::{Value, json};

use super::status::Status;
use crate::clock::Clock;
use crate::engine::{Answer, Engine, Hit};
use crate::pure::rule::{Consistency, OnStoreError, Report};
use crate::pure::{Check, Limit, Rule};
use crate::wire::decode::{self, Malformed};
use crate::wire::{Reply, json, method_refusal, refusal};

/// The service of the admin listener.
#[derive(Clone)]
pub struct Api {
    /// What it tells of.
    pub engine: Arc<Engine>,
    /// How the daemon is.
    pub status: Arc<Status>,
    /// What a request must carry.
    pub token: Option<Arc<str>>,
    /// The most keys held.
    pub keys_max: usize,
    /// Bytes of a key.
    pub key_bytes_max: usize,
}

impl Service<Request<Incoming>> for Api {
    type Response = Reply;
    type Error = Infallible;
    type Future = Ready<Result<Reply, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        ready(Ok(self.answer(&request)))
    }
}

impl Api {
    fn answer(&self, request: &Request<Incoming>) -> Reply {
        if !names_this_host(request.headers().get(HOST)) {
            let what = "the Host must be localhost or an address";
            return refusal(StatusCode::FORBIDDEN, "HOST_REFUSED", what);
        }
        if !self.is_permitted(request.headers().get(AUTHORIZATION)) {
            let mut response = refusal(
                StatusCode::UNAUTHORIZED,
                "UNAUTHORIZED",
                "a bearer token is needed",
            );
            response
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return response;
        }
        let pages = ["/admin/v1/status", "/admin/v1/rules", "/admin/v1/usage"];
        match (request.uri().path(), request.method()) {
            ("/admin/v1/status", &Method::GET) => json(StatusCode::OK, &self.status()),
            ("/admin/v1/rules", &Method::GET) => json(StatusCode::OK, &self.rules()),
            ("/admin/v1/usage", &Method::GET) => {
                self.usage(request.uri().query().unwrap_or_default())
            }
            (path, _) if pages.contains(&path) => method_refusal("GET"),
            _ => refusal(
                StatusCode::NOT_FOUND,
                "NOT_FOUND",
                &format!("there are {}", pages.join(", ")),
            ),
        }
    }

    fn is_permitted(&self, given: Option<&HeaderValue>) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let given = given
            .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
            .unwrap_or_default();
        // All of it is compared, so that the time taken does not tell how much was right.
        let differing = given
            .iter()
            .zip(token.as_bytes())
            .fold(0, |differing, (a, b)| differing | (a ^ b));
        given.len() == token.len() && differing == 0
    }

    fn status(&self) -> Value {
        json!({
            "pod": self.status.pod_id(),
            "version": env!("CARGO_PKG_VERSION"),
            "ready": self.status.is_ready(),
            "configuration": self.status.configuration().json(),
            "rules": self.engine.snapshot().rules().all().len(),
            "keys": { "held": self.engine.keys_held(), "max": self.keys_max },
            "store": { "link": "none", "staleness": null },
            "pods": 1,
        })
    }

    fn rules(&self) -> Value {
        let snapshot = self.engine.snapshot();
        json!({ "version": snapshot.version(), "rules": snapshot.rules().all().iter().map(rule_json).collect::<Vec<_>>() })
    }

    fn usage(&self, query: &str) -> Reply {
        let asked = decode::from_query(query).and_then(|asked| {
            asked.check(self.key_bytes_max, |check| {
                let answer = self.engine.check(
                    &Check {
                        peek: true,
                        ..*check
                    },
                    Clock::get().moment(),
                );
                let hits: Vec<Value> = answer
                    .hits()
                    .iter()
                    .map(|hit| usage_json(&answer, hit))
                    .collect();
                json!({ "domain": check.domain, "usage": hits })
            })
        });
        match asked {
            Ok(usage) => json(StatusCode::OK, &usage),
            Err(Malformed(what)) => refusal(StatusCode::BAD_REQUEST, "INVALID_REQUEST", &what),
        }
    }
}

fn usage_json(answer: &Answer, hit: &Hit) -> Value {
    let most = answer.limit(hit).map(
        |limit| match answer.rule(hit).spec.algorithm.is_windowed() {
            true => limit.requests(),
            false => limit.burst().get(),
        },
    );
    let remaining = hit.standing.remaining.get();
    json!({
        "rule": answer.rule(hit).label,
        "key": format!("{:032x}", hit.name),
        "limit": answer.limit(hit).map(limit_json),
        "used": most.map(|most| most.saturating_sub(remaining)),
        "remaining": remaining,
        "reset_after": hit.standing.reset_after.to_string(),
        "retry_after": hit.standing.retry_after.map(|wait| wait.to_string()),
    })
}

fn limit_json(limit: &Limit) -> Value {
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
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
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
        ] {
            assert!(!names(host), "{host}");
        }
        assert!(!names_this_host(None));
    }
}
