//! The bucket table: two or three threads take a few steps each on a table of one group.

use loom::sync::Arc;
use loom::thread;
use tidegate_core::engine::buckets::table::{
    Booking, MovedBucket, SlotOrigin, Table, TableKey, Tenancy, Touch,
};
use tidegate_core::pure::sync::Trigger;
use tidegate_core::pure::{Cells, Nanos};

/// The price of one cell.
const STEP: u64 = 100;
/// The time in every model that does not say otherwise.
const NOW: u64 = 1_000;

/// Keys. A variant of a key prefers the same slot of the group, so a look-up of one may find the other there.
const FIRST: u128 = 0x1111_2222_3333_4444_5555_6666_7777_8888;
const SECOND: u128 = 0x9999_aaaa_bbbb_cccc_dddd_eeee_ffff_0000;
const THIRD: u128 = 0x0123_4567_89ab_cdef_0246_8ace_1357_9bdf;
const VARIANT: u128 = 0x5a5a_0000_a5a5_ffff_1234_4321_0f0f_f0f0;

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

fn table(keys_max: usize) -> Arc<Table> {
    Arc::new(Table::new(keys_max, [3, 5]))
}

/// A bucket that `cells` were admitted on at `now`.
fn filled(now: u64, cells: u64) -> MovedBucket {
    MovedBucket::at(Nanos::new(now + cells * STEP))
}

fn enter(table: &Table, key: &TableKey, bucket: MovedBucket) -> SlotOrigin {
    let permit = table.permit(key);
    table.enter(&permit, key, bucket, Nanos::new(NOW)).how
}

/// Runs `work` on the table in another thread.
fn on<R: 'static>(
    table: &Arc<Table>,
    work: impl FnOnce(&Table) -> R + 'static,
) -> thread::JoinHandle<R> {
    let table = table.clone();
    thread::spawn(move || work(&table))
}

/// What `admit` did: the TATs before and after, and the key's tenancy of its slot.
struct Admitted<'a> {
    before: u64,
    after: u64,
    tenancy: Tenancy<'a>,
}

/// Admits one cell of a bucket of `burst`, as `gcra::admit` would. `None`: the key is missing, or has no room.
fn admit<'a>(table: &'a Table, key: &TableKey, now: u64, burst: u64) -> Option<Admitted<'a>> {
    let step = |tat: Nanos| {
        let after = tat.get().max(now) + STEP;
        let fits = after <= now + burst * STEP;
        (fits.then_some(Nanos::new(after)), (tat.get(), after, fits))
    };
    match table.touch(key, step) {
        Touch::Held((before, after, true), tenancy) => Some(Admitted {
            before,
            after,
            tenancy,
        }),
        Touch::Held(_, _) | Touch::Missing => None,
    }
}

fn admits(table: &Table, key: &TableKey, now: u64, burst: u64) -> bool {
    admit(table, key, now, burst).is_some()
}

fn collect(table: &Table, key: &TableKey) -> Cells {
    table
        .collect(key, false)
        .map_or(Cells::ZERO, |found| found.cells)
}

fn tat(table: &Table, key: &TableKey) -> Option<u64> {
    table.tat(key).map(Nanos::get)
}

#[test]
fn of_two_checks_one_gets_the_only_cell() {
    explore(3, || {
        let table = table(1);
        let key = table.key(FIRST, 0);
        enter(&table, &key, filled(NOW, 0));
        let other = on(&table, move |table| admits(table, &key, NOW, 1));
        let mine = admits(&table, &key, NOW, 1);
        assert!(mine ^ other.join().expect("no panic"));
        assert_eq!(tat(&table, &key), Some(NOW + STEP));
    });
}

#[test]
fn three_checks_with_time_moving_get_what_has_drained() {
    explore(2, || {
        let table = table(1);
        let key = table.key(FIRST, 0);
        enter(&table, &key, filled(NOW, 1));
        let [early, late] =
            [NOW, NOW + STEP].map(|now| on(&table, move |table| admits(table, &key, now, 1)));
        let mine = admits(&table, &key, NOW + STEP, 1);
        assert!(!early.join().expect("no panic"), "nothing had drained yet");
        assert!(mine ^ late.join().expect("no panic"), "one cell had");
        assert_eq!(tat(&table, &key), Some(NOW + 2 * STEP));
    });
}

