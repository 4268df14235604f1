use super::{
    super::{
        aead::{OpeningKey, SealingKey, Suite},
        replay::ReplayError,
    },
    *,
};
use crate::{
    rng::Rng,
    wire::handshake::{Hello, SuiteBits},
};

const PATH: PathId = PathId(3);

#[test]
fn keys_rotate_while_datagrams_of_old_and_new_keys_interleave() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let (mut client, mut gateway) = (End::new(10), End::new(20));
        connect(at(0), &mut client, &mut gateway, 1);
        let mut to_gateway: Vec<(u64, Datagram)> = Vec::new();
        let mut to_client: Vec<(u64, Datagram)> = Vec::new();
        let mut received = (0, 0);
        for ms in 0..4_000_u64 {
            let now = at(ms);
            if ms % 1_000 == 500 {
                // The response takes 30 ms to arrive; until then the client sends with the old keys.
                let (for_client, for_gateway) = establish(10, 20, 10 + ms, 1_000 + ms);
                gateway
                    .set
                    .install_answered(now, for_gateway, index(1_000 + ms));
                client.due = Some((ms + 30, for_client, index(10 + ms)));
            }
            if let Some((_, established, index)) = client.due.take_if(|(due, ..)| ms >= *due) {
                client.set.install_initiated(now, established, index);
            }
            for (from, wire) in [
                (&mut client, &mut to_gateway),
                (&mut gateway, &mut to_client),
            ] {
                let datagram = from.seal(now).expect("a session is always current");
                wire.push((ms + rng.below(60), datagram));
            }
            for (to, wire, count) in [
                (&mut gateway, &mut to_gateway, &mut received.0),
                (&mut client, &mut to_client, &mut received.1),
            ] {
                for (_, datagram) in wire.extract_if(.., |(due, _)| *due <= ms) {
                    to.open(now, datagram).expect("every datagram opens");
                    *count += 1;
                }
            }
        }
        assert_eq!(received.0 + to_gateway.len(), 4_000);
        assert_eq!(received.1 + to_client.len(), 4_000);
    }
}

#[test]
fn a_responder_brings_nothing_up_before_the_first_datagram() {
    let (mut client, mut gateway) = (End::new(10), End::new(20));
    let (for_client, for_gateway) = establish(10, 20, 1, 2);
    gateway.set.install_answered(at(0), for_gateway, 2);
    assert!(gateway.set.has_unconfirmed());
    assert!(gateway.set.current().is_none() && gateway.seal(at(0)).is_none());

    let change = client.set.install_initiated(at(0), for_client, 1);
    assert_eq!(change, Change::Restarted);
    let mut forged = client.seal(at(0)).unwrap();
    forged.bytes[0] ^= 1;
    assert_eq!(gateway.open(at(0), forged), Err(OpenError::Authentication));
    assert!(gateway.set.current().is_none());

    let datagram = client.seal(at(0)).unwrap();
    let (_, change) = gateway.open(at(0), datagram).unwrap();
    assert_eq!(change, Some(Change::Restarted));
    assert!(!gateway.set.has_unconfirmed());
    let answer = gateway.seal(at(0)).unwrap();
    assert!(client.open(at(0), answer).is_ok());
}

#[test]
fn a_new_association_is_a_restart_and_the_same_one_a_change_of_keys() {
    let (mut client, mut gateway) = (End::new(10), End::new(20));
    assert_eq!(
        connect(at(0), &mut client, &mut gateway, 1),
        (Change::Restarted, Change::Restarted)
    );
    assert_eq!(
        connect(at(1), &mut client, &mut gateway, 3),
        (Change::Rekeyed, Change::Rekeyed)
    );
    let mut restarted = End::new(11);
    assert_eq!(
        connect(at(2), &mut restarted, &mut gateway, 5),
        (Change::Restarted, Change::Restarted)
    );
    let late = client.seal(at(2)).unwrap();
    assert_eq!(
        gateway.open(at(2), late),
        Err(OpenError::UnknownIndex),
        "numbers of a run that is over mean nothing"
    );
}

#[test]
fn the_initiator_may_use_any_of_several_answers() {
    for used in [0, 1, 2] {
        let (mut client, mut gateway) = (End::new(10), End::new(20));
        connect(at(0), &mut client, &mut gateway, 1);
        for n in [3, 5, 7] {
            let (for_client, for_gateway) = establish(10, 20, n, n + 1_000);
            gateway
                .set
                .install_answered(at(1), for_gateway, index(n + 1_000));
            if n == 3 + 2 * used {
                client.set.install_initiated(at(1), for_client, index(n));
            }
        }
        let datagram = client.seal(at(1)).unwrap();
        let (_, change) = gateway.open(at(1), datagram).unwrap();
        assert_eq!(change, Some(Change::Rekeyed));
        assert!(!gateway.set.has_unconfirmed());
        assert_eq!(gateway.given_up().len(), 2);
    }
}

