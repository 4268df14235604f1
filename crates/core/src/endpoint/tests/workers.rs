//! Endpoints that divide the clients of a gateway among them.

use super::{
    enrolment::{answer, attempt, key, public},
    *,
};
use crate::{
    endpoint::{work::MAX_WORK, workers::Share},
    session::cookie::CookieCache,
};

const WORKERS: usize = 3;

/// The endpoints of a gateway, between which a host passes what it has to pass.
struct Workers(Vec<Endpoint>);

impl Workers {
    /// Returns the endpoints for the clients with the keys `clients`.
    fn new(clients: &[u8]) -> Self {
        let endpoints = (0..WORKERS).map(|number| {
            let share = Share::new(number, WORKERS);
            let own = clients.iter().filter(|key| owner(**key) == number);
            let peers = own.map(|key| peer(&key.to_string(), *key, &format!("10.0.0.{key}/32")));
            let config = EndpointConfig {
                side: Side::Gateway {
                    clients: peers.collect(),
                },
                ..gateway(1)
            };
            let seed = u8::try_from(number).expect("small") + 20;
            let mut endpoint = Endpoint::new(config, Seeded::new([seed; 32]), Instant::ZERO);
            endpoint.set_share(share);
            endpoint
        });
        Self(endpoints.collect())
    }

    /// Passes initiations and verdicts.
    fn pass(&mut self, now: Instant) {
        self.0[0].work_inline(now);
        while let Some(handed) = self.0[0].poll_handed() {
            let owner = &mut self.0[handed.owner()];
            owner.handle_handed(now, handed);
            owner.work_inline(now);
        }
        self.judge(now);
    }

    /// Passes verdicts only. Returns their number.
    fn judge(&mut self, now: Instant) -> usize {
        let mut count = 0;
        for number in 0..WORKERS {
            while let Some(verdict) = self.0[number].poll_verdict() {
                self.0[0].handle_verdict(now, verdict);
                count += 1;
            }
        }
        count
    }

    /// Handles a datagram of a client at the worker that is to receive it.
    fn handle(&mut self, now: Instant, datagram: &mut [u8]) {
        let receiver = Share::new(0, WORKERS).receiver_of(datagram);
        self.0[receiver].handle_datagram(now, &from(CLIENT), datagram);
        self.pass(now);
    }
}

fn owner(key: u8) -> usize {
    Share::new(0, WORKERS).owner_of(&public(key))
}

/// Returns a key whose client belongs to `worker`.
fn key_of(worker: usize) -> u8 {
    (1..100).find(|key| owner(*key) == worker).expect("a key")
}

fn client_with(key: u8) -> Endpoint {
    let config = EndpointConfig {
        private_key: Secret::from([key; 32]),
        ..client(1400)
    };
    let mut client = Endpoint::new(config, Seeded::new([key; 32]), Instant::ZERO);
    bring_up_link(&mut client);
    client
}

fn run(client: &mut Endpoint, workers: &mut Workers, millis: u64) {
    for millis in 1..=millis {
        let now = Instant::from_millis(millis);
        client.handle_timeout(now);
        for worker in &mut workers.0 {
            worker.handle_timeout(now);
        }
        for _ in 0..4 {
            for (_, mut datagram) in transmit(client, now) {
                workers.handle(now, &mut datagram);
            }
            for worker in &mut workers.0 {
                for (_, mut datagram) in transmit(worker, now) {
                    client.handle_datagram(now, &from(GATEWAY), &mut datagram);
                }
            }
        }
    }
}

fn packet(from: [u8; 4], to: [u8; 4]) -> PacketBuf {
    let mut packet = vec![0; 40];
    packet[0] = 0x45;
    packet[3] = 40;
    packet[8] = 64;
    packet[9] = 17;
    packet[12..16].copy_from_slice(&from);
    packet[16..20].copy_from_slice(&to);
    packet[25] = 20;
    PacketBuf::from(packet)
}

#[test]
fn each_client_is_served_by_its_worker_and_by_no_other() {
    let keys: Vec<u8> = (0..WORKERS).map(key_of).collect();
    for (owner, key) in keys.iter().enumerate() {
        let mut workers = Workers::new(&keys);
        let mut client = client_with(*key);
        run(&mut client, &mut workers, 300);
        assert!(client.is_up());
        for (number, worker) in workers.0.iter().enumerate() {
            assert_eq!(worker.is_up(), number == owner);
            assert_eq!(worker.handshakes().read, u64::from(number == 0));
            assert_eq!(worker.handshakes().answered, u64::from(number == owner));
            assert_eq!(worker.peer_counts().1, usize::from(number == owner));
            // No datagram went to a worker without the session.
            assert_eq!(worker.drops().total(), 0, "{number}");
        }
        let now = Instant::from_millis(301);
        client.handle_packet(now, packet([10, 0, 0, *key], [10, 9, 9, 9]));
        for (number, worker) in workers.0.iter_mut().enumerate() {
            let back = packet([10, 9, 9, 9], [10, 0, 0, *key]);
            let refused = worker.offer_packet(now, back);
            assert_eq!(refused.is_none(), number == owner);
        }
        let mut delivered = 0;
        for (_, mut datagram) in transmit(&mut client, now) {
            workers.handle(now, &mut datagram);
        }
        for (_, mut datagram) in transmit(&mut workers.0[owner], now) {
            client.handle_datagram(now, &from(GATEWAY), &mut datagram);
        }
        while workers.0[owner].poll_deliver().is_some() {
            delivered += 1;
        }
        assert_eq!((delivered, client.poll_deliver().is_some()), (1, true));
    }
}

