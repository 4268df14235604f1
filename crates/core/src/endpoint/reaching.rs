//! Tests outside a session whether UDP datagrams reach the gateway.
//!
//! If a client's link carries its datagrams over another protocol than UDP, the client asks from time to time whether
//! UDP works again. Its question is a datagram that changes no path and no session. The gateway answers with a datagram
//! of the same length, so a forged source address does not amplify traffic. The gateway answers only if the MAC of the
//! question shows that the sender knows the gateway's public key. The answer proves nothing, so the client's reaction
//! to it must be harmless.
//!
//! A client with several gateways asks all of them in the same way, to measure their round-trip times. It uses
//! [`question`] and [`answered`] outside the endpoint, because the endpoint has one gateway at a time.

use super::{Endpoint, Event, entropy};
use crate::{
    counters::DropReason,
    ids::PathId,
    session::cookie::reach_mac,
    tunnel::Incoming,
    wire::handshake::{KIND_REACH_ANSWER, KIND_REACH_QUESTION, MAC_LEN, REACH_LEN, VERSION},
};

/// Returns a question with `nonce` for the gateway whose public key is `gateway`.
#[must_use]
pub fn question(gateway: &[u8; 32], nonce: &[u8; 16]) -> [u8; REACH_LEN] {
    datagram(KIND_REACH_QUESTION, gateway, QUESTION, nonce)
}

/// The answer of a gateway to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Nonce of the question.
    pub nonce: [u8; 16],
    /// Whether the gateway asks its clients to use another gateway if they can.
    pub is_draining: bool,
}

/// Returns the answer in the datagram `answer`; `None` if it is no answer from a sender that knows the public key
/// `gateway`. Whether the gateway drains is not covered by the MAC: who can change it on the way can also drop the answer,
/// and either makes the client use another of its gateways at most.
#[must_use]
pub fn answered(answer: &[u8], gateway: &[u8; 32]) -> Option<Answer> {
    if answer.first() != Some(&KIND_REACH_ANSWER) {
        return None;
    }
    let nonce = read(answer, gateway, ANSWER).ok()?;
    Some(Answer {
        nonce,
        is_draining: answer[FLAGS_AT] & DRAINING != 0,
    })
}

impl Endpoint {
    /// Sets whether this gateway asks its clients to use another gateway; off at the start. Clients without another gateway
    /// are served as before.
    pub fn set_draining(&mut self, is_draining: bool) {
        self.is_draining = is_draining;
    }

    /// Whether this gateway [asks](Self::set_draining) its clients to use another gateway.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Returns a question for the gateway, to be sent over UDP by the link `id`; `None` at a gateway. An answer to the
    /// latest question causes [`Event::Reached`].
    pub fn reach_question(&mut self, id: PathId) -> Option<[u8; REACH_LEN]> {
        self.connector.as_ref()?;
        let nonce: [u8; 16] = entropy::array(&mut *self.entropy);
        self.asked = Some((id, nonce));
        let gateway = &self.peers[0].config.public_key;
        Some(question(gateway, &nonce))
    }

    pub(super) fn handle_reach_question(
        &mut self,
        incoming: &Incoming,
        datagram: &[u8],
    ) -> Result<(), DropReason> {
        if self.connector.is_some() {
            return Err(DropReason::Malformed);
        }
        let public = *self.keys.public();
        let nonce = read(datagram, &public, QUESTION)?;
        let mut answer = self::datagram(KIND_REACH_ANSWER, &public, ANSWER, &nonce);
        if self.is_draining {
            answer[FLAGS_AT] |= DRAINING;
        }
        self.reply(incoming.route, answer.to_vec());
        Ok(())
    }

    pub(super) fn handle_reach_answer(
        &mut self,
        incoming: &Incoming,
        datagram: &[u8],
    ) -> Result<(), DropReason> {
        let Some((id, asked)) = self.asked else {
            return Err(DropReason::Malformed);
        };
        let nonce = read(datagram, &self.peers[0].config.public_key, ANSWER)?;
        if nonce != asked || incoming.route.link != id.0 {
            return Err(DropReason::HandshakeInvalid);
        }
        self.asked = None;
        self.events.push_back(Event::Reached { path: id });
        Ok(())
    }
}

fn datagram(kind: u8, public: &[u8; 32], label: &[u8; 8], nonce: &[u8; 16]) -> [u8; REACH_LEN] {
    let mut datagram = [0; REACH_LEN];
    datagram[0] = kind;
    datagram[1] = VERSION;
    datagram[4..20].copy_from_slice(nonce);
    datagram[20..].copy_from_slice(&reach_mac(public, label, nonce));
    datagram
}

/// Returns the nonce of a datagram whose MAC is valid.
fn read(datagram: &[u8], public: &[u8; 32], label: &[u8; 8]) -> Result<[u8; 16], DropReason> {
    let datagram: &[u8; REACH_LEN] = datagram.try_into().map_err(|_| DropReason::Malformed)?;
    let (head, mac) = datagram.split_at(REACH_LEN - MAC_LEN);
    let nonce = head.last_chunk::<16>().ok_or(DropReason::Malformed)?;
    if head[1] != VERSION || mac != reach_mac(public, label, nonce) {
        return Err(DropReason::HandshakeInvalid);
    }
    Ok(*nonce)
}

const QUESTION: &[u8; 8] = b"reach---";
const ANSWER: &[u8; 8] = b"reached-";
/// Position of the flags of an answer, which older versions ignore.
const FLAGS_AT: usize = 2;
/// Flag of a gateway that drains.
const DRAINING: u8 = 1;
