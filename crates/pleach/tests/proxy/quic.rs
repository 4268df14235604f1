//! A download over QUIC, by a program that knows no proxy, beside a download over TCP.

use std::{
    io::{Read as _, Write as _},
    net::{TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use pleach_lab::traffic::quic;
use pleach_linux::udp;
use quinn::{ClientConfig, Endpoint, ServerConfig};
use socket2::SockRef;

use crate::{
    client,
    world::{HTTP_PORT, PATIENCE, Proxy, SERVER, World, content, within},
};

const QUIC_PORT: u16 = 443;
/// Length of the download over QUIC in bytes: more than a second at 10 Mbit/s.
const LEN: usize = 2_000_000;

fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await? })
}

fn endpoint(socket: UdpSocket, server: Option<ServerConfig>) -> anyhow::Result<Endpoint> {
    udp::set_buffers(&SockRef::from(&socket), 4 << 20);
    quic::endpoint(socket, server)
}

/// Sends [`LEN`] bytes to one client that opens a stream.
async fn serve(socket: UdpSocket, config: ServerConfig) -> anyhow::Result<()> {
    let endpoint = endpoint(socket, Some(config))?;
    let incoming = endpoint.accept().await;
    let connection = incoming.ok_or_else(|| anyhow::anyhow!("closed"))?.await?;
    let (mut answer, _) = connection.accept_bi().await?;
    answer.write_all(&content(LEN)).await?;
    answer.finish()?;
    connection.closed().await;
    Ok(())
}

async fn download(socket: UdpSocket, config: ClientConfig) -> anyhow::Result<Vec<u8>> {
    let mut endpoint = endpoint(socket, None)?;
    endpoint.set_default_client_config(config);
    let server = (SERVER.parse::<std::net::IpAddr>()?, QUIC_PORT);
    let connection = endpoint.connect(server.into(), quic::NAME)?.await?;
    let (mut request, mut answer) = connection.open_bi().await?;
    request.write_all(b"?").await?;
    let body = answer.read_to_end(2 * LEN).await?;
    connection.close(0_u32.into(), b"");
    endpoint.wait_idle().await;
    Ok(body)
}

#[test]
fn a_download_over_quic_takes_the_link_that_tcp_leaves_idle() {
    let Some(world) = World::new() else { return };
    let (server_config, client_config) = quic::configs().expect("keys");
    let socket = world
        .topology
        .server
        .run(|| Ok(UdpSocket::bind((SERVER, QUIC_PORT))?));
    let socket = socket.expect("server");
    let serving = thread::spawn(move || run(serve(socket, server_config)));
    let mut proxy = world.proxy("transparent = true\ntransparent_udp = true", "");
    let is_there = || {
        let output = world
            .client()
            .command("nft")
            .args(["list", "tables"])
            .output();
        let tables = String::from_utf8_lossy(&output.expect("nft runs").stdout).into_owned();
        tables.contains("pleach_proxy_1080").then_some(())
    };
    within(PATIENCE, is_there).expect("the table is made");
    world
        .client()
        .run(|| {
            const TCP_LEN: usize = 8_000_000;
            let mut stream = TcpStream::connect((SERVER, HTTP_PORT))?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            write!(stream, "GET /{TCP_LEN} HTTP/1.1\r\nHost: x\r\n\r\n")?;
            client::read_head(&mut stream)?;
            let mut body = vec![0; TCP_LEN];
            stream.read_exact(&mut body[..500_000])?;
            let (first, rest) = thread::scope(|scope| {
                let over_tcp = scope.spawn(|| stream.read_exact(&mut body[500_000..]));
                let over_quic = run(download(UdpSocket::bind("0.0.0.0:0")?, client_config))?;
                let status = proxy.status().expect("it runs");
                over_tcp.join().expect("no panic")?;
                anyhow::Ok((over_quic, status))
            })?;
            assert!(first == content(LEN), "{} bytes", first.len());
            assert!(body == content(TCP_LEN));
            let connections = rest["connections"].as_array().expect("some");
            let link = |port: u16| {
                let target = format!("{SERVER}:{port}");
                let found = connections.iter().find(|one| one["target"] == target);
                found.unwrap_or_else(|| panic!("{rest}"))["link"].clone()
            };
            let (tcp, quic) = (link(HTTP_PORT), link(QUIC_PORT));
            assert!(quic.is_string() && tcp.is_string() && quic != tcp, "{rest}");
            let quic = quic.as_str().expect("a name").to_owned();
            let status = proxy.until("its bytes are counted", |status| {
                Proxy::received(status, &quic) >= LEN as u64
            });
            assert_eq!(status["drops"], serde_json::json!({}));
            Ok(())
        })
        .expect("downloads");
    serving.join().expect("no panic").expect("it was served");
    proxy.stop();
}
