//! The thread that asks the store of clients, so that packets do not wait for a database.
//!
//! A database on this host or beside it answers in less than a millisecond, so the thread asks it itself. A store that
//! answers over the Internet is asked by further threads ([`lookers`]), and this one only decides.
//!
//! It answers the engine's questions about unknown keys, asks for changes every [`LOOK_EVERY`], asks again about known
//! clients when an answer is older than `[clients] answer_life`, and writes byte counters. In a fleet it also writes which
//! clients have connected, and asks which ones have left for another gateway ([`arrivals`]). While the store cannot be
//! read, clients that are connected stay so, and others are served from the last answers ([`answers`]); clients without an answer
//! are refused.
//!
//! Bounds: a number of questions of each engine wait ([`Asker`]); the thread asks again about known clients for [`AGAIN_FOR`]
//! at a time, and serves new clients in between.

mod answers;
mod arrivals;
mod handle;
mod lookers;
mod trouble;
mod unkept;

use std::{
    collections::BTreeSet,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    time::Duration,
};

use ipnet::IpNet;
use pleach_core::{endpoint::enrolment::EnrolmentRequest, time::Instant};
use pleach_linux::{clock, poll::Waker};

use answers::Answers;
use arrivals::Arrivals;
pub(super) use handle::{Asker, Start};
use lookers::{Lookers, Told};
use trouble::Trouble;

use super::ledger::Batches;
use crate::{
    clients::{Arrived, Changed, ClientStore, Departures, Found, Mark, StoreError, StoredClient},
    keys::{self, KEY_LEN},
    onboard::store::Refusal,
};

/// Something for the data path to do.
#[derive(Debug)]
pub(super) enum Answer {
    /// A known client has changed.
    Changed(StoredClient),
    /// These clients have connected here, and another gateway of the fleet may still announce them.
    Contested(BTreeSet<[u8; KEY_LEN]>),
    /// These clients have connected to another gateway of the fleet.
    Departed(Departures),
    /// A client of the store exists no more.
    Gone([u8; KEY_LEN]),
    /// No other gateway of the fleet announces these clients any more.
    Settled(BTreeSet<[u8; KEY_LEN]>),
    /// The store can be read or written again (`None`), or cannot (the reason).
    State(Option<String>),
    /// The answer to a question of the engine.
    Told {
        /// Ticket of the question.
        ticket: u64,
        /// The client, or why it is refused.
        client: Result<StoredClient, Refused>,
    },
}

/// Why a client is refused before the engine knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Refused {
    /// The client's row is wrong, or has an address outside of the networks of the gateway.
    BadRow,
    /// Its name or an address belongs to another client.
    Clash,
    /// The store does not know it.
    Unknown,
    /// The store cannot be read, and there is no former answer.
    Unreadable,
}

impl Refused {
    /// Returns the key under which the refusals are counted in the status.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::BadRow => "bad_row",
            Self::Clash => "clash",
            Self::Unknown => "unknown",
            Self::Unreadable => "unreadable",
        }
    }
}

/// A message of the data path to the thread.
enum Note {
    /// The engine has this client now.
    Admitted([u8; KEY_LEN]),
    /// This client has connected at this time.
    Arrived([u8; KEY_LEN], Instant),
    Ask(Box<EnrolmentRequest>),
    /// This client was refused, because its name or an address belongs to another one.
    Clashed([u8; KEY_LEN]),
    /// The gateway stops, or has stopped.
    End,
    /// The engine has forgotten this client.
    Forgotten([u8; KEY_LEN]),
    /// What the store has told another thread.
    Told(Told),
}

