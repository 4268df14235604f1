//! Divides the capacity of links among the connections over them ([`crate::window`]).

use std::{cell::Cell, collections::BTreeMap, rc::Rc, time::Duration};

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};
use tokio::net::TcpStream;

use super::{hub::Hub, live::Live, share::Share};
use crate::{
    relay::stripe::lane::Lane,
    sched::LinkId,
    window::{self, Caution, Sharer},
};

/// A TCP connection over a link: a plain connection to a server, or a lane that carries striped connections.
enum Member {
    Plain(Rc<Live>),
    Lane(Rc<Lane>),
}

impl Member {
    fn share(&self) -> &Cell<Share> {
        match self {
            Self::Plain(live) => &live.share,
            Self::Lane(lane) => &lane.share,
        }
    }

    /// Number of bytes received over the connection.
    fn down(&self) -> u64 {
        match self {
            Self::Plain(live) => live.down.get(),
            Self::Lane(lane) => lane.rx_bytes.get(),
        }
    }

    fn put(&self, share: &mut Share, bound: Option<Bytes>, moves: bool) {
        match self {
            Self::Plain(live) => {
                if let Some(stream) = live.upstream.borrow().as_ref() {
                    share.put(stream, bound, moves);
                }
            }
            Self::Lane(lane) => share.put(&lane.stream, bound, moves),
        }
    }
}

/// Returns the TCP connection of `live` and its link.
fn plain(live: &Rc<Live>) -> Option<(LinkId, Member)> {
    let is_there = live.upstream.borrow().is_some();
    let link = live.link.get().filter(|_| is_there)?;
    Some((link, Member::Plain(Rc::clone(live))))
}

/// Returns the TCP connections over links. Lanes that a peer dialled are excluded: the peer divides its own links.
fn members(hub: &Hub) -> Vec<(LinkId, Member)> {
    let live = hub.table.live.borrow();
    let dialled = hub.peering.dialled.borrow();
    let lanes = dialled.values().flat_map(|association| association.lanes());
    let lanes = lanes.filter_map(|lane| Some((lane.link?, Member::Lane(lane))));
    live.values().filter_map(plain).chain(lanes).collect()
}

/// Updates the receive rates since the last call, `elapsed` ago, and divides the capacity of the links over which any
/// connection received data.
pub(super) fn divide_links(hub: &Hub, now: Instant, elapsed: Duration) {
    let mut of_links: BTreeMap<LinkId, Vec<Member>> = BTreeMap::new();
    let mut is_busy = vec![false; hub.uplinks.devices.borrow().len()];
    for (link, member) in members(hub) {
        let mut share = member.share().get();
        let down = member.down();
        let moved = Bytes::new(down.saturating_sub(share.seen));
        if let Some(is_busy) = is_busy.get_mut(link.0) {
            *is_busy |= moved > Bytes::ZERO;
        }
        let sample = Bitrate::from_transfer(moved, elapsed).unwrap_or(share.rate);
        let smoothed_bps = (share.rate.as_bps() * 3 + sample.as_bps()) / 4;
        share.rate = Bitrate::from_bps(smoothed_bps);
        share.seen = down;
        member.share().set(share);
        of_links.entry(link).or_default().push(member);
    }
    let mut placer = hub.placer.borrow_mut();
    let mut cautions = hub.cautions.borrow_mut();
    cautions.resize(is_busy.len(), Caution::default());
    for (link, sharing) in of_links {
        let known = placer.known_download(link);
        let is_busy = is_busy.get(link.0) == Some(&true);
        let (Some(rate), Some(caution), true) = (known, cautions.get_mut(link.0), is_busy) else {
            continue;
        };
        if divide(now, rate, caution, &sharing) {
            placer.bind(link);
        }
    }
}

/// Returns the initial receive window for a new connection over `link`, which counts as a connection that is not
/// idle. `None`: the kernel chooses.
pub(crate) fn first_window(hub: &Hub, now: Instant, link: LinkId) -> Option<Bytes> {
    if !hub.settings.short_queues {
        return None;
    }
    let placer = hub.placer.borrow();
    let rate = placer.known_download(link)?;
    let caution = hub.cautions.borrow().get(link.0).copied();
    if caution.is_some_and(|caution| caution.is_off(now)) {
        return None;
    }
    let round_trip = placer.links().get(link.0)?.estimator.rtt()?;
    let live = hub.table.live.borrow();
    let connecting = live.values().filter(|live| {
        live.is_connecting.get()
            && live.link.get() == Some(link)
            && live.upstream.borrow().is_none()
    });
    let members = members(hub).into_iter();
    let sharing =
        members.filter(|(on, member)| *on == link && !member.share().get().sharer().is_idle());
    let count = u64::try_from(connecting.count() + sharing.count()).unwrap_or(u64::MAX);
    window::window(rate.scale(1, count.max(1)), round_trip)
}

/// Notes that `live` has connected over `stream`.
pub(crate) fn join_link(hub: &Hub, live: &Live, stream: &TcpStream) {
    if hub.settings.short_queues {
        live.share.set(Share::begin(stream, live.down.get()));
    }
}

