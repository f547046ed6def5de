//! Usage and reset of the keys that a descriptor matches, in this pod and in the fleet.
//!
//! This pod's own state is read or reset at once. Only the store's answer is waited for, at most [`Api::store_timeout`].

use std::pin::pin;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::api::{Api, limit_json};
use crate::clock::Clock;
use crate::net::{HttpReply, json, refusal};
use crate::protocol::Refusal;
use crate::protocol::native::decode;
use tidegate_core::engine::store_request::{Responder, StoreFailure, StoreRequest};
use tidegate_core::engine::{Answer, Hit};
use tidegate_core::pure::sync::{StoreKey, StoreState, Terms};
use tidegate_core::pure::{Cells, Check, Moment, Span};

const FLEET_ERROR: &str = "the store did not answer";
const RESET_UNCONFIRMED: &str =
    "the store did not confirm: this pod has reset the keys, the fleet may not have; try again";

/// Receives the answer to a store request. If the sender is dropped, the request failed.
type PendingAnswer<T> = oneshot::Receiver<Result<T, StoreFailure>>;

/// One key that the descriptor matches.
struct KeyRow {
    json: Value,
    store: Option<(StoreKey, Terms)>,
}

impl Api {
    /// `GET /admin/v1/usage`.
    pub(super) async fn usage(&self, query: &str) -> HttpReply {
        let found = self.look(query, |answer, hit, moment| KeyRow {
            json: usage_json(answer, hit),
            store: self.engine.store_key(answer, hit, moment),
        });
        let (domain, mut rows) = match found {
            Ok(found) => found,
            Err(refused) => return refused_reply(&refused),
        };
        let store_request = |(key, terms)| {
            let (report, answered) = answer_channel();
            self.store.submit(StoreRequest::Read(key, terms, report));
            (terms, answered)
        };
        let stored: Vec<_> = rows
            .iter()
            .map(|row| row.store.map(store_request))
            .collect();
        let (terms, waiting): (Vec<_>, Vec<_>) = stored.into_iter().map(Option::unzip).unzip();
        let states = self.wait_for(waiting).await;
        for ((row, terms), store_state) in rows.iter_mut().zip(terms).zip(states) {
            match (terms, store_state) {
                (Some(terms), Some(Ok(store_state))) => {
                    row.json["fleet"] = fleet_json(terms, store_state)
                }
                (Some(_), _) => row.json["fleet_error"] = FLEET_ERROR.into(),
                (None, _) => {}
            }
        }
        let usage: Vec<Value> = rows.into_iter().map(|row| row.json).collect();
        json(StatusCode::OK, &json!({ "domain": domain, "usage": usage }))
    }

    /// `DELETE /admin/v1/keys`.
    pub(super) async fn reset(&self, query: &str) -> HttpReply {
        let found = self.look(query, |answer, hit, moment| {
            answer.limit(hit)?;
            self.engine.forget_hit(answer, hit, moment);
            Some(KeyRow {
                json: json!({ "rule": answer.rule(hit).label, "key": name(hit) }),
                store: self.engine.store_key(answer, hit, moment),
            })
        });
        let (domain, rows) = match found {
            Ok((domain, rows)) => (domain, rows.into_iter().flatten().collect::<Vec<_>>()),
            Err(refused) => return refused_reply(&refused),
        };
        if rows.is_empty() {
            let what = "no rule with a limit matches: nothing is counted for this descriptor";
            return refusal(StatusCode::NOT_FOUND, "NO_RULE", what);
        }
        let store_request = |(key, _)| {
            let (report, answered) = answer_channel();
            self.store.submit(StoreRequest::Reset(key, report));
            answered
        };
        let waiting = rows
            .iter()
            .map(|row| row.store.map(store_request))
            .collect();
        let outcomes = self.wait_for(waiting).await;
        let failed = outcomes
            .iter()
            .any(|outcome| matches!(outcome, Some(Err(StoreFailure))));
        let everywhere = outcomes
            .iter()
            .all(|outcome| matches!(outcome, Some(Ok(()))));
        let scope = |fleet: bool| if fleet { "fleet" } else { "pod" };
        let row = |(mut row, outcome): (KeyRow, Option<Result<(), StoreFailure>>)| {
            row.json["scope"] = scope(outcome == Some(Ok(()))).into();
            row.json
        };
        let reset: Vec<Value> = rows.into_iter().zip(outcomes).map(row).collect();
        let mut body = json!({ "domain": domain, "scope": scope(everywhere), "reset": reset });
        if failed {
            body["error"] = json!({ "code": "STORE_UNREACHABLE", "message": RESET_UNCONFIRMED });
            return json(StatusCode::SERVICE_UNAVAILABLE, &body);
        }
        json(StatusCode::OK, &body)
    }