/// The state of the thread.
struct Asking {
    store: Box<dyn ClientStore>,
    /// Threads that ask the store; `None` if this one does.
    lookers: Option<Lookers>,
    networks: Vec<IpNet>,
    answer_life: Duration,
    write_every: Duration,
    own_key: [u8; KEY_LEN],
    answers: Answers,
    mark: Mark,
    trouble: Trouble,
    batches: Batches,
    /// Clients that have connected; `None` outside of a fleet.
    arrivals: Option<Arrivals>,
    /// Refused clients that the log has named. Bounded by [`MAX_LOGGED`].
    logged: BTreeSet<[u8; KEY_LEN]>,
    next_look: Instant,
    next_write: Instant,
    /// Clients that have changed. They are asked about before those of `again`.
    changed: BTreeSet<[u8; KEY_LEN]>,
    /// Known clients that are to be asked about again, and the key from which on they have their turn.
    again: BTreeSet<[u8; KEY_LEN]>,
    next_again: [u8; KEY_LEN],
    /// Whether a known client could not be looked up again since the last list of changes; further ones wait for the next.
    is_paused: bool,
    out: Out,
}

/// A client that may be served.
struct Decided {
    client: StoredClient,
    /// For how long the answer holds; `None`: it is an old one, and does not become younger.
    life: Option<Duration>,
}

/// Where answers go.
struct Out {
    answer: Sender<Answer>,
    /// One element for each question that is not answered.
    taken: Receiver<()>,
    waker: Waker,
}

impl Out {
    fn tell(&self, answer: Answer) {
        // The data path may be stopping.
        if self.answer.send(answer).is_ok() {
            self.waker.wake();
        }
    }

    /// Answers a question of the engine.
    fn settle(&self, ticket: u64, client: Result<StoredClient, Refused>) {
        let _ = self.taken.try_recv();
        self.tell(Answer::Told { ticket, client });
    }
}

impl Asking {
    fn new(now: Instant, start: Start<'_>, lookers: Option<Lookers>, out: Out) -> Self {
        let Start { store, config, .. } = start;
        Self {
            store,
            answers: Answers::new(lookers.is_some()),
            lookers,
            networks: config.networks.clone(),
            answer_life: config.answer_life,
            write_every: config.write_every,
            own_key: start.own_key,
            mark: Mark::default(),
            trouble: Trouble::default(),
            batches: Batches::new(start.ledger),
            arrivals: start.fleet.map(Arrivals::new),
            logged: BTreeSet::new(),
            next_look: now,
            next_write: now + config.write_every,
            changed: BTreeSet::new(),
            again: BTreeSet::new(),
            next_again: [0; KEY_LEN],
            is_paused: false,
            out,
        }
    }

