//! The daemon: wires all parts together, runs them until a signal, and stops them in order.

mod descriptors;
mod greet;
mod housekeeping;

use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use metrics::Counter;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::admin::api::Api;
use crate::admin::health::MetricsService;
use crate::admin::status::{Configuration, Status};
use crate::clock::Clock;
use crate::doors::grpc::GrpcDoor;
use crate::doors::http::HttpDoor;
use crate::doors::limiter::{Limiter, LimiterSetup};
use crate::doors::resp::RespDoor;
use crate::doors::strict::StrictStore;
use crate::net::accept::{Acceptor, ConnectionHandler};
use crate::net::connection_slots::EvictingHandler;
use crate::net::drain::{Drain, DrainSwitch};
use crate::net::http1::Http1;
use crate::net::http2::Http2;
use crate::net::listen::{BindError, Listener};
use crate::net::unguessable;
use crate::reload::{ReloadHandle, Reloader, Variables};
use crate::sync::{Driver, DriverSetup, StartError, StoreSetupError};
use crate::telemetry::{
    ACCEPT_ERRORS, CONNECTIONS, CONNECTIONS_GAVE_WAY, CONNECTIONS_REFUSED, TASK_RESTARTS, Telemetry,
};
use greet::greet;
use housekeeping::Housekeeping;
use tidegate_config::{Address, Config};
use tidegate_core::engine::{Engine, FleetKey, Setup, StoreClient};

/// The most connections of the metrics listeners together, and of the admin listeners. A new one closes another.
const PAGES_CONNECTIONS_MAX: usize = 64;

/// The least time that the sync gets at the end to report pending cells.
const DRAIN_ROUNDS_MIN: Duration = Duration::from_millis(500);

/// What the admin API waits longer than the store's timeout, because its request may have to queue.
const ADMIN_MARGIN: Duration = Duration::from_millis(250);