#[test]
fn what_is_noted_is_collected_once() {
    explore(3, || {
        let table = table(1);
        let key = table.key(FIRST, 0);
        enter(&table, &key, filled(NOW, 0));
        let note = move |table: &Table| {
            let admitted = admit(table, &key, NOW, 2).expect("there is room for two");
            assert_eq!(table.book(&admitted.tenancy, Cells::new(3)), Booking::Noted);
        };
        let notes = [on(&table, note), on(&table, note)];
        let early = collect(&table, &key);
        for note in notes {
            note.join().expect("no panic");
        }
        assert_eq!(early.plus(collect(&table, &key)), Cells::new(6));
        assert_eq!(collect(&table, &key), Cells::ZERO);
    });
}

#[test]
fn what_is_noted_is_collected_by_one_of_two() {
    explore(3, || {
        let table = table(1);
        let key = table.key(FIRST, 0);
        enter(&table, &key, filled(NOW, 0));
        let admitted = admit(&table, &key, NOW, 1).expect("there is room");
        let other = on(&table, move |table| collect(table, &key));
        assert_eq!(table.book(&admitted.tenancy, Cells::ONE), Booking::Noted);
        let mine = collect(&table, &key);
        let theirs = other.join().expect("no panic");
        assert_eq!(mine.plus(theirs), Cells::ONE);
    });
}

/// A noted cell is either reported or refunded, never both.
#[test]
fn what_is_noted_is_collected_or_refunded() {
    explore(3, || {
        let table = table(1);
        let key = table.key(FIRST, 0);
        enter(&table, &key, filled(NOW, 0));
        let admitted = admit(&table, &key, NOW, 1).expect("there is room");
        table.book(&admitted.tenancy, Cells::new(5));
        let collector = on(&table, move |table| collect(table, &key));
        let refunded = table.unbook(&admitted.tenancy, Cells::new(3));
        let collected = collector.join().expect("no panic");
        let left = collect(&table, &key);
        assert_eq!(refunded.plus(collected).plus(left), Cells::new(5));
    });
}

/// The table refuses a note for a key that has left. The cells noted before leave with the key.
#[test]
fn what_is_noted_for_a_key_that_leaves_is_told_or_lost_but_never_another_keys() {
    explore(3, || {
        let table = table(1);
        let (key, next) = (table.key(FIRST, 0), table.key(FIRST, VARIANT));
        enter(&table, &key, filled(NOW, 0));
        let other = on(&table, move |table| enter(table, &next, filled(NOW, 1)));
        let noted = admit(&table, &key, NOW, 1)
            .is_some_and(|admitted| table.book(&admitted.tenancy, Cells::new(7)) == Booking::Noted);
        let told = match other.join().expect("no panic") {
            SlotOrigin::Netted(cells) | SlotOrigin::InUse(cells) => cells.get(),
            SlotOrigin::Settled | SlotOrigin::Vacant | SlotOrigin::Nowhere => 0,
        };
        assert_eq!(collect(&table, &next), Cells::ZERO);
        assert_eq!(told, if noted { 7 } else { 0 });
    });
}

#[test]
fn a_check_is_never_charged_to_the_key_that_took_its_slot() {
    explore(3, || {
        let table = table(1);
        let (key, next) = (table.key(FIRST, 0), table.key(FIRST, VARIANT));
        enter(&table, &key, filled(NOW, 1));
        // The next key enters with the same TAT as the first.
        let other = on(&table, move |table| enter(table, &next, filled(NOW, 1)));
        let admitted = admits(&table, &key, NOW, 4);
        let entered = other.join().expect("no panic");
        let level = tat(&table, &next).expect("it entered") - NOW;
        assert!(level <= STEP + 1, "charged to the next key: {level}");
        assert_eq!(entered, SlotOrigin::InUse(Cells::ZERO));
        assert!(tat(&table, &key).is_none());
        let _ = admitted; // the check came before the key left, or was not admitted
        assert_eq!(table.held(), 1);
    });
}

