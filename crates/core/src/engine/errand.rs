//! What doors and the admin API ask of the store, without knowing who carries it there.
//!
//! A check of a `strict` rule takes its cells in the store; an operator looks at a key fleet-wide or resets it. Whoever
//! drives the rounds takes these errands; without a store nobody does.

use std::fmt;
use std::sync::Arc;

use crate::pure::sync::{StoreKey, Take, Taken, Terms, Told};

/// The store did not do it: it cannot be reached, or did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undone;

/// Who is told how an errand ended; answers whether somebody still waited for that. What was taken for nobody is given
/// back.
pub type Report<T> = Box<dyn FnOnce(Result<T, Undone>) -> bool + Send>;

/// Something the store is asked for.
pub enum Errand {
    /// Take cells, if they are there.
    Take(Take, Report<Taken>),
    /// Give back what was taken.
    GiveBack(Take),
    /// How a key stands.
    Read(StoreKey, Terms, Report<Told>),
    /// Forget a key, on every pod.
    Reset(StoreKey, Report<()>),
}

/// Where errands are left. A desk that is full or closed answers at once that it is not done.
#[derive(Clone)]
pub struct Desk(Option<Arc<Carrier>>);

/// Takes an errand, or hands it back.
type Carrier = dyn Fn(Errand) -> Result<(), Errand> + Send + Sync;

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Desk")
    }
}

impl Desk {
    /// Of a pod without a store.
    pub const CLOSED: Self = Self(None);

    /// A desk whose errands `take` carries, or gives back when there are too many.
    pub fn new(take: impl Fn(Errand) -> Result<(), Errand> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(take)))
    }

    /// Whether there is a store.
    pub const fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Leaves an errand.
    pub fn leave(&self, errand: Errand) {
        let refused = match &self.0 {
            Some(take) => take(errand).err(),
            None => Some(errand),
        };
        match refused {
            Some(Errand::Take(_, report)) => report(Err(Undone)),
            Some(Errand::Read(_, _, report)) => report(Err(Undone)),
            Some(Errand::Reset(_, report)) => report(Err(Undone)),
            Some(Errand::GiveBack(_)) | None => true,
        };
    }
}