/// Sets the receive windows of the connections `sharing` a link of capacity `rate`. Returns whether any window is
/// limited.
fn divide(now: Instant, rate: Bitrate, caution: &mut Caution, sharing: &[Member]) -> bool {
    let sharers: Vec<Sharer> = sharing
        .iter()
        .map(|member| member.share().get().sharer())
        .collect();
    let may_bind = caution.on_look(now, rate, &sharers);
    let parts = window::parts(rate, &sharers);
    let mut is_any_bound = false;
    for ((member, part), sharer) in sharing.iter().zip(parts).zip(&sharers) {
        let mut share = member.share().get();
        share.part = Some(part);
        let bound = window::window(part, share.base);
        let bound = bound.filter(|_| may_bind && share.base > Duration::ZERO);
        member.put(&mut share, bound, sharer.rate > Bitrate::ZERO);
        is_any_bound |= share.bound.is_some();
        member.share().set(share);
    }
    is_any_bound
}

/// Interval between two divisions. Capacity that a connection stops using is given to the others after this time.
pub(super) const LOOK: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use pleach_linux::clock;

    use super::*;
    use crate::{
        daemon::hub::tests::{add_link, begin, hub},
        placer::Link,
        relay::stripe::{
            association::Association,
            drive,
            tests::{run, shaken},
        },
        stripe::{frame::LaneId, sched::Striping},
    };

    /// Returns a connection over the only link, to a local server.
    fn connection(hub: &Hub, listener: &TcpListener) -> Rc<Live> {
        let (live, _) = begin(hub, [10, 0, 0, 1].into());
        let address = listener.local_addr().expect("bound");
        let stream = std::net::TcpStream::connect(address).expect("connects");
        stream.set_nonblocking(true).expect("a socket");
        let stream = TcpStream::from_std(stream).expect("a runtime");
        join_link(hub, &live, &stream);
        live.upstream.replace(Some(Rc::new(stream)));
        live
    }

    /// Returns the limits of the windows after 20 intervals, in each of which the connections receive the given
    /// number of bytes.
    fn bounds(hub: &Hub, taken: &[(&Rc<Live>, u64)]) -> Vec<Option<u64>> {
        for _ in 0..20 {
            for (live, bytes) in taken {
                live.down.set(live.down.get() + bytes);
            }
            divide_links(hub, clock::now(), LOOK);
        }
        let bound = |(live, _): &(&Rc<Live>, u64)| live.share.get().bound.map(Bytes::get);
        taken.iter().map(bound).collect()
    }

    #[test]
    fn who_shares_a_known_link_is_bound_to_a_part_of_it() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_io().build().expect("runtime");
        let _guard = runtime.enter();
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let hub = hub();
        let link = add_link(&hub, "l0");
        let (a, b) = (connection(&hub, &listener), connection(&hub, &listener));
        assert_eq!(first_window(&hub, clock::now(), link), None);
        assert_eq!(bounds(&hub, &[(&a, 25_000), (&b, 25_000)]), [None, None]);

        // 25 kB per interval are 4 Mbit/s; 30 ms at this rate are 15 kB.
        let carries = |mbps: u64| {
            let mut placer = hub.placer.borrow_mut();
            let link = placer.link_mut(link).expect("there");
            let rate = Bitrate::from_mbps(mbps);
            link.estimator.down.restore(clock::now(), rate);
        };
        carries(8);
        let both = bounds(&hub, &[(&a, 25_000), (&b, 25_000)]);
        let near = |bound: Option<u64>, wanted: u64| {
            bound.is_some_and(|bound| (wanted * 9 / 10..wanted * 11 / 10).contains(&bound))
        };
        assert!(near(both[0], 15_000) && near(both[1], 15_000), "{both:?}");
        let one = bounds(&hub, &[(&a, 50_000), (&b, 0)]);
        assert!(near(one[0], 30_000), "{one:?}");
        // A link that is so fast that the kernel's windows are not limited.
        carries(800);
        assert_eq!(bounds(&hub, &[(&a, 25_000), (&b, 25_000)]), [None, None]);
    }

    #[test]
    fn lanes_share_a_link_with_plain_connections() {
        run(async {
            let hub = hub();
            let link = add_link(&hub, "l0");
            let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
            let plain = connection(&hub, &listener);
            let association = Association::new("peer".to_owned(), Striping::Osia, None, &hub.drops);
            let [here, _there] = shaken().await;
            drive::add_lane(&association, LaneId(0), Some(link), "l0".to_owned(), here);
            let key = (0, ([192, 0, 2, 1], 7701).into());
            let dialled = &hub.peering.dialled;
            dialled.borrow_mut().insert(key, Rc::clone(&association));
            let rate = Bitrate::from_mbps(8);
            let restore = |link: &mut Link| link.estimator.down.restore(clock::now(), rate);
            hub.placer.borrow_mut().link_mut(link).map(restore);

            let lane = association.lanes().remove(0);
            for _ in 0..20 {
                plain.down.set(plain.down.get() + 25_000);
                lane.rx_bytes.set(lane.rx_bytes.get() + 25_000);
                divide_links(&hub, clock::now(), LOOK);
            }
            let bounds = [&plain.share, &lane.share].map(|share| share.get().bound);
            let bytes = bounds.map(|bound| bound.map_or(0, Bytes::get));
            assert!(
                bytes.iter().all(|bytes| (13_500..16_500).contains(bytes)),
                "half of 30 ms each: {bytes:?}"
            );
        });
    }
}