/// The same with a slot that was vacant in between, as after a reload.
#[test]
fn a_check_is_never_charged_to_the_key_that_found_its_slot_vacant() {
    explore(3, || {
        let table = table(1);
        let (key, next) = (table.key(FIRST, 0), table.key(FIRST, VARIANT));
        enter(&table, &key, filled(NOW, 1));
        let other = on(&table, move |table| {
            let permit = table.permit(&key);
            let taken = table.take(&permit, &key).expect("it is held");
            table.enter(&permit, &next, filled(NOW, 1), Nanos::new(NOW));
            taken.tat.get()
        });
        let admitted = admits(&table, &key, NOW, 4);
        let taken = other.join().expect("no panic");
        assert_eq!(taken, NOW + STEP + if admitted { STEP } else { 0 });
        let level = tat(&table, &next).expect("it entered") - NOW;
        assert!(level <= STEP + 1, "charged to the next key: {level}");
    });
}

/// A reload changes a half-used burst of two into a burst of four: each cell counts twice.
#[test]
fn a_reload_neither_loses_nor_doubles_a_cell() {
    explore(3, || {
        let table = table(2);
        let (old, new) = (table.key(FIRST, 0), table.key(FIRST, VARIANT));
        enter(&table, &old, filled(NOW, 1));
        let other = on(&table, move |table| {
            let permit = table.permit(&new);
            let taken = table.take(&permit, &old).expect("it is held");
            let cells = 2 * (taken.tat.get() - NOW) / STEP;
            let pending = taken.pending;
            let bucket = MovedBucket {
                pending,
                ..filled(NOW, cells)
            };
            table.enter(&permit, &new, bucket, Nanos::new(NOW));
        });
        let admitted = admit(&table, &old, NOW, 2);
        let noted = admitted
            .as_ref()
            .is_some_and(|admitted| table.book(&admitted.tenancy, Cells::ONE) == Booking::Noted);
        other.join().expect("no panic");
        assert_eq!(tat(&table, &old), None);
        let cells = (tat(&table, &new).expect("it entered") - NOW) / STEP;
        assert_eq!(cells, if admitted.is_some() { 4 } else { 2 });
        assert_eq!(collect(&table, &new), Cells::new(u64::from(noted)));
        assert_eq!(table.held(), 1);
    });
}

/// Two threads find a key missing, one under the old rules and one under the new. One of them takes over the other's
/// bucket.
#[test]
fn two_variants_of_a_key_are_never_both_held() {
    explore(3, || {
        let table = table(2);
        let (old, new) = (table.key(FIRST, 0), table.key(FIRST, VARIANT));
        let other = on(&table, move |table| {
            let permit = table.permit(&new);
            let taken = table.take(&permit, &old);
            let bucket = taken.unwrap_or(filled(NOW, 0));
            table.enter(&permit, &new, bucket, Nanos::new(NOW));
        });
        let permit = table.permit(&old);
        if table.tat(&old).is_none() && table.tat(&new).is_none() {
            table.enter(&permit, &old, filled(NOW, 1), Nanos::new(NOW));
        }
        drop(permit);
        other.join().expect("no panic");
        assert!(tat(&table, &old).is_none() && tat(&table, &new).is_some());
        assert_eq!(table.held(), 1);
    });
}

#[test]
fn giving_back_never_leaves_less_than_others_took() {
    explore(3, || {
        let table = table(1);
        let key = table.key(FIRST, 0);
        enter(&table, &key, filled(NOW, 0));
        let other = on(&table, move |table| {
            u64::from(admits(table, &key, NOW, 2)) + u64::from(admits(table, &key, NOW, 2))
        });
        let mut kept = 0;
        if let Some(mine) = admit(&table, &key, NOW, 2) {
            let (after, before) = (Nanos::new(mine.after), Nanos::new(mine.before));
            kept = u64::from(!table.give_back(&mine.tenancy, after, before));
        }
        let theirs = other.join().expect("no panic");
        let cells = (tat(&table, &key).expect("it is held") - NOW) / STEP;
        assert_eq!(cells, theirs + kept);
        assert!(cells <= 2);
    });
}