#[test]
fn answers_that_wait_are_bounded() {
    let mut gateway = End::new(20);
    for n in 1..=20 {
        let (_, for_gateway) = establish(10, 20, n, n);
        gateway.set.install_answered(at(n), for_gateway, index(n));
    }
    assert_eq!(gateway.given_up(), (1..=12).collect::<Vec<_>>());
    assert_eq!(gateway.set.expire(at(180_013)), Some(at(180_014)));
    assert_eq!(gateway.given_up(), [13]);
}

#[test]
fn counters_continue_over_a_change_of_keys_and_over_silence() {
    let (mut client, mut gateway) = (End::new(10), End::new(20));
    connect(at(0), &mut client, &mut gateway, 1);
    advance(&mut client, &mut gateway, 1..=6);
    connect(at(1), &mut client, &mut gateway, 3);
    advance(&mut client, &mut gateway, 7..=12);
    // All keys expire. Then the client returns.
    assert_eq!(gateway.set.expire(at(500_000)), None);
    assert!(gateway.set.current().is_none());
    assert_eq!(gateway.given_up(), [1 + 1_000, 3 + 1_000]);
    connect(at(500_000), &mut client, &mut gateway, 5);
    let datagram = client.seal(at(500_000)).unwrap();
    let (opened, _) = gateway.open(at(500_000), datagram).unwrap();
    assert!(opened.counter > 12 << 30);
}

#[test]
fn the_initiator_rekeys_at_the_age_and_the_responder_does_not() {
    let (mut client, mut gateway) = (End::new(10), End::new(20));
    connect(at(0), &mut client, &mut gateway, 1);
    assert_eq!(client.set.expire(at(1)), Some(at(120_000)));
    assert!(!client.set.needs_rekey(at(119_999)));
    assert!(client.set.needs_rekey(at(120_000)));
    assert_eq!(client.set.expire(at(120_000)), Some(at(180_000)));
    assert!(!gateway.set.needs_rekey(at(120_000)));
    assert_eq!(gateway.set.expire(at(1)), Some(at(180_000)));
}

#[test]
fn keys_change_and_expire_earlier_if_that_is_set_and_never_later() {
    let (mut client, mut gateway) = (End::new(10), End::new(20));
    client.set.set_rekey_after(Duration::from_secs(6));
    connect(at(0), &mut client, &mut gateway, 1);
    assert!(!client.set.needs_rekey(at(5_999)));
    assert!(client.set.needs_rekey(at(6_000)));
    assert!(client.seal(at(8_999)).is_some());
    assert!(client.seal(at(9_000)).is_none());
    client.set.set_rekey_after(Duration::from_secs(1_000));
    connect(at(10_000), &mut client, &mut gateway, 3);
    assert!(client.set.needs_rekey(at(130_000)));
    assert!(client.seal(at(190_000)).is_none());
}

#[test]
fn an_old_session_is_rejected_and_given_up() {
    let (mut client, mut gateway) = (End::new(10), End::new(20));
    connect(at(0), &mut client, &mut gateway, 1);
    let late = client.seal(at(179_999)).unwrap();
    assert!(client.seal(at(180_000)).is_none());
    assert_eq!(gateway.open(at(180_000), late), Err(OpenError::Expired));
    assert_eq!(client.set.expire(at(180_000)), None);
    assert_eq!(client.given_up(), [1]);
}

#[test]
fn the_previous_session_receives_for_ten_seconds_at_least() {
    let (mut client, mut gateway) = (End::new(10), End::new(20));
    connect(at(0), &mut client, &mut gateway, 1);
    let late: Vec<Datagram> = (0..2).map(|_| client.seal(at(175_000)).unwrap()).collect();
    connect(at(175_000), &mut client, &mut gateway, 3);
    let results = late.into_iter().zip([184_999, 185_000]);
    let results: Vec<_> = results
        .map(|(datagram, ms)| gateway.open(at(ms), datagram).map(|_| ()))
        .collect();
    assert_eq!(results, [Ok(()), Err(OpenError::Expired)]);
}

#[test]
fn every_index_is_given_up_exactly_once() {
    let mut gateway = End::new(20);
    let mut rng = Rng::new(4);
    let mut given_up = Vec::new();
    for n in 1..=200_u64 {
        let now = at(n * 3_000);
        let mut client = End::new(10);
        let (for_client, for_gateway) = establish(10, 20, n, n);
        client.set.install_initiated(now, for_client, index(n));
        if rng.chance(0.3) {
            let (established, _) = establish(20, 10, n, n);
            gateway.set.install_initiated(now, established, index(n));
        } else {
            gateway.set.install_answered(now, for_gateway, index(n));
        }
        if rng.chance(0.6) {
            let datagram = client.seal(now).unwrap();
            let _: Result<_, OpenError> = gateway.open(now, datagram);
        }
        gateway.set.expire(now);
        given_up.extend(gateway.given_up());
    }
    gateway.set.clear();
    given_up.extend(gateway.given_up());
    given_up.sort_unstable();
    assert_eq!(given_up, (1..=200).collect::<Vec<u32>>());
}