/// Why the daemon cannot start or must end.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// An address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A file that it needs cannot be read.
    #[error("read {what} from {path}")]
    Read {
        /// The content that was expected.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A file that should hold a secret is empty.
    #[error("{what} in {path} is empty")]
    Empty {
        /// The secret that it should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The sync with the store cannot start.
    #[error(transparent)]
    Store(#[from] StartError),
    /// The sync thread has ended, so that the pod could not report to the fleet any more.
    #[error("the sync thread panicked")]
    RoundsEnded,
    /// The system refuses signals or threads.
    #[error("set up the process")]
    Process(#[from] std::io::Error),
}

impl DaemonError {
    /// Whether the configuration is the cause: a start with the same files would fail again.
    pub const fn is_of_configuration(&self) -> bool {
        match self {
            Self::Read { .. } | Self::Empty { .. } | Self::Store(StartError::Setup(_)) => true,
            Self::Bind(_)
            | Self::Store(StartError::Thread(_))
            | Self::RoundsEnded
            | Self::Process(_) => false,
        }
    }

    /// Whether a file that the configuration names does not exist. It may exist where the sidecar runs.
    pub fn is_of_absent_file(&self) -> bool {
        let source = match self {
            Self::Read { source, .. }
            | Self::Store(StartError::Setup(StoreSetupError::File { source, .. })) => source,
            Self::Empty { .. }
            | Self::Bind(_)
            | Self::Store(_)
            | Self::RoundsEnded
            | Self::Process(_) => return false,
        };
        source.kind() == ErrorKind::NotFound
    }
}

/// The errors that would end a start with this configuration whatever the network: files that cannot be read or have the
/// wrong content. It opens no connection.
pub fn faults(config: &Config) -> Vec<DaemonError> {
    let store = config.store.as_ref();
    let found = [
        resp_password(config).err(),
        admin_token(config).err(),
        fleet_key(config).err(),
        store.and_then(|store| Driver::check(store).err().map(DaemonError::Store)),
    ];
    found.into_iter().flatten().collect()
}

/// Runs until SIGTERM or SIGINT.
pub async fn run(path: PathBuf, config: Config, variables: Variables) -> Result<(), DaemonError> {
    // Handlers first, so that a signal during the start is not lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut daemon = Daemon::start(path, config, variables).await?;
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            () = sync_ended(&mut daemon.sync) => return Err(DaemonError::RoundsEnded),
            _ = hang_up.recv() => daemon.reloader.request(),
        }
    }
    daemon.stop().await;
    Ok(())
}

/// Waits for the sync to end by itself, which only a panic causes.
async fn sync_ended(sync: &mut Option<Driver>) {
    match sync {
        Some(sync) => sync.ended().await,
        None => std::future::pending().await,
    }
}

struct Daemon {
    _housekeeping: Housekeeping,
    status: Arc<Status>,
    reloader: ReloadHandle,
    drain: DrainSwitch,
    drain_max: Duration,
    doors: Vec<JoinHandle<()>>,
    permits: Arc<Semaphore>,
    connections_max: usize,
    sync: Option<Driver>,
}

/// Doors that are bound and served, with their addresses.
struct OpenDoors {
    at: Vec<(&'static str, Address)>,
    doors: Vec<JoinHandle<()>>,
}

/// What every door is built from.
struct DoorContext<'a> {
    engine: &'a Arc<Engine>,
    telemetry: &'a Arc<Telemetry>,
    status: &'a Arc<Status>,
    drain: &'a Drain,
    permits: &'a Arc<Semaphore>,
    store: StoreClient,
}

impl DoorContext<'_> {
    /// Binds every address, then serves them all: a daemon that cannot bind one of them does not start.
    async fn open_doors(&self, config: &Config) -> Result<OpenDoors, DaemonError> {
        let http = HttpDoor::new(self.limiter("http", config), &config.headers);
        let limiter = self.limiter("grpc", config);
        let grpc = GrpcDoor::new(limiter, &config.headers, self.drain.clone()).await;
        let resp = self.resp(config)?;
        let health = MetricsService {
            engine: Arc::clone(self.engine),
            telemetry: Arc::clone(self.telemetry),
            status: Arc::clone(self.status),
        };
        let api = self.api(config)?;
        let listen = &config.listen;
        let mut bound = BoundDoors {
            context: self,
            unix_mode: listen.unix_mode,
            at: Vec::new(),
            doors: Vec::new(),
        };
        // The doors for checks share one bound on connections. Metrics and admin have their own, with room for one more.
        let checks = || Arc::clone(self.permits);
        let pages = || Arc::new(Semaphore::new(PAGES_CONNECTIONS_MAX));
        let http = DoorSpec {
            name: "http",
            addresses: &listen.http,
            speaker: Http1(http),
        };
        bound.open(http, checks()).await?;
        let grpc = DoorSpec {
            name: "grpc",
            addresses: &listen.grpc,
            speaker: Http2(grpc),
        };
        bound.open(grpc, checks()).await?;
        let resp = DoorSpec {
            name: "resp",
            addresses: &listen.resp,
            speaker: resp,
        };
        bound.open(resp, checks()).await?;
        let metrics = DoorSpec {
            name: "metrics",
            addresses: &listen.metrics,
            speaker: EvictingHandler::new(Http1(health), self.gave_way("metrics")),
        };
        bound.open(metrics, pages()).await?;
        let admin = DoorSpec {
            name: "admin",
            addresses: &listen.admin,
            speaker: EvictingHandler::new(Http1(api), self.gave_way("admin")),
        };
        bound.open(admin, pages()).await?;
        Ok(OpenDoors {
            at: bound.at,
            doors: bound.doors.into_iter().map(tokio::spawn).collect(),
        })
    }

    fn limiter(&self, door: &str, config: &Config) -> Limiter {
        let timeout = config.store.as_ref().map(|store| store.timeout);
        let setup = LimiterSetup {
            engine: Arc::clone(self.engine),
            telemetry: Arc::clone(self.telemetry),
            bounds: config.bounds,
            strict: StrictStore {
                store: self.store.clone(),
                timeout: timeout.unwrap_or_default(),
            },
        };
        Limiter::new(door, setup)
    }

    fn resp(&self, config: &Config) -> Result<RespDoor, DaemonError> {
        let password = resp_password(config)?;
        let password = password.map(|password| Arc::from(password.as_bytes()));
        Ok(RespDoor::new(self.limiter("resp", config), password))
    }

    fn api(&self, config: &Config) -> Result<Api, DaemonError> {
        let timeout = config.store.as_ref().map(|store| store.timeout);
        Ok(Api {
            engine: Arc::clone(self.engine),
            status: Arc::clone(self.status),
            telemetry: Arc::clone(self.telemetry),
            store: self.store.clone(),
            store_timeout: timeout.unwrap_or_default() + ADMIN_MARGIN,
            token: admin_token(config)?,
            keys_max: config.bounds.keys_max,
            key_bytes_max: config.bounds.key_bytes_max,
        })
    }

    fn acceptor(&self, name: &str, permits: Arc<Semaphore>) -> Acceptor {
        Acceptor {
            permits,
            drain: self.drain.clone(),
            open: self.telemetry.gauge(CONNECTIONS, &[name]),
            refused: self.telemetry.counter(CONNECTIONS_REFUSED, &[name]),
            failed: self.telemetry.counter(ACCEPT_ERRORS, &[name]),
            restarted: self.telemetry.counter(TASK_RESTARTS, &["accept"]),
        }
    }

    fn gave_way(&self, door: &str) -> Counter {
        self.telemetry.counter(CONNECTIONS_GAVE_WAY, &[door])
    }
}

