//! Which program a client is, best effort: see [`pleach_linux::owner`].
//!
//! A look-up takes milliseconds, so it runs on a thread beside, and at most [`PER_WINDOW`] are made in [`LENGTH`];
//! whoever comes beyond that stays unknown and is judged by its port.

use std::{cell::Cell, net::SocketAddr, time::Duration};

use pleach_core::time::Instant;
use pleach_linux::{clock, owner};
use tokio::{task::spawn_blocking, time};

/// Counts look-ups.
#[derive(Debug, Default)]
pub(crate) struct Apps {
    window: Cell<(Instant, u32)>,
}

impl Apps {
    /// The name of the program of this host at `client`, which has connected to `proxy` as it sees it.
    pub(crate) async fn find(&self, client: SocketAddr, proxy: SocketAddr) -> Option<String> {
        let canonical =
            |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let (client, proxy) = (canonical(client), canonical(proxy));
        // Clients elsewhere have no socket here, which is known at once.
        let socket = owner::socket(client, proxy).ok()?;
        if !self.may_look(clock::now()) {
            return None;
        }
        let look = move || owner::process_name(socket.inode);
        let found = time::timeout(PATIENCE, spawn_blocking(look)).await;
        found.ok()?.ok().flatten()
    }

    fn may_look(&self, now: Instant) -> bool {
        let (began_at, count) = self.window.get();
        if now.since(began_at) > LENGTH || count == 0 {
            self.window.set((now, 1));
            return true;
        }
        self.window.set((began_at, count.saturating_add(1)));
        count < PER_WINDOW
    }
}

/// The program decides which link is best, no more: a client does not wait longer for that.
const PATIENCE: Duration = Duration::from_secs(1);
/// Five percent of a core at 4 ms each.
const PER_WINDOW: u32 = 16;
const LENGTH: Duration = Duration::from_millis(1250);
