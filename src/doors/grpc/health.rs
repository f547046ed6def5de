//! `grpc.health.v1.Health`: serving from the first connection until the drain begins.

use tonic::codegen::BoxStream;
use tonic::codegen::tokio_stream::{self, StreamExt};
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, HealthService};

use super::drained_stream::until_drain;
use crate::net::drain::Drain;
use crate::protocol::envoy::proto::health::v1::health_check_response::ServingStatus::ServiceUnknown;
use crate::protocol::envoy::proto::health::v1::health_server::{Health, HealthServer};
use crate::protocol::envoy::proto::health::v1::{HealthCheckRequest, HealthCheckResponse};
use crate::protocol::envoy::proto::rate_limit_service_server::SERVICE_NAME;

/// The whole server, the rate limit service, and what envoyproxy/ratelimit calls it.
const SERVICES: [&str; 3] = ["", SERVICE_NAME, "ratelimit"];

/// tonic's health service, with two differences for watchers: an unknown service may be watched, and every watch ends
/// with the drain.
#[derive(Debug)]
pub struct HealthUntilDrain {
    service: HealthService,
    /// Begins once the watchers have been told of the daemon's drain.
    watches_end: Drain,
}

/// The service, which reports SERVING until `drain` begins.
pub async fn server(mut drain: Drain) -> HealthServer<HealthUntilDrain> {
    let reporter = HealthReporter::new();
    set_status(&reporter, ServingStatus::Serving).await;
    let service = HealthService::from_health_reporter(reporter.clone());
    let (switch, watches_end) = Drain::new();
    tokio::spawn(async move {
        drain.begins().await;
        set_status(&reporter, ServingStatus::NotServing).await;
        switch.begin();
    });
    HealthServer::new(HealthUntilDrain {
        service,
        watches_end,
    })
}

async fn set_status(reporter: &HealthReporter, status: ServingStatus) {
    for service in SERVICES {
        reporter.set_service_status(service, status).await;
    }
}

#[tonic::async_trait]
impl Health for HealthUntilDrain {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.service.check(request).await
    }

    type WatchStream = BoxStream<HealthCheckResponse>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let statuses: Self::WatchStream = match self.service.watch(request).await {
            Ok(statuses) => Box::pin(statuses.into_inner()),
            // The protocol wants the call to go on: the service might appear.
            Err(_) => {
                let status = ServiceUnknown.into();
                let unknown = tokio_stream::once(Ok(HealthCheckResponse { status }));
                Box::pin(unknown.chain(tokio_stream::pending()))
            }
        };
        Ok(Response::new(until_drain(
            statuses,
            self.watches_end.clone(),
        )))
    }
}