#[test]
fn worker_0_learns_which_addresses_the_clients_of_others_have_proved() {
    let key = key_of(1);
    let mut workers = Workers::new(&[key]);
    let mut client = client_with(key);
    let mut verdicts = 0;
    for millis in 1..100 {
        let now = Instant::from_millis(millis);
        client.handle_timeout(now);
        for (_, mut datagram) in transmit(&mut client, now) {
            let receiver = Share::new(0, WORKERS).receiver_of(&datagram);
            workers.0[receiver].handle_datagram(now, &from(CLIENT), &mut datagram);
            verdicts += workers.judge(now);
            workers.pass(now);
        }
        for (_, mut datagram) in transmit(&mut workers.0[1], now) {
            client.handle_datagram(now, &from(GATEWAY), &mut datagram);
        }
    }
    assert_eq!(verdicts, 1);
}

#[test]
fn a_worker_with_too_many_initiations_is_handed_no_more() {
    let key = key_of(1);
    for (before, is_up) in [(MAX_WORK, false), (MAX_WORK - 1, true)] {
        let mut workers = Workers::new(&[key]);
        workers.0[0].others.outstanding[1] = before;
        let mut client = client_with(key);
        run(&mut client, &mut workers, 300);
        assert_eq!(client.is_up(), is_up);
        assert_eq!(
            workers.0[0].others.outstanding[1], before,
            "each one was taken"
        );
        let told = workers.0[0].handshakes().told_to_come_back;
        assert_eq!(told > 0, !is_up);
    }
}

#[test]
fn only_initiations_are_for_worker_0() {
    let (_, datagram) = attempt(key_of(1), 1, None);
    let share = Share::new(1, WORKERS);
    assert_eq!(share.receiver_of(&datagram), 0);
    for malformed in [&datagram[..100], &[2; 100], &[]] {
        assert_eq!(share.receiver_of(malformed), 1);
    }
}

#[test]
fn a_stranger_is_turned_away_by_worker_0_and_puts_it_on_guard() {
    for worker in 0..WORKERS {
        let mut workers = Workers::new(&[]);
        let (_, datagram) = attempt(key_of(worker), 1, None);
        workers.handle(Instant::ZERO, &mut datagram.clone());
        assert!(workers.0[0].limiter.is_on_guard(Instant::ZERO), "{worker}");
        assert_eq!(
            workers.0[worker].drops().get(DropReason::HandshakeInvalid),
            1
        );
        assert_eq!(answer(&mut workers.0[0]), None);
    }
}

#[test]
fn the_owner_is_asked_at_the_worker_of_the_client_once_its_address_is_proved() {
    let key_number = key_of(2);
    let mut workers = Workers::new(&[]);
    for worker in &mut workers.0 {
        worker.set_asking(true);
    }
    let (mut initiator, mut datagram) = attempt(key_number, 1, None);
    let mut cookies = CookieCache::new(&public(200));
    cookies.stamp(Instant::ZERO, &mut datagram).expect("valid");
    workers.handle(Instant::ZERO, &mut datagram.clone());
    // The cookie is one of worker 0, which will check it.
    let reply = answer(&mut workers.0[0]).expect("a cookie");
    assert_eq!(reply[0], KIND_COOKIE_REPLY);
    assert_eq!(answer(&mut workers.0[2]), None);
    assert_eq!(workers.0[2].poll_enrolment(), None);
    let taken = cookies.handle_reply(Instant::ZERO, &datagram, &reply);
    taken.expect("ours");
    cookies.stamp(Instant::ZERO, &mut datagram).expect("valid");
    workers.handle(Instant::ZERO, &mut datagram.clone());
    let ticket = workers.0[2].poll_enrolment().expect("asked").ticket;
    let client = PeerConfig {
        preshared_key: key().psk(),
        ..peer("stored", key_number, "10.0.0.9/32")
    };
    let settled = workers.0[2].settle_enrolment(Instant::ZERO, ticket, Some(client));
    assert_eq!(settled, Ok(()));
    workers.0[2].work_inline(Instant::ZERO);
    let response = answer(&mut workers.0[2]).expect("answered");
    initiator.read_response(&response).expect("the psk fits");
}
