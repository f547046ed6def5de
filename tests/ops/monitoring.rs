//! Dashboard and alerts, against a Prometheus that scrapes a sidecar under load.
