//! What the book of a group does with each answer.

use super::super::{Grouping, KnownUsage, Lane, Share, StoreKey, Terms};
use super::*;

const GROUP: Group = Grouping::PerLane.group_of(Lane::new(3));
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
fn settled(cells: &[u64]) -> GroupBook {
    settle(GroupBook::new(GROUP), cells)
}

fn settle(mut book: GroupBook, cells: &[u64]) -> GroupBook {
    let mut total = 0;
    for (sequence, &cells) in (1..).zip(cells) {
        total += cells;
        book.freeze(vec![delta(cells)], START).expect("open");
        book.answered(sequence, &reply(true, sequence, total), START);
    }
    book
}

fn check(outcome: &BookOutcome, step: &BookStep, lost: u64, found: u64) {
    assert_eq!(outcome.step, *step);
    assert_eq!(outcome.lost, Cells::new(lost), "lost");
    assert_eq!(outcome.found, Cells::new(found), "found");
}

/// (previous, sequence, price in seconds) of the call that the book would send.
fn sends(book: &GroupBook, seconds: u64) -> Option<(u64, u64, u64)> {
    sent(&mut book.clone(), seconds)
}

/// The same of the call that the book sends.
fn sent(book: &mut GroupBook, seconds: u64) -> Option<(u64, u64, u64)> {
    let call = book.next_call(START.after(Span::seconds(seconds)))?;
    let price = call.deltas.first().map_or(0, |it| it.price.seconds_up());
    Some((call.previous, call.sequence, price))
}

fn is_settled(outcome: &BookOutcome, sequence: u64) -> bool {
    settles(outcome) == [sequence]
}

/// Sends the next call and takes its answer.
fn exchange(book: &mut GroupBook, reply: &StoreReply, now: Nanos) -> BookOutcome {
    let call = book.next_call(now).expect("a call to send");
    book.answered(call.sequence, reply, now)
}

/// Asks what the store has, and takes the answer.
fn probe(book: &mut GroupBook, reply: &StoreReply, now: Nanos) -> BookOutcome {
    let call = book.probe();
    book.answered_probe(call.sequence, reply, now)
}

/// The numbers of the batches that an answer settled.
fn settles(outcome: &BookOutcome) -> Vec<u64> {
    match &outcome.step {
        BookStep::Settled(batches) => batches.iter().map(|batch| batch.sequence).collect(),
        BookStep::Behind | BookStep::Replayed | BookStep::Adopted | BookStep::Unchanged => vec![],
    }
}

#[test]
fn a_group_never_used_is_idle_and_asks_for_nothing() {
    let book = GroupBook::new(GROUP);
    assert!(book.is_idle());
    assert!(!book.has_call());
    assert_eq!((book.probe().previous, book.probe().sequence), (0, 0));
}

#[test]
fn a_batch_is_the_same_until_answered() {
    let mut book = settled(&[7]);
    book.freeze(vec![delta(5)], START).expect("open");
    assert!(!book.is_idle());
    let call = book.next_call(START);
    assert!(!book.has_call() && book.is_calling());
    book.failed(2);
    assert_eq!(call, book.next_call(START.after(RESENT_UNCHANGED_FOR)));
    book.failed(2);
    assert_eq!(
        sends(&book, 4),
        Some((1, 2, 3)),
        "after 4 s half of that has drained"
    );
    assert_eq!(
        (book.settled(), book.in_flight()),
        (Cells::new(7), Cells::new(5))
    );
    let outcome = exchange(&mut book, &reply(true, 2, 12), START);
    assert!(is_settled(&outcome, 2) && book.is_idle());
    assert_eq!(
        (book.settled(), book.in_flight()),
        (Cells::new(12), Cells::ZERO)
    );
}

/// A book with batches 2, 3 and 4 under way, of 20, 30 and 40 cells.
fn three_under_way() -> GroupBook {
    let mut book = settled(&[10]);
    for (cells, previous) in [(20, 1), (30, 2), (40, 3)] {
        book.freeze(vec![delta(cells)], START).expect("open");
        assert_eq!(sent(&mut book, 0), Some((previous, previous + 1, cells)));
    }
    book
}

#[test]
fn batches_follow_each_other_without_waiting() {
    let mut book = three_under_way();
    assert_eq!(book.in_flight(), Cells::new(90));
    for (sequence, gross) in [(2, 30), (3, 60), (4, 100)] {
        let outcome = book.answered(sequence, &reply(true, sequence, gross), START);
        check(&outcome, &outcome.step, 0, 0);
        assert!(is_settled(&outcome, sequence));
    }
    assert!(book.is_idle());
}