/// The admitted cell has drained when it is given back. Later checks have used the whole bucket, and keep it.
#[test]
fn what_has_drained_is_not_given_back_again() {
    explore(3, || {
        const LATER: u64 = NOW + 3 * STEP;
        let table = table(1);
        let key = table.key(FIRST, 0);
        enter(&table, &key, filled(NOW, 0));
        let mine = admit(&table, &key, NOW, 2).expect("there is room");
        let other = on(&table, move |table| {
            admits(table, &key, LATER, 2) && admits(table, &key, LATER, 2)
        });
        let (after, before) = (Nanos::new(mine.after), Nanos::new(mine.before));
        let _ = table.give_back(&mine.tenancy, after, before);
        assert!(other.join().expect("no panic"));
        assert_eq!(tat(&table, &key), Some(LATER + 2 * STEP));
    });
}

/// The key has left when its admission is given back, and the next key has reached the same TAT.
#[test]
fn what_is_given_back_is_never_another_keys() {
    explore(3, || {
        let table = table(1);
        let (key, next) = (table.key(FIRST, 0), table.key(FIRST, VARIANT));
        enter(&table, &key, filled(NOW, 1));
        let mine = admit(&table, &key, NOW, 2).expect("there is room");
        enter(&table, &next, filled(NOW, 1));
        let other = on(&table, move |table| u64::from(admits(table, &next, NOW, 3)));
        let (after, before) = (Nanos::new(mine.after), Nanos::new(mine.before));
        assert!(!table.give_back(&mine.tenancy, after, before));
        let theirs = 1 + other.join().expect("no panic");
        let cells = (tat(&table, &next).expect("it entered") - NOW) / STEP;
        assert_eq!(cells, theirs);
    });
}

#[test]
fn a_key_that_two_let_in_is_there_once() {
    explore(3, || {
        let table = table(2);
        let key = table.key(FIRST, 0);
        let let_in = move |table: &Table| {
            let permit = table.permit(&key);
            if table.tat(&key).is_none() {
                table.enter(&permit, &key, filled(NOW, 1), Nanos::new(NOW));
                return true;
            }
            drop(permit);
            admits(table, &key, NOW, 1)
        };
        let other = on(&table, let_in);
        let mine = let_in(&table);
        assert!(mine ^ other.join().expect("no panic"));
        assert_eq!(table.held(), 1);
        let permit = table.permit(&key);
        assert!(table.take(&permit, &key).is_some());
        assert!(table.take(&permit, &key).is_none(), "it was there twice");
        assert_eq!(table.held(), 0);
    });
}

#[test]
fn a_look_up_never_sees_a_key_half_written() {
    explore(2, || {
        let table = table(1);
        let (key, next) = (table.key(FIRST, 0), table.key(FIRST, VARIANT));
        enter(&table, &key, filled(NOW, 5));
        let other = on(&table, move |table| enter(table, &next, filled(NOW, 1)));
        let seen = tat(&table, &next);
        assert!(seen.is_none_or(|seen| seen == NOW + STEP), "{seen:?}");
        let seen = tat(&table, &key);
        assert!(seen.is_none_or(|seen| seen == NOW + 5 * STEP), "{seen:?}");
        other.join().expect("no panic");
        assert_eq!(tat(&table, &next), Some(NOW + STEP));
    });
}

/// The cells noted for the first key leave with it: the key that took its slot never collects them.
#[test]
fn a_key_never_collects_what_was_noted_for_the_one_before() {
    explore(3, || {
        let table = table(1);
        let (key, next) = (table.key(FIRST, 0), table.key(FIRST, VARIANT));
        let noted = MovedBucket {
            pending: Cells::new(7),
            ..filled(NOW, 5)
        };
        enter(&table, &key, noted);
        let other = on(&table, move |table| enter(table, &next, filled(NOW, 1)));
        assert_eq!(collect(&table, &next), Cells::ZERO);
        let told = other.join().expect("no panic");
        assert_eq!(told, SlotOrigin::InUse(Cells::new(7)));
    });
}

