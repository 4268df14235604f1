//! A service of clients of a test's own, which is asked by HTTP and misbehaves on request.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// A running service. Dropping it ends the service.
pub(crate) struct Service {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

/// What the service knows, and how it behaves.
#[derive(Default)]
pub(crate) struct State {
    /// Descriptions of clients by public key.
    clients: BTreeMap<String, Value>,
    /// Public keys of clients that have changed, from number 1 on.
    changes: Vec<String>,
    /// The requests so far, without those for changes.
    pub(crate) asked: Vec<String>,
    /// Id of the service.
    pub(crate) id: String,
    /// Number of the first change that is still in the list.
    pub(crate) first: usize,
    /// Answers nothing.
    pub(crate) hangs: bool,
    /// Number of requests that are not answered, while their connections stay open.
    pub(crate) mutes: usize,
    /// Closes every connection.
    pub(crate) is_away: bool,
    /// Answer to every request for a client whose query contains the first text, instead of the right one.
    pub(crate) fault: Option<(String, Vec<u8>)>,
    /// Time that an answer about a client takes.
    pub(crate) delay: Duration,
    is_over: bool,
}

impl Service {
    /// Serves `listener`. `wrap` makes an encrypted stream of a connection.
    pub(crate) fn start<S: Read + Write>(
        listener: TcpListener,
        wrap: impl Fn(TcpStream) -> S + Clone + Send + 'static,
    ) -> Self {
        let address = listener.local_addr().expect("bound");
        listener.set_nonblocking(true).expect("set");
        let state = Arc::new(Mutex::new(State {
            id: "one".to_owned(),
            first: 1,
            ..State::default()
        }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            while !lock(&shared).is_over {
                let Ok((stream, _)) = listener.accept() else {
                    thread::park_timeout(Duration::from_millis(5));
                    continue;
                };
                let (shared, wrap) = (Arc::clone(&shared), wrap.clone());
                thread::spawn(move || {
                    stream.set_nonblocking(false).expect("set");
                    // A client that goes away, or does not trust the service, ends the connection.
                    let _ = serve(wrap(stream), &shared);
                });
            }
        });
        Self { address, state }
    }

    /// Returns the address for `[clients] store`.
    pub(crate) fn store(&self, scheme: &str) -> String {
        format!("{scheme}://{}/v1/", self.address)
    }

    /// Returns the state, which the service cannot use meanwhile.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Adds or changes a client.
    pub(crate) fn put(&self, public_key: &str, name: &str, allowed_ips: &[&str]) {
        let client = json!({
            "name": name,
            "public_key": public_key,
            "allowed_ips": allowed_ips,
        });
        self.put_as(public_key, client);
    }

    /// Adds or changes a client with all that is known about it.
    pub(crate) fn put_as(&self, public_key: &str, client: Value) {
        let mut state = self.state();
        state.clients.insert(public_key.to_owned(), client);
        state.changes.push(public_key.to_owned());
    }

    /// Removes a client.
    pub(crate) fn remove(&self, public_key: &str) {
        let mut state = self.state();
        state.clients.remove(public_key);
        state.changes.push(public_key.to_owned());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.state().is_over = true;
    }
}

impl State {
    /// Returns the answer to a request for `target`, with its status.
    fn answer(&mut self, target: &str) -> (u16, Value) {
        let after = target.strip_prefix("/v1/changes?after=");
        if let Some(after) = after.and_then(|after| after.parse::<usize>().ok()) {
            let keys = self.changes.iter().skip(after.max(self.first - 1));
            let list = json!({
                "store": self.id,
                "first": self.first,
                "last": self.changes.len(),
                "public_keys": keys.collect::<Vec<_>>(),
            });
            return (200, list);
        }
        let Some(key) = target.strip_prefix("/v1/clients?public_key=") else {
            return (404, json!({ "detail": "not found" }));
        };
        let key = key
            .replace("%2B", "+")
            .replace("%2F", "/")
            .replace("%3D", "=");
        self.asked.push(key.clone());
        match self.clients.get(&key) {
            Some(client) => (200, client.clone()),
            None => (404, json!({ "public_key": key })),
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Answers the requests of one connection.
fn serve(mut stream: impl Read + Write, state: &Mutex<State>) -> io::Result<()> {
    while let Some(head) = head(&mut stream)? {
        let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let is_client = target.contains("/clients?");
        while lock(state).hangs && !lock(state).is_over {
            thread::park_timeout(Duration::from_millis(50));
        }
        let answer = {
            let mut state = lock(state);
            if state.mutes > 0 {
                state.mutes -= 1;
                continue;
            }
            if state.is_away || state.is_over {
                return Ok(());
            }
            let is_known = head.contains(&format!("Bearer {TOKEN}\r\n"));
            let (status, body) = if is_known {
                state.answer(&target)
            } else {
                (401, json!({ "detail": "unknown token" }))
            };
            let fault = state
                .fault
                .as_ref()
                .filter(|(part, _)| target.contains(part.as_str()));
            fault.map_or_else(
                || text(status, &body.to_string()),
                |(_, fault)| fault.clone(),
            )
        };
        // The answer may be outdated when it arrives.
        let delay = lock(state).delay;
        if is_client && !delay.is_zero() {
            thread::park_timeout(delay);
        }
        stream.write_all(&answer)?;
        stream.flush()?;
    }
    Ok(())
}

/// Reads the head of a request. `None` when the connection ends.
fn head(stream: &mut impl Read) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte)? == 0 {
            return Ok(None);
        }
        head.push(byte[0]);
    }
    // Names of headers may be in lower case.
    Ok(String::from_utf8(head).ok())
}

/// Returns an answer with a body.
pub(crate) fn text(status: u16, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} Status\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// The token that the service expects.
pub(crate) const TOKEN: &str = "gateway-7";
