//! The store against a real server.
