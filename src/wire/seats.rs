//! A listener that always lets the next connection in: when every seat is taken, the connection that was silent longest
//! gives its own up.
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
        async move {
            tokio::select! {
                () = speaker.speak(stream, drain) => {}
                _ = leave => {}
            }
            drop(seat);
        }
    }
}

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
    /// What `uses` was when the connection last read or wrote something.
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

    /// Ends the connection that was silent longest. False if there is none.
    fn make_way(&self) -> bool {
        let mut taken = self.lock();
        let used = |index: &usize| {
            taken
                .get(*index)
                .map(|seat| seat.used.load(Ordering::Relaxed))
        };
        let Some(silent) = (0..taken.len()).min_by_key(used) else {
            return false;
        };
        taken.swap_remove(silent);
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

impl<T: Unpin> Noted<T> {
    /// What the stream within does; noted if it did something.
    fn noting<R>(
        self: Pin<&mut Self>,
        act: impl FnOnce(Pin<&mut T>) -> Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        let this = self.get_mut();
        let done = act(Pin::new(&mut this.stream));
        if matches!(done, Poll::Ready(Ok(_))) {
            this.used.store(this.seats.use_now(), Ordering::Relaxed);
        }
        done
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Noted<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.noting(|stream| stream.poll_read(context, into))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Noted<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.noting(|stream| stream.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
