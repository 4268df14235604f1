//! Tests that every kind of store must pass.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use pleach_core::{
    endpoint::accounts::{Caps, Usage},
    session::{
        invitation::{self, Claim, InvitationKey},
        secret::Secret,
    },
    units::Bitrate,
};
use zeroize::Zeroizing;

use super::{Changed, ClientStore, MOST_RUNS, Mark, StoreError, StoredClient, UsageBatch};
use crate::{
    keys::{self, SecretKey},
    onboard::store::{Offer, Refusal},
};

/// Public key of the gateway in tests.
pub(super) const GATEWAY: [u8; 32] = [200; 32];
const HOUR: u64 = 3600;

/// An empty store of the kind that is tested.
pub(super) trait Bench {
    /// Returns the store.
    fn store(&mut self) -> &mut dyn ClientStore;

    /// Opens the store again, as another process would.
    fn again(&self) -> Box<dyn ClientStore>;

    /// Changes the store as another program would.
    fn sql(&self, text: &str);

    /// Returns the names of all clients.
    fn names(&mut self) -> Vec<String> {
        let clients = self.store().clients().expect("readable");
        clients.into_iter().map(|client| client.name).collect()
    }
}

/// Returns a client whose key and addresses follow from `number`.
pub(super) fn client(number: u8) -> StoredClient {
    StoredClient {
        name: format!("client{number}"),
        public_key: [number; 32],
        preshared_key: Some(SecretKey::new(Zeroizing::new([number + 100; 32]))),
        allowed_ips: nets(&[
            &format!("10.77.0.{number}/32"),
            &format!("fd77::{number:x}/128"),
        ]),
        caps: Caps {
            up: None,
            down: Some(Bitrate::from_mbps(u64::from(number))),
        },
        added_at: 5,
    }
}

pub(super) fn nets(texts: &[&str]) -> Vec<IpNet> {
    let parse = |text: &&str| text.parse().expect("net");
    texts.iter().map(parse).collect()
}

pub(super) fn a_client_is_found_by_its_key_as_it_was_added(bench: &mut dyn Bench) {
    assert_eq!(bench.store().find(&[1; 32]).expect("readable"), None);
    for number in [2, 1] {
        bench.store().add(&client(number)).expect("added");
    }
    assert_eq!(
        bench.store().find(&[1; 32]).expect("readable"),
        Some(client(1))
    );
    assert_eq!(bench.names(), ["client1", "client2"]);
    // Another process sees the same.
    let mut again = bench.again();
    assert_eq!(again.find(&[2; 32]).expect("readable"), Some(client(2)));

    assert!(bench.store().remove("client1").expect("removed"));
    assert!(!bench.store().remove("client1").expect("not there"));
    assert_eq!(again.find(&[1; 32]).expect("readable"), None);

    let caps = Caps {
        up: Some(Bitrate::from_mbps(7)),
        down: None,
    };
    assert!(bench.store().set_caps("client2", caps).expect("set"));
    assert!(!bench.store().set_caps("client1", caps).expect("not there"));
    let changed = again.find(&[2; 32]).expect("readable").expect("there");
    assert_eq!(changed.caps, caps);
    assert!(changed.is_same_peer(&client(2)) && !changed.is_same_peer(&client(1)));
}

pub(super) fn no_name_key_or_address_is_given_twice(bench: &mut dyn Bench) {
    bench.store().add(&client(1)).expect("added");
    let other = client(2);
    let same_name = StoredClient {
        name: "client1".to_owned(),
        ..other.clone()
    };
    let same_key = StoredClient {
        public_key: [1; 32],
        ..other.clone()
    };
    for taken in [same_name, same_key] {
        let added = bench.store().add(&taken);
        assert!(matches!(added, Err(StoreError::Exists)), "{added:?}");
    }
    for net in ["10.77.0.1/32", "10.0.0.0/8", "fd77::/64"] {
        let taken = StoredClient {
            allowed_ips: nets(&["10.78.0.1/32", net]),
            ..other.clone()
        };
        let error = bench.store().add(&taken).expect_err(net).to_string();
        assert!(error.contains(net) && error.contains("client1"), "{error}");
    }
    assert_eq!(bench.names(), ["client1"]);
}

