//! `RateLimitService`: a decoded `RateLimitRequest` in, a `RateLimitResponse` out.

use tonic::{Request, Response, Status};

use crate::doors::limiter::{CheckProgress, CheckRequest, DecidedCheck, Limiter};
use crate::protocol::Refusal;
use crate::protocol::envoy::decode::from_protobuf;
use crate::protocol::envoy::encode;
use crate::protocol::envoy::proto::rate_limit_service_server::RateLimitService;
use crate::protocol::envoy::proto::{RateLimitRequest, RateLimitResponse};
use crate::protocol::headers::HeaderStyles;
use tidegate_config::Bounds;
use tidegate_core::engine::Question;
use tidegate_core::pure::Check;

/// Answers checks.
#[derive(Debug)]
pub struct CheckService {
    /// Decides.
    pub limiter: Limiter,
    /// Which headers Envoy is to add.
    pub styles: HeaderStyles,
}

impl CheckRequest for RateLimitRequest {
    type Context<'a> = &'a Check<'a>;

    #[inline]
    fn with_question<R>(
        &self,
        bounds: Bounds,
        then: impl for<'a> FnOnce(Question<'a>, &'a Check<'a>) -> R,
    ) -> Result<R, Refusal> {
        let raw = from_protobuf(self)?;
        raw.with_check(bounds.key_bytes_max, |check| {
            then(Question::Check(check), check)
        })
    }
}

#[tonic::async_trait]
impl RateLimitService for CheckService {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.get_ref();
        let encode = |decided: DecidedCheck<'_, &Check<'_>>| {
            encode::response(decided.context, decided.answer, self.styles, decided.moment)
        };
        let decided = match self.limiter.decide(request, encode) {
            CheckProgress::Decided(response) => Ok(response),
            CheckProgress::Refused(refusal) => Err(refusal),
            CheckProgress::NeedsStore(pending) => {
                let limiter = &self.limiter;
                limiter.decide_with_store(request, pending, encode).await
            }
        };
        let response = match decided {
            Ok(response) => response,
            Err(refusal) => self.refuse(request, refusal)?,
        };
        Ok(Response::new(response))
    }
}

impl CheckService {
    /// The response to a request that is no valid check: over a bound it is denied, otherwise it is an error.
    fn refuse(
        &self,
        request: &RateLimitRequest,
        refusal: Refusal,
    ) -> Result<RateLimitResponse, Status> {
        self.limiter.count_malformed();
        match refusal {
            Refusal::OverBound(why) => Ok(encode::over_bound(&why, request.descriptors.len())),
            Refusal::Malformed(what) => Err(Status::invalid_argument(what)),
        }
    }
}