#[test]
fn an_answer_settles_all_batches_up_to_its_number() {
    let mut book = three_under_way();
    let outcome = book.answered(3, &reply(true, 3, 60), START);
    assert_eq!(settles(&outcome), [2, 3]);
    // The answer to the first of them comes late, and says less.
    check(
        &book.answered(2, &reply(true, 2, 30), START),
        &BookStep::Unchanged,
        0,
        0,
    );
    assert_eq!(
        (book.settled(), book.in_flight()),
        (Cells::new(60), Cells::new(40))
    );
}

#[test]
fn refused_batches_wait_until_those_before_them_are_settled() {
    let mut book = three_under_way();
    // The first one is lost: the store refuses the others.
    for sequence in [3, 4] {
        let outcome = book.answered(sequence, &reply(false, 1, 10), START);
        check(&outcome, &BookStep::Unchanged, 0, 0);
        assert!(!book.has_call() && !book.may_freeze());
    }
    book.failed(2);
    assert_eq!(sent(&mut book, 0), Some((1, 2, 20)));
    assert!(!book.has_call(), "the next one waits for its answer");
    assert!(is_settled(&book.answered(2, &reply(true, 2, 30), START), 2));
    assert_eq!(sent(&mut book, 0), Some((2, 3, 30)));
    assert!(is_settled(&book.answered(3, &reply(true, 3, 60), START), 3));
    assert_eq!(sent(&mut book, 0), Some((3, 4, 40)));
    assert!(is_settled(
        &book.answered(4, &reply(true, 4, 100), START),
        4
    ));
}

#[test]
fn a_probe_that_was_overtaken_says_nothing() {
    let mut book = settled(&[10]);
    let asked = book.probe();
    book.freeze(vec![delta(5)], START).expect("open");
    assert!(is_settled(
        &exchange(&mut book, &reply(true, 2, 15), START),
        2
    ));
    let outcome = book.answered_probe(asked.sequence, &reply(false, 1, 10), START);
    check(&outcome, &BookStep::Unchanged, 0, 0);
}

#[test]
fn only_so_many_batches_are_open() {
    let mut book = settled(&[]);
    for cells in (1..).take(CALLS_IN_FLIGHT_MAX) {
        book.freeze(vec![delta(cells)], START).expect("open");
    }
    let more = vec![delta(9)];
    assert_eq!(book.freeze(more.clone(), START), Err(more), "handed back");
}

#[test]
fn a_failover_while_batches_are_under_way_replays_first() {
    let mut book = three_under_way();
    check(
        &book.answered(2, &reply(false, 0, 0), START),
        &BookStep::Behind,
        0,
        0,
    );
    assert_eq!(sent(&mut book, 0), Some((0, 1, 10)));
    for sequence in [3, 4] {
        book.answered(sequence, &reply(false, 0, 0), START);
    }
    assert!(!book.has_call(), "the replay is under way");
    check(
        &book.answered(1, &reply(true, 1, 10), START),
        &BookStep::Replayed,
        0,
        0,
    );
    assert_eq!(sent(&mut book, 0), Some((1, 2, 20)));
}

