//! What the book of a lane does with each answer.

use super::super::{KnownUsage, Share, StoreKey, Terms};
use super::*;

const START: Nanos = Nanos::new(0);

fn delta(cells: u64) -> Delta {
    Delta {
        key: StoreKey::level(1, u128::from(cells)),
        terms: Terms::Level {
            interval: Span::seconds(1),
            capacity: Span::seconds(100),
            debt_max: Span::seconds(60),
        },
        gross: Cells::new(cells),
        price: Span::seconds(cells),
        billed: Cells::ZERO,
        age: Span::ZERO,
        share: Share::even(2),
        live: false,
        known: KnownUsage::default(),
    }
}

fn reply(applied: bool, sequence: u64, gross: u64) -> StoreReply {
    StoreReply {
        applied,
        sequence,
        gross: Cells::new(gross),
        states: Vec::new(),
        repaired: 0,
    }
}

/// A book whose batches 1, 2, ... of so many cells each were settled at the start.
fn settled(cells: &[u64]) -> LaneBook {
    settle(LaneBook::new(Lane::new(3)), cells)
}

fn settle(mut book: LaneBook, cells: &[u64]) -> LaneBook {
    let mut total = 0;
    for (sequence, &cells) in (1..).zip(cells) {
        total += cells;
        book.freeze(vec![delta(cells)], START).expect("idle");
        book.answered(&reply(true, sequence, total), START);
    }
    book
}

fn check(outcome: &LaneOutcome, step: &LaneStep, lost: u64, found: u64) {
    assert_eq!(outcome.step, *step);
    assert_eq!(outcome.lost, Cells::new(lost), "lost");
    assert_eq!(outcome.found, Cells::new(found), "found");
}

/// (previous, sequence, price in seconds) of the call that the book would send.
fn sends(book: &LaneBook, seconds: u64) -> Option<(u64, u64, u64)> {
    let call = book.call(START.after(Span::seconds(seconds)))?;
    let price = call.deltas.first().map_or(0, |it| it.price.seconds_up());
    Some((call.previous, call.sequence, price))
}

fn is_settled(outcome: &LaneOutcome, sequence: u64) -> bool {
    matches!(&outcome.step, LaneStep::Settled(batch) if batch.sequence == sequence)
}

#[test]
fn a_lane_never_used_is_idle_and_asks_for_nothing() {
    let book = LaneBook::new(Lane::new(3));
    assert!(book.is_idle());
    assert_eq!(book.call(START), None);
    assert_eq!((book.probe().previous, book.probe().sequence), (0, 0));
}

#[test]
fn a_batch_is_the_same_until_answered_and_holds_back_the_next() {
    let mut book = settled(&[7]);
    book.freeze(vec![delta(5)], START).expect("idle");
    assert!(!book.is_idle());
    assert_eq!(
        book.freeze(vec![delta(6)], START),
        Err(vec![delta(6)]),
        "handed back"
    );
    assert_eq!(sends(&book, 0), Some((1, 2, 5)));
    assert_eq!(
        book.call(START),
        book.call(START.after(RESENT_UNCHANGED_FOR))
    );
    assert_eq!(
        sends(&book, 4),
        Some((1, 2, 3)),
        "after 4 s half of that has drained"
    );
    assert_eq!(
        (book.settled(), book.in_flight()),
        (Cells::new(7), Cells::new(5))
    );
    let outcome = book.answered(&reply(true, 2, 12), START);
    assert!(is_settled(&outcome, 2) && book.is_idle());
    assert_eq!(
        (book.settled(), book.in_flight()),
        (Cells::new(12), Cells::ZERO)
    );
}

#[test]
fn no_deltas_make_no_batch() {
    let mut book = settled(&[7]);
    assert_eq!(book.freeze(Vec::new(), START), Ok(()));
    assert!(book.is_idle());
}

#[test]
fn a_batch_whose_answer_was_lost_is_settled_by_the_next_one() {
    let mut book = settled(&[7]);
    book.freeze(vec![delta(5)], START).expect("idle");
    let outcome = book.answered(&reply(false, 2, 12), START);
    assert!(is_settled(&outcome, 2));
    assert_eq!((outcome.lost, outcome.found), (Cells::ZERO, Cells::ZERO));
}

#[test]
fn what_a_failover_lost_is_replayed_in_order_and_billed_net() {
    let mut book = settled(&[10, 20, 30]);
    book.freeze(vec![delta(40)], START).expect("idle");
    check(
        &book.answered(&reply(false, 1, 10), START),
        &LaneStep::Behind,
        0,
        0,
    );
    assert_eq!(book.in_flight(), Cells::new(90));
    assert_eq!(sends(&book, 8), Some((1, 2, 16)), "half of 8 s is ours");
    check(
        &book.answered(&reply(true, 2, 30), START),
        &LaneStep::Replayed,
        0,
        0,
    );
    assert_eq!(sends(&book, 8), Some((2, 3, 26)));
    check(
        &book.answered(&reply(true, 3, 60), START),
        &LaneStep::Replayed,
        0,
        0,
    );
    assert_eq!(sends(&book, 8), Some((3, 4, 36)), "it has waited as long");
    assert!(is_settled(&book.answered(&reply(true, 4, 100), START), 4));
}

