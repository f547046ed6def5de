//! What doors and the admin API ask of the store, without knowing who carries it there.
//!
//! A check of a `strict` rule takes its cells in the store; an operator looks at a key fleet-wide or resets it. Whoever
//! drives the rounds takes these errands; without a store nobody does.

use std::fmt;
use std::sync::Arc;

use crate::pure::sync::{StoreKey, StoreState, Take, TakeReply, Terms};

/// The store did not do it: it cannot be reached, or did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreFailure;

/// Who is told how an errand ended; answers whether somebody still waited for that. What was taken for nobody is given
/// back.
pub type Responder<T> = Box<dyn FnOnce(Result<T, StoreFailure>) -> bool + Send>;

/// Something the store is asked for.
pub enum StoreRequest {
    /// Take cells, if they are there.
    Take(Take, Responder<TakeReply>),
    /// Give back what was taken.
    GiveBack(Take),
    /// How a key stands.
    Read(StoreKey, Terms, Responder<StoreState>),
    /// Forget a key, on every pod.
    Reset(StoreKey, Responder<()>),
}

/// Where errands are left. A desk that is full or closed answers at once that it is not done.
#[derive(Clone)]
pub struct StoreClient(Option<Arc<Submit>>);

/// Takes an errand, or hands it back.
type Submit = dyn Fn(StoreRequest) -> Result<(), StoreRequest> + Send + Sync;

impl fmt::Debug for StoreClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Desk")
    }
}

impl StoreClient {
    /// Of a pod without a store.
    pub const CLOSED: Self = Self(None);

    /// A desk whose errands `take` carries, or gives back when there are too many.
    pub fn new(
        take: impl Fn(StoreRequest) -> Result<(), StoreRequest> + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(take)))
    }

    /// Whether there is a store.
    pub const fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Leaves an errand.
    pub fn leave(&self, store_request: StoreRequest) {
        let refused = match &self.0 {
            Some(take) => take(store_request).err(),
            None => Some(store_request),
        };
        match refused {
            Some(StoreRequest::Take(_, respond)) => respond(Err(StoreFailure)),
            Some(StoreRequest::Read(_, _, respond)) => respond(Err(StoreFailure)),
            Some(StoreRequest::Reset(_, respond)) => respond(Err(StoreFailure)),
            Some(StoreRequest::GiveBack(_)) | None => true,
        };
    }
}
