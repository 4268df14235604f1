//! The tasks of worker 0 for the clients of all workers ([`crate::run_tunnel::workers`]). With one worker, all clients are
//! those of its engine.

use anyhow::anyhow;
use pleach_core::{
    endpoint::{
        PeerConfig,
        accounts::Caps,
        enrolment::{Clash, EnrolmentRequest},
    },
    time::Instant,
};

use super::DataPath;
use crate::{
    control::{Reply, StatusReport},
    keys::KEY_LEN,
    run_tunnel::{
        carried::CARRIED,
        workers::{CarriedBatch, Crew, Order, Purpose, Question, Report},
    },
};

impl DataPath {
    /// Adds a client unless its key is known. Returns whether it was added.
    pub(in crate::run_tunnel) fn add_client(&mut self, client: PeerConfig) -> bool {
        match &mut self.crew {
            None => self.endpoint.add_client(client),
            Some(crew) => crew.add_client(&mut self.endpoint, client),
        }
    }

    /// Removes the client `name`. Returns whether it existed.
    pub(in crate::run_tunnel) fn remove_by_name(&mut self, now: Instant, name: &str) -> bool {
        let key = match &self.crew {
            None => self.endpoint.key_of(name),
            Some(crew) => crew.key_of(name),
        };
        key.is_some_and(|key| self.remove_by_key(now, &key))
    }

    /// Removes the client with the public key `public_key`. Returns whether it existed.
    pub(in crate::run_tunnel) fn remove_by_key(
        &mut self,
        now: Instant,
        public_key: &[u8; KEY_LEN],
    ) -> bool {
        if let Some(admitted) = &mut self.admitted {
            admitted.counted().forget(&mut self.endpoint, public_key);
        }
        match &mut self.crew {
            None => self.endpoint.remove_client(now, public_key),
            Some(crew) => crew.remove_client(now, &mut self.endpoint, public_key),
        }
    }

    /// Returns the names of the clients that fulfil `is_wanted`.
    pub(in crate::run_tunnel) fn names_of_clients(
        &self,
        is_wanted: impl Fn(&PeerConfig) -> bool,
    ) -> Vec<String> {
        let name = |client: &PeerConfig| is_wanted(client).then(|| client.name.clone());
        match &self.crew {
            None => {
                let clients = self.endpoint.status();
                clients.filter_map(|(client, _)| name(client)).collect()
            }
            Some(crew) => crew.clients().filter_map(name).collect(),
        }
    }

    /// Returns the caps of a client.
    pub(in crate::run_tunnel) fn caps(&self, public_key: &[u8; KEY_LEN]) -> Option<Caps> {
        match &self.crew {
            None => self.endpoint.caps(public_key),
            Some(crew) => crew.caps(public_key),
        }
    }

    /// Sets the caps of a client. Returns whether the client is known.
    pub(in crate::run_tunnel) fn set_caps(
        &mut self,
        now: Instant,
        public_key: &[u8; KEY_LEN],
        caps: Caps,
    ) -> bool {
        match &mut self.crew {
            None => self.endpoint.set_caps(now, public_key, caps),
            Some(crew) => crew.set_caps(now, &mut self.endpoint, public_key, caps),
        }
    }

    /// Answers a question about an unknown client. Returns whether the client is known now.
    ///
    /// # Errors
    /// If an address of the client belongs to another client. The client is then refused.
    pub(in crate::run_tunnel) fn settle(
        &mut self,
        now: Instant,
        question: Question,
        client: Option<PeerConfig>,
        caps: Caps,
    ) -> Result<bool, Clash> {
        match &mut self.crew {
            None => question.settle(now, &mut self.endpoint, client, caps),
            Some(crew) => crew.settle(now, &mut self.endpoint, question, client, caps),
        }
    }

    /// Refuses the unknown client of a question.
    pub(in crate::run_tunnel) fn refuse(&mut self, now: Instant, question: Question) {
        // A refusal cannot clash.
        let _ = self.settle(now, question, None, Caps::default());
    }

    /// Passes the questions of the own engine about unknown clients to the threads that answer them.
    pub(super) fn ask_about_strangers(&mut self, now: Instant) {
        if self.enroller.is_none() && self.admitted.is_none() {
            return;
        }
        while let Some(request) = self.endpoint.poll_enrolment() {
            self.ask_about(now, 0, request);
        }
    }

    /// Passes a question of a worker's engine to the thread that answers it. If this is not possible now, the client is
    /// refused, and tries again.
    fn ask_about(&mut self, now: Instant, worker: usize, request: EnrolmentRequest) {
        let request = Question::mark(worker, request);
        let question = Question::of(request.ticket);
        let is_asked = match (&self.enroller, &self.admitted) {
            (Some(enroller), _) => enroller.ask(request),
            (None, Some(admitted)) => admitted.asker().ask(request),
            (None, None) => false,
        };
        if !is_asked {
            self.refuse(now, question);
        }
    }

