//! A listener that always lets the next connection in: when every slot is taken, it evicts another connection.
//!
//! It evicts connections that have not sent a byte first, then those that have; among either, the one that was silent
//! longest. So however many clients connect and say nothing, one that has sent its request keeps its slot. Half of the
//! slots are left to connections that have not sent anything yet: whoever fills all slots with half a request does not
//! keep a newcomer from sending a whole one. An evicted connection gets one more turn: a request that has arrived by
//! then is read, and answered if that takes no waiting.
//!
//! For probes and scrapes, which must get in whoever else holds connections open. It costs a connection a little with
//! every read and write, so the doors for checks do without.

use std::fs::File;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use metrics::Counter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::accept::ConnectionHandler;
use super::drain::Drain;

/// Descriptors that are kept for new connections, for when the process has no other left.
pub const SPARE_DESCRIPTORS_MAX: usize = 4;

/// Has `handler` serve connections that may be evicted for new ones.
#[derive(Clone, Debug)]
pub struct EvictingHandler<H> {
    handler: H,
    slots: Arc<ConnectionSlots>,
}

impl<H: ConnectionHandler> EvictingHandler<H> {
    /// `evicted` counts the connections that were evicted.
    pub fn new(handler: H, evicted: Counter) -> Self {
        let slots = Arc::new(ConnectionSlots {
            taken: Mutex::default(),
            spares: Mutex::default(),
            uses: AtomicU64::new(0),
            evicted,
        });
        slots.keep_spares();
        Self { handler, slots }
    }
}

impl<H: ConnectionHandler> ConnectionHandler for EvictingHandler<H> {
    const BUSY: &'static [u8] = H::BUSY;

    fn evict_one(&self) -> bool {
        self.slots.evict_one()
    }

    fn free_descriptor(&self) -> bool {
        // A spare is free at once; the descriptor of an evicted connection, in a moment.
        self.slots.lock_spares().pop().is_some() || {
            self.slots.evict_one();
            false
        }
    }

    fn handle<T>(self, stream: T, drain: Drain) -> impl Future<Output = ()> + Send
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self { handler, slots } = self;
        // It takes the slot here and not in the task: the next connection may come before the task runs.
        let (slot, eviction) = ConnectionSlot::take(&slots);
        let stream = ActivityStream {
            stream,
            used: Arc::clone(&slot.used),
            slots,
        };
        let evicted = async {
            let _ = eviction.await;
            // The runtime looks what has arrived before it comes back to this task.
            tokio::task::yield_now().await;
        };
        async move {
            tokio::select! {
                biased;
                () = handler.handle(stream, drain) => {}
                () = evicted => {}
            }
            drop(slot);
        }
    }
}

/// The bit that says that the client has sent something. `uses` does not count so far.
const HAS_SENT: u64 = 1 << 63;

#[derive(Debug)]
struct ConnectionSlots {
    taken: Mutex<Vec<SlotRecord>>,
    spares: Mutex<Vec<File>>,
    /// Counts up with every read and write of any connection.
    uses: AtomicU64,
    evicted: Counter,
}

#[derive(Debug)]
struct SlotRecord {
    /// What `uses` was at the connection's last read or write, with [`HAS_SENT`] once the client has sent a byte.
    used: Arc<AtomicU64>,
    /// Dropping it evicts the connection.
    _eviction: oneshot::Sender<()>,
}

impl ConnectionSlots {
    fn lock(&self) -> MutexGuard<'_, Vec<SlotRecord>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_spares(&self) -> MutexGuard<'_, Vec<File>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the next use. Ordering: Relaxed, here and where it is compared: which connection was silent
    /// longest need not be exact.
    fn use_now(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed)
    }

    /// Evicts a connection, in the order of this file's header. False if there is none.
    fn evict_one(&self) -> bool {
        let mut taken = self.lock();
        let used = |slot: &SlotRecord| slot.used.load(Ordering::Relaxed);
        let silent = taken.iter().filter(|slot| used(slot) < HAS_SENT).count();
        // Where the silent ones are few, they stay and the others go.
        let is_kept = |used: u64| (used < HAS_SENT) == (silent < taken.len().div_ceil(2));
        let order = |index: &usize| {
            taken
                .get(*index)
                .map(|slot| (is_kept(used(slot)), used(slot)))
        };
        let Some(victim) = (0..taken.len()).min_by_key(order) else {
            return false;
        };
        taken.swap_remove(victim);
        self.evicted.increment(1);
        true
    }

    /// Opens as many spare descriptors as it should have, if the system has them.
    fn keep_spares(&self) {
        let mut spares = self.lock_spares();
        while spares.len() < SPARE_DESCRIPTORS_MAX {
            match File::open("/dev/null") {
                Ok(spare) => spares.push(spare),
                Err(_) => return,
            }
        }
    }
}

/// One connection's slot.
struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    used: Arc<AtomicU64>,
}

impl ConnectionSlot {
    /// A slot, and what ends when the connection is evicted from it.
    fn take(slots: &Arc<ConnectionSlots>) -> (Self, oneshot::Receiver<()>) {
        let (sender, eviction) = oneshot::channel();
        let used = Arc::new(AtomicU64::new(slots.use_now()));
        slots.lock().push(SlotRecord {
            used: Arc::clone(&used),
            _eviction: sender,
        });
        let slots = Arc::clone(slots);
        (Self { slots, used }, eviction)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.lock();
        taken.retain(|other| !Arc::ptr_eq(&other.used, &self.used));
        drop(taken);
        // The connection's own descriptor is free now.
        self.slots.keep_spares();
    }
}

/// A stream that records when it was last used.
struct ActivityStream<T> {
    stream: T,
    used: Arc<AtomicU64>,
    slots: Arc<ConnectionSlots>,
}

impl<T> ActivityStream<T> {
    /// Records a read or a write. `has_sent`: the client has sent a byte just now.
    fn record_use(&self, has_sent: bool) {
        let has_sent = has_sent || self.used.load(Ordering::Relaxed) >= HAS_SENT;
        let used = self.slots.use_now() | if has_sent { HAS_SENT } else { 0 };
        self.used.store(used, Ordering::Relaxed);
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ActivityStream<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, into);
        if matches!(read, Poll::Ready(Ok(()))) {
            this.record_use(into.filled().len() > before);
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ActivityStream<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        if matches!(written, Poll::Ready(Ok(_))) {
            this.record_use(false);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
