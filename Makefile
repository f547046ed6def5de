# What CI and people call. Anything that needs logic is a test, not a script.
.PHONY: check test test-rust loom bench docs run tools ci

check: ## formatting, lints, documentation
	cargo fmt --all --check
	cargo clippy --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --no-deps --locked --document-private-items

test: check tools test-rust loom ## everything, with real clients

test-rust:
	cargo test --locked

loom: ## every interleaving of the bucket table's models
	RUSTFLAGS="--cfg tidegate_loom" CARGO_TARGET_DIR=target/loom cargo test --locked --profile loom --test loom

bench: ## ratios against floors and peers, in one run
	cargo bench --locked --bench decide
	cargo bench --locked --bench doors
	cargo bench --locked --bench memory

docs: ## print docs/metrics.md from the code
	UPDATE=1 cargo test --locked --test it tidy::

run: ## the sidecar with the shipped configuration
	cargo run --release --locked

tools: ## what the tests use besides Rust, installed if it is absent
	@command -v curl >/dev/null || { apt-get update && apt-get install -y --no-install-recommends curl; }

ci: test
