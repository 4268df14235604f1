//! Clients of a gateway that were enrolled by invitation, in this process or in an earlier one.
//!
//! A thread of its own processes invitations, because it has to write files and wait for the disk. Each engine
//! limits its requests to [`pleach_core::endpoint::enrolment::MAX_KEPT`]. Dropping [`Enroller`] ends the thread.

use std::{
    path::Path,
    sync::mpsc::{self, Receiver, SyncSender},
    thread,
};

use anyhow::Context as _;
use pleach_core::endpoint::{
    PeerConfig,
    accounts::Caps,
    enrolment::{EnrolmentRequest, MAX_KEPT},
};
use pleach_linux::{clock, poll::Waker};

use crate::{
    config::{ClientPeer, GatewayConfig, SchedulerConfig},
    onboard::store::{Claimed, Enrolled, Refusal, Store},
};

/// Adds the clients that earlier processes enrolled to the clients of the configuration. If both have the same name,
/// key or address, only the client of the configuration is used.
///
/// # Errors
/// If the store cannot be read.
pub(super) fn add_known(gateway: &mut GatewayConfig) -> anyhow::Result<()> {
    let Some(invitations) = &gateway.invitations else {
        return Ok(());
    };
    let Some(path) = &invitations.store else {
        return Ok(());
    };
    let store = open(path)?;
    let known = store.clients().context("enrolled clients")?;
    for client in known {
        let clashes = gateway.clients.iter().any(|other| {
            other.name == client.name
                || other.public_key == client.public_key
                || overlap(&other.allowed_ips, &client)
        });
        if clashes {
            tracing::warn!(
                client = client.name,
                "enrolled, but a [[client]] has its name, key or address: left out; rename the [[client]], or `pleach gateway remove` it"
            );
            continue;
        }
        gateway.clients.push(ClientPeer {
            allowed_ips: client.allowed_ips(),
            name: client.name,
            public_key: client.public_key,
            preshared_key: Some(client.preshared_key),
            scheduler: None,
            caps: Caps::default(),
        });
    }
    Ok(())
}

/// Returns the engine's peer for a client that has just enrolled.
pub(super) fn peer(client: Enrolled, scheduler: &SchedulerConfig) -> PeerConfig {
    PeerConfig {
        allowed_ips: client.allowed_ips(),
        name: client.name,
        public_key: client.public_key,
        preshared_key: client.preshared_key.expose().into(),
        scheduler: scheduler.clone(),
    }
}

/// The data path's handle to the thread.
#[derive(Debug)]
pub(super) struct Enroller {
    requests: SyncSender<EnrolmentRequest>,
    results: Receiver<(u64, Option<Enrolled>)>,
    waker: Waker,
}

impl Enroller {
    /// Starts the thread for the store at `store` of the gateway with the static key `own_key` and `engines` data threads.
    ///
    /// # Errors
    /// If the store cannot be opened, or if the thread cannot be created.
    pub(super) fn start(store: &Path, own_key: [u8; 32], engines: usize) -> anyhow::Result<Self> {
        let store = open(store)?;
        let waker = Waker::new()?;
        let (requests, todo) = mpsc::sync_channel::<EnrolmentRequest>(MAX_KEPT * engines.max(1));
        let (done, results) = mpsc::channel();
        let wake = waker.clone();
        thread::Builder::new()
            .name("enrol".to_owned())
            .spawn(move || {
                for request in todo {
                    let client = decide(&store, &request, &own_key);
                    if done.send((request.ticket, client)).is_err() {
                        return;
                    }
                    wake.wake();
                }
            })
            .context("thread for enrolments")?;
        Ok(Self {
            requests,
            results,
            waker,
        })
    }

    /// Returns the waker, which is readable when there are results.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Passes a claim to the thread. Returns whether it will be answered: the thread may have ended, or have too many
    /// claims.
    pub(super) fn ask(&self, request: EnrolmentRequest) -> bool {
        self.requests.try_send(request).is_ok()
    }

    /// Returns the next result: the ticket of the claim and the enrolled client, or `None` in its place if the claim
    /// was refused.
    pub(super) fn collect(&self) -> Option<(u64, Option<Enrolled>)> {
        self.results.try_recv().ok()
    }
}

fn decide(store: &Store, request: &EnrolmentRequest, own_key: &[u8; 32]) -> Option<Enrolled> {
    let now = clock::unix_nanos() / 1_000_000_000;
    let source = request.source;
    let claim = request.claim.as_ref()?;
    match store.claim(claim, &request.public_key, own_key, now) {
        Ok(Claimed { client, is_new }) => {
            if is_new {
                tracing::info!(client = client.name, %source, "enrolled");
            }
            Some(client)
        }
        Err(Refusal::Unknown) => {
            tracing::debug!(%source, "enrolment refused: {}", Refusal::Unknown);
            None
        }
        Err(
            refusal @ (Refusal::Expired | Refusal::Io(_) | Refusal::Store(_) | Refusal::WrongProof),
        ) => {
            tracing::warn!(%source, "enrolment refused: {refusal}");
            None
        }
    }
}

fn open(path: &Path) -> anyhow::Result<Store> {
    Store::open(path).with_context(|| format!("[invitations] store {}", path.display()))
}

fn overlap(nets: &[ipnet::IpNet], client: &Enrolled) -> bool {
    let mut addresses = client.addresses.iter();
    addresses.any(|address| nets.iter().any(|net| net.contains(address)))
}
