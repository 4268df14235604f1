//! Bulk transfer over QUIC: one stream over one connection of a real stack, quinn with its defaults.
//!
//! The client opens the stream with one byte, so that the server learns of the stream. Both ends stop by the clock.
//! Packets still in flight are dropped.

use core::{future::Future, net::SocketAddr};
use std::{net::UdpSocket, sync::Arc, thread::JoinHandle};

use anyhow::Context as _;
use pleach_core::time::Instant;
use pleach_linux::clock;
use pleach_sim::{measure::FlowReport, scenario::Direction};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, RecvStream, SendStream, ServerConfig,
    TokioRuntime, VarInt,
    rustls::{RootCertStore, pki_types::PrivatePkcs8KeyDer},
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::time::timeout;

use crate::{
    traffic::{Ends, Schedule, TICK, is_down, unspecified},
    wait,
};

type Threads = Vec<JoinHandle<anyhow::Result<FlowReport>>>;

/// Name of the server in its certificate.
pub const NAME: &str = "lab.invalid";

pub(super) fn start(
    ends: &Ends,
    server: SocketAddr,
    schedule: Schedule,
    direction: Direction,
) -> anyhow::Result<Threads> {
    let (server_config, client_config) = configs()?;
    let far_socket = ends.server.run(|| socket(server))?;
    let far = ends.server.spawn("quic-server", move || {
        run(async move {
            let endpoint = endpoint(far_socket, Some(server_config))?;
            let report = serve(&endpoint, &schedule, is_down(direction)).await;
            close(&endpoint).await;
            Ok(report.unwrap_or_default())
        })
    })?;
    let local = match ends.bind {
        Some(bind) => SocketAddr::new(bind, 0),
        None => SocketAddr::new(unspecified(server).ip(), 0),
    };
    let near_socket = ends.client.run(|| socket(local))?;
    let near = ends.client.spawn("quic-client", move || {
        wait::until(schedule.start);
        run(async move {
            let mut endpoint = endpoint(near_socket, None)?;
            endpoint.set_default_client_config(client_config);
            let report = ask(&endpoint, server, &schedule, !is_down(direction)).await;
            close(&endpoint).await;
            Ok(report.unwrap_or_default())
        })
    })?;
    Ok(vec![far, near])
}

/// Creates a certificate for [`NAME`] for this run, and a client configuration that trusts it.
///
/// # Errors
/// If no key can be made.
pub fn configs() -> anyhow::Result<(ServerConfig, ClientConfig)> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let certificate = made.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let server = ServerConfig::with_single_cert(vec![certificate.clone()], key.into())?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let client = ClientConfig::with_root_certificates(Arc::new(roots))?;
    Ok((server, client))
}

/// Creates a socket in the calling thread's namespace.
fn socket(local: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
    // As for UDP traffic, large buffers prevent losses on this machine from being mistaken for losses of a link.
    let _ = socket.set_recv_buffer_size(4 << 20);
    let _ = socket.set_send_buffer_size(4 << 20);
    socket.bind(&local.into())?;
    Ok(socket.into())
}

fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?
        .block_on(work)
}

/// Creates an endpoint on `socket`. With `server` it accepts connections. Call it inside a runtime.
///
/// # Errors
/// If the socket cannot be used.
pub fn endpoint(socket: UdpSocket, server: Option<ServerConfig>) -> anyhow::Result<Endpoint> {
    let config = EndpointConfig::default();
    Ok(Endpoint::new(
        config,
        server,
        socket,
        Arc::new(TokioRuntime),
    )?)
}

/// Returns the result of `work` if it succeeds before `deadline`.
async fn before<T, E>(deadline: Instant, work: impl Future<Output = Result<T, E>>) -> Option<T> {
    let left = deadline.since(clock::now());
    timeout(left, work).await.ok()?.ok()
}

/// Serves one client. `None` if no client connected.
async fn serve(endpoint: &Endpoint, schedule: &Schedule, is_sender: bool) -> Option<FlowReport> {
    let stop = schedule.stop;
    loop {
        let left = stop.since(clock::now());
        let incoming = timeout(left, endpoint.accept()).await.ok()??;
        let Some(connection) = before(stop, async { incoming.await }).await else {
            continue;
        };
        let streams = before(stop, connection.accept_bi()).await;
        if let Some((near, far)) = streams {
            return Some(transfer(&connection, near, far, schedule, is_sender).await);
        }
    }
}

/// Connects to the server. `None` if no connection is possible.
async fn ask(
    endpoint: &Endpoint,
    server: SocketAddr,
    schedule: &Schedule,
    is_sender: bool,
) -> Option<FlowReport> {
    while clock::now() < schedule.stop {
        let Some(connection) = before(schedule.stop, endpoint.connect(server, NAME).ok()?).await
        else {
            tokio::time::sleep(TICK).await;
            continue;
        };
        let (mut near, far) = before(schedule.stop, connection.open_bi()).await?;
        before(schedule.stop, near.write_all(&[0])).await?;
        return Some(transfer(&connection, near, far, schedule, is_sender).await);
    }
    None
}

async fn transfer(
    connection: &Connection,
    near: SendStream,
    far: RecvStream,
    schedule: &Schedule,
    is_sender: bool,
) -> FlowReport {
    if is_sender {
        send(connection, near, schedule).await
    } else {
        receive(far, schedule).await
    }
}

async fn send(connection: &Connection, mut stream: SendStream, schedule: &Schedule) -> FlowReport {
    let mut report = FlowReport::default();
    let payload = vec![0; 128 << 10];
    let mut sample_at = schedule.start + TICK;
    loop {
        let now = clock::now();
        if now >= schedule.stop {
            break;
        }
        if now >= sample_at {
            sample_at = now + TICK;
            report.delay(connection.rtt());
        }
        // The timeout limits the wait. A write that did not complete has written nothing.
        if let Ok(Err(_)) = timeout(TICK, stream.write(&payload)).await {
            break;
        }
    }
    report.retransmits = Some(connection.stats().path.lost_packets);
    report
}

async fn receive(mut stream: RecvStream, schedule: &Schedule) -> FlowReport {
    let mut report = FlowReport::default();
    let mut buffer = vec![0; 256 << 10];
    while clock::now() < schedule.stop {
        match timeout(TICK, stream.read(&mut buffer)).await {
            // Data that arrives after the end does not count.
            Ok(Ok(Some(_))) if clock::now() >= schedule.stop => {}
            Ok(Ok(Some(count))) => schedule.record(&mut report, count),
            Ok(Ok(None) | Err(_)) => break,
            Err(_) => {}
        }
    }
    report
}

/// Closes the connection, and waits shortly until the close is sent.
async fn close(endpoint: &Endpoint) {
    endpoint.close(VarInt::from_u32(0), b"");
    let _ = timeout(TICK, endpoint.wait_idle()).await;
}
