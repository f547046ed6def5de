//! A listener that always lets the next connection in: when every seat is taken, another connection gives its own up.
//!
//! Connections that have not sent a byte go first, then those that have; among either, the one that was silent longest.
//! So however many connect and say nothing, one that has sent its request keeps its seat. Half of the seats are left to
//! those that are yet to speak: whoever fills all seats with half a request does not keep a newcomer from sending his.
//! And who has to go is heard first: a request that has arrived by then is read, and answered if that takes no waiting.
//!
//! For probes and scrapes, which must get in whoever else holds connections open. It costs a connection a little with
//! everything that is read or written, so the doors for checks do without.

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

use super::listen::{Drain, Speak};

/// Descriptors that are kept for connections to come when the process has no other left.
pub const SPARES_MAX: usize = 4;

/// Has `speaker` speak on connections that give way to new ones.
#[derive(Clone, Debug)]
pub struct GivingWay<S> {
    speaker: S,
    seats: Arc<Seats>,
}

impl<S: Speak> GivingWay<S> {
    /// Connections that give way are counted by `gave_way`.
    pub fn new(speaker: S, gave_way: Counter) -> Self {
        let seats = Arc::new(Seats {
            taken: Mutex::default(),
            spares: Mutex::default(),
            uses: AtomicU64::new(0),
            gave_way,
        });
        seats.keep_spares();
        Self { speaker, seats }
    }
}

impl<S: Speak> Speak for GivingWay<S> {
    const BUSY: &'static [u8] = S::BUSY;

    fn make_way(&self) -> bool {
        self.seats.make_way()
    }

    fn free_descriptor(&self) -> bool {
        // A spare is free at once; a connection that gives way, in a moment.
        self.seats.lock_spares().pop().is_some() || {
            self.seats.make_way();
            false
        }
    }

    fn speak<T>(self, stream: T, drain: Drain) -> impl Future<Output = ()> + Send
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self { speaker, seats } = self;
        // The seat is taken here and not in the task: the next connection may come before the task runs.
        let (seat, leave) = Seat::take(&seats);
        let stream = Noted {
            stream,
            used: Arc::clone(&seat.used),
            seats,
        };
        let leaves = async {
            let _ = leave.await;
            // The runtime looks what has arrived before it comes back to this task.
            tokio::task::yield_now().await;
        };
        async move {
            tokio::select! {
                biased;
                () = speaker.speak(stream, drain) => {}
                () = leaves => {}
            }
            drop(seat);
        }
    }
}

/// The bit that says that a connection has sent something. `uses` does not count so far.
const SPOKEN: u64 = 1 << 63;

#[derive(Debug)]
struct Seats {
    taken: Mutex<Vec<Taken>>,
    spares: Mutex<Vec<File>>,
    /// Counts up with everything that any connection reads or writes.
    uses: AtomicU64,
    gave_way: Counter,
}

#[derive(Debug)]
struct Taken {
    /// What `uses` was when the connection last read or wrote something, with [`SPOKEN`] once it has sent a byte.
    used: Arc<AtomicU64>,
    /// Dropped, it ends the connection.
    _leave: oneshot::Sender<()>,
}

impl Seats {
    fn lock(&self) -> MutexGuard<'_, Vec<Taken>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_spares(&self) -> MutexGuard<'_, Vec<File>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the next use. Ordering: Relaxed, here and where it is compared: who was silent longest need not be
    /// exact, and everybody leaves in the end.
    fn use_now(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed)
    }

    /// Ends a connection, as the header says. False if there is none.
    fn make_way(&self) -> bool {
        let mut taken = self.lock();
        let used = |seat: &Taken| seat.used.load(Ordering::Relaxed);
        let silent = taken.iter().filter(|seat| used(seat) < SPOKEN).count();
        // Where the silent are few, they are kept and the others go.
        let is_kept = |used: u64| (used < SPOKEN) == (silent < taken.len().div_ceil(2));
        let order = |index: &usize| {
            taken
                .get(*index)
                .map(|seat| (is_kept(used(seat)), used(seat)))
        };
        let Some(leaves) = (0..taken.len()).min_by_key(order) else {
            return false;
        };
        taken.swap_remove(leaves);
        self.gave_way.increment(1);
        true
    }

    /// Has as many spare descriptors as it should, if the system has them.
    fn keep_spares(&self) {
        let mut spares = self.lock_spares();
        while spares.len() < SPARES_MAX {
            match File::open("/dev/null") {
                Ok(spare) => spares.push(spare),
                Err(_) => return,
            }
        }
    }
}

/// One connection's seat.
struct Seat {
    seats: Arc<Seats>,
    used: Arc<AtomicU64>,
}

impl Seat {
    /// A seat, and what ends when it has to be left.
    fn take(seats: &Arc<Seats>) -> (Self, oneshot::Receiver<()>) {
        let (leave, left) = oneshot::channel();
        let used = Arc::new(AtomicU64::new(seats.use_now()));
        seats.lock().push(Taken {
            used: Arc::clone(&used),
            _leave: leave,
        });
        let seats = Arc::clone(seats);
        (Self { seats, used }, left)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.lock();
        taken.retain(|other| !Arc::ptr_eq(&other.used, &self.used));
        drop(taken);
        // The connection's own descriptor is free now.
        self.seats.keep_spares();
    }
}

/// A stream that notes when it is used.
struct Noted<T> {
    stream: T,
    used: Arc<AtomicU64>,
    seats: Arc<Seats>,
}

impl<T> Noted<T> {
    /// Something was read or written. `spoken`: the client has sent a byte, now or before.
    fn note(&self, spoken: bool) {
        let spoken = spoken || self.used.load(Ordering::Relaxed) >= SPOKEN;
        let used = self.seats.use_now() | if spoken { SPOKEN } else { 0 };
        self.used.store(used, Ordering::Relaxed);
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Noted<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, into);
        if matches!(read, Poll::Ready(Ok(()))) {
            this.note(into.filled().len() > before);
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Noted<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        if matches!(written, Poll::Ready(Ok(_))) {
            this.note(false);
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
