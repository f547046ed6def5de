//! The page at the admin listener's `/`: one file that asks the admin API, and nobody else.
//!
//! It holds no figures and no secrets, so it is given without a token; what it asks for then needs one. The policy it is
//! sent with lets nothing run but its own script, whatever the keys are called that it shows.

use hyper::StatusCode;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};

use crate::net::{HttpReply, refusal, reply, unguessable};

const PAGE: &str = include_str!("page.html");
const HTML: &str = "text/html; charset=utf-8";
/// Stands in the page where the number goes that its own script and style are known by.
const NONCE: &str = "NONCE";

/// The page.
pub(super) fn page() -> HttpReply {
    let nonce = format!("{:016x}{:016x}", unguessable(), unguessable());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let Ok(policy) = HeaderValue::try_from(policy) else {
        let what = "the page's policy is no header";
        return refusal(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", what);
    };
    let mut response = reply(StatusCode::OK, HTML, PAGE.replace(NONCE, &nonce));
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
