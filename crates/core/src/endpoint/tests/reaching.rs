use super::*;
use crate::wire::handshake::{KIND_REACH_ANSWER, REACH_LEN};

#[test]
fn a_gateway_answers_who_knows_its_key_and_the_client_hears_of_the_latest_question_only() {
    let mut pair = Pair::new();
    let now = pair.now;
    let first = pair.client.reach_question(PathId(0)).expect("a client");
    let mut latest = pair.client.reach_question(PathId(0)).expect("a client");
    let answer_to = |endpoint: &mut Endpoint, question: &[u8]| {
        endpoint.handle_datagram(now, &from(CLIENT), &mut question.to_vec());
        let answers = transmit(endpoint, now).into_iter();
        answers
            .map(|(_, datagram)| datagram)
            .find(|datagram| datagram[0] == KIND_REACH_ANSWER)
    };
    let mut old = answer_to(&mut pair.gateway, &first).expect("an answer");
    let mut answer = answer_to(&mut pair.gateway, &latest).expect("an answer");
    assert_eq!(answer.len(), REACH_LEN);
    let reached = |endpoint: &mut Endpoint, datagram: &mut [u8]| {
        endpoint.handle_datagram(now, &from(GATEWAY), datagram);
        core::iter::from_fn(|| endpoint.poll_event())
            .any(|event| matches!(event, Event::Reached { path: PathId(0) }))
    };
    assert!(!reached(&mut pair.client, &mut old));
    // A question is no answer to itself.
    assert!(!reached(&mut pair.client, &mut latest.clone()));
    assert!(reached(&mut pair.client, &mut answer));
    assert!(!reached(&mut pair.client, &mut answer), "once");
    latest[20] ^= 1;
    assert_eq!(answer_to(&mut pair.gateway, &latest), None, "a stranger");
    assert_eq!(pair.gateway.reach_question(PathId(0)), None);
}
