//! Identifies the program that opened a client connection, or that sends UDP datagrams, as far as possible: see
//! [`pleach_linux::owner`].
//!
//! A look-up takes milliseconds, so it runs on another thread, and at most [`PER_WINDOW`] look-ups for each transport
//! protocol begin in [`LENGTH`]. One look-up runs at a time. A client beyond the limit, or whose look-up does not end within
//! [`PATIENCE`], remains unknown and is classified by its port.

use std::{cell::Cell, net::SocketAddr, sync::Arc, time::Duration};

use pleach_core::time::Instant;
use pleach_linux::{
    clock,
    owner::{self, Finder, Transport},
};
use tokio::{sync::Semaphore, task::spawn_blocking, time};

/// Identifies programs, and limits the number of look-ups.
#[derive(Debug)]
pub(crate) struct Apps {
    /// Process that looks up programs; `None`: this process does.
    finder: Option<Arc<Finder>>,
    /// Permit of the look-up that runs: a slow search occupies one thread, not one for each client.
    one: Arc<Semaphore>,
    tcp: Window,
    udp: Window,
}

/// Beginning of a time window, and number of look-ups since then.
#[derive(Debug, Default)]
struct Window(Cell<(Instant, u32)>);

impl Apps {
    pub(crate) fn new(finder: Option<Arc<Finder>>) -> Self {
        Self {
            finder,
            one: Arc::new(Semaphore::new(1)),
            tcp: Window::default(),
            udp: Window::default(),
        }
    }

    /// Returns the name of the local program whose socket at `client` is connected to `remote`, or with UDP receives
    /// datagrams from there. With UDP, `client` must be an address of this host.
    pub(crate) async fn find(
        &self,
        transport: Transport,
        client: SocketAddr,
        remote: SocketAddr,
    ) -> Option<String> {
        // A client on another host has no socket here, so the search ends at once.
        let socket = owner::socket(transport, client, remote).ok()?;
        let window = match transport {
            Transport::Tcp => &self.tcp,
            Transport::Udp => &self.udp,
        };
        if !window.may_look(clock::now()) {
            return None;
        }
        let finder = self.finder.clone();
        let one = Arc::clone(&self.one);
        let look = async move {
            let permit = one.acquire_owned().await.ok()?;
            let found = spawn_blocking(move || {
                // Held until the search has ended, even if nobody waits for it any more.
                let _permit = permit;
                owner::find_name(finder.as_deref(), socket.inode)
            });
            found.await.ok().flatten()
        };
        time::timeout(PATIENCE, look).await.ok().flatten()
    }
}

impl Window {
    fn may_look(&self, now: Instant) -> bool {
        let (began_at, count) = self.0.get();
        if now.since(began_at) > LENGTH || count == 0 {
            self.0.set((now, 1));
            return true;
        }
        self.0.set((began_at, count.saturating_add(1)));
        count < PER_WINDOW
    }
}

/// Maximum time that a client waits for the look-up. The program's name only helps to choose the best link.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of look-ups per [`LENGTH`] and transport protocol: 5 % of a core at 4 ms each.
const PER_WINDOW: u32 = 16;
const LENGTH: Duration = Duration::from_millis(1250);
