//! How a level that the store answered becomes a TAT of this pod.

use super::exchange::StoreAnswer;
use super::subject::Subject;
use crate::pure::rule::Consistency;
use crate::pure::{Nanos, Span};

/// How far a fold may exceed its lower bound, beside one cell: checks run while the answer is in flight.
const FOLD_SLACK: Span = Span::nanos(5_000_000);

/// The TAT after an answer with this `level`, as a function of the TAT and of the price of the pending cells.
///
/// The new TAT is where the store's level ends, plus what this pod admitted since the freeze. Two things say how much that
/// was. The bucket has moved by as much since the freeze, or by more if it had run empty. And as much is pending, or a
/// little less while a check is admitted and not yet noted. So the fold moves the bucket by the difference between the
/// store's level and the frozen one, but to no less than the pending cells demand, and to little more than that. Refunds
/// since the freeze have lowered the bucket too; the store's level still has those cells, so the fold subtracts them.
pub(super) fn after_answer(
    subject: &Subject<'_>,
    level: Span,
    answer: &StoreAnswer,
) -> impl Fn(Nanos, Span) -> Nanos {
    let interval = subject.limit.interval();
    let (ends, frozen) = (answer.anchor.after(level), answer.frozen);
    let without_refunds = answer.anchor.after(level.less(answer.refund_due.price));
    move |tat, pending| {
        let least = without_refunds.max(frozen.at).after(pending);
        let moved = match ends >= frozen.tat {
            true => tat.after(ends.since(frozen.tat)),
            false => tat.before(frozen.tat.since(ends)),
        };
        let most = least.after(interval).after(FOLD_SLACK);
        moved.clamp(least, most).max(Nanos::new(1))
    }
}

/// The TAT after the store gave cells back and the key's level ends at `ends`, as a function of the TAT and of the price of
/// the pending cells. The store decides a strict key, so the bucket of one is never ahead of the store.
pub(super) fn after_refund(subject: &Subject<'_>, ends: Nanos) -> impl Fn(Nanos, Span) -> Nanos {
    let interval = subject.limit.interval();
    let is_strict = subject.rule.spec.consistency == Consistency::Strict;
    move |tat, pending| {
        let least = ends.after(pending);
        let most = least.after(interval).after(FOLD_SLACK);
        let least = if is_strict { Nanos::default() } else { least };
        tat.clamp(least, most).max(Nanos::new(1))
    }
}

/// The TAT after news that moved a bucket up by `by` was wrong. It falls no lower than where it ended `before` the news.
pub(super) fn without_news(by: Span, before: Nanos) -> impl Fn(Nanos) -> Nanos {
    move |tat| tat.before(by).max(tat.min(before)).max(Nanos::new(1))
}