/// One door: its name, its addresses, and what speaks its protocol.
struct DoorSpec<'a, S> {
    name: &'static str,
    addresses: &'a [Address],
    speaker: S,
}

/// Doors that are bound and not served yet.
struct BoundDoors<'a> {
    context: &'a DoorContext<'a>,
    unix_mode: u32,
    at: Vec<(&'static str, Address)>,
    doors: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl BoundDoors<'_> {
    /// Binds the addresses of one door.
    async fn open(
        &mut self,
        spec: DoorSpec<'_, impl ConnectionHandler>,
        permits: Arc<Semaphore>,
    ) -> Result<(), BindError> {
        for address in spec.addresses {
            let listener = Listener::bind(address, self.unix_mode).await?;
            self.at.push((spec.name, listener.address()));
            let acceptor = self.context.acceptor(spec.name, Arc::clone(&permits));
            self.doors
                .push(Box::pin(acceptor.serve(listener, spec.speaker.clone())));
        }
        Ok(())
    }
}

impl Daemon {
    async fn start(
        path: PathBuf,
        config: Config,
        variables: Variables,
    ) -> Result<Self, DaemonError> {
        for warning in &config.warnings {
            warn!(%warning, "configuration");
        }
        let engine = Arc::new(Engine::new(setup(&config)?, config.rules.clone()));
        let telemetry = Arc::new(Telemetry::new(&engine.snapshot(), config.keys));
        telemetry.configured(config.hash);
        let status = Arc::new(Status::new(
            config.pod_id.clone(),
            u128::from(unguessable()) << 64 | u128::from(unguessable()),
            configuration(&config, &engine),
        ));
        let sync = match &config.store {
            Some(store) => {
                let setup = DriverSetup {
                    incarnation: status.incarnation(),
                    engine: Arc::clone(&engine),
                    telemetry: Arc::clone(&telemetry),
                };
                Some(Driver::start(&config, store, setup)?)
            }
            None => None,
        };
        let (switch, drain) = Drain::new();
        let connections_max = descriptors::connections_max(config.bounds.connections_max);
        let permits = Arc::new(Semaphore::new(connections_max));
        let context = DoorContext {
            engine: &engine,
            telemetry: &telemetry,
            status: &status,
            drain: &drain,
            permits: &permits,
            store: sync.as_ref().map_or(StoreClient::CLOSED, Driver::client),
        };
        let OpenDoors { at, doors } = context.open_doors(&config).await?;
        let drain_max = config.drain;
        greet(&config, &at);
        let (rules, pod) = (config.rules.all().len(), config.pod_id.clone());
        let reloader = Reloader {
            path,
            started_with: config,
            engine,
            telemetry: Arc::clone(&telemetry),
            status: Arc::clone(&status),
            variables,
        }
        .start()?;
        let housekeeping = Housekeeping::start(telemetry)?;
        status.set_ready(true);
        match &sync {
            Some(_) => info!(rules, pod, "ready, one limit with the fleet"),
            None => info!(rules, pod, "ready, limiting alone (no store)"),
        }
        Ok(Self {
            _housekeeping: housekeeping,
            status,
            reloader,
            drain: switch,
            drain_max,
            doors,
            permits,
            connections_max,
            sync,
        })
    }

