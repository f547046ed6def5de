//! Requests of the doors and the admin API to the store. They do not know who sends them.
//!
//! A check of a `strict` rule takes its cells in the store; an operator reads a key fleet-wide or resets it. The driver of
//! the sync sends these requests; without a store there is none.

use std::fmt;
use std::sync::Arc;

use crate::pure::sync::{StoreKey, StoreState, Take, TakeReply, Terms};

/// The store did not do it: it cannot be reached, or did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreFailure;

/// Takes the result of a request. Returns whether the requester still waited for it; if not, cells that the store took are
/// given back.
pub type Responder<T> = Box<dyn FnOnce(Result<T, StoreFailure>) -> bool + Send>;

/// A request to the store.
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

/// Where doors and the admin API submit their requests. If it is full or closed, a request fails at once.
#[derive(Clone)]
pub struct StoreClient(Option<Arc<Submit>>);

/// Takes a request, or hands it back.
type Submit = dyn Fn(StoreRequest) -> Result<(), StoreRequest> + Send + Sync;

impl fmt::Debug for StoreClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreClient")
    }
}

impl StoreClient {
    /// The client of a pod without a store.
    pub const CLOSED: Self = Self(None);

    /// A client whose requests `take` sends, or hands back when there are too many.
    pub fn new(
        take: impl Fn(StoreRequest) -> Result<(), StoreRequest> + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(take)))
    }

    /// Whether there is a store.
    pub const fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Submits a request.
    pub fn submit(&self, store_request: StoreRequest) {
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
