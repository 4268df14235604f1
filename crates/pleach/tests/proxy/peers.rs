//! Two proxies that are peers, one of them on the server's host.

use std::{
    io::Write as _,
    net::TcpStream,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{
    client,
    world::{PATIENCE, PEER_PORT, Proxy, World, within},
};

/// Returns a private key and its public key.
pub(crate) fn key_pair() -> (String, String) {
    let run = |command: &str, input: &str| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pleach"))
            .arg(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(input.as_bytes()).expect("takes it");
        drop(stdin);
        let output = child.wait_with_output().expect("ends");
        String::from_utf8(output.stdout).expect("text")
    };
    let private = run("genkey", "");
    let public = run("pubkey", &private);
    (private.trim().to_owned(), public.trim().to_owned())
}

/// Returns the key of `[peer]` and a table `[[known_peer]]`.
pub(crate) fn trust(private: &str, public: &str) -> String {
    format!(
        "private_key = \"{private}\"\n[[known_peer]]\nname = \"other\"\npublic_key = \"{public}\"\n"
    )
}

/// Starts a proxy on the server's host and one on the client's, which know each other.
pub(crate) fn pair(world: &World, striping: &str) -> (Proxy, Proxy) {
    pair_with(world, striping, "")
}

/// Starts the same proxies as [`pair`], with the additional keys `more` in the client's `[proxy]`.
pub(crate) fn pair_with(world: &World, striping: &str, more: &str) -> (Proxy, Proxy) {
    let (ours, theirs) = (key_pair(), key_pair());
    let peer = world.peer(striping, &trust(&theirs.0, &ours.1));
    let keys = format!("striping = \"{striping}\"\npeer_port = {PEER_PORT}\n{more}");
    let proxy = world.proxy(&keys, &format!("[peer]\n{}", trust(&ours.0, &theirs.1)));
    (peer, proxy)
}

/// Opens a striped connection to `port` with a lane on each link. The first connection is plain, and makes the proxy
/// look for a peer.
pub(crate) fn striped(proxy: &Proxy, port: u16) -> TcpStream {
    let stream = within(PATIENCE, || {
        let stream = client::tunnel(port).expect("connects");
        let status = proxy.until("it is there", |status| status["connection_count"] == 1);
        if status["connections"][0]["striped"].is_object() {
            return Some(stream);
        }
        drop(stream);
        proxy.until("it is gone", |status| status["connection_count"] == 0);
        None
    });
    let stream = stream.expect("the peer is found");
    proxy.until("both links are in use", |status| lanes(status).len() == 2);
    stream
}

/// Returns the status of the links of the only connection.
pub(crate) fn lanes(status: &Value) -> Vec<Value> {
    let lanes = status["connections"][0]["striped"]["links"].as_array();
    lanes.cloned().unwrap_or_default()
}
