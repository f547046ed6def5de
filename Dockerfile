# One static binary and nothing else: no shell, no libc, no root. How to build and run it: docs/image.md.
FROM rust:1.95-bookworm AS build
# The binary carries its libc. Naming a target keeps that from build scripts and procedural macros, which cannot.
ENV RUSTFLAGS="-C target-feature=+crt-static"
WORKDIR /src

# Dependencies first, with nothing of ours but the manifests: this layer lasts until those change.
COPY Cargo.toml Cargo.lock ./
COPY crates/config/Cargo.toml crates/config/
COPY crates/core/Cargo.toml crates/core/
COPY crates/testing/Cargo.toml crates/testing/
COPY simulations/Cargo.toml simulations/
COPY tests/loom/Cargo.toml tests/loom/
RUN sed -i '/^\[\[test\]\]/,/^$/d; /^\[\[bench\]\]/,/^$/d' Cargo.toml crates/core/Cargo.toml \
 && mkdir src crates/config/src crates/core/src crates/testing/src simulations/src \
 && printf '//! Not copied yet.\nfn main() {}\n' \
  | tee src/lib.rs src/main.rs crates/config/src/lib.rs crates/core/src/lib.rs crates/testing/src/lib.rs \
    simulations/src/lib.rs simulations/src/main.rs >tests/loom/lib.rs \
 && rustc -vV | sed -n 's/^host: //p' >triple \
 && cargo build --locked --release --target "$(cat triple)" -p tidegate

COPY crates/config/src crates/config/src
COPY crates/core/src crates/core/src
COPY src src
# Cargo goes by the time of a file, and these may be older than what stood in for them.
RUN touch src/lib.rs src/main.rs crates/config/src/lib.rs crates/core/src/lib.rs \
 && cargo build --locked --release --target "$(cat triple)" -p tidegate \
 && mkdir -p /out/run/tidegate && chmod 0750 /out/run/tidegate \
 && strip -o /out/tidegate "target/$(cat triple)/release/tidegate"

FROM scratch
LABEL org.opencontainers.image.title="tidegate" \
      org.opencontainers.image.description="A rate-limit sidecar" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# For rediss:// without a ca_file.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
# Where sockets go. It is the working directory too: a socket without a folder in its path is there.
COPY --from=build --chown=65532:65532 /out/run/ /run/
COPY sidecar.yaml /etc/tidegate/
COPY --from=build /out/tidegate /
ENV TIDEGATE_CONFIG=/etc/tidegate/sidecar.yaml
VOLUME /run/tidegate
WORKDIR /run/tidegate
USER 65532:65532
# The binary gives up after 5 s itself, and says why.
HEALTHCHECK --interval=10s --timeout=6s --start-period=5s CMD ["/tidegate", "health"]
ENTRYPOINT ["/tidegate"]
