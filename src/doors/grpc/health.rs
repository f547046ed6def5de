//! `grpc.health.v1.Health`: serving from the first connection until the drain begins.

use tonic::codegen::BoxStream;
use tonic::codegen::tokio_stream::{self, StreamExt};
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, HealthService};

use super::until_drain;
use crate::net::drain::Drain;
use crate::protocol::envoy::proto::health::v1::health_check_response::ServingStatus::ServiceUnknown;
use crate::protocol::envoy::proto::health::v1::health_server::{Health, HealthServer};
use crate::protocol::envoy::proto::health::v1::{HealthCheckRequest, HealthCheckResponse};
use crate::protocol::envoy::proto::rate_limit_service_server::SERVICE_NAME;

/// The whole server, the rate limit service, and what envoyproxy/ratelimit calls it.
const SERVICES: [&str; 3] = ["", SERVICE_NAME, "ratelimit"];

/// What tonic tells, but for watchers: of a service that is not, and until the end.
#[derive(Debug)]
pub struct Told {
    service: HealthService,
    /// Begins once watchers could hear of the drain.
    ends: Drain,
}

/// The service, which is well until `drain` begins.
pub async fn server(mut drain: Drain) -> HealthServer<Told> {
    let reporter = HealthReporter::new();
    tell(&reporter, ServingStatus::Serving).await;
    let service = HealthService::from_health_reporter(reporter.clone());
    let (switch, ends) = Drain::new();
    tokio::spawn(async move {
        drain.begins().await;
        tell(&reporter, ServingStatus::NotServing).await;
        switch.begin();
    });
    HealthServer::new(Told { service, ends })
}

async fn tell(reporter: &HealthReporter, status: ServingStatus) {
    for service in SERVICES {
        reporter.set_service_status(service, status).await;
    }
}

#[tonic::async_trait]
impl Health for Told {
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
        let told: Self::WatchStream = match self.service.watch(request).await {
            Ok(told) => Box::pin(told.into_inner()),
            // It might come to be: the protocol has it that the call goes on.
            Err(_) => {
                let status = ServiceUnknown.into();
                let unknown = tokio_stream::once(Ok(HealthCheckResponse { status }));
                Box::pin(unknown.chain(tokio_stream::pending()))
            }
        };
        Ok(Response::new(until_drain(told, self.ends.clone())))
    }
}
