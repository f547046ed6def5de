//! The way to the store: Redis, what it runs for us, and who drives the rounds.