#[test]
fn replays_and_unknown_indices_are_named() {
    let (mut client, mut gateway) = (End::new(10), End::new(20));
    connect(at(0), &mut client, &mut gateway, 1);
    let datagram = client.seal(at(0)).unwrap();
    let copy = datagram.clone();
    let stray = Datagram {
        index: 77,
        ..datagram.clone()
    };
    assert!(gateway.open(at(0), datagram).is_ok());
    assert_eq!(
        gateway.open(at(0), copy),
        Err(OpenError::Replayed(ReplayError::Seen))
    );
    assert_eq!(gateway.open(at(0), stray), Err(OpenError::UnknownIndex));
}

#[derive(Clone, Debug)]
struct Datagram {
    index: u32,
    seq: Seq,
    bytes: Vec<u8>,
}

/// One end: its sessions, and its counter on the only path.
struct End {
    set: SessionSet,
    association: u64,
    counter: u64,
    due: Option<(u64, Established, u32)>,
}

impl End {
    fn new(association: u64) -> Self {
        Self {
            set: SessionSet::new(),
            association,
            counter: 0,
            due: None,
        }
    }

    fn seal(&mut self, now: Instant) -> Option<Datagram> {
        let session = self.set.sending(now)?;
        self.counter += 1;
        let mut bytes = b"inner".to_vec();
        let tag = session.seal(PATH, self.counter, b"head", &mut bytes);
        bytes.extend_from_slice(&tag);
        Some(Datagram {
            index: session.remote_index(),
            seq: Seq(u32::try_from(self.counter & 0xffff_ffff).unwrap()),
            bytes,
        })
    }

    fn open(
        &mut self,
        now: Instant,
        mut datagram: Datagram,
    ) -> Result<(Opened, Option<Change>), OpenError> {
        let Datagram { index, seq, bytes } = &mut datagram;
        self.set.open(now, *index, PATH, *seq, b"head", bytes)
    }

    fn given_up(&mut self) -> Vec<u32> {
        let mut all: Vec<u32> = core::iter::from_fn(|| self.set.poll_given_up()).collect();
        all.sort_unstable();
        all
    }
}

/// Advances the client's counter to `steps` times 2^30, with one datagram at each step.
fn advance(client: &mut End, gateway: &mut End, steps: core::ops::RangeInclusive<u64>) {
    for step in steps {
        client.counter = step << 30;
        let datagram = client.seal(at(1)).unwrap();
        assert!(gateway.open(at(1), datagram).is_ok());
    }
}

/// Installs new keys at both ends and lets the client send the first datagram.
fn connect(now: Instant, client: &mut End, gateway: &mut End, n: u64) -> (Change, Change) {
    let (for_client, for_gateway) =
        establish(client.association, gateway.association, n, n + 1_000);
    gateway
        .set
        .install_answered(now, for_gateway, index(n + 1_000));
    let at_client = client.set.install_initiated(now, for_client, index(n));
    let datagram = client.seal(now).unwrap();
    let (_, at_gateway) = gateway.open(now, datagram).unwrap();
    (at_client, at_gateway.unwrap())
}

/// Returns the result of a handshake at the initiator and at the responder.
fn establish(
    association: u64,
    peer_association: u64,
    local: u64,
    remote: u64,
) -> (Established, Established) {
    let (mut first, mut second) = ([1; 32], [2; 32]);
    first[..8].copy_from_slice(&local.to_be_bytes());
    second[..8].copy_from_slice(&local.to_be_bytes());
    let hello = |association| Hello {
        protocol_version: 1,
        capabilities: 0,
        suites: SuiteBits(1),
        association,
        time: None,
    };
    let end = |send, recv, remote_index, association| Established {
        send: SealingKey::new(Suite::Aes256Gcm, send),
        recv: OpeningKey::new(Suite::Aes256Gcm, recv),
        remote_index,
        suite: Suite::Aes256Gcm,
        remote_hello: hello(association),
    };
    (
        end(&first, &second, index(remote), peer_association),
        end(&second, &first, index(local), association),
    )
}

/// Returns the two sessions of a pair of ends.
pub(in super::super) fn pair(n: u64) -> (Session, Session) {
    let (a, b) = establish(1, 2, n, n + 1);
    (
        Session::new(at(0), a, index(n), Role::Initiator),
        Session::new(at(0), b, index(n + 1), Role::Responder),
    )
}

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn index(n: u64) -> u32 {
    u32::try_from(n).unwrap()
}
