//! A task that ends by a fault of ours is begun again, and counted.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use metrics::{Counter, Gauge};
use tidegate::admin::status::{Configuration, Status};
use tidegate::net::accept::{Acceptor, ConnectionHandler};
use tidegate::net::drain::Drain;
use tidegate::net::listen::Listener;
use tidegate::reload::Reloader;
use tidegate::telemetry::{TASK_RESTARTS, Telemetry};
use tidegate_core::engine::{Engine, FleetKey, Setup};
use tidegate_testing::{Folder, MetricsPage, SOON, until};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;

fn engine(config: &tidegate_config::Config) -> Arc<Engine> {
    let setup = Setup {
        keys_max: 1_000,
        fleet: FleetKey::derived(b"tests"),
        seeds: [1, 2],
        reporting: false,
    };
    Arc::new(Engine::new(setup, config.rules.clone()))
}

fn variable(name: &str) -> Option<String> {
    (name == "ID").then(|| "pod".to_owned())
}

fn restarts(telemetry: &Telemetry, engine: &Engine, task: &str) -> f64 {
    let page = telemetry.render(engine, tidegate_core::pure::Nanos::new(1));
    MetricsPage::parse(&page).of(TASK_RESTARTS.name, &[("task", task)])
}

#[test]
fn reloads_go_on_after_a_panic() {
    let folder = Folder::new();
    let path = folder.path("sidecar.yaml");
    let write = |limit: u64| {
        let rules = format!("descriptors: [{{ key: a, rate_limit: {limit}/day }}]");
        folder.replace(
            "sidecar.yaml",
            &format!("pod: {{ id: \"${{ID}}\" }}\nrules: [{{ domain: d, {rules} }}]\n"),
        );
    };
    write(10);
    let config = tidegate_config::load(&path, &variable).unwrap();
    let engine = engine(&config);
    let telemetry = Arc::new(Telemetry::new(&engine.snapshot(), config.keys));
    let status = Arc::new(Status::new("pod".to_owned(), 1, Configuration::default()));
    let left = AtomicU32::new(2);
    let reloader = Reloader {
        path,
        started_with: config,
        engine: Arc::clone(&engine),
        telemetry: Arc::clone(&telemetry),
        status: Arc::clone(&status),
        // Stands for any fault while the configuration is read.
        variables: Box::new(move |name| {
            let once = |left: u32| left.checked_sub(1);
            let faulty = left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, once)
                .is_ok();
            assert!(!faulty, "a fault for the test");
            variable(name)
        }),
    };
    let reloads = reloader.start().unwrap();
    write(20);
    until("the second fault", SOON, || {
        (restarts(&telemetry, &engine, "reload") == 2.0).then_some(())
    });
    until("the reload", SOON, || {
        let snapshot = engine.snapshot();
        let limit = snapshot.rules().all()[0].spec.limit.unwrap();
        (limit.requests() == 20).then_some(())
    });
    until("no fault is shown any more", SOON, || {
        status.configuration().faults.is_empty().then_some(())
    });
    reloads.stop();
}

/// Fails on the first connection before it is served, then says hello.
#[derive(Clone, Debug)]
struct Faulty(Arc<AtomicU32>);

impl ConnectionHandler for Faulty {
    const BUSY: &'static [u8] = b"busy";

    fn handle<T>(self, mut stream: T, _: Drain) -> impl Future<Output = ()> + Send
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let first = self.0.fetch_add(1, Ordering::Relaxed) == 0;
        assert!(!first, "a fault for the test");
        async move { stream.write_all(b"hello").await.unwrap() }
    }
}

#[tokio::test]
async fn accepting_goes_on_after_a_panic() {
    let folder = Folder::new();
    let path = folder.path("d.sock");
    let address = tidegate_config::Address::Unix(path.clone());
    let listener = Listener::bind(&address, 0o600).await.unwrap();
    let (switch, drain) = Drain::new();
    let restarted = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let door = Acceptor {
        permits: Arc::new(Semaphore::new(10)),
        drain,
        open: Gauge::noop(),
        refused: Counter::noop(),
        failed: Counter::noop(),
        restarted: Counter::from_arc(Arc::clone(&restarted)),
    };
    let served = tokio::spawn(door.serve(listener, Faulty(Arc::default())));
    let ask = async || {
        let mut news_received = String::new();
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.read_to_string(&mut news_received).await.unwrap();
        news_received
    };
    assert_eq!(ask().await, "");
    assert_eq!(ask().await, "hello");
    assert_eq!(restarted.load(Ordering::Relaxed), 1);
    switch.begin();
    served.await.unwrap();
    assert!(!path.exists(), "the socket is gone before the door is");
}