/// Returns the offer of an invitation, and how a client with a key claims it.
pub(super) fn offer(secret: u8, name: &str) -> (Offer<'_>, impl Fn(&[u8; 32]) -> Claim) {
    let secret = Secret::from([secret; 32]);
    let id = invitation::id(&secret);
    let offer = Offer {
        id,
        name,
        key: InvitationKey::from_secret(&secret),
        expires_at: HOUR,
    };
    let claim = move |client: &[u8; 32]| Claim {
        id,
        proof: InvitationKey::from_secret(&secret).proof(client, &GATEWAY),
    };
    (offer, claim)
}

pub(super) fn an_invitation_serves_one_client_once_and_that_client_again(bench: &mut dyn Bench) {
    bench.store().add(&client(3)).expect("added");
    let networks = nets(&["10.77.0.1/22", "fd77::1/64"]);
    let taken = nets(&["10.77.0.2/32"]);
    let (offered, claim) = offer(7, "home");
    let invitation = bench.store().invite(&offered, 0, &networks, &taken);
    let invitation = invitation.expect("made");
    let expected = ["10.77.0.4", "fd77::2"].map(|text| text.parse::<IpAddr>().expect("ip"));
    assert_eq!(invitation.addresses, expected);
    assert_eq!(bench.store().invitations().expect("readable").len(), 1);
    // Addresses of open invitations are not given to others.
    let (other, _) = offer(8, "other");
    let other = bench.store().invite(&other, 0, &networks, &taken);
    assert_ne!(other.expect("made").addresses, expected);

    let stolen = bench.store().claim(&claim(&[1; 32]), &[2; 32], &GATEWAY, 1);
    assert!(matches!(stolen, Err(Refusal::WrongProof)), "{stolen:?}");
    let enrol = |store: &mut dyn ClientStore, key: u8, now| {
        store.claim(&claim(&[key; 32]), &[key; 32], &GATEWAY, now)
    };
    let (enrolled, is_new) = enrol(bench.store(), 1, 1).expect("enrolled");
    assert!(is_new && enrolled.name == "home");
    assert_eq!(enrolled.allowed_ips, expected.map(IpNet::from));
    let again = enrol(bench.store(), 1, 2 * HOUR).expect("the same client");
    assert_eq!(again, (enrolled.clone(), false));
    let other = enrol(bench.store(), 2, 1);
    assert!(matches!(other, Err(Refusal::Unknown)), "{other:?}");
    let found = bench.store().find(&[1; 32]).expect("readable");
    assert_eq!(found, Some(enrolled));

    let (again, _) = offer(9, "home");
    let again = bench.store().invite(&again, 0, &networks, &taken);
    assert!(matches!(again, Err(StoreError::Exists)), "{again:?}");
    let (late, claim) = offer(10, "late");
    bench
        .store()
        .invite(&late, 0, &networks, &[])
        .expect("made");
    let late = bench
        .store()
        .claim(&claim(&[4; 32]), &[4; 32], &GATEWAY, HOUR);
    assert!(matches!(late, Err(Refusal::Expired)), "{late:?}");
    let (full, _) = offer(11, "full");
    let full = bench
        .store()
        .invite(&full, 0, &nets(&["10.77.0.1/31"]), &[]);
    assert!(matches!(full, Err(StoreError::Full)), "{full:?}");
}