#[test]
fn a_closed_book_settles_what_the_store_has_and_hands_back_the_rest() {
    let mut book = three_under_way();
    let (outcome, rest) = book.close(&reply(false, 3, 60), START);
    assert_eq!(settles(&outcome), [2, 3]);
    assert_eq!(rest, [delta(40)]);
    assert_eq!(
        (book.settled(), book.in_flight()),
        (Cells::new(60), Cells::ZERO)
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
    book.freeze(vec![delta(5)], START).expect("open");
    let outcome = exchange(&mut book, &reply(false, 2, 12), START);
    assert!(is_settled(&outcome, 2));
    assert_eq!((outcome.lost, outcome.found), (Cells::ZERO, Cells::ZERO));
}

#[test]
fn what_a_failover_lost_is_replayed_in_order_and_billed_net() {
    let mut book = settled(&[10, 20, 30]);
    book.freeze(vec![delta(40)], START).expect("open");
    check(
        &exchange(&mut book, &reply(false, 1, 10), START),
        &BookStep::Behind,
        0,
        0,
    );
    assert_eq!(book.in_flight(), Cells::new(90));
    assert_eq!(sends(&book, 8), Some((1, 2, 16)), "half of 8 s is ours");
    check(
        &exchange(&mut book, &reply(true, 2, 30), START),
        &BookStep::Replayed,
        0,
        0,
    );
    assert_eq!(sends(&book, 8), Some((2, 3, 26)));
    check(
        &exchange(&mut book, &reply(true, 3, 60), START),
        &BookStep::Replayed,
        0,
        0,
    );
    assert_eq!(sends(&book, 8), Some((3, 4, 36)), "it has waited as long");
    assert!(is_settled(
        &exchange(&mut book, &reply(true, 4, 100), START),
        4
    ));
}

#[test]
fn a_second_loss_in_the_middle_starts_over_from_what_is_there() {
    let mut book = settled(&[10, 20, 30]);
    check(
        &probe(&mut book, &reply(false, 1, 10), START),
        &BookStep::Behind,
        0,
        0,
    );
    check(
        &exchange(&mut book, &reply(true, 2, 30), START),
        &BookStep::Replayed,
        0,
        0,
    );
    check(
        &exchange(&mut book, &reply(false, 0, 0), START),
        &BookStep::Behind,
        0,
        0,
    );
    assert_eq!(sends(&book, 0), Some((0, 1, 10)));
}

#[test]
fn what_is_no_longer_kept_is_jumped_over_and_reported_once() {
    let mut book = settled(&[10, 20]);
    let later = START.after(Span::seconds(31));
    book.freeze(vec![delta(30)], later).expect("open");
    assert!(is_settled(
        &exchange(&mut book, &reply(true, 3, 60), later),
        3
    ));
    book.forget_old(later);
    check(
        &probe(&mut book, &reply(false, 1, 10), later),
        &BookStep::Behind,
        20,
        0,
    );
    check(
        &probe(&mut book, &reply(true, 1, 10), later),
        &BookStep::Unchanged,
        0,
        0,
    );
    assert_eq!(sends(&book, 31), Some((1, 3, 30)));
    check(
        &exchange(&mut book, &reply(true, 3, 40), later),
        &BookStep::Replayed,
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
        &probe(&mut book, &reply(false, 0, 0), START),
        &BookStep::Behind,
        30,
        0,
    );
    book.freeze(vec![delta(5)], START).expect("open");
    assert_eq!(sends(&book, 0), Some((0, 3, 5)));
    // A duplicate from long ago comes in before it: the first batch was not lost after all.
    check(
        &exchange(&mut book, &reply(false, 1, 10), START),
        &BookStep::Replayed,
        0,
        10,
    );
    assert_eq!(sends(&book, 0), Some((1, 3, 5)));
    assert!(is_settled(
        &exchange(&mut book, &reply(true, 3, 15), START),
        3
    ));
}

#[test]
fn what_is_being_replayed_is_not_forgotten() {
    let mut book = settled(&[10, 20]);
    probe(&mut book, &reply(false, 1, 10), START);
    book.forget_old(START.after(Span::seconds(90)));
    assert_eq!(sends(&book, 90), Some((1, 2, 0)), "drained by now");
}

#[test]
fn no_more_than_so_many_are_kept() {
    for (asked, most) in [(0, KEPT_MIN), (5_000, 5_000), (usize::MAX, KEPT_MAX)] {
        let book = GroupBook::new(GROUP).keeping(asked, 1);
        let book = settle(book, &[1; KEPT_MAX + 1]);
        assert_eq!(book.kept.len(), most, "{asked}");
    }
    let mut book = settled(&[1; KEPT_MAX + 10]);
    assert_eq!(book.kept.len(), KEPT_MAX);
    check(
        &probe(&mut book, &reply(false, 0, 0), START),
        &BookStep::Behind,
        10,
        0,
    );
}

#[test]
fn a_number_we_never_gave_is_adopted_and_the_batch_goes_after_it() {
    let mut book = settled(&[10]);
    book.freeze(vec![delta(5)], START).expect("open");
    check(
        &exchange(&mut book, &reply(false, 9, 12), START),
        &BookStep::Adopted,
        0,
        2,
    );
    assert_eq!(sends(&book, 0), Some((9, 10, 5)));
    assert!(is_settled(
        &exchange(&mut book, &reply(true, 10, 17), START),
        10
    ));
}

#[test]
fn of_several_batches_those_that_may_be_in_a_strange_record_are_settled() {
    let mut book = three_under_way();
    let outcome = book.answered(2, &reply(false, 9, 65), START);
    assert_eq!(settles(&outcome), [8, 9]);
    assert_eq!(outcome.found, Cells::new(5));
    assert_eq!(sends(&book, 0), Some((9, 10, 40)));
}

#[test]
fn a_batch_that_may_be_in_a_strange_record_is_not_sent_again() {
    let mut book = settled(&[10]);
    book.freeze(vec![delta(5)], START).expect("open");
    let outcome = exchange(&mut book, &reply(false, 9, 21), START);
    assert!(is_settled(&outcome, 9) && book.is_idle());
    assert_eq!(outcome.found, Cells::new(6));
}

#[test]
fn a_probe_only_looks_whether_the_store_is_behind() {
    let mut book = settled(&[10]);
    book.freeze(vec![delta(5)], START).expect("open");
    for sequence in [1, 2, 9] {
        let gross = if sequence == 1 { 10 } else { 15 };
        let outcome = probe(&mut book, &reply(false, sequence, gross), START);
        check(&outcome, &BookStep::Unchanged, 0, 0);
    }
    assert_eq!(sends(&book, 0), Some((1, 2, 5)));
}