    /// Stops in order: not ready, no new connections, open checks finish, pending cells are reported. It takes at most
    /// `drain`, and [`DRAIN_ROUNDS_MIN`] for the last reports.
    async fn stop(self) {
        self.status.set_ready(false);
        info!(within = ?self.drain_max, "stopping");
        self.drain.begin();
        // Each door removes its socket file when it ends; wait for that.
        for door in self.doors {
            let _ = door.await;
        }
        let connections = u32::try_from(self.connections_max).unwrap_or(u32::MAX);
        let begun = Clock::get().moment().now;
        let idle = self.permits.acquire_many(connections);
        let all_closed = tokio::time::timeout(self.drain_max, idle).await.is_ok();
        if let Some(sync) = self.sync {
            // Even if the connections used up the time, the pending cells get a moment.
            let left = self.drain_max.saturating_sub(Clock::get().since(begun));
            sync.stop(left.max(DRAIN_ROUNDS_MIN)).await;
        }
        match all_closed {
            true => info!("stopped"),
            false => warn!("stopped with connections still open"),
        }
        self.reloader.stop();
    }
}

/// The secret that this configuration's keys are hashed with.
pub fn fleet_key(config: &Config) -> Result<FleetKey, DaemonError> {
    Ok(match &config.store {
        Some(store) => match &store.hash_key_file {
            Some(path) => FleetKey::derived(&read("the hash key", path)?),
            None => FleetKey::derived(store.key_prefix.as_bytes()),
        },
        None => FleetKey::derived(b"tidegate"),
    })
}

fn setup(config: &Config) -> Result<Setup, DaemonError> {
    Ok(Setup {
        keys_max: config.bounds.keys_max,
        fleet: fleet_key(config)?,
        seeds: [unguessable(), unguessable()],
        reporting: config.store.is_some(),
    })
}

fn configuration(config: &Config, engine: &Engine) -> Configuration {
    Configuration {
        version: engine.snapshot().version(),
        hash: config.hash,
        applied_at: Some(Clock::get().calendar()),
        warnings: config.warnings.iter().map(ToString::to_string).collect(),
        faults: Vec::new(),
    }
}

fn resp_password(config: &Config) -> Result<Option<Arc<str>>, DaemonError> {
    let file = config.listen.resp_password_file.as_ref();
    secret("the RESP password", file)
}

fn admin_token(config: &Config) -> Result<Option<Arc<str>>, DaemonError> {
    secret("the admin token", config.listen.token_file.as_ref())
}

/// The secret in the file at `path`; `None` without a path.
fn secret(what: &'static str, path: Option<&PathBuf>) -> Result<Option<Arc<str>>, DaemonError> {
    let Some(path) = path else {
        return Ok(None);
    };
    let text = read(what, path)?;
    match String::from_utf8_lossy(&text).trim() {
        "" => Err(DaemonError::Empty {
            what,
            path: path.clone(),
        }),
        secret => Ok(Some(Arc::from(secret))),
    }
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, DaemonError> {
    std::fs::read(path).map_err(|source| DaemonError::Read {
        what,
        path: path.to_owned(),
        source,
    })
}