pub(super) fn changes_are_those_of_any_program_since_the_mark(bench: &mut dyn Bench) {
    let mut mark = Mark::default();
    let mut changes =
        |bench: &mut dyn Bench| bench.store().changes_since(&mut mark).expect("readable");
    assert_eq!(changes(bench), Changed::Any, "the first question");
    let none = Changed::Keys(Vec::new());
    assert_eq!(changes(bench), none);
    bench.store().add(&client(1)).expect("added");
    bench.store().add(&client(2)).expect("added");
    assert_eq!(changes(bench), Changed::Keys(vec![[1; 32], [2; 32]]));
    bench.sql("UPDATE clients SET rate_up = 5 WHERE name = 'client1'");
    assert_eq!(changes(bench), Changed::Keys(vec![[1; 32]]));
    let new_key = keys::encode_public(&[9; 32]);
    bench.sql(&format!(
        "UPDATE clients SET public_key = '{new_key}' WHERE name = 'client1';
         DELETE FROM clients WHERE name = 'client2'"
    ));
    assert_eq!(
        changes(bench),
        Changed::Keys(vec![[1; 32], [9; 32], [2; 32]])
    );
    assert_eq!(changes(bench), none);
}

pub(super) fn a_row_that_another_program_has_written_wrongly_is_named_and_hides_no_other_row(
    bench: &mut dyn Bench,
) {
    bench.store().add(&client(1)).expect("added");
    for (column, value, word) in [
        ("allowed_ips", "'10.77.0.300/32'", "allowed_ips"),
        ("allowed_ips", "'10.77.0.3/24'", "allowed_ips"),
        ("preshared_key", "'secret'", "preshared_key"),
    ] {
        bench.store().add(&client(2)).expect("added");
        bench.sql(&format!(
            "UPDATE clients SET {column} = {value} WHERE name = 'client2'"
        ));
        let error = bench.store().find(&[2; 32]).expect_err(word).to_string();
        assert!(error.contains(word) && error.contains("client2"), "{error}");
        assert!(!error.contains("secret"), "{error}");
        assert_eq!(
            bench.store().find(&[1; 32]).expect("readable"),
            Some(client(1))
        );
        assert!(bench.store().remove("client2").expect("removed"));
    }
    // An address without a length is one host, spaces do not matter.
    bench.sql("UPDATE clients SET allowed_ips = '10.77.0.9,fd77::9/128 ' WHERE name = 'client1'");
    let found = bench
        .store()
        .find(&[1; 32])
        .expect("readable")
        .expect("there");
    assert_eq!(found.allowed_ips, nets(&["10.77.0.9/32", "fd77::9/128"]));
}

/// Returns a batch for the client `home`.
pub(super) fn batch(run: &str, number: i64, up_bytes: u64) -> UsageBatch {
    let usage = Usage {
        up_bytes,
        down_bytes: 10 * up_bytes,
    };
    UsageBatch {
        run: run.to_owned(),
        number,
        at: 5,
        usage: BTreeMap::from([("home".to_owned(), usage)]),
    }
}

pub(super) fn bytes_are_added_once_however_often_a_batch_is_tried(bench: &mut dyn Bench) {
    let total = |bench: &mut dyn Bench| {
        let usage = bench.store().usage().expect("readable");
        let usage = usage["home"];
        assert_eq!(usage.down_bytes, 10 * usage.up_bytes);
        usage.up_bytes
    };
    for _ in 0..3 {
        bench.store().add_usage(&batch("a", 1, 100)).expect("added");
        assert_eq!(total(bench), 100);
    }
    bench.store().add_usage(&batch("a", 2, 30)).expect("added");
    // A batch that was thought to be lost is not added after its successor.
    bench
        .store()
        .add_usage(&batch("a", 1, 100))
        .expect("ignored");
    assert_eq!(total(bench), 130);
    // The next process of the gateway continues, and the client's removal does not delete the account.
    bench.store().add_usage(&batch("b", 1, 7)).expect("added");
    bench
        .store()
        .add(&StoredClient {
            name: "home".to_owned(),
            ..client(1)
        })
        .expect("added");
    assert!(bench.store().remove("home").expect("removed"));
    assert_eq!(total(bench), 137);
    // A gateway whose clock is behind that of all others is not forgotten.
    for run in 0..=MOST_RUNS {
        let later = UsageBatch {
            at: 1000,
            ..batch(&run.to_string(), 1, 0)
        };
        bench.store().add_usage(&later).expect("added");
    }
    for _ in 0..2 {
        bench.store().add_usage(&batch("c", 1, 3)).expect("added");
        assert_eq!(total(bench), 140);
    }
}