    /// The domain of a query, and `of` of every hit of its descriptor. No cell is used.
    fn look<T>(
        &self,
        query: &str,
        of: impl Fn(&Answer, &Hit, Moment) -> T,
    ) -> Result<(String, Vec<T>), Refusal> {
        decode::from_query(query)?.with_check(self.key_bytes_max, |check| {
            let moment = Clock::get().moment();
            let peek = Check {
                peek: true,
                ..*check
            };
            let answer = self.engine.check(&peek, moment);
            let hits = answer.hits().iter();
            let found = hits.map(|hit| of(&answer, hit, moment)).collect();
            (check.domain.to_owned(), found)
        })
    }

    /// Waits for all requests together. A request without an answer in time has failed.
    async fn wait_for<T>(
        &self,
        waiting: Vec<Option<PendingAnswer<T>>>,
    ) -> Vec<Option<Result<T, StoreFailure>>> {
        let mut over = pin!(tokio::time::sleep(self.store_timeout));
        let mut ends = Vec::with_capacity(waiting.len());
        for answered in waiting {
            let Some(answered) = answered else {
                ends.push(None);
                continue;
            };
            ends.push(Some(tokio::select! {
                biased;
                end = answered => end.unwrap_or(Err(StoreFailure)),
                () = &mut over => Err(StoreFailure),
            }));
        }
        ends
    }
}

/// A responder for a store request, and the receiver of its answer.
fn answer_channel<T: Send + 'static>() -> (Responder<T>, PendingAnswer<T>) {
    let (sender, receiver) = oneshot::channel();
    (Box::new(move |end| sender.send(end).is_ok()), receiver)
}

fn refused_reply(refused: &Refusal) -> HttpReply {
    let what = refused.to_string();
    refusal(StatusCode::BAD_REQUEST, "INVALID_REQUEST", &what)
}

fn name(hit: &Hit) -> String {
    format!("{:032x}", hit.name)
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
        "key": name(hit),
        "limit": answer.limit(hit).map(limit_json),
        "used": most.map(|most| most.saturating_sub(remaining)),
        "remaining": remaining,
        "reset_after": hit.standing.reset_after.to_string(),
        "retry_after": hit.standing.retry_after.map(|wait| wait.to_string()),
        "fleet": null,
    })
}

/// The usage of a key in the store. Cells that pods have not reported yet are not in it.
fn fleet_json(terms: Terms, store_state: StoreState) -> Value {
    let (used, remaining, reset_after) = match (terms, store_state) {
        (
            Terms::Level {
                interval, capacity, ..
            },
            StoreState::Level { level, .. },
        ) => {
            let begun = interval.less(Span::nanos(1));
            let used = level.plus(begun).whole(interval);
            (used, capacity.less(level).whole(interval), level)
        }
        (
            Terms::Window {
                window,
                requests,
                sliding,
                ..
            },
            StoreState::Window {
                current,
                previous,
                left,
            },
        ) => {
            let previous = if sliding { previous } else { Cells::ZERO };
            let used = current.plus(in_sight(previous, left, window));
            let reset_after = match (current, previous) {
                (Cells::ZERO, Cells::ZERO) => Span::ZERO,
                (Cells::ZERO, _) => left,
                _ if sliding => left.plus(window),
                _ => left,
            };
            (used, requests.less(used), reset_after)
        }
        // The store answers in the form of the question.
        (Terms::Level { .. }, StoreState::Window { .. })
        | (Terms::Window { .. }, StoreState::Level { .. }) => {
            return Value::Null;
        }
    };
    json!({ "used": used.get(), "remaining": remaining.get(), "reset_after": reset_after.to_string() })
}