#[test]
fn a_second_loss_in_the_middle_starts_over_from_what_is_there() {
    let mut book = settled(&[10, 20, 30]);
    check(
        &book.answered_probe(&reply(false, 1, 10), START),
        &LaneStep::Behind,
        0,
        0,
    );
    check(
        &book.answered(&reply(true, 2, 30), START),
        &LaneStep::Replayed,
        0,
        0,
    );
    check(
        &book.answered(&reply(false, 0, 0), START),
        &LaneStep::Behind,
        0,
        0,
    );
    assert_eq!(sends(&book, 0), Some((0, 1, 10)));
}

#[test]
fn what_is_no_longer_kept_is_jumped_over_and_reported_once() {
    let mut book = settled(&[10, 20]);
    let later = START.after(Span::seconds(31));
    book.freeze(vec![delta(30)], later).expect("idle");
    assert!(is_settled(&book.answered(&reply(true, 3, 60), later), 3));
    book.forget_old(later);
    check(
        &book.answered_probe(&reply(false, 1, 10), later),
        &LaneStep::Behind,
        20,
        0,
    );
    check(
        &book.answered_probe(&reply(true, 1, 10), later),
        &LaneStep::Unchanged,
        0,
        0,
    );
    assert_eq!(sends(&book, 31), Some((1, 3, 30)));
    check(
        &book.answered(&reply(true, 3, 40), later),
        &LaneStep::Replayed,
        0,
        0,
    );
    assert!(book.is_idle());
}

#[test]
fn after_losing_all_numbers_go_on() {
    let mut book = settled(&[10, 20]);
    book.forget_old(START.after(Span::seconds(31)));
    check(
        &book.answered_probe(&reply(false, 0, 0), START),
        &LaneStep::Behind,
        30,
        0,
    );
    book.freeze(vec![delta(5)], START).expect("idle");
    assert_eq!(sends(&book, 0), Some((0, 3, 5)));
    // A duplicate from long ago comes in before it: the first batch was not lost after all.
    check(
        &book.answered(&reply(false, 1, 10), START),
        &LaneStep::Replayed,
        0,
        10,
    );
    assert_eq!(sends(&book, 0), Some((1, 3, 5)));
    assert!(is_settled(&book.answered(&reply(true, 3, 15), START), 3));
}

#[test]
fn what_is_being_replayed_is_not_forgotten() {
    let mut book = settled(&[10, 20]);
    book.answered_probe(&reply(false, 1, 10), START);
    book.forget_old(START.after(Span::seconds(90)));
    assert_eq!(sends(&book, 90), Some((1, 2, 0)), "drained by now");
}

#[test]
fn no_more_than_so_many_are_kept() {
    for (asked, most) in [(0, KEPT_MIN), (5_000, 5_000), (usize::MAX, KEPT_MAX)] {
        let book = LaneBook::new(Lane::new(3)).keeping(asked);
        let book = settle(book, &[1; KEPT_MAX + 1]);
        assert_eq!(book.kept.len(), most, "{asked}");
    }
    let mut book = settled(&[1; KEPT_MAX + 10]);
    assert_eq!(book.kept.len(), KEPT_MAX);
    check(
        &book.answered_probe(&reply(false, 0, 0), START),
        &LaneStep::Behind,
        10,
        0,
    );
}

#[test]
fn a_number_we_never_gave_is_adopted_and_the_batch_goes_after_it() {
    let mut book = settled(&[10]);
    book.freeze(vec![delta(5)], START).expect("idle");
    check(
        &book.answered(&reply(false, 9, 12), START),
        &LaneStep::Adopted,
        0,
        2,
    );
    assert_eq!(sends(&book, 0), Some((9, 10, 5)));
    assert!(is_settled(&book.answered(&reply(true, 10, 17), START), 10));
}

#[test]
fn a_batch_that_may_be_in_a_strange_record_is_not_sent_again() {
    let mut book = settled(&[10]);
    book.freeze(vec![delta(5)], START).expect("idle");
    let outcome = book.answered(&reply(false, 9, 21), START);
    assert!(is_settled(&outcome, 9) && book.is_idle());
    assert_eq!(outcome.found, Cells::new(6));
}

#[test]
fn a_probe_only_looks_whether_the_store_is_behind() {
    let mut book = settled(&[10]);
    book.freeze(vec![delta(5)], START).expect("idle");
    for sequence in [1, 2, 9] {
        let gross = if sequence == 1 { 10 } else { 15 };
        let outcome = book.answered_probe(&reply(false, sequence, gross), START);
        check(&outcome, &LaneStep::Unchanged, 0, 0);
    }
    assert_eq!(sends(&book, 0), Some((1, 2, 5)));
}
