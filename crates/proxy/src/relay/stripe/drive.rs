//! The task of a lane (one TCP connection to a peer): reads frames, and writes pending frames whenever the
//! socket accepts data.

use std::{io, rc::Rc};

use pleach_linux::clock;
use tokio::{net::TcpStream, task::spawn_local, time};

use super::{association::Association, handshake::Shaken, lane::Lane};
use crate::{
    relay::pipe,
    sched::LinkId,
    stripe::{
        channel::{Opener, Sealer},
        frame::{self, Frame, LaneId},
    },
};

/// Adds a lane over `link` to `association` and starts the lane's task. `name` is the name of the link. Returns
/// `false` if there are too many lanes or the lane exists already.
pub(crate) fn add_lane(
    association: &Rc<Association>,
    id: LaneId,
    link: Option<LinkId>,
    name: String,
    shaken: Shaken,
) -> bool {
    let Shaken {
        stream,
        mut sealer,
        mut opener,
        serves_flows,
    } = shaken;
    let lane = Rc::new(Lane::new(id, link, name, stream));
    if !association.enter_lane(&lane) {
        return false;
    }
    association.meet(serves_flows);
    let (association, this) = (Rc::clone(association), Rc::clone(&lane));
    let task = spawn_local(async move {
        let both = async {
            tokio::try_join!(
                read(&association, &this, &mut opener),
                write(&association, &this, &mut sealer)
            )
        };
        let outcome: io::Result<((), ())> = both.await;
        let why = outcome.map_or_else(|error| error.to_string(), |_| "over".to_owned());
        association.end_lane(this.id, &why);
    });
    lane.runs(task.abort_handle());
    true
}

async fn read(association: &Association, lane: &Lane, opener: &mut Opener) -> io::Result<()> {
    loop {
        while let Some(bytes) = opener.next_frame().map_err(io::Error::other)? {
            lane.rx_bytes.set(lane.rx_bytes.get() + bytes.len() as u64);
            let frame = frame::decode(bytes).map_err(io::Error::other)?;
            let is_datagram = matches!(frame, Frame::Datagram { .. });
            let datagrams = &lane.rx_datagrams;
            datagrams.set(datagrams.get() + u64::from(is_datagram));
            association.handle_frame(lane.id, frame)?;
        }
        association.wake();
        lane.stream.readable().await?;
        match lane.stream.try_read(opener.space()) {
            Ok(0) => return Err(io::Error::other("closed by the other end")),
            Ok(len) => opener.on_filled(len),
            Err(error) if pipe::is_transient(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

async fn write(association: &Association, lane: &Lane, sealer: &mut Sealer) -> io::Result<()> {
    let (mut plain, mut sealed) = (Vec::new(), Vec::new());
    loop {
        association.observe_all(clock::now());
        let due_at = {
            let mut mux = association.mux.borrow_mut();
            // Small frames are sent together. Only one chunk is taken at a time, so that the next chunk can take the
            // lane that is quickest then.
            while sealed.len() < frame::MAX_FRAME / 2 {
                plain.clear();
                if !mux.poll_frame(clock::now(), lane.id, &mut plain) {
                    break;
                }
                lane.tx_bytes.set(lane.tx_bytes.get() + plain.len() as u64);
                let is_datagram = frame::is_datagram(&plain);
                let datagrams = &lane.tx_datagrams;
                datagrams.set(datagrams.get() + u64::from(is_datagram));
                sealer.seal(&plain, &mut sealed);
            }
            mux.dispatch.set_free(lane.id, sealed.is_empty());
            mux.poll_timeout(lane.id)
        };
        // Connections may have free buffer space now, and other lanes may have been assigned chunks even if this lane
        // has not.
        association.handle_news();
        association.wake_others(lane);
        if sealed.is_empty() {
            let due = async {
                match due_at {
                    Some(at) => time::sleep(at.since(clock::now())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = lane.wake.notified() => {}
                () = due => {}
            }
        } else {
            write_all(&lane.stream, &sealed).await?;
            sealed.clear();
        }
    }
}

async fn write_all(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.try_write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