/// Admits one cell of a bucket of one as `engine/admit.rs` does: from the table, or else from the ghost.
fn admits_known_or_new(table: &Table, key: &TableKey) -> bool {
    if table.tat(key).is_none() {
        let permit = table.permit(key);
        if table.tat(key).is_none() {
            let ghost = table.ghost(key, Nanos::new(NOW));
            if ghost.is_some() {
                return false;
            }
            table.enter(&permit, key, filled(NOW, 1), Nanos::new(NOW));
            return true;
        }
    }
    admits(table, key, NOW, 1)
}

/// The table holds a key in use or remembers it: the key gets its only cell once, even if another key takes its slot.
#[test]
fn a_key_that_has_to_leave_is_never_forgotten() {
    explore(2, || {
        let table = table(1);
        let [first, second] = [FIRST, SECOND].map(|name| table.key(name, 0));
        enter(&table, &first, filled(NOW, 0));
        let evicts = on(&table, move |table| {
            enter(table, &second, filled(NOW, 2));
        });
        let once = admits_known_or_new(&table, &first);
        let twice = admits_known_or_new(&table, &first);
        evicts.join().expect("no panic");
        let again = admits_known_or_new(&table, &first);
        let admitted = [once, twice, again].map(u8::from);
        assert_eq!(admitted.iter().sum::<u8>(), 1, "{admitted:?}");
    });
}

/// Two keys compete for the only slot. The table never holds more than one of them, and its count is right.
#[test]
fn the_bound_holds_while_two_keys_enter() {
    explore(2, || {
        let table = table(1);
        let (key, next) = (table.key(SECOND, 0), table.key(THIRD, 0));
        let other = on(&table, move |table| enter(table, &next, filled(NOW, 1)));
        enter(&table, &key, filled(NOW, 1));
        other.join().expect("no panic");
        let held = [key, next]
            .iter()
            .filter(|key| table.tat(key).is_some())
            .count();
        assert_eq!(table.held(), held as u64);
        assert!(held <= 1);
    });
}

/// Between two collections exactly one note reaches the trigger of a key.
#[test]
fn of_two_notes_one_finds_the_trigger_reached() {
    explore(3, || {
        let table = table(1);
        let key = table.key(FIRST, 0);
        let bucket = MovedBucket {
            trigger: Trigger::at(Cells::new(2)),
            ..filled(NOW, 0)
        };
        enter(&table, &key, bucket);
        let note = move |table: &Table| {
            let admitted = admit(table, &key, NOW, 9).expect("there is room");
            table.book(&admitted.tenancy, Cells::ONE)
        };
        let other = on(&table, note);
        let trigger_reached = [note(&table), other.join().expect("no panic")];
        let triggered = trigger_reached
            .iter()
            .filter(|booked| **booked == Booking::Triggered);
        assert_eq!(triggered.count(), 1);
        assert_eq!(collect(&table, &key), Cells::new(2));
    });
}

/// A key whose cells are in flight keeps its slot, unless its eviction had begun when they were collected. In both
/// cases its cells are in one place.
#[test]
fn a_key_in_flight_keeps_its_slot() {
    explore(2, || {
        let table = table(1);
        let (key, next) = (table.key(FIRST, 0), table.key(FIRST, VARIANT));
        let noted = MovedBucket {
            pending: Cells::new(3),
            ..filled(NOW, 3)
        };
        enter(&table, &key, noted);
        let other = on(&table, move |table| enter(table, &next, filled(NOW, 1)));
        let frozen = table.collect(&key, true).map(|frozen| frozen.cells);
        match (frozen, other.join().expect("no panic")) {
            (Some(cells), SlotOrigin::Nowhere) => {
                assert_eq!(cells, Cells::new(3));
                assert_eq!(enter(&table, &next, filled(NOW, 1)), SlotOrigin::Nowhere);
                table.land(&key, Trigger::EACH, false);
                let after = enter(&table, &next, filled(NOW, 1));
                assert_eq!(after, SlotOrigin::InUse(Cells::ZERO));
            }
            (frozen, SlotOrigin::InUse(lost)) => {
                assert_eq!(frozen.unwrap_or(Cells::ZERO).plus(lost), Cells::new(3));
            }
            (frozen, entered) => panic!("{frozen:?} and {entered:?}"),
        }
    });
}

