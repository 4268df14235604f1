//! The programs of flows, which the host finds for classes that name a program
//! ([`Match::app`](crate::class::Match::app)).

use super::{Endpoint, FlowQuestion};

impl Endpoint {
    /// Returns the next question which program of this host has opened a flow. Call this method after
    /// [`Self::handle_packet`] until it returns nothing. Find the program, which may take time, and pass it to
    /// [`Self::answer_flow`]; until then, the flow is treated as if no program had opened it. There are no questions
    /// unless a class names a program. O(peers).
    pub fn poll_flow_question(&mut self) -> Option<FlowQuestion> {
        let mut peers = self.peers.iter_mut();
        peers.find_map(|peer| peer.tunnel.poll_flow_question())
    }

    /// Takes the answer to a question: the name of the program, or `None` if no program of this host has opened the
    /// flow. Applies to the next packets of the flow. An answer that comes after the flow has ended is ignored.
    /// O(peers).
    pub fn answer_flow(&mut self, question: &FlowQuestion, program: Option<&str>) {
        // The key of the flow hashes is the same for all peers, so only the tunnel of the flow takes the answer.
        for peer in self.peers.iter_mut() {
            peer.tunnel.answer_flow(question, program);
        }
    }

    /// Takes the answer that the program cannot be known yet, because a server of this host has not accepted the
    /// connection. The question comes again with a later packet of the flow. O(peers).
    pub fn delay_flow_question(&mut self, question: &FlowQuestion) {
        for peer in self.peers.iter_mut() {
            peer.tunnel.delay_flow_question(question);
        }
    }
}