    /// Takes what other workers have passed and reported.
    ///
    /// # Errors
    /// If a worker has failed.
    pub(super) fn read_mail(&mut self, now: Instant) -> anyhow::Result<()> {
        let Some(crew) = &self.crew else {
            return Ok(());
        };
        let carried = crew.receive(now, &mut self.endpoint);
        self.send_carried(&carried);
        while let Some((worker, report)) = self.crew.as_ref().and_then(Crew::report) {
            self.settle_report(now, worker, report)?;
        }
        Ok(())
    }

    fn send_carried(&mut self, batches: &[CarriedBatch]) {
        for batch in batches {
            let CarriedBatch {
                route,
                segment_len,
                bytes,
            } = batch;
            debug_assert_eq!(route.link, CARRIED);
            self.refused += match &self.carrier {
                Some(carrier) => carrier.send(route.remote, bytes, *segment_len),
                None => bytes.len().div_ceil((*segment_len).max(1)) as u64,
            };
        }
    }

    fn settle_report(&mut self, now: Instant, worker: usize, report: Report) -> anyhow::Result<()> {
        match report {
            Report::Ask(request) => self.ask_about(now, worker, request),
            Report::Event(event) => self.tell_event(now, worker, event),
            Report::Failed(error) => return Err(anyhow!("data thread {worker}: {error}")),
            Report::Heard(keys) => self.take_back(now, &keys),
            Report::Idle(keys) => self.forget_idle(now, &keys),
            Report::Remembered(memories) => {
                if let Some(memory) = &mut self.memory {
                    for (key, carries) in memories {
                        memory.note(now, key, &carries);
                    }
                    let save = memory.saving();
                    self.host.run(move |_| save());
                }
            }
            Report::Here(keys) => {
                if let Some(fleet) = &mut self.fleet {
                    fleet.on_seen_here(keys);
                }
            }
            Report::Status(number, part) => {
                if let Some(crew) = &mut self.crew {
                    crew.on_part(worker, number, part);
                }
            }
            Report::Verdict(verdict) => self.endpoint.handle_verdict(now, verdict),
        }
        Ok(())
    }

    /// Begins a status, and uses it if it needs no other workers.
    pub(super) fn inquire(&mut self, now: Instant, purpose: Purpose) {
        let status = self.status(now);
        match &mut self.crew {
            None => self.use_status(now, status, purpose),
            Some(crew) => crew.inquire(now, status, purpose),
        }
    }

    /// Uses the statuses to which all workers have added their parts, or whose time is over.
    pub(super) fn settle_inquiries(&mut self, now: Instant) {
        while let Some((mut status, purpose)) =
            self.crew.as_mut().and_then(|crew| crew.inquired(now))
        {
            status
                .clients
                .sort_by(|one, other| one.name.cmp(&other.name));
            self.mark_carriers(&mut status);
            self.use_status(now, status, purpose);
        }
    }

    fn use_status(&mut self, now: Instant, status: StatusReport, purpose: Purpose) {
        match purpose {
            Purpose::Status(reply) => self.send_status(status, reply),
            Purpose::Weights(weights, reply) => {
                let silent = status.silent_workers;
                let links = status.clients.into_iter().flat_map(|client| client.links);
                let names: Vec<String> = links.map(|link| link.name).collect();
                let result = self.set_weights(now, &names, &weights);
                reply.send(result.map_err(|error| match silent.first() {
                    Some(worker) => format!("{error} (data thread {worker} does not answer)"),
                    None => error,
                }));
            }
        }
    }

    fn send_status(&self, mut status: StatusReport, reply: Reply<StatusReport>) {
        if self.host.is_idle() {
            self.host.run(move |host| {
                status.drops.extend(host.dropped());
                reply.send(Ok(status));
            });
        } else {
            // While a job takes long, the status is sent without the counters of nftables.
            reply.send(Ok(status));
        }
    }

    /// Ends the other workers, and settles their last reports.
    pub(super) fn dismiss_crew(&mut self, now: Instant) {
        let Some(crew) = self.crew.take() else {
            return;
        };
        let (reports, carried) = crew.finish(now, &mut self.endpoint);
        self.send_carried(&carried);
        for report in reports {
            match report {
                Report::Failed(error) => tracing::warn!("a data thread has failed: {error}"),
                Report::Remembered(_) => {
                    // These reports cannot fail.
                    let _ = self.settle_report(now, 0, report);
                }
                Report::Ask(_)
                | Report::Event(_)
                | Report::Heard(_)
                | Report::Idle(_)
                | Report::Here(_)
                | Report::Status(..)
                | Report::Verdict(_) => {}
            }
        }
    }

    /// Gives the same order to all other workers.
    pub(in crate::run_tunnel) fn order_all(&self, order: impl Fn() -> Order) {
        if let Some(crew) = &self.crew {
            crew.order_all(order);
        }
    }
}