/// A fold takes in the whole rise of the level, whatever is admitted meanwhile, and no admission is lost.
#[test]
fn a_fold_and_an_admission_both_count() {
    explore(3, || {
        let table = table(1);
        let key = table.key(FIRST, 0);
        enter(&table, &key, filled(NOW, 2));
        let frozen = table.collect(&key, true).expect("it is held");
        let other = on(&table, move |table| admits(table, &key, NOW, 9));
        // The fleet has used four cells more than this pod knew.
        let moved = |tat: Nanos| (Some(Nanos::new(tat.get() + 4 * STEP)), ());
        let _ = table.touch(&key, moved);
        table.land(&key, Trigger::EACH, false);
        assert!(other.join().expect("no panic"));
        assert_eq!(tat(&table, &key), Some(frozen.tat.get() + 5 * STEP));
    });
}

/// While a pod folds an answer, callers refund two of the three cells in it and use another one. The refund has the
/// order of `engine/refund.rs`: it lowers the bucket, then unbooks the pending cells, then notifies the sync. Whatever
/// the fold sees of that, it leaves no less than is used; and once it sees all of it, no more.
#[test]
fn a_fold_never_leaves_less_than_was_not_refunded() {
    explore(2, || {
        let table = table(1);
        let key = table.key(FIRST, 0);
        enter(&table, &key, filled(NOW, 3));
        let frozen = table.collect(&key, true).expect("it is held").tat;
        let told = Arc::new(loom::sync::atomic::AtomicU64::new(0));
        let (rounds, due) = (table.clone(), told.clone());
        let refund = thread::spawn(move || {
            let step = |tat: Nanos| (Some(Nanos::new((tat.get() - 2 * STEP).max(NOW))), ());
            let Touch::Held((), tenancy) = rounds.touch(&key, step) else {
                unreachable!("it is held");
            };
            let unreported = rounds.unbook(&tenancy, Cells::new(2)).get();
            due.fetch_add(2 - unreported, loom::sync::atomic::Ordering::AcqRel);
        });
        let check = on(&table, move |table| {
            let admitted = admit(table, &key, NOW, 9).expect("there is room");
            table.book(&admitted.tenancy, Cells::ONE);
        });
        let fold = || {
            let due = told.load(loom::sync::atomic::Ordering::Acquire);
            let _ = table.touch(&key, |tat| {
                let pending = table.pending(&key).unwrap_or(Cells::ZERO).get();
                // The store has the frozen cells, and nothing else.
                let least = frozen.get() - due * STEP + pending * STEP;
                (Some(Nanos::new(tat.get().clamp(least, least + STEP))), ())
            });
            tat(&table, &key).expect("it is held")
        };
        let folded = fold();
        refund.join().expect("no panic");
        check.join().expect("no panic");
        let used = NOW + 2 * STEP;
        assert!(tat(&table, &key) >= Some(used), "{folded}");
        // One cell of slack: an admitted check may not be noted yet.
        assert!((used..=used + STEP).contains(&fold()));
    });
}

/// A reset removes a key while another key, with a permit of its own, evicts it. Neither a bucket nor a ghost remains.
#[test]
fn a_reset_leaves_no_ghost_behind() {
    explore(2, || {
        let table = table(1);
        let [first, second] = [SECOND, THIRD].map(|name| table.key(name, 0));
        enter(&table, &first, filled(NOW, 2));
        let evicts = on(&table, move |table| {
            enter(table, &second, filled(NOW, 2));
        });
        let permit = table.permit(&first);
        let _ = table.take(&permit, &first);
        table.forget_ghost(&permit, &first);
        drop(permit);
        evicts.join().expect("no panic");
        assert_eq!(tat(&table, &first), None);
        assert_eq!(table.ghost(&first, Nanos::new(NOW)), None);
    });
}
