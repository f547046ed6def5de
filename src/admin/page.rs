//! The page at `/` of the admin listener: one file that calls the admin API and nothing else.
//!
//! The page holds no figures and no secrets, so it needs no token; its API calls do. Its content security policy permits
//! only its own script, so that a key that looks like a script cannot run.

use hyper::StatusCode;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};

use crate::net::{HttpReply, refusal, reply, unguessable};

const PAGE: &str = include_str!("page.html");
const HTML: &str = "text/html; charset=utf-8";
/// The placeholder in the page for the nonce of its script and style.
const NONCE: &str = "NONCE";

/// The page.
pub(super) fn page() -> HttpReply {
    let nonce = format!("{:016x}{:016x}", unguessable(), unguessable());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let Ok(policy) = HeaderValue::try_from(policy) else {
        let what = "the page's policy is not a valid header";
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
