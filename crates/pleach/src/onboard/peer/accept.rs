//! `pleach peer accept`.
//!
//! Order: read the token; make a key unless the proxy has one; present the claim at each address of the other end until one
//! takes it; write down the peer, then `[peer]` of the configuration. The key is on disk before anything is sent, and stays if
//! the other end got the claim and did not answer: it may know the key, and takes the token from no other one.

use std::{io, net::SocketAddr, path::PathBuf};

use anyhow::{Context as _, anyhow, bail};
use data_encoding::HEXLOWER;
use ipnet::IpNet;
use pleach_core::session::{handshake::StaticKeys, invitation::Claim};
use pleach_linux::clock;
use pleach_proxy::daemon::enrolling::{EnrolError, enrol};

use super::{
    KEY_FILE, file,
    known::{self, Accepted},
    put_in_force,
    token::PeerToken,
};
use crate::{
    config::{self, plain},
    keys,
    onboard::{bad_input::BadInput, durable::Draft, host, join::read_token, place::Place},
};

/// Options of `pleach peer accept`. A token is no option: other users see the arguments of a process.
#[derive(Debug, clap::Args)]
pub(crate) struct Accept {
    /// Read the token from FILE [default: standard input, or a prompt]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// What to call the peer [default: the name of its host]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Only write the files
    #[arg(long)]
    no_start: bool,
    #[command(flatten)]
    place: Place,
}

pub(super) fn run(options: &Accept) -> anyhow::Result<String> {
    host::require_root("peer accept")?;
    let text = read_token(options.token_file.as_deref())?;
    let token = PeerToken::from_text(&text).map_err(BadInput::error)?;
    drop(text);
    let name = options.name.as_ref().unwrap_or(&token.name);
    if !config::is_name(name) {
        return Err(BadInput::error(format!(
            "--name {name:?} is no name for a peer: take 1 to 32 characters out of A-Z a-z 0-9 . _ -"
        )));
    }
    let place = &options.place;
    let mut draft = Draft::default();
    let section = match file::read(place)? {
        Some(section) => section,
        None => file::create(place, &mut draft)?,
    };
    let path = &section.store;
    let cannot = |error: io::Error| host::cannot_write(path, &error);
    let there = known::peers(path).map_err(cannot)?;
    let is_taken = |name: &str| {
        there
            .iter()
            .any(|peer| peer.name == name && peer.public_key != token.public_key)
    };
    if is_taken(name) {
        bail!("there is a peer {name:?} already: choose another name with --name");
    }
    if keys::public_of(&section.key) == token.public_key {
        bail!("this token was printed on this host: run `pleach peer accept` on the other one");
    }
    // Found out before anything is claimed.
    let peers = path.join(known::PEERS);
    let made = draft.directory(&peers, 0o700);
    made.map_err(|error| host::cannot_write(&peers, &error))?;

    let keys = StaticKeys::from_private(section.key.expose());
    let claim = Claim {
        id: token.id(),
        proof: token.key().proof(keys.public(), &token.public_key),
    };
    let presented = present(&token, &keys, &claim);
    if !matches!(presented, Err(Unaccepted { is_sent: false, .. })) {
        draft.spare(&place.config(KEY_FILE));
    }
    let endpoint = presented.map_err(|unaccepted| unaccepted.why)?;
    let accepted = Accepted {
        name: name.clone(),
        public_key: token.public_key,
        endpoint,
        networks: networks(&token),
        invitation: HEXLOWER.encode(&token.id()),
    };
    known::write(path, &accepted).map_err(cannot)?;
    let is_changed = section.is_ours && file::write(place, &section)?;
    draft.keep();
    let said = put_in_force(place, is_changed, options.no_start)?;
    let reached: Vec<String> = accepted.networks.iter().map(ToString::to_string).collect();
    Ok(format!(
        "The proxy of this host is a peer of {name} now, which answers at {endpoint}. Connections to {} are striped.\n{said}",
        reached.join(", ")
    ))
}

/// Why nobody took the claim.
struct Unaccepted {
    /// Whether the other end may have got it.
    is_sent: bool,
    why: anyhow::Error,
}

/// Presents the claim at the addresses in the token, in order; where it was taken.
fn present(token: &PeerToken, keys: &StaticKeys, claim: &Claim) -> Result<SocketAddr, Unaccepted> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.context("runtime").map_err(|why| Unaccepted {
        is_sent: false,
        why,
    })?;
    let (mut is_sent, mut is_refused, mut silent) = (false, false, Vec::new());
    for endpoint in &token.endpoints {
        match runtime.block_on(enrol(*endpoint, keys, &token.public_key, claim)) {
            Ok(()) => return Ok(*endpoint),
            Err(EnrolError::Refused) => is_refused = true,
            Err(EnrolError::Unanswered(error)) => {
                is_sent = true;
                silent.push(format!("{endpoint}: {}", plain(&error)));
            }
            Err(EnrolError::Absent(error)) => {
                silent.push(format!("{endpoint}: {}", plain(&error)));
            }
        }
    }
    let why = if is_refused {
        let is_over = u64::from(token.expires_at) <= clock::unix_nanos() / 1_000_000_000;
        let why = if is_over {
            "has expired"
        } else {
            "is used up, withdrawn or expired"
        };
        anyhow!(
            "the other end does not take this token, which {why}: have `pleach peer invite` run there again"
        )
    } else {
        anyhow!(
            "the other end does not answer ({}): see that its proxy is running and that its firewall lets this TCP port in, then try again",
            silent.join("; ")
        )
    };
    Err(Unaccepted {
        is_sent: is_sent || is_refused,
        why,
    })
}

/// The host of the other end, and what it serves.
fn networks(token: &PeerToken) -> Vec<IpNet> {
    let mut networks: Vec<IpNet> = token
        .endpoints
        .iter()
        .map(|endpoint| IpNet::from(endpoint.ip()))
        .collect();
    networks.extend(&token.networks);
    networks.dedup();
    networks
}