/// The part of the previous window's cells that still counts, rounded down as for checks.
fn in_sight(previous: Cells, left: Span, window: Span) -> Cells {
    let weight = u128::from(previous.get()).saturating_mul(u128::from(left.get()));
    let whole = weight.checked_div(u128::from(window.get()));
    Cells::new(u64::try_from(whole.unwrap_or(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use http_body_util::BodyExt;

    use super::super::status::{Configuration, Status};
    use super::*;
    use crate::telemetry::Telemetry;
    use tidegate_core::engine::{Engine, FleetKey, Setup, StoreClient};
    use tidegate_core::pure::rule::{Consistency, DomainSpec, Matching, NodeSpec, RuleSpec};
    use tidegate_core::pure::{KeyDisplay, Limit, Rules, Unit};

    const QUERY: &str = "domain=api&client=x&path=y";

    fn node(key: &str, rule: RuleSpec, children: Vec<NodeSpec>) -> NodeSpec {
        NodeSpec {
            key: key.to_owned(),
            value: None,
            share_threshold: false,
            rule: Some(rule),
            children,
        }
    }

    /// Ten an hour for each client, reported to the store, and ten for each of its paths, local to this pod.
    fn api(store: StoreClient) -> Api {
        let hourly = || RuleSpec::new(Limit::new(10, Unit::Hour, 1, None).unwrap());
        let own = RuleSpec {
            consistency: Consistency::Local,
            ..hourly()
        };
        let domain = DomainSpec {
            name: "api".to_owned(),
            matching: Matching::Path,
            nodes: vec![node("client", hourly(), vec![node("path", own, vec![])])],
        };
        let setup = Setup {
            keys_max: 64,
            fleet: FleetKey::derived(b"test"),
            seeds: [1, 2],
            reporting: true,
        };
        let rules = Rules::compile(vec![domain], Default::default());
        let engine = Arc::new(Engine::new(setup, rules));
        Api {
            status: Arc::new(Status::new("pod".to_owned(), 1, Configuration::default())),
            telemetry: Arc::new(Telemetry::new(&engine.snapshot(), KeyDisplay::Plain)),
            engine,
            store,
            store_timeout: Duration::from_millis(20),
            token: None,
            keys_max: 64,
            key_bytes_max: 64,
        }
    }

    /// A store in which every key is at `level`.
    fn store(level: Span) -> StoreClient {
        let store_state = StoreState::Level {
            level,
            demand: 0,
            capped: false,
        };
        StoreClient::new(move |store_request| {
            let waited = match store_request {
                StoreRequest::Read(_, _, report) => report(Ok(store_state)),
                StoreRequest::Reset(_, report) => report(Ok(())),
                StoreRequest::Take(..) | StoreRequest::GiveBack(_) => false,
            };
            assert!(waited);
            Ok(())
        })
    }

    /// A store that takes requests and never answers.
    fn silent() -> StoreClient {
        let kept = Mutex::new(Vec::new());
        StoreClient::new(move |store_request| {
            kept.lock().unwrap().push(store_request);
            Ok(())
        })
    }

    async fn body(reply: HttpReply) -> (u16, Value) {
        let status = reply.status().as_u16();
        let bytes = reply.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap())
    }

    #[tokio::test]
    async fn usage_is_fleet_wide_where_the_rule_reports_to_the_store() {
        // Two cells and a bit of a third.
        let level = Span::seconds(721);
        let (status, page) = body(api(store(level)).usage(QUERY).await).await;
        assert_eq!(status, 200);
        let expected = json!({ "used": 3, "remaining": 7, "reset_after": "721s" });
        assert_eq!(page["usage"][0]["fleet"], expected);
        assert_eq!(page["usage"][0]["used"], 0, "this pod has used none");
        assert_eq!(page["usage"][0].get("fleet_error"), None);
        assert_eq!(page["usage"][1]["fleet"], Value::Null);
        assert_eq!(
            page["usage"][1].get("fleet_error"),
            None,
            "the store was not asked"
        );
    }

    #[tokio::test]
    async fn a_store_that_does_not_answer_leaves_what_this_pod_knows() {
        for store in [StoreClient::CLOSED, StoreClient::new(Err), silent()] {
            let (status, page) = body(api(store).usage(QUERY).await).await;
            assert_eq!(status, 200);
            assert_eq!(page["usage"][0]["remaining"], 10);
            assert_eq!(page["usage"][0]["fleet"], Value::Null);
            assert_eq!(page["usage"][0]["fleet_error"], FLEET_ERROR);
        }
    }

    #[tokio::test]
    async fn a_reset_is_fleet_wide_where_the_store_confirmed() {
        let api = api(store(Span::ZERO));
        let (status, page) = body(api.reset("domain=api&client=x").await).await;
        assert_eq!((status, &page["scope"]), (200, &json!("fleet")));
        let (status, page) = body(api.reset(QUERY).await).await;
        assert_eq!((status, &page["scope"]), (200, &json!("pod")));
        let scopes = [&page["reset"][0]["scope"], &page["reset"][1]["scope"]];
        assert_eq!(scopes, ["fleet", "pod"]);
    }

    #[tokio::test]
    async fn a_reset_that_the_store_does_not_confirm_says_what_was_done() {
        for store in [StoreClient::CLOSED, StoreClient::new(Err), silent()] {
            let api = api(store);
            let use_up = || {
                let asked = decode::from_query("domain=api&client=x&hits_addend=10").unwrap();
                let moment = Clock::get().moment();
                let answer = asked.with_check(64, |check| self::allowed(&api, check, moment));
                answer.unwrap()
            };
            assert!(use_up() && !use_up());
            let (status, page) = body(api.reset("domain=api&client=x").await).await;
            assert_eq!((status, &page["scope"]), (503, &json!("pod")));
            assert_eq!(page["error"]["code"], "STORE_UNREACHABLE");
            assert_eq!(page["error"]["message"], RESET_UNCONFIRMED);
            assert_eq!(page["reset"].as_array().unwrap().len(), 1);
            assert!(use_up(), "this pod has forgotten it");
        }
    }

    fn allowed(api: &Api, check: &Check<'_>, moment: Moment) -> bool {
        api.engine.check(check, moment).allowed()
    }

    #[test]
    fn windows_are_shown_as_checks_count_them() {
        let limit = Limit::new(10, Unit::Minute, 1, None).unwrap();
        let store_state = |current, previous| StoreState::Window {
            current: Cells::new(current),
            previous: Cells::new(previous),
            left: Span::seconds(15),
        };
        for (terms, store_state, used, remaining, reset_after) in [
            (Terms::window(&limit), store_state(0, 9), 0, 10, "0s"),
            (Terms::window(&limit), store_state(12, 9), 12, 0, "15s"),
            (Terms::sliding(&limit), store_state(0, 0), 0, 10, "0s"),
            (Terms::sliding(&limit), store_state(0, 9), 2, 8, "15s"),
            (Terms::sliding(&limit), store_state(3, 9), 5, 5, "75s"),
        ] {
            let expected =
                json!({ "used": used, "remaining": remaining, "reset_after": reset_after });
            assert_eq!(fleet_json(terms, store_state), expected, "{store_state:?}");
        }
    }
}
