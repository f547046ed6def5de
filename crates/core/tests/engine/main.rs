//! The engine as its callers see it, under a clock that the tests own.
//!
//! `exact.rs`: to the cell, with many threads. `all_or_nothing.rs`: a denied check uses nothing. `bounds.rs`: how many
//! keys are held. `floods.rs`: what a flood of keys can and cannot do. `ghosts.rs`: keys that are remembered and not
//! held. `reload.rs`: rules that change. `identity.rs`: the names of keys. `rules.rs`: which rules a descriptor meets.
//! `caller_limits.rs`: caller-supplied limits. `charge.rs`: checks that are charged when they are done. `refund.rs`: cells
//! given back. `refund_answers.rs`: the same while answers are on their way. `news.rs`: how far a pod trusts news.
//! `interval.rs`: how often a key is reported. `overdue.rs`: what is granted of keys that cannot be reported in time.
//! `strict.rs`: what the store decides. `sync_queue.rs`: the bound of the sync queue. `fallback.rs`: what is granted without it. Zero allocations: `allocation.rs` above.
#![expect(
    clippy::expect_used,
    reason = "a test that expects too much fails, as it should"
)]

mod all_or_nothing;
mod bounds;
mod caller_limits;
mod charge;
mod exact;
mod fallback;
mod floods;
mod ghosts;
mod identity;
mod interval;
mod news;
mod overdue;
mod refund;
mod refund_answers;
mod reload;
mod rules;
mod split;
mod strict;
mod sync_queue;