    /// Runs until the end. Returns whether the store has the bytes of all clients.
    fn run(&mut self, todo: &Receiver<Note>, stop: &AtomicBool) -> bool {
        loop {
            let now = clock::now();
            let next = self.next_look.min(self.next_write);
            let arrivals = self.arrivals.as_ref().and_then(Arrivals::due);
            let next = arrivals.map_or(next, |due| due.min(next));
            let is_stopping = || stop.load(Ordering::Relaxed);
            match todo.recv_timeout(next.since(now)) {
                Ok(Note::Clashed(key)) => self.answers.on_clash(&key),
                Ok(Note::Arrived(..) | Note::Ask(_) | Note::Forgotten(_) | Note::Told(_))
                    if is_stopping() => {}
                Ok(Note::Arrived(key, at)) => {
                    if let Some(arrivals) = &mut self.arrivals {
                        arrivals.add(now, key, at);
                    }
                }
                Ok(Note::Ask(request)) => self.on_asked(*request),
                Ok(Note::Told(Told::Found(key, found))) => self.on_found(&key, &found),
                Ok(Note::Told(Told::Again(key, found))) => self.on_found_again(&key, &found),
                Ok(Note::Told(Told::Listed(listed))) => self.on_listed(listed),
                Ok(Note::Admitted(key)) => self.answers.on_admitted(&key),
                Ok(Note::Forgotten(key)) => {
                    self.answers.set_used(&key, false);
                    if let Some(arrivals) = &mut self.arrivals {
                        arrivals.forget(&key);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Note::End) | Err(RecvTimeoutError::Disconnected) => {
                    let is_written = self.write();
                    self.answers.remember(&mut *self.store);
                    return is_written;
                }
            }
            let now = clock::now();
            if is_stopping() {
                continue;
            }
            // The intervals begin at the end, because another program may lock the store for seconds.
            if arrivals.is_some_and(|due| now >= due) {
                self.write_arrivals(now);
            }
            if now >= self.next_look {
                self.look(now);
                self.write_arrivals(now);
                self.ask_for_departed();
                self.ask_for_settled(now);
                self.next_look = clock::now() + LOOK_EVERY;
            }
            if now >= self.next_write {
                self.write();
                self.next_write = clock::now() + self.write_every;
            }
        }
    }

    /// Takes up the answers of former runs, except for clients outside of networks that have changed since.
    fn recall(&mut self, now: Instant) {
        let networks = &self.networks;
        let may_serve = |client: &StoredClient| foreign_net(networks, client).is_none();
        self.answers.recall(now, &mut *self.store, may_serve);
    }

    /// Decides about a client whose key the engine does not know, now or when the store has answered.
    fn on_asked(&mut self, request: EnrolmentRequest) {
        match &mut self.lookers {
            Some(lookers) if !self.trouble.is_unreadable() => lookers.ask(request),
            Some(_) | None => {
                let client = self.ask(&request);
                self.out.settle(request.ticket, client);
            }
        }
    }

    /// Decides about a client whose key the engine does not know. While the store cannot be read, takes the last answer:
    /// at once, because the next attempt to read may take as long as the last one, and other clients wait.
    fn ask(&mut self, request: &EnrolmentRequest) -> Result<StoredClient, Refused> {
        let (key, now) = (request.public_key, clock::now());
        let waits = self.lookers.is_some() || now < self.next_look;
        let decided = if self.trouble.is_unreadable() && waits {
            self.remembered(now, &key)
        } else {
            let found = self.store.find(&key);
            let found = found.map(|client| client.map(Found::from));
            self.update(now, &key, &found);
            self.decide(now, &key, &found)
        };
        self.admit(now, request, decided)
    }

    /// Applies the answer of another thread about a known client.
    fn on_found_again(&mut self, key: &[u8; KEY_LEN], found: &Result<Option<Found>, StoreError>) {
        let now = clock::now();
        let lookers = self.lookers.as_mut();
        let is_changed = lookers.is_some_and(|lookers| lookers.on_found_again(key));
        if !self.update(now, key, found) {
            self.again.insert(*key);
            self.is_paused = true;
        }
        if is_changed {
            self.changed.insert(*key);
        }
        self.ask_again(now);
    }

    /// Applies the answer of another thread about a new client.
    fn on_found(&mut self, key: &[u8; KEY_LEN], found: &Result<Option<Found>, StoreError>) {
        let now = clock::now();
        let Some(lookers) = &mut self.lookers else {
            return;
        };
        let waiting = lookers.on_found(key);
        // The engine may have the client by an earlier question about it.
        self.update(now, key, found);
        for request in &waiting.requests {
            let decided = self.decide(now, key, found);
            let client = self.admit(now, request, decided);
            self.out.settle(request.ticket, client);
        }
        if waiting.is_changed {
            self.changed.insert(*key);
        }
        self.ask_again(now);
    }

    /// Decides by the answer of the store about a client.
    fn decide(
        &mut self,
        now: Instant,
        key: &[u8; KEY_LEN],
        found: &Result<Option<Found>, StoreError>,
    ) -> Result<Decided, Refused> {
        match found {
            Ok(Some(found)) => {
                self.on_answer(key, None);
                let life = Some(found.life.unwrap_or(self.answer_life));
                let client = self.routed(found.client.clone())?;
                Ok(Decided { client, life })
            }
            Ok(None) => {
                self.on_answer(key, None);
                self.answers.forget(key);
                Err(Refused::Unknown)
            }
            Err(error @ StoreError::BadRow { .. }) => {
                if self.is_news(key) {
                    tracing::warn!("client refused: {error}");
                }
                Err(Refused::BadRow)
            }
            Err(error) => {
                self.on_answer(key, Some(error));
                self.remembered(now, key)
            }
        }
    }

    /// Enrols a client if the store does not know it, and keeps the answer.
    fn admit(
        &mut self,
        now: Instant,
        request: &EnrolmentRequest,
        mut decided: Result<Decided, Refused>,
    ) -> Result<StoredClient, Refused> {
        if matches!(decided, Err(Refused::Unknown)) {
            decided = self.enrol(request).map(|client| Decided {
                client,
                life: Some(self.answer_life),
            });
        }
        let Decided { client, life } = decided?;
        if let Some(life) = life {
            self.answers.keep(now, client.clone(), life);
        } else {
            self.answers.set_used(&client.public_key, true);
        }
        Ok(client)
    }

    /// Returns the last answer about a client.
    fn remembered(&self, now: Instant, key: &[u8; KEY_LEN]) -> Result<Decided, Refused> {
        let client = self.answers.usable(now, key);
        let client = client.ok_or(Refused::Unreadable)?.clone();
        Ok(Decided { client, life: None })
    }

    /// Refuses a client that has an address which is not routed into the tunnel.
    fn routed(&mut self, client: StoredClient) -> Result<StoredClient, Refused> {
        let Some(net) = foreign_net(&self.networks, &client) else {
            self.logged.remove(&client.public_key);
            return Ok(client);
        };
        if self.is_news(&client.public_key) {
            tracing::warn!(
                client = client.name,
                "client refused: its address {net} is in no network of the gateway; add the network to [clients] networks"
            );
        }
        Err(Refused::BadRow)
    }

    /// Whether nothing was logged about the client yet.
    fn is_news(&mut self, key: &[u8; KEY_LEN]) -> bool {
        self.logged.len() < MAX_LOGGED && self.logged.insert(*key)
    }

    /// Uses up the invitation that an unknown client claims.
    fn enrol(&mut self, request: &EnrolmentRequest) -> Result<StoredClient, Refused> {
        let claim = request.claim.as_ref().ok_or(Refused::Unknown)?;
        let seconds = clock::unix_nanos() / 1_000_000_000;
        let source = request.source;
        let claimed = self
            .store
            .claim(claim, &request.public_key, &self.own_key, seconds);
        match claimed {
            Ok((client, is_new)) => {
                if is_new {
                    tracing::info!(client = client.name, %source, "enrolled");
                }
                self.routed(client)
            }
            Err(Refusal::Unknown) => {
                tracing::debug!(%source, "enrolment refused: {}", Refusal::Unknown);
                Err(Refused::Unknown)
            }
            Err(refusal @ (Refusal::Expired | Refusal::WrongProof)) => {
                tracing::warn!(%source, "enrolment refused: {refusal}");
                Err(Refused::Unknown)
            }
            Err(refusal @ (Refusal::Io(_) | Refusal::Store(_))) => {
                tracing::warn!(%source, "enrolment refused: {refusal}");
                Err(Refused::Unreadable)
            }
        }
    }

    /// Looks for clients that have changed, and for old answers.
    fn look(&mut self, now: Instant) {
        if let Some(lookers) = &mut self.lookers {
            lookers.list(&self.mark);
            return self.answers.remember(&mut *self.store);
        }
        let changed = self.store.changes_since(&mut self.mark);
        self.on_changes(now, changed);
    }

    /// Applies a list of changes that another thread has got.
    fn on_listed(&mut self, listed: Result<(Mark, Changed), StoreError>) {
        if let Some(lookers) = &mut self.lookers {
            lookers.on_listed(listed.as_ref().ok().map(|(_, changed)| changed));
        }
        let changed = listed.map(|(mark, changed)| {
            self.mark = mark;
            changed
        });
        self.on_changes(clock::now(), changed);
    }

    /// Asks again about clients that have changed, and about those whose answers are old.
    fn on_changes(&mut self, now: Instant, changed: Result<Changed, StoreError>) {
        match changed {
            Ok(changed) => {
                self.on_read(None);
                if self.trouble.on_listed(now) {
                    self.out.tell(Answer::State(self.trouble.text()));
                }
                match changed {
                    Changed::Keys(keys) => {
                        for key in keys {
                            self.changed.insert(key);
                            self.answers.doubt(key);
                        }
                    }
                    Changed::Any => self.again.extend(self.answers.keys()),
                }
            }
            Err(error) => {
                self.on_read(Some(&error));
                return self.answer_from_memory();
            }
        }
        self.again.extend(self.answers.due(now));
        self.is_paused = false;
        self.ask_again(now);
    }

    /// Answers the questions that wait for a store that cannot be read.
    fn answer_from_memory(&mut self) {
        let lookers = self.lookers.iter_mut();
        let requests: Vec<_> = lookers.flat_map(Lookers::take_requests).collect();
        for request in requests {
            let client = self.ask(&request);
            self.out.settle(request.ticket, client);
        }
    }

    /// Asks again about some of the clients whose turn it is.
    fn ask_again(&mut self, now: Instant) {
        if self.lookers.is_some() {
            while self.lookers.as_ref().is_some_and(Lookers::has_room)
                && !self.is_paused
                && !self.trouble.is_unreadable()
                && let Some(key) = self.next_key()
            {
                if let Some(lookers) = &mut self.lookers {
                    lookers.ask_again(key);
                }
            }
            return;
        }
        let until = clock::now() + AGAIN_FOR;
        while let Some(key) = self.next_key() {
            let found = self.store.find(&key);
            let is_read = self.update(now, &key, &found.map(|client| client.map(Found::from)));
            if !is_read || clock::now() >= until {
                return;
            }
        }
    }

    /// Returns the next client to be asked about again. All of them have their turn, however many there are.
    fn next_key(&mut self) -> Option<[u8; KEY_LEN]> {
        while let Some(key) = self.next_changed() {
            if self.answers.get(&key).is_some() {
                return Some(key);
            }
        }
        None
    }

    fn next_changed(&mut self) -> Option<[u8; KEY_LEN]> {
        if let Some(key) = self.changed.pop_first() {
            return Some(key);
        }
        let mut later = self.again.range(self.next_again..);
        let key = *later.next().or_else(|| self.again.first())?;
        self.again.remove(&key);
        self.next_again = key;
        Some(key)
    }

    /// Applies a new answer about a known client. Tells the data path if the client has changed or exists no more. Returns
    /// whether the store could be read.
    fn update(
        &mut self,
        now: Instant,
        key: &[u8; KEY_LEN],
        found: &Result<Option<Found>, StoreError>,
    ) -> bool {
        let Some(known) = self.answers.get(key) else {
            return true;
        };
        match found {
            Ok(Some(found)) if foreign_net(&self.networks, &found.client).is_none() => {
                if found.client != *known {
                    self.out.tell(Answer::Changed(found.client.clone()));
                }
                let life = found.life.unwrap_or(self.answer_life);
                self.on_answer(key, None);
                self.answers.renew(now, found.client.clone(), life);
            }
            Ok(_) => {
                self.on_answer(key, None);
                self.answers.forget(key);
                self.out.tell(Answer::Gone(*key));
            }
            Err(error @ StoreError::BadRow { .. }) => {
                tracing::warn!("client removed: {error}");
                self.answers.forget(key);
                self.out.tell(Answer::Gone(*key));
            }
            Err(error) => {
                self.on_answer(key, Some(error));
                return false;
            }
        }
        true
    }

    /// Writes the batch that was tried before, if there is one, and then a new one. Returns whether both are written.
    fn write(&mut self) -> bool {
        let seconds = clock::unix_nanos() / 1_000_000_000;
        loop {
            // Clients carry bytes while a batch is written. They wait for the next call.
            let is_last = !self.batches.has_tried();
            let Some(batch) = self.batches.next(seconds) else {
                return true;
            };
            let written = self.store.add_usage(batch);
            if self.trouble.on_write(written.as_ref().err()) {
                self.out.tell(Answer::State(self.trouble.text()));
            }
            if written.is_err() {
                return false;
            }
            self.batches.on_written();
            if is_last {
                return true;
            }
        }
    }

    /// Records the answer about a client, with its error. Of a store that is asked by other threads, the list of changes
    /// shows whether it can be read, so that one client of which the store cannot speak does no harm to others.
    fn on_answer(&mut self, key: &[u8; KEY_LEN], error: Option<&StoreError>) {
        if self.lookers.is_none() {
            return self.on_read(error);
        }
        if let Some(error) = error
            && self.is_news(key)
        {
            tracing::warn!(
                client = keys::encode_public(key),
                "a client cannot be looked up: {error}"
            );
        }
        if self.trouble.on_find(clock::now(), error) {
            self.out.tell(Answer::State(self.trouble.text()));
        }
    }

    /// Writes which clients have connected. While the store cannot be read, they wait for the next look.
    fn write_arrivals(&mut self, now: Instant) {
        let Some(arrivals) = &mut self.arrivals else {
            return;
        };
        if self.trouble.is_unreadable() {
            return arrivals.wait_until(self.next_look + LOOK_EVERY / 2);
        }
        if let Some(places) = self.store.places() {
            let written = arrivals.write(now, places);
            arrivals.tell(written.as_ref().err());
            let Arrived {
                departed,
                contested,
            } = written.unwrap_or_default();
            if !contested.is_empty() {
                self.out.tell(Answer::Contested(contested));
            }
            self.tell_departed(departed);
        }
    }

    /// Asks which clients have left this gateway for another one.
    fn ask_for_departed(&mut self) {
        let Some(arrivals) = &mut self.arrivals else {
            return;
        };
        if self.trouble.is_unreadable() {
            return;
        }
        let departed = self.store.places().map(|places| arrivals.departed(places));
        match departed.unwrap_or(Ok(Departures::new())) {
            Ok(departed) => self.tell_departed(departed),
            Err(error) => tracing::debug!(%error, "clients that have left for another gateway"),
        }
    }

    /// Asks which clients no other gateway announces any more.
    fn ask_for_settled(&mut self, now: Instant) {
        let Some(arrivals) = &mut self.arrivals else {
            return;
        };
        if self.trouble.is_unreadable() {
            return;
        }
        let settled = self
            .store
            .places()
            .map(|places| arrivals.settled(now, places));
        match settled.unwrap_or(Ok(BTreeSet::new())) {
            Ok(settled) if settled.is_empty() => {}
            Ok(settled) => self.out.tell(Answer::Settled(settled)),
            Err(error) => tracing::debug!(%error, "clients that are at one gateway only"),
        }
    }

    fn tell_departed(&self, departed: Departures) {
        if !departed.is_empty() {
            self.out.tell(Answer::Departed(departed));
        }
    }

    /// Records an attempt to read, with its error.
    fn on_read(&mut self, error: Option<&StoreError>) {
        if self.trouble.on_read(error) {
            if error.is_some() && self.lookers.is_none() {
                // A change may have been read that could not be followed up.
                self.mark = Mark::default();
            }
            self.out.tell(Answer::State(self.trouble.text()));
        }
    }
}

/// Returns an address of the client that is not routed into the tunnel.
fn foreign_net(networks: &[IpNet], client: &StoredClient) -> Option<IpNet> {
    let mut nets = client.allowed_ips.iter();
    let is_foreign = |net: &&IpNet| !networks.iter().any(|own| own.contains(*net));
    nets.find(is_foreign).copied()
}

/// Interval at which the thread asks for changes. A removal takes effect within it and the time of a look-up.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of refused clients that the log names.
const MAX_LOGGED: usize = 1000;
/// Time for which known clients are asked about again, before new clients have their turn.
const AGAIN_FOR: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
